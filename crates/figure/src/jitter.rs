//! Jitter per device: median to 99th percentile as a bar, mean and maximum as marks.

use taut_measure::LatencyHistogram;

use taut_measure::quantity::{Quantity, time};

use super::axes::{Hover, Labels, Panel};
use super::scale::Scale;
use super::svg::{Anchor, Svg, text_width};
use super::{Column, Series, WIDTH};

/// One device's jitter.
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Label and style of the device.
    pub series: Series,
    /// Absolute differences of successive latencies, ns.
    pub jitter: &'a LatencyHistogram,
}

const ROW: f64 = 26.0;
const HEAD: f64 = 28.0;
const TOP: f64 = 30.0;

/// Draws the jitter of all devices, in groups over one axis.
pub fn draw(groups: &[Column<Item<'_>>]) -> String {
    let items = || groups.iter().flat_map(|group| &group.items);
    let rows = items().count() as f64;
    let body = rows * ROW + groups.len() as f64 * HEAD + 6.0;
    let mut svg = Svg::new(
        "jitter",
        WIDTH,
        TOP + body + 46.0,
        "Jitter per device",
        "Absolute difference of successive latencies: average, maximum, and the range from median to 99th percentile.",
    );
    let values = items().flat_map(|item| {
        let quantiles =
            [0.5, 0.99, 1.0].map(|quantile| item.jitter.quantile(quantile).map(|ns| ns as f64));
        quantiles
            .into_iter()
            .chain([item.jitter.mean_ns()])
            .flatten()
    });
    let x = Scale::log(Quantity::TimeNs, values);
    let left = items()
        .map(|item| text_width(&item.series.label, 12.0))
        .fold(60.0, f64::max)
        + 36.0;
    let y = Scale::linear(Quantity::Share, 0.0, 1.0);
    let panel = Panel {
        left,
        top: TOP,
        width: WIDTH - left - 24.0,
        height: body,
        x,
        y,
    };
    key(&mut svg, left);
    let labels = Labels {
        x: Some("jitter: difference of successive latencies"),
        y: None,
        x_ticks: 8,
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

fn draw_row(svg: &mut Svg, panel: &Panel, item: &Item<'_>, y: f64) {
    let Series { label, style } = &item.series;
    let colour = style.colour;
    svg.text((panel.left - 12.0, y + 4.0), Anchor::End, "label", label);
    let at = |quantile: f64| item.jitter.quantile(quantile).map(|ns| ns as f64);
    let (Some(mean), Some(p50), Some(p99), Some(max)) =
        (item.jitter.mean_ns(), at(0.5), at(0.99), at(1.0))
    else {
        svg.text(
            (panel.left + 10.0, y + 4.0),
            Anchor::Start,
            "empty",
            "no data",
        );
        return;
    };
    let tip = format!(
        "{label}|average {}|p50 {}|p99 {}|max {}",
        time(mean),
        time(p50),
        time(p99),
        time(max)
    );
    svg.open(&[("data-tip", &tip)]);
    svg.rect(
        (panel.left, y - ROW / 2.0),
        (panel.width, ROW),
        &[("class", "hit")],
    );
    svg.line(
        (panel.px(p50), y),
        (panel.px(max), y),
        &[("stroke", colour), ("stroke-width", "1.2")],
    );
    svg.line(
        (panel.px(p50), y),
        (panel.px(p99), y),
        &[
            ("stroke", colour),
            ("stroke-width", "7"),
            ("stroke-opacity", "0.4"),
        ],
    );
    svg.path(&circle(panel.px(mean), y), &[("fill", colour)]);
    svg.path(
        &circle(panel.px(max), y),
        &[
            ("class", "paper"),
            ("stroke", colour),
            ("stroke-width", "1.8"),
        ],
    );
    svg.close();
}

fn key(svg: &mut Svg, left: f64) {
    let y = 14.0;
    svg.path(&circle(left + 6.0, y), &[("class", "key")]);
    svg.text((left + 16.0, y + 4.0), Anchor::Start, "label", "average");
    svg.path(
        &circle(left + 96.0, y),
        &[("class", "paper keyline"), ("stroke-width", "1.8")],
    );
    svg.text((left + 106.0, y + 4.0), Anchor::Start, "label", "maximum");
    svg.line(
        (left + 190.0, y),
        (left + 218.0, y),
        &[
            ("class", "keyline"),
            ("stroke-width", "7"),
            ("stroke-opacity", "0.4"),
        ],
    );
    svg.text(
        (left + 225.0, y + 4.0),
        Anchor::Start,
        "label",
        "median to 99th percentile",
    );
}

fn circle(x: f64, y: f64) -> String {
    super::Style::reference().marker((x, y), 4.6)
}
