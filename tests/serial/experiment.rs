//! `taut experiment` on this machine: the files of a complete run and of an interrupted one, and error messages.

use crate::support::leftovers::Watch;
use crate::support::program::{Finished, Program, run};
use crate::support::{alone, alone_and_root, scratch};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use tempfile::TempDir;

/// A folder with an experiment file.
struct Study {
    folder: TempDir,
}

impl Study {
    fn new(text: &str) -> Self {
        let folder = scratch();
        fs::write(folder.path().join("study.toml"), text).unwrap();
        Self { folder }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = crate::support::taut(&[&["experiment"], words].concat());
        command.current_dir(self.folder.path());
        command
    }

    fn taut(&self, words: &[&str]) -> Finished {
        run(&mut self.command(words))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn json(&self, name: &str) -> Value {
        serde_json::from_str(&fs::read_to_string(self.path(name)).unwrap()).unwrap()
    }

    /// Starts a run once no other experiment uses this machine, and waits for a line on its standard error.
    fn start(&self, words: &[&str], line: &str) -> Program {
        for _ in 0..300 {
            let mut program = Program::start(&mut self.command(words));
            program.wait_until("a line", |_, stderr| {
                stderr.contains(line) || stderr.contains("another experiment")
            });
            if !program.stderr().contains("another experiment") {
                return program;
            }
            let _ = fs::remove_dir_all(self.path("out"));
            std::thread::sleep(Duration::from_millis(500));
        }
        panic!("another experiment has this machine for minutes");
    }
}

/// An experiment whose metrics are computed from a variable, so that the verdicts of its claims are known in advance.
const NUMBERS: &str = r#"
title = "Numbers"
[variables]
factor = 2
[loop]
x = [1, 2, 3]
kind = ["a", "b"]
[plan]
repetitions = 2
warm_up = 1
[[step]]
name = "n"
run = '''echo '{"value_ns": {{ x * factor }}, "deep": {"list": [1, {{ repetition }}]}}'; echo "kind is {{ kind }}" >&2'''
json = true
extract = { seen = 'value_ns": ([0-9]+)' }
[[table]]
name = "values"
metrics = ["n.value_ns"]
[[figure]]
name = "line"
kind = "line"
by = ["kind"]
x = "x"
y = "n.value_ns"
published = [{ name = "theirs", source = "Arithmetic 1", points = [[1, 2], [3, 6]] }]
[[figure]]
name = "map"
kind = "heat-map"
x = "x"
y = "kind"
value = "n.value_ns"
[[claim]]
text = "three is three times one"
published = { value = 3.0, unit = "times", source = "Arithmetic 1", origin = "printed" }
value = "median('n.value_ns', x=3) / median('n.value_ns', x=1)"
[[claim]]
text = "three is nine times one"
published = { value = 9.0, unit = "times", source = "Arithmetic 1", origin = "printed" }
value = "median('n.value_ns', x=3) / median('n.value_ns', x=1)"
[[claim]]
text = "three is less than one"
value = "median('n.value_ns', x=3) / median('n.value_ns', x=1)"
holds = "value < 1"
[[claim]]
text = "of nothing"
value = "median('n.value_ns', x=9)"
holds = "value < 1"
"#;

#[test]
fn a_run_stores_everything_needed_for_repetition_and_verification() {
    let _alone = alone();
    let study = Study::new(NUMBERS);
    let finished = study.taut(&["run", "study.toml", "--out", "out"]).success();
    assert!(
        finished.stdout.contains("18 of 18 runs"),
        "{}",
        finished.stdout
    );
    for part in [
        "same, by the range of 2 repetitions: three is three",
        "same direction, 0.333 times the published figure, in all of 2 repetitions: three is nine",
        "fails, in all of 2 repetitions: three is less",
        "no data: of nothing",
    ] {
        assert!(
            finished.stdout.contains(part),
            "{part}: {}",
            finished.stdout
        );
    }
    let line = fs::read_to_string(study.path("out/figures/line.svg")).unwrap();
    assert_eq!(line.matches("class=\"published\"").count(), 2 + 1, "{line}");
    assert!(line.contains("published: theirs"), "{line}");
    let record = study.json("out/runs/v6-r2/run.json");
    assert_eq!(
        record["variables"],
        serde_json::json!({"factor": 2, "x": 3, "kind": "b"})
    );
    assert_eq!(
        record["metrics"],
        serde_json::json!({"n.value_ns": 6.0, "n.deep.list.0": 1.0, "n.deep.list.1": 2.0, "seen": 6.0})
    );
    assert_eq!(record["commands"][0]["exit_code"], 0);
    assert_eq!(
        fs::read_to_string(study.path("out/runs/v6-r2/logs/n.err")).unwrap(),
        "kind is b\n"
    );
    let facts = study.json(&format!(
        "out/nodes/{}",
        record["nodes"]["local"].as_str().unwrap()
    ));
    assert!(
        facts["machine"]["kernel_release"].is_object()
            && facts["machine"]["clock_source"].is_object()
    );
    assert!(study.json("out/runs/v6-r2/local/activity/n.json")["duration_ms"].is_u64());
    // The table has rows of two metrics of the last counted run, and none of warm-up runs.
    let table = fs::read_to_string(study.path("out/metrics.csv")).unwrap();
    assert_eq!(
        table.lines().next().unwrap(),
        "run,repetition,x,kind,metric,value"
    );
    assert_eq!(table.lines().count(), 1 + 12 * 4);
    assert!(table.contains("v6-r2,2,3,b,n.value_ns,6\n") && !table.contains("-w1"));
    for file in [
        "metrics.parquet",
        "report.html",
        "figures/line.svg",
        "figures/map.csv",
        "tables/values.csv",
    ] {
        assert!(study.path("out").join(file).is_file(), "{file}");
    }
    let data = fs::read_to_string(study.path("out/figures/line.csv")).unwrap();
    assert!(data.contains("v6-r2"), "figures name their runs: {data}");
    // Nothing is overwritten.
    let again = study.taut(&["run", "study.toml", "--out", "out"]);
    assert_eq!(again.code(), Some(2), "{}", again.stderr);
    let listed = study.taut(&["list", "."]).success();
    assert!(listed.stdout.contains("finished") && listed.stdout.contains("Numbers"));
}

#[test]
fn the_same_program_as_both_builds_shows_no_difference() {
    let _alone = alone();
    let study = Study::new(
        r#"
title = "Two builds"
[loop]
x = [1, 2]
[plan]
repetitions = 6
[[step]]
name = "n"
run = '''echo "{\"version\": $(taut -V | grep -c '^taut '), \"value\": {{ x * 10 + repetition % 3 }} }"; command -v taut >&2'''
json = true
[[table]]
name = "both"
metrics = ["n.value"]
[[table]]
name = "head"
rows = ["x"]
metrics = ["n.value"]
[[claim]]
text = "both builds count alike"
value = "median('n.value', build='head') / median('n.value', build='base')"
holds = "value == 1"
"#,
    );
    // The second build is the same program under another name, so that its path differs.
    let base = study.path("old-taut");
    fs::copy(env!("CARGO_BIN_EXE_taut"), &base).unwrap();
    let words = ["run", "study.toml", "--out", "out", "--against", "old-taut"];
    let finished = study.taut(&words).success();
    assert!(finished.stdout.contains("24 of 24 runs"), "{finished:?}");
    let (_, end) = finished.stdout.split_once("report: ").unwrap();
    assert!(
        end.contains("builds: head compared with base (taut "),
        "{end}"
    );
    assert!(end.contains("0 of 2 compared metrics differ."), "{end}");
    assert!(
        end.contains("not shown") && end.contains("head/base"),
        "{end}"
    );
    assert!(finished.stdout.contains("holds"), "{}", finished.stdout);
    let metrics = fs::read_to_string(study.path("out/metrics.csv")).unwrap();
    for build in [",head,", ",base,"] {
        let of_build = metrics.lines().filter(|line| line.contains(build));
        assert_eq!(of_build.count(), 2 * 6 * 2, "{metrics}");
    }
    let table =
        |name: &str| fs::read_to_string(study.path(&format!("out/tables/{name}.csv"))).unwrap();
    assert_eq!(
        (table("both").lines().count(), table("head").lines().count()),
        (5, 3)
    );
    let summary = study.json("out/summary.json");
    assert_eq!(summary["builds"]["metrics"][0]["finding"], "not_shown");
    assert_eq!(
        summary["state"]["changes"]["against"]["program"],
        fs::canonicalize(&base).unwrap().to_str().unwrap()
    );
    // Each build was run as `taut`, from a folder of its own.
    let record = study.json("out/runs/v1-r1/run.json");
    assert!(["head", "base"].contains(&record["loops"]["build"].as_str().unwrap()));

    // If the other build is missing, `taut experiment resume` refuses to continue.
    fs::remove_file(&base).unwrap();
    fs::remove_dir_all(study.path("out/runs/v1-r1")).unwrap();
    let refused = study.taut(&["resume", "out"]);
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(
        refused.stderr.contains("old-taut: No such file"),
        "{}",
        refused.stderr
    );
    assert_eq!(
        refused.stderr.trim_end().lines().count(),
        1,
        "{}",
        refused.stderr
    );
    fs::copy(env!("CARGO_BIN_EXE_taut"), &base).unwrap();
    let resumed = study.taut(&["resume", "out"]).success();
    assert!(
        resumed.stdout.contains("24 of 24 runs"),
        "{}",
        resumed.stdout
    );
}

#[test]
fn a_program_other_than_taut_is_refused_as_second_build() {
    let study = Study::new("title = \"t\"\n[[step]]\nrun = \"true\"\n");
    for (other, reason) in [("/bin/cat", "another taut"), ("./nothing", "No such file")] {
        let refused = study.taut(&["run", "study.toml", "--out", "out", "--against", other]);
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains(reason), "{}", refused.stderr);
        assert!(!study.path("out").exists());
    }
}

