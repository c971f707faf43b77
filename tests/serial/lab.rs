//! A laboratory end to end: two users share this machine through a service, which is killed repeatedly. A browser
//! displays the laboratory's page.

use crate::support::alone;
use crate::support::browser::Browser;
use crate::support::lab::{Laboratory, kill_often};
use crate::support::program::run;
use crate::support::refusals::{INPUT, LIMIT, MISSING, says};
use crate::support::taut;
use serde_json::Value;
use std::fs;

#[test]
fn an_experiment_is_submitted_watched_cancelled_and_fetched() {
    // Only one experiment at a time uses the machine.
    let _turn = alone();
    let lab = Laboratory::new("");
    let service = lab.serve();
    let listed = service.by("alice", "lab nodes").success().stdout;
    assert!(listed.contains("cores 2, nic none, rack 3"), "{listed}");
    let refused = service.by("bob", "experiment submit numbers.toml --node dut=here");
    says(&refused, INPUT, "the file has no node `dut`");
    let one = service
        .by("alice", "experiment submit numbers.toml --watch")
        .success();
    assert!(one.stdout.contains("finished; 2 of 2 runs"), "{one:?}");
    let fetched = service.json_by("bob", "experiment fetch 1 --out one");
    assert_eq!(fetched["folder"], "one");
    let shown = run(taut(&["experiment", "show"]).arg(lab.path("one"))).success();
    assert!(shown.stdout.contains("Numbers: 2 of 2 runs"), "{shown:?}");
    let record = fs::read_to_string(lab.path("one/runs/v1-r1/logs/it.out")).unwrap_or_default();
    assert!(record.is_empty() || record.contains("three"), "{record}");
    // A long experiment is cancelled.
    let text = fs::read_to_string(lab.path("numbers.toml"))
        .unwrap()
        .replace("0.1", "30");
    fs::write(lab.path("long.toml"), text).unwrap();
    let two = service.json_by("bob", "experiment submit long.toml --repetitions 3");
    assert_eq!(
        (&two["id"], &two["nodes"][0]),
        (&Value::from(2), &Value::from("here"))
    );
    let held = service.by("alice", "lab reserve here far --for 10m");
    says(&held, INPUT, "experiment 2 of bob runs on here until");
    service.json_by("bob", "experiment cancel 2");
    let ended = service.by("alice", "experiment watch 2");
    assert_eq!(ended.code(), Some(LIMIT), "{ended:?}");
    assert!(
        ended
            .stderr
            .contains("experiment 2 cancelled: cancelled by bob"),
        "{ended:?}"
    );
    let made = service
        .by("alice", "lab reserve here far --for 10m")
        .success()
        .stdout;
    assert!(
        made.starts_with("reservation 1: alice has far, here from"),
        "{made}"
    );
    service.by("alice", "lab extend 1 --by 1h").success();
    let listed = service.by("bob", "lab calendar").success().stdout;
    assert!(listed.contains("far, here"), "{listed}");
    service.by("alice", "lab release 1").success();
    // Wrong tokens and addresses are refused.
    fs::write(lab.path("mallory"), "00ff\n").unwrap();
    says(
        &service.by("mallory", "lab nodes"),
        INPUT,
        "wrong or missing token",
    );
    says(&service.by("nobody", "lab nodes"), INPUT, "No such file");
    says(
        &service.by("bob", "lab nodes --to https://lab"),
        INPUT,
        "ssh -L",
    );
    says(
        &service.by("bob", "lab nodes --to http://127.0.0.1:1"),
        MISSING,
        "refused",
    );
    let ended = service.program.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

#[test]
fn five_kills_of_the_service_lose_no_reservation_or_run() {
    let _turn = alone();
    kill_often(5);
}

#[test]
fn the_page_displays_calendar_queue_and_progress() {
    let _turn = alone();
    let lab = Laboratory::new("");
    let service = lab.serve();
    let Some(mut browser) = Browser::open(&service.url) else {
        return;
    };
    browser.wait_until("!document.getElementById('entry').hidden");
    let enter = |token: &str| {
        format!(
            "document.getElementById('token').value = '{token}'; document.querySelector('#entry button').click()"
        )
    };
    browser.value(&enter("wrong"));
    let trouble = "document.getElementById('trouble').textContent";
    browser.wait_until(&format!("{trouble}.startsWith('wrong or missing token')"));
    assert_eq!(browser.faint_texts(), Vec::<String>::new());
    service.by("bob", "lab reserve far --for 2h").success();
    let text = fs::read_to_string(lab.path("numbers.toml"))
        .unwrap()
        .replace("0.1", "30");
    fs::write(lab.path("long.toml"), text).unwrap();
    for _ in 0..2 {
        service.by("alice", "experiment submit long.toml").success();
    }
    let token = fs::read_to_string(lab.path("alice")).unwrap();
    browser.value(&enter(token.trim()));
    browser.wait_until("document.getElementById('running').textContent.includes('now v')");
    for (part, count) in [
        ("rect.reserved", 1),
        ("rect.running", 1),
        ("rect.planned", 1),
    ] {
        browser.wait_until(&format!(
            "document.querySelectorAll('#calendar {part}').length === {count}"
        ));
    }
    browser.wait_until("document.querySelectorAll('#queue tr').length === 1");
    assert_eq!(browser.faint_texts(), Vec::<String>::new());
    for id in [2, 1] {
        service
            .by("alice", &format!("experiment cancel {id}"))
            .success();
    }
    browser.wait_until("document.querySelectorAll('#ended tr').length === 2");
    assert_eq!(browser.close(), Vec::<String>::new());
    service.program.interrupt().success();
}
