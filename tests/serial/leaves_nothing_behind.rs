//! `taut demo` restores the machine however it ends, and its complete results stay readable.

use crate::support::leftovers::Watch;
use crate::support::program::{Finished, Program, run};
use crate::support::{alone, alone_and_root, scratch, taut};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

/// The exit code that a shell reports for a program ended by Ctrl-C.
const INTERRUPTED: i32 = 130;

/// The arguments of a quick demo, shortened further.
const DEMO: [&str; 4] = ["demo", "--quick", "--seconds", "0.1"];

/// Starts a demo of all devices.
fn start_demo(watch: &Watch, out: &Path) -> Program {
    let mut command = taut(&DEMO);
    // One repetition is enough to show that every device works.
    command.args(["--repetitions", "1", "--out"]).arg(out);
    Program::start(watch.over(&mut command))
}

/// Starts a demo with one device over veth, whose namespaces are created first, and one over memif.
fn start_short_demo(watch: &Watch, out: &Path) -> Program {
    let mut command = taut(&DEMO);
    command.args(["--devices", "veth-bridge,memif-idle", "--out"]);
    Program::start(watch.over(command.arg(out)))
}

fn stage(out: &Path) -> Value {
    let text = fs::read_to_string(out.join("experiment.json")).unwrap();
    serde_json::from_str::<Value>(&text).unwrap()["stage"].clone()
}

/// Returns the number of complete runs in the folder.
fn runs(out: &Path) -> usize {
    let index = fs::read_to_string(out.join("runs.jsonl"));
    index.map_or(0, |index| index.lines().count())
}

fn report(out: &Path) -> Finished {
    run(taut(&["report"]).arg(out))
}

#[test]
fn a_complete_demo_writes_a_report_and_removes_its_resources() {
    let _turn = alone();
    let (watch, folder) = (Watch::begin(), scratch());
    let out = folder.path().join("whole");
    let mut demo = start_demo(&watch, &out);
    // A second demo at the same time would only measure the first one. It therefore waits, unless an option forbids
    // that.
    demo.wait_until("a first line", |_, stderr| stderr.contains('\n'));
    let mut second = Program::start(
        watch.over(taut(&["demo", "--quick", "--out"]).arg(folder.path().join("second"))),
    );
    second.wait_until("that it waits", |_, stderr| {
        stderr.contains(&format!("in use by process {}", demo.id()))
    });
    let second = second.interrupt();
    assert_eq!(second.code(), Some(INTERRUPTED), "{second:?}");
    assert!(!folder.path().join("second").exists());

    let finished = demo.finish_within(Duration::from_secs(300)).success();
    watch.nothing_is_left();
    assert_eq!(stage(&out), "finished");
    for name in [
        "full(32, 100us)",
        "every(50us)",
        "each",
        "idle(32)",
        "report:",
    ] {
        assert!(
            finished.stdout.contains(name),
            "{name}: {}",
            finished.stdout
        );
    }
    assert!(out.join("report.html").is_file() && out.join("summary.json").is_file());
    // The folder alone is enough for the same report.
    fs::remove_file(out.join("report.html")).unwrap();
    let again = report(&out).success();
    assert_eq!(again.stdout, finished.stdout);
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    // The experiment's own report replaces the page, and `taut report` restores it.
    let words = ["experiment", "show", "--verify"];
    let shown = run(taut(&words).arg(&out)).success();
    assert!(shown.stdout.contains("Forwarders of this machine compared"));
    let other = fs::read_to_string(out.join("report.html")).unwrap();
    assert_ne!(other, page);
    report(&out).success();
    assert_eq!(fs::read_to_string(out.join("report.html")).unwrap(), page);
}

#[test]
fn ctrl_c_before_the_first_result_leaves_no_process_running() {
    let _turn = alone();
    let (watch, folder) = (Watch::begin(), scratch());
    let out = folder.path().join("early");
    let demo = start_demo(&watch, &out);
    sleep(Duration::from_millis(100));
    let finished = demo.interrupt();
    watch.nothing_is_left();
    assert_eq!(finished.code(), Some(INTERRUPTED), "{finished:?}");
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    if out.join("experiment.json").exists() {
        assert_eq!(stage(&out), "interrupted");
    }
}

