//! Histograms: several series laid over each other, or one panel per device on a common logarithmic axis. The latter
//! follows Stylianopoulos et al., DEBS 2020, figure 2.

use super::axes::{Hover, Labels, Panel, columns};
use super::chart::{Axis, Chart};
use super::distribution::{Distribution, Item};
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Column, Series, WIDTH, legend};
use taut_measure::quantity::{self, Quantity};

/// A bin: its lower and upper edge, and the fraction of all values in it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Bin {
    low: f64,
    high: f64,
    share: f64,
}

const BINS_PER_DECADE: f64 = 32.0;
const PANEL_HEIGHT: f64 = 64.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 34.0;
const TOP: f64 = 36.0;

/// Draws several series over each other in bins of equal width on the axis; `of` is the plural noun for the counted
/// values ("packets", "runs").
pub fn chart(chart: &Chart<'_>, axis: Axis<'_>, of: &str, items: &[Item<'_>]) -> String {
    let x = axis.scale(items.iter().flat_map(|item| item.values.ends()));
    let edges = even_edges(&x, items);
    let all: Vec<Vec<Bin>> = items
        .iter()
        .map(|item| bins(&item.values, &edges))
        .collect();
    let highest = all.iter().flatten().map(|bin| bin.share);
    let y = Scale::linear_from_zero(Quantity::Share, highest);
    let keys: Vec<&Series> = items.iter().map(|item| &item.series).collect();
    let title = format!("share of {of} per bin");
    chart.draw(
        Hover::AtX,
        (x, axis.title),
        (y, &title),
        &keys,
        |svg, panel| {
            if all.iter().all(Vec::is_empty) {
                panel.empty(svg, "no data");
            }
            for (item, bins) in items.iter().zip(&all) {
                outline(svg, panel, &item.series, bins);
            }
        },
    )
}

/// Draws histograms of round-trip latencies, a panel per device.
pub fn draw(columns_of: &[Column<Item<'_>>]) -> String {
    let rows = columns_of
        .iter()
        .map(|column| column.items.len())
        .max()
        .unwrap_or(0);
    let height = TOP + rows as f64 * ROW_HEIGHT + 34.0;
    let mut svg = Svg::new(
        "histogram",
        WIDTH,
        height,
        "Latency histogram per device",
        "Share of packets over round-trip latency on a logarithmic axis, one panel per device.",
    );
    let items = columns_of.iter().flat_map(|column| &column.items);
    let ends = items.flat_map(|item| item.values.ends());
    let x = Scale::log(Quantity::TimeNs, ends);
    let edges = decade_edges(&x);
    for ((left, width), column) in columns(columns_of.len(), 64.0, 18.0)
        .into_iter()
        .zip(columns_of)
    {
        svg.text((left, 16.0), Anchor::Start, "head", &column.heading);
        for (row, item) in column.items.iter().enumerate() {
            let bins = bins(&item.values, &edges);
            let y = Scale::linear_from_zero(Quantity::Share, bins.iter().map(|bin| bin.share));
            let panel = Panel {
                left,
                top: TOP + row as f64 * ROW_HEIGHT + 18.0,
                width,
                height: PANEL_HEIGHT,
                x,
                y,
            };
            let last = row + 1 == column.items.len();
            draw_panel(&mut svg, &panel, item, &bins, last);
        }
        let middle = TOP + 18.0 + (column.items.len() as f64 * ROW_HEIGHT - 34.0) / 2.0;
        svg.text_upwards((left - 50.0, middle), "axis", "share of packets per bin");
    }
    svg.finish()
}

fn draw_panel(svg: &mut Svg, panel: &Panel, item: &Item<'_>, bins: &[Bin], last: bool) {
    legend::above(svg, panel, &item.series);
    let Series { label, style } = &item.series;
    svg.text(
        (panel.right(), panel.top - 6.0),
        Anchor::End,
        "note",
        &note(&item.values),
    );
    let labels = Labels {
        x: last.then_some("round-trip latency"),
        y: None,
        x_ticks: 8,
        y_ticks: 2,
    };
    panel.open(svg, Hover::AtX, labels);
    svg.text(
        (panel.right() - 5.0, panel.top + 13.0),
        Anchor::End,
        "note",
        &format!("n = {}", quantity::count(item.values.count())),
    );
    if bins.is_empty() {
        panel.empty(svg, "no data");
    } else {
        // A series that is alone in its panel needs no style of its own.
        let series = Series {
            label: label.clone(),
            style: style.solid(),
        };
        outline(svg, panel, &series, bins);
        let floor = panel.bottom();
        // Bins of the tail contain too few values to be visible, so a mark shows the largest value.
        if let Some(max) = item.values.quantile(1.0) {
            let x = panel.px(max);
            let tip = Path::through([
                (x, floor - 1.0),
                (x - 4.0, floor - 9.0),
                (x + 4.0, floor - 9.0),
            ]);
            svg.path(tip.data(), &[("fill", style.colour)]);
        }
    }
    panel.close(svg);
}

fn outline(svg: &mut Svg, panel: &Panel, series: &Series, bins: &[Bin]) {
    let (Some(first), Some(last)) = (bins.first(), bins.last()) else {
        return;
    };
    let Series { label, style } = series;
    let steps = bins.iter().flat_map(|bin| {
        let y = panel.py(bin.share);
        [(panel.px(bin.low), y), (panel.px(bin.high), y)]
    });
    let start = (panel.px(first.low), panel.bottom());
    let end = (panel.px(last.high), panel.bottom());
    let closed = Path::through([start].into_iter().chain(steps).chain([end]));
    svg.path(
        closed.data(),
        &[("fill", style.colour), ("fill-opacity", "0.18")],
    );
    svg.path(
        closed.data(),
        &[
            ("class", "line"),
            ("stroke", style.colour),
            ("stroke-width", "1.4"),
            ("stroke-dasharray", style.dash),
            ("data-label", label),
        ],
    );
}

fn note(values: &Distribution<'_>) -> String {
    let quantile = |q: f64| values.quantile(q).map(quantity::time);
    match (quantile(0.5), quantile(0.99), quantile(1.0)) {
        (Some(p50), Some(p99), Some(max)) => format!("p50 {p50} · p99 {p99} · max {max}"),
        _ => String::new(),
    }
}

/// Returns the edges of bins that divide each power of ten into equal parts of a logarithmic axis.
fn decade_edges(x: &Scale) -> Vec<f64> {
    let count = ((x.max / x.min).log10() * BINS_PER_DECADE).ceil() as i32;
    (0..=count)
        .map(|bin| x.min * 10_f64.powf(f64::from(bin) / BINS_PER_DECADE))
        .collect()
}

/// Returns the edges of bins that divide the axis evenly. By Rice's rule the range of the values gets 2 n^(1/3) bins
/// for the n values of the largest series; limits keep the bins visible.
fn even_edges(x: &Scale, items: &[Item<'_>]) -> Vec<f64> {
    let most = items.iter().map(|item| item.values.count()).max();
    let wanted = 2.0 * (most.unwrap_or(0) as f64).cbrt();
    let places = items.iter().flat_map(|item| item.values.ends());
    let (low, high) = places
        .map(|value| x.place(value))
        .fold((1.0_f64, 0.0_f64), |ends, place| {
            (ends.0.min(place), ends.1.max(place))
        });
    let over_axis = wanted / (high - low).clamp(0.1, 1.0);
    let count = over_axis.ceil().clamp(8.0, 120.0) as u32;
    (0..=count)
        .map(|bin| x.value_at(f64::from(bin) / f64::from(count)))
        .collect()
}

/// Counts the values between the rising `edges`; returns the bins from the first to the last that is not empty.
fn bins(values: &Distribution<'_>, edges: &[f64]) -> Vec<Bin> {
    let last = edges.len().saturating_sub(2);
    let bin_of = |value: f64| {
        let up_to = edges.partition_point(|edge| *edge <= value);
        up_to.saturating_sub(1).min(last)
    };
    let mut counts = vec![0.0; last + 1];
    for step in values.steps() {
        let (from, to) = (bin_of(step.low), bin_of(step.high));
        // The values of a bucket that covers several bins are spread evenly over these bins. Otherwise fine bins would
        // show the buckets instead of the distribution.
        let width = step.high - step.low;
        for bin in from..=to {
            let (low, high) = (step.low.max(edges[bin]), step.high.min(edges[bin + 1]));
            let share = if from == to {
                1.0
            } else {
                (high - low) / width
            };
            counts[bin] += step.count as f64 * share;
        }
    }
    let filled = |count: &f64| *count > 0.0;
    let (Some(first), Some(end)) = (
        counts.iter().position(filled),
        counts.iter().rposition(filled),
    ) else {
        return Vec::new();
    };
    (first..=end)
        .map(|bin| Bin {
            low: edges[bin],
            high: edges[bin + 1],
            share: counts[bin] / values.count() as f64,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use taut_measure::LatencyHistogram;

    #[test]
    fn every_packet_is_in_exactly_one_bin() {
        let mut latency = LatencyHistogram::new();
        (0..10_000u64).for_each(|index| latency.record(index * index));
        let values = Distribution::Latency(&latency);
        let items = [Item {
            series: Series {
                label: String::new(),
                style: crate::Style::of(0),
            },
            values,
        }];
        let log = Scale::log(Quantity::TimeNs, [1.0, 1e8]);
        let linear = Scale::linear_around(Quantity::TimeNs, [0.0, 1e8]);
        for edges in [
            decade_edges(&log),
            even_edges(&log, &items),
            even_edges(&linear, &items),
        ] {
            let total: f64 = bins(&values, &edges).iter().map(|bin| bin.share).sum();
            assert!((total - 1.0).abs() < 1e-9, "{total}");
        }
    }

    #[test]
    fn uniform_values_fill_bins_evenly_despite_wider_buckets() {
        let mut latency = LatencyHistogram::new();
        (100_000..200_000u64).for_each(|ns| latency.record(ns));
        let edges: Vec<f64> = (0..=500)
            .map(|i| 100_000.0 + 200.0 * f64::from(i))
            .collect();
        let bins = bins(&Distribution::Latency(&latency), &edges);
        for bin in &bins[3..497] {
            assert!((bin.share * 500.0 - 1.0).abs() < 0.01, "{bin:?}");
        }
    }
}
