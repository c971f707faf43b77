//! Tests of every kind of figure with synthetic data, narrow and wide: labels do not overlap, and every series is
//! drawn.

use super::cdf::Share;
use super::curves::{Curve, Extent, Point};
use super::svg::text_width;
use super::*;
use fastrand::Rng;
use taut_measure::LatencyHistogram;
use taut_measure::quantity::Quantity;

const NAMES: [&str; 3] = [
    "flush idle(32)",
    "flush each, a name that goes on for much longer than the others",
    "l2fwd <reference> & friends",
];

fn series(index: usize) -> Series {
    let style = Style::of(index);
    let style = if index == 1 { style.dashed() } else { style };
    Series {
        label: NAMES[index].to_owned(),
        style,
    }
}

fn latencies(seed: u64, shift: f64) -> LatencyHistogram {
    let mut random = Rng::with_seed(seed);
    let mut latency = LatencyHistogram::new();
    for _ in 0..200_000 {
        let ns = shift * (1.0 - 0.3 * (1.0 - random.f64()).ln());
        let stalled = if random.u32(..2000) == 0 { 40.0 } else { 1.0 };
        latency.record((ns * stalled) as u64);
    }
    latency
}

fn runs(seed: u64, middle: f64) -> Vec<f64> {
    let mut random = Rng::with_seed(seed);
    let mut values: Vec<f64> = (0..30)
        .map(|_| middle * (0.9 + 0.2 * random.f64()))
        .collect();
    values.sort_by(f64::total_cmp);
    values
}

fn curve(index: usize) -> Curve {
    let mut random = Rng::with_seed(index as u64);
    let mut point = |step: u32| {
        let x = f64::from(step) * 1.3e6;
        let y = 4000.0 * (index + 1) as f64 * (1.0 + f64::from(step).powi(2) / 30.0);
        let runs: Vec<f64> = (0..12).map(|_| y * (0.7 + 0.6 * random.f64())).collect();
        Point::of_runs(x, Quantity::RatePps, &runs, Quantity::TimeNs)
    };
    Curve {
        series: series(index),
        points: (0..9).filter_map(&mut point).collect(),
    }
}

fn groups<'a>(items: &[Item<'a>]) -> [Column<Item<'a>>; 2] {
    ["memif, 64 bytes", "veth, 64 bytes"].map(|heading| Column {
        heading: heading.to_owned(),
        items: items.to_vec(),
    })
}

/// Returns a figure of each kind at one width, as pairs of name and SVG document.
fn all(width: f64) -> Vec<(&'static str, String)> {
    let chart = |name| made_up(name, width);
    let mut figures = figures_of_packets(width);
    figures.extend(figures_of_runs(width));
    figures.extend([
        ("line-band", lines(&chart("lb"), Extent::Band)),
        ("line-bars", lines(&chart("lr"), Extent::Bars)),
        ("scatter", scattered(&chart("s"))),
        ("heat", heat_map(&chart("h"))),
        ("stack", stacked(&chart("st"), time(false))),
        ("effects", of_settings(&chart("e"))),
    ]);
    figures
}

/// Returns the names and the size of a figure with synthetic data.
fn made_up(name: &'static str, width: f64) -> Chart<'static> {
    Chart {
        width,
        ..Chart::new(name, "A made-up figure", "Nothing that was measured.")
    }
}

/// Returns an axis of latencies in ns, logarithmic if `log` is true.
fn time(log: bool) -> Axis<'static> {
    Axis {
        title: "round-trip latency",
        quantity: Quantity::TimeNs,
        log,
    }
}

/// Draws each kind of distribution figure (histogram, CDF, percentiles and so on) from latencies of packets.
fn figures_of_packets(width: f64) -> Vec<(&'static str, String)> {
    let chart = |name| made_up(name, width);
    let latency = [(1, 5e3), (2, 7e3), (3, 20e3)].map(|(seed, shift)| latencies(seed, shift));
    let of_packets: Vec<Item<'_>> = (0..3)
        .map(|index| Item {
            series: series(index),
            values: Distribution::Latency(&latency[index]),
        })
        .collect();
    vec![
        (
            "histogram-log",
            histogram::chart(&chart("hl"), time(true), "packets", &of_packets),
        ),
        (
            "cdf-log",
            cdf::chart(
                &chart("cl"),
                time(true),
                Share::AtMost,
                "packets",
                &of_packets,
                &[],
            ),
        ),
        (
            "cdf-tail",
            cdf::chart(
                &chart("ct"),
                time(true),
                Share::AtLeast,
                "packets",
                &of_packets,
                &[],
            ),
        ),
        (
            "percentiles",
            percentiles::chart(&chart("p"), time(true), "packets", &of_packets),
        ),
        (
            "boxes",
            boxes::chart(&chart("b"), time(true), "packets", &groups(&of_packets)),
        ),
    ]
}

