//! `taut chain plan`: where functions run, their cost, and the verdict on the latency budget.

use crate::support::program::{Finished, run};
use crate::support::{scratch, taut};
use serde_json::Value;
use std::path::PathBuf;

fn plan(text: &str, more: &[&str]) -> Finished {
    let folder = scratch();
    let file: PathBuf = folder.path().join("chain.toml");
    std::fs::write(&file, text).unwrap();
    let mut words = vec!["chain", "plan", file.to_str().unwrap()];
    words.extend(more);
    run(&mut taut(&words))
}

const PORTS: &str = "ports = [\"null:\", \"null:\"]\n";

fn chain(head: &str, functions: &[&str]) -> String {
    let functions = functions.iter().map(|f| format!("[[function]]\n{f}\n"));
    format!("{head}\n{PORTS}{}", functions.collect::<String>())
}

#[test]
fn a_plan_prints_the_placement_and_cost_of_functions() {
    let head = "placement = \"namespaces\"\nbudget = \"1s\"";
    let text = chain(
        head,
        &["name = \"forward\"", "name = \"burn\"\ncycles = 3000"],
    );
    let plan = plan(&text, &["--json", "--size", "256"])
        .success()
        .last_json();
    let of = |path: &str| {
        plan.pointer(path)
            .unwrap_or_else(|| panic!("no {path} in {plan}"))
    };
    assert_eq!(of("/functions/0/class"), "elementary");
    assert_eq!(of("/functions/0/place"), "kernel");
    assert_eq!(of("/functions/1/place"), "user");
    assert!(
        of("/functions/1/why")
            .as_str()
            .unwrap()
            .starts_with("advanced: ")
    );
    let burnt = of("/functions/1/costs/0/forth/full/median")
        .as_f64()
        .unwrap();
    assert!(burnt > 2500.0, "{burnt}");
    assert_eq!(of("/holds"), "yes");
    assert_eq!(of("/round_trips/0/payload_bytes"), 256);
    let parts = of("/round_trips/0/parts").as_array().unwrap();
    let sum: f64 = parts
        .iter()
        .map(|part| part["typical_ns"].as_f64().unwrap())
        .sum();
    let whole = of("/round_trips/0/typical_ns").as_f64().unwrap();
    assert!((sum - whole).abs() < 1.0, "{sum} {whole}");
    // The function burn takes about 3000 cycles a packet, which limit the rate of one core; 2500 allow for a tolerance.
    let rate = of("/rates/0/one_way_pps").as_f64().unwrap();
    assert!(
        rate > 0.0 && rate < of("/tsc_hz").as_f64().unwrap() / 2500.0,
        "{rate}"
    );
}

#[test]
fn an_exceeded_budget_gives_code_1_and_names_the_function() {
    let text = chain(
        "budget = \"20us\"",
        &["name = \"forward\"", "name = \"burn\"\ncycles = 900000"],
    );
    let finished = plan(&text, &[]);
    assert_eq!(finished.code(), Some(1), "{finished:?}");
    let said = finished.stderr.trim_end();
    assert!(said.contains("budget of 20.0 µs cannot be met"), "{said}");
    assert!(said.contains("function burn"), "{said}");
    assert!(!said.contains('\n'), "one line: {said}");
    // The table is printed even if the budget is exceeded.
    for part in [
        "advanced",
        "1400 B alone",
        "budget 20.0 µs: cannot be met",
        "measured",
    ] {
        assert!(
            finished.stdout.contains(part),
            "{part}: {}",
            finished.stdout
        );
    }
}

#[test]
fn invalid_chains_and_sizes_are_refused_with_the_reason() {
    for (text, more, part) in [
        (
            chain("", &["name = \"forward\"\nplace = \"kernel\""]),
            "",
            "use placement = \"namespaces\"",
        ),
        (
            chain(
                "placement = \"namespaces\"",
                &["name = \"rlnc\"\nplace = \"kernel\""],
            ),
            "",
            "cannot run in the kernel",
        ),
        (
            chain("", &["name = \"fowrard\""]),
            "",
            "no function \"fowrard\"",
        ),
        (chain("", &[]), "--size=17", "17 is not in 18..=1472"),
    ] {
        let more: Vec<&str> = more.split_whitespace().collect();
        let finished = plan(&text, &more);
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{}", finished.stderr);
    }
}

#[test]
fn a_plan_creates_no_log_files_of_functions() {
    let folder = scratch();
    let log = folder.path().join("impaired.csv");
    let function = format!("name = \"impair\"\nloss = 0.5\nlog = \"{}\"", log.display());
    let json: Value = plan(&chain("", &[&function]), &["--json"])
        .success()
        .last_json();
    assert_eq!(json["holds"], Value::Null);
    assert!(!log.exists());
}
