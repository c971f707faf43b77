//! Experiment files of arbitrary text: each is read and planned within limits, or refused in one line.

use std::path::Path;
use taut_experiment::{Changes, Experiment};

/// The largest number of runs in a plan.
const MOST_RUNS: usize = 1_000_000;

/// Reads an experiment file and plans its runs.
pub fn plan(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let nowhere = Path::new("/nowhere/at/all");
    match Experiment::parse(&text, "e.toml", nowhere, &Changes::default()) {
        Ok(experiment) => {
            let plan = experiment.plan();
            assert!(
                !plan.is_empty() && plan.len() <= MOST_RUNS,
                "{} runs",
                plan.len()
            );
            assert_eq!(experiment.fingerprint(), experiment.fingerprint());
        }
        Err(e) => {
            let text = e.to_string();
            assert!(text.starts_with("e.toml") && !text.contains('\n'), "{text}");
        }
    }
}
