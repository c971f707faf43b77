//! The report of a folder of `taut generate --out`: counts, latencies, and the slowest packets by cause.

use std::path::{Path, PathBuf};

use askama::Template;
use serde_json::Value;
use taut_measure::{LatencyHistogram, Summary};
use taut_model::Cause;

use super::causes;
use super::drawn::Drawn;
use super::error::ReportError;
use super::rawdata::{NONE, flatten};
use crate::benchmark::shell::{Shell, ended_early, write_page};
use crate::evaluate::SlowestPackets;
use crate::measurement::{StreamSummary, TrafficSummary, Versions};
use taut_figure::{Column, Distribution, Item, Series, Style, percentiles, timeline};
use taut_measure::quantity::{count, rate, share, time};
use taut_results::{
    RECORDED_LATENCIES, RECORDED_MACHINE, RECORDED_SLOWEST, ResultsError, has, read_json,
    stream_names,
};

#[derive(Template)]
#[template(path = "recording.html")]
struct Page<'a> {
    shell: Shell<'a>,
    counts: Vec<(String, Vec<String>)>,
    cause_names: Vec<&'static str>,
    causes: Vec<(String, Vec<String>)>,
    activity: Vec<(String, String)>,
}

/// Minimum sent rate, as a fraction of the requested one. Below it, a result shows the limits of the machine, not of
/// the device.
pub const LEAST_SENT: f64 = 0.97;

/// A stream as read from its files.
struct Stream<'a> {
    name: &'a str,
    /// The part of the measurement's summary about this stream.
    summary: &'a StreamSummary,
    latency: LatencyHistogram,
    slowest: Option<SlowestPackets>,
}

/// Returns true if a folder was written by `taut generate --out`.
pub fn is_recording(dir: &Path) -> bool {
    read_json::<Value>(dir, "summary.json").is_ok_and(|summary| summary["event"] == "summary")
}

/// Writes `figures/` and `report.html` into the folder `dir` of `taut generate --out`, made from the files there.
/// Returns the path of the page; earlier files are replaced.
///
/// # Errors
/// Returns an error if the folder cannot be read or written.
pub fn write_recording(dir: &Path) -> Result<PathBuf, ReportError> {
    let summary: TrafficSummary = read_json(dir, "summary.json")?;
    let mut problems = Vec::new();
    let streams = streams(dir, &summary, &mut problems);
    let machine = machine(dir, &summary.versions, &mut problems);
    let figures = draw(&streams);
    let page = page(&summary, machine, &streams, &figures, &problems).render()?;
    write_page(dir, &figures, &page)
}

fn streams<'a>(
    dir: &Path,
    summary: &'a TrafficSummary,
    problems: &mut Vec<String>,
) -> Vec<Stream<'a>> {
    let all = &summary.streams;
    let names: Vec<String> = all.iter().map(|stream| stream.name.clone()).collect();
    let folders = stream_names(&names);
    all.iter()
        .zip(folders)
        .map(|(summary, folder)| {
            let named = |file: &str| match folder.as_str() {
                "" => file.to_owned(),
                folder => format!("{folder}/{file}"),
            };
            let latency = histogram(dir, &named(RECORDED_LATENCIES)).unwrap_or_else(|e| {
                problems.push(e);
                LatencyHistogram::new()
            });
            // The file is missing if no packet came back or no interruption was logged.
            let slowest = named(RECORDED_SLOWEST);
            let slowest = has(dir, &slowest).then(|| read_json(dir, &slowest));
            let slowest = slowest.and_then(|read: Result<_, ResultsError>| {
                read.map_err(|e| problems.push(e.to_string())).ok()
            });
            Stream {
                name: &summary.name,
                summary,
                latency,
                slowest,
            }
        })
        .collect()
}

/// Returns the latencies of a histogram log in a results folder, or an error in one sentence.
pub fn histogram(dir: &Path, name: &str) -> Result<LatencyHistogram, String> {
    let log = taut_results::read(dir, name).map_err(|e| e.to_string())?;
    LatencyHistogram::read_hlog(&log).map_err(|e| format!("{}: {e}", dir.join(name).display()))
}

