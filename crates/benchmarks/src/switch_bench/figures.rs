//! Figures of this benchmark's page: latency over loops next to the published points, rates over rules, and the effect
//! of priority on real-time packets.

use super::evaluate::{Evaluation, Line};
use super::part::Matching;
use taut_bench::report::Drawn;
use taut_figure::lines;
use taut_figure::scatter::{self, Item};
use taut_figure::{Axis, Chart, Scale, Series, Style};
use taut_measure::quantity::{Quantity, time};
use taut_model::published::flower_medians;

/// Draws all figures for which there is data.
pub(super) fn draw(evaluation: &Evaluation<'_>) -> Vec<Drawn> {
    let mut figures = Vec::new();
    figures.extend(draw_hops(evaluation));
    figures.extend(draw_rules(evaluation));
    figures.extend(draw_qos(evaluation));
    figures
}

/// Published median latencies of real-time packets while background traffic overloads the port, with strict priority
/// and without, ns. (The authors' histograms, emmericp/FLOWer-scripts.)
const PUBLISHED_QOS_NS: [(f64, &str); 2] = [
    (3_610.0, "published, with priority"),
    (5.26e6, "published, without"),
];

/// A series of a figure, and its points.
type Points = (Series, Vec<(f64, f64)>);

/// Returns the points of a scatter plot.
fn items(all: &[Points]) -> Vec<Item<'_>> {
    all.iter()
        .map(|(series, points)| Item {
            series: series.clone(),
            points,
        })
        .collect()
}

/// Returns the median latency over cables of each switch with data.
fn measured_hops(evaluation: &Evaluation<'_>) -> Vec<Points> {
    let mut all = Vec::new();
    for (index, row) in evaluation.switches.iter().enumerate() {
        let points: Vec<(f64, f64)> = row
            .hops
            .iter()
            .filter_map(|hop| Some((f64::from(hop.loops), hop.p50_ns.as_ref()?.point)))
            .collect();
        if points.is_empty() {
            continue;
        }
        let series = Series {
            label: row.switch.label(),
            style: Style::of(index),
        };
        all.push((series, points));
    }
    all
}

/// Returns the published medians up to the largest number of cables that was measured.
fn published_hops(measured: &[Points]) -> Points {
    let most = measured
        .iter()
        .flat_map(|(_, points)| points)
        .map(|it| it.0)
        .fold(0.0, f64::max);
    let published: Vec<(f64, f64)> = flower_medians()
        .into_iter()
        .filter(|(loops, _)| *loops <= most)
        .collect();
    let series = Series {
        label: "a switch of 48 ports, as published".to_string(),
        style: Style::reference(),
    };
    (series, published)
}

/// Returns the line of latency over cables of each switch, in words.
fn hop_lines(evaluation: &Evaluation<'_>) -> String {
    let lines = evaluation.switches.iter().filter_map(|row| {
        let Line {
            per_loop_ns,
            without_ns,
            r_squared,
            ..
        } = row.line.as_ref()?;
        Some(format!(
            "{}: {} and {} for each cable (R² {r_squared:.5}).",
            row.switch.label(),
            time(without_ns.value),
            time(per_loop_ns.value)
        ))
    });
    lines.collect::<Vec<_>>().join(" ")
}

fn draw_hops(evaluation: &Evaluation<'_>) -> Option<Drawn> {
    let mut all = measured_hops(evaluation);
    if all.is_empty() {
        return None;
    }
    all.push(published_hops(&all));
    let chart = Chart::new(
        "hops",
        "Median latency over cables",
        "Median latency of packets over the number of cables that they went through, beside the published medians.",
    );
    Some(Drawn {
        name: "hops",
        title: "Latency over cables",
        caption: format!(
            "Grey: the medians of FLOWer's switch in hardware, 942 ns and 714 ns for each cable. {}",
            hop_lines(evaluation)
        ),
        svg: scatter::chart(
            &chart,
            Axis {
                title: "cables",
                quantity: Quantity::Number,
                log: false,
            },
            Axis {
                title: "latency",
                quantity: Quantity::TimeNs,
                log: false,
            },
            &items(&all),
        ),
        data: None,
    })
}

fn draw_rules(evaluation: &Evaluation<'_>) -> Option<Drawn> {
    let mut all: Vec<Points> = Vec::new();
    for row in &evaluation.switches {
        for (matching, name) in [(Matching::Exact, "exact"), (Matching::Prefix, "by prefix")] {
            let of_kind = row.rules.iter().filter(|it| it.matching == matching);
            let points: Vec<(f64, f64)> = of_kind
                .filter_map(|it| Some((f64::from(it.rules), it.pps.as_ref()?.point)))
                .collect();
            if !points.is_empty() {
                let series = Series {
                    label: format!("{}, {name}", row.switch.label()),
                    style: Style::of(all.len()),
                };
                all.push((series, points));
            }
        }
    }
    if all.is_empty() {
        return None;
    }
    let chart = Chart::new(
        "rules",
        "Highest rate over rules",
        "Packets a second that came through when as many as possible were offered, over the number of rules.",
    );
    Some(Drawn {
        name: "rules",
        title: "Highest rate over rules",
        caption: "Packets a second that came through when as many as possible were offered; every rule has its packets.".to_string(),
        svg: scatter::chart(
            &chart,
            Axis {
                title: "rules",
                quantity: Quantity::Number,
                log: true,
            },
            Axis {
                title: "rate",
                quantity: Quantity::RatePps,
                log: true,
            },
            &items(&all),
        ),
        data: None,
    })
}

fn draw_qos(evaluation: &Evaluation<'_>) -> Option<Drawn> {
    let mut all = Vec::new();
    for row in &evaluation.switches {
        for (priority, name) in [(true, "with priority"), (false, "without")] {
            let of_kind = row.qos.iter().filter(|it| it.priority == priority);
            let points: Vec<(f64, f64)> = of_kind
                .filter_map(|it| {
                    let load = f64::from(it.load_percent) / 100.0;
                    Some((load, it.p50_ns.as_ref()?.point))
                })
                .collect();
            if !points.is_empty() {
                let series = Series {
                    label: format!("{}, {name}", row.switch.label()),
                    style: Style::of(all.len()),
                };
                all.push(lines::Line { series, points });
            }
        }
    }
    if all.is_empty() {
        return None;
    }
    let points = || all.iter().flat_map(|line| &line.points);
    let most = points().map(|it| it.0).fold(0.0, f64::max);
    let published = PUBLISHED_QOS_NS.map(|(ns, word)| (ns, word.to_string()));
    let latencies = points()
        .map(|it| it.1)
        .chain(published.iter().map(|it| it.0));
    let scales = (
        Scale::linear(Quantity::Share, 0.0, most),
        Scale::log(Quantity::TimeNs, latencies),
    );
    let chart = Chart::new(
        "qos",
        "Median latency of real-time packets over the background",
        "Median latency of real-time packets over the background, as a share of what the return port carries, with strict priority and without.",
    );
    Some(Drawn {
        name: "qos",
        title: "Real-time packets beside background",
        caption: "Background as a share of what the return port carries. Dashed: the medians of FLOWer's switch in hardware while its port was \
                  overloaded."
            .to_string(),
        svg: lines::draw(
            &chart,
            (scales.0, "background"),
            (scales.1, "median latency"),
            &all,
            &published,
        ),
        data: None,
    })
}
