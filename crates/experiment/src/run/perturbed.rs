//! Tests of experiments under perturbations, on fake nodes.

#![allow(clippy::unwrap_used)]

use super::fake::{Course, Trial, World};
use crate::evaluate::Evaluation;
use crate::{Changes, Experiment, Outcome, Robust, choose_perturbations};
use std::path::Path;
use std::time::Duration;
use taut_results::Completion;

const FILE: &str = r#"
title = "t"
[variables]
size = 100
loss = 1
[plan]
repetitions = 6
[[step]]
name = "m"
run = "measure {{ size }} {{ loss }}"
extract = { time = 'time (\d+)' }
[[claim]]
text = "it takes less than 150"
ours = true
value = "median('time')"
holds = "value < 150"
[robust]
awake = []
"#;

fn changes(within: Duration) -> Changes {
    let open = |changes: &Changes| Experiment::parse(FILE, "e.toml", Path::new("."), changes);
    let plan = choose_perturbations(&open, &Changes::default(), within, 1);
    plan.unwrap().changes
}

/// Returns a world in which each run reports its size as the metric `time`, independently of the loss.
fn world() -> World {
    World::new(|asked| {
        let size = asked.script.split(' ').nth(1).unwrap();
        Course::ends(1, 0).prints(Duration::ZERO, &format!("time {size}"))
    })
}

fn evaluated(trial: &Trial) -> Evaluation {
    let folder = trial.folder();
    Evaluation::of(&folder.experiment().unwrap(), folder).unwrap()
}

#[test]
fn claims_that_flip_under_a_perturbation_are_listed_with_margins() {
    let trial = Trial::with(FILE, changes(Duration::from_secs(1000)));
    let came = trial.run(world());
    assert_eq!(came.state.completion, Completion::Finished);
    let evaluation = evaluated(&trial);
    let robustness = evaluation.robustness.as_ref().unwrap();
    let flips: Vec<&str> = robustness
        .flips()
        .map(|(_, it)| it.perturbation.as_str())
        .collect();
    assert_eq!(flips, ["size × 2", "size × 2, loss × 2"]);
    let claim = &robustness.claims[0];
    assert_eq!(claim.before.margin.unwrap().distance, 50.0);
    assert_eq!(
        claim.flips().next().unwrap().margin.unwrap().distance,
        -50.0
    );
    let half = claim
        .after
        .iter()
        .find(|it| it.perturbation == "3 repetitions")
        .unwrap();
    assert_eq!((half.outcome, half.repetitions), (Outcome::Holds, 3));
    assert_eq!(evaluation.verdicts[0].value, Some(100.0));
    let markdown = robustness.markdown();
    assert!(
        markdown.contains("| size × 2 | flips -33.3 % |"),
        "{markdown}"
    );
    evaluation.write(trial.folder()).unwrap();
    let csv = std::fs::read_to_string(trial.folder().path().join("robustness.csv")).unwrap();
    assert!(
        csv.contains("size × 2,flips,fails,200,200,200,6,value < 150,150,-50,"),
        "{csv}"
    );
}

#[test]
fn runs_stop_at_the_time_limit_and_resume_later() {
    let mut trial = Trial::with(FILE, changes(Duration::from_secs(1000)));
    trial.request.at_most = Some(Duration::from_secs(20));
    let came = trial.run(world());
    assert_eq!(
        (came.state.completion, came.state.done),
        (Completion::Incomplete, 20)
    );
    assert!(
        came.state.notes[0].contains("runs are missing"),
        "{:?}",
        came.state.notes
    );
    // All single perturbations have the same number of repetitions by then.
    let repetitions = evaluated(&trial).robustness.unwrap().claims[0].after[0].repetitions;
    assert!((2..=4).contains(&repetitions), "{repetitions}");
    trial.request.at_most = None;
    assert_eq!(trial.run(world()).state.completion, Completion::Finished);
}

#[test]
fn perturbations_of_an_experiment_are_stored_and_read_back() {
    let changes = changes(Duration::from_secs(60));
    let trial = Trial::with(FILE, changes.clone());
    let again = trial.folder().experiment().unwrap();
    assert_eq!(again.fingerprint(), trial.request.experiment.fingerprint());
    let text = serde_json::to_string(&changes).unwrap();
    assert_eq!(serde_json::from_str::<Changes>(&text).unwrap(), changes);
    assert_ne!(changes.robust, Some(Robust::default()));
}
