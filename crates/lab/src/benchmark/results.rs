//! The results folder of a benchmark: a head that says what was measured where, and a file for each outcome.

use super::{Benchmark, Shown};
use crate::report::ReportError;
use serde::{Deserialize, Serialize};
use std::path::Path;
use taut_results::{Manifest, Mode, ResultsError, read_each, read_head};

/// The whole of a benchmark's head file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head<F> {
    /// What every results folder says.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Lengths chosen by the user.
    pub mode: Mode,
    /// Seed of the order in which subjects take turns.
    pub seed: u64,
    /// Repetitions planned.
    pub repetitions: u32,
    /// Length of a trial, s.
    pub trial_seconds: f64,
    /// Ticks of the time-stamp counter per second: the cycles of every figure.
    pub tsc_hz: f64,
    /// Bound of that figure's error, parts per million.
    pub tsc_error_ppm: f64,
    /// What only this benchmark says.
    #[serde(flatten)]
    pub own: F,
}

#[cfg(test)]
impl<F> Head<F> {
    /// A head of nothing in particular, for tests.
    pub(crate) fn made_up(schema: u32, own: F) -> Self {
        Self {
            manifest: crate::synthetic::manifest(schema),
            mode: Mode::Quick,
            seed: 1,
            repetitions: 3,
            trial_seconds: 0.1,
            tsc_hz: 2.6e9,
            tsc_error_ppm: 1.0,
            own,
        }
    }
}

/// A results folder read back.
#[derive(Debug)]
pub struct Results<B: Benchmark> {
    /// Its head.
    pub head: Head<B::Facts>,
    /// Every complete outcome, by the name of its file.
    pub outcomes: Vec<B::Outcome>,
    /// What cannot be read, one sentence each.
    pub problems: Vec<String>,
}

/// Reads a folder. Outcomes that are damaged are named in `problems` and left out.
///
/// # Errors
/// When the head is missing or unreadable.
pub(crate) fn read_results<B: Benchmark>(dir: &Path) -> Result<Results<B>, ResultsError> {
    let head = read_head(dir, B::HEAD, B::SCHEMA)?;
    let (outcomes, problems) = read_each(dir, B::OUTCOMES)?;
    Ok(Results {
        head,
        outcomes,
        problems,
    })
}

/// Writes the report of a benchmark's folder, and returns what to show of it.
pub(crate) fn show<B: Benchmark>(dir: &Path, width: Option<usize>) -> Result<Shown, ReportError> {
    let results = read_results::<B>(dir)?;
    let page = B::report(dir, &results)?;
    let text = B::text(&results, width);
    let manifest = results.head.manifest;
    let failed = manifest.failed_attempts.iter();
    let failed = failed.map(|it| format!("{}: failed and was made again: {}", it.what, it.why));
    Ok(Shown {
        text,
        left_out: manifest.left_out,
        problems: results.problems.into_iter().chain(failed).collect(),
        completion: manifest.completion,
        ..Shown::page(page)
    })
}