/// Draws each kind of distribution figure (histogram, CDF, percentiles and so on) from data with one value per run.
fn figures_of_runs(width: f64) -> Vec<(&'static str, String)> {
    let chart = |name| made_up(name, width);
    let number = Axis {
        title: "energy per packet (nJ)",
        quantity: Quantity::Number,
        log: false,
    };
    let values = [(1, 1230.0), (2, 1300.0), (3, 1500.0)].map(|(seed, middle)| runs(seed, middle));
    let of_runs: Vec<Item<'_>> = (0..3)
        .map(|index| Item {
            series: series(index),
            values: Distribution::Sorted(&values[index]),
        })
        .collect();
    vec![
        (
            "histogram-runs",
            histogram::chart(&chart("hr"), number, "runs", &of_runs),
        ),
        (
            "cdf-runs",
            cdf::chart(&chart("cr"), number, Share::AtMost, "runs", &of_runs, &[]),
        ),
        (
            "percentiles-runs",
            percentiles::chart(&chart("pr"), number, "runs", &of_runs),
        ),
        (
            "boxes-runs",
            boxes::chart(&chart("br"), number, "runs", &groups(&of_runs)),
        ),
    ]
}

/// Draws curves of latency over the offered rate.
fn lines(chart: &Chart<'_>, extent: Extent) -> String {
    let rate = Axis {
        title: "offered rate (packets/s)",
        quantity: Quantity::RatePps,
        log: false,
    };
    let curves = (0..3).map(curve).collect();
    curves::chart(chart, rate, time(false), extent, curves)
}

/// Draws the effects of settings, one of which is stated.
fn of_settings(chart: &Chart<'_>) -> String {
    let item = |index: usize| effects::Item {
        series: series(index),
        ratio: Ok([0.5, 0.7 + 0.2 * index as f64, 1.3]),
        stated: index == 0,
    };
    let groups = ["p99.999", "longest gap"].map(|heading| Column {
        heading: heading.to_owned(),
        items: (0..3).map(item).collect(),
    });
    effects::chart(chart, "on / off", &groups)
}

/// Draws three clouds: of many, some and few points.
fn scattered(chart: &Chart<'_>) -> String {
    let mut random = Rng::with_seed(9);
    let cloud: Vec<Vec<(f64, f64)>> = (0..3)
        .map(|index| {
            let count = [200_000, 500, 40][index];
            let mut point = || {
                let x = random.f64() + random.f64();
                (
                    x * 1e6,
                    1e3 * (index + 1) as f64 * (1.0 + x * random.f64() * 30.0),
                )
            };
            (0..count).map(|_| point()).collect()
        })
        .collect();
    let clouds: Vec<scatter::Item<'_>> = (0..3)
        .map(|index| scatter::Item {
            series: series(index),
            points: &cloud[index],
        })
        .collect();
    let rate = Axis {
        title: "packets/s",
        quantity: Quantity::RatePps,
        log: false,
    };
    scatter::chart(chart, rate, time(true), &clouds)
}

/// Draws a cell for each pair of frame size and buffer; some have no value.
fn heat_map(chart: &Chart<'_>) -> String {
    let side = |title: &str, values: &[u32]| heat::Side {
        title: title.to_owned(),
        labels: values
            .iter()
            .map(|value| format!("{value} bytes"))
            .collect(),
    };
    let (x, y) = (
        side("frame size", &[64, 128, 256, 512, 1024, 1280, 1518]),
        side("buffer", &[1, 8, 32, 64, 256]),
    );
    let cells: Vec<Vec<Option<f64>>> = (0..5)
        .map(|row| {
            let cell = |column: i32| 1e3 * 2.2_f64.powi(row + column / 2);
            (0..7).map(|c| (row + c != 4).then(|| cell(c))).collect()
        })
        .collect();
    heat::chart(chart, time(true), &x, &y, &cells)
}

/// Draws rows of three parts, one of which is unknown in the second row.
fn stacked(chart: &Chart<'_>, axis: Axis<'_>) -> String {
    let item = |index: usize| stack::Item {
        series: series(index),
        parts: vec![
            Some(1e6 * (index + 1) as f64),
            (index != 1).then_some(3e5),
            Some(2e6),
        ],
    };
    let column = Column {
        heading: String::new(),
        items: (0..3).map(item).collect(),
    };
    let parts = [0, 1, 2].map(series);
    stack::chart(chart, axis, &parts, &[column])
}

/// Returns the position of each upright text of a document: left, right, baseline, text.
fn texts(svg: &str) -> Vec<(f64, f64, f64, String)> {
    let attribute = |tag: &str, name: &str| -> Option<String> {
        let from = tag.find(&format!(" {name}=\""))? + name.len() + 3;
        Some(tag[from..].split('"').next()?.to_owned())
    };
    let place = |element: &str| {
        let (tag, rest) = element.split_once('>')?;
        let text = rest
            .split_once('<')?
            .0
            .replace("&lt;", "<")
            .replace("&gt;", ">");
        let text = text.replace("&amp;", "&");
        let number = |name| attribute(tag, name)?.parse::<f64>().ok();
        let (x, y) = (number("x")?, number("y")?);
        let size = attribute(tag, "font-size").map_or(Some(11.0), |size| size.parse().ok())?;
        let width = text_width(&text, size);
        let left = match attribute(tag, "text-anchor")?.as_str() {
            "middle" => x - width / 2.0,
            "end" => x - width,
            _ => x,
        };
        Some((left, left + width, y, text))
    };
    svg.split("<text").skip(1).filter_map(place).collect()
}

