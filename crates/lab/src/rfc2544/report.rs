//! The report of the benchmarks: a self-contained page, an SVG file per figure and the summary in JSON,
//! all made from what lies in the folder.

use super::evaluate::{
    DEVICE_ONLY, Evaluation, InsideRow, LossRow, Missed, QUANTILES, SizeRow, beside, gigabits,
    percentile, render_text,
};
use super::results::{Part, Results, Soak, SoakInterval};
use crate::benchmark::{Shell, Shown, publish};
use crate::report::{Drawn, ReportError, causes};
use askama::Template;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_figure::curves::{self, Curve, Extent, Figure, Part as PanelPart, Point};
use taut_figure::{Chart, Column, Distribution, Item, Scale, Series, Style, percentiles, timeline};
use taut_measure::quantity::{Quantity, count, rate, share, three_digits, time};
use taut_measure::{BURST_PRECISION, Method};
use taut_model::Cause;
use taut_results::Stage;

/// Frame sizes whose latencies are drawn.
const DRAWN_SIZES: usize = 3;

/// Intervals of a soak that are drawn one by one; more are put together.
const DRAWN_INTERVALS: usize = 400;

/// `summary.json`.
#[derive(Serialize)]
struct Summary<'a> {
    device: &'a str,
    stage: Stage,
    sizes: &'a [SizeRow],
    soak: Option<&'a Soak>,
    limits_missed: &'a [Missed],
    warnings: &'a [String],
    problems: &'a [String],
}

/// A cell and what stands small below it.
type Cell = [String; 2];

#[derive(Template)]
#[template(path = "rfc2544.html")]
struct Page<'a> {
    shell: Shell<'a>,
    missed: &'a [Missed],
    throughput: Vec<Vec<Cell>>,
    quantile_names: Vec<String>,
    latency: Vec<Vec<Cell>>,
    cause_names: Vec<&'static str>,
    causes: Vec<Vec<String>>,
    loss_names: Vec<String>,
    loss: Vec<Vec<Cell>>,
    bursts: Vec<Vec<Cell>>,
    burst_repetitions: u32,
    burst_precision: String,
    longest_burst: String,
    soak: Vec<(&'static str, String)>,
    method: String,
    device: &'a str,
    device_note: &'a str,
    core_plan: &'a str,
    warnings: &'a [String],
    few: bool,
}

/// Writes the report of a results folder, and returns what to show of it on a terminal of so many columns.
///
/// # Errors
/// When the folder cannot be read or written.
pub(crate) fn show(dir: &Path, width: Option<usize>) -> Result<Shown, ReportError> {
    let results = Results::load(dir)?;
    let evaluation = Evaluation::of(&results);
    let page = write(dir, &evaluation)?;
    Ok(Shown {
        text: render_text(&evaluation, width),
        problems: [&evaluation.warnings[..], &results.problems[..]].concat(),
        missed: evaluation.missed.iter().map(|m| m.0.clone()).collect(),
        stage: results.head.manifest.stage,
        wants_all: true,
        left_out: results.head.manifest.left_out.clone(),
        ..Shown::page(page)
    })
}

fn write(dir: &Path, evaluation: &Evaluation<'_>) -> Result<PathBuf, ReportError> {
    let results = evaluation.results;
    let summary = Summary {
        device: &results.head.device,
        stage: results.head.manifest.stage,
        sizes: &evaluation.rows,
        soak: results.soak.as_ref(),
        limits_missed: &evaluation.missed,
        warnings: &evaluation.warnings,
        problems: &results.problems,
    };
    let figures = draw(evaluation);
    let page = page(evaluation, &figures).render()?;
    publish(dir, &summary, &figures, &page)
}

fn page<'a>(evaluation: &'a Evaluation<'a>, figures: &'a [Drawn]) -> Page<'a> {
    let results = evaluation.results;
    let head = &results.head;
    let settings = &head.settings;
    Page {
        shell: Shell {
            subtitle: format!(
                "{} · {} repetitions, trials of {} · taut {}",
                head.manifest.started,
                settings.repetitions,
                time(settings.trial_seconds * 1e9),
                head.manifest.taut_version
            ),
            finding: finding(evaluation),
            ..Shell::of(
                &head.manifest,
                settings.mode,
                "parts",
                &results.problems,
                figures,
            )
        },
        missed: &evaluation.missed,
        throughput: evaluation
            .rows
            .iter()
            .filter_map(throughput_cells)
            .collect(),
        quantile_names: QUANTILES.map(percentile).to_vec(),
        latency: evaluation.rows.iter().flat_map(latency_cells).collect(),
        cause_names: Cause::ALL.map(Cause::name).to_vec(),
        causes: evaluation.rows.iter().flat_map(cause_cells).collect(),
        loss_names: loss_names(&evaluation.rows),
        loss: loss_cells(&evaluation.rows),
        bursts: evaluation.rows.iter().filter_map(burst_cells).collect(),
        burst_repetitions: settings.bursts,
        burst_precision: share(BURST_PRECISION),
        longest_burst: time(settings.longest_burst_seconds * 1e9),
        soak: results.soak.as_ref().map(soak_cells).unwrap_or_default(),
        method: method(evaluation),
        device: &head.device,
        device_note: &head.device_note,
        core_plan: &head.manifest.core_plan,
        warnings: &evaluation.warnings,
        few: settings.repetitions < 6,
    }
}

