//! The result table with one row per device, for the terminal, for JSON and for the report.

use comfy_table::CellAlignment;
use schemars::JsonSchema;
use serde::Serialize;
use taut_measure::{Interval, JitterSummary, Limit, Summary};

use taut_figure::table;
use taut_measure::quantity;
use taut_results::{Kind, Transport};

use super::{Device, Spread};
use taut_bench::evaluate::Causes;

/// The results of a device as numbers.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The device's id.
    pub device_id: String,
    /// Transport of frames to and from the device.
    pub transport: Transport,
    /// The device's name in tables.
    pub label: String,
    /// The kind of the device: forwarder or calibration.
    pub kind: Kind,
    /// Number of repetitions at the constant rate.
    pub repetitions: u32,
    /// Number of planned repetitions.
    pub planned: u32,
    /// Requested rate, mean over the repetitions, packets per second; none without data at the constant rate.
    pub offered_pps: Option<f64>,
    /// Received rate, mean over the repetitions, packets per second; none without data at the constant rate.
    pub received_pps: Option<f64>,
    /// Packets sent to the device in all repetitions.
    pub sent: u64,
    /// Packets that the device lost in all repetitions.
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
    /// Processor time of the device's processes, in seconds per second, mean over the repetitions; none without a
    /// counter.
    pub device_cpu_share: Option<f64>,
    /// Fraction of the time in which the device's core was not idle, mean over the repetitions; none without a counter.
    pub device_core_busy_share: Option<f64>,
    /// The causes of the packets above the 99.9th percentile; none without runs that logged interruptions.
    pub causes: Option<Causes>,
    /// Fraction of a core's time that other programs took, median over the repetitions, 0 to 1.
    pub taken_share: f64,
    /// The reason why means, maxima and rates of this row are not comparable; none if they are.
    pub disturbance: Option<String>,
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
        taken_share: device.taken(),
        disturbance: device.disturbance(),
    }
}

fn limit_name(limit: &Limit) -> &'static str {
    match limit {
        Limit::Device => "device",
        Limit::Generator => "generator",
        Limit::Range => "range",
    }
}

/// Returns one line for each device whose measurement was disturbed, with the reason; the table marks these devices
/// with a star.
pub fn disturbed_rows(rows: &[Row]) -> Vec<String> {
    let lines = rows.iter().filter_map(|row| {
        let reason = row.disturbance.as_ref()?;
        Some(format!(
            "* {} {}: {reason}",
            row.transport.name(),
            row.label
        ))
    });
    lines.collect()
}

/// A column of the result table.
struct Column {
    /// Name of the column in the note about omitted columns.
    name: &'static str,
    /// Heading of the column. The heading of a group of columns is on a column that is never omitted.
    heading: &'static str,
    /// Position in the order in which a narrow terminal omits columns, from 1; 0 for a column that stays.
    omitted: u8,
    /// Function that returns the text of the cell in a row.
    cell: fn(&Row) -> String,
}