#[test]
fn a_renamed_experiment_is_found_by_its_earlier_name() {
    let study = Study::new("");
    let (then, now) = ("gallenmueller-fig5-5", "gallenmueller-fig5-3-caches");
    let told = format!("{then} was renamed to {now}: ");
    let checked = study.taut(&["check", then, "--offline"]).success();
    assert!(checked.stderr.contains(&told), "{}", checked.stderr);
    let renamed = study.taut(&["check", now, "--offline"]).success();
    assert_eq!(renamed.stderr, "");
    assert_eq!(checked.stdout, renamed.stdout);
    let listed = study.taut(&["list", "--reference"]).success();
    let line = |name: &str| {
        let lines = listed.stdout.lines();
        lines
            .filter(|line| line.split(' ').next() == Some(name))
            .count()
    };
    assert_eq!((line(then), line(now)), (1, 1), "{}", listed.stdout);
}

#[test]
fn runs_use_the_program_that_began_the_experiment() {
    let _turn = alone();
    let study = Study::new(
        "title = 'Program'\n[[step]]\nrun = \"readlink -f $(command -v taut) >program\"\n",
    );
    // Another program with the name of taut is in the same folder.
    let (program, other) = (study.path("taut-new"), study.path("taut"));
    fs::copy(env!("CARGO_BIN_EXE_taut"), &program).unwrap();
    fs::write(&other, "#!/bin/sh\nexit 1\n").unwrap();
    fs::set_permissions(&other, fs::Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&program);
    command.args(["experiment", "run", "study.toml", "--out", "out"]);
    run(command.current_dir(study.folder.path())).success();
    let used = fs::read_to_string(study.path("out/runs/v1-r1/local/program")).unwrap();
    assert_eq!(Path::new(used.trim()), fs::canonicalize(&program).unwrap());
}

