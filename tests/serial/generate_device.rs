//! `taut generate --device`: a device is set up, measured and removed, whatever happens in between.

use crate::support::leftovers::Watch;
use crate::support::program::{Finished, Program, run};
use crate::support::{alone, alone_and_root, json, scratch, taut};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

fn generate(words: &str) -> Command {
    let all: Vec<&str> = std::iter::once("generate")
        .chain(words.split_whitespace())
        .collect();
    taut(&all)
}

/// Runs `taut generate` with the options `words` once no other measurement uses this machine.
fn measure(watch: &Watch, words: &str) -> Finished {
    run(watch.over(&mut generate(words)))
}

/// Starts `taut generate` with the options `words` once no other measurement uses this machine, and waits until packets
/// are sent.
fn start(watch: &Watch, words: &str) -> Program {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let mut program = Program::start(watch.over(&mut generate(words)));
        program.wait_until("a first line", |stdout, stderr| {
            stdout.contains('\n') || stderr.contains('\n')
        });
        if !program
            .stderr()
            .contains("measurements would disturb each other")
            || Instant::now() > deadline
        {
            return program;
        }
        sleep(Duration::from_secs(1));
    }
}

/// Checks that the program exited with `code` and printed one line that contains `part`.
fn fails_with(finished: &Finished, code: i32, part: &str) {
    assert_eq!(finished.code(), Some(code), "{finished:?}");
    assert_eq!(finished.stdout, "", "{finished:?}");
    assert!(finished.stderr.contains(part), "{part}: {finished:?}");
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

#[test]
fn the_last_line_contains_every_metric_and_the_device() {
    let _turn = alone();
    let (watch, folder) = (Watch::begin(), scratch());
    // An existing empty folder is accepted.
    let out = folder.path().display();
    let words =
        format!("--device memif-idle --rate 5k --seconds 2.2 --max-loss 1 --json --out {out}");
    let finished = measure(&watch, &words).success();
    watch.nothing_is_left();
    let lines: Vec<Value> = finished
        .stdout
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (summary, seconds) = lines.split_last().unwrap();
    // On a busy machine the run takes longer and prints more of these lines.
    assert!(seconds.len() >= 2, "{finished:?}");
    assert!(seconds.iter().all(|line| line["event"] == "second"));
    assert_eq!(*summary, json(&folder.path().join("summary.json")));
    let number = |path: &str| {
        let value = summary.pointer(path).and_then(Value::as_f64);
        value.unwrap_or_else(|| panic!("{path} in {summary}"))
    };
    for path in [
        "/activity/context_switches",
        "/activity/cores/0/interrupt_count",
        "/activity/cores/1/softirq_count",
        "/ports/0/tx_packets",
    ] {
        number(path);
    }
    let of_stream = |path: &str| number(&format!("/streams/0{path}"));
    for path in [
        "/asked_pps",
        "/sent_pps",
        "/received_pps",
        "/tally/sent",
        "/tally/refused",
        "/tally/corrupt",
        "/lost",
        "/sequence/received_unique",
        "/sequence/duplicate",
        "/sequence/reordered",
        "/latency_ns/count",
        "/latency_ns/min_ns",
        "/latency_ns/avg_ns",
        "/latency_ns/p50_ns",
        "/latency_ns/p99_ns",
        "/latency_ns/p99_9_ns",
        "/latency_ns/max_ns",
        "/latency_ns/std_ns",
        "/latency_from_intended_ns/avg_ns",
        "/jitter_ns/avg_ns",
        "/jitter_ns/max_ns",
        "/jitter_ns/std_ns",
        "/send_delay_ns/avg_ns",
        "/send_gap_ns/mean_gap_ns",
    ] {
        of_stream(path);
        // The values of the streams are only in the list of streams.
        assert!(summary.pointer(path).is_none(), "{path} in {summary}");
    }
    assert!(of_stream("/latency_ns/count") > 0.0);
    assert_eq!(
        of_stream("/latency_from_intended_ns/count"),
        of_stream("/latency_ns/count")
    );
    // Latency from the intended send time also includes the wait before sending.
    assert!(of_stream("/latency_from_intended_ns/avg_ns") >= of_stream("/latency_ns/avg_ns"));
    let device = &summary["device"];
    assert_eq!(device["id"], "memif-idle");
    assert!(device["command"].to_string().contains("idle(32)"));
    assert!(!device["note"].as_str().unwrap().is_empty());
    assert_eq!(summary["versions"]["taut"], env!("CARGO_PKG_VERSION"));
    assert!(summary["versions"]["kernel"].is_string());
}

#[test]
fn invalid_arguments_are_refused_and_create_no_results() {
    let _turn = alone();
    let (watch, folder) = (Watch::begin(), scratch());
    let out = folder.path().join("none");
    for (words, code, part) in [
        ("--device memif-idl", 2, "taut demo --list-devices"),
        ("--device memif-idle,memif-each", 2, "one device at a time"),
        ("--device memif-idle --port null:", 2, "cannot be used with"),
        ("--rate 10k", 2, "--port"),
        (
            "--device memif-idle --pacing nic --line 1Gbit/s",
            3,
            "no network cards",
        ),
        ("--device memif-idle --set nonsense=5", 2, "nonsense"),
    ] {
        let mut command = generate(words);
        let finished = run(watch.over(command.arg("--out").arg(&out)));
        fails_with(&finished, code, part);
        assert!(!out.exists(), "{words}");
    }
    // The program of the device is missing on this machine.
    let mut command = generate("--device memif-testpmd-io");
    let finished = run(watch.over(command.env("PATH", folder.path())));
    fails_with(&finished, 3, "testpmd");
    watch.nothing_is_left();
}

#[test]
fn streams_of_a_file_pass_a_router_and_count_separately() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let (watch, folder) = (Watch::begin(), scratch());
    let file = folder.path().join("two.toml");
    fs::write(
        &file,
        "[[stream]]\nname = \"one\"\nrate = \"2k\"\n\n[[stream]]\nname = \"two\"\nrate = \"1k\"\nsize = \"imix\"\nsrc_port = 5000\n",
    )
    .unwrap();
    let words = format!(
        "{} --device veth-routing --seconds 0.5 --json --max-loss 1",
        file.display()
    );
    let summary = measure(&watch, &words).success().last_json();
    watch.nothing_is_left();
    assert_eq!(summary["device"]["id"], "veth-routing");
    for stream in summary["streams"].as_array().unwrap() {
        let received = stream["sequence"]["received_unique"].as_u64().unwrap();
        assert!(received > 0, "{stream}");
    }
}