/// The columns after the transport column, from left to right.
const COLUMNS: [Column; 15] = [
    column("device", "device", 0, |row| {
        let star = if row.disturbance.is_some() { " *" } else { "" };
        format!("{}{star}", row.label)
    }),
    column("offered", "offered\npkt/s", 6, |row| {
        short_rate(row.offered_pps)
    }),
    column("received", "received\npkt/s", 10, |row| {
        short_rate(row.received_pps)
    }),
    column("loss", "loss", 0, |row| {
        row.loss.map_or_else(missing, quantity::share)
    }),
    column("min", "\nmin", 8, |row| {
        of_latency(row, |it| quantity::time(it.min_ns as f64))
    }),
    column("avg", "latency\navg", 0, |row| {
        of_latency(row, |it| quantity::time(it.avg_ns))
    }),
    column("p50", "\np50", 9, |row| {
        of_latency(row, |it| percentile(it.p50_ns))
    }),
    column("p99", "\np99", 0, |row| {
        of_latency(row, |it| percentile(it.p99_ns))
    }),
    column("p99.9", "\np99.9", 5, |row| {
        of_latency(row, |it| percentile(it.p99_9_ns))
    }),
    column("p99.99", "\np99.99", 3, |row| {
        of_latency(row, |it| percentile(it.p99_99_ns))
    }),
    column("max", "\nmax", 0, |row| {
        of_latency(row, |it| quantity::time(it.max_ns as f64))
    }),
    column("std", "\nstd", 1, |row| {
        of_latency(row, |it| quantity::time(it.std_ns))
    }),
    column("average jitter", "jitter\navg", 4, |row| {
        let jitter = row.jitter.as_ref();
        jitter.map_or_else(missing, |it| quantity::time(it.avg_ns))
    }),
    column("maximum jitter", "\nmax", 2, |row| {
        let jitter = row.jitter.as_ref();
        jitter.map_or_else(missing, |it| quantity::time(it.max_ns as f64))
    }),
    column("loss-free", "loss-free\npkt/s", 0, loss_free),
];

const fn column(
    name: &'static str,
    heading: &'static str,
    omitted: u8,
    cell: fn(&Row) -> String,
) -> Column {
    Column {
        name,
        heading,
        omitted,
        cell,
    }
}

/// Name of the column of the transport, and its position in the order of omission.
const TRANSPORT: (&str, u8) = ("transport", 7);

/// Returns index and name of the columns that a narrow terminal may omit, in the order of omission.
fn least_important() -> Vec<(usize, &'static str)> {
    let others = COLUMNS.iter().enumerate();
    let others = others.map(|(index, column)| (column.omitted, index + 1, column.name));
    let mut all: Vec<_> = others
        .chain([(TRANSPORT.1, 0, TRANSPORT.0)])
        .filter(|(omitted, ..)| *omitted > 0)
        .collect();
    all.sort_unstable();
    all.into_iter()
        .map(|(_, index, name)| (index, name))
        .collect()
}

/// Returns the table for a terminal of `width` columns, by default about 150. It shows `-` if there is no data, and
/// `n/a` if there are too few samples for a percentile.
pub fn render_text_table(rows: &[Row], width: Option<usize>) -> String {
    let mut table = table::plain();
    table.set_header(std::iter::once("").chain(COLUMNS.iter().map(|column| column.heading)));
    let mut transport = None;
    for row in rows {
        let named = if transport == Some(row.transport) {
            ""
        } else {
            row.transport.name()
        };
        transport = Some(row.transport);
        let cells = COLUMNS.iter().map(|column| (column.cell)(row));
        table.add_row(std::iter::once(named.to_owned()).chain(cells));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
        // Transport and device are text, the others are numbers.
        if column.index >= 2 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table::text(table, &least_important(), width)
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

fn of_latency(row: &Row, show: fn(&Summary) -> String) -> String {
    row.latency.as_ref().map_or_else(missing, show)
}

fn percentile(value: Option<u64>) -> String {
    value.map_or_else(|| "n/a".to_owned(), |ns| quantity::time(ns as f64))
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
    fn the_standard_deviation_of_latency_is_printed_in_its_column() {
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
    fn disturbed_devices_have_a_star_and_a_reason() {
        let mut rows = made_up();
        assert!(disturbed_rows(&rows).is_empty());
        rows[0].disturbance = Some("2.2 % of a core went to other programs".to_owned());
        let text = render_text_table(&rows, None);
        assert_eq!(
            text.matches(&format!("{} *", rows[0].label)).count(),
            1,
            "{text}"
        );
        let lines = disturbed_rows(&rows);
        assert!(
            lines.len() == 1 && lines[0].ends_with("went to other programs"),
            "{lines:?}"
        );
    }

    #[test]
    fn narrow_tables_omit_the_deviation_column_and_report_the_omission() {
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