/// The outcome in a sentence or two.
fn finding(evaluation: &Evaluation<'_>) -> String {
    let device = &evaluation.results.head.device;
    let held: Vec<&SizeRow> = evaluation
        .rows
        .iter()
        .filter(|row| row.throughput.as_ref().is_some_and(|t| t.mean_pps > 0.0))
        .collect();
    let throughput = |row: &SizeRow| {
        let pps = row.throughput.as_ref().map_or(0.0, |t| t.mean_pps);
        format!("{} with frames of {} bytes", rate(pps), row.size)
    };
    let tolerance = evaluation.results.head.settings.loss_tolerance;
    let without = if tolerance > 0.0 {
        format!("losing at most {}", share(tolerance))
    } else {
        "without loss".to_string()
    };
    let mut said = match held.as_slice() {
        [] if evaluation.results.soak.is_some() => String::new(),
        [] => "No throughput was measured.".to_string(),
        [only] => format!("{device} carries {} {without}.", throughput(only)),
        [first, .., last] => format!(
            "{device} carries {} and {}, {without}.",
            throughput(first),
            throughput(last)
        ),
    };
    let busiest = held.first().and_then(|row| row.latency.last());
    if let Some(load) = busiest
        && let (Some(p50), Some(p99)) = (load.quantiles[0].ns, load.quantiles[2].ns)
    {
        said += &format!(
            " At {} half of the packets take less than {}, 99 of 100 less than {}.",
            rate(load.rate_pps),
            time(p50),
            time(p99)
        );
    }
    if let Some(soak) = &evaluation.results.soak {
        said += &format!(
            " Over {} at {} it lost {} of {} packets.",
            time(soak.counts.seconds * 1e9),
            rate(soak.counts.offered_pps),
            count(soak.counts.sent + soak.counts.refused - soak.counts.received),
            count(soak.counts.sent + soak.counts.refused)
        );
    }
    said.trim().to_string()
}

fn plain(text: impl Into<String>) -> Cell {
    [text.into(), String::new()]
}

fn throughput_cells(row: &SizeRow) -> Option<Vec<Cell>> {
    let t = row.throughput.as_ref()?;
    let none_held = match t.none_held {
        some if some > 0 && t.mean_pps > 0.0 => {
            format!("no rate held in {some} of {}", t.repetitions)
        }
        _ => String::new(),
    };
    Some(vec![
        plain(&row.size),
        [rate(t.mean_pps), beside(t.interval.as_ref(), rate)],
        plain(rate(t.min_pps)),
        plain(rate(t.max_pps)),
        plain(rate(t.conditional_pps)),
        plain(gigabits(t.layer2_bits)),
        plain(gigabits(t.layer1_bits)),
        [t.limit().to_owned(), none_held],
    ])
}

fn latency_cells(row: &SizeRow) -> Vec<Vec<Cell>> {
    row.latency
        .iter()
        .enumerate()
        .flat_map(|(index, load)| {
            let inside = load.inside.as_ref().map(inside_cells);
            let mut cells = vec![
                plain(if index == 0 { row.size.as_str() } else { "" }),
                [
                    rate(load.rate_pps),
                    load.share.map_or(String::new(), |_| load.load()),
                ],
                plain(count(load.packets)),
                plain(share(load.loss)),
            ];
            if load.packets == 0 {
                cells.push(plain("no data"));
                cells.extend((0..=QUANTILES.len()).map(|_| plain("")));
                return std::iter::once(cells).chain(inside);
            }
            cells.push(plain(load.mean_ns.map_or("–".to_string(), time)));
            cells.extend(load.quantiles.iter().map(|q| match q.ns {
                Some(ns) => [time(ns), beside(q.interval.as_ref(), time)],
                None => plain("–"),
            }));
            cells.push(plain(
                load.max_ns.map_or("–".to_string(), |ns| time(ns as f64)),
            ));
            std::iter::once(cells).chain(inside)
        })
        .collect()
}

fn inside_cells(inside: &InsideRow) -> Vec<Cell> {
    let value = |ns: Option<f64>| plain(ns.map_or("–".to_string(), time));
    let mut cells = vec![
        plain(""),
        plain("device only"),
        plain(count(inside.packets)),
        // What the tap missed would count as lost.
        plain(if inside.missed > 0 {
            "n/a".to_owned()
        } else {
            share(inside.loss)
        }),
        value(inside.mean_ns),
    ];
    cells.extend(inside.quantiles.iter().map(|q| value(q.ns)));
    cells.push(value(inside.max_ns.map(|ns| ns as f64)));
    cells
}

