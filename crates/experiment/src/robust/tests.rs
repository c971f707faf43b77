//! Tests of the choice of perturbations, and of the verdicts under them.

#![allow(clippy::unwrap_used)]

use super::*;
use crate::experiment::Experiment;
use crate::{Changes, ExperimentError};
use std::path::Path;
use std::time::Duration;

const FILE: &str = r#"
title = "t"
[variables]
rate = "100k"
core = 2
text = "plain"
[loop]
device = ["a", "b", "c"]
[plan]
repetitions = 6
[[step]]
name = "m"
run = "taut generate --device {{ device }} --rate {{ rate }} --size 64 --seconds 1 --core {{ core }} --set {{ text }} --seed {{ repetition }} --json"
json = true
[[claim]]
text = "a is twice b"
ours = true
value = "median('m.lost', device='a') / median('m.lost', device='b')"
holds = "value > 2"
"#;

fn chosen(file: &str, within_s: u64, seed: u64) -> Result<RobustPlan, ExperimentError> {
    let open = |changes: &Changes| Experiment::parse(file, "e.toml", Path::new("."), changes);
    let within = Duration::from_secs(within_s);
    choose(&open, &Changes::default(), within, seed)
}

fn names(plan: &RobustPlan) -> Vec<&str> {
    let robust = plan.changes.robust.as_ref().unwrap();
    robust.points.iter().map(|it| it.name.as_str()).collect()
}

#[test]
fn variables_and_options_are_perturbed_alone_then_in_pairs() {
    let plan = chosen(FILE, 100_000, 1).unwrap();
    let names: Vec<&str> = names(&plan)
        .into_iter()
        .filter(|name| !name.contains("awake"))
        .collect();
    let single = [
        "other seeds",
        "order sequential",
        "rate × 2",
        "--size 64 × 2",
        "--seconds 1 × 2",
        "rate × 0.5",
        "3 repetitions",
        "12 repetitions",
    ];
    assert_eq!(names[..single.len()], single);
    assert!(names.contains(&"rate × 2, --size 64 × 2"), "{names:?}");
    assert!(
        !names.iter().any(|name| name.matches("rate").count() > 1),
        "{names:?}"
    );
    // The combination that no claim uses is not run.
    let loops = plan
        .experiment
        .variants()
        .iter()
        .map(|it| &it.loops["device"]);
    assert!(loops.clone().all(|device| device != "c") && loops.count() > 20);
}

#[test]
fn perturbations_beyond_the_time_limit_are_skipped_with_a_reason() {
    // Six repetitions of two combinations, each of which takes a second plus the overhead, exceed the time.
    let plan = chosen(FILE, 60, 1).unwrap();
    let robust = plan.changes.robust.as_ref().unwrap();
    assert_eq!(
        (plan.shortened_from, plan.changes.repetitions),
        (Some(6), Some(3))
    );
    assert!(names(&plan).starts_with(&["other seeds", "order sequential", "rate × 2"]));
    let last = robust.left_out.last().unwrap();
    assert!(last.starts_with("6 repetitions: takes about"), "{last}");
    assert!(
        plan.expected <= Duration::from_secs(60),
        "{:?}",
        plan.expected
    );
    let error = chosen(FILE, 10, 1).unwrap_err().to_string();
    assert!(error.contains("--within 10s"), "{error}");
}

#[test]
fn equal_seeds_draw_equal_pairs() {
    let pairs = |seed| {
        let plan = chosen(FILE, 300, seed).unwrap();
        let robust = plan.changes.robust.unwrap();
        let pairs = robust.points.into_iter().filter(Point::is_pair);
        pairs.map(|it| it.name).collect::<Vec<_>>()
    };
    assert!(!pairs(1).is_empty());
    assert_eq!(pairs(1), pairs(1));
    assert!((2..9).any(|seed| pairs(seed) != pairs(1)));
}

#[test]
fn values_of_the_file_replace_the_default_perturbations() {
    let own = "[robust]\nrate = [\"90k\", \"110k\"]\ndevice = []\n\"--size 64\" = { times = [1.5] }\n\"--seconds 1\" = []\nawake = []\n";
    let plan = chosen(&format!("{FILE}{own}"), 1000, 1).unwrap();
    let single: Vec<&str> = names(&plan).into_iter().take(5).collect();
    let expected = [
        "other seeds",
        "order sequential",
        "rate = 90k",
        "rate = 110k",
        "--size 64 × 1.5",
    ];
    assert_eq!(single, expected);
    for (own, part) in [
        ("rat = [1]", "did you mean `rate`"),
        ("device = ['x']", "takes factors"),
        ("rate = { times = [0] }", "above 0"),
        ("rate = 7", "a loop takes a list"),
    ] {
        let error = chosen(&format!("{FILE}[robust]\n{own}"), 1000, 1).unwrap_err();
        assert!(error.to_string().contains(part), "{own}: {error}");
    }
}

#[test]
fn perturbed_runs_keep_the_loop_values_of_the_file() {
    let file = FILE
        .replace("rate = \"100k\"\n", "")
        .replace("[loop]", "[loop]\nrate = [100, 200]");
    let plan = chosen(&file, 100_000, 1).unwrap();
    let experiment = plan.experiment;
    let doubled = experiment
        .variants()
        .iter()
        .find(|it| it.loops[PERTURBATION] == "rate × 2");
    let doubled = doubled.unwrap();
    assert_eq!(
        (&doubled.loops["rate"], &doubled.variables["rate"]),
        (&100.into(), &200.into())
    );
    let sized = experiment
        .variants()
        .iter()
        .position(|it| it.loops[PERTURBATION] == "--size 64 × 2");
    let context = experiment.context(&experiment.variants()[sized.unwrap()], None, "v1-r1", 1);
    let script = experiment
        .templates
        .fill(experiment.tasks[0].run.get_ref(), &context)
        .unwrap();
    assert!(
        script.contains("--size 128 ") && script.ends_with("--seed 1 --json"),
        "{script}"
    );
    let seeds = experiment
        .variants()
        .iter()
        .position(|it| it.loops[PERTURBATION] == "other seeds");
    let context = experiment.context(&experiment.variants()[seeds.unwrap()], None, "v1-r1", 1);
    let script = experiment
        .templates
        .fill(experiment.tasks[0].run.get_ref(), &context)
        .unwrap();
    assert!(
        script.contains("--size 64 ") && script.ends_with("--seed 1001 --json"),
        "{script}"
    );
}

#[test]
fn a_robustness_plan_without_claims_is_refused() {
    let file = FILE.split("[[claim]]").next().unwrap();
    let error = chosen(file, 1000, 1).unwrap_err().to_string();
    assert!(error.contains("no [[claim]]"), "{error}");
}
