//! The result table with one row per device, for the terminal, for JSON and for the report.

use comfy_table::CellAlignment;
use serde::Serialize;
use taut_measure::{Interval, JitterSummary, Limit, Summary};

use taut_figure::table;
use taut_measure::quantity;
use taut_results::{Experiment, Kind, Transport};

use super::causes::Causes;
use super::{Device, Spread};

/// The results of a device as numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The device's id.
    pub device_id: String,
    /// Transport of the device's frames.
    pub transport: Transport,
    /// The device's name in tables.
    pub label: String,
    /// The kind of the device: forwarder or calibration.
    pub kind: Kind,
    /// Number of repetitions at the constant rate.
    pub repetitions: u32,
    /// Repetitions planned.
    pub planned: u32,
    /// Requested rate, mean over the repetitions, packets per second; none without data at the constant rate.
    pub offered_pps: Option<f64>,
    /// Received rate, mean over the repetitions, packets per second; none without data at the constant rate.
    pub received_pps: Option<f64>,
    /// Packets sent in all repetitions.
    pub sent: u64,
    /// Packets lost in all repetitions.
    pub lost: u64,
    /// Packets that the device refused in all repetitions.
    pub refused: u64,
    /// Fraction of the offered packets that did not come back (lost, or refused by a full ring); none if no packet was
    /// offered.
    pub loss: Option<f64>,
    /// Latency of all repetitions; none if no repetition measured it.
    pub latency: Option<Summary>,
    /// Estimate from the repetitions' mean latencies, ns: their mean, and the confidence interval of their median. None
    /// without latencies.
    pub avg_ns_interval: Option<Interval>,
    /// Jitter of all repetitions; none without samples.
    pub jitter: Option<JitterSummary>,
    /// Highest loss-free rate over the repetitions, packets per second; none without a search.
    pub loss_free_pps: Option<Spread>,
    /// The reasons that ended the searches for the highest loss-free rate, each once, separated by commas; empty
    /// without a search.
    pub limited_by: String,
    /// Power at the constant rate, mean over the repetitions; none without a counter.
    pub watts: Option<f64>,
    /// Processor time of the device's processes per second, mean over the repetitions; none without a counter.
    pub device_cpu_share: Option<f64>,
    /// Fraction of the time in which the device's core was not idle, mean over the repetitions; none without a counter.
    pub device_core_busy_share: Option<f64>,
    /// The causes of the packets above the 99.9th percentile; none without runs that logged interruptions.
    pub causes: Option<Causes>,
}

impl Row {
    /// Returns true if something other than the device alone limited the loss-free rate.
    pub fn may_be_faster(&self) -> bool {
        self.loss_free_pps.is_some() && self.limited_by != limit_name(&Limit::Device)
    }
}

/// Returns one row per device, in their order.
pub fn rows(devices: &[Device]) -> Vec<Row> {
    devices.iter().map(row).collect()
}

fn row(device: &Device) -> Row {
    let sum =
        |figure: fn(&taut_results::CbrResult) -> u64| device.cbr.values().map(figure).sum::<u64>();
    let mean = |figure: fn(&taut_results::CbrResult) -> f64| {
        let total: f64 = device.cbr.values().map(figure).sum();
        (!device.cbr.is_empty()).then(|| total / device.cbr.len() as f64)
    };
    let (sent, lost) = (sum(|cbr| cbr.sent), sum(|cbr| cbr.lost));
    let refused = sum(|cbr| cbr.refused);
    Row {
        device_id: device.info.id.clone(),
        transport: device.info.transport,
        label: device.info.label.clone(),
        kind: device.info.kind,
        repetitions: device.cbr.len() as u32,
        planned: device.planned,
        offered_pps: mean(|cbr| cbr.offered_pps),
        received_pps: mean(|cbr| cbr.received_pps),
        sent,
        lost,
        refused,
        loss: (sent + refused > 0).then(|| (lost + refused) as f64 / (sent + refused) as f64),
        latency: device.latency_summary(),
        avg_ns_interval: device.average_interval(),
        jitter: device.jitter_summary(),
        loss_free_pps: device.loss_free_spread(),
        limited_by: device
            .limited_by
            .iter()
            .map(limit_name)
            .collect::<Vec<_>>()
            .join(", "),
        watts: device.mean_energy(|used| used.watts),
        device_cpu_share: device.mean_energy(|used| used.device_cpu_share),
        device_core_busy_share: device.mean_energy(|used| used.device_core_busy_share),
        causes: device.causes.clone(),
    }
}

fn limit_name(limit: &Limit) -> &'static str {
    match limit {
        Limit::Device => "device",
        Limit::Generator => "generator",
        Limit::Range => "range",
    }
}

/// Minimum fraction of the scheduled packets that must come back for a fair comparison.
const LEAST_RECEIVED: f64 = 0.97;

/// Returns the warning that ratios have no meaning, because the machine was busy or devices received less than was
/// offered; none if neither is the case.
pub fn busy(experiment: &Experiment, rows: &[Row]) -> Option<String> {
    taut_results::busy(&experiment.manifest.noise).or_else(|| {
        let short = |row: &&Row| {
            let received = row.received_pps.zip(row.offered_pps);
            received.is_some_and(|(received, offered)| received < LEAST_RECEIVED * offered)
        };
        let row = rows.iter().find(short)?;
        let lost = row.loss.unwrap_or_default();
        Some(format!(
            "{} received {} of {} offered ({} lost on the way, the rest was never sent in time): what it took is not comparable. Stop what \
             else runs, or offer less (--rate).",
            row.label,
            quantity::rate(row.received_pps.unwrap_or_default()),
            quantity::rate(row.offered_pps.unwrap_or_default()),
            quantity::share(lost),
        ))
    })
}