/// Frame, rate, from when on a packet is among the slowest, how many, the share of each cause.
fn cause_cells(row: &SizeRow) -> Vec<Vec<String>> {
    let loads = row.latency.iter();
    loads
        .filter_map(|load| {
            let slowest = load.slowest.as_ref()?;
            let mut cells = vec![
                row.size.clone(),
                rate(load.rate_pps),
                time(slowest.above_ns),
            ];
            cells.extend(causes::cells(&slowest.causes));
            Some(cells)
        })
        .collect()
}

/// The frame size with the longest loss curve: all curves take the same steps.
fn longest_loss(rows: &[SizeRow]) -> &[LossRow] {
    let longest = rows.iter().map(|row| row.loss.as_slice());
    longest.max_by_key(|loss| loss.len()).unwrap_or_default()
}

/// Shares of the most that was offered: the steps of the loss curves.
fn loss_names(rows: &[SizeRow]) -> Vec<String> {
    let longest = longest_loss(rows);
    let most = longest.first().map_or(1.0, |point| point.offered_pps);
    let step = |point: &LossRow| format!("{:.3}", 100.0 * point.offered_pps / most);
    longest
        .iter()
        .map(|point| {
            let step = step(point);
            format!("{} %", step.trim_end_matches('0').trim_end_matches('.'))
        })
        .collect()
}

fn loss_cells(rows: &[SizeRow]) -> Vec<Vec<Cell>> {
    let steps = longest_loss(rows).len();
    rows.iter()
        .filter(|row| !row.loss.is_empty())
        .map(|row| {
            let mut cells = vec![plain(&row.size)];
            cells.extend(row.loss.iter().map(|point| {
                let behind = if point.generator_behind { "*" } else { "" };
                [
                    format!("{}{behind}", share(point.loss[1])),
                    rate(point.offered_pps),
                ]
            }));
            cells.resize(steps + 1, plain(""));
            cells
        })
        .collect()
}

fn burst_cells(row: &SizeRow) -> Option<Vec<Cell>> {
    let b = row.back_to_back.as_ref()?;
    let buffer = match b.buffer {
        Some(buffer) => [
            plain(time(buffer.implied_seconds * 1e9)),
            plain(time(buffer.corrected_seconds * 1e9)),
            plain(count(buffer.corrected_packets.round() as u64)),
        ],
        None => [plain("never filled"), plain("–"), plain("–")],
    };
    let mut cells = vec![
        plain(&row.size),
        [
            count(b.mean.round() as u64),
            beside(b.interval.as_ref(), three_digits),
        ],
        plain(count(b.min)),
        plain(count(b.max)),
        plain(three_digits(b.deviation)),
        plain(rate(b.burst_pps)),
    ];
    cells.extend(buffer);
    Some(cells)
}

fn soak_cells(soak: &Soak) -> Vec<(&'static str, String)> {
    let mut rows = vec![
        ("rate", rate(soak.counts.offered_pps)),
        ("frames", format!("{} bytes", soak.size)),
        ("sent", count(soak.counts.sent)),
        (
            "lost on the way",
            format!(
                "{} ({})",
                count(soak.counts.sent.saturating_sub(soak.counts.received)),
                share(soak.counts.loss())
            ),
        ),
        ("refused by a full ring", count(soak.counts.refused)),
        ("never sent", count(soak.counts.unsent)),
        ("duplicate", count(soak.counts.duplicate)),
        ("reordered", count(soak.counts.reordered)),
    ];
    match &soak.latency {
        None => rows.push(("latency", "no data".to_string())),
        Some(l) => {
            let value = |ns: Option<u64>| ns.map_or("–".to_string(), |ns| time(ns as f64));
            rows.push((
                "latency",
                format!(
                    "p50 {} · p99 {} · p99.9 {} · p99.99 {} · max {}",
                    value(l.p50_ns),
                    value(l.p99_ns),
                    value(l.p99_9_ns),
                    value(l.p99_99_ns),
                    time(l.max_ns as f64)
                ),
            ));
        }
    }
    rows
}