fn page<'a>(
    summary: &'a TrafficSummary,
    machine: Vec<(String, String)>,
    streams: &[Stream<'_>],
    figures: &'a [Drawn],
    problems: &'a [String],
) -> Page<'a> {
    let stopped = streams.iter().any(|s| s.summary.tally.stopped);
    let warnings = summary.warnings.iter().cloned();
    let warnings: Vec<String> = warnings.chain(streams.iter().find_map(too_slow)).collect();
    Page {
        shell: Shell {
            title: match &summary.device {
                Some(device) => format!("Traffic through {}", device.info.label),
                None => "Traffic and what came back".to_owned(),
            },
            subtitle: format!("{} · taut {}", summary.started, summary.versions.taut),
            busy: (!warnings.is_empty()).then(|| warnings.join(" ")),
            state: stopped.then(ended_early),
            finding: streams.iter().map(finding).collect::<Vec<_>>().join(" "),
            figures,
            noise: &[],
            left_out: &[],
            failed_attempts: &[],
            problems,
            machine,
            command_line: &summary.command_line,
        },
        counts: streams.iter().map(count_cells).collect(),
        cause_names: Cause::ALL.map(Cause::name).to_vec(),
        causes: streams.iter().filter_map(cause_cells).collect(),
        activity: activity(summary),
    }
}

/// Returns the activity of the machine as rows of name and value. An empty list has no row, such as the list of cores
/// if no core was observed.
fn activity(summary: &TrafficSummary) -> Vec<(String, String)> {
    let mut rows = facts(&summary.activity);
    rows.retain(|(_, text)| text != NONE);
    rows
}

/// Returns the software versions, and the facts about the machine if the folder has them.
fn machine(dir: &Path, versions: &Versions, problems: &mut Vec<String>) -> Vec<(String, String)> {
    let mut rows = facts(versions);
    if has(dir, RECORDED_MACHINE) {
        match read_json::<Value>(dir, RECORDED_MACHINE) {
            Ok(found) => rows.extend(flatten(&found)),
            Err(e) => problems.push(e.to_string()),
        }
    }
    rows
}

/// Returns the fields of a serialisable value as pairs of name and value.
fn facts(of: &impl serde::Serialize) -> Vec<(String, String)> {
    flatten(&serde_json::to_value(of).unwrap_or_default())
}

/// Returns the warning for a stream that the generator could not send at its rate; none for any other stream.
fn too_slow(stream: &Stream<'_>) -> Option<String> {
    let asked = stream.summary.asked_pps;
    let sent = stream.summary.sent_pps?;
    let is_slow = sent < LEAST_SENT * asked && !stream.summary.tally.stopped;
    is_slow.then(|| {
        format!(
            "The machine was busy, or too slow for the rate: {} sent of {} requested. The latencies are those at the rate sent, \
             and include the machine's delays.",
            rate(sent),
            rate(asked)
        )
    })
}

fn finding(stream: &Stream<'_>) -> String {
    let summary = stream.summary;
    let sent = summary.sent_pps.map_or("nothing".to_owned(), rate);
    let lost = summary.lost_share.unwrap_or(0.0);
    let latency = summary.latency_ns.as_ref();
    let took = match latency.and_then(|l| Some((l.p50_ns?, l.p99_ns))) {
        Some((p50, p99)) => format!(
            "half of the packets took less than {}, 99 of 100 less than {}",
            time(p50 as f64),
            time_of(p99.map(|ns| ns as f64))
        ),
        None => "nothing came back".to_owned(),
    };
    let slowest = stream.slowest.as_ref().map_or(String::new(), |slowest| {
        format!(" The slowest {}.", slowest.summary.line())
    });
    format!(
        "{}: {sent} sent, {} lost; {took}.{slowest}",
        stream.name,
        share(lost)
    )
}

fn time_of(ns: Option<f64>) -> String {
    ns.map_or("–".to_owned(), time)
}

