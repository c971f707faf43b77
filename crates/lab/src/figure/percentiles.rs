//! Latency over percentile on an axis of nines, so that the tail takes the room it deserves.

use taut_measure::LatencyHistogram;

use crate::quantity::Quantity;

use super::axes::{Hover, Labels, Panel, columns};
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg, text_width};
use super::{Column, Series, WIDTH, legend};

/// One device's latencies.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Whose.
    pub series: Series,
    /// The latencies, ns.
    pub latency: &'a LatencyHistogram,
}

const PANEL_HEIGHT: f64 = 300.0;
const TOP: f64 = 30.0;
/// Points per line.
const POINTS: u32 = 160;
/// Packets that must lie beyond a percentile for the line to be drawn in full.
const BEYOND: f64 = 10.0;

/// Draws the figure. Lines are dotted where fewer than ten packets lie beyond.
pub fn draw(columns_of: &[Column<Item<'_>>]) -> String {
    let mut svg = Svg::new(
        "percentiles",
        WIDTH,
        TOP + PANEL_HEIGHT + 46.0,
        "Latency by percentile",
        "Round-trip latency over the percentile of packets, on an axis where each nine has equal room.",
    );
    let items = || columns_of.iter().flat_map(|column| &column.items);
    let widest = items()
        .map(|item| text_width(&item.series.label, 12.0))
        .fold(0.0, f64::max);
    let ends = items()
        .flat_map(|item| [item.latency.min_ns(), item.latency.max_ns()])
        .flatten();
    let y = Scale::log(Quantity::TimeNs, ends.map(|ns| ns as f64));
    let x = Scale::nines(items().map(|item| item.latency.count()).max().unwrap_or(0));
    for (column, (left, width)) in
        columns_of
            .iter()
            .zip(columns(columns_of.len(), 70.0, widest + 36.0))
    {
        svg.text((left, 16.0), Anchor::Start, "head", &column.heading);
        let panel = Panel {
            left,
            top: TOP,
            width,
            height: PANEL_HEIGHT,
            x,
            y,
        };
        let labels = Labels {
            x: Some("percentile of packets (%)"),
            y: Some("round-trip latency"),
            x_ticks: 0,
            y_ticks: 6,
        };
        panel.open(&mut svg, Hover::AtX, labels);
        let mut ends = Vec::new();
        for item in &column.items {
            if let Some(end) = draw_line(&mut svg, &panel, item) {
                ends.push((end, &item.series));
            }
        }
        if ends.is_empty() {
            panel.empty(&mut svg, "no data");
        }
        panel.close(&mut svg);
        legend::at_ends(&mut svg, panel.right(), panel.top, panel.bottom(), &ends);
    }
    svg.finish()
}

/// Draws a line and returns the height of its end, px.
fn draw_line(svg: &mut Svg, panel: &Panel, item: &Item<'_>) -> Option<f64> {
    let latency = item.latency;
    let at = |quantile: f64| {
        Some((
            panel.px(quantile),
            panel.py(latency.quantile(quantile)? as f64),
        ))
    };
    let count = latency.count() as f64;
    let nines = (1.0 - panel.x.max).log10();
    let carried = 1.0 - BEYOND / count.max(BEYOND);
    let mut points: Vec<(f64, f64)> = (0..=POINTS)
        .map(|step| 1.0 - 10_f64.powf(nines * f64::from(step) / f64::from(POINTS)))
        .take_while(|quantile| *quantile < carried)
        .filter_map(at)
        .collect();
    points.extend(at(carried));
    let last = *points.last()?;
    let max = panel.py(latency.max_ns()? as f64);
    let Series { label, style } = &item.series;
    svg.path(
        Path::through(points).data(),
        &[
            ("class", "line"),
            ("stroke", style.colour),
            ("stroke-dasharray", style.dash),
            ("data-label", label),
        ],
    );
    let end = panel.px(1.0 - 1.0 / count.max(1.0));
    let tail = Path::through([last, (end, max), (panel.right(), max)]);
    svg.path(
        tail.data(),
        &[
            ("class", "line"),
            ("stroke", style.colour),
            ("stroke-width", "1"),
            ("stroke-dasharray", "1 2.5"),
        ],
    );
    Some(max)
}
