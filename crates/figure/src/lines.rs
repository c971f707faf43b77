//! Lines without marks over one axis, and stacked areas: curves that a model computes point by point. Each line carries
//! its name as an attribute, so that the script of a page can move it.

use super::axes::Hover;
use super::scale::Scale;
use super::svg::Path;
use super::{Chart, Series};

/// A line, or the upper edge of an area.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Label and style of the line.
    pub series: Series,
    /// The points in order of rising x.
    pub points: Vec<(f64, f64)>,
}

/// Draws lines. Each entry of `levels` is a y value, such as a limit, drawn across the whole panel with its label.
pub fn draw(
    chart: &Chart<'_>,
    x: (Scale, &str),
    y: (Scale, &str),
    lines: &[Line],
    levels: &[(f64, String)],
) -> String {
    let keys: Vec<&Series> = lines.iter().map(|line| &line.series).collect();
    chart.draw(Hover::AtX, x, y, &keys, |svg, panel| {
        for (value, word) in levels
            .iter()
            .filter(|(value, _)| (panel.y.min..=panel.y.max).contains(value))
        {
            let y = panel.py(*value);
            let look = [("class", "guide"), ("stroke-dasharray", "5 3")];
            svg.line((panel.left, y), (panel.right(), y), &look);
            let at = (panel.right() - 4.0, y - 4.0);
            svg.text(at, super::svg::Anchor::End, "note", word);
        }
        for line in lines {
            let points = line
                .points
                .iter()
                .map(|(x, y)| (panel.px(*x), panel.py(*y)));
            let style = &line.series.style;
            let look = [
                ("class", "line"),
                ("stroke", style.colour),
                ("stroke-dasharray", style.dash),
                ("data-label", &line.series.label),
            ];
            svg.path(Path::through(points).data(), &look);
        }
    })
}

/// Draws stacked areas, the lowest first; the points of `lines` are the upper edges, measured from the axis.
pub fn stacked(chart: &Chart<'_>, x: (Scale, &str), y: (Scale, &str), lines: &[Line]) -> String {
    let keys: Vec<&Series> = lines.iter().map(|line| &line.series).collect();
    chart.draw(Hover::Nearest, x, y, &keys, |svg, panel| {
        let mut below: Vec<f64> = Vec::new();
        for line in lines {
            below.resize(line.points.len(), 0.0);
            let edge: Vec<(f64, f64)> = (line.points.iter().zip(&below))
                .map(|((x, height), below)| (*x, below + height))
                .collect();
            let back = line
                .points
                .iter()
                .zip(&below)
                .rev()
                .map(|((x, _), below)| (*x, *below));
            let outline = edge
                .iter()
                .copied()
                .chain(back)
                .map(|(x, y)| (panel.px(x), panel.py(y)));
            let style = &line.series.style;
            let look = [("fill", style.colour), ("fill-opacity", "0.55")];
            svg.path(Path::through(outline).data(), &look);
            for ((x, top), (_, height)) in edge.iter().zip(&line.points) {
                let tip = format!(
                    "{}|{} at {}",
                    line.series.label,
                    panel.y.quantity.text(*height),
                    panel.x.quantity.text(*x)
                );
                let mark = style.marker((panel.px(*x), panel.py(*top)), 1.6);
                svg.path(&mark, &[("fill", style.colour), ("data-tip", &tip)]);
            }
            below = edge.iter().map(|(_, top)| *top).collect();
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;
    use taut_measure::quantity::Quantity;

    fn line(label: &str, index: usize, height: f64) -> Line {
        Line {
            series: Series {
                label: label.to_owned(),
                style: Style::of(index),
            },
            points: vec![(0.0, height), (10.0, height)],
        }
    }

    fn scales() -> (Scale, Scale) {
        let x = Scale::linear(Quantity::Cycles, 0.0, 10.0);
        (x, Scale::linear(Quantity::Share, 0.0, 1.0))
    }

    #[test]
    fn lines_are_labelled_and_thresholds_outside_the_axis_are_omitted() {
        let (x, y) = scales();
        let levels = [(0.5, "half".to_owned()), (7.0, "beyond".to_owned())];
        let svg = draw(
            &Chart::new("l", "t", "d"),
            (x, "x"),
            (y, "y"),
            &[line("a", 0, 0.3)],
            &levels,
        );
        assert!(
            svg.contains("data-label=\"a\"") && svg.contains(">half<") && !svg.contains("beyond")
        );
    }

    #[test]
    fn stacked_areas_begin_at_the_top_of_the_area_below() {
        let (x, y) = scales();
        let lines = [line("a", 0, 0.25), line("b", 1, 0.5)];
        let svg = stacked(&Chart::new("s", "t", "d"), (x, "x"), (y, "y"), &lines);
        let outlines: Vec<&str> = (svg
            .lines()
            .filter(|line| line.contains("fill-opacity=\"0.55\"")))
        .map(|line| line.split('"').nth(1).unwrap_or(""))
        .collect();
        assert_eq!(outlines.len(), 2);
        let corners =
            |of: &str| -> Vec<String> { of.split(['M', 'L']).skip(1).map(str::to_owned).collect() };
        let (first, second) = (corners(outlines[0]), corners(outlines[1]));
        assert_eq!((&first[0], &first[1]), (&second[3], &second[2]));
        assert!(svg.contains("b|50.0 % at"), "{svg}");
    }
}