#[test]
fn interrupted_demos_keep_complete_runs_and_no_other_files() {
    let _turn = alone();
    for signal in [Signal::INT, Signal::TERM] {
        let (watch, folder) = (Watch::begin(), scratch());
        let out = folder.path().join("partial");
        let mut demo = start_demo(&watch, &out);
        demo.wait_until("two runs", |_, _| runs(&out) >= 2);
        demo.signal(signal);
        let finished = demo.finish();
        watch.nothing_is_left();
        assert_eq!(finished.code(), Some(INTERRUPTED), "{finished:?}");
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
        assert_eq!(stage(&out), "interrupted");
        let again = report(&out).success();
        assert!(again.stdout.contains("has not finished"), "{again:?}");
        assert!(out.join("report.html").is_file());
        // The interrupted run leaves no folder, so all remaining folders are complete runs.
        let kept = fs::read_dir(out.join("runs")).unwrap().count();
        assert_eq!(kept, runs(&out));
    }
}

#[test]
fn a_killed_step_leaves_no_process_namespace_or_folder() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let (watch, folder) = (Watch::begin(), scratch());
    let mut step = taut(&["node", "step", "--name", "deaf", "--limit", "60"]);
    step.arg("--folder").arg(folder.path()).args([
        "--",
        "trap '' INT TERM; ip netns add taut-$$-0-gen && mkdir \"$TMPDIR/taut-$(stat -Lc %i /proc/self/ns/pid).$$-x\" && echo made; while :; do sleep 1; done",
    ]);
    let mut step = Program::start(watch.over(&mut step));
    step.wait_for_stdout("made");
    step.close_input();
    let finished = step.finish();
    assert_eq!(finished.code(), Some(143), "{finished:?}");
    watch.nothing_is_left();
}

#[test]
fn resuming_completes_the_runs_that_ctrl_c_skipped() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("out");
    let mut command = taut(&DEMO);
    command.args(["--devices", "memif-idle,memif-each", "--out"]);
    let mut demo = Program::start(command.arg(&out));
    demo.wait_until("a run", |_, _| runs(&out) >= 1);
    let finished = demo.interrupt();
    assert_eq!(finished.code(), Some(INTERRUPTED), "{finished:?}");
    assert!(finished.stderr.contains("taut experiment resume"));
    let mut command = taut(&["experiment", "resume", "--json"]);
    let resumed = Program::start(command.arg(&out));
    let resumed = resumed.finish_within(Duration::from_secs(120)).success();
    assert_eq!(stage(&out), "finished");
    let summary: Value = serde_json::from_str(&resumed.stdout).unwrap();
    for device in summary["devices"].as_array().unwrap() {
        assert_eq!(device["repetitions"], 3, "{summary}");
    }
    assert_eq!(summary["problems"], serde_json::json!([]));
}

#[test]
fn a_demo_removes_all_remains_of_a_killed_demo() {
    let _turn = alone();
    let (watch, folder) = (Watch::begin(), scratch());
    let out = folder.path().join("killed");
    let mut demo = start_short_demo(&watch, &out);
    if taut_host::permissions::is_root() {
        // The namespaces belong to the process of the demo's run. (A killed test run may have left others.)
        demo.wait_until("namespaces of its own", |_, _| watch.new_namespaces() > 0);
    } else {
        demo.wait_until("a run", |_, _| runs(&out) >= 1);
    }
    demo.kill();
    // A killed demo cannot record its end, but its complete runs are readable.
    assert_eq!(stage(&out), "running");
    if runs(&out) > 0 {
        report(&out).success();
    }
    let next = folder.path().join("next");
    let mut sweeping = start_short_demo(&watch, &next);
    sweeping.wait_until("a run", |_, _| runs(&next) >= 1);
    sweeping.interrupt();
    watch.nothing_is_left();
}