fn count_cells(stream: &Stream<'_>) -> (String, Vec<String>) {
    let summary = stream.summary;
    let tally = &summary.tally;
    let mut cells = vec![
        rate(summary.asked_pps),
        summary.sent_pps.map_or("–".to_owned(), rate),
        count(tally.sent),
        summary.lost.map_or("–".to_owned(), count),
        count(tally.refused),
        count(tally.unsent),
    ];
    let latency = summary.latency_ns.as_ref();
    let whole = |of: fn(&Summary) -> Option<u64>| latency.and_then(of).map(|ns| ns as f64);
    cells.extend(
        [
            whole(|l| Some(l.min_ns)),
            latency.map(|l| l.avg_ns),
            whole(|l| l.p50_ns),
            whole(|l| l.p99_ns),
            whole(|l| l.p99_9_ns),
            whole(|l| l.p99_99_ns),
            whole(|l| Some(l.max_ns)),
        ]
        .map(time_of),
    );
    (stream.name.to_owned(), cells)
}

fn cause_cells(stream: &Stream<'_>) -> Option<(String, Vec<String>)> {
    let summary = &stream.slowest.as_ref()?.summary;
    let mut cells = vec![time(summary.above_ns)];
    cells.extend(causes::cells(&summary.causes));
    Some((stream.name.to_owned(), cells))
}

fn series(index: usize, stream: &Stream<'_>) -> Series {
    Series {
        label: stream.name.to_owned(),
        style: Style::of(index),
    }
}

