//! Fills the page's template. All cells are formatted here, so the template contains only the layout.

use askama::Template;
use taut_host::EnergyUse;
use taut_measure::Summary;

use crate::evaluate::{Device, Evaluation, Ratio, Row, disturbed_rows};
use taut_bench::benchmark::Shell;
use taut_bench::report::{Drawn, ReportError};
use taut_figure::Style;
use taut_measure::quantity::{count, rate, ratio, share, three_digits, time};
use taut_results::{Experiment, Kind, Mode, Results};

use super::files::{Files, files};
use super::{causes, finding};

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    shell: Shell<'a>,
    experiment: &'a Experiment,
    tables: [Vec<ResultRow>; 2],
    ratios: Vec<RatioRow>,
    few_pairs: bool,
    cause_names: Vec<&'static str>,
    causes: Vec<(String, Vec<String>)>,
    published: Vec<PublishedRow>,
    quality: Vec<QualityRow>,
    energy: Vec<QualityRow>,
    devices: Vec<DeviceRow>,
    settings: Vec<(&'static str, String)>,
    ping_pong: Option<String>,
    clock_hz: String,
    clock_error: String,
    files: Vec<Files>,
}

struct ResultRow {
    colour: &'static str,
    transport: &'static str,
    label: String,
    note: String,
    cells: Vec<String>,
}

struct RatioRow {
    figure: String,
    what: String,
    median: String,
    interval: String,
    pairs: u64,
    published: String,
    withheld: Option<String>,
}

