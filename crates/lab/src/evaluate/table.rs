//! The final table: one row per device, for the terminal, for JSON and for the report.

use comfy_table::CellAlignment;
use serde::Serialize;
use taut_measure::{Interval, JitterSummary, Limit, Summary};

use taut_figure::table;
use taut_measure::quantity;
use taut_results::{Experiment, Kind, Transport};

use super::causes::Causes;
use super::{Device, Spread};

/// A device's results in numbers.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// The device's id.
    pub device_id: String,
    /// Its transport.
    pub transport: Transport,
    /// Its name.
    pub label: String,
    /// Forwarder or calibration.
    pub kind: Kind,
    /// Repetitions at the constant rate that are there.
    pub repetitions: u32,
    /// Repetitions planned.
    pub planned: u32,
    /// Rate asked for, mean over the repetitions, packets per second.
    pub offered_pps: Option<f64>,
    /// Rate received, mean over the repetitions, packets per second.
    pub received_pps: Option<f64>,
    /// Packets sent in all repetitions.
    pub sent: u64,
    /// Packets lost in all repetitions.
    pub lost: u64,
    /// Packets that the device did not take in all repetitions.
    pub refused: u64,
    /// Share of the packets offered that did not come back: lost on the way, or refused by a full ring.
    pub loss: Option<f64>,
    /// Round trips of all repetitions.
    pub latency: Option<Summary>,
    /// Mean of the repetitions' averages, and beside it the interval of their median, ns.
    pub avg_ns_interval: Option<Interval>,
    /// Jitter of all repetitions.
    pub jitter: Option<JitterSummary>,
    /// Highest loss-free rate over the repetitions, packets per second.
    pub loss_free_pps: Option<Spread>,
    /// What stopped the search for it.
    pub limited_by: String,
    /// Power at the constant rate, mean over the repetitions; none without a counter.
    pub watts: Option<f64>,
    /// Processor time of the device's processes per second, likewise.
    pub device_cpu_share: Option<f64>,
    /// Share of the time that the device's core was not idle, likewise.
    pub device_core_busy_share: Option<f64>,
    /// What the packets above the 99.9th percentile waited for.
    pub causes: Option<Causes>,
}

impl Row {
    /// True if not the device alone stood in the way of a higher loss-free rate.
    pub fn may_be_faster(&self) -> bool {
        self.loss_free_pps.is_some() && self.limited_by != limit_name(&Limit::Device)
    }
}

/// One row per device, in the devices' order.
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

/// Less than this of what was to be sent came back: what is left is no fair picture.
const LEAST_RECEIVED: f64 = 0.97;

/// What to say first of a comparison on a machine that others kept busy, or in which devices got less than was offered; no ratio is
/// worth stating then.
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

/// Columns of the table in the order in which a narrow terminal goes without them.
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

/// The table for a terminal so many columns wide, or for about 150; `-` where there is no data, `n/a` where there are too few
/// samples for a percentile.
pub fn render_text_table(rows: &[Row], width: Option<usize>) -> String {
    let mut table = table::plain();
    table.set_header([
        "",
        "device",
        "offered\npkt/s",
        "received\npkt/s",
        "loss",
        "\nmin",
        // On a column that always stays.
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

/// The highest loss-free rate; `>=` where not the device stood in the way of a higher one.
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
