//! Evaluation of the runs: tables, figures, verdicts, and one tidy table of all metrics. All of it comes from what lies
//! in the results folder, and names the runs it comes from.

mod draw;
mod formula;
mod selection;
mod tidy;
mod verdict;

pub(crate) use draw::draw;
pub(crate) use formula::Formulas;
pub(crate) use selection::{Runs, key_of, number};
pub(crate) use verdict::verdict;
pub use verdict::{Verdict, VerdictKind};

use crate::error::ExperimentError;
use crate::experiment::Experiment;
use crate::folder::{Folder, IndexedRun, State};
use crate::replicate::Replication;
use crate::variables::text_of;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use taut_figure::table;
use taut_lab::report::LEAST_SENT;
use taut_measure::quantity::Quantity;
use taut_measure::{Interval, median_interval};
use taut_results::{write_json, write_whole};

/// Everything that a report shows.
#[derive(Debug, Serialize)]
pub struct Evaluation {
    /// Title of the experiment, one line.
    pub title: String,
    /// State: how far the experiment came.
    pub state: State,
    /// Verdicts: whether the published claims hold here.
    pub verdicts: Vec<Verdict>,
    /// Tables of the report.
    pub tables: Vec<Table>,
    /// Figures of the report.
    pub figures: Vec<Figure>,
    /// Problems: what could not be evaluated, one sentence each.
    pub problems: Vec<String>,
    /// Note of how many runs there were in which the generator sent less than it was asked for, and what to do; none if
    /// there were none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub behind: Option<String>,
    /// Comparison with the published results that it replicates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replication: Option<Replication>,
    /// Runs that all of it comes from.
    #[serde(skip)]
    runs: Runs,
}

/// A table: a row per combination, a column per metric.
#[derive(Debug, Serialize)]
pub struct Table {
    /// Name of its file.
    pub name: String,
    /// Heading of the table.
    pub title: String,
    /// The variables, then the metrics.
    pub columns: Vec<String>,
    /// Number of the columns that are variables.
    pub variables: usize,
    /// Rows of the table.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Serialize)]
pub struct Row {
    /// The values of the variables.
    pub of: Vec<String>,
    /// The metrics; `None` without a value in any run.
    pub cells: Vec<Option<Cell>>,
    /// The runs behind it.
    pub runs: Vec<String>,
}

/// A metric over some runs.
#[derive(Debug, Clone, Serialize)]
pub struct Cell {
    /// Median of the runs.
    pub median: f64,
    /// Interval of the median, which with fewer than six runs is their range; `None` of a single run.
    pub interval: Option<Interval>,
    /// The smallest and the largest.
    pub range: [f64; 2],
    /// Runs with a value.
    pub runs: usize,
    /// The cell as people read it.
    pub text: String,
    /// The interval, or the range, as people read it.
    pub spread: String,
}

/// A figure, drawn.
#[derive(Debug, Serialize)]
pub struct Figure {
    /// Name of its files.
    pub name: String,
    /// Heading of the figure.
    pub title: String,
    /// Note that a reader should know.
    pub caption: String,
    /// Drawing of the figure.
    #[serde(skip)]
    pub svg: String,
    /// Data of the figure as CSV, with the runs behind each line.
    #[serde(skip)]
    pub data: String,
    /// The runs behind it.
    pub runs: Vec<String>,
}

impl Evaluation {
    /// Evaluates what lies in a results folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn of(experiment: &Experiment, folder: &Folder) -> Result<Self, ExperimentError> {
        let state = folder.state()?;
        let runs = Runs::load(folder)?;
        let mut problems = Vec::new();
        if runs.is_empty() {
            problems.push("no run is whole yet: there is nothing to evaluate".to_owned());
        }
        let definition = &experiment.definition;
        let verdicts = if runs.is_empty() {
            Vec::new()
        } else {
            let formulas = Formulas::new(&runs, experiment);
            definition
                .claim
                .iter()
                .map(|claim| verdict(&formulas, claim))
                .collect()
        };
        let tables = definition
            .table
            .iter()
            .map(|table| make_table(experiment, table, &runs, &mut problems))
            .collect();
        let mut figures = Vec::new();
        for figure in &definition.figure {
            match draw(experiment, figure, &runs) {
                Ok(drawn) => figures.push(drawn),
                Err(reason) => problems.push(format!("figure {}: {reason}", figure.name)),
            }
        }
        Ok(Self {
            title: definition.title.clone(),
            state,
            verdicts,
            tables,
            figures,
            problems,
            behind: behind(&runs),
            replication: if runs.is_empty() {
                None
            } else {
                Replication::of(folder.path())?
            },
            runs,
        })
    }

