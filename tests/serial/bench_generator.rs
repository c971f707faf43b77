//! `taut bench generator` and `taut generate --rate max`, as short as possible: checks the files and output, but not
//! the measured values.

use crate::support::program::{Program, run};
use crate::support::{Sockets, alone, is_installed, json, names, scratch, taut};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn arguments(out: &Path, only: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = ["bench", "generator", "--quick", "--trial", "0.1"]
        .map(String::from)
        .to_vec();
    arguments.extend(["--rate", "5k", "--out"].map(String::from));
    arguments.push(out.display().to_string());
    for id in only {
        arguments.extend(["--only".to_string(), (*id).to_string()]);
    }
    arguments
}

/// Returns the names of one of taut's generators and of an installed third-party generator, and whether the latter
/// paces packets.
fn pair() -> Option<([&'static str; 2], bool)> {
    if taut_host::permissions::is_root() && is_installed("tcpreplay") {
        Some((["taut-af-packet", "tcpreplay"], true))
    } else if is_installed("dpdk-testpmd") {
        Some((["taut-memif", "testpmd-memif-txonly"], false))
    } else {
        println!(
            "skipped: needs apt install tcpreplay (and root), or dpdk-dev with its memif driver"
        );
        None
    }
}

#[test]
fn benchmarks_of_two_generators_produce_tables_figures_and_a_report() {
    let Some((only, other_paces)) = pair() else {
        return;
    };
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("generators");
    let mut command = arguments(&out, &only);
    command.push("--json".to_string());
    let finished = run(&mut taut(&command)).success();
    let printed: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(printed, json(&out.join("summary.json")));

    let generators = printed["generators"].as_array().unwrap();
    let ids: Vec<_> = generators
        .iter()
        .map(|g| g["id"].as_str().unwrap())
        .collect();
    assert_eq!(ids, only);
    for (index, generator) in generators.iter().enumerate() {
        let unpaced = &generator["unpaced_pps"];
        assert!(unpaced["median"].as_f64().unwrap() > 0.0, "{generator}");
        assert_eq!(unpaced["count"], 2, "{generator}");
        assert_eq!(generator["frame_size_bytes"], 64.0, "{generator}");
        let rates = generator["rates"].as_array().unwrap();
        if index == 1 && !other_paces {
            assert!(rates.is_empty());
            assert_eq!(generator["no_rates"], "no data: cannot pace");
            continue;
        }
        let at = &rates[0];
        assert_eq!(
            (&at["asked_pps"], &at["repetitions"]),
            (&Value::from(5e3), &Value::from(2))
        );
        let gaps = at["gaps"].as_u64().unwrap() + at["interrupted_gaps"].as_u64().unwrap();
        assert!(gaps > 100, "{at}");
        let squared = at["mean_squared_error_ns2"]["median"].as_f64().unwrap();
        let trimmed = at["trimmed_squared_error_ns2"]["median"].as_f64().unwrap();
        assert!(0.0 < trimmed && trimmed <= squared, "{at}");
    }
    assert!(!printed["comparisons"].as_array().unwrap().is_empty());

    let over = if other_paces { "veth" } else { "memif" };
    let mut expected = BTreeSet::new();
    for figure in ["bandwidth", "errors", &format!("gaps-{over}")] {
        expected.extend([format!("{figure}.svg"), format!("{figure}.json")]);
    }
    assert_eq!(names(&out.join("figures")), expected);
    let gaps = json(&out.join(format!("figures/gaps-{over}.json")));
    let shares = gaps[0]["shares"].as_array().unwrap();
    let sum: f64 = shares.iter().map(|share| share.as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-6, "{sum}");
    let trial = json(&out.join(format!("trials/{}-5000-2.json", only[0])));
    // The time for which the machine preempted the receiver is reported separately, not omitted.
    assert_eq!(
        trial["frames"].as_u64().unwrap() - 1,
        trial["precision"]["count"].as_u64().unwrap() + trial["interrupted_gaps"].as_u64().unwrap()
    );

    let page = fs::read_to_string(out.join("report.html")).unwrap();
    fs::remove_file(out.join("report.html")).unwrap();
    let again = run(&mut taut(&["report", &out.display().to_string()])).success();
    assert!(again.stdout.contains("report.html"), "{}", again.stdout);
    assert!(again.stdout.contains("5.00 kpkt/s"), "{}", again.stdout);
    assert_eq!(page, fs::read_to_string(out.join("report.html")).unwrap());

    // Results are never overwritten.
    let refused = run(&mut taut(&command));
    assert_eq!(refused.code(), Some(2));
    assert!(
        refused.stderr.contains("exists already"),
        "{}",
        refused.stderr
    );
}

#[test]
fn an_interrupted_run_reports_its_complete_trials() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("generators");
    let mut program = Program::start(&mut taut(&arguments(&out, &["taut-memif"])));
    program.wait_until("a complete trial", |_, _| {
        fs::read_dir(out.join("trials")).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().ends_with(".json")))
        })
    });
    let finished = program.interrupt();
    assert_eq!(finished.code(), Some(130), "{finished:?}");
    assert_eq!(json(&out.join("generators.json"))["stage"], "interrupted");
    assert!(json(&out.join("summary.json"))["generators"].is_array());
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Interrupted"));
}

#[test]
fn errors_about_invalid_options_name_the_valid_values() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("generators");
    for (more, part) in [
        (["--only", "carrier-pigeon"], "available: taut-memif, "),
        (["--trial", "0"], "0.01 to 60"),
        (["--rate", "100M"], "100 to 20M"),
    ] {
        let mut command = vec!["bench", "generator", "--quick"];
        command.extend(more);
        let path = out.display().to_string();
        command.extend(["--out", &path]);
        let refused = run(&mut taut(&command));
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
        // Another test may measure at this moment, which adds a line.
        let lines = refused.stderr.trim_end().lines();
        let own = lines.filter(|line| !line.contains("another taut measures on this machine"));
        assert_eq!(own.count(), 1, "{refused:?}");
        assert!(!out.exists());
    }
}

#[test]
fn rate_max_sends_without_pacing_and_measures_no_latency() {
    let _turn = alone();
    let sockets = Sockets::new();
    let mut forward: Vec<String> = vec!["forward".to_string()];
    forward.extend(sockets.ports("server", ""));
    forward.extend(["--quiet", "--json"].map(String::from));
    let forwarder = Program::start(&mut taut(&forward));
    let mut generate: Vec<String> = vec!["generate".to_string()];
    generate.extend(sockets.ports("client", ""));
    generate.extend(["--rate", "max", "--seconds", "0.3", "--json"].map(String::from));
    let summary = run(&mut taut(&generate)).success().last_json();
    let flow = &summary["flow"];
    assert!(flow["sent"].as_u64().unwrap() > 1_000, "{summary}");
    assert!(flow["received"].as_u64().unwrap() > 1_000, "{summary}");
    assert!(summary["sent_pps"].as_f64().unwrap() > 0.0);
    forwarder.interrupt();

    let refused = run(&mut taut(&[
        "generate", "--port", "null:", "--rate", "max", "--live",
    ]));
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("--rate max"), "{}", refused.stderr);
}