#[test]
fn a_resumed_experiment_performs_only_the_missing_runs() {
    let _alone = alone();
    let study = Study::new(
        r#"
title = "Slow"
[loop]
x = [1, 2, 3, 4]
[plan]
repetitions = 1
[[step]]
run = "echo {{ x }} >> ../../../../made; sleep 0.4"
"#,
    );
    let mut program = study.start(&["run", "study.toml", "--out", "out"], "v");
    // Each run prints a line when it starts.
    program.wait_until("the second run", |_, stderr| stderr.lines().count() >= 2);
    program.signal(Signal::INT);
    let ended = program.finish_within(Duration::from_secs(20));
    assert_eq!(ended.code(), Some(130), "{}", ended.stderr);
    assert!(
        ended.stderr.contains("taut experiment resume out"),
        "{}",
        ended.stderr
    );
    assert_eq!(study.json("out/state.json")["stage"], "interrupted");
    let whole = |name: &str| fs::read_dir(study.path(name)).unwrap().count();
    let before = whole("out/runs");
    assert!((1..4).contains(&before), "{before} runs were whole");
    let resumed = study.taut(&["resume", "out"]).success();
    assert!(resumed.stdout.contains("4 of 4 runs"), "{}", resumed.stdout);
    let made = fs::read_to_string(study.path("made")).unwrap();
    // Each run was started once, and the interrupted run a second time.
    assert!((4..=5).contains(&made.lines().count()), "{made}");
    assert_eq!(study.json("out/state.json")["stage"], "finished");
    let nothing_more = study.taut(&["resume", "out"]).success();
    assert!(nothing_more.stdout.contains("4 of 4 runs"));
    assert_eq!(fs::read_to_string(study.path("made")).unwrap(), made);
}

