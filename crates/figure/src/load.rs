//! Mean and maximum latency over offered rate, with the highest loss-free rate marked. The layout follows
//! Stylianopoulos et al., DEBS 2020, figure 4.

use taut_measure::quantity::{Quantity, rate, share, time};

use super::axes::{Hover, Labels, Panel, columns};
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Column, Series, WIDTH, legend};

/// The curve of one device over the offered rate.
#[derive(Debug, Clone)]
pub struct Item {
    /// Label and style of the device.
    pub series: Series,
    /// The points in order of rising rate.
    pub points: Vec<Point>,
    /// Highest loss-free rate, packets per second; `None` if no such rate is known.
    pub loss_free_pps: Option<f64>,
}

/// Latencies at one offered rate, ns: the smallest value, the median and the largest value over the repetitions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Point {
    /// Rate sent, packets per second.
    pub sent_pps: f64,
    /// Mean latency: smallest value, median and largest value over the repetitions, ns.
    pub avg_ns: [f64; 3],
    /// Maximum latency: smallest value, median and largest value over the repetitions, ns.
    pub max_ns: [f64; 3],
    /// Fraction of the sent packets that were lost, 0 to 1.
    pub loss: f64,
}

const PANEL_HEIGHT: f64 = 210.0;

/// A function that returns the smallest, median and largest value of a point over the repetitions.
type Figure = fn(&Point) -> [f64; 3];

/// Draws the figure: mean latencies in the upper panels, maxima in the lower ones.
pub fn draw(columns_of: &[Column<Item>]) -> String {
    let bounds = columns(columns_of.len(), 70.0, 18.0);
    let (keys, strips) = legend::strips(columns_of, &bounds, |item| &item.series);
    let top = 30.0 + strips + 16.0;
    let mut svg = Svg::new(
        "load",
        WIDTH,
        top + 2.0 * PANEL_HEIGHT + 26.0 + 66.0,
        "Latency over offered rate",
        "Average and maximum round-trip latency over the offered rate, and each device's highest loss-free rate.",
    );
    let points = || {
        columns_of
            .iter()
            .flat_map(|column| &column.items)
            .flat_map(|item| &item.points)
    };
    let rows: [(&str, Figure); 2] = [
        ("average latency", |point| point.avg_ns),
        ("maximum latency", |point| point.max_ns),
    ];
    for ((column, keys), (left, width)) in columns_of.iter().zip(&keys).zip(bounds) {
        svg.text((left, 16.0), Anchor::Start, "head", &column.heading);
        legend::strip(&mut svg, (left, 26.0), width, keys);
        // Each transport has its own range of rates, so the columns have separate x axes. The latencies share an axis
        // for comparison.
        let rates = column.items.iter().flat_map(|item| {
            item.points
                .iter()
                .map(|point| point.sent_pps)
                .chain(item.loss_free_pps)
        });
        let x = Scale::log(Quantity::RatePps, rates);
        for (row, (title, figure)) in rows.into_iter().enumerate() {
            let y = Scale::log(Quantity::TimeNs, points().flat_map(figure));
            let panel = Panel {
                left,
                top: top + row as f64 * (PANEL_HEIGHT + 26.0),
                width,
                height: PANEL_HEIGHT,
                x,
                y,
            };
            let labels = Labels {
                x: (row == 1).then_some("offered rate (packets/s)"),
                y: Some(title),
                x_ticks: 8,
                y_ticks: 6,
            };
            draw_panel(&mut svg, &panel, labels, &column.items, figure);
        }
    }
    key(&mut svg, top + 2.0 * PANEL_HEIGHT + 26.0 + 54.0);
    svg.finish()
}

fn draw_panel(svg: &mut Svg, panel: &Panel, labels: Labels<'_>, items: &[Item], figure: Figure) {
    panel.open(svg, Hover::Nearest, labels);
    if items.iter().all(|item| item.points.is_empty()) {
        panel.empty(svg, "no data");
    }
    for item in items {
        draw_item(svg, panel, item, figure);
    }
    panel.close(svg);
}

fn draw_item(svg: &mut Svg, panel: &Panel, item: &Item, figure: Figure) {
    if item
        .points
        .iter()
        .any(|point| figure(point)[0] < figure(point)[2])
    {
        draw_range(svg, panel, item, figure);
    }
    if let Some(pps) = item.loss_free_pps {
        draw_loss_free(svg, panel, &item.series, pps);
    }
    if item.points.is_empty() {
        return;
    }
    let style = &item.series.style;
    let line = item
        .points
        .iter()
        .map(|point| place(panel, point, figure(point)[1]));
    svg.path(
        Path::through(line).data(),
        &[
            ("class", "line"),
            ("stroke", style.colour),
            ("stroke-dasharray", style.dash),
            ("stroke-width", "1.6"),
        ],
    );
    for point in &item.points {
        draw_point(svg, panel, &item.series, (point, figure(point)));
    }
}

/// Draws the range over the repetitions as a band.
fn draw_range(svg: &mut Svg, panel: &Panel, item: &Item, figure: Figure) {
    let style = &item.series.style;
    let low = item
        .points
        .iter()
        .map(|point| place(panel, point, figure(point)[0]));
    let high = item
        .points
        .iter()
        .rev()
        .map(|point| place(panel, point, figure(point)[2]));
    svg.path(
        Path::through(low.chain(high)).data(),
        &[("fill", style.colour), ("fill-opacity", "0.13")],
    );
}

/// Draws the highest loss-free rate as a vertical line with a mark.
fn draw_loss_free(svg: &mut Svg, panel: &Panel, series: &Series, pps: f64) {
    let Series { label, style } = series;
    let x = panel.px(pps);
    svg.line(
        (x, panel.top),
        (x, panel.bottom()),
        &[
            ("stroke", style.colour),
            ("stroke-width", "1.2"),
            ("stroke-dasharray", "4 3"),
        ],
    );
    let tip = format!("{label}|highest loss-free rate {}", rate(pps));
    svg.open(&[("data-tip", &tip)]);
    svg.path(
        &style.marker((x, panel.top), 4.2),
        &[
            ("fill", style.colour),
            ("class", "rim"),
            ("stroke-width", "0.8"),
        ],
    );
    svg.close();
}

/// Draws the mark of a point, with its smallest, median and largest value.
fn draw_point(
    svg: &mut Svg,
    panel: &Panel,
    series: &Series,
    (point, [low, middle, high]): (&Point, [f64; 3]),
) {
    let Series { label, style } = series;
    let tip = format!(
        "{label}|offered {}|latency {}|{} to {} over the repetitions|loss {}",
        rate(point.sent_pps),
        time(middle),
        time(low),
        time(high),
        share(point.loss)
    );
    // With the class `paper`, the mark is hollow.
    let class = if point.loss > 0.0 { "paper" } else { "full" };
    let outline = style.marker(place(panel, point, middle), 3.4);
    svg.path(
        &outline,
        &[
            ("class", class),
            ("fill", style.colour),
            ("stroke", style.colour),
            ("stroke-width", "1.2"),
            ("data-tip", &tip),
        ],
    );
}

/// Returns the position of a point with the given latency, px.
fn place(panel: &Panel, point: &Point, ns: f64) -> (f64, f64) {
    (panel.px(point.sent_pps), panel.py(ns))
}

fn key(svg: &mut Svg, y: f64) {
    let text = "filled marks: no loss · hollow marks: packets lost · shaded: smallest to largest over the repetitions · \
                dashed verticals: highest loss-free rate";
    svg.text((WIDTH / 2.0, y), Anchor::Middle, "note", text);
}
