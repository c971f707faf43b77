//! The report of an experiment: a page made from the results folder alone, which is displayed without a network.

use crate::compare::{BUILD_HEADINGS, Builds, Comparisons, HEADINGS, words};
use crate::error::ExperimentError;
use crate::evaluate::draw::Figure;
use crate::evaluate::evaluation::Evaluation;
use crate::evaluate::steps::StepRecord;
use crate::evaluate::table::Table;
use crate::evaluate::verdict::Verdict;
use crate::experiment::Experiment;
use crate::folder::{Folder, IndexedRun, State, nodes_of};
use crate::replicate::Replication;
use crate::robust::Robustness;
use crate::variables::text_of;
use askama::Template;
use std::path::{Path, PathBuf};
use taut_bench::report::flatten;
use taut_measure::Finding;
use taut_measure::quantity::plain;
use taut_results::{Completion, write_json, write_whole};

/// Maximum number of runs that the page lists; the table of metrics also contains the other runs.
const LISTED: usize = 500;

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    about: &'a str,
    subtitle: String,
    alert: Option<String>,
    behind: Option<&'a str>,
    busy: Option<&'a str>,
    verdicts: Vec<Judged<'a>>,
    tables: &'a [Table],
    figures: &'a [Figure],
    problems: &'a [String],
    notes: &'a [String],
    commands: Vec<[String; 2]>,
    schedule: String,
    nodes: Vec<(String, Vec<(String, String)>)>,
    variables: Vec<String>,
    runs: Vec<Listed>,
    unlisted: usize,
    name: &'a str,
    command_line: &'a str,
    replication: Option<&'a Replication>,
    headings: [&'static str; 8],
    robustness: Option<&'a Robustness>,
    steps: &'a [StepRecord],
    builds: Option<&'a Builds>,
    build_headings: [&'static str; 8],
    /// Name of the publication, if the page is the first page of its website.
    site: Option<&'a str>,
}

struct Judged<'a> {
    verdict: &'a Verdict,
    class: &'static str,
    value: String,
    interval: String,
}

struct Listed {
    id: String,
    values: Vec<String>,
    seconds: String,
}

/// Writes `report.html` into the results folder.
pub(crate) fn write(
    experiment: &Experiment,
    folder: &Folder,
    evaluation: &Evaluation,
) -> Result<PathBuf, ExperimentError> {
    write_as(experiment, folder, evaluation, None)
}

/// Writes the `index.html` of the publication with the given name into its folder.
pub(crate) fn write_index(
    experiment: &Experiment,
    folder: &Folder,
    evaluation: &Evaluation,
    name: &str,
) -> Result<PathBuf, ExperimentError> {
    write_as(experiment, folder, evaluation, Some(name))
}

/// Returns a warning for the top of the page about missing or failed runs; `None` if the experiment is finished.
pub(crate) fn alert(state: &State) -> Option<String> {
    let partial = state
        .published
        .as_ref()
        .is_some_and(|published| published.partial);
    match state.completion {
        Completion::Finished => None,
        _ if partial => Some(format!(
            "Published in part: {} of {} runs are here.",
            state.done, state.planned
        )),
        Completion::Incomplete => Some(format!(
            "{} runs failed; they are in no figure.",
            state.failed
        )),
        Completion::Interrupted => Some("Interrupted: only whole runs are shown.".to_owned()),
        Completion::Running => Some("This experiment has not come to its end.".to_owned()),
    }
}