#[test]
fn a_killed_experiment_leaves_no_process_and_no_complete_run() {
    let _alone = alone();
    let watch = Watch::begin();
    let study = Study::new(
        "title = \"t\"\n[plan]\nrepetitions = 2\n[[step]]\nrun = \"sleep 61.5 & sleep 60.5\"\n",
    );
    let mut command = study.command(&["run", "study.toml", "--out", "out"]);
    let mut program = Program::start(watch.over(&mut command));
    program.wait_until("the command in the background", |_, _| {
        watch
            .processes()
            .iter()
            .any(|it| it.ends_with(" sleep 61.5 "))
    });
    program.kill();
    watch.nothing_is_left();
    let partial = fs::read_dir(study.path("out/runs"))
        .unwrap()
        .flatten()
        .all(|entry| entry.path().extension().is_some_and(|end| end == "partial"));
    assert!(partial);
    let shown = study.taut(&["show", "out"]).success();
    assert!(
        shown.stdout.contains("0 of 2 runs") && shown.stdout.contains("no run is complete"),
        "{}",
        shown.stdout
    );
    let cleaned = study.taut(&["clean", "out"]).success();
    assert!(cleaned.stdout.contains("removed 1"), "{}", cleaned.stdout);
}

#[test]
fn failed_and_hanging_runs_are_excluded_from_the_results() {
    let _alone = alone();
    let watch = Watch::begin();
    let study = Study::new(
        r#"
title = "Trouble"
[loop]
how = ["exit 7", "sleep 77", "echo no json", "echo '{\"x\": 1}'"]
[plan]
repetitions = 1
limit = "1s"
[[step]]
name = "s"
run = "{{ how }}"
json = true
"#,
    );
    let finished = run(watch.over(&mut study.command(&["run", "study.toml", "--out", "out"])));
    assert_eq!(finished.code(), Some(1), "{}", finished.stderr);
    for reason in [
        "ended with code 7",
        "longer than plan.limit allows (1s)",
        "no JSON object",
    ] {
        assert!(
            finished.stderr.contains(reason),
            "{reason}: {}",
            finished.stderr
        );
    }
    watch.nothing_is_left();
    let state = study.json("out/state.json");
    assert_eq!(
        (state["done"].as_u64(), state["failed"].as_u64()),
        (Some(1), Some(3))
    );
    assert_eq!(state["stage"], "incomplete");
    assert_eq!(fs::read_dir(study.path("out/failed")).unwrap().count(), 3);
    assert_eq!(fs::read_dir(study.path("out/runs")).unwrap().count(), 1);
}

