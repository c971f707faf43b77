//! The live pages in a browser: each text has enough contrast in light and in dark colours, and the page of `taut serve`
//! is used without a mouse.

use crate::parallel::serve_page::serve;
use crate::support::browser::Browser;
use crate::support::program::Program;
use crate::support::{RESTING, scratch, taut};
use std::fs;
use std::path::Path;

/// Makes a folder with the files of an experiment.
fn experiment(results: &Path, name: &str, state: &str, files: &[(&str, &str)]) {
    let folder = results.join(name);
    fs::create_dir_all(&folder).unwrap();
    fs::write(folder.join("state.json"), state).unwrap();
    for (file, text) in files {
        fs::write(folder.join(file), text).unwrap();
    }
}

/// Makes two finished experiments, one that runs, and a broken one.
fn experiments(results: &Path) {
    let finished = r#"{"title": "Numbers", "stage": "finished", "started": "2026-01-01T00:00:00Z", "done": 4,
        "planned": 4, "command_line": "taut experiment run numbers"}"#;
    let verdicts = r#"{"verdicts": [{"verdict": "same"}, {"verdict": "same-direction"}, {"verdict": "opposite"},
        {"verdict": "no-data"}]}"#;
    let files = [
        ("summary.json", verdicts),
        ("report.html", "<h1>Numbers</h1>"),
    ];
    experiment(results, "one", finished, &files);
    experiment(results, "two", finished, &files);
    let running = r#"{"title": "More numbers", "stage": "running", "started": "2026-01-02T00:00:00Z", "done": 2,
        "planned": 4, "command_line": "taut experiment run more"}"#;
    let run = |id: &str, value: u32| {
        format!(
            r#"{{"id": "{id}", "seconds": 1.5, "variables": {{"x": 1}}, "metrics": {{"it.value": {value}}}}}{}"#,
            "\n"
        )
    };
    let runs = run("v1-r1", 3) + &run("v1-r2", 4);
    experiment(results, "three", running, &[("runs.jsonl", &runs)]);
    experiment(results, "four", "not JSON", &[]);
}

/// Starts a forwarder, and returns it with the address of its metrics.
fn forwarder() -> (Program, String) {
    let mut command = taut(&["forward", "--port", "null:source=1", "--port", "null:"]);
    command.args(RESTING);
    command.args(["--quiet", "--metrics", "127.0.0.1:0"]);
    let mut forwarder = Program::start(&mut command);
    forwarder.wait_for_stderr("metrics at ");
    let said = forwarder.stderr();
    let mut lines = said.lines();
    let address = lines.find_map(|it| it.strip_prefix("taut: metrics at "));
    (forwarder, address.unwrap().to_owned())
}

/// Returns a script that finds a button by its text in an entry of the list.
fn button(text: &str, entry: &str) -> String {
    format!(
        "[...document.querySelectorAll('#rows tr')].find(it => it.textContent.includes('{entry}'))
           .querySelectorAll('button').values().find(it => it.textContent === '{text}')"
    )
}

#[test]
fn text_with_too_little_contrast_is_found() {
    let folder = scratch();
    let page = folder.path().join("page.html");
    let text = r##"<!doctype html><html><body style="background: #fff; color: #767676">
        <p>good</p><p style="color: #777">faint</p><p style="color: #0007">pale</p>
        <p style="color: #949494; font-size: 24px">large</p><p style="color: #000; opacity: 0.5">dim</p>
        <p style="color: #999; display: none">hidden</p><div style="background: #0008; color: #fff">shaded</div>
        <svg width="200" height="40"><rect width="100" height="40" fill="#222"/><text x="10" y="20" fill="#fff">on
        dark</text><text x="120" y="20" fill="#fff">lost</text></svg><input placeholder="hint" style="color: #888">
        </body></html>"##;
    fs::write(&page, text).unwrap();
    let Some(mut browser) = Browser::open(&format!("file://{}", page.display())) else {
        return;
    };
    let faint = browser.faint_texts();
    let light: Vec<&String> = faint.iter().filter(|it| it.starts_with("light")).collect();
    let found = |word: &str| light.iter().any(|it| it.contains(&format!("\"{word}")));
    for word in ["faint", "pale", "dim", "lost", "shaded"] {
        assert!(found(word), "{word}: {faint:?}");
    }
    for word in ["good", "large", "hidden", "on"] {
        assert!(!found(word), "{word}: {faint:?}");
    }
    browser.close();
}