fn write_as(
    experiment: &Experiment,
    folder: &Folder,
    evaluation: &Evaluation,
    site: Option<&str>,
) -> Result<PathBuf, ExperimentError> {
    let file = if site.is_some() {
        "index.html"
    } else {
        "report.html"
    };
    let path = folder.path().join(file);
    let runs = folder.index()?;
    let variables = experiment.loop_names();
    let commands = experiment.first_commands()?;
    let state = &evaluation.state;
    let page = Page {
        title: &experiment.definition.title,
        about: experiment.definition.about.trim(),
        subtitle: format!(
            "{} · {} of {} runs · plan {} · taut {}",
            state.started, state.done, state.planned, state.fingerprint, state.taut_version
        ),
        alert: alert(state),
        behind: evaluation.behind.as_deref(),
        busy: evaluation.busy.as_deref(),
        verdicts: evaluation.verdicts.iter().map(judged).collect(),
        tables: &evaluation.tables,
        figures: &evaluation.figures,
        problems: &evaluation.problems,
        notes: &state.notes,
        commands: commands
            .into_iter()
            .map(|command| [command.node, command.script])
            .collect(),
        schedule: schedule(experiment),
        nodes: facts_by_role(folder),
        unlisted: runs.len().saturating_sub(LISTED),
        runs: runs
            .iter()
            .take(LISTED)
            .map(|run| listed(run, &variables))
            .collect(),
        variables,
        name: &state.name,
        command_line: &state.command_line,
        replication: evaluation.replication.as_ref(),
        headings: HEADINGS,
        robustness: evaluation.robustness.as_ref(),
        steps: &evaluation.steps,
        builds: evaluation.builds.as_ref(),
        build_headings: BUILD_HEADINGS,
        site,
    };
    let text = page
        .render()
        .map_err(|e| ExperimentError::results(&path, e.to_string()))?;
    write_whole(&path, text.as_bytes())?;
    Ok(path)
}

/// Returns the facts about the nodes of a folder's runs, by role.
fn facts_by_role(folder: &Folder) -> Vec<(String, Vec<(String, String)>)> {
    nodes_of(folder)
        .into_iter()
        .map(|(role, facts)| {
            (
                role,
                flatten(&serde_json::to_value(&facts).unwrap_or_default()),
            )
        })
        .collect()
}

#[derive(Template)]
#[template(path = "comparison.html")]
struct ComparisonPage<'a> {
    found: &'a Comparisons,
    headings: [&'static str; 8],
    rows: Vec<([String; 8], bool)>,
    only: Vec<String>,
    lead: String,
}

/// Writes `comparison.html` and `comparison.json` into a folder.
///
/// # Errors
/// The files cannot be written.
pub fn write_comparison(found: &Comparisons, dir: &Path) -> Result<PathBuf, ExperimentError> {
    std::fs::create_dir_all(dir).map_err(ExperimentError::io(dir))?;
    write_json(&dir.join("comparison.json"), found)?;
    let rows: Vec<_> = found
        .metrics
        .iter()
        .map(|one| (one.cells(), one.finding == Finding::Differs))
        .collect();
    let only = ["A", "B"]
        .into_iter()
        .zip(&found.only_in)
        .flat_map(|(name, all)| {
            all.iter()
                .map(move |values| format!("only in {name}: {}", words(values)))
        })
        .collect();
    let page = ComparisonPage {
        found,
        headings: HEADINGS,
        lead: found.lead(),
        rows,
        only,
    };
    let path = dir.join("comparison.html");
    let text = page
        .render()
        .map_err(|e| ExperimentError::results(&path, e.to_string()))?;
    write_whole(&path, text.as_bytes())?;
    Ok(path)
}

fn judged(verdict: &Verdict) -> Judged<'_> {
    Judged {
        class: verdict.verdict.class(),
        value: verdict.value.map(plain).unwrap_or_default(),
        interval: verdict
            .spread()
            .map(|interval| interval.short(plain))
            .unwrap_or_default(),
        verdict,
    }
}

fn listed(run: &IndexedRun, variables: &[String]) -> Listed {
    Listed {
        id: run.id.clone(),
        values: variables
            .iter()
            .map(|name| run.variables.get(name).map(text_of).unwrap_or_default())
            .collect(),
        seconds: format!("{:.1}", run.seconds),
    }
}

pub(crate) fn schedule(experiment: &Experiment) -> String {
    let plan = &experiment.definition.plan;
    let order = match plan.order {
        crate::definition::Order::Interleaved => {
            "every combination once in an order drawn by the seed, then all again"
        }
        crate::definition::Order::Random => "all runs in an order drawn by the seed",
        crate::definition::Order::Sequential => {
            "all repetitions of one combination, then those of the next"
        }
    };
    format!(
        "{} combinations, {} repetitions{}; {order}; seed {}.",
        experiment.variants.len(),
        plan.repetitions,
        plan.until.as_ref().map_or_else(String::new, |until| format!(
            " at least, more until the 95 % interval of the median of {} is within {} % of it, at most {}",
            until.metric, until.within * 100.0, until.at_most
        )),
        plan.seed
    )
}