/// Columns of the table in the order in which a narrow terminal omits them. A new column shifts the indices here and in
/// `render_text_table`.
const LEAST_IMPORTANT: [(usize, &str); 10] = [
    (12, "std"),
    (14, "maximum jitter"),
    (10, "p99.99"),
    (13, "average jitter"),
    (9, "p99.9"),
    (2, "offered"),
    (0, "transport"),
    (5, "min"),
    (7, "p50"),
    (3, "received"),
];

/// Returns the table for a terminal of `width` columns, by default about 150. It shows `-` if there is no data, and
/// `n/a` if there are too few samples for a percentile.
pub fn render_text_table(rows: &[Row], width: Option<usize>) -> String {
    let mut table = table::plain();
    table.set_header([
        "",
        "device",
        "offered\npkt/s",
        "received\npkt/s",
        "loss",
        "\nmin",
        // The heading of the group is on a column that is never omitted.
        "latency\navg",
        "\np50",
        "\np99",
        "\np99.9",
        "\np99.99",
        "\nmax",
        "\nstd",
        "jitter\navg",
        "\nmax",
        "loss-free\npkt/s",
    ]);
    let mut transport = None;
    for row in rows {
        let named = if transport == Some(row.transport) {
            ""
        } else {
            row.transport.name()
        };
        transport = Some(row.transport);
        let mut cells = vec![named.to_owned(), row.label.clone()];
        cells.extend([row.offered_pps, row.received_pps].map(short_rate));
        cells.push(row.loss.map_or_else(missing, quantity::share));
        cells.extend(latency_cells(row.latency.as_ref()));
        cells.push(
            row.jitter
                .as_ref()
                .map_or_else(missing, |jitter| quantity::time(jitter.avg_ns)),
        );
        cells.push(
            row.jitter
                .as_ref()
                .map_or_else(missing, |jitter| quantity::time(jitter.max_ns as f64)),
        );
        cells.push(loss_free(row));
        table.add_row(cells);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
        if (2..=15).contains(&column.index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table::text(table, &LEAST_IMPORTANT, width)
}

/// Returns the highest loss-free rate, with `>=` if something other than the device limited it.
fn loss_free(row: &Row) -> String {
    let rate = short_rate(row.loss_free_pps.map(|spread| spread.median));
    if row.may_be_faster() {
        format!(">= {rate}")
    } else {
        rate
    }
}

fn latency_cells(latency: Option<&Summary>) -> [String; 8] {
    let Some(latency) = latency else {
        return std::array::from_fn(|_| missing());
    };
    let percentile =
        |value: Option<u64>| value.map_or_else(|| "n/a".to_owned(), |ns| quantity::time(ns as f64));
    [
        quantity::time(latency.min_ns as f64),
        quantity::time(latency.avg_ns),
        percentile(latency.p50_ns),
        percentile(latency.p99_ns),
        percentile(latency.p99_9_ns),
        percentile(latency.p99_99_ns),
        quantity::time(latency.max_ns as f64),
        quantity::time(latency.std_ns),
    ]
}

fn short_rate(pps: Option<f64>) -> String {
    // The header names the unit.
    pps.map_or_else(missing, |pps| {
        quantity::rate(pps)
            .replace("pkt/s", "")
            .trim_end()
            .to_owned()
    })
}

fn missing() -> String {
    "-".to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::evaluate::Evaluation;
    use crate::synthetic::{self, SMALL};
    use taut_results::Results;

    fn made_up() -> Vec<Row> {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("made-up");
        synthetic::write(&dir, &SMALL);
        rows(&Evaluation::of(&Results::load(&dir).unwrap()).devices)
    }

    fn words(text: &str) -> String {
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn the_deviation_of_the_latency_is_under_its_heading() {
        let rows = made_up();
        let text = render_text_table(&rows, None);
        let lines: Vec<String> = text.lines().map(words).collect();
        assert!(lines[1].contains("p99.99 max std avg max"), "{text}");
        assert_eq!(lines.len(), 2 + rows.len(), "{text}");
        for (row, line) in rows.iter().zip(&lines[2..]) {
            let (latency, jitter) = (row.latency.as_ref().unwrap(), row.jitter.as_ref().unwrap());
            let cells = [latency.max_ns as f64, latency.std_ns, jitter.avg_ns].map(quantity::time);
            assert!(line.contains(&words(&cells.join(" "))), "{cells:?}: {line}");
        }
    }

    #[test]
    fn a_narrow_terminal_omits_the_deviation_first_and_says_so() {
        let rows = made_up();
        let wide = render_text_table(&rows, None);
        let widest = wide.lines().map(|line| line.chars().count()).max().unwrap();
        let narrow = render_text_table(&rows, Some(widest - 1));
        let heading = words(narrow.lines().nth(1).unwrap());
        assert!(!heading.contains("std"), "{narrow}");
        assert!(
            narrow.contains("(left out for want of width: std"),
            "{narrow}"
        );
    }
}
