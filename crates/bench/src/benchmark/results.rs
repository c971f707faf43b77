//! Reads the results folder of a benchmark and shows it: a manifest with plan and machine, and one file for each
//! outcome.

use super::definition::{Benchmark, Results};
use crate::report::Shown;
use crate::report::error::ReportError;
use std::path::Path;
use taut_results::{ResultsError, busy, read_each, read_head};

/// Reads the results folder `dir`. Damaged files of single results are skipped and named in `problems`.
///
/// # Errors
/// Returns an error if the manifest is missing or unreadable.
pub fn read_results<B: Benchmark>(dir: &Path) -> Result<Results<B>, ResultsError> {
    let head = read_head(dir, B::DESCRIPTION.head, B::DESCRIPTION.schema)?;
    let (outcomes, problems) = read_each(dir, B::DESCRIPTION.outcomes)?;
    Ok(Results {
        head,
        outcomes,
        problems,
    })
}

/// Writes the report of a benchmark's folder, and returns the text to print.
///
/// # Errors
/// Returns an error if the results folder cannot be read or written.
pub fn show<B: Benchmark>(dir: &Path, width: Option<usize>) -> Result<Shown, ReportError> {
    let results = read_results::<B>(dir)?;
    let (page, text) = B::report(dir, &results, width)?;
    let manifest = results.head.manifest;
    let busy = busy(&manifest.noise);
    let failed = manifest.failed_attempts.iter();
    let failed = failed.map(|it| format!("{}: failed and was made again: {}", it.what, it.why));
    Ok(Shown {
        text,
        left_out: manifest.left_out,
        problems: busy
            .into_iter()
            .chain(results.problems)
            .chain(failed)
            .collect(),
        completion: manifest.completion,
        ..Shown::page(page)
    })
}