#[test]
fn each_run_creates_new_namespaces_for_linked_nodes() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let watch = Watch::begin();
    let study = Study::new(
        r#"
title = "Two nodes"
[nodes.left]
setup = ["ip addr add {{ address }}/24 dev eth0"]
variables = { address = "10.9.0.1" }
[nodes.right]
setup = ["ip addr add 10.9.0.2/24 dev eth0"]
[[link]]
between = ["left:eth0", "right:eth0"]
[plan]
repetitions = 2
[[file]]
name = "greeting.txt"
text = "from {{ nodes.left.address }}"
[[step]]
name = "listener"
node = "right"
run = "echo listening; exec timeout 30 sh -c 'ip -4 -br addr show eth0; sleep 30'"
ready = "listening"
[[step]]
name = "reach"
node = "left"
run = "cat greeting.txt; ls /sys/class/net | wc -l | sed 's/^/interfaces /'; ip route get 10.9.0.2"
extract = { interfaces = 'interfaces ([0-9]+)' }
"#,
    );
    let finished =
        run(watch.over(&mut study.command(&["run", "study.toml", "--out", "out"]))).success();
    assert!(finished.stdout.contains("2 of 2 runs"));
    watch.nothing_is_left();
    let said = fs::read_to_string(study.path("out/runs/v1-r2/logs/reach.out")).unwrap();
    assert!(
        said.contains("from 10.9.0.1") && said.contains("dev eth0 src 10.9.0.1"),
        "{said}"
    );
    let record = study.json("out/runs/v1-r2/run.json");
    // The namespace has two interfaces: the loopback interface and the end of the link.
    assert_eq!(record["metrics"]["interfaces"], 2.0);
}

#[test]
fn verification_names_changed_result_files() {
    let _alone = alone();
    let study = Study::new(NUMBERS);
    study
        .taut(&["run", "study.toml", "--out", "out", "--repetitions", "1"])
        .success();
    study.taut(&["show", "out", "--verify"]).success();
    fs::write(
        study.path("out/runs/v2-r1/logs/n.out"),
        "{\"value_ns\": 1}\n",
    )
    .unwrap();
    let verified = study.taut(&["show", "out", "--verify"]);
    assert_eq!(verified.code(), Some(1));
    assert!(
        verified
            .stdout
            .contains("v2-r1/logs/n.out: changed since the run"),
        "{}",
        verified.stdout
    );
    assert_eq!(
        verified
            .stdout
            .lines()
            .filter(|line| line.contains("changed"))
            .count(),
        1
    );
    let index = study.path("out/runs.jsonl");
    let text = fs::read_to_string(&index).unwrap();
    fs::write(&index, &text[..text.len() - 20]).unwrap();
    let shown = study.taut(&["show", "out"]);
    assert_eq!(shown.code(), Some(2), "{}", shown.stderr);
    assert!(
        shown.stderr.contains("runs.jsonl: line 12 is damaged"),
        "{}",
        shown.stderr
    );
    // The runs themselves are complete: the index is rebuilt from them.
    study.taut(&["resume", "out"]).success();
    study.taut(&["show", "out"]).success();
}

#[test]
fn runs_repeat_until_a_metric_is_precise_enough() {
    let _alone = alone();
    let study = Study::new(
        r#"
title = "Until"
[loop]
noise = [0, 1000]
[plan]
repetitions = 6
until = { metric = "value", within = 0.05, at_most = 9 }
[[step]]
run = "echo value $((1000 + {{ noise }} * ({{ repetition }} % 3)))"
extract = { value = 'value ([0-9]+)' }
"#,
    );
    let finished = study.taut(&["run", "study.toml", "--out", "out"]).success();
    // The combination `steady` is complete after six runs, and the other combination is abandoned after nine.
    assert!(
        finished.stdout.contains("15 of 15 runs"),
        "{}",
        finished.stdout
    );
}

#[test]
fn runs_with_a_slow_generator_are_reported_before_their_results() {
    let _alone = alone();
    let study = Study::new(
        r#"
title = "Busy"
[loop]
sent = [100, 90]
[plan]
repetitions = 2
[[step]]
name = "x"
run = "echo '{\"asked_pps\": 100, \"sent_pps\": {{ sent }}}'"
json = true
"#,
    );
    study.taut(&["run", "study.toml", "--out", "out"]).success();
    let shown = study.taut(&["show", "out"]).success();
    let warning = "warning: In 2 of 4 runs less than 97 % of the asked rate was sent";
    assert!(shown.stdout.contains(warning), "{shown:?}");
    let page = fs::read_to_string(study.path("out/report.html")).unwrap();
    assert!(page.contains("In 2 of 4 runs less than 97 %"));
}

