//! Tables that are computed from runs: a row per combination, a column per metric.

use super::selection::Runs;
use crate::build::{BUILD, is_base};
use crate::definition::TableDefinition;
use crate::experiment::Experiment;
use crate::variables::text_of;
use schemars::JsonSchema;
use serde::Serialize;
use taut_figure::table;
use taut_measure::quantity::Quantity;
use taut_measure::{Interval, median_interval};

/// A table: a row per combination, a column per metric.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Table {
    /// Name of the table's file, without extension.
    pub name: String,
    /// Heading of the table.
    pub title: String,
    /// Headings of the columns: variables first, then metrics.
    pub columns: Vec<String>,
    /// Number of leading columns that are variables.
    pub variables: usize,
    /// Rows of the table.
    pub rows: Vec<Row>,
}

/// A row of a table.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Row {
    /// Values of the variables, as text.
    pub of: Vec<String>,
    /// Values of the metrics; `None` for a metric that no run has.
    pub cells: Vec<Option<Cell>>,
    /// Names of the runs from which the row was computed.
    pub runs: Vec<String>,
}

/// A metric summarised over several runs.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Cell {
    /// Median of the metric over the runs.
    pub median: f64,
    /// Confidence interval of the median; with fewer than six runs, the range of the values. `None` for one run.
    pub interval: Option<Interval>,
    /// The smallest and the largest value of the metric over the runs.
    pub range: [f64; 2],
    /// Number of runs that have a value of the metric.
    pub runs: usize,
    /// Median and confidence interval as text.
    pub text: String,
    /// The confidence interval as text, or the range of the values with fewer than six runs.
    pub spread: String,
}

impl Table {
    /// Returns the table as text for a terminal.
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
        // If the table is too wide, metrics are removed, the last one first; the variables and the first metric stay.
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

pub(super) fn make_table(
    experiment: &Experiment,
    table: &TableDefinition,
    runs: &Runs,
    problems: &mut Vec<String>,
) -> Table {
    let rows: Vec<String> = if table.rows.is_empty() {
        experiment.loop_names()
    } else {
        table.rows.iter().map(|row| row.get_ref().clone()).collect()
    };
    // A table that does not distinguish the two builds shows only the runs by the head.
    let head_only = experiment.against.is_some() && !rows.iter().any(|name| name == BUILD);
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
            .groups_where(&rows, |run| !head_only || !is_base(&run.variables))
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

/// Returns the physical quantity of a metric, derived from the unit at the end of its name.
pub(crate) fn quantity_of(metric: &str) -> Quantity {
    // The name of an estimate's value or bound ends in `point`, `low`, `high` or `median`. Its unit is at the end of
    // the part before.
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

/// Returns a line of a CSV file.
pub(crate) fn csv_line(fields: impl IntoIterator<Item = String>) -> String {
    let mut line = csv::Writer::from_writer(Vec::new());
    // Writing to memory cannot fail.
    let _ = line.write_record(fields);
    String::from_utf8(line.into_inner().unwrap_or_default()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_suffix_of_a_metric_name_determines_its_quantity() {
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
