//! Rows under headings over one horizontal axis: the layout of bars and boxes. Names are at the left, where many and
//! long ones fit.

use super::axes::{Hover, Labels, Panel};
use super::chart::Chart;
use super::scale::Scale;
use super::svg::{Anchor, Svg, shortened, text_width};
use super::{Column, Series, legend};
use taut_measure::quantity::Quantity;

const ROW: f64 = 24.0;
const HEAD: f64 = 28.0;
const TOP: f64 = 8.0;

/// Draws a row for each item. `series` returns the item's label and style, and `row` draws the item around a y position
/// in px. `x` is the axis with its title; `right` px to the right of the panel stay free.
pub(super) fn draw<T>(
    chart: &Chart<'_>,
    x: (Scale, &str),
    right: f64,
    groups: &[Column<T>],
    series: impl Fn(&T) -> &Series,
    row: impl Fn(&mut Svg, &Panel, &T, f64),
) -> String {
    draw_with_keys(chart, x, right, &[], groups, series, row)
}

/// Draws rows as [`draw`] does, with a legend above the panel in which `keys` explain the marks in the rows.
pub(super) fn draw_with_keys<T>(
    chart: &Chart<'_>,
    (x, title): (Scale, &str),
    right: f64,
    keys: &[&Series],
    groups: &[Column<T>],
    series: impl Fn(&T) -> &Series,
    row: impl Fn(&mut Svg, &Panel, &T, f64),
) -> String {
    let headed = |group: &&Column<T>| !group.heading.is_empty();
    let items = groups.iter().flat_map(|group| &group.items);
    let heads = groups.iter().filter(headed).count() as f64;
    let body = (items.clone().count() as f64 * ROW + heads * HEAD + 6.0).max(2.0 * ROW);
    let left = left_of(chart, items.map(&series));
    let width = chart.width() - left - right;
    let top = match legend::strip_height(width, keys) {
        0.0 => TOP,
        height => TOP + height + 14.0,
    };
    let mut svg = chart.svg(top + body + 46.0);
    legend::strip(&mut svg, (left, TOP), width, keys);
    let panel = Panel {
        left,
        top,
        width,
        height: body,
        x,
        y: Scale::linear(Quantity::Share, 0.0, 1.0),
    };
    let labels = Labels {
        x: Some(title),
        y: None,
        x_ticks: x.ticks_along(width, 8),
        y_ticks: 0,
    };
    panel.open(&mut svg, Hover::Nearest, labels);
    if groups.iter().all(|group| group.items.is_empty()) {
        panel.empty(&mut svg, "no data");
    }
    let mut row_top = top + 2.0;
    for group in groups {
        if headed(&group) {
            let heading = shortened(&group.heading, 13.0, chart.width() - 24.0);
            svg.text((12.0, row_top + 18.0), Anchor::Start, "head", &heading);
            row_top += HEAD;
        }
        for item in &group.items {
            let y = row_top + ROW / 2.0;
            let label = shortened(&series(item).label, 12.0, left - 30.0);
            svg.text((left - 12.0, y + 4.0), Anchor::End, "label", &label);
            row(&mut svg, &panel, item, y);
            row_top += ROW;
        }
    }
    panel.close(&mut svg);
    svg.finish()
}

/// Returns the left edge of the panel, px, so that the labels of the given series fit.
fn left_of<'a>(chart: &Chart<'_>, series: impl Iterator<Item = &'a Series>) -> f64 {
    // Labels get a third of the width at most; longer ones are shortened.
    let most = chart.width() / 3.0;
    series
        .map(|series| text_width(&series.label, 12.0))
        .fold(60.0, f64::max)
        .min(most)
        + 36.0
}