fn draw(streams: &[Stream<'_>]) -> Vec<Drawn> {
    let mut figures = draw_latencies(streams);
    figures.extend(draw_slowest(streams));
    figures
}

fn draw_latencies(streams: &[Stream<'_>]) -> Vec<Drawn> {
    let items = streams.iter().enumerate().map(|(index, stream)| Item {
        series: series(index, stream),
        values: Distribution::Latency(&stream.latency),
    });
    let columns = [Column {
        heading: "streams".to_owned(),
        items: items.collect(),
    }];
    let of_latency = Drawn {
        name: "histogram",
        title: "Latency histogram",
        caption: "Share of all packets per bin of the round trip from the stamp to the arrival; a triangle marks the largest.".to_owned(),
        svg: taut_figure::histogram::draw(&columns),
        data: None,
    };
    let by_percentile = Drawn {
        name: "percentiles",
        title: "Latency by percentile",
        caption: "Round trip from the stamp to the arrival of every packet. Each nine has equal room; lines are dotted where fewer than ten packets lie beyond.".to_owned(),
        svg: percentiles::draw(&columns),
        data: None,
    };
    vec![of_latency, by_percentile]
}

/// Draws the figure of the slowest packets with their causes; none if no cause is known.
fn draw_slowest(streams: &[Stream<'_>]) -> Option<Drawn> {
    let of = |stream: &Stream<'_>| -> Vec<((f64, f64), Option<Cause>)> {
        let each = stream.slowest.iter().flat_map(|slowest| &slowest.each);
        each.map(|(sent, latency, cause)| ((*sent, *latency), Some(*cause)))
            .collect()
    };
    let worst: Vec<_> = streams.iter().map(of).collect();
    let keys = causes::keys(worst.iter().flatten().map(|packet| packet.1));
    if keys.is_empty() {
        return None;
    }
    let seconds = |stream: &Stream<'_>| [stream.summary.tally.seconds];
    let ends: Vec<[f64; 1]> = streams.iter().map(seconds).collect();
    let items = streams.iter().zip(&worst).zip(&ends).enumerate();
    Some(Drawn {
        name: "slowest",
        title: "The slowest packets, by what they waited for",
        caption: "One packet in a thousand, 4096 at most: those that took longest, over the time at which they were sent.".to_owned(),
        svg: timeline::draw(
            &[Column {
                heading: "streams".to_owned(),
                items: items
                    .map(|(index, ((stream, worst), ends))| timeline::Item {
                        series: series(index, stream),
                        worst: causes::by_cause(worst, Style::of(index)),
                        background: &[],
                        ends,
                        timer: None,
                    })
                    .collect(),
            }],
            &keys.iter().collect::<Vec<_>>(),
        ),
        data: None,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::evaluate::{Causes, SlowestSummary};
    use serde_json::json;
    use std::time::{Duration, SystemTime};
    use taut_results::write_json;

    fn recording(dir: &Path) {
        let latency = json!({"count": 6, "min_ns": 1000, "avg_ns": 1400.0, "p50_ns": 1500, 
            "p99_ns": null, "p99_9_ns": null, "p99_99_ns": null, "p99_999_ns": null, "max_ns": 9000, "std_ns": 1.0});
        let tally = json!({"owed": 6, "sent": 6, "refused": 0, "unsent": 0, "received": 3, "corrupt": 0, "foreign": 0,
            "seconds": 2.0, "stopped": false});
        let stream = json!({"name": "traffic", "asked_pps": 1e4, "sent_pps": 1e4, "lost_share": 0.5, "lost": 3,
            "tally": tally, "latency_ns": latency});
        let mut summary = json!({});
        for (key, value) in [
            ("event", json!("summary")),
            ("started", json!("2026-11-21T08:15:00Z")),
            ("command_line", json!("taut generate <x>")),
            ("versions", json!({"taut": "0", "kernel": "1"})),
            (
                "activity",
                json!({"duration_ms": 2000, "context_switches": 7, "cores": [], "involuntary_switches": 0, "load_average_before": null}),
            ),
            ("streams", json!([stream])),
            ("warnings", json!(["The machine was busy."])),
        ] {
            summary[key] = value;
        }
        write_json(&dir.join("summary.json"), &summary).unwrap();
        let mut histogram = LatencyHistogram::new();
        histogram.record_many(1_500, 6);
        let mut log = Vec::new();
        histogram
            .write_hlog(&mut log, SystemTime::now(), Duration::from_secs(2), None)
            .unwrap();
        std::fs::write(dir.join(RECORDED_LATENCIES), log).unwrap();
        let slowest = SlowestPackets {
            summary: SlowestSummary {
                above_ns: 8_000.0,
                causes: Causes {
                    spikes: 2,
                    by_cause: [(Cause::DeviceTick, 1), (Cause::Unexplained, 1)].into(),
                    device_known: true,
                    ..Causes::default()
                },
            },
            each: vec![
                (0.5, 8_000.0, Cause::DeviceTick),
                (1.5, 9_000.0, Cause::Unexplained),
            ],
        };
        write_json(&dir.join(RECORDED_SLOWEST), &slowest).unwrap();
        let machine = json!({"cpu_model": {"value": "Example 9000"}, "isolated_cpus": []});
        write_json(&dir.join(RECORDED_MACHINE), &machine).unwrap();
    }

    #[test]
    fn reports_never_read_or_write_files_outside_the_results_folder() {
        let dir = tempfile::tempdir().unwrap();
        recording(dir.path());
        crate::strangers::check(dir.path(), write_recording);
    }

    #[test]
    fn a_recording_page_displays_the_causes_of_the_slowest_packets() {
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_recording(dir.path()));
        recording(dir.path());
        assert!(is_recording(dir.path()));
        let first = std::fs::read(write_recording(dir.path()).unwrap()).unwrap();
        let page = String::from_utf8(first.clone()).unwrap();
        for part in [
            "taut generate &#60;x&#62;",
            "device&#39;s core: timer tick",
            "50.0 %",
            "context switches",
            "Example 9000",
            ">isolated cpus<",
            "Latency histogram",
            "The machine was busy.",
        ] {
            assert!(page.contains(part), "{part}");
        }
        assert!(page.contains(taut_figure::DARK));
        assert!(
            !page.contains(">cores<"),
            "an empty list of activity is no row"
        );
        let figure = std::fs::read_to_string(dir.path().join("figures/slowest.svg")).unwrap();
        assert!(figure.contains("timer tick") && figure.contains("unexplained"));
        assert!(!figure.contains("prefers-color-scheme"));
        let again = std::fs::read(write_recording(dir.path()).unwrap()).unwrap();
        assert!(first == again);
    }

    #[test]
    fn the_page_names_missing_and_damaged_files() {
        let dir = tempfile::tempdir().unwrap();
        recording(dir.path());
        std::fs::remove_file(dir.path().join(RECORDED_LATENCIES)).unwrap();
        std::fs::write(dir.path().join(RECORDED_SLOWEST), "{").unwrap();
        let page = std::fs::read_to_string(write_recording(dir.path()).unwrap()).unwrap();
        for part in [
            RECORDED_LATENCIES,
            RECORDED_SLOWEST,
            "Missing or unreadable",
        ] {
            assert!(page.contains(part), "{part}");
        }
    }
}
