//! `taut report`: regenerates the report and the figures of a results folder.

use crate::exit::Failure;
use crate::kinds::kind_of;
use crate::terminal::print;
use std::path::{Path, PathBuf};
use taut_bench::report::{ReportError, Shown};
use taut_comparison::report;
use taut_experiment::{is_comparison, read_comparison};
use taut_figure::table::terminal_width;
use taut_results::{Completion, Results, has};

#[derive(clap::Args)]
#[command(after_help = "Example:  taut report results/demo-2026-11-21T08-15-00Z")]
pub struct Arguments {
    /// Results folder of `taut demo`, `bench`, `experiment`, `tune ablate` or `tune fit`, or of --out of `taut generate`, `probe client`,
    /// `capture match` or `control run`
    dir: PathBuf,
    /// Print summary.json instead of the table
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    show(&arguments.dir, arguments.json)
}

/// Writes the report of a results folder and prints its contents: tables, missing runs, errors, and the path of the
/// report. A missed limit is a failure.
pub fn show(dir: &Path, json: bool) -> Result<(), Failure> {
    if is_comparison(dir) {
        return show_comparison(&read_comparison(dir)?, json);
    }
    if has(dir, "state.json") {
        return crate::experiment::show(dir, false, false, json);
    }
    print(dir, kind_of(dir).show(dir, terminal_width())?, json)
}

/// Writes the report of a comparison and prints its contents, as [`show`] does for other results. The runs of the
/// comparison belong to an experiment.
pub fn show_comparison(results: &Results, json: bool) -> Result<(), Failure> {
    let shown = report::show_comparison(results, terminal_width())?;
    print(&results.dir, shown, json)
}

fn print(dir: &Path, shown: Shown, json: bool) -> Result<(), Failure> {
    if json {
        print::summary(dir)?;
    } else {
        if !shown.text.is_empty() {
            print::line(shown.text.trim_end());
        }
        for missing in &shown.left_out {
            print::line(format!(
                "skipped: {}: {} ({})",
                missing.what, missing.why, missing.how
            ));
        }
        for problem in &shown.problems {
            print::line(format!("note: {problem}"));
        }
        if shown.completion != Completion::Finished {
            print::line("note: this experiment has not finished");
        }
        print::line(format!("report: {}", shown.page.display()));
    }
    if let Some(missing) = shown.left_out.first()
        && shown.wants_all
    {
        return Err(Failure::Missing(missing.why.clone()));
    }
    match shown.missed.as_slice() {
        [] => Ok(()),
        [only] => Err(Failure::Limit(only.clone())),
        [first, rest @ ..] => Err(Failure::Limit(format!(
            "{first} (and {} more, see above or the report)",
            rest.len()
        ))),
    }
}

impl From<ReportError> for Failure {
    fn from(e: ReportError) -> Self {
        match e {
            ReportError::Results(e) => e.into(),
            other => Self::Input(other.to_string()),
        }
    }
}
