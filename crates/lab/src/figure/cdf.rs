//! Cumulative distribution of latency: which share of packets took at most how long.

use taut_measure::LatencyHistogram;

use crate::quantity::Quantity;

use super::axes::{Hover, Labels, Panel, columns};
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Column, Series, WIDTH, legend};

/// One device's latencies.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Whose.
    pub series: Series,
    /// The latencies, ns.
    pub latency: &'a LatencyHistogram,
}

const PANEL_HEIGHT: f64 = 260.0;
/// Most points of a line: more than that cannot be seen at this size.
const POINTS: u64 = 300;

/// Draws the figure.
pub fn draw(columns_of: &[Column<Item<'_>>]) -> String {
    let bounds = columns(columns_of.len(), 70.0, 18.0);
    let series = |column: &Column<Item<'_>>| {
        column
            .items
            .iter()
            .map(|item| item.series.clone())
            .collect::<Vec<_>>()
    };
    let keys: Vec<Vec<Series>> = columns_of.iter().map(series).collect();
    let strips = keys
        .iter()
        .zip(&bounds)
        .map(|(keys, (_, width))| legend::strip_height(*width, &keys.iter().collect::<Vec<_>>()));
    let top = 30.0 + strips.fold(0.0, f64::max) + 8.0;
    let mut svg = Svg::new(
        "cdf",
        WIDTH,
        top + PANEL_HEIGHT + 46.0,
        "Cumulative distribution of latency",
        "Share of packets with at most a given round-trip latency, one line per device.",
    );
    let x = Scale::log(
        Quantity::TimeNs,
        columns_of
            .iter()
            .flat_map(|column| &column.items)
            .flat_map(|item| ends(item.latency)),
    );
    let y = Scale::linear(Quantity::Share, 0.0, 1.0);
    for ((column, keys), (left, width)) in columns_of.iter().zip(&keys).zip(bounds) {
        svg.text((left, 16.0), Anchor::Start, "head", &column.heading);
        legend::strip(
            &mut svg,
            (left, 26.0),
            width,
            &keys.iter().collect::<Vec<_>>(),
        );
        let panel = Panel {
            left,
            top,
            width,
            height: PANEL_HEIGHT,
            x,
            y,
        };
        let labels = Labels {
            x: Some("round-trip latency"),
            y: Some("share of packets"),
            x_ticks: 8,
            y_ticks: 5,
        };
        panel.open(&mut svg, Hover::AtX, labels);
        if column.items.iter().all(|item| item.latency.count() == 0) {
            panel.empty(&mut svg, "no data");
        }
        for item in &column.items {
            let line = points(item.latency)
                .into_iter()
                .map(|(ns, share)| (panel.px(ns), panel.py(share)));
            let path = Path::through(line);
            if !path.data().is_empty() {
                let Series { label, style } = &item.series;
                svg.path(
                    path.data(),
                    &[
                        ("class", "line"),
                        ("stroke", style.colour),
                        ("stroke-dasharray", style.dash),
                        ("data-label", label),
                    ],
                );
            }
        }
        panel.close(&mut svg);
    }
    svg.finish()
}

fn ends(latency: &LatencyHistogram) -> impl Iterator<Item = f64> {
    [latency.min_ns(), latency.max_ns()]
        .into_iter()
        .flatten()
        .map(|ns| ns as f64)
}

/// Steps of the distribution, thinned to those that show: latency in ns, share at or below it.
fn points(latency: &LatencyHistogram) -> Vec<(f64, f64)> {
    let total = latency.count();
    let Some(min) = latency.min_ns() else {
        return Vec::new();
    };
    let mut points = vec![(min as f64, 0.0)];
    let (mut below, mut drawn) = (0u64, 0u64);
    for bucket in latency.iter() {
        below += bucket.count;
        if (below - drawn).saturating_mul(POINTS) >= total || below == total {
            let ns = bucket
                .high_ns
                .min(latency.max_ns().unwrap_or(bucket.high_ns));
            points.push((ns as f64, below as f64 / total as f64));
            drawn = below;
        }
    }
    points
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_rises_from_the_smallest_latency_to_all_packets() {
        let mut latency = LatencyHistogram::new();
        (1..=50_000u64).for_each(|ns| latency.record(ns));
        let points = points(&latency);
        assert_eq!(points.first(), Some(&(1.0, 0.0)));
        assert_eq!(points.last(), Some(&(50_000.0, 1.0)));
        assert!(points.len() <= POINTS as usize + 2);
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
    }
}