#[test]
fn packets_that_the_device_accepts_are_counted() {
    let _turn = alone();
    let watch = Watch::begin();
    let words = "--device memif-idle --rate max --seconds 0.2 --json";
    let summary = measure(&watch, words).success().last_json();
    watch.nothing_is_left();
    assert!(summary["flow"]["received"].as_u64().unwrap() > 0);
    assert_eq!(summary["device"]["id"], "memif-idle");
}

#[test]
fn ctrl_c_prints_a_summary_and_stops_the_device() {
    let _turn = alone();
    let devices: &[&str] = if taut_host::permissions::is_root() {
        &["memif-idle", "veth-bridge"]
    } else {
        &["memif-idle"]
    };
    for device in devices {
        let watch = Watch::begin();
        let words = format!("--device {device} --rate 1k --seconds 60 --json");
        let summary = start(&watch, &words).interrupt().success().last_json();
        watch.nothing_is_left();
        assert_eq!(summary["streams"][0]["tally"]["stopped"], true);
        assert_eq!(summary["device"]["id"], *device);
    }
}

#[test]
fn a_killed_device_is_an_error_and_leaves_no_results() {
    let _turn = alone();
    let (watch, folder) = (Watch::begin(), scratch());
    let out = folder.path().join("half");
    let words = format!(
        "--device memif-idle --rate 1k --seconds 2 --json --out {}",
        out.display()
    );
    let program = start(&watch, &words);
    let forwarders: Vec<u32> = watch
        .processes()
        .iter()
        .filter(|line| line.contains(" forward "))
        .filter_map(|line| line.split(' ').nth(1)?.parse().ok())
        .collect();
    let [forwarder] = forwarders[..] else {
        panic!("not one forwarder: {:?}", watch.processes());
    };
    let pid = Pid::from_raw(i32::try_from(forwarder).unwrap()).unwrap();
    kill_process(pid, Signal::KILL).unwrap();
    let finished = program.finish_within(Duration::from_secs(60));
    watch.nothing_is_left();
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    assert!(
        finished.stderr.contains("exited unexpectedly"),
        "{finished:?}"
    );
    assert!(!out.exists());
}

#[test]
fn a_measured_device_accepts_the_options_of_taut_forward() {
    let _turn = alone();
    let (watch, folder) = (Watch::begin(), scratch());
    let chain = folder.path().join("swap.toml");
    let text = "ports = [\"null:\"]\nflush = \"each\"\n[[function]]\nname = \"mac-swap\"\n";
    fs::write(&chain, text).unwrap();
    let chain = format!("memif,chain={}", chain.display());
    // With the last of these policies, no packet is sent before its timer fires.
    for (device, flush, least_ns) in [
        (chain.as_str(), "each", 0),
        (
            "memif,burst=64,function=burn(cycles=100),flush=idle(8)",
            "idle(8)",
            0,
        ),
        ("memif,flush=full(64,20ms)", "full(64, 20ms)", 1_000_000),
    ] {
        let words =
            format!("--device {device} --rate 1k --seconds 0.5 --warm-up 0 --max-loss 1 --json");
        let finished = measure(&watch, &words).success();
        let summary = finished.last_json();
        assert_eq!(summary["device"]["id"], device.replace('/', "_"));
        assert_eq!(summary["device"]["flush"], flush);
        let latency = &finished.first_stream()["latency_ns"];
        let p50_ns = latency["p50_ns"].as_u64().unwrap();
        assert!(p50_ns > least_ns, "{device}: {p50_ns} ns");
    }
    for (device, part) in [
        ("memif,flsh=each", "expected flush=POLICY"),
        ("memif-idl", "did you mean memif-idle?"),
        ("veth-bridge,flush=each", "after memif"),
    ] {
        let finished = run(watch.over(&mut generate(&format!("--device {device}"))));
        fails_with(&finished, 2, part);
    }
    watch.nothing_is_left();
}
