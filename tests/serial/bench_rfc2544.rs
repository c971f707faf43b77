//! `taut bench rfc2544` and its parts, as short as possible: checks the files and output, but not the measured values.

use crate::support::program::{Finished, Program, run};
use crate::support::{alone, alone_and_root, json, scratch, taut};
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Runs `taut` with these arguments once no other measurement uses this machine.
fn measure<S: AsRef<std::ffi::OsStr>>(arguments: &[S]) -> Finished {
    run(&mut taut(arguments))
}

/// Checks that the program exited with `code` and printed one line that contains `part`.
fn fails_with(finished: &Finished, code: i32, part: &str) {
    assert_eq!(finished.code(), Some(code), "{finished:?}");
    assert!(
        finished.stderr.contains(part),
        "no {part:?} in {finished:?}"
    );
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

/// The shortest benchmark on `memif-idle`, with a temporary folder.
struct Bench {
    folder: TempDir,
    arguments: Vec<String>,
}

impl Bench {
    /// Builds `taut bench WORDS`, with options that shorten it.
    fn new(words: &str) -> Self {
        let folder = scratch();
        let line = format!(
            "bench {words} --device memif-idle --quick --trial 0.01 --precision 0.1 --max-rate 1M --out"
        );
        let mut arguments: Vec<String> = line.split(' ').map(String::from).collect();
        arguments.push(folder.path().join("results").display().to_string());
        Self { folder, arguments }
    }

    fn out(&self) -> PathBuf {
        self.folder.path().join("results")
    }

    fn run(&self) -> Finished {
        measure(&self.arguments)
    }

    fn page(&self) -> String {
        fs::read_to_string(self.out().join("report.html")).unwrap()
    }
}

#[test]
fn the_complete_suite_writes_a_report_and_every_trial() {
    let _turn = alone();
    let bench = Bench::new(
        "rfc2544 --size 64 --size imix --latency-seconds 0.05 --bursts 2 --longest-burst 0.01 --soak 1 --json",
    );
    let out = bench.out();
    let finished = bench.run().success();
    let printed: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(printed, json(&out.join("summary.json")));
    assert_eq!(printed["stage"], "finished");
    let sizes = printed["sizes"].as_array().unwrap();
    assert_eq!(sizes.len(), 2);
    for size in sizes {
        assert_eq!(size["throughput"]["repetitions"], 2, "{size}");
        assert_eq!(size["back_to_back"]["repetitions"], 2, "{size}");
        assert!(!size["loss"].as_array().unwrap().is_empty(), "{size}");
        // A machine that stalls may leave no loss-free rate; if there is one, latency was measured.
        let loads = size["latency"].as_array().unwrap();
        if size["throughput"]["none_held"] == 0 {
            assert_eq!(loads.len(), 3, "{size}");
            for load in loads {
                assert!(load["packets"].as_u64().unwrap() > 0, "{load}");
                let slowest = &load["slowest"];
                assert_eq!(slowest["device_known"], true, "{load}");
                let by_cause = slowest["by_cause"].as_object().unwrap();
                let sum: u64 = by_cause.values().map(|n| n.as_u64().unwrap()).sum();
                assert_eq!(slowest["spikes"], sum, "{load}");
                // The short trials have too few packets for this percentile.
                assert_eq!(load["quantiles"][5]["ns"], Value::Null, "{load}");
            }
        }
    }
    for file in [
        "throughput-1.json",
        "throughput-2.json",
        "loss-1.json",
        "back-to-back-2.json",
    ] {
        for size in ["64", "imix"] {
            let path = out.join("trials").join(size).join(file);
            assert!(path.is_file(), "{}", path.display());
        }
    }
    let trial = json(&out.join("trials/64/throughput-1.json"));
    assert!(!trial["result"]["trials"].as_array().unwrap().is_empty());
    let intervals = fs::read_to_string(out.join("soak/intervals.jsonl")).unwrap();
    assert!(!intervals.is_empty());
    let warnings = printed["warnings"].to_string();
    assert!(warnings.contains("too few packets for p99"), "{warnings}");
    let page = bench.page();
    for part in [
        "Throughput",
        "Back-to-back frames",
        "Soak",
        "figures/loss.svg",
        "figures/slowest.svg",
        "What the slowest packets waited for",
        "Limits missed",
    ] {
        assert_eq!(page.contains(part), part != "Limits missed", "{part}");
    }

    // The folder alone is enough for the report.
    let shown = run(&mut taut(&["report", &out.display().to_string()])).success();
    assert!(shown.stdout.contains("report: "), "{}", shown.stdout);
    assert_eq!(page, bench.page());
}

#[test]
fn a_missed_limit_is_named_and_gives_exit_code_1() {
    let _turn = alone();
    // There are twice as many packets as a 99th percentile needs, as some may be lost.
    let bench = Bench::new("latency --size 64 --rate 10k --latency-seconds 0.1 --max-p99 1ns");
    fails_with(&bench.run(), 1, "more than the allowed 1.00 ns");
    assert!(bench.page().contains("Limits missed"));
}

#[test]
fn an_interrupted_soak_leaves_complete_partial_results() {
    let _turn = alone();
    let bench = Bench::new("soak --size 64 --rate 20k --seconds 600 --interval 0.2");
    let out = bench.out();
    let lines = out.join("soak/intervals.jsonl");
    let ended = {
        let mut program = Program::start(&mut taut(&bench.arguments));
        let patience = Instant::now();
        while program.is_running()
            && patience.elapsed() < Duration::from_secs(60)
            && fs::read_to_string(&lines).map_or(0, |text| text.lines().count()) < 3
        {
            std::thread::sleep(Duration::from_millis(50));
        }
        program.interrupt()
    };
    fails_with(&ended, 130, "only complete results are shown");
    assert_eq!(json(&out.join("bench.json"))["stage"], "interrupted");
    let soak = json(&out.join("soak/soak.json"));
    let sent = soak["counts"]["sent"].as_u64().unwrap();
    let text = fs::read_to_string(&lines).unwrap();
    let of_intervals: u64 = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|interval| interval["sent"].as_u64().unwrap())
        .sum();
    assert_eq!(sent, of_intervals, "every packet lies in one interval");
    assert!(bench.page().contains("Interrupted"));
}