/// How it was measured, in words.
fn method(evaluation: &Evaluation<'_>) -> String {
    let s = &evaluation.results.head.settings;
    let search = match s.method {
        Method::Binary => "bisection in which one trial decides (RFC 2544 section 26.1)".to_string(),
        Method::Tst009 => "bisection in which a trial that fails is verified by another one (ETSI GS NFV-TST 009 clause 12.3.3)".to_string(),
        Method::Mlr => format!(
            "short trials that find where to look, then up to {} full trials per rate that vote (MLRsearch, draft-ietf-bmwg-mlrsearch-15)",
            s.votes
        ),
    };
    let tap = if s.tap {
        format!(" {DEVICE_ONLY}")
    } else {
        String::new()
    };
    format!(
        "Throughput: {search}, to within {} of the rate, at most {} lost. A rate is searched for from the most that the generator can offer. Each trial is preceded by a ramp at the same rate that does not count; after the last packet the instrument waits until nothing came for 20 ms, then reads the counters. Packets that the generator did not send in time are not counted as lost: such a trial is repeated, and if it fails again the rate is the generator’s limit, not the device’s. Packets that found the device’s ring full count as lost.{tap}",
        share(s.precision),
        share(s.loss_tolerance)
    )
}

fn series(index: usize, label: String) -> Series {
    Series {
        label,
        style: Style::of(index),
    }
}

fn draw(evaluation: &Evaluation<'_>) -> Vec<Drawn> {
    let settings = &evaluation.results.head.settings;
    let mut figures = Vec::new();
    if settings.has(Part::Throughput) && evaluation.rows.len() > 1 {
        figures.push(draw_throughput(evaluation));
    }
    if settings.has(Part::Latency) {
        figures.push(draw_latency(evaluation));
        figures.extend(draw_slowest(evaluation));
    }
    if settings.has(Part::Loss) {
        figures.push(draw_loss(evaluation));
    }
    if settings.has(Part::Soak) {
        figures.push(draw_soak(&evaluation.results.intervals));
    }
    figures
}

fn values(curves: &[Curve]) -> impl Iterator<Item = f64> {
    curves.iter().flat_map(|c| &c.points).flat_map(|p| p.y)
}

fn xs(curves: &[Curve]) -> impl Iterator<Item = f64> {
    curves.iter().flat_map(|c| &c.points).map(|p| p.x)
}

fn draw_throughput(evaluation: &Evaluation<'_>) -> Drawn {
    let mut points: Vec<Point> = evaluation
        .rows
        .iter()
        .filter_map(|row| {
            let t = row.throughput.as_ref()?;
            Some(Point {
                x: row.average_bytes,
                y: [t.min_pps, t.mean_pps, t.max_pps],
                tip: format!(
                    "{} bytes|{}|{} of frames",
                    row.size,
                    rate(t.mean_pps),
                    gigabits(t.layer2_bits)
                ),
            })
        })
        .collect();
    points.sort_by(|a, b| a.x.total_cmp(&b.x));
    let curves = vec![Curve {
        series: series(0, evaluation.results.head.device.clone()),
        points,
    }];
    let figure = Figure {
        chart: Chart::new(
            "throughput",
            "Throughput over the frame size",
            "The highest rate that held, over the frame size.",
        ),
        x_title: "frame size (bytes, check sequence included)",
        x: Scale::linear_from_zero(Quantity::Packets, xs(&curves)),
        parts: vec![PanelPart {
            title: "throughput (packets/s)",
            y: Scale::linear_from_zero(Quantity::RatePps, values(&curves)),
            curves,
            models: Vec::new(),
        }],
        extent: Extent::Band,
        verticals: Vec::new(),
        note: "marks: means · shaded: lowest to highest repetition".to_string(),
    };
    Drawn {
        name: "throughput",
        title: "Throughput over the frame size",
        caption: "Packets per second. A forwarder that touches only headers is flat here; one that copies frames, or a line, falls.".to_string(),
        svg: curves::draw(&figure),
        data: None,
    }
}

/// The first, the middle and the last of `count`.
fn drawn_sizes(count: usize) -> Vec<usize> {
    if count <= DRAWN_SIZES {
        (0..count).collect()
    } else {
        vec![0, count / 2, count - 1]
    }
}

fn draw_latency(evaluation: &Evaluation<'_>) -> Drawn {
    let rows = &evaluation.rows;
    let columns: Vec<Column<Item<'_>>> = drawn_sizes(rows.len())
        .into_iter()
        .map(|index| Column {
            heading: format!("{} bytes", rows[index].size),
            items: rows[index]
                .latency
                .iter()
                .enumerate()
                .map(|(index, load)| Item {
                    series: series(index, load.short_load()),
                    values: Distribution::Latency(&load.histogram),
                })
                .collect(),
        })
        .collect();
    Drawn {
        name: "latency",
        title: "Latency by percentile",
        caption: format!(
            "Round trip from the stamp to the arrival of every packet, all repetitions together{}. Lines are dotted where fewer than ten packets lie beyond.{}",
            match evaluation.results.head.settings.rate_pps {
                None => ", at shares of the throughput",
                Some(_) => "",
            },
            if rows.len() > DRAWN_SIZES {
                " Of all frame sizes the first, the middle and the last; the others are in the table."
            } else {
                ""
            }
        ),
        svg: percentiles::draw(&columns),
        data: None,
    }
}

