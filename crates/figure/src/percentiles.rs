//! Percentile curves: values over their percentile on an axis of nines, which gives the tail more space.

use taut_measure::quantity::Quantity;

use super::axes::{Hover, Labels, Panel, columns};
use super::distribution::Item;
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg, text_width};
use super::{Axis, Chart, Column, Series, WIDTH, legend};

const PANEL_HEIGHT: f64 = 300.0;
const TOP: f64 = 30.0;
/// Number of points from which each line is drawn.
const POINTS: u32 = 160;
/// Minimum number of values beyond a percentile for a solid line.
const BEYOND: f64 = 10.0;

/// Draws several series over one axis; `of` is the plural noun for the counted values ("packets", "runs"). A line is
/// dotted where fewer than ten values are beyond the percentile, and ends at the largest value.
pub fn chart(chart: &Chart<'_>, axis: Axis<'_>, of: &str, items: &[Item<'_>]) -> String {
    let y = axis.scale(items.iter().flat_map(|item| item.values.ends()));
    let keys: Vec<&Series> = items.iter().map(|item| &item.series).collect();
    let title = format!("percentile of {of} (%)");
    let x = (nines(items.iter()), title.as_str());
    chart.draw(Hover::AtX, x, (y, axis.title), &keys, |svg, panel| {
        let drawn = items.iter().filter_map(|item| draw_line(svg, panel, item));
        if drawn.count() == 0 {
            panel.empty(svg, "no data");
        }
    })
}

/// Draws round-trip latencies, a panel per column. A line is dotted where fewer than ten packets are beyond the
/// percentile.
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
    let ends = items().flat_map(|item| item.values.ends());
    let y = Scale::log(Quantity::TimeNs, ends);
    let x = nines(items());
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

/// Returns the axis up to the last percentile that the largest series can show.
fn nines<'a>(items: impl Iterator<Item = &'a Item<'a>>) -> Scale {
    Scale::nines(items.map(|item| item.values.count()).max().unwrap_or(0))
}

/// Draws the line of a series; returns the y position of its last point, px.
fn draw_line(svg: &mut Svg, panel: &Panel, item: &Item<'_>) -> Option<f64> {
    let values = item.values;
    let at = |quantile: f64| Some((panel.px(quantile), panel.py(values.quantile(quantile)?)));
    let count = values.count() as f64;
    let nines = (1.0 - panel.x.max).log10();
    let carried = 1.0 - BEYOND / count.max(BEYOND);
    let mut points: Vec<(f64, f64)> = (0..=POINTS)
        .map(|step| 1.0 - 10_f64.powf(nines * f64::from(step) / f64::from(POINTS)))
        .take_while(|quantile| *quantile < carried)
        .filter_map(at)
        .collect();
    points.extend(at(carried));
    let last = *points.last()?;
    let max = panel.py(values.quantile(1.0)?);
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
