//! The report of the benchmarks: a self-contained page, an SVG file per figure, and the summary in JSON. All are made
//! from the folder.

use super::evaluate::{Evaluation, Missed, SizeRow, Warning, named_size};
use super::results::{Part, Results, Soak, SoakInterval};
use super::tables::{self, DEVICE_ONLY, gigabits};
use askama::Template;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::{Path, PathBuf};
use taut_bench::benchmark::tables::Table;
use taut_bench::benchmark::{OtherPrograms, Shell, highest, publish};
use taut_bench::report::{Drawn, ReportError, Shown, causes};
use taut_figure::curves::{self, Curve, Extent, Figure, Part as PanelPart, Point};
use taut_figure::{Chart, Column, Distribution, Item, Scale, Series, Style, percentiles, timeline};
use taut_measure::quantity::{Quantity, count, rate, share, three_digits, time};
use taut_measure::{Limit, Method};
use taut_results::Completion;

/// Maximum number of frame sizes with a figure of latency.
const DRAWN_SIZES: usize = 3;

/// Maximum number of soak intervals that are drawn separately; more are merged.
const DRAWN_INTERVALS: usize = 400;

/// The contents of `summary.json`.
#[derive(Serialize, JsonSchema)]
pub struct Summary<'a> {
    device: &'a str,
    #[serde(rename = "stage")]
    completion: Completion,
    sizes: &'a [SizeRow],
    soak: Option<&'a Soak>,
    limits_missed: Vec<String>,
    warnings: Vec<String>,
    problems: &'a [String],
    #[serde(flatten)]
    others: OtherPrograms,
}

#[derive(Template)]
#[template(path = "rfc2544.html")]
struct Page<'a> {
    shell: Shell<'a>,
    missed: &'a [Missed],
    warnings: &'a [Warning],
    tables: Vec<Table>,
    has_soak: bool,
    method: String,
    device: &'a str,
    device_note: &'a str,
    core_plan: &'a str,
}

/// Writes the report of a results folder, and returns the text for a terminal with `width` columns.
///
/// # Errors
/// Returns an error if the folder cannot be read or written.
pub fn show(dir: &Path, width: Option<usize>) -> Result<Shown, ReportError> {
    let results = Results::load(dir)?;
    let evaluation = Evaluation::of(&results);
    let page = write(dir, &evaluation)?;
    Ok(Shown {
        text: tables::text(&evaluation, width),
        problems: [texts(&evaluation.warnings), results.problems.clone()].concat(),
        missed: texts(&evaluation.missed),
        completion: results.head.manifest.completion,
        wants_all: true,
        left_out: results.head.manifest.left_out.clone(),
        ..Shown::page(page)
    })
}

