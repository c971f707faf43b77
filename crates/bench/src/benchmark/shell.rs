//! The common parts of all report pages: the shell around a page's own sections, and the files of a report.

use super::definition::{Benchmark, Results};
use crate::report::drawn::{Drawn, write_figures};
use crate::report::error::ReportError;
use crate::report::rawdata::flatten;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_measure::quantity::time;
use taut_results::{
    Completion, FailedAttempt, LeftOut, Manifest, Mode, Noise, busy, programs, taken, write_json,
    write_whole,
};

/// The fields of a benchmark's `summary.json` that describe how busy the machine was with other programs.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct OtherPrograms {
    /// Largest fraction of a measured core's time that other programs took before the measurement, 0 to 1; none if it
    /// was not measured.
    taken_share: Option<f64>,
    /// Names of the programs that used the most processor time during the measurement.
    taken_by: Vec<String>,
}

impl OtherPrograms {
    /// Returns the fields about other programs for the noise in a manifest.
    pub fn of(noise: &[Noise]) -> Self {
        Self {
            taken_share: taken(noise),
            taken_by: programs(noise),
        }
    }
}

/// The fields of [`OtherPrograms`], and the warning about a busy machine.
#[derive(Debug, Default, Serialize, JsonSchema)]
pub struct Warned {
    #[serde(flatten)]
    others: OtherPrograms,
    /// Warnings for the reader of the results, one sentence each.
    warnings: Vec<String>,
}

impl Warned {
    /// Returns what the noise in a manifest says about other programs: their activity, and the warning about it.
    pub fn of(noise: &[Noise]) -> Self {
        Self {
            others: OtherPrograms::of(noise),
            warnings: busy(noise).into_iter().collect(),
        }
    }
}

/// The fields that `base.html` shows around a page's own sections.
pub struct Shell<'a> {
    /// The title of the page.
    pub title: String,
    /// The line below the title.
    pub subtitle: String,
    /// A notice at the top of the page, for example that the experiment was interrupted; none if there is nothing to
    /// report.
    pub state: Option<String>,
    /// Warning that other tasks kept the machine busy; none without such tasks.
    pub busy: Option<String>,
    /// The result of the measurement in one or two sentences.
    pub finding: String,
    /// The figures, in the order of the page.
    pub figures: &'a [Drawn],
    /// The known sources of noise on the machine.
    pub noise: &'a [Noise],
    /// The skipped subjects and parts, each with the reason.
    pub left_out: &'a [LeftOut],
    /// The failed attempts that were repeated.
    pub failed_attempts: &'a [FailedAttempt],
    /// The files of the results folder that cannot be read, one sentence each.
    pub problems: &'a [String],
    /// Facts about the machine as pairs of name and value.
    pub machine: Vec<(String, String)>,
    /// The command that repeats the measurement.
    pub command_line: &'a str,
}

impl<'a> Shell<'a> {
    /// Makes the shell of the report page for a results folder with a manifest. `outcomes` is the plural noun for the
    /// results in the folder, such as `trials`.
    pub fn of(
        manifest: &'a Manifest,
        mode: Mode,
        outcomes: &str,
        problems: &'a [String],
        figures: &'a [Drawn],
    ) -> Self {
        let state = match (manifest.completion, mode) {
            (Completion::Interrupted, _) => Some(format!(
                "Interrupted: only {outcomes} that were complete are shown."
            )),
            (Completion::Running, _) => {
                Some("This experiment did not come to its end.".to_string())
            }
            (Completion::Finished, Mode::Quick) if problems.is_empty() => {
                Some("Quick run, for a first look: short trials and few repetitions.".to_string())
            }
            (Completion::Finished, _) if !problems.is_empty() => {
                Some("Some of the data is missing; the list is below.".to_string())
            }
            _ => None,
        };
        Self {
            title: manifest.title.clone(),
            subtitle: format!("{} · taut {}", manifest.started, manifest.taut_version),
            state,
            busy: busy(&manifest.noise),
            finding: String::new(),
            figures,
            noise: &manifest.noise,
            left_out: &manifest.left_out,
            failed_attempts: &manifest.failed_attempts,
            problems,
            machine: flatten(&manifest.machine),
            command_line: &manifest.command_line,
        }
    }
}

impl<'a> Shell<'a> {
    /// Makes the shell of the report page for a benchmark with interleaved subjects.
    pub fn of_benchmark<B: Benchmark>(results: &'a Results<B>, figures: &'a [Drawn]) -> Self {
        let head = &results.head;
        Self {
            subtitle: format!(
                "{} · {} repetitions, trials of {} · time-stamp counter at {:.3} GHz (± {:.1} ppm) · taut {}",
                head.manifest.started,
                head.repetitions,
                time(head.trial_seconds * 1e9),
                head.tsc_hz / 1e9,
                head.tsc_error_ppm,
                head.manifest.taut_version
            ),
            ..Self::of(
                &head.manifest,
                head.mode,
                B::DESCRIPTION.outcomes,
                &results.problems,
                figures,
            )
        }
    }
}

/// Returns the notice of an interrupted measurement for which no number of planned parts is known.
pub fn ended_early() -> String {
    "Ended early: only what was sent until then is shown.".to_string()
}

/// Writes `summary.json`, `figures/` and `report.html` into a results folder, and returns the path of the page. Earlier
/// files are replaced.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub fn publish(
    dir: &Path,
    summary: &impl Serialize,
    figures: &[Drawn],
    page: &str,
) -> Result<PathBuf, ReportError> {
    write_json(&dir.join("summary.json"), summary)?;
    write_page(dir, figures, page)
}

/// Writes `figures/` and `report.html` of a folder that already has its summary, and returns the path of the page.
///
/// # Errors
/// Returns an error if the folder cannot be written.
pub fn write_page(dir: &Path, figures: &[Drawn], page: &str) -> Result<PathBuf, ReportError> {
    write_figures(dir, figures)?;
    let path = dir.join("report.html");
    write_whole(&path, page.as_bytes())?;
    Ok(path)
}
