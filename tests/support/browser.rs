//! Chromium without a window, controlled through the protocol of its developer tools. Tests observe a page's own
//! actions, and the results of clicks, as a user does.

use super::program::Program;
use super::{is_installed, scratch};
use serde_json::{Value, json};
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The timeout for a page, on a machine on which other programs run.
const PATIENCE: Duration = Duration::from_secs(60);
/// Finds the texts of a page with too little contrast.
const CONTRAST: &str = include_str!("contrast.js");

/// A browser with one page, closed on drop.
pub struct Browser {
    program: Program,
    _profile: TempDir,
    session: Option<String>,
    asked: u64,
}

impl Browser {
    /// Opens a page; if no such browser is installed, prints why the test is skipped and returns `None`.
    pub fn open(url: &str) -> Option<Self> {
        if !is_installed("chromium") {
            println!("skipped: needs chromium (package chromium)");
            return None;
        }
        let profile = scratch();
        // Chromium reads from descriptor 3 and writes to 4; each message ends with a zero byte.
        let mut command = Command::new("sh");
        command.args(["-c", "exec chromium \"$@\" 3<&0 4>&1 >/dev/null 2>&1", "sh"]);
        command.args(["--headless", "--no-sandbox", "--disable-gpu"]);
        command.args(["--no-first-run", "--no-proxy-server"]);
        command.args(["--disable-dev-shm-usage", "--disable-background-networking"]);
        command.args(["--disable-breakpad", "--remote-debugging-pipe"]);
        command.arg(format!("--user-data-dir={}", profile.path().display()));
        let mut browser = Self {
            program: Program::start(&mut command),
            _profile: profile,
            session: None,
            asked: 0,
        };
        let made = browser.ask("Target.createTarget", &json!({"url": "about:blank"}));
        let target = json!({"targetId": made["targetId"], "flatten": true});
        let attached = browser.ask("Target.attachToTarget", &target);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        browser.ask("Runtime.enable", &json!({}));
        // The page has the keyboard focus, as in a foreground window.
        let focused = json!({"enabled": true});
        browser.ask("Emulation.setFocusEmulationEnabled", &focused);
        browser.go(url);
        Some(browser)
    }

    /// Returns the result of a command of the protocol.
    #[track_caller]
    fn ask(&mut self, method: &str, parameters: &Value) -> Value {
        let mut answer = self.answer(method, parameters);
        assert!(answer["error"].is_null(), "{method} {parameters}: {answer}");
        answer["result"].take()
    }

    /// Returns the reply to a command of the protocol, which may be an error.
    #[track_caller]
    fn answer(&mut self, method: &str, parameters: &Value) -> Value {
        self.asked += 1;
        let id = self.asked;
        let mut message = json!({"id": id, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.program.type_bytes(format!("{message}\0").as_bytes());
        let mut answer = None;
        self.program
            .wait_until(&format!("an answer to {message}"), |said, _| {
                answer = messages(said).find(|it| it["id"] == id);
                answer.is_some()
            });
        answer.unwrap()
    }

    /// Evaluates a script in the page and returns its value; a promise is awaited.
    #[track_caller]
    pub fn value(&mut self, script: &str) -> Value {
        let what = json!({"expression": script, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.ask("Runtime.evaluate", &what);
        assert!(answer["exceptionDetails"].is_null(), "{script}: {answer}");
        answer["result"]["value"].take()
    }

    /// Waits until a condition holds in the page, which may still be loading or be replaced by another one.
    #[track_caller]
    pub fn wait_until(&mut self, condition: &str) {
        let script =
            format!("(() => {{ try {{ return !!({condition}) }} catch {{ return false }} }})()");
        let what = json!({"expression": script, "returnByValue": true});
        let deadline = Instant::now() + PATIENCE;
        // A reply without a value, or an error, comes from a page that was closed during the call.
        while self.answer("Runtime.evaluate", &what)["result"]["result"]["value"] != true {
            assert!(Instant::now() < deadline, "never came to {condition}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Navigates to another page and waits until it has loaded.
    #[track_caller]
    pub fn go(&mut self, url: &str) {
        self.ask("Page.navigate", &json!({"url": url}));
        let url = json!(url);
        self.wait_until(&format!(
            "document.readyState === 'complete' && location.href === new URL({url}).href"
        ));
    }

    /// Clicks at the given position of the page, as a user does.
    #[track_caller]
    pub fn click(&mut self, x: u32, y: u32) {
        for kind in ["mousePressed", "mouseReleased"] {
            let what = json!({"type": kind, "x": x, "y": y, "button": "left", "clickCount": 1});
            self.ask("Input.dispatchMouseEvent", &what);
        }
    }

    /// Presses a key with the given name: Tab, Enter, Escape or Space.
    #[track_caller]
    pub fn press(&mut self, name: &str) {
        let (key, text, number) = match name {
            "Tab" => (name, "", 9),
            "Enter" => (name, "\r", 13),
            "Escape" => (name, "", 27),
            "Space" => (" ", " ", 32),
            _ => panic!("no key {name}"),
        };
        for (kind, text) in [("keyDown", text), ("keyUp", "")] {
            let what = json!({
                "type": kind, "key": key, "code": name, "text": text, "windowsVirtualKeyCode": number
            });
            self.ask("Input.dispatchKeyEvent", &what);
        }
    }

    /// Returns a description of each visible text whose contrast is too low for level AA of WCAG 2.2, in light and in
    /// dark colours. Details are opened first.
    #[track_caller]
    pub fn faint_texts(&mut self) -> Vec<String> {
        self.value("document.querySelectorAll('details').forEach(it => it.open = true)");
        let mut faint = Vec::new();
        for scheme in ["light", "dark"] {
            let feature = json!({"name": "prefers-color-scheme", "value": scheme});
            let what = json!({"features": [feature]});
            self.ask("Emulation.setEmulatedMedia", &what);
            let judged = self.value(CONTRAST);
            assert!(judged["seen"].as_u64() > Some(0), "no text is visible");
            let found = judged["found"].as_array().unwrap().iter();
            faint.extend(found.map(|it| format!("{scheme}: {}", it.as_str().unwrap())));
        }
        faint
    }

    /// Closes the browser; returns the errors of its pages' scripts.
    pub fn close(mut self) -> Vec<String> {
        let said = self.program.stdout();
        let thrown = messages(&said).filter(|it| it["method"] == "Runtime.exceptionThrown");
        let thrown = thrown.map(|it| it["params"].to_string()).collect();
        self.session = None;
        self.asked += 1;
        let close = json!({"id": self.asked, "method": "Browser.close"});
        self.program.type_bytes(format!("{close}\0").as_bytes());
        self.program.finish();
        thrown
    }
}

/// Returns the complete messages of a browser.
fn messages(said: &str) -> impl Iterator<Item = Value> {
    let whole = said.rsplit_once('\0').map_or("", |(whole, _)| whole);
    whole
        .split('\0')
        .filter_map(|it| serde_json::from_str(it).ok())
}
