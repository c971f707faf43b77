//! `taut bench switch`, shortened as far as it goes: what it writes and says, not how fast anything is.

use crate::support::program::run;
use crate::support::{alone, json, names, scratch, taut};
use serde_json::Value;
use std::fs;
use std::path::Path;

fn arguments(out: &Path, only: &[&str]) -> Vec<String> {
    let mut arguments: Vec<String> = ["bench", "switch", "--quick", "--trial", "0.02"]
        .map(String::from)
        .to_vec();
    for name in only {
        arguments.extend(["--only".to_string(), (*name).to_string()]);
    }
    arguments.extend(["--out".to_string(), out.display().to_string()]);
    arguments
}

#[test]
fn tauts_switch_gives_tables_figures_and_a_report_made_again() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("switch");
    let only = ["hops", "qos", "insertion", "amplify"];
    let mut command = arguments(&out, &only);
    command.push("--json".to_string());
    let finished = run(&mut taut(&command)).success();
    let printed: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(printed, json(&out.join("summary.json")));

    let switch = &printed["switches"][0];
    assert_eq!(switch["switch"], "taut");
    let hops = switch["hops"].as_array().unwrap();
    let loops: Vec<u64> = hops
        .iter()
        .map(|row| row["loops"].as_u64().unwrap())
        .collect();
    assert_eq!(loops, [0, 1, 2, 4, 6]);
    assert!(switch["line"]["per_loop_ns"]["value"].is_f64(), "{switch}");
    // Whatever takes the cores away, a longer way takes longer at least.
    let least = |row: &Value| row["min_ns"]["median"].as_f64().unwrap();
    assert!(least(&hops[4]) > least(&hops[0]), "{hops:?}");

    let qos = switch["qos"].as_array().unwrap();
    let at = |load: u64, priority: bool| {
        let row = qos
            .iter()
            .find(|row| row["load_percent"] == load && row["priority"] == priority);
        row.unwrap()
    };
    assert_eq!(qos.len(), 4);
    assert!(at(300, false)["lost"].as_f64().unwrap() > 0.3, "{qos:?}");
    assert!(at(0, true)["p50_ns"]["median"].is_f64(), "{qos:?}");

    let insertion = switch["insertion"].as_array().unwrap();
    for row in insertion {
        assert_eq!(row["rules"], 100, "{row}");
        assert!(
            row["barrier_p50_ns"]["median"].as_f64().unwrap() > 0.0,
            "{row}"
        );
    }
    let amplify = switch["amplify"].as_array().unwrap();
    let copies: Vec<u64> = amplify
        .iter()
        .map(|row| row["copies"].as_u64().unwrap())
        .collect();
    assert_eq!(copies, [3, 9]);
    assert!(switch["rules"].as_array().unwrap().is_empty());

    assert_eq!(names(&out.join("points")).len(), 5 + 4 + 3 + 2);
    let figures = names(&out.join("figures"));
    assert!(figures.iter().eq(["hops.svg", "qos.svg"]), "{figures:?}");
    let page = fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("as published"));
    fs::remove_file(out.join("report.html")).unwrap();
    let again = run(&mut taut(&["report", &out.display().to_string()])).success();
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
fn wrong_wishes_say_what_there_is() {
    let _turn = alone();
    let folder = scratch();
    let out = folder.path().join("switch");
    for (only, more, part) in [
        ("latency", "", "there are hops, rules, qos"),
        ("hops", "hub", "there are taut and openvswitch"),
        ("hops", "--trial=0", "0.01 to 60"),
    ] {
        let mut command = arguments(&out, &[only]);
        command.retain(|word| more.is_empty() || !["--trial", "0.02"].contains(&word.as_str()));
        command.extend((!more.is_empty()).then(|| more.to_string()));
        let refused = run(&mut taut(&command));
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains(part), "{}", refused.stderr);
        assert!(!out.exists());
    }
}