/// The slowest packets over time, by what they waited for; none where that was not noted.
fn draw_slowest(evaluation: &Evaluation<'_>) -> Option<Drawn> {
    let rows = &evaluation.rows;
    let drawn = drawn_sizes(rows.len());
    let loads = || drawn.iter().flat_map(|index| &rows[*index].latency);
    let keys = causes::keys(loads().flat_map(|load| load.worst.packets.iter().map(|p| p.1)));
    if keys.is_empty() {
        return None;
    }
    let columns: Vec<Column<timeline::Item<'_>>> = drawn
        .iter()
        .map(|index| Column {
            heading: format!("{} bytes", rows[*index].size),
            items: rows[*index]
                .latency
                .iter()
                .enumerate()
                .map(|(index, load)| timeline::Item {
                    series: series(index, load.short_load()),
                    worst: causes::by_cause(&load.worst.packets, Style::of(index)),
                    background: &[],
                    ends: &load.worst.ends,
                    timer: None,
                })
                .collect(),
        })
        .collect();
    Some(Drawn {
        name: "slowest",
        title: "The slowest packets, by what they waited for",
        caption: "One packet in a thousand at each load, 4096 at most per repetition: those that took longest, over the time at which they were sent. Dotted verticals divide the repetitions.".to_string(),
        svg: timeline::draw(&columns, &keys.iter().collect::<Vec<_>>()),
        data: None,
    })
}

fn draw_loss(evaluation: &Evaluation<'_>) -> Drawn {
    let curves: Vec<Curve> = evaluation
        .rows
        .iter()
        .enumerate()
        .map(|(index, row)| Curve {
            series: series(index, format!("{} bytes", row.size)),
            points: row
                .loss
                .iter()
                .rev()
                .map(|point| Point {
                    x: point.offered_pps,
                    y: point.loss,
                    tip: format!(
                        "{} offered|{} lost{}",
                        rate(point.offered_pps),
                        share(point.loss[1]),
                        if point.generator_behind {
                            "|the generator fell behind"
                        } else {
                            ""
                        }
                    ),
                })
                .collect(),
        })
        .collect();
    let figure = Figure {
        chart: Chart::new(
            "loss",
            "Loss over the offered rate",
            "The share of packets lost over the rate offered, by frame size.",
        ),
        x_title: "offered rate (packets/s)",
        x: Scale::linear_from_zero(Quantity::RatePps, xs(&curves)),
        parts: vec![PanelPart {
            title: "share lost",
            y: Scale::linear_from_zero(Quantity::Share, values(&curves)),
            curves,
            models: Vec::new(),
        }],
        extent: Extent::Band,
        verticals: Vec::new(),
        note: "marks: medians · shaded: smallest to largest over the repetitions".to_string(),
    };
    Drawn {
        name: "loss",
        title: "Loss over the offered rate",
        caption: "From the most that the generator can offer down by tenths of it, until two trials in a row lose nothing (RFC 2544 section 26.3).".to_string(),
        svg: curves::draw(&figure),
        data: None,
    }
}

/// Neighbouring intervals put together, so that at most [`DRAWN_INTERVALS`] are drawn: worst values stay.
fn drawn_intervals(intervals: &[SoakInterval]) -> Vec<&[SoakInterval]> {
    let together = intervals.len().div_ceil(DRAWN_INTERVALS).max(1);
    intervals.chunks(together).collect()
}

