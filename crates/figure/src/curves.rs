//! Curves over one variable, in panels one below the other. Measured curves show medians and the range over
//! repetitions, models are lines without marks, and vertical lines show thresholds.

use super::axes::{Hover, Labels, Panel};
use super::chart::left_of;
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Axis, Chart, Series, legend};
use taut_measure::median_interval;
use taut_measure::quantity::Quantity;

/// A point of a curve: one x value, and the range of the y values measured there.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    /// The x value of the point.
    pub x: f64,
    /// Smallest value, median and largest value over the repetitions.
    pub y: [f64; 3],
    /// Text of the hover read-out, lines separated by `|`.
    pub tip: String,
}

/// A curve: one series and its points.
#[derive(Debug, Clone, PartialEq)]
pub struct Curve {
    /// Label and style of the curve.
    pub series: Series,
    /// The points in order of rising x.
    pub points: Vec<Point>,
}

/// A panel of the figure, with its own y axis; all panels have the same x axis.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    /// Title of the panel's y axis.
    pub title: &'a str,
    /// The panel's y axis.
    pub y: Scale,
    /// The measured curves of the panel.
    pub curves: Vec<Curve>,
    /// Curves of models and of published figures: points joined by a thin line, with a label.
    pub models: Vec<Curve>,
}

/// The form in which a curve shows the range of the values over the repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// A shaded band along the curve.
    Band,
    /// A vertical bar at each point: for few points, or where bands would cover each other.
    Bars,
}

/// A figure of several panels over the same x axis.
#[derive(Debug, Clone)]
pub struct Figure<'a> {
    /// Name, title and size of the figure.
    pub chart: Chart<'a>,
    /// Title of the x axis.
    pub x_title: &'a str,
    /// The x axis of all panels.
    pub x: Scale,
    /// Panels, top to bottom.
    pub parts: Vec<Part<'a>>,
    /// The form in which a curve shows the range of the values over the repetitions.
    pub extent: Extent,
    /// Values of x to mark with a vertical line, each with its label.
    pub verticals: Vec<(f64, String)>,
    /// A note below the figure.
    pub note: String,
}

/// Confidence of the interval of a median over runs; an interval with this confidence needs at least six runs.
const CONFIDENCE: f64 = 0.95;

const RIGHT: f64 = 26.0;
const GAP: f64 = 26.0;
const Y_TICKS: usize = 6;

impl Point {
    /// Returns the point at `x`: the median of the runs' `values` with its confidence interval, or with the range for
    /// fewer than six runs. `of_x` and `of_y` are the quantities as which the read-out formats `x` and the values.
    /// Returns `None` without values, or if a value is not finite.
    pub fn of_runs(x: f64, of_x: Quantity, values: &[f64], of_y: Quantity) -> Option<Point> {
        let found = median_interval(values, CONFIDENCE).filter(|_| x.is_finite())?;
        Some(Point {
            x,
            y: [found.low, found.point, found.high],
            tip: format!(
                "{} at {}|{}",
                of_y.text(found.point),
                of_x.text(x),
                found.words(|value| of_y.text(value))
            ),
        })
    }
}

/// Draws curves in one panel whose axes fit the points.
pub fn chart(
    chart: &Chart<'_>,
    x: Axis<'_>,
    y: Axis<'_>,
    extent: Extent,
    curves: Vec<Curve>,
) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let scales = (
        x.scale(points().map(|point| point.x)),
        y.scale(points().flat_map(|point| point.y)),
    );
    draw(&Figure {
        chart: *chart,
        x_title: x.title,
        x: scales.0,
        parts: vec![Part {
            title: y.title,
            y: scales.1,
            curves,
            models: Vec::new(),
        }],
        extent,
        verticals: Vec::new(),
        note: String::new(),
    })
}

