//! The report of a folder of `taut capture match --out`: delays and losses of each direction, and the packets with the
//! longest delays.

use askama::Template;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::{Shell, write_page};
use taut_bench::evaluate::{Collector, Timeline};
use taut_bench::report::{Drawn, ReportError, flatten, histogram};
use taut_figure::cdf::{self, Share};
use taut_figure::{Axis, Chart, Column, Distribution, Item, Series, Style, timeline};
use taut_measure::LatencyHistogram;
use taut_measure::quantity::{Quantity, count, share, time};
use taut_results::{LeftOut, RECORDED_LATENCIES, ResultsError, each_kept_sample, read_json};
use taut_tap::{Delayed, DirectionReport, MatchReport, TapReport};

/// Number of packets in each list of packets on the page.
const SHOWN: usize = 20;

#[derive(Template)]
#[template(path = "matched.html")]
struct Page<'a> {
    shell: Shell<'a>,
    ways: Vec<(String, Vec<String>)>,
    facts: Vec<(&'static str, String)>,
    lists: Vec<(&'static str, Vec<[String; 5]>)>,
}

/// One direction between the two capture points, with the data of its files.
struct Way<'a> {
    report: &'a DirectionReport,
    label: String,
    latency: LatencyHistogram,
    timeline: Option<Timeline>,
}

/// Returns true if a folder was written by `taut capture match --out`.
pub fn is_matched(dir: &Path) -> bool {
    let summary: Result<TapReport, ResultsError> = read_json(dir, "summary.json");
    summary.is_ok_and(|it| it.matching.is_some())
}

/// Writes `figures/` and `report.html` into the folder `dir` of `taut capture match --out`, made from the files there.
/// Returns the path of the page; earlier files are replaced.
///
/// # Errors
/// Returns an error if the folder cannot be read or written.
pub fn write_page_of(dir: &Path) -> Result<PathBuf, ReportError> {
    let report: TapReport = read_json(dir, "summary.json")?;
    let Some(matching) = &report.matching else {
        let path = dir.join("summary.json");
        let why = std::io::Error::other("of a tap, not of taut capture match");
        return Err(ResultsError::io(&path)(why).into());
    };
    let (mut left_out, mut problems) = (Vec::new(), Vec::new());
    if report.samples.is_none_or(|it| it == 0) {
        left_out.push(LeftOut {
            what: "Delays over time".to_owned(),
            why: "no samples were kept".to_owned(),
            how: "leave --samples none out".to_owned(),
        });
    }
    let ways = report.directions.iter();
    let ways = ways.filter(|it| it.all.left > 0);
    let ways: Vec<_> = ways
        .map(|way| read(dir, &report, way, &mut problems))
        .collect();
    let figures = draw(&ways);
    let page = page(&report, matching, &figures, (&left_out, &problems)).render()?;
    write_page(dir, &figures, &page)
}

fn read<'a>(
    dir: &Path,
    report: &TapReport,
    way: &'a DirectionReport,
    problems: &mut Vec<String>,
) -> Way<'a> {
    let latency = format!("{}/{RECORDED_LATENCIES}", way.from);
    let latency = histogram(dir, &latency).unwrap_or_else(|e| {
        problems.push(e);
        LatencyHistogram::new()
    });
    let mut timeline = None;
    if report.samples.is_some_and(|it| it > 0) {
        let mut collector = Collector::new(way.all.entered);
        let flow = format!("{}/flow-0", way.from);
        match each_kept_sample(dir, &flow, |sample| collector.record(sample, None)) {
            Ok(true) => timeline = Some(collector.finish()),
            Ok(false) => problems.push(format!(
                "{}: the samples are gone",
                dir.join(flow).display()
            )),
            Err(e) => problems.push(e.to_string()),
        }
    }
    Way {
        report: way,
        label: label(way),
        latency,
        timeline,
    }
}

fn label(way: &DirectionReport) -> String {
    let to = way.to.as_deref().unwrap_or("nowhere");
    format!("{} to {to}", way.from)
}

