//! Box plots: quartiles, whiskers from p1 to p99 and the mean, a row per distribution.

use super::axes::Panel;
use super::distribution::{Distribution, Item};
use super::svg::{Anchor, Svg};
use super::{Axis, Chart, Column, rows};
use taut_measure::quantity::{Quantity, count};

/// Quantiles at the outer ends of the whiskers.
const WHISKERS: [f64; 2] = [0.01, 0.99];

/// The quantiles and the mean that a box shows.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Marks {
    whiskers: [f64; 2],
    quartiles: [f64; 3],
    mean: f64,
}

impl Marks {
    fn of(values: &Distribution<'_>) -> Option<Marks> {
        let at = |q| values.quantile(q);
        Some(Marks {
            whiskers: [at(WHISKERS[0])?, at(WHISKERS[1])?],
            quartiles: [at(0.25)?, at(0.5)?, at(0.75)?],
            mean: values.mean()?,
        })
    }
}

/// Draws groups of boxes over one axis. A group with an empty heading gets no heading line. `of` is the plural noun for
/// the counted values ("packets", "runs").
pub fn chart(chart: &Chart<'_>, axis: Axis<'_>, of: &str, groups: &[Column<Item<'_>>]) -> String {
    let marks = groups
        .iter()
        .flat_map(|group| &group.items)
        .filter_map(|item| Marks::of(&item.values));
    let x = axis.scale(marks.flat_map(|m| [m.whiskers[0], m.whiskers[1], m.mean]));
    rows::draw(
        chart,
        (x, axis.title),
        30.0,
        groups,
        |item| &item.series,
        |svg, panel, item, y| draw_box(svg, panel, axis.quantity, of, item, y),
    )
}

fn draw_box(svg: &mut Svg, panel: &Panel, quantity: Quantity, of: &str, item: &Item<'_>, y: f64) {
    let Some(marks) = Marks::of(&item.values) else {
        svg.text(
            (panel.left + 10.0, y + 4.0),
            Anchor::Start,
            "empty",
            "no data",
        );
        return;
    };
    let style = &item.series.style;
    let text = |value| quantity.text(value);
    let [low, middle, high] = marks.quartiles;
    let tip = format!(
        "{}|median {}|quartiles {} to {}|p1 {}, p99 {}|mean {}|n = {} {of}",
        item.series.label,
        text(middle),
        text(low),
        text(high),
        text(marks.whiskers[0]),
        text(marks.whiskers[1]),
        text(marks.mean),
        count(item.values.count())
    );
    svg.open(&[("data-tip", &tip)]);
    let line = [("stroke", style.colour), ("stroke-width", "1.3")];
    let ends = marks.whiskers.map(|value| panel.px(value));
    svg.line((ends[0], y), (ends[1], y), &line);
    for x in ends {
        svg.line((x, y - 4.0), (x, y + 4.0), &line);
    }
    let (from, to) = (panel.px(low), panel.px(high));
    let corner = (from, y - 7.0);
    // A rectangle in the colour of the page, below the box, hides the whisker and the grid.
    svg.rect(corner, (to - from, 14.0), &[("class", "paper")]);
    svg.rect(
        corner,
        (to - from, 14.0),
        &[
            ("fill", style.colour),
            ("fill-opacity", "0.3"),
            ("stroke", style.colour),
            ("stroke-width", "1.3"),
            ("stroke-dasharray", style.dash),
        ],
    );
    let x = panel.px(middle);
    svg.line(
        (x, y - 7.0),
        (x, y + 7.0),
        &[("class", "ink"), ("stroke-width", "2")],
    );
    let x = panel.px(marks.mean);
    let diamond = format!("M{:.2},{y}l4,-4l4,4l-4,4Z", x - 4.0);
    svg.path(&diamond, &[("class", "paper ink"), ("stroke-width", "1")]);
    svg.close();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn box_and_whiskers_are_at_the_quantiles_of_the_values() {
        let values: Vec<f64> = (1..=200).map(f64::from).collect();
        let marks = Marks::of(&Distribution::Sorted(&values)).unwrap();
        assert_eq!(marks.whiskers, [2.0, 198.0]);
        assert_eq!(marks.quartiles, [50.0, 100.0, 150.0]);
        assert_eq!(marks.mean, 100.5);
        assert_eq!(Marks::of(&Distribution::Sorted(&[])), None);
    }
}