#[test]
fn the_run_starts_and_removes_the_device_it_measures() {
    let Some(_alone) = alone_and_root() else {
        return;
    };
    let watch = Watch::begin();
    let study = Study::new("");
    let out = study.path("out").display().to_string();
    let words = [
        "run",
        "stylianopoulos-fig2",
        "--repetitions",
        "1",
        "--set",
        "seconds=0.1",
        "--out",
        &out,
    ];
    let finished = run(watch.over(&mut study.command(&words)));
    watch.nothing_is_left();
    // Two of the devices need further packages to be built. Without these packages their runs fail, and the other
    // devices' runs still count.
    let has_l2fwd = ["memif-l2fwd", "memif-l2fwd-unbuffered"].map(|id| {
        let baseline = taut_host::baselines()
            .iter()
            .find(|it| it.id == id)
            .unwrap();
        baseline.probe().is_ok()
    });
    let (code, runs) = match has_l2fwd {
        [true, true] => (0, "9 of 9 runs"),
        _ => (1, "7 of 9 runs"),
    };
    assert_eq!(finished.code(), Some(code), "{finished:?}");
    assert!(finished.stdout.contains(runs), "{}", finished.stdout);
    // There are too few packets for the percentile of one in ten thousand. If a forwarder lost many packets on a busy
    // machine, its median is unknown as well. Even so, every metric that claims need exists for some forwarder.
    let metrics = fs::read_to_string(Path::new(&out).join("metrics.csv")).unwrap();
    for line in finished
        .stdout
        .lines()
        .filter(|it| it.starts_with("no data"))
    {
        let (_, rest) = line.split_once("no run with ").unwrap();
        let metric = rest.split(' ').next().unwrap();
        assert!(
            metric == "latency_ns.p99_99_ns" || metrics.contains(&format!(",{metric},")),
            "{}",
            finished.stdout
        );
    }
    let histogram = fs::read_to_string(Path::new(&out).join("figures/histogram.csv")).unwrap();
    let packets: u64 = histogram
        .lines()
        .skip(1)
        .filter_map(|line| line.split(',').rev().nth(1)?.parse::<u64>().ok())
        .sum();
    let received: f64 = metrics
        .lines()
        .filter(|line| line.contains(",latency_ns.count,"))
        .filter_map(|line| line.rsplit(',').next()?.parse::<f64>().ok())
        .sum();
    assert_eq!(
        packets as f64, received,
        "a figure holds every packet that came back"
    );
}

#[test]
fn the_demo_experiment_runs_one_command_and_writes_a_page() {
    let _alone = alone();
    let study = Study::new("");
    let words = [
        "run",
        "demo",
        "--repetitions",
        "2",
        "--set",
        "seconds=0.1",
        "--set",
        "device=memif-idle",
        "--out",
        "out",
    ];
    let finished = run(&mut study.command(&words)).success();
    assert!(finished.stdout.contains("2 of 2 runs"), "{finished:?}");
    let record = study.json("out/runs/v1-r2/run.json");
    let summary = study.json("out/runs/v1-r2/local/comparison/summary.json");
    let device = &summary["devices"][0];
    assert_eq!(device["device_id"], "memif-idle");
    for metric in ["latency.p50_ns", "loss_free_pps.median", "jitter.avg_ns"] {
        let (group, name) = metric.split_once('.').unwrap();
        let recorded = &record["metrics"][format!("comparison.devices.0.{metric}")];
        assert_eq!(recorded.as_f64(), device[group][name].as_f64(), "{metric}");
        // A busy machine may have no loss-free rate.
        assert!(recorded.is_number() || group == "loss_free_pps", "{metric}");
    }
    let report = study.path("out/runs/v1-r2/local/comparison/report.html");
    let report = fs::read_to_string(report).unwrap();
    assert!(report.contains("taut experiment run demo"));
    let packets = fs::read_to_string(study.path("out/figures/percentiles.csv")).unwrap();
    assert!(packets.lines().count() > 1, "{packets}");
}

#[test]
fn reference_experiments_need_no_files_besides_the_program() {
    let nowhere = scratch();
    let taut = |words: &[&str]| {
        let mut command = crate::support::taut(&[&["experiment"], words].concat());
        command.current_dir(nowhere.path());
        // The search path has no other program, as asking many programs for their versions would take time.
        command.env("PATH", nowhere.path());
        Program::start(&mut command).finish_within(Duration::from_secs(60))
    };
    let listed = taut(&["list", "--reference"]).success();
    let names: Vec<&str> = listed
        .stdout
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert!(names.len() > 20, "{listed:?}");
    for name in names {
        let checked = taut(&["check", name, "--offline", "--json"]);
        // Code 3 means that third-party programs are missing on this machine.
        assert!(matches!(checked.code(), Some(0 | 3)), "{name}: {checked:?}");
        let check: Value = serde_json::from_str(&checked.stdout).unwrap();
        assert!(!check["order"].as_array().unwrap().is_empty(), "{name}");
        for missing in check["missing"].as_array().unwrap() {
            let missing = missing.as_str().unwrap();
            assert!(
                !missing.contains(".sh") && !missing.contains("file not found"),
                "{name}: {missing}"
            );
        }
    }
    assert_eq!(fs::read_dir(nowhere.path()).unwrap().count(), 0);
}

