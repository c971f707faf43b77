//! `taut serve`: results of two small experiments, requested by curl: the list, reports, a comparison, files.

use crate::support::program::{Program, run};
use crate::support::{alone, is_installed, scratch, taut};
use serde_json::Value;
use std::fs;
use std::path::Path;

/// An experiment whose runs take no time and need no other program.
const EXPERIMENT: &str = r#"
title = "Numbers"
[loop]
x = [1, 2]
[plan]
repetitions = 2
[[step]]
name = "it"
run = "echo '{\"value\": {{ x }}.5}'"
json = true
[[table]]
name = "all"
title = "All"
rows = ["x"]
metrics = ["it.value"]
[[claim]]
text = "Two is more"
published = "always"
value = "median('it.value', x=2) - median('it.value', x=1)"
holds = "value > 0"
"#;

fn experiment(folder: &Path, out: &str) {
    let file = folder.join("numbers.toml");
    fs::write(&file, EXPERIMENT).unwrap();
    let mut command = taut(&["experiment", "run"]);
    let out = folder.join("results").join(out);
    run(command.arg(&file).arg("--out").arg(out)).success();
}

#[test]
fn the_server_lists_displays_compares_and_serves_results() {
    // Only one experiment at a time uses the machine.
    let _turn = alone();
    if !is_installed("curl") {
        return println!("skipped: needs curl (package curl)");
    }
    let folder = scratch();
    experiment(folder.path(), "one");
    let mut command = taut(&["serve", "--listen", "0", "--json"]);
    let mut server = Program::start(command.arg(folder.path().join("results")));
    server.wait_for_stdout("started");
    let started: Value = serde_json::from_str(server.stdout().lines().next().unwrap()).unwrap();
    assert_eq!(started["folders"], 1, "{started}");
    let url = started["url"].as_str().unwrap().to_owned();
    let get = |path: &str| {
        let mut curl = std::process::Command::new("curl");
        run(curl
            .args(["--silent", "--max-time", "20", "--fail", "--path-as-is"])
            .arg(format!("{url}{path}")))
    };
    let page = get("").success().stdout;
    assert!(
        page.contains("list.json") && !page.contains("src=") && !page.contains("{{"),
        "{page}"
    );
    // A new result appears in the list.
    experiment(folder.path(), "two");
    server.wait_until("the second experiment", |_, _| {
        let list: Vec<Value> = serde_json::from_str(&get("list.json").success().stdout).unwrap();
        let done = |entry: &Value| entry["stage"] == "finished" && entry["verdicts"]["holds"] == 1;
        list.len() == 2 && list.iter().all(done)
    });
    // Reports are shown in a frame, by an address with a key that opens only that report.
    let root: String = url.split_inclusive('/').take(3).collect();
    let framed = |path: &str| {
        let around = get(path).success().stdout;
        let address = around.split("<iframe src=\"/").nth(1).unwrap();
        let address = address.split('"').next().unwrap();
        let mut curl = std::process::Command::new("curl");
        let curl = curl.args(["--silent", "--max-time", "20", "--fail"]);
        run(curl.arg(format!("{root}{address}"))).success().stdout
    };
    assert!(framed("report/one").contains("Two is more"));
    let compared = framed("compare/one/two");
    assert!(compared.contains("it.value"), "{compared}");
    assert!(
        get("file/one/experiment.toml")
            .success()
            .stdout
            .contains("Two is more")
    );
    for wrong in [
        "file/one/../../numbers.toml",
        "report/three",
        "../list.json",
    ] {
        assert_eq!(get(wrong).code(), Some(22), "{wrong}");
    }
    let ended = server.interrupt();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

#[test]
fn missing_folders_and_invalid_listen_addresses_are_refused() {
    let folder = scratch();
    let missing = folder.path().join("none");
    let refused = run(taut(&["serve"]).arg(&missing));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("no such folder"), "{refused:?}");
    let refused = run(taut(&["serve", "--listen", "somewhere"]).arg(folder.path()));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("expected an IP address and a port"),
        "{refused:?}"
    );
}
