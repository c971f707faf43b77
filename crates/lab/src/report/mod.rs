//! The report: a self-contained page, an SVG file per figure and the summary in JSON, all made from
//! the results folder alone.

mod figures;
mod finding;
mod page;
mod rawdata;

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::evaluate::{Evaluation, Ratio, Row, ratios, rows};
use crate::results::{Results, ResultsError, write_whole};

/// Why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The folder cannot be read or written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The page's template failed.
    #[error("report.html: {0}")]
    Page(#[from] askama::Error),
}

/// `summary.json`: the table and the ratios.
#[derive(Debug, Serialize)]
pub struct Summary<'a> {
    /// One per device.
    pub devices: &'a [Row],
    /// Between devices.
    pub ratios: &'a [Ratio],
    /// What is missing.
    pub problems: &'a [String],
}

/// Writes `summary.json`, `figures/*.svg` and `report.html` into the results folder `dir`, from what
/// lies there, and returns the page's path. Earlier ones are replaced.
///
/// An interrupted experiment gives a report that says so, and devices without data are named as such.
pub fn write(dir: &Path) -> Result<PathBuf, ReportError> {
    let results = Results::load(dir)?;
    let evaluation = Evaluation::of(&results);
    let rows = rows(&evaluation.devices);
    let ratios = ratios(&evaluation.devices, results.experiment.settings.seed);

    let summary = Summary { devices: &rows, ratios: &ratios, problems: &evaluation.problems };
    let path = dir.join("summary.json");
    let mut text = serde_json::to_vec_pretty(&summary).map_err(|source| ResultsError::Json { path: path.clone(), source })?;
    text.push(b'\n');
    write_whole(&path, &text)?;

    let figures = figures::draw(&evaluation);
    let folder = dir.join("figures");
    fs::create_dir_all(&folder).map_err(|source| ResultsError::Io { path: folder.clone(), source })?;
    for figure in &figures {
        write_whole(&folder.join(format!("{}.svg", figure.name)), figure.svg.as_bytes())?;
    }

    let page = page::render(&results, &evaluation, &rows, &ratios, &figures)?;
    let path = dir.join("report.html");
    write_whole(&path, page.as_bytes())?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::synthetic::{self, Plan, SMALL};

    #[test]
    #[ignore = "writes a report to look at: cargo test -p taut-lab -- --ignored look"]
    fn look_at_a_made_up_report() {
        let dir = std::env::temp_dir().join("taut-made-up-report");
        let _ = fs::remove_dir_all(&dir);
        synthetic::write(&dir, &Plan { repetitions: 3, packets: 300_000, seed: 7 });
        println!("{}", write(&dir).unwrap().display());
        let results = Results::load(&dir).unwrap();
        println!("{}", crate::evaluate::render_text_table(&rows(&Evaluation::of(&results).devices)));
    }
}
