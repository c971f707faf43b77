//! Cumulative distributions: the fraction of packets, or of runs, that took at most, or at least, a given time.

use super::axes::{Hover, Labels, Panel, columns};
use super::chart::{Axis, Chart};
use super::distribution::{Distribution, Item};
use super::scale::{Scale, Spacing};
use super::svg::{Anchor, Path, Svg};
use super::{Column, Series, WIDTH, legend};
use taut_measure::quantity::Quantity;

/// Points of a published distribution, each a value and the fraction of values at or below it ([`Share::AtMost`]).
pub struct Published {
    /// Legend label and style of the points.
    pub series: Series,
    /// Points of the distribution, as pairs of value and fraction.
    pub points: Vec<(f64, f64)>,
}

/// The fraction that the y axis shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// The fraction at or below the value: rises from 0 to 1.
    AtMost,
    /// The fraction at or above the value, on a logarithmic axis: falls from 1, and makes the tail visible.
    AtLeast,
}

const PANEL_HEIGHT: f64 = 260.0;

/// Draws the distributions of several series over one axis; `of` is the plural noun for the counted values ("packets",
/// "runs").
pub fn chart(
    chart: &Chart<'_>,
    axis: Axis<'_>,
    share: Share,
    of: &str,
    items: &[Item<'_>],
    published: &[Published],
) -> String {
    let measured = items.iter().flat_map(|item| item.values.ends());
    let values = published.iter().flat_map(|it| &it.points).map(|it| it.0);
    let x = axis.scale(measured.chain(values));
    let (y, title) = match share {
        Share::AtMost => (
            Scale::linear(Quantity::Share, 0.0, 1.0),
            format!("share of {of}"),
        ),
        Share::AtLeast => (tail_scale(items), format!("share of {of} at or above")),
    };
    let keys: Vec<&Series> = items
        .iter()
        .map(|item| &item.series)
        .chain(published.iter().map(|it| &it.series))
        .collect();
    chart.draw(
        Hover::AtX,
        (x, axis.title),
        (y, &title),
        &keys,
        |svg, panel| {
            draw_lines(svg, panel, share, items);
            draw_published(svg, panel, share, axis.quantity, published);
        },
    )
}

/// Draws the distribution of round-trip latencies, a panel per column.
pub fn draw(columns_of: &[Column<Item<'_>>]) -> String {
    let bounds = columns(columns_of.len(), 70.0, 18.0);
    let (keys, strips) = legend::strips(columns_of, &bounds, |item| &item.series);
    let top = 30.0 + strips + 8.0;
    let mut svg = Svg::new(
        "cdf",
        WIDTH,
        top + PANEL_HEIGHT + 46.0,
        "Cumulative distribution of latency",
        "Share of packets with at most a given round-trip latency, one line per device.",
    );
    let items = columns_of.iter().flat_map(|column| &column.items);
    let x = Scale::log(Quantity::TimeNs, items.flat_map(|item| item.values.ends()));
    let y = Scale::linear(Quantity::Share, 0.0, 1.0);
    for ((column, keys), (left, width)) in columns_of.iter().zip(&keys).zip(bounds) {
        svg.text((left, 16.0), Anchor::Start, "head", &column.heading);
        legend::strip(&mut svg, (left, 26.0), width, keys);
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
        draw_lines(&mut svg, &panel, Share::AtMost, &column.items);
        panel.close(&mut svg);
    }
    svg.finish()
}

/// Returns a logarithmic axis of fractions for the largest series. With n values, it reaches from 1 down to a power of
/// ten at or below 1 / n; n counts as at least 10.
fn tail_scale(items: &[Item<'_>]) -> Scale {
    let most = items.iter().map(|item| item.values.count()).max();
    let most = most.unwrap_or(0).max(10) as f64;
    Scale {
        quantity: Quantity::Share,
        spacing: Spacing::Log,
        min: 10_f64.powf(-most.log10().ceil()),
        max: 1.0,
    }
}

fn draw_lines(svg: &mut Svg, panel: &Panel, share: Share, items: &[Item<'_>]) {
    if items.iter().all(|item| item.values.count() == 0) {
        panel.empty(svg, "no data");
    }
    for item in items {
        let line = points(&item.values, share).map(|(x, y)| (panel.px(x), panel.py(y)));
        let path = Path::through(thinned(line));
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
}

fn draw_published(
    svg: &mut Svg,
    panel: &Panel,
    share: Share,
    quantity: Quantity,
    all: &[Published],
) {
    for Published { series, points } in all {
        for (value, at_most) in points {
            let y = match share {
                Share::AtMost => *at_most,
                Share::AtLeast => 1.0 - at_most,
            };
            let tip = format!(
                "{}|{} at most {}",
                series.label,
                Quantity::Share.text(*at_most),
                quantity.text(*value)
            );
            let mut attributes = series.style.paint();
            attributes.push(("data-tip", &tip));
            let place = (panel.px(*value), panel.py(y.max(panel.y.min)));
            svg.path(&series.style.marker(place, 3.2), &attributes);
        }
    }
}

/// Returns the corners of the distribution's staircase as pairs of value and fraction.
fn points<'a>(values: &Distribution<'a>, share: Share) -> impl Iterator<Item = (f64, f64)> + 'a {
    let total = values.count();
    let mut below = 0;
    values.steps().flat_map(move |step| {
        let before = below;
        below += step.count;
        let at = |below: u64| match share {
            Share::AtMost => below as f64 / total as f64,
            // The fraction at the largest value includes this value itself, so it is never 0.
            Share::AtLeast => (total - below).max(1) as f64 / total as f64,
        };
        [(step.low, at(before)), (step.high, at(below))]
    })
}

/// Returns the points without those that are closer than a line's width (1.5 px) to their predecessor; the last point
/// always remains.
fn thinned(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut kept: Vec<(f64, f64)> = Vec::new();
    let mut last = None;
    for point in points {
        let is_near =
            |from: &(f64, f64)| (point.0 - from.0).abs() < 1.5 && (point.1 - from.1).abs() < 1.5;
        if kept.last().is_some_and(is_near) {
            last = Some(point);
        } else {
            last = None;
            kept.push(point);
        }
    }
    kept.extend(last);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;
    use taut_measure::LatencyHistogram;

    fn latency() -> LatencyHistogram {
        let mut latency = LatencyHistogram::new();
        (1..=50_000u64).for_each(|ns| latency.record(ns));
        latency
    }

    #[test]
    fn the_cdf_rises_from_zero_to_one_between_extreme_latencies() {
        let latency = latency();
        let points: Vec<_> = points(&Distribution::Latency(&latency), Share::AtMost).collect();
        assert_eq!(points.first(), Some(&(1.0, 0.0)));
        assert_eq!(points.last(), Some(&(50_000.0, 1.0)));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1));
    }

    #[test]
    fn the_tail_distribution_falls_from_one_to_a_single_packet() {
        let latency = latency();
        let points: Vec<_> = points(&Distribution::Latency(&latency), Share::AtLeast).collect();
        assert_eq!(points.first(), Some(&(1.0, 1.0)));
        assert_eq!(points.last(), Some(&(50_000.0, 1.0 / 50_000.0)));
        assert!(points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 >= b.1));
    }

    #[test]
    fn published_points_have_hollow_markers_and_are_within_the_axes() {
        let latency = latency();
        let items = [Item {
            series: Series {
                label: "here".to_owned(),
                style: Style::of(0),
            },
            values: Distribution::Latency(&latency),
        }];
        let published = [Published {
            series: Series {
                label: "published: there".to_owned(),
                style: Style::published(0),
            },
            points: vec![(100.0, 0.5), (2e6, 0.9)],
        }];
        let axis = Axis {
            title: "latency",
            quantity: Quantity::TimeNs,
            log: true,
        };
        for share in [Share::AtMost, Share::AtLeast] {
            let chart = Chart::new("c", "t", "d");
            let svg = super::chart(&chart, axis, share, "packets", &items, &published);
            // The three markers are the two points and the marker in the legend.
            assert_eq!(svg.matches("class=\"published\"").count(), 3, "{share:?}");
            assert!(
                svg.contains("published: there|90.0 % at most 2.00 ms"),
                "{svg}"
            );
        }
    }

    #[test]
    fn a_cdf_of_few_values_is_drawn_as_steps() {
        let values = [1.0, 2.0, 2.0, 4.0];
        let points: Vec<_> = points(&Distribution::Sorted(&values), Share::AtMost).collect();
        let expected = [
            (1.0, 0.0),
            (1.0, 0.25),
            (2.0, 0.25),
            (2.0, 0.75),
            (4.0, 0.75),
            (4.0, 1.0),
        ];
        assert_eq!(points, expected);
    }

    #[test]
    fn thinning_a_line_retains_both_ends_and_evenly_spaced_points() {
        let fine = (0..=10_000).map(|i| (f64::from(i) / 100.0, 0.0));
        let line = thinned(fine);
        assert!((60..=68).contains(&line.len()), "{}", line.len());
        assert_eq!(line[0], (0.0, 0.0));
        assert_eq!(line[line.len() - 1], (100.0, 0.0));
    }
}