fn texts(values: &[impl ToString]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

fn write(dir: &Path, evaluation: &Evaluation<'_>) -> Result<PathBuf, ReportError> {
    let results = evaluation.results;
    let summary = Summary {
        device: &results.head.device,
        completion: results.head.manifest.completion,
        sizes: &evaluation.rows,
        soak: results.soak.as_ref(),
        limits_missed: texts(&evaluation.missed),
        warnings: texts(&evaluation.warnings),
        problems: &results.problems,
        others: OtherPrograms::of(&results.head.manifest.noise),
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
        warnings: &evaluation.warnings,
        tables: tables::all(evaluation),
        has_soak: results.soak.is_some(),
        method: method(evaluation),
        device: &head.device,
        device_note: &head.device_note,
        core_plan: &head.manifest.core_plan,
    }
}

/// Returns the result in one or two sentences.
fn finding(evaluation: &Evaluation<'_>) -> String {
    let device = &evaluation.results.head.device;
    let held: Vec<&SizeRow> = evaluation
        .rows
        .iter()
        .filter(|row| row.throughput.as_ref().is_some_and(|t| t.mean_pps > 0.0))
        .collect();
    let is_busy = evaluation.is_busy();
    let throughput = |row: &SizeRow| {
        let found = row.throughput.as_ref();
        let (pps, limit) = found.map_or((0.0, Limit::Device), |t| (t.mean_pps, t.limited_by));
        let frames = match row.size.as_str() {
            "imix" => "IMIX frames".to_owned(),
            size => format!("frames of {size} bytes"),
        };
        format!("{} with {frames}", highest::in_words(pps, limit, is_busy))
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

/// Returns a description of the measurement.
fn method(evaluation: &Evaluation<'_>) -> String {
    let s = &evaluation.results.head.settings;
    let search = match s.method {
        Method::Binary => "bisection in which one trial decides (RFC 2544 section 26.1)".to_string(),
        Method::Tst009 => "bisection in which a trial that fails is verified by another one (ETSI GS NFV-TST 009 clause 12.3.3)".to_string(),
        Method::Mlr => format!(
            "single trials that find where to look, then up to {} full trials per rate that vote (MLRsearch, RFC 9971)",
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
                    "{}|{}|{} of frames",
                    named_size(&row.size),
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

/// Returns the first, the middle and the last index of a list of `count` frame sizes.
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
            heading: named_size(&rows[index].size),
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

/// Draws the slowest packets over time by cause; none if no interruptions were logged.
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
            heading: named_size(&rows[*index].size),
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
            series: series(index, named_size(&row.size)),
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

/// Merges neighbouring intervals, so that at most [`DRAWN_INTERVALS`] are drawn. The worst values are preserved.
fn drawn_intervals(intervals: &[SoakInterval]) -> Vec<&[SoakInterval]> {
    let together = intervals.len().div_ceil(DRAWN_INTERVALS).max(1);
    intervals.chunks(together).collect()
}

/// Returns the curve of a value over the merged intervals.
fn soak_curve(
    drawn: &[&[SoakInterval]],
    series: Series,
    of: impl Fn(&SoakInterval) -> Option<f64>,
    show: fn(f64) -> String,
) -> Curve {
    let points = drawn
        .iter()
        .filter_map(|together| {
            let mut values: Vec<f64> = together.iter().filter_map(&of).collect();
            values.sort_by(f64::total_cmp);
            let y = [*values.first()?, values[values.len() / 2], *values.last()?];
            let x = together.first()?.start_seconds;
            Some(Point {
                x,
                y,
                tip: format!("{} s|{}", three_digits(x), show(y[1])),
            })
        })
        .collect();
    Curve { series, points }
}

/// Returns the share of an interval's packets that were lost; none if no packet was offered.
fn lost_share(i: &SoakInterval) -> Option<f64> {
    let offered = (i.sent + i.refused) as f64;
    (offered > 0.0).then(|| 1.0 - i.received.min(i.sent) as f64 / offered)
}

fn draw_soak(intervals: &[SoakInterval]) -> Drawn {
    let drawn = drawn_intervals(intervals);
    let ns = |of: fn(&taut_measure::Summary) -> Option<u64>| {
        move |i: &SoakInterval| i.latency.as_ref().and_then(of).map(|ns| ns as f64)
    };
    let named = |index: usize, label: &str| series(index, label.to_string());
    let latency = vec![
        soak_curve(&drawn, named(0, "p50"), ns(|l| l.p50_ns), time),
        soak_curve(&drawn, named(1, "p99"), ns(|l| l.p99_ns), time),
        soak_curve(&drawn, named(2, "max"), ns(|l| Some(l.max_ns)), time),
    ];
    let loss = vec![soak_curve(&drawn, named(3, "lost"), lost_share, share)];
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
    use super::super::HEAD;
    use super::super::made_up;
    use super::*;
    use std::fs;
    use taut_results::Noise;

    #[test]
    fn the_page_is_self_contained_and_reproducible_from_its_folder() {
        let (_parent, dir) = made_up::folder(Completion::Interrupted);
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
    fn the_page_names_the_cause_that_limited_the_throughput() {
        let (_parent, dir) = made_up::folder_of(Completion::Finished, 1_000);
        let mut results = Results::load(&dir).unwrap();
        let mut evaluation = Evaluation::of(&results);
        assert!(!finding(&evaluation).contains("at least"));
        for row in &mut evaluation.rows {
            if let Some(throughput) = &mut row.throughput {
                throughput.limited_by = Limit::Generator;
            }
        }
        let said = finding(&evaluation);
        assert!(
            said.contains("pkt/s (the generator was the limit) with frames of 64 bytes"),
            "{said}"
        );
        let table = tables::text(&evaluation, None);
        assert!(table.contains(" the generator"), "{table}");
        results.head.manifest.noise.push(Noise {
            name: "made up".to_owned(),
            detail: String::new(),
            taken: Some(0.5),
            programs: Vec::new(),
        });
        let evaluation = Evaluation::of(&results);
        assert!(finding(&evaluation).contains("at least"));
        let table = tables::text(&evaluation, None);
        assert!(table.contains("the device, or other programs"), "{table}");
    }

    #[test]
    fn reports_never_read_or_write_files_outside_the_results_folder() {
        // The folder has few packets, because the check reads many copies of it.
        let (_parent, dir) = made_up::folder_of(Completion::Finished, 1_000);
        crate::strangers::check(&dir, |dir| show(dir, None).map(|it| it.page));
    }

    #[test]
    fn damaged_files_are_named_and_undamaged_results_are_displayed() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
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