#[test]
fn every_text_of_the_serve_page_has_enough_contrast() {
    let folder = scratch();
    experiments(folder.path());
    let (forwarder, metrics) = forwarder();
    let (server, url) = serve(
        folder.path(),
        &["--watch", &metrics, "--watch", "127.0.0.1:1"],
    );
    let Some(mut browser) = Browser::open(&url) else {
        return;
    };
    browser.wait_until("document.querySelectorAll('#rows tr').length === 4");
    browser.wait_until("document.querySelector('#watched-0 polyline')");
    browser.wait_until("document.getElementById('watched-1').textContent.includes('no metrics')");
    assert_eq!(browser.faint_texts(), Vec::<String>::new());
    browser.value("document.getElementById('search').value = 'numbers'; draw(false)");
    browser.value(&format!("{}.click()", button("Live", "three")));
    browser.wait_until("document.querySelectorAll('#live-runs tr').length === 2");
    assert_eq!(browser.faint_texts(), Vec::<String>::new());
    browser.press("Escape");
    browser.value(&format!("{}.click()", button("Files", "one")));
    browser.wait_until("document.getElementById('files').open");
    assert_eq!(browser.faint_texts(), Vec::<String>::new());
    assert_eq!(browser.close(), Vec::<String>::new());
    server.interrupt().success();
    forwarder.interrupt().success();
}

#[test]
fn every_text_of_the_capture_page_has_enough_contrast() {
    let mut command = taut(&["capture", "--port", "null:source=1", "--ring", "64M"]);
    command.args(["--trigger", "by-hand", "--flows", "100", "--page", "0"]);
    command.args(RESTING);
    let mut capture = Program::start(&mut command);
    capture.wait_for_stderr("page at ");
    let said = capture.stderr();
    let mut lines = said.lines();
    let url = lines.find_map(|it| it.strip_prefix("taut: page at "));
    let Some(mut browser) = Browser::open(url.unwrap()) else {
        return;
    };
    browser.wait_until(
        "document.querySelector('#chart polyline').getAttribute('points').includes(' ')",
    );
    assert_eq!(browser.faint_texts(), Vec::<String>::new());
    browser.press("Tab");
    browser.wait_until(&format!(
        "document.activeElement.localName === 'button' && {OUTLINED}"
    ));
    assert_eq!(browser.close(), Vec::<String>::new());
    capture.interrupt().success();
}

/// Expression that is true if the element with the keyboard focus has a visible outline.
const OUTLINED: &str =
    "(style => style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2)
    (getComputedStyle(document.activeElement))";

/// Presses Tab until the focused element meets a condition. Each element on the way has a visible outline.
#[track_caller]
fn tab_to(browser: &mut Browser, condition: &str) {
    for _ in 0..40 {
        browser.press("Tab");
        let on_body = browser.value("document.activeElement === document.body") == true;
        assert!(
            on_body || browser.value(OUTLINED) == true,
            "no outline: {}",
            browser.value("document.activeElement.outerHTML")
        );
        browser.value("reached.add(document.activeElement)");
        let is_there = format!("(it => !!({condition}))(document.activeElement)");
        if browser.value(&is_there) == true {
            return;
        }
    }
    panic!("Tab never came to {condition}");
}

#[test]
fn the_serve_page_is_used_with_the_keyboard_alone() {
    let folder = scratch();
    experiments(folder.path());
    let (server, url) = serve(folder.path(), &[]);
    let Some(mut browser) = Browser::open(&url) else {
        return;
    };
    browser.wait_until("document.querySelectorAll('#rows tr').length === 4");
    browser.value("globalThis.reached = new Set()");
    for name in ["one", "two"] {
        tab_to(
            &mut browser,
            &format!("it.getAttribute('aria-label') === 'Compare {name}'"),
        );
        browser.press("Space");
    }
    browser.wait_until("!document.getElementById('compare').disabled");
    // The rows are drawn again with each tick, so the elements that were reached are counted from here.
    browser.value("reached.clear()");
    tab_to(&mut browser, "it === document.body");
    tab_to(&mut browser, "it.id === 'compare'");
    tab_to(&mut browser, "it === document.body");
    let left = browser.value(
        "[...document.querySelectorAll('a[href], button:enabled, input, select')]
           .filter(it => it.checkVisibility() && !reached.has(it)).map(it => it.outerHTML)",
    );
    assert_eq!(left, serde_json::json!([]));
    tab_to(
        &mut browser,
        "it.getAttribute('aria-label') === 'Files of one'",
    );
    browser.press("Enter");
    browser.wait_until("document.getElementById('files').open");
    tab_to(
        &mut browser,
        "it.localName === 'a' && it.closest('#files-list')",
    );
    browser.press("Escape");
    browser.wait_until("!document.getElementById('files').open");
    browser.wait_until("document.activeElement.getAttribute('aria-label') === 'Files of one'");
    assert_eq!(browser.close(), Vec::<String>::new());
    server.interrupt().success();
}
