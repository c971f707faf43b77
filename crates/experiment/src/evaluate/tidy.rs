//! Tidy tables with one row per run and metric, for any tool that reads tables: `metrics.csv` and `metrics.parquet`.

use super::selection::Runs;
use crate::error::ExperimentError;
use crate::variables::text_of;
use serde_json::Value;
use std::path::Path;
use taut_results::{Cells, write_table, write_whole_with};

/// Writes `metrics.csv` and `metrics.parquet` into a folder.
pub(crate) fn write(dir: &Path, runs: &Runs) -> Result<(), ExperimentError> {
    let names: Vec<String> = runs
        .runs
        .first()
        .map(|run| run.variables.keys().cloned().collect())
        .unwrap_or_default();
    write_csv(dir, runs, &names)?;
    write_parquet(dir, runs, &names)
}

fn write_csv(dir: &Path, runs: &Runs, names: &[String]) -> Result<(), ExperimentError> {
    let write = |file| {
        let mut out = csv::Writer::from_writer(file);
        let names_of = names.iter().map(String::as_str);
        let head = ["run", "repetition"].into_iter().chain(names_of);
        out.write_record(head.chain(["metric", "value"]))?;
        for run in &runs.runs {
            let mut start = vec![run.id.clone(), run.repetition.to_string()];
            start.extend(
                names
                    .iter()
                    .map(|name| run.variables.get(name).map(text_of).unwrap_or_default()),
            );
            for (metric, value) in &run.metrics {
                out.write_record(start.iter().chain([metric, &value.to_string()]))?;
            }
        }
        out.flush()
    };
    Ok(write_whole_with(&dir.join("metrics.csv"), write)?)
}

fn write_parquet(dir: &Path, runs: &Runs, names: &[String]) -> Result<(), ExperimentError> {
    let rows = || {
        runs.runs
            .iter()
            .flat_map(|run| run.metrics.iter().map(move |metric| (run, metric)))
    };
    let texts = |of: &dyn Fn(&crate::folder::IndexedRun) -> String| {
        Cells::Text(rows().map(|(run, _)| of(run)).collect())
    };
    let mut columns = vec![
        ("run".to_owned(), texts(&|run| run.id.clone())),
        (
            "repetition".to_owned(),
            Cells::Number(rows().map(|(run, _)| f64::from(run.repetition)).collect()),
        ),
    ];
    for name in names {
        let numeric = runs
            .runs
            .iter()
            .all(|run| run.variables.get(name).is_some_and(Value::is_number));
        let cells = if numeric {
            let of =
                |run: &crate::folder::IndexedRun| run.variables[name].as_f64().unwrap_or(f64::NAN);
            Cells::Number(rows().map(|(run, _)| of(run)).collect())
        } else {
            texts(&|run| run.variables.get(name).map(text_of).unwrap_or_default())
        };
        columns.push((name.clone(), cells));
    }
    columns.push((
        "metric".to_owned(),
        Cells::Text(rows().map(|(_, (name, _))| name.clone()).collect()),
    ));
    columns.push((
        "value".to_owned(),
        Cells::Number(rows().map(|(_, (_, value))| *value).collect()),
    ));
    Ok(write_table(&dir.join("metrics.parquet"), &columns)?)
}