/// Draws the panels of the figure, one below the other.
pub fn draw(figure: &Figure<'_>) -> String {
    let keys = keys(figure);
    let lefts = figure.parts.iter().map(|part| left_of(&part.y, Y_TICKS));
    let left = lefts.fold(74.0, f64::max);
    let width = figure.chart.width() - left - RIGHT;
    let height = if figure.parts.len() == 1 {
        (figure.chart.width() * 0.4).clamp(190.0, 300.0)
    } else {
        220.0
    };
    // Space above the first panel is needed only for the labels of vertical lines.
    let words = if figure.verticals.is_empty() {
        0.0
    } else {
        16.0
    };
    let top = 8.0 + legend::strip_height(width, &keys) + 14.0 + words;
    let parts = figure.parts.len() as f64;
    let below = top + parts * height + (parts - 1.0) * GAP;
    let note = if figure.note.is_empty() { 0.0 } else { 18.0 };
    let mut svg = figure.chart.svg(below + 46.0 + note);
    legend::strip(&mut svg, (left, 8.0), width, &keys);
    for (row, part) in figure.parts.iter().enumerate() {
        let panel = Panel {
            left,
            top: top + row as f64 * (height + GAP),
            width,
            height,
            x: figure.x,
            y: part.y,
        };
        draw_part(&mut svg, &panel, figure, row);
    }
    if !figure.note.is_empty() {
        svg.text(
            (figure.chart.width() / 2.0, below + 56.0),
            Anchor::Middle,
            "note",
            &figure.note,
        );
    }
    svg.finish()
}

/// Returns the series of the figure, each label once.
fn keys<'a>(figure: &'a Figure<'_>) -> Vec<&'a Series> {
    let mut keys: Vec<&Series> = Vec::new();
    for curve in figure
        .parts
        .iter()
        .flat_map(|part| part.curves.iter().chain(&part.models))
    {
        if !keys.iter().any(|known| known.label == curve.series.label) {
            keys.push(&curve.series);
        }
    }
    keys
}

/// Draws the part with the index `row`, from 0, into a panel.
fn draw_part(svg: &mut Svg, panel: &Panel, figure: &Figure<'_>, row: usize) {
    let part = &figure.parts[row];
    let labels = Labels {
        x: (row + 1 == figure.parts.len()).then_some(figure.x_title),
        y: Some(part.title),
        x_ticks: figure.x.ticks_along(panel.width, 12),
        y_ticks: Y_TICKS,
    };
    panel.open(svg, Hover::Nearest, labels);
    if part.curves.iter().all(|curve| curve.points.is_empty()) {
        panel.empty(svg, "no data");
    }
    for (value, word) in &figure.verticals {
        vertical(svg, panel, *value, (row == 0).then_some(word));
    }
    part.models
        .iter()
        .for_each(|curve| model(svg, panel, curve));
    part.curves
        .iter()
        .for_each(|curve| measured(svg, panel, curve, figure.extent));
    panel.close(svg);
}

fn vertical(svg: &mut Svg, panel: &Panel, value: f64, word: Option<&String>) {
    if value < panel.x.min || value > panel.x.max {
        return;
    }
    let x = panel.px(value);
    svg.line(
        (x, panel.top),
        (x, panel.bottom()),
        &[
            ("class", "guide"),
            ("stroke-width", "1"),
            ("stroke-dasharray", "5 3"),
        ],
    );
    if let Some(word) = word {
        svg.text((x, panel.top - 5.0), Anchor::Middle, "note", word);
    }
}

fn model(svg: &mut Svg, panel: &Panel, curve: &Curve) {
    let points = curve
        .points
        .iter()
        .map(|p| (panel.px(p.x), panel.py(p.y[1])));
    svg.path(
        Path::through(points).data(),
        &[
            ("class", "line"),
            ("stroke", curve.series.style.colour),
            ("stroke-dasharray", curve.series.style.dash),
            ("stroke-width", "1.1"),
        ],
    );
}

