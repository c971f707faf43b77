//! Highest loss-free rate per device as bars, with the spread over the repetitions.

use crate::quantity::{Quantity, rate};

use super::axes::Panel;
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{Chart, Column, Series, rows};

/// One device's highest loss-free rate.
#[derive(Debug, Clone)]
pub struct Item {
    /// Whose.
    pub series: Series,
    /// Smallest, median and largest over the repetitions, packets per second.
    pub pps: Option<[f64; 3]>,
    /// Whether something other than the device ended the search: it may be faster.
    pub at_least: bool,
}

/// Draws the figure: all groups over one axis.
pub fn draw(groups: &[Column<Item>]) -> String {
    let items = groups.iter().flat_map(|group| &group.items);
    let x = Scale::linear_from_zero(
        Quantity::RatePps,
        items.filter_map(|item| item.pps).map(|pps| pps[2]),
    );
    let chart = Chart::new(
        "throughput",
        "Highest loss-free rate per device",
        "Bars: median over the repetitions; whiskers: smallest and largest.",
    );
    rows::draw(
        &chart,
        (x, "highest loss-free rate (packets/s)"),
        120.0,
        groups,
        |item| &item.series,
        draw_row,
    )
}

fn draw_row(svg: &mut Svg, panel: &Panel, item: &Item, y: f64) {
    let Series { label, style } = &item.series;
    let Some([low, middle, high]) = item.pps else {
        svg.text(
            (panel.left + 10.0, y + 4.0),
            Anchor::Start,
            "empty",
            "no loss-free rate found",
        );
        return;
    };
    let sign = if item.at_least { "≥ " } else { "" };
    let tip = format!(
        "{label}|median {sign}{}|{} to {} over the repetitions",
        rate(middle),
        rate(low),
        rate(high)
    );
    svg.open(&[("data-tip", &tip)]);
    let end = panel.px(middle);
    svg.rect(
        (panel.left, y - 8.0),
        (end - panel.left, 16.0),
        &[("fill", style.colour), ("fill-opacity", "0.85")],
    );
    let whisker = [("stroke", "#111"), ("stroke-width", "1.3")];
    let (from, to) = (panel.px(low), panel.px(high));
    if to - from > 0.5 {
        svg.line((from, y), (to, y), &whisker);
        [from, to]
            .into_iter()
            .for_each(|x| svg.line((x, y - 4.0), (x, y + 4.0), &whisker));
    }
    svg.close();
    svg.text(
        (end.max(to) + 8.0, y + 4.0),
        Anchor::Start,
        "label",
        &format!("{sign}{}", rate(middle)),
    );
}