#[test]
#[ignore = "writes figures to look at: cargo test -p taut-figure -- --ignored look"]
fn synthetic_figures_are_written_to_files_for_manual_inspection() {
    let folder = tempfile::tempdir()
        .expect("the folder for temporary files can be written")
        .keep();
    for width in [400.0, 800.0] {
        for (name, svg) in all(width) {
            let path = folder.join(format!("{name}-{width}.svg"));
            std::fs::write(path, &svg).expect("the folder for temporary files can be written");
        }
    }
    println!("{}", folder.display());
}

#[test]
fn labels_neither_overlap_nor_leave_the_figure_at_any_width() {
    for width in [400.0, 800.0] {
        for (name, svg) in all(width) {
            let texts = texts(&svg);
            assert!(texts.len() > 6, "{name} {width}");
            for (index, a) in texts.iter().enumerate() {
                assert!(a.0 >= 0.0 && a.1 <= width, "{name} {width}: {a:?} outside");
                for b in &texts[index + 1..] {
                    let meet = a.0 < b.1 && b.0 < a.1 && (a.2 - b.2).abs() < 9.0;
                    assert!(!meet, "{name} {width}: {a:?} meets {b:?}");
                }
            }
        }
    }
}

#[test]
fn every_series_is_drawn_and_labelled_without_nan() {
    for (name, svg) in all(800.0) {
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}");
        assert_eq!(svg.matches("<g").count(), svg.matches("</g>").count());
        if name == "heat" {
            assert_eq!(svg.matches("data-tip").count(), 35);
            assert_eq!(svg.matches("<title>no data").count(), 5);
            continue;
        }
        for series in (0..3).map(series) {
            let label = series
                .label
                .replace('&', "&amp;")
                .replace('<', "&lt;")
                .replace('>', "&gt;");
            assert!(svg.contains(&format!("<title>{label}")), "{name}: {label}");
            assert!(svg.contains(series.style.colour), "{name}: {label}");
        }
        // In every kind of figure that draws lines, one of the two compared series is dashed.
        assert!(svg.contains("stroke-dasharray=\"5 4\""), "{name}");
    }
}

#[test]
fn figures_of_millions_of_packets_stay_small() {
    for (name, svg) in all(800.0) {
        let limit = if name == "scatter" {
            2_000_000
        } else {
            100_000
        };
        assert!(svg.len() < limit, "{name}: {} bytes", svg.len());
    }
}

#[test]
fn figures_without_valid_data_display_the_text_no_data() {
    let chart = Chart::new("e", "t", "d");
    let axis = Axis {
        title: "x",
        quantity: Quantity::Number,
        log: true,
    };
    let nothing = Item {
        series: series(0),
        values: Distribution::Sorted(&[]),
    };
    let items = [nothing];
    let groups = [Column {
        heading: String::new(),
        items: items.to_vec(),
    }];
    let points = [(f64::NAN, 1.0), (1.0, f64::INFINITY)];
    let scattered = scatter::Item {
        series: series(0),
        points: &points,
    };
    let side = heat::Side {
        title: String::new(),
        labels: Vec::new(),
    };
    for svg in [
        curves::chart(&chart, axis, axis, Extent::Band, Vec::new()),
        histogram::chart(&chart, axis, "runs", &items),
        cdf::chart(&chart, axis, Share::AtMost, "runs", &items, &[]),
        cdf::chart(&chart, axis, Share::AtLeast, "runs", &[], &[]),
        percentiles::chart(&chart, axis, "runs", &items),
        boxes::chart(&chart, axis, "runs", &groups),
        boxes::chart(&chart, axis, "runs", &[]),
        scatter::chart(&chart, axis, axis, &[scattered]),
        heat::chart(&chart, axis, &side, &side, &[]),
    ] {
        assert!(svg.contains("no data") && !svg.contains("NaN"), "{svg}");
    }
    // The inputs are a single value, values that a logarithmic axis cannot show, and a single zero.
    for values in [[5.0].as_slice(), &[-1.0, 0.0, 3.0], &[0.0]] {
        let item = Item {
            series: series(0),
            values: Distribution::Sorted(values),
        };
        for log in [true, false] {
            let axis = Axis { log, ..axis };
            let items = [item.clone()];
            for svg in [
                histogram::chart(&chart, axis, "runs", &items),
                cdf::chart(&chart, axis, Share::AtMost, "runs", &items, &[]),
                percentiles::chart(&chart, axis, "runs", &items),
            ] {
                assert!(
                    !svg.contains("NaN") && svg.contains("data-label"),
                    "{values:?}"
                );
            }
        }
    }
}