fn measured(svg: &mut Svg, panel: &Panel, curve: &Curve, extent: Extent) {
    let style = &curve.series.style;
    let at = |point: &Point, which: usize| (panel.px(point.x), panel.py(point.y[which]));
    let is_spread = |point: &&Point| point.y[0] < point.y[2];
    if extent == Extent::Bars {
        for point in curve.points.iter().filter(is_spread) {
            bar(svg, style.colour, at(point, 0), at(point, 2));
        }
    } else if curve.points.iter().any(|point| is_spread(&point)) {
        let low = curve.points.iter().map(|point| at(point, 0));
        let high = curve.points.iter().rev().map(|point| at(point, 2));
        svg.path(
            Path::through(low.chain(high)).data(),
            &[("fill", style.colour), ("fill-opacity", "0.13")],
        );
    }
    svg.path(
        Path::through(curve.points.iter().map(|point| at(point, 1))).data(),
        &[
            ("class", "line"),
            ("stroke", style.colour),
            ("stroke-dasharray", style.dash),
            ("stroke-width", "1.6"),
        ],
    );
    for point in &curve.points {
        let tip = format!("{}|{}", curve.series.label, point.tip);
        let mut attributes = style.paint();
        attributes.push(("data-tip", &tip));
        svg.path(&style.marker(at(point, 1), 3.2), &attributes);
    }
}

fn bar(svg: &mut Svg, colour: &str, low: (f64, f64), high: (f64, f64)) {
    let line = [("stroke", colour), ("stroke-width", "1.2")];
    svg.line(low, high, &line);
    for (x, y) in [low, high] {
        svg.line((x - 3.5, y), (x + 3.5, y), &line);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Style;

    fn curve(label: &str, points: &[(f64, f64)]) -> Curve {
        Curve {
            series: Series {
                label: label.to_string(),
                style: Style::of(0),
            },
            points: points
                .iter()
                .map(|(x, y)| Point {
                    x: *x,
                    y: [*y * 0.9, *y, *y * 1.1],
                    tip: format!("{y}"),
                })
                .collect(),
        }
    }

    fn figure(curves: Vec<Curve>) -> String {
        draw(&Figure {
            chart: Chart::new("f", "t", "d"),
            x_title: "x",
            x: Scale::doublings(Quantity::Bytes, [4096.0, 65536.0]),
            parts: vec![Part {
                title: "y",
                y: Scale::linear_from_zero(Quantity::Cycles, [10.0]),
                curves,
                models: vec![curve("model", &[(4096.0, 5.0), (65536.0, 5.0)])],
            }],
            verticals: vec![(32_768.0, "L1".to_string()), (1e9, "beyond".to_string())],
            extent: Extent::Bars,
            note: String::new(),
        })
    }

    #[test]
    fn points_have_tooltips_and_thresholds_within_the_axes_have_labels() {
        let svg = figure(vec![curve(
            "a",
            &[(4096.0, 1.0), (8192.0, 2.0), (65536.0, 9.0)],
        )]);
        assert_eq!(svg.matches("data-tip=\"a|").count(), 3);
        assert!(svg.contains(">L1<") && !svg.contains("beyond"));
        assert!(svg.contains(">model<") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_point_shows_an_interval_only_with_enough_runs() {
        let of = |values: &[f64]| {
            Point::of_runs(2e6, Quantity::RatePps, values, Quantity::TimeNs).unwrap()
        };
        let few = of(&[3000.0, 1000.0, 2000.0]);
        assert_eq!(few.y, [1000.0, 2000.0, 3000.0]);
        assert!(
            few.tip.ends_with("|range of 3: 1.00 µs to 3.00 µs"),
            "{}",
            few.tip
        );
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        let many = of(&ten);
        assert_eq!(many.y, [2.0, 5.5, 9.0]);
        assert_eq!(
            many.tip,
            "5.50 ns at 2.00 Mpkt/s|97 % 2.00 ns to 9.00 ns, n = 10"
        );
        let none = |values: &[f64]| Point::of_runs(1.0, Quantity::Number, values, Quantity::Number);
        assert_eq!((none(&[]), none(&[f64::NAN])), (None, None));
    }

    #[test]
    fn an_empty_figure_displays_the_text_no_data() {
        assert!(figure(vec![curve("a", &[])]).contains("no data"));
    }
}