#[test]
fn errors_for_bad_input_name_the_remedy_in_one_line() {
    let folder = scratch();
    let out = folder.path().join("never");
    for (what, more, code, part) in [
        ("throughput", &["--size", "63"][..], 2, "64 to 9216"),
        (
            "throughput",
            &["--size", "64", "--size", "64"],
            2,
            "given twice",
        ),
        (
            "throughput",
            &["--max-rate", "99G"],
            2,
            "expected packets per second",
        ),
        (
            "throughput",
            &["--max-rate", "50%", "--size", "64"],
            2,
            "of 10G",
        ),
        ("throughput", &["--loss-tolerance", "1"], 2, "below 1"),
        ("throughput", &["--trial", "0"], 2, "0.005 to 86400"),
        ("throughput", &["--precision", "0"], 2, "0.0001"),
        (
            "throughput",
            &["--search", "luck"],
            2,
            "binary, tst009 or mlr",
        ),
        ("throughput", &["--set", "valn=5"], 2, "valn"),
        ("latency", &["--at", "0"], 2, "10,50,90"),
        ("latency", &["--max-p99", "50"], 2, "such as 800ns"),
        ("back-to-back", &["--bursts", "0"], 2, "--bursts"),
        ("soak", &["--seconds", "0"], 2, "at least 0.1 s"),
        (
            "soak",
            &["--size", "64", "--size", "128"],
            2,
            "single frame size",
        ),
    ] {
        let mut arguments = vec!["bench", what, "--device", "memif-idle", "--out"];
        let out = out.display().to_string();
        arguments.push(&out);
        arguments.extend(more);
        fails_with(&measure(&arguments), code, part);
    }
    assert!(!out.exists());
    fails_with(
        &run(&mut taut(&["bench", "loss", "--device", "moon"])),
        2,
        "--list-devices",
    );
    fails_with(&run(&mut taut(&["bench", "loss"])), 2, "--port");
}

#[test]
fn absent_and_non_forwarding_devices_are_reported() {
    let _turn = alone();
    let folder = scratch();
    let socket = folder.path().join("lonely.sock").display().to_string();
    let bench = |ports: &str, name: &str| {
        let out = folder.path().join(name).display().to_string();
        let line = format!("bench throughput --quick --trial 0.01 --size 64 {ports} --out {out}");
        measure(&line.split(' ').collect::<Vec<_>>())
    };
    let never = bench(&format!("--port memif:{socket} --wait 0.2"), "never");
    fails_with(&never, 3, &socket);
    let silent = bench("--port null:", "silent");
    fails_with(&silent, 3, "no packet came back");
}

#[test]
fn a_full_disk_ends_a_soak_and_names_the_reason() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let bench = Bench::new("soak --size 64 --rate 20k --seconds 300 --interval 0.1");
    let script = format!(
        "mount -t tmpfs -o size=16k none {disk} && exec {taut} {arguments}",
        disk = bench.folder.path().display(),
        taut = env!("CARGO_BIN_EXE_taut"),
        arguments = bench.arguments.join(" ")
    );
    let finished = run(Command::new("unshare").args(["-m", "sh", "-c", &script]));
    fails_with(&finished, 3, "No space left on device");
    assert!(finished.stderr.contains("free space"), "{finished:?}");
}
