//! `taut bench costs`, as short as possible: checks the files and output, but not the measured values or the quality of
//! predictions.

use crate::support::program::{Program, run};
use crate::support::{alone, json, names, scratch, taut};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn arguments(out: &Path) -> Vec<String> {
    let mut arguments: Vec<String> = ["bench", "costs", "--quick", "--trial", "0.1"]
        .map(String::from)
        .to_vec();
    arguments.extend(["--points", "10", "--out"].map(String::from));
    arguments.push(out.display().to_string());
    arguments
}

#[test]
fn benchmarks_of_null_and_memif_produce_models_and_a_report() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("costs");
    let mut command = arguments(&out);
    command.extend(["--json", "--only", "null", "--only", "memif"].map(String::from));
    let finished = run(&mut taut(&command)).success();
    let printed: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(printed, json(&out.join("summary.json")));

    let ports = printed["ports"].as_array().unwrap();
    let ids: Vec<&str> = ports.iter().map(|p| p["port"].as_str().unwrap()).collect();
    assert_eq!(ids, ["null", "memif"]);
    for port in ports {
        assert_eq!(port["runs"], 10, "{port}");
        assert!(port["highest_pps"].as_f64().unwrap() > 0.0, "{port}");
    }
    let null = &ports[0];
    assert!(null["no_model"].is_null(), "{null}");
    assert_eq!((&null["fitted"], &null["moved"]), (&5.into(), &0.into()));
    let held_out = &null["held_out"];
    assert_eq!(held_out["count"], 5, "{null}");
    assert!(held_out["median"].as_f64().unwrap() >= 0.0, "{null}");

    let points = names(&out.join("points"));
    assert_eq!(points.len(), 20, "{points:?}");
    let point = json(&out.join("points/null-0000-1.json"));
    assert!(point["cycles"].as_f64().unwrap() > 0.0, "{point}");
    assert_eq!(
        point["line_cycles"],
        Value::Array(Vec::new()),
        "no other core"
    );
    let runs = fs::read_to_string(out.join("runs.csv")).unwrap();
    assert_eq!(runs.lines().count(), 21);
    let figures = names(&out.join("figures"));
    for figure in ["predicted", "residuals", "binding", "shares-null"] {
        assert!(figures.contains(&format!("{figure}.svg")), "{figures:?}");
    }
    // Other commands read this file.
    let model = out.join("models/null.toml").display().to_string();
    let at = ["model", "predict", &model, "--at", "load_cycles=500"];
    let at = at.map(String::from).to_vec();
    let asked = run(&mut taut(&at));
    let text = asked.stdout.clone() + &asked.stderr;
    // With so few runs the cost of a packet may be unknown, which the text then states.
    let answers = ["held out", "depends on", "few or disturbed runs"];
    assert!(answers.iter().any(|it| text.contains(it)), "{text}");

    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Ask the models") && page.contains("data-port=\"null\""));
    assert!(
        page.contains("Snort-fwd, VM: highest rate seen"),
        "published checks"
    );
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
fn an_interrupted_cost_benchmark_reports_its_completed_measurements() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("costs");
    let mut command = arguments(&out);
    command.extend(["--only", "pair"].map(String::from));
    let mut program = Program::start(&mut taut(&command));
    program.wait_until("a complete point", |_, _| {
        fs::read_dir(out.join("points")).is_ok_and(|mut entries| {
            entries.any(|e| e.is_ok_and(|e| e.file_name().to_string_lossy().ends_with(".json")))
        })
    });
    let finished = program.interrupt();
    assert_eq!(finished.code(), Some(130), "{finished:?}");
    assert_eq!(json(&out.join("costs.json"))["stage"], "interrupted");
    assert_eq!(json(&out.join("summary.json"))["ports"][0]["port"], "pair");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Interrupted"));
}

#[test]
fn errors_about_invalid_options_name_the_valid_values() {
    let _turn = alone();
    let folder = scratch();
    let wrong = |more: [&str; 2]| {
        let mut command = arguments(&folder.path().join("costs"));
        command.extend(more.map(String::from));
        run(&mut taut(&command))
    };
    let refused = wrong(["--only", "carrier-pigeon"]);
    assert_eq!(refused.code(), Some(2));
    assert!(
        refused.stderr.contains("available: null, "),
        "{}",
        refused.stderr
    );
    let few: Vec<String> = ["bench", "costs", "--points", "3"]
        .map(String::from)
        .to_vec();
    let refused = run(&mut taut(&few));
    assert_eq!(refused.code(), Some(2));
    assert!(
        refused.stderr.contains("expected 10 to 2000"),
        "{}",
        refused.stderr
    );
}
