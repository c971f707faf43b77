//! Highest loss-free rate per device as bars, with the spread over the repetitions.

use crate::quantity::{Quantity, rate};

use super::axes::{Hover, Labels, Panel};
use super::scale::Scale;
use super::svg::{Anchor, Svg, text_width};
use super::{Column, Series, WIDTH};

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

const ROW: f64 = 26.0;
const HEAD: f64 = 28.0;
const TOP: f64 = 8.0;

/// Draws the figure: all groups over one axis.
pub fn draw(groups: &[Column<Item>]) -> String {
    let items = || groups.iter().flat_map(|group| &group.items);
    let body = items().count() as f64 * ROW + groups.len() as f64 * HEAD + 6.0;
    let mut svg = Svg::new(
        "throughput",
        WIDTH,
        TOP + body + 46.0,
        "Highest loss-free rate per device",
        "Bars: median over the repetitions; whiskers: smallest and largest.",
    );
    let left = items()
        .map(|item| text_width(&item.series.label, 12.0))
        .fold(60.0, f64::max)
        + 36.0;
    let x = Scale::linear_from_zero(
        Quantity::RatePps,
        items().filter_map(|item| item.pps).map(|pps| pps[2]),
    );
    let y = Scale::linear(Quantity::Share, 0.0, 1.0);
    let panel = Panel {
        left,
        top: TOP,
        width: WIDTH - left - 120.0,
        height: body,
        x,
        y,
    };
    let labels = Labels {
        x: Some("highest loss-free rate (packets/s)"),
        y: None,
        x_ticks: 6,
        y_ticks: 0,
    };
    panel.open(&mut svg, Hover::Nearest, labels);
    let mut row_top = TOP + 2.0;
    for group in groups {
        svg.text(
            (12.0, row_top + 18.0),
            Anchor::Start,
            "head",
            &group.heading,
        );
        row_top += HEAD;
        for item in &group.items {
            draw_row(&mut svg, &panel, item, row_top + ROW / 2.0);
            row_top += ROW;
        }
    }
    panel.close(&mut svg);
    svg.finish()
}

fn draw_row(svg: &mut Svg, panel: &Panel, item: &Item, y: f64) {
    let Series { label, style } = &item.series;
    svg.text((panel.left - 12.0, y + 4.0), Anchor::End, "label", label);
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