#[test]
fn a_second_experiment_on_the_same_machine_is_refused() {
    let _alone = alone();
    let study =
        Study::new("title = \"t\"\n[plan]\nrepetitions = 1\n[[step]]\nrun = \"sleep 20\"\n");
    let program = study.start(&["run", "study.toml", "--out", "out"], "v1-r1");
    for second in [
        ["run", "study.toml", "--out", "second"],
        ["replicate-all", "--quick", "--out", "second"],
    ] {
        let second = run(&mut study.command(&second));
        assert_eq!(second.code(), Some(3), "{}", second.stderr);
        assert!(
            second
                .stderr
                .contains("another experiment runs on this machine"),
            "{}",
            second.stderr
        );
    }
    program.interrupt();
}

#[test]
fn a_replication_continues_and_names_experiments_that_were_not_run() {
    let _alone = alone();
    let folder = scratch();
    let out = folder.path().join("out");
    let replicate = |more: &[&str]| {
        let mut command = crate::support::taut(&["experiment", "replicate-all", "--quick"]);
        run(command.arg("--out").arg(&out).args(more))
    };
    let first = replicate(&["gallenmueller-table6-3"]).success();
    assert!(
        first.stderr.contains("1 of 1  gallenmueller-table6-3\n"),
        "{}",
        first.stderr
    );
    let again = replicate(&["gallenmueller-table6-3", "--json"]).success();
    assert!(
        again
            .stderr
            .contains("1 of 1  gallenmueller-table6-3: already finished"),
        "{}",
        again.stderr
    );
    let report: Value = serde_json::from_str(&again.stdout).unwrap();
    let of = |name: &str| {
        let mut all = report["experiments"].as_array().unwrap().iter();
        all.find(|it| it["name"] == name).unwrap().clone()
    };
    assert_eq!(of("gallenmueller-table6-3")["missing"], "");
    assert_eq!(of("demo")["missing"], "not run");
    for (file, part) in [
        ("index.html", "gallenmueller-table6-3"),
        ("replication.md", "\n[All experiments](runs/verdicts.csv)\n"),
        ("verdicts.csv", "\ngallenmueller-table6-3,"),
        ("claims.csv", "\ngallenmueller-table6-3,"),
    ] {
        let text = fs::read_to_string(out.join(file)).unwrap();
        assert!(text.contains(part), "{file}");
    }
    let unknown = replicate(&["xiang-fig99"]);
    assert_eq!(unknown.code(), Some(2), "{}", unknown.stderr);
}

/// The test checks chain files that are embedded in experiment files, as taut reads them only when the experiment runs.
#[test]
fn chain_files_in_reference_experiments_are_valid_for_bench_functions() {
    let _alone = alone();
    for name in ["chain-payload", "xiang-fig13"] {
        let path = Path::new("experiments").join(name).with_extension("toml");
        let text = fs::read_to_string(path).unwrap();
        let experiment: toml::Table = toml::from_str(&text).unwrap();
        let folder = scratch();
        let key = folder.path().join("key");
        fs::write(&key, "0".repeat(32)).unwrap();
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        for file in experiment["file"].as_array().unwrap() {
            let of = |key: &str| file[key].as_str().unwrap();
            fs::write(folder.path().join(of("name")), of("text")).unwrap();
        }
        for chain in experiment["zip"][0]["chain"].as_array().unwrap() {
            let file = chain.as_str().unwrap();
            let words = ["bench", "functions", file, "--packets", "100"];
            let mut command = crate::support::taut(&words);
            run(command.args(["--repetitions", "1"]).current_dir(&folder)).success();
        }
    }
}
