//! The report of a results folder of this benchmark.

use super::evaluate::{Evaluation, PortModel};
use super::{Costs, Results};
use crate::benchmark::tables::{self, Table, plain};
use crate::report::ReportError;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_measure::quantity::{rate, share, three_digits};
use taut_results::write_whole;

/// `summary.json`.
#[derive(Serialize)]
struct Summary<'a> {
    tsc_hz: f64,
    ports: &'a [PortModel],
    left_out: &'a [taut_results::LeftOut],
    problems: &'a [String],
}

/// Writes the report into the results folder `dir`.
///
/// # Errors
/// When the folder cannot be written.
pub(super) fn write(dir: &Path, results: &Results) -> Result<PathBuf, ReportError> {
    let evaluation = Evaluation::of(results);
    let summary = Summary {
        tsc_hz: results.head.tsc_hz,
        ports: &evaluation.ports,
        left_out: &results.head.manifest.left_out,
        problems: &results.problems,
    };
    write_models(dir, &evaluation.ports)?;
    write_whole(&dir.join("runs.csv"), runs(results).as_bytes())?;
    tables::report::<Costs>(
        dir,
        results,
        &summary,
        ("", ""),
        &all_tables(&evaluation),
        &[],
    )
}

/// The tables, for a terminal.
pub(super) fn text(results: &Results, width: Option<usize>) -> String {
    tables::text(&all_tables(&Evaluation::of(results)), width)
}

/// The runs as `taut model fit` reads them, in the order of their points.
fn runs(results: &Results) -> String {
    let mut trials: Vec<_> = results.outcomes.iter().collect();
    trials.sort_by(|a, b| (&a.port, a.number).cmp(&(&b.port, b.number)));
    let mut text =
        "ports,load_cycles,functions,frame_bytes,batch,line_cycles,cycles,pps\n".to_owned();
    for trial in trials {
        let point = trial.point;
        text += &format!(
            "{},{},{},{},{},{},{},{}\n",
            trial.port,
            point.load_cycles,
            point.functions,
            point.frame_bytes,
            trial.batch,
            trial.line().map_or(String::new(), |line| line.to_string()),
            trial.cycles,
            trial.rate_pps
        );
    }
    text
}

/// Writes the models that there are as `models/PORT.toml`.
fn write_models(dir: &Path, ports: &[PortModel]) -> Result<(), ReportError> {
    let folder = dir.join("models");
    std::fs::create_dir_all(&folder).map_err(taut_results::ResultsError::io(folder.clone()))?;
    for port in ports {
        if let Some(text) = port.model.as_ref().and_then(|m| toml::to_string(m).ok()) {
            let path = folder.join(format!("{}.toml", port.port));
            write_whole(&path, text.as_bytes())?;
        }
    }
    Ok(())
}

fn all_tables(evaluation: &Evaluation<'_>) -> Vec<Table> {
    vec![errors_table(evaluation), terms_table(evaluation)]
}

fn errors_table(evaluation: &Evaluation<'_>) -> Table {
    let row = |port: &PortModel| {
        let error = |of: fn(&taut_model::Errors) -> f64| {
            plain(
                port.held_out
                    .as_ref()
                    .map_or("–".to_owned(), |e| share(of(e))),
            )
        };
        vec![
            plain(port.port.clone()),
            plain(port.runs.to_string()),
            plain(port.generator_bound.to_string()),
            plain(rate(port.highest_pps)),
            plain(share(port.interrupted)),
            error(|e| e.median),
            error(|e| e.p95),
            plain(format!("≤ {}", share(port.goal))),
            plain(match (port.meets_goal, &port.no_model) {
                (Some(true), _) => "met".to_owned(),
                (Some(false), _) => "missed".to_owned(),
                (None, Some(why)) => format!("no model: {why}"),
                (None, None) => "nothing held out".to_owned(),
            }),
        ]
    };
    Table {
        title: "Errors on held-out runs".to_owned(),
        head: [
            "port",
            "runs",
            "generator-bound",
            "highest rate",
            "interrupted",
            "median error",
            "p95",
            "goal",
            "verdict",
        ]
        .map(str::to_owned)
        .to_vec(),
        rows: evaluation.ports.iter().map(row).collect(),
        least_important: vec![4, 3, 2],
        ..Table::default()
    }
}

fn terms_table(evaluation: &Evaluation<'_>) -> Table {
    let of_port = |port: &PortModel| {
        let id = port.port.clone();
        let row = move |term: &super::evaluate::TermRow| {
            vec![
                plain(id.clone()),
                plain(term.name.clone()),
                [
                    three_digits(term.value),
                    format!("{} to {}", three_digits(term.low), three_digits(term.high)),
                ],
                plain(term.unit.clone()),
            ]
        };
        port.terms.iter().map(row).collect::<Vec<_>>()
    };
    Table {
        title: "Models".to_owned(),
        head: ["port", "term", "cycles", "unit"]
            .map(str::to_owned)
            .to_vec(),
        rows: evaluation.ports.iter().flat_map(of_port).collect(),
        ..Table::default()
    }
}