    /// Writes `summary.json`, `metrics.csv`, `metrics.parquet`, `tables/` and `figures/` into the folder.
    ///
    /// # Errors
    /// They cannot be written.
    pub fn write(&self, folder: &Folder) -> Result<(), ExperimentError> {
        let dir = folder.path();
        tidy::write(dir, &self.runs)?;
        write_json(&dir.join("summary.json"), self)?;
        if !self.tables.is_empty() {
            let tables = folder.made("tables")?;
            for table in &self.tables {
                write_whole(
                    &tables.join(format!("{}.csv", table.name)),
                    table.csv().as_bytes(),
                )?;
            }
        }
        if !self.figures.is_empty() {
            let figures = folder.made("figures")?;
            for figure in &self.figures {
                write_whole(
                    &figures.join(format!("{}.svg", figure.name)),
                    figure.svg.as_bytes(),
                )?;
                write_whole(
                    &figures.join(format!("{}.csv", figure.name)),
                    figure.data.as_bytes(),
                )?;
            }
        }
        Ok(())
    }
}

impl Table {
    /// The table for a terminal.
    pub fn text(&self) -> String {
        let mut table = table::plain();
        table.set_header(&self.columns);
        for row in &self.rows {
            let cells = row.cells.iter().map(|cell| match cell {
                Some(cell) => format!("{} ({})", cell.text, cell.spread),
                None => "-".to_owned(),
            });
            table.add_row(row.of.iter().cloned().chain(cells));
        }
        let title = if self.title.is_empty() {
            &self.name
        } else {
            &self.title
        };
        // The metrics from the last one on; what they are of stays.
        let of = self.rows.first().map_or(0, |row| row.of.len());
        let columns = self.columns.iter().map(String::as_str).enumerate();
        let least_important: Vec<_> = columns.skip(of + 1).collect();
        let order: Vec<_> = least_important.into_iter().rev().collect();
        format!(
            "{title}\n{}",
            table::text(table, &order, table::terminal_width())
        )
    }

    pub(crate) fn csv(&self) -> String {
        let mut lines = Vec::new();
        let metrics = &self.columns[self.variables..];
        let head = self.columns[..self.variables].iter().cloned().chain(
            metrics
                .iter()
                .flat_map(|name| ["", ".low", ".high", ".runs"].map(|end| format!("{name}{end}"))),
        );
        lines.push(csv_line(head.chain(["runs".to_owned()])));
        for row in &self.rows {
            let cells = row.cells.iter().flat_map(|cell| match cell {
                Some(cell) => {
                    let [low, high] = cell
                        .interval
                        .as_ref()
                        .map_or(cell.range, |i| [i.low, i.high]);
                    [
                        cell.median.to_string(),
                        low.to_string(),
                        high.to_string(),
                        cell.runs.to_string(),
                    ]
                }
                None => [String::new(), String::new(), String::new(), "0".to_owned()],
            });
            lines.push(csv_line(
                row.of
                    .iter()
                    .cloned()
                    .chain(cells)
                    .chain([row.runs.join(" ")]),
            ));
        }
        lines.concat()
    }
}

fn behind(runs: &Runs) -> Option<String> {
    let is_behind = |run: &&IndexedRun| {
        run.metrics.iter().any(|(name, asked)| {
            let prefix = name.strip_suffix("asked_pps");
            let sent = prefix.and_then(|prefix| run.metrics.get(&format!("{prefix}sent_pps")));
            sent.is_some_and(|sent| *sent < LEAST_SENT * asked)
        })
    };
    let count = runs.runs.iter().filter(is_behind).count();
    (count > 0).then(|| {
        format!(
            "In {count} of {} runs less than 97 % of the asked rate was sent: the machine kept the generator from its core, or no \
             generator here is as fast. What these runs say of the device is not to be trusted, nor what is concluded from them. Stop \
             what else runs, or ask for less, and make them again.",
            runs.runs.len()
        )
    })
}

