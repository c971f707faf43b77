//! Evaluation of the runs: tables, figures, verdicts, and a tidy table of all metrics. Every result is derived from the
//! results folder, and names the runs from which it was derived.

mod disturbance;
pub(crate) mod draw;
pub(crate) mod evaluation;
pub(crate) mod formula;
pub(crate) mod selection;
pub(crate) mod steps;
pub(crate) mod table;
mod tidy;
pub(crate) mod verdict;

pub use draw::Figure;
pub use evaluation::Evaluation;
pub use steps::StepRecord;
pub use table::{Cell, Row, Table};
pub use verdict::{Verdict, VerdictKind};

use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::Folder;
use crate::page;
use std::path::{Path, PathBuf};

/// Returns the record of the first evaluation step of the file that failed.
pub fn failed_step(experiment: &Experiment, folder: &Folder) -> Option<StepRecord> {
    let records = steps::records(experiment, folder);
    records.into_iter().find(|step| step.exit_code != 0)
}

/// Evaluates a results folder, and writes the evaluation and its report. Returns the evaluation and the path of the
/// page.
///
/// # Errors
/// The folder cannot be read or written.
pub fn evaluate(dir: &Path) -> Result<(Evaluation, PathBuf), ExperimentError> {
    let folder = Folder::open(dir)?;
    let experiment = folder.experiment()?;
    let evaluation = Evaluation::of(&experiment, &folder)?;
    // Published results stay unchanged.
    if evaluation.state.published.is_some() {
        return Ok((evaluation, dir.join("index.html")));
    }
    evaluation.write(&folder)?;
    let path = page::write(&experiment, &folder, &evaluation)?;
    Ok((evaluation, path))
}