fn page<'a>(
    report: &'a TapReport,
    matching: &'a MatchReport,
    figures: &'a [Drawn],
    (left_out, problems): (&'a [LeftOut], &'a [String]),
) -> Page<'a> {
    let origin = &matching.origin;
    let version = origin.versions["taut"].as_str().unwrap_or("unknown");
    Page {
        shell: Shell {
            title: format!("Packets between {}", report.interfaces.join(" and ")),
            subtitle: format!("{} · taut {version}", origin.started),
            busy: None,
            state: trusted(report),
            finding: report
                .directions
                .iter()
                .map(finding)
                .collect::<Vec<_>>()
                .join(" "),
            figures,
            noise: &[],
            left_out,
            failed_attempts: &[],
            problems,
            machine: flatten(&origin.versions),
            command_line: &origin.command_line,
        },
        ways: report
            .directions
            .iter()
            .map(|it| (label(it), cells(it)))
            .collect(),
        facts: facts(report, matching),
        lists: vec![
            ("The slowest packets", rows(&matching.slowest)),
            (
                "The first packets that were lost",
                rows(&matching.lost_packets),
            ),
        ],
    }
}

/// Returns a warning that the losses are unreliable if the wiretaps failed to record some packets.
fn trusted(report: &TapReport) -> Option<String> {
    let missed = report.missed.ring_full + report.missed.unseen;
    (missed > 0).then(|| {
        format!(
            "The taps themselves missed {} packets: the loss counts are unreliable.",
            count(missed)
        )
    })
}

fn finding(way: &DirectionReport) -> String {
    let all = &way.all;
    let Some(latency) = &all.latency_ns else {
        return format!("Nothing that was seen at {} was matched.", way.from);
    };
    let lost = share(all.lost as f64 / all.entered as f64);
    let median = latency
        .p50_ns
        .map_or_else(|| time(latency.avg_ns), |ns| time(ns as f64));
    format!(
        "{}: half of the packets took {median} at most, the slowest {}; {lost} were lost.",
        label(way),
        time(latency.max_ns as f64)
    )
}

fn cells(way: &DirectionReport) -> Vec<String> {
    let all = &way.all;
    let ns = |ns: Option<u64>| ns.map_or("–".to_owned(), |ns| time(ns as f64));
    let of = all.latency_ns.as_ref();
    vec![
        count(all.entered),
        count(all.lost),
        count(all.reordered),
        ns(of.map(|it| it.min_ns)),
        of.map_or("–".to_owned(), |it| time(it.avg_ns)),
        ns(of.and_then(|it| it.p50_ns)),
        ns(of.and_then(|it| it.p99_ns)),
        ns(of.and_then(|it| it.p99_9_ns)),
        ns(of.and_then(|it| it.p99_99_ns)),
        ns(of.map(|it| it.max_ns)),
    ]
}

fn facts(report: &TapReport, matching: &MatchReport) -> Vec<(&'static str, String)> {
    let counts = &matching.counts;
    let mut facts = vec![("matched", count(counts.matched))];
    let medians = matching.median_ns.iter().flatten();
    facts.extend(medians.map(|it| {
        let median = format!("{} ({})", time(it.point), it.words(time));
        ("median and its interval", median)
    }));
    facts.push((
        "lost: not seen again within",
        time(matching.within_ns as f64),
    ));
    for (name, value) in [
        ("seen at the second place only", report.only_left),
        (
            "seen again while one like it was under way",
            counts.ambiguous,
        ),
        ("without room to wait in", counts.gave_up),
        ("seen first where they did not come from", counts.early),
        ("left out by the filter", matching.others.filtered),
        ("not to be told apart", matching.others.unidentified),
    ] {
        facts.push((name, count(value)));
    }
    facts
}

fn rows(packets: &[Delayed]) -> Vec<[String; 5]> {
    let shown = packets.iter().take(SHOWN);
    let row = |it: &Delayed| {
        [
            taut_capture::dump::time_in_words(it.time_ns),
            it.from.clone(),
            it.sequence.to_string(),
            it.time_ns.to_string(),
            it.delay_ns.map_or("lost".to_owned(), |ns| time(ns as f64)),
        ]
    };
    shown.map(row).collect()
}