fn make_table(
    experiment: &Experiment,
    table: &crate::definition::TableDefinition,
    runs: &Runs,
    problems: &mut Vec<String>,
) -> Table {
    let rows: Vec<String> = if table.rows.is_empty() {
        experiment.loop_names()
    } else {
        table.rows.iter().map(|row| row.get_ref().clone()).collect()
    };
    let metrics: Vec<&str> = table
        .metrics
        .iter()
        .map(|metric| metric.get_ref().as_str())
        .collect();
    for metric in &metrics {
        if !runs.is_empty() && runs.values(metric).next().is_none() {
            problems.push(format!("table {}: {}", table.name, runs.no_metric(metric)));
        }
    }
    Table {
        name: table.name.clone(),
        title: table.title.clone(),
        columns: rows
            .iter()
            .cloned()
            .chain(metrics.iter().map(|metric| (*metric).to_owned()))
            .collect(),
        variables: rows.len(),
        rows: runs
            .groups(&rows)
            .into_iter()
            .map(|group| Row {
                cells: metrics
                    .iter()
                    .map(|metric| cell(&runs.values_of(&group, metric), metric))
                    .collect(),
                runs: runs.ids(&group),
                of: group.of.iter().map(text_of).collect(),
            })
            .collect(),
    }
}

fn cell(values: &[f64], metric: &str) -> Option<Cell> {
    let interval = median_interval(values, 0.95)?;
    let quantity = quantity_of(metric);
    Some(Cell {
        median: interval.point,
        range: [
            values.iter().copied().reduce(f64::min)?,
            values.iter().copied().reduce(f64::max)?,
        ],
        runs: values.len(),
        text: quantity.text(interval.point),
        spread: interval.short(|value| quantity.text(value)),
        interval: (values.len() > 1).then_some(interval),
    })
}

/// Returns what a metric is, by the unit at the end of its name.
pub(crate) fn quantity_of(metric: &str) -> Quantity {
    // An estimate's value and the ends of its interval have the unit of what is estimated.
    let is_part = |name: &&str| ["point", "low", "high", "median"].contains(name);
    let last = metric
        .rsplit('.')
        .find(|name| !is_part(name))
        .unwrap_or(metric);
    match () {
        () if last.ends_with("_ns2") => Quantity::SquaredNs,
        () if last.ends_with("_ns") || last == "ns" => Quantity::TimeNs,
        () if metric.contains("_pps") || last == "rate" => Quantity::RatePps,
        () if last.ends_with("_share") || last == "loss" => Quantity::Share,
        () if last.ends_with("_bytes") => Quantity::Bytes,
        () if last.ends_with("_cycles") => Quantity::Cycles,
        () => Quantity::Number,
    }
}

/// A line of a CSV file.
pub(crate) fn csv_line(fields: impl IntoIterator<Item = String>) -> String {
    let mut line = csv::Writer::from_writer(Vec::new());
    // Writing to memory does not fail.
    let _ = line.write_record(fields);
    String::from_utf8(line.into_inner().unwrap_or_default()).unwrap_or_default()
}

impl Experiment {
    /// Names of the loop variables, in the order of the file.
    pub(crate) fn loop_names(&self) -> Vec<String> {
        self.variants
            .first()
            .map(|variant| variant.loops.keys().cloned().collect())
            .unwrap_or_default()
    }
}

/// Evaluates a results folder and writes what comes of it, with its report; the page's path is returned too.
///
/// # Errors
/// The folder cannot be read or written.
pub fn evaluate(dir: &Path) -> Result<(Evaluation, std::path::PathBuf), ExperimentError> {
    let folder = Folder::open(dir)?;
    let experiment = folder.experiment()?;
    let evaluation = Evaluation::of(&experiment, &folder)?;
    // What is published stays as it is.
    if evaluation.state.published.is_some() {
        return Ok((evaluation, dir.join("index.html")));
    }
    evaluation.write(&folder)?;
    let page = crate::page::write(&experiment, &folder, &evaluation)?;
    Ok((evaluation, page))
}

/// Facts of the nodes, by role, from the latest run that has them.
pub(crate) fn nodes_of(folder: &Folder) -> BTreeMap<String, crate::agent::Facts> {
    let Some(run) = folder.index().ok().and_then(|mut runs| runs.pop()) else {
        return BTreeMap::new();
    };
    let Ok(record) = folder.run(&run.id) else {
        return BTreeMap::new();
    };
    record
        .nodes
        .iter()
        .filter_map(|(role, name)| Some((role.clone(), folder.facts(name).ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_metric_is_stands_at_the_end_of_its_name() {
        for (metric, quantity) in [
            ("latency_ns.p50_ns", Quantity::TimeNs),
            ("gateway.sizes.0.latency.0.quantiles.0.ns", Quantity::TimeNs),
            ("time.columns", Quantity::Number),
            ("squared_error_ns2", Quantity::SquaredNs),
            ("probe.rtt_mean_ns.point", Quantity::TimeNs),
            ("sizes.0.throughput.mean_pps", Quantity::RatePps),
            ("latency.0.loss", Quantity::Share),
        ] {
            assert_eq!(quantity_of(metric), quantity, "{metric}");
        }
    }
}