fn draw_soak(intervals: &[SoakInterval]) -> Drawn {
    let drawn = drawn_intervals(intervals);
    let curve = |index: usize,
                 label: &str,
                 of: &dyn Fn(&SoakInterval) -> Option<f64>,
                 show: fn(f64) -> String| Curve {
        series: series(index, label.to_string()),
        points: drawn
            .iter()
            .filter_map(|together| {
                let mut values: Vec<f64> = together.iter().filter_map(of).collect();
                values.sort_by(f64::total_cmp);
                let y = [*values.first()?, values[values.len() / 2], *values.last()?];
                let x = together.first()?.start_seconds;
                Some(Point {
                    x,
                    y,
                    tip: format!("{} s|{}", three_digits(x), show(y[1])),
                })
            })
            .collect(),
    };
    let ns = |of: fn(&taut_measure::Summary) -> Option<u64>| {
        move |i: &SoakInterval| i.latency.as_ref().and_then(of).map(|ns| ns as f64)
    };
    let latency = vec![
        curve(0, "p50", &ns(|l| l.p50_ns), time),
        curve(1, "p99", &ns(|l| l.p99_ns), time),
        curve(2, "max", &ns(|l| Some(l.max_ns)), time),
    ];
    let lost = |i: &SoakInterval| {
        let offered = (i.sent + i.refused) as f64;
        (offered > 0.0).then(|| 1.0 - i.received.min(i.sent) as f64 / offered)
    };
    let loss = vec![curve(3, "lost", &lost, share)];
    let end = intervals
        .last()
        .map_or(1.0, |i| i.start_seconds + i.seconds);
    let figure = Figure {
        chart: Chart::new(
            "soak",
            "Drift over time",
            "Median, 99th percentile and largest latency, and the share lost, over time.",
        ),
        x_title: "time (s)",
        x: Scale::linear(Quantity::Seconds, 0.0, end),
        parts: vec![
            PanelPart {
                title: "latency",
                y: Scale::log(Quantity::TimeNs, values(&latency)),
                curves: latency,
                models: Vec::new(),
            },
            PanelPart {
                title: "share lost",
                y: Scale::linear_from_zero(Quantity::Share, values(&loss)),
                curves: loss,
                models: Vec::new(),
            },
        ],
        extent: Extent::Band,
        verticals: Vec::new(),
        note: String::new(),
    };
    Drawn {
        name: "soak",
        title: "Drift over time",
        caption: "One point per interval. A packet counts in the interval in which it was due."
            .to_string(),
        svg: curves::draw(&figure),
        data: None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::results::{Burst, Counts, Folder, LoadLatency, Measured, Unit};
    use super::super::{HEAD, Head, Limits, Settings};
    use super::*;
    use crate::evaluate::{Causes, SlowestPackets, SlowestSummary};
    use std::fs;
    use taut_measure::Limit;
    use taut_measure::{LatencyHistogram, ThroughputSearch, ThroughputSettings, TrialOutcome};
    use taut_results::{Manifest, Mode};

    const CAPACITY_PPS: f64 = 1e6;

    fn head(stage: Stage) -> Head {
        Head {
            manifest: Manifest {
                stage,
                machine: serde_json::json!({"cpu": "made up"}),
                ..crate::synthetic::manifest(Head::SCHEMA)
            },
            settings: Settings {
                mode: Mode::Default,
                parts: vec![
                    Part::Throughput,
                    Part::Latency,
                    Part::Loss,
                    Part::BackToBack,
                    Part::Soak,
                ],
                method: Method::Mlr,
                precision: 0.01,
                loss_tolerance: 0.0,
                trial_seconds: 1.0,
                votes: 3,
                repetitions: 2,
                max_rate_pps: None,
                shares: vec![0.1, 0.9],
                rate_pps: None,
                latency_seconds: 1.0,
                bursts: 2,
                longest_burst_seconds: 2.0,
                soak_seconds: 10.0,
                tap: false,
                soak_interval_seconds: 1.0,
                limits: Limits {
                    min_throughput_pps: Some(2e6),
                    max_p99_ns: Some(1_000.0),
                },
            },
            device: "a made-up device".to_string(),
            device_note: "carries a million a second".to_string(),
            sizes: vec!["64".to_string(), "imix".to_string()],
            average_bytes: vec![64.0, 361.8],
        }
    }

    fn counts(offered_pps: f64) -> Counts {
        let sent = offered_pps as u64;
        Counts {
            offered_pps,
            seconds: 1.0,
            sent,
            received: sent.min(CAPACITY_PPS as u64),
            ..Counts::default()
        }
    }

    fn load(share: f64, packets: u64) -> LoadLatency {
        let slice = |n: u64| -> Vec<(u64, u64)> {
            (0..packets / 10)
                .map(|i| (1_000 + n * 10 + i % 500, 1))
                .collect()
        };
        let slices: Vec<Vec<(u64, u64)>> = (0..10).map(slice).collect();
        let mut whole = LatencyHistogram::new();
        slices
            .iter()
            .flatten()
            .for_each(|(ns, n)| whole.record_many(*ns, *n));
        LoadLatency {
            share: Some(share),
            counts: counts(share * CAPACITY_PPS),
            summary: taut_measure::Summary::from_histogram(&whole),
            slices,
            inside: None,
            slowest: slowest(packets),
        }
    }

    /// One of the device's ticks, and something that nobody knows.
    fn slowest(packets: u64) -> Option<SlowestPackets> {
        let summary = SlowestSummary {
            above_ns: 1_590.0,
            causes: Causes {
                spikes: 2,
                by_cause: [(Cause::DeviceTick, 1), (Cause::Unexplained, 1)].into(),
                device_known: true,
                ..Causes::default()
            },
        };
        let each = vec![
            (0.25, 1_590.0, Cause::DeviceTick),
            (0.5, 1_599.0, Cause::Unexplained),
        ];
        (packets > 0).then_some(SlowestPackets { summary, each })
    }

    fn throughput() -> Measured {
        let mut search = ThroughputSearch::new(ThroughputSettings {
            method: Method::Mlr,
            min_pps: 10.0,
            max_pps: 1e7,
            precision: 0.01,
            loss_tolerance: 0.0,
            trial_seconds: 1.0,
            votes: 3,
        })
        .unwrap();
        while let Some(wanted) = search.next() {
            let sent = (wanted.rate_pps * wanted.seconds) as u64;
            let outcome = TrialOutcome {
                offered_pps: wanted.rate_pps,
                sent,
                received: sent.min((CAPACITY_PPS * wanted.seconds) as u64),
                refused: 0,
                generator_behind: false,
            };
            search.report(wanted, outcome);
        }
        Measured::Throughput {
            result: search.result(),
        }
    }

    /// Everything for 64 bytes; for imix an empty latency and no more.
    fn made_up(stage: Stage) -> (tempfile::TempDir, PathBuf) {
        let parent = tempfile::tempdir().unwrap();
        let dir = parent.path().join("made-up");
        let folder = Folder::create(&dir, &head(stage)).unwrap();
        let write = |size: &str, repetition, measured| {
            let size = size.to_string();
            let unit = Unit {
                size,
                repetition,
                measured,
            };
            folder.write(&unit).unwrap();
        };
        for repetition in 1..=2 {
            write("64", repetition, throughput());
            let loads = vec![load(0.1, 100), load(0.9, 100_000)];
            write("64", repetition, Measured::Latency { loads });
            let points = [4e6, 3e6, 2e6, 1e6, 5e5].map(counts).to_vec();
            write("64", repetition, Measured::Loss { points });
            let burst = Burst {
                length: 4_096,
                counts: Counts {
                    seconds: 4_096.0 / 4e6,
                    sent: 4_096,
                    ..counts(4e6)
                },
            };
            write(
                "64",
                repetition,
                Measured::BackToBack {
                    length: 4_000,
                    unlimited: false,
                    bursts: vec![burst],
                },
            );
        }
        let loads = vec![load(0.1, 0)];
        write("imix", 1, Measured::Latency { loads });
        let mut soak = folder.begin_soak().unwrap();
        for second in 0..10 {
            let load = load(0.5, 1_000);
            soak.push(&SoakInterval {
                start_seconds: f64::from(second),
                seconds: 1.0,
                sent: 1_000,
                received: 1_000 - u64::from(second == 5),
                refused: 0,
                latency: load.summary,
            })
            .unwrap();
        }
        let whole = Soak {
            size: "64".to_string(),
            counts: Counts {
                seconds: 10.0,
                sent: 10_000,
                received: 9_999,
                ..counts(1e3)
            },
            latency: load(0.5, 1_000).summary,
            late: 0,
            skipped_intervals: 0,
        };
        folder.write_soak(&whole).unwrap();
        (parent, dir)
    }

    #[test]
    fn a_device_of_known_capacity_is_evaluated_as_such() {
        let (_parent, dir) = made_up(Stage::Finished);
        let results = Results::load(&dir).unwrap();
        assert!(results.problems.is_empty(), "{:?}", results.problems);
        let evaluation = Evaluation::of(&results);
        let row = &evaluation.rows[0];
        let found = row.throughput.as_ref().unwrap();
        assert!((0.98e6..=1e6).contains(&found.mean_pps), "{found:?}");
        assert_eq!((found.limited_by, found.repetitions), (Limit::Device, 2));
        assert_eq!(found.layer1_bits / found.layer2_bits, 84.0 / 64.0);
        let [few, many] = row.latency.as_slice() else {
            panic!("{:?}", row.latency)
        };
        // 200 packets: ten lie beyond p90 and p95, two beyond p99.
        let known: Vec<bool> = few.quantiles.iter().map(|q| q.ns.is_some()).collect();
        assert_eq!(known, [true, true, false, false, false, false]);
        let p50 = many.quantiles[0];
        let interval = p50.interval.unwrap();
        assert!(interval.low <= p50.ns.unwrap() && p50.ns.unwrap() <= interval.high);
        assert!((1_200.0..1_400.0).contains(&p50.ns.unwrap()), "{p50:?}");
        let losses: Vec<f64> = row.loss.iter().map(|point| point.loss[1]).collect();
        assert_eq!(losses, [0.75, 2.0 / 3.0, 0.5, 0.0, 0.0]);
        let bursts = row.back_to_back.as_ref().unwrap();
        let buffer = bursts.buffer.unwrap();
        // Of what came at four times the throughput, three quarters stay.
        assert!(
            (2_990.0..3_030.0).contains(&buffer.corrected_packets),
            "{buffer:?}"
        );
        let slowest = many.slowest.as_ref().unwrap();
        assert_eq!(slowest.causes.spikes, 4);
        assert_eq!(slowest.causes.share(Cause::DeviceTick), 0.5);
        let times: Vec<f64> = many.worst.packets.iter().map(|p| p.0.0).collect();
        assert_eq!(times, [0.25, 0.5, 1.25, 1.5], "repetitions end to end");
        assert!(evaluation.rows[1].throughput.is_none());
        // Too low a throughput; of both sizes a load of which too little is known; a load and the soak that are too slow.
        assert_eq!(evaluation.missed.len(), 5, "{:?}", evaluation.missed);
        let warnings = evaluation.warnings.join("\n");
        for part in [
            "imix bytes at 100 kpkt/s: no data",
            "too few packets for p99",
        ] {
            assert!(warnings.contains(part), "{part}: {warnings}");
        }
        let text = render_text(&evaluation, None);
        assert!(
            text.contains("no data") && text.contains("soak of 64"),
            "{text}"
        );
        let line = "slowest of 64 at 900 kpkt/s: 4 packets from 1.59 µs on: device's core: timer tick 50.0 %";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_repetition_in_which_no_rate_held_counts_as_none() {
        let (_parent, dir) = made_up(Stage::Finished);
        let mut results = Results::load(&dir).unwrap();
        let held = Evaluation::of(&results).rows[0].throughput.clone().unwrap();
        let Measured::Throughput { mut result } = throughput() else {
            unreachable!("that is what it makes");
        };
        (result.rate_pps, result.conditional_pps) = (None, None);
        results.units.push(Unit {
            size: "64".to_owned(),
            repetition: 3,
            measured: Measured::Throughput { result },
        });
        let evaluation = Evaluation::of(&results);
        let found = evaluation.rows[0].throughput.as_ref().unwrap();
        assert_eq!((found.none_held, found.repetitions), (1, 3));
        assert!((found.mean_pps / held.mean_pps - 2.0 / 3.0).abs() < 1e-9);
        assert!((found.conditional_pps / held.conditional_pps - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((found.min_pps, found.interval.unwrap().low), (0.0, 0.0));
        let said = "64 bytes: no rate held in 1 of 3 repetitions, which count as 0";
        assert!(evaluation.warnings.iter().any(|warning| warning == said));
        let cells = throughput_cells(&evaluation.rows[0]).unwrap();
        assert_eq!(cells.last().unwrap()[1], "no rate held in 1 of 3");
        let text = render_text(&evaluation, None);
        assert!(text.contains("range of 3: 0 pkt/s to"), "{text}");
    }

    #[test]
    fn intervals_of_tails_are_of_the_repetitions_own_percentiles() {
        let (_parent, dir) = made_up(Stage::Finished);
        let mut results = Results::load(&dir).unwrap();
        // A third repetition, in which everything took ten times as long.
        let mut slow = load(0.9, 100_000);
        for (ns, _) in slow.slices.iter_mut().flatten() {
            *ns *= 10;
        }
        let loads = vec![load(0.1, 100), slow];
        results.units.push(Unit {
            size: "64".to_owned(),
            repetition: 3,
            measured: Measured::Latency { loads },
        });
        let evaluation = Evaluation::of(&results);
        let p99 = evaluation.rows[0].latency[1].quantiles[2];
        let interval = p99.interval.unwrap();
        assert_eq!((interval.count, interval.confidence), (3, 0.75));
        assert!((1_500.0..1_600.0).contains(&interval.low), "{p99:?}");
        assert_eq!(interval.point, interval.low, "two of three are alike");
        assert!((15_000.0..16_000.0).contains(&interval.high), "{p99:?}");
        assert!(p99.ns.unwrap() > 10_000.0, "of all packets: {p99:?}");
    }

    #[test]
    fn the_page_loads_nothing_and_the_same_folder_gives_the_same_bytes() {
        let (_parent, dir) = made_up(Stage::Interrupted);
        let page = fs::read_to_string(show(&dir, None).unwrap().page).unwrap();
        assert!(page.contains("Interrupted") && page.contains("Limits missed"));
        for load in ["src=\"http", "href=\"http", "url(http", "@import", "<link"] {
            assert!(!page.contains(load), "{load}");
        }
        assert!(!page.contains("NaN") && page.len() < 5_000_000);
        assert_eq!(
            page,
            fs::read_to_string(show(&dir, None).unwrap().page).unwrap()
        );
        let figures = fs::read_dir(dir.join("figures")).unwrap().count();
        assert_eq!(figures, 5);
    }

    #[test]
    fn damaged_files_are_named_and_the_rest_is_shown() {
        let (_parent, dir) = made_up(Stage::Finished);
        fs::write(dir.join("trials/64/loss-1.json"), "{\"size\": ").unwrap();
        let lines = dir.join("soak/intervals.jsonl");
        let text = fs::read_to_string(&lines).unwrap() + "{\"start";
        fs::write(&lines, text).unwrap();
        let results = Results::load(&dir).unwrap();
        let problems = results.problems.join("\n");
        assert!(problems.contains("loss-1.json") && problems.contains("intervals.jsonl:11"));
        assert_eq!((results.units.len(), results.intervals.len()), (8, 10));
        show(&dir, None).unwrap();
        fs::remove_file(dir.join(HEAD)).unwrap();
        assert!(show(&dir, None).unwrap_err().to_string().contains(HEAD));
    }
}