fn series(ways: &[Way<'_>], at: usize) -> Series {
    Series {
        label: ways[at].label.clone(),
        style: Style::of(at),
    }
}

fn draw(ways: &[Way<'_>]) -> Vec<Drawn> {
    if ways.is_empty() {
        return Vec::new();
    }
    let chart = Chart::new(
        "match",
        "Cumulative distribution of delays",
        "Share of matched packets with at most a given delay.",
    );
    let axis = Axis {
        title: "delay",
        quantity: Quantity::TimeNs,
        log: true,
    };
    let items: Vec<_> = (0..ways.len())
        .map(|at| Item {
            series: series(ways, at),
            values: Distribution::Latency(&ways[at].latency),
        })
        .collect();
    let packets: u64 = ways.iter().map(|it| it.latency.count()).sum();
    let distribution = Drawn {
        name: "cdf",
        title: "Delays",
        caption: format!("{} packets.", count(packets)),
        svg: cdf::chart(&chart, axis, Share::AtMost, "packets", &items, &[]),
        data: None,
    };
    let key = Series {
        label: "one of the slowest".to_owned(),
        style: Style::of(0),
    };
    let columns: Vec<_> = (0..ways.len())
        .filter_map(|at| {
            let found = ways[at].timeline.as_ref()?;
            let item = timeline::Item {
                series: series(ways, at),
                worst: vec![(key.clone(), found.slowest(ways[at].report.all.left))],
                background: &found.background,
                ends: &found.ends,
                timer: None,
            };
            Some(Column {
                heading: ways[at].label.clone(),
                items: vec![item],
            })
        })
        .collect();
    let over_time = (!columns.is_empty()).then(|| Drawn {
        name: "timeline",
        title: "Delays over time",
        caption: "Some of the packets in grey, over the time at which they were first seen; in colour the slowest, one in a thousand. Lost \
                  ones have no delay."
            .to_owned(),
        svg: timeline::draw(&columns, &[&key]),
        data: None,
    });
    std::iter::once(distribution).chain(over_time).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_capture::matching::{Identify, Settings};
    use taut_results::{Origin, PacketFormat};
    use taut_tap::{Matched, PlaceCounts, TapFolder};
    use taut_wire::UdpFlow;
    use taut_xdp::wire_tap::Missed;

    #[test]
    fn the_report_page_of_a_capture_folder_is_reproducible() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out");
        let folder = TapFolder::create(&out, Some(PacketFormat::Csv)).unwrap();
        let places = ["A", "B"].map(String::from);
        let mut matched = Matched::new(&places, Settings::default(), Some(folder));
        for number in 0..100_u8 {
            let mut frame = UdpFlow::default().frame(200).unwrap();
            frame[50] = number;
            let identity = Identify::default().of(&frame, 200).unwrap();
            let sent_ns = 1_700_000_000_000_000_000 + 10_000 * u64::from(number);
            matched.see(false, identity, sent_ns);
            if number != 7 {
                matched.see(true, identity, sent_ns + 500 + u64::from(number));
            }
        }
        let missed = Missed {
            ring_full: 0,
            unseen: 3,
        };
        let (_, written) = matched.finish(PlaceCounts::default(), missed, Origin::default());
        crate::strangers::check(&out, write_page_of);
        let page = write_page_of(&written.unwrap().unwrap()).unwrap();
        assert!(is_matched(&out));
        let first = std::fs::read_to_string(page).unwrap();
        for part in [
            "A to B",
            "unreliable",
            "1700000000000990000",
            "599 ns",
            "lost",
        ] {
            assert!(first.contains(part), "{part}");
        }
        assert!(first == std::fs::read_to_string(write_page_of(&out).unwrap()).unwrap());
        // The names of capture points are used as folder names, which must not lead out of the results folder.
        std::fs::rename(out.join("A"), dir.path().join("elsewhere")).unwrap();
        let summary = out.join("summary.json");
        let text = std::fs::read_to_string(&summary).unwrap();
        std::fs::write(&summary, text.replace("\"A\"", "\"../elsewhere\"")).unwrap();
        let page = std::fs::read_to_string(write_page_of(&out).unwrap()).unwrap();
        assert!(
            page.contains("cannot be the name of a file in the folder"),
            "{page}"
        );
    }
}
