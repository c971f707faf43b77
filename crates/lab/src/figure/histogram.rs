//! Latency histograms, one panel per device on a common logarithmic axis.
//! After Stylianopoulos et al., DEBS 2020, figure 2.

use taut_measure::LatencyHistogram;

use crate::quantity::{self, Quantity};

use super::axes::{Hover, Labels, Panel, columns};
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Column, Series, WIDTH};

/// One device's latencies.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Whose.
    pub series: Series,
    /// The latencies, ns.
    pub latency: &'a LatencyHistogram,
}

const BINS_PER_DECADE: f64 = 32.0;
const PANEL_HEIGHT: f64 = 64.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 34.0;
const TOP: f64 = 36.0;

/// Draws the figure.
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
    let ends = columns_of
        .iter()
        .flat_map(|column| &column.items)
        .flat_map(|item| {
            [item.latency.min_ns(), item.latency.max_ns()]
                .into_iter()
                .flatten()
                .map(|ns| ns as f64)
        });
    let x = Scale::log(Quantity::TimeNs, ends);
    for ((left, width), column) in columns(columns_of.len(), 64.0, 18.0)
        .into_iter()
        .zip(columns_of)
    {
        svg.text((left, 16.0), Anchor::Start, "head", &column.heading);
        for (row, item) in column.items.iter().enumerate() {
            let shares = shares(item.latency, &x);
            let y = Scale::linear_from_zero(Quantity::Share, shares.iter().map(|bin| bin.2));
            let panel = Panel {
                left,
                top: TOP + row as f64 * ROW_HEIGHT + 18.0,
                width,
                height: PANEL_HEIGHT,
                x,
                y,
            };
            let last = row + 1 == column.items.len();
            draw_panel(&mut svg, &panel, item, &shares, last);
        }
        let middle = TOP + 18.0 + (column.items.len() as f64 * ROW_HEIGHT - 34.0) / 2.0;
        svg.text_upwards((left - 50.0, middle), "axis", "share of packets per bin");
    }
    svg.finish()
}

fn draw_panel(
    svg: &mut Svg,
    panel: &Panel,
    item: &Item<'_>,
    shares: &[(f64, f64, f64)],
    last: bool,
) {
    let Series { label, style } = &item.series;
    svg.path(
        &style.marker((panel.left + 4.0, panel.top - 10.0), 3.6),
        &[("fill", style.colour)],
    );
    svg.text(
        (panel.left + 13.0, panel.top - 6.0),
        Anchor::Start,
        "label",
        label,
    );
    svg.text(
        (panel.right(), panel.top - 6.0),
        Anchor::End,
        "note",
        &note(item.latency),
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
        &format!("n = {}", quantity::count(item.latency.count())),
    );
    if shares.is_empty() {
        panel.empty(svg, "no data");
    } else {
        let floor = panel.bottom();
        let mut steps = Vec::new();
        for (low, high, share) in shares {
            steps.extend([
                (panel.px(*low), panel.py(*share)),
                (panel.px(*high), panel.py(*share)),
            ]);
        }
        let first = steps.first().map_or(panel.left, |step| step.0);
        let end = steps.last().map_or(panel.left, |step| step.0);
        let outline: Vec<(f64, f64)> = [(first, floor)]
            .into_iter()
            .chain(steps.iter().copied())
            .chain([(end, floor)])
            .collect();
        svg.path(
            Path::through(outline.iter().copied()).data(),
            &[("fill", style.colour), ("fill-opacity", "0.22")],
        );
        let line = [
            ("class", "line"),
            ("stroke", style.colour),
            ("stroke-width", "1.4"),
            ("data-label", label.as_str()),
        ];
        svg.path(Path::through(steps).data(), &line);
        // The tail is too thin for its bins to show: mark where it ends.
        if let Some(max) = item.latency.max_ns() {
            let x = panel.px(max as f64);
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

fn note(latency: &LatencyHistogram) -> String {
    let quantile = |q: f64| latency.quantile(q).map(|ns| quantity::time(ns as f64));
    match (quantile(0.5), quantile(0.99), latency.max_ns()) {
        (Some(p50), Some(p99), Some(max)) => {
            format!("p50 {p50} · p99 {p99} · max {}", quantity::time(max as f64))
        }
        _ => String::new(),
    }
}

/// Bins of equal width on the axis from the first to the last that has packets: ends in ns, share.
fn shares(latency: &LatencyHistogram, x: &Scale) -> Vec<(f64, f64, f64)> {
    let bin_of = |ns: f64| ((ns.max(x.min) / x.min).log10() * BINS_PER_DECADE).floor() as usize;
    let (Some(min), Some(max)) = (latency.min_ns(), latency.max_ns()) else {
        return Vec::new();
    };
    let (first, last) = (bin_of(min as f64), bin_of(max as f64));
    let mut counts = vec![0u64; last - first + 1];
    for bucket in latency.iter() {
        let middle = (bucket.low_ns + (bucket.high_ns - bucket.low_ns) / 2) as f64;
        let bin = bin_of(middle).clamp(first, last) - first;
        counts[bin] += bucket.count;
    }
    let edge = |bin: usize| x.min * 10_f64.powf(bin as f64 / BINS_PER_DECADE);
    let bins = counts.iter().enumerate();
    bins.map(|(bin, count)| {
        (
            edge(first + bin),
            edge(first + bin + 1),
            *count as f64 / latency.count() as f64,
        )
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_every_packet_once() {
        let mut latency = LatencyHistogram::new();
        (0..10_000u64).for_each(|index| latency.record(index * index));
        let x = Scale::log(Quantity::TimeNs, [1.0, 1e8]);
        let total: f64 = shares(&latency, &x).iter().map(|bin| bin.2).sum();
        assert!((total - 1.0).abs() < 1e-9, "{total}");
    }
}
