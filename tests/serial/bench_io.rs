//! `taut bench io`, as short as possible: checks the files and output, but not the measured values.

use crate::support::program::{Program, run};
use crate::support::{alone, json, names, scratch, taut};
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

fn arguments(out: &Path) -> Vec<String> {
    let mut arguments: Vec<String> = ["bench", "io", "--quick", "--trial", "0.005"]
        .map(String::from)
        .to_vec();
    arguments.extend(["--out".to_string(), out.display().to_string()]);
    arguments
}

#[test]
fn benchmarks_of_null_and_memif_produce_figures_and_a_report() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("io");
    let mut command = arguments(&out);
    command.extend(["--json", "--only", "null", "--only", "memif"].map(String::from));
    let finished = run(&mut taut(&command)).success();
    let printed: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(printed, json(&out.join("summary.json")));

    let frameworks = printed["frameworks"].as_array().unwrap();
    let labels: Vec<_> = frameworks
        .iter()
        .map(|f| f["label"].as_str().unwrap())
        .collect();
    assert_eq!(labels, ["null", "memif"]);
    for framework in frameworks {
        assert!(
            framework["throughput_pps"].as_f64().unwrap() > 0.0,
            "{framework}"
        );
        assert!(
            framework["own_cycles"]["median"].as_f64().unwrap() > 0.0,
            "{framework}"
        );
        assert_eq!(
            framework["repetitions"], framework["planned"],
            "{framework}"
        );
    }
    // The null port never waits for a device, so it has no idle time besides the cost of packets.
    let null = &frameworks[0];
    assert_eq!(null["knee_cycles"]["median"], 0.0);
    assert!(null["io_cycles"]["median"].as_f64().unwrap() > 1.0);
    assert!(null["offered_pps"].is_null() && frameworks[1]["offered_pps"].as_f64().unwrap() > 0.0);
    assert_eq!(printed["burn_errors"].as_array().unwrap().len(), 36);
    let counters = &printed["hardware_counters"];
    let events = frameworks[0]["events_saturated"].as_object().unwrap();
    match counters["no_data"].as_str() {
        // Unsupported counters are absent; they are not 0.
        Some(why) => assert!(events.is_empty() && why.contains("needs"), "{why}"),
        None => assert!(
            events["instructions"]["median"].as_f64().unwrap() > 1.0,
            "{counters}"
        ),
    }

    let mut expected = BTreeSet::new();
    for figure in ["load", "batch", "latency", "walk"] {
        expected.extend([format!("{figure}.svg"), format!("{figure}.json")]);
    }
    assert_eq!(names(&out.join("figures")), expected);
    let load = json(&out.join("figures/load.json"));
    let curve = &load["panels"][0]["curves"][0];
    assert_eq!(curve["label"], "null");
    assert_eq!(curve["points"][0]["x"], 0.0);
    assert!(curve["points"].as_array().unwrap().len() >= 4);
    let walk = json(&out.join("figures/walk.json"));
    assert!(
        walk["panels"][1]["curves"][0]["points"]
            .as_array()
            .unwrap()
            .len()
            >= 3
    );
    assert!(printed["walks"].as_array().unwrap().len() >= 6, "{printed}");
    let batch = json(&out.join("figures/batch.json"));
    for (panel, figure) in [
        (&batch, "batch"),
        (&json(&out.join("figures/latency.json")), "latency"),
    ] {
        let curves = panel["panels"][0]["curves"].as_array().unwrap();
        let memif = curves.iter().find(|c| c["label"] == "memif").unwrap();
        let last = memif["points"].as_array().unwrap().last().unwrap();
        assert_eq!(last["x"], 256.0, "{figure}: {memif}");
    }
    let series = names(&out.join("series"));
    for name in [
        "null-load-1",
        "memif-load-2",
        "memif-batch-1",
        "null-walk-1",
    ] {
        assert!(series.contains(&format!("{name}.json")), "{series:?}");
    }

    // The file has the cost of ports for plans and predictions, which print when and where it was measured.
    let machine = out.join("machine.toml").display().to_string();
    let chain = folder.path().join("chain.toml");
    fs::write(
        &chain,
        "ports = [\"memif:/w.sock\", \"memif:/e.sock\"]\n[[function]]\nname = \"forward\"\n",
    )
    .unwrap();
    let chain = chain.display().to_string();
    let plan = run(&mut taut(&["chain", "plan", &chain, "--machine", &machine])).success();
    for part in [
        "by taut bench io",
        "input and output of memif: measured by taut bench io today (",
    ] {
        assert!(plan.stdout.contains(part), "{part}: {}", plan.stdout);
    }
    let predict = ["model", "predict", "--machine", &machine, "--io", "memif"];
    let predicted = run(&mut taut(&predict)).success();
    for part in [
        "interval",
        "note: c_IO of memif, measured by taut bench io today (",
    ] {
        assert!(
            predicted.stdout.contains(part),
            "{part}: {}",
            predicted.stdout
        );
    }
    let unknown = run(&mut taut(&[
        "model",
        "predict",
        "--machine",
        &machine,
        "--io",
        "af_xdp",
    ]));
    assert_eq!(unknown.code(), Some(2));
    assert!(
        unknown.stderr.contains("has null, memif"),
        "{}",
        unknown.stderr
    );

    let page = fs::read_to_string(out.join("report.html")).unwrap();
    fs::remove_file(out.join("report.html")).unwrap();
    let again = run(&mut taut(&[
        "report".to_string(),
        out.display().to_string(),
    ]))
    .success();
    assert!(again.stdout.contains("report.html"), "{}", again.stdout);
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
fn an_interrupted_io_benchmark_reports_its_completed_series() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("io");
    let mut command = arguments(&out);
    command.extend(["--only", "null"].map(String::from));
    let mut program = Program::start(&mut taut(&command));
    program.wait_until("a complete series", |_, _| {
        fs::read_dir(out.join("series")).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().ends_with(".json")))
        })
    });
    let finished = program.interrupt();
    assert_eq!(finished.code(), Some(130), "{finished:?}");
    assert_eq!(json(&out.join("io.json"))["stage"], "interrupted");
    assert!(json(&out.join("summary.json"))["frameworks"].is_array());
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Interrupted"));
}