struct PublishedRow {
    forwarder: &'static str,
    published: [&'static str; 4],
    device: String,
    measured: [String; 4],
}

struct QualityRow {
    label: String,
    cells: Vec<String>,
}

struct DeviceRow {
    label: String,
    transport: &'static str,
    command: String,
    note: String,
}

const NOT_THERE: &str = "–";
const TOO_FEW: &str = "n/a";

/// Renders the page as HTML.
pub fn render(
    results: &Results,
    evaluation: &Evaluation,
    rows: &[Row],
    ratios: &[Ratio],
    figures: &[Drawn],
) -> Result<String, ReportError> {
    let experiment = &results.experiment;
    let of_kind = |kind: Kind| {
        let pairs = rows.iter().zip(&evaluation.devices);
        pairs
            .filter(|(row, _)| row.kind == kind)
            .map(|(row, device)| result_row(row, device))
            .collect()
    };
    let disturbed = disturbed_rows(rows);
    let page = Page {
        experiment,
        shell: Shell {
            finding: finding::sentences(&results.experiment, evaluation, ratios).join(" "),
            busy: (!disturbed.is_empty()).then(|| disturbed.join("; ")),
            subtitle: subtitle(experiment),
            ..Shell::of(
                &experiment.manifest,
                experiment.settings.mode,
                "runs",
                &evaluation.problems,
                figures,
            )
        },
        tables: [of_kind(Kind::Forwarder), of_kind(Kind::Calibration)],
        ratios: ratios
            .iter()
            .map(|ratio| ratio_row(ratio, evaluation))
            .collect(),
        few_pairs: ratios.iter().any(|ratio| ratio.found.count < 6),
        cause_names: taut_model::Cause::ALL.map(taut_model::Cause::name).into(),
        causes: causes::rows(evaluation),
        published: published(evaluation),
        quality: evaluation.devices.iter().map(quality_row).collect(),
        energy: evaluation.devices.iter().filter_map(energy_row).collect(),
        devices: evaluation.devices.iter().map(device_row).collect(),
        settings: settings(experiment),
        ping_pong: experiment.ping_pong.as_ref().map(|ping_pong| {
            format!(
                "{} (median of {} round trips)",
                time(ping_pong.p50_ns),
                count(ping_pong.count)
            )
        }),
        clock_hz: format!("{:.6} GHz", experiment.clock.hz / 1e9),
        clock_error: three_digits(experiment.clock.error_ppm),
        files: files(results),
    };
    Ok(page.render()?)
}

fn subtitle(experiment: &Experiment) -> String {
    let settings = &experiment.settings;
    format!(
        "{} · {}-byte UDP frames at {} constant rate, {} s, {} · taut {}",
        experiment.manifest.started,
        settings.frame_size_bytes,
        rate(settings.rate_pps),
        three_digits(settings.cbr_seconds),
        repetitions(settings.repetitions),
        experiment.manifest.taut_version
    )
}

fn repetitions(count: u32) -> String {
    format!(
        "{count} {}",
        if count == 1 {
            "repetition"
        } else {
            "interleaved repetitions"
        }
    )
}

fn settings(experiment: &Experiment) -> Vec<(&'static str, String)> {
    let settings = &experiment.settings;
    let mode = match settings.mode {
        Mode::Quick => "quick",
        Mode::Default => "default",
        Mode::Full => "full",
    };
    vec![
        ("lengths", mode.to_owned()),
        ("frame size", format!("{} bytes", settings.frame_size_bytes)),
        ("constant rate", rate(settings.rate_pps)),
        (
            "time at the constant rate",
            format!("{} s per repetition", three_digits(settings.cbr_seconds)),
        ),
        (
            "time per trial of the sweep",
            format!("{} s", three_digits(settings.trial_seconds)),
        ),
        ("repetitions", settings.repetitions.to_string()),
        ("seed", settings.seed.to_string()),
    ]
}

fn style_of(device: &Device) -> Style {
    if device.info.kind == Kind::Calibration {
        Style::reference()
    } else {
        Style::of(device.index)
    }
}

fn result_row(row: &Row, device: &Device) -> ResultRow {
    let mut cells = vec![
        cell(row.offered_pps.map(plain_rate)),
        cell(row.received_pps.map(plain_rate)),
        cell(row.loss.map(share)),
    ];
    cells.extend(latency_cells(row.latency.as_ref()));
    cells.push(cell(row.jitter.as_ref().map(|jitter| time(jitter.avg_ns))));
    cells.push(cell(
        row.jitter.as_ref().map(|jitter| time(jitter.max_ns as f64)),
    ));
    let at_least = if row.may_be_faster() { "≥ " } else { "" };
    cells
        .push(cell(row.loss_free_pps.map(|spread| {
            format!("{at_least}{}", plain_rate(spread.median))
        })));
    let note = match row.repetitions {
        0 => "no data".to_owned(),
        there if there < row.planned => format!("{there} of {} repetitions", row.planned),
        _ => String::new(),
    };
    ResultRow {
        colour: style_of(device).colour,
        transport: row.transport.name(),
        label: row.label.clone(),
        note,
        cells,
    }
}

/// Returns the cells min, avg, p50, p99, p99.9, p99.99, max, std.
fn latency_cells(latency: Option<&Summary>) -> Vec<String> {
    let Some(latency) = latency else {
        return vec![NOT_THERE.to_owned(); 8];
    };
    let percentile = |ns: Option<u64>| ns.map_or_else(|| TOO_FEW.to_owned(), |ns| time(ns as f64));
    vec![
        time(latency.min_ns as f64),
        time(latency.avg_ns),
        percentile(latency.p50_ns),
        percentile(latency.p99_ns),
        percentile(latency.p99_9_ns),
        percentile(latency.p99_99_ns),
        time(latency.max_ns as f64),
        time(latency.std_ns),
    ]
}

fn ratio_row(found: &Ratio, evaluation: &Evaluation) -> RatioRow {
    RatioRow {
        figure: found.figure.clone(),
        what: format!(
            "{} over {}",
            full_name(evaluation, &found.over),
            full_name(evaluation, &found.under)
        ),
        median: ratio(found.found.point),
        interval: found.found.short(ratio),
        pairs: found.found.count,
        published: cell(found.published.map(ratio)),
        withheld: found.withheld.clone(),
    }
}

fn full_name(evaluation: &Evaluation, id: &str) -> String {
    let device = evaluation
        .devices
        .iter()
        .find(|device| device.info.id == id);
    device.map_or_else(
        || id.to_owned(),
        |device| format!("{} ({})", device.info.label, device.info.transport.name()),
    )
}

/// Returns the latencies that Stylianopoulos et al. (DEBS 2020) published for forwarders, next to those of the most
/// similar devices in this experiment: mean, minimum, maximum, deviation.
fn published(evaluation: &Evaluation) -> Vec<PublishedRow> {
    let kin = |found: &dyn Fn(&Device) -> bool| {
        evaluation
            .devices
            .iter()
            .find(|device| device.info.kind == Kind::Forwarder && found(device))
    };
    let row = |forwarder, published, device: Option<&Device>| {
        let latency = device.and_then(Device::latency_summary);
        PublishedRow {
            forwarder,
            published,
            device: device.map_or_else(
                || "not measured".to_owned(),
                |device| full_name(evaluation, &device.info.id),
            ),
            measured: match latency {
                Some(latency) => [
                    latency.avg_ns,
                    latency.min_ns as f64,
                    latency.max_ns as f64,
                    latency.std_ns,
                ]
                .map(time),
                None => std::array::from_fn(|_| NOT_THERE.to_owned()),
            },
        }
    };
    vec![
        row(
            "Linux bridge",
            ["16.8 µs", "7.8 µs", "45.0 µs", "3.1 µs"],
            kin(&|device| device.info.io == "bridge"),
        ),
        row(
            "DPDK l2fwd, buffer of 32, drain timer",
            ["56.1 µs", "6.2 µs", "117 µs", "28.5 µs"],
            kin(&|device| crate::evaluate::policy(device) == Some("full")),
        ),
        row(
            "DPDK l2fwd, unbuffered",
            ["5.7 µs", "5.5 µs", "17.8 µs", "0.6 µs"],
            kin(&|device| crate::evaluate::policy(device) == Some("each")),
        ),
    ]
}

fn quality_row(device: &Device) -> QualityRow {
    let sum = |figure: fn(&taut_results::CbrResult) -> u64| -> String {
        if device.cbr.is_empty() {
            NOT_THERE.to_owned()
        } else {
            count(device.cbr.values().map(figure).sum())
        }
    };
    let send_delays = || {
        device
            .cbr
            .values()
            .filter_map(|cbr| cbr.send_delay.as_ref())
    };
    let worst = |values: Vec<u64>| cell(values.into_iter().max().map(|ns| time(ns as f64)));
    let intended = Summary::from_histogram(&device.latency_from_intended);
    let beyond = |figure: fn(&Summary) -> Option<u64>| {
        cell(intended.as_ref().and_then(figure).map(|ns| time(ns as f64)))
    };
    QualityRow {
        label: format!("{} ({})", device.info.label, device.info.transport.name()),
        cells: vec![
            sum(|cbr| cbr.sent),
            worst(
                send_delays()
                    .filter_map(|send_delay| send_delay.p50_ns)
                    .collect(),
            ),
            worst(
                send_delays()
                    .filter_map(|send_delay| send_delay.p99_ns)
                    .collect(),
            ),
            worst(send_delays().map(|send_delay| send_delay.max_ns).collect()),
            cell(intended.as_ref().map(|latency| time(latency.avg_ns))),
            beyond(|latency| latency.p99_ns),
            beyond(|latency| Some(latency.max_ns)),
            sum(|cbr| cbr.refused),
            sum(|cbr| cbr.duplicate),
            sum(|cbr| cbr.reordered),
            sum(|cbr| cbr.corrupt),
            sum(|cbr| cbr.foreign),
        ],
    }
}

/// Returns the row about a device's energy use; none for results without a measurement of energy.
fn energy_row(device: &Device) -> Option<QualityRow> {
    let source = &device
        .cbr
        .values()
        .find_map(|cbr| cbr.energy.as_ref())?
        .source;
    let watts = device.mean_energy(|used| used.watts);
    let mean_share =
        |figure: fn(&EnergyUse) -> Option<f64>| cell(device.mean_energy(figure).map(share));
    Some(QualityRow {
        label: format!("{} ({})", device.info.label, device.info.transport.name()),
        cells: vec![
            watts.map_or_else(
                || source.clone(),
                |w| format!("{} W, {source}", three_digits(w)),
            ),
            mean_share(|used| used.device_cpu_share),
            mean_share(|used| used.device_core_busy_share),
        ],
    })
}

fn device_row(device: &Device) -> DeviceRow {
    DeviceRow {
        label: device.info.label.clone(),
        transport: device.info.transport.name(),
        command: device.info.command.join(" "),
        note: device.info.note.clone(),
    }
}

fn plain_rate(pps: f64) -> String {
    rate(pps).replace("pkt/s", "").trim_end().to_owned()
}

fn cell(text: Option<String>) -> String {
    text.unwrap_or_else(|| NOT_THERE.to_owned())
}
