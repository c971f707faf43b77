//! Scatter plots in panels side by side, each with its own axes. A panel has filled or hollow points of several series,
//! and the line on which the points of a perfect model are. The plots show measured over predicted values, or residuals
//! over a variable of the model.

use super::axes::{Hover, Labels, Panel};
use super::chart::left_of;
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Chart, Series, legend};

/// A point of a scatter plot, with the text of its hover read-out.
#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    /// The x and y values of the point.
    pub at: (f64, f64),
    /// True if the point is drawn as an outline.
    pub hollow: bool,
    /// Text of the hover read-out, lines separated by `|`.
    pub tip: String,
}

/// The points of one series.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Label and style of the series.
    pub series: Series,
    /// The points; those with a coordinate that is not finite are skipped.
    pub marks: Vec<Mark>,
}

/// The line on which the points of a perfect model lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Line {
    /// The line y = x, for measured over predicted values.
    Equal,
    /// The line y = 0, for residuals.
    Zero,
}

/// A panel of the figure, with its own axes and points.
#[derive(Debug, Clone)]
pub struct Part<'a> {
    /// Heading above the panel.
    pub heading: &'a str,
    /// Title and scale of the x axis.
    pub x: (&'a str, Scale),
    /// Title and scale of the y axis.
    pub y: (&'a str, Scale),
    /// The line on which the points of a perfect model would lie.
    pub line: Line,
    /// The series whose points the panel shows.
    pub items: Vec<Item>,
}

const RIGHT: f64 = 20.0;
/// Height below a panel for ticks, title and the heading of the next row, px.
const BELOW: f64 = 74.0;
const HEADING: f64 = 30.0;
const RADIUS: f64 = 3.4;

/// Draws panels in rows of `in_a_row`, each `height` px high.
pub fn draw(chart: &Chart<'_>, parts: &[Part<'_>], in_a_row: usize, height: f64) -> String {
    let mut keys: Vec<&Series> = Vec::new();
    for item in parts.iter().flat_map(|part| &part.items) {
        if !keys.contains(&&item.series) {
            keys.push(&item.series);
        }
    }
    let in_a_row = in_a_row.max(1);
    let rows = parts.len().div_ceil(in_a_row) as f64;
    let each = chart.width() / in_a_row as f64;
    let top = 8.0 + legend::strip_height(chart.width() - RIGHT, &keys) + HEADING;
    let mut svg = chart.svg(top + rows * (height + BELOW) - 24.0);
    legend::strip(&mut svg, (16.0, 8.0), chart.width() - RIGHT, &keys);
    for (number, part) in parts.iter().enumerate() {
        let (row, column) = (number / in_a_row, number % in_a_row);
        let left = left_of(&part.y.1, 5);
        let panel = Panel {
            left: column as f64 * each + left,
            top: top + row as f64 * (height + BELOW),
            width: each - left - RIGHT,
            height,
            x: part.x.1,
            y: part.y.1,
        };
        draw_part(&mut svg, &panel, part);
    }
    svg.finish()
}

fn draw_part(svg: &mut Svg, panel: &Panel, part: &Part<'_>) {
    let labels = Labels {
        x: Some(part.x.0),
        y: Some(part.y.0),
        x_ticks: panel.x.ticks_along(panel.width, 6),
        y_ticks: 5,
    };
    let above = (panel.left, panel.top - 7.0);
    svg.text(above, Anchor::Start, "head", part.heading);
    panel.open(svg, Hover::Nearest, labels);
    let finite = |mark: &&Mark| mark.at.0.is_finite() && mark.at.1.is_finite();
    if !part
        .items
        .iter()
        .any(|item| item.marks.iter().any(|it| finite(&it)))
    {
        panel.empty(svg, "no data");
    }
    draw_line(svg, panel, part.line);
    for item in &part.items {
        let style = &item.series.style;
        for mark in item.marks.iter().filter(finite) {
            let outline = style.marker((panel.px(mark.at.0), panel.py(mark.at.1)), RADIUS);
            let class = if mark.hollow { "paper" } else { "full" };
            let attributes = [
                ("class", class),
                ("fill", style.colour),
                ("fill-opacity", "0.75"),
                ("stroke", style.colour),
                ("stroke-width", "1.3"),
                ("data-tip", &mark.tip),
            ];
            svg.path(&outline, &attributes);
        }
    }
    panel.close(svg);
}

fn draw_line(svg: &mut Svg, panel: &Panel, line: Line) {
    let ends = match line {
        Line::Equal => {
            let from = panel.x.min.max(panel.y.min);
            let to = panel.x.max.min(panel.y.max);
            [(from, from), (to, to)]
        }
        Line::Zero => [(panel.x.min, 0.0), (panel.x.max, 0.0)],
    };
    if ends[0].0 < ends[1].0 {
        let ends = ends.map(|(x, y)| (panel.px(x), panel.py(y)));
        let look = [("class", "line guide"), ("stroke-dasharray", "5 3")];
        svg.path(Path::through(ends).data(), &look);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;
    use taut_measure::quantity::Quantity;

    fn mark(x: f64, y: f64, hollow: bool) -> Mark {
        Mark {
            at: (x, y),
            hollow,
            tip: format!("{x}|{y}"),
        }
    }

    fn part(line: Line, marks: Vec<Mark>) -> Part<'static> {
        let scale = Scale::linear(Quantity::Number, -1.0, 10.0);
        Part {
            heading: "of a",
            x: ("x", scale),
            y: ("y", scale),
            line,
            items: vec![Item {
                series: Series {
                    label: "a".to_owned(),
                    style: Style::of(0),
                },
                marks,
            }],
        }
    }

    #[test]
    fn points_have_tooltips_and_points_without_a_number_are_omitted() {
        let marks = vec![
            mark(1.0, 2.0, false),
            mark(3.0, 4.0, true),
            mark(f64::NAN, 1.0, true),
        ];
        let parts = [part(Line::Equal, marks), part(Line::Zero, Vec::new())];
        let svg = draw(&Chart::new("m", "t", "d"), &parts, 2, 200.0);
        assert_eq!(svg.matches("data-tip=").count(), 2);
        assert_eq!(svg.matches("class=\"paper\"").count(), 1);
        assert_eq!(svg.matches("class=\"panel\"").count(), 2);
        assert_eq!(
            svg.matches(">a</text>").count(),
            1,
            "one key for both panels"
        );
        assert!(svg.contains("no data") && !svg.contains("NaN"));
    }
}