#[test]
fn errors_about_invalid_options_name_the_valid_values() {
    let folder = scratch();
    let mut command = arguments(&folder.path().join("io"));
    command.extend(["--only", "carrier-pigeon"].map(String::from));
    let _turn = alone();
    let refused = run(&mut taut(&command));
    assert_eq!(refused.code(), Some(2));
    assert!(
        refused.stderr.contains("available: null, "),
        "{}",
        refused.stderr
    );
    let refused = run(&mut taut(&["bench", "io", "--trial", "0"]));
    assert_eq!(refused.code(), Some(2));
    assert!(refused.stderr.contains("0.001 to 60"), "{}", refused.stderr);
}

#[test]
fn burn_and_walk_run_from_a_file_and_from_options() {
    let _turn = alone();
    let folder = scratch();
    let chain = folder.path().join("chain.toml");
    fs::write(
        &chain,
        "ports = [\"null:source=8\", \"null:\"]\nburst = 4\n\
         [[function]]\nname = \"burn\"\ncycles = 100\n\
         [[function]]\nname = \"walk\"\nsteps = 2\nbytes = \"16 kB\"\n",
    )
    .unwrap();
    let short = ["--seconds", "0.2", "--quiet", "--json"].map(String::from);
    let mut by_file = vec!["forward".to_string(), chain.display().to_string()];
    by_file.extend(short.clone());
    let mut by_options = [
        "forward",
        "--port",
        "null:source=8",
        "--port",
        "null:",
        "--burst",
        "4",
    ]
    .map(String::from)
    .to_vec();
    by_options.extend(["--function", "burn(cycles=100)"].map(String::from));
    by_options.extend(["--function", "walk(steps=2, bytes=16 kB)"].map(String::from));
    by_options.extend(short);
    for arguments in [by_file, by_options] {
        let summary = run(&mut taut(&arguments)).success().last_json();
        assert!(summary["counters"]["tx_packets"].as_u64().unwrap() > 0);
        // The burst is 4, though the port has 8 packets ready.
        assert_eq!(summary["average_batch"], 4.0, "{summary}");
    }
}

#[test]
fn functions_with_invalid_settings_cause_a_one_line_error() {
    let forward = |function: &str| {
        run(&mut taut(&[
            "forward",
            "--port",
            "null:",
            "--function",
            function,
            "--seconds",
            "0.1",
        ]))
    };
    for (function, code, part) in [
        (
            "burn(cycles=many)",
            2,
            "cycles = \"many\": expected a whole number",
        ),
        ("burn(cycles=9000000)", 2, "0 to 1000000"),
        ("walk(steps=1, bytes=1 PB)", 2, "such as \"32 kB\""),
        ("walk(steps=1, bytes=64 GB)", 2, "4 kB to 8 GB"),
        ("burn(cycles=1", 2, "such as burn(cycles=100)"),
    ] {
        let refused = forward(function);
        assert_eq!(refused.code(), Some(code), "{refused:?}");
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
        assert_eq!(
            refused.stderr.trim_end().lines().count(),
            1,
            "{}",
            refused.stderr
        );
    }
}
