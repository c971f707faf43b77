//! Bar charts: one value per item, in groups, with the range of the values over the repetitions.

use taut_measure::quantity::Quantity;

use super::axes::Panel;
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{Chart, Column, Series, rows};

/// One bar with its label and the range of its values.
#[derive(Debug, Clone)]
pub struct Item {
    /// Label and style of the bar.
    pub series: Series,
    /// Smallest value, median and largest value over the repetitions. If there are no values, the field has the reason,
    /// which is drawn in place of the bar.
    pub spread: Result<[f64; 3], String>,
    /// True if the value is a lower bound of the real value.
    pub at_least: bool,
}

/// Names, quantity and axis of a bar chart.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Name of the figure and of its file.
    pub name: &'static str,
    /// Title of the figure for screen readers.
    pub title: &'static str,
    /// Title of the horizontal axis.
    pub x_title: &'static str,
    /// The quantity of the bars' values, which decides how they are formatted.
    pub quantity: Quantity,
    /// True for a logarithmic axis; a linear one begins at zero.
    pub logarithmic: bool,
    /// Function that formats a bar's value as text.
    pub text: fn(f64) -> String,
}

/// Draws the bars of all groups over one axis.
pub fn draw(figure: &Figure, groups: &[Column<Item>]) -> String {
    let mut description =
        "Bars: median over the repetitions; whiskers: smallest and largest.".to_string();
    if figure.logarithmic {
        description += " Logarithmic axis.";
    }
    let chart = Chart::new(figure.name, figure.title, &description);
    let items = groups.iter().flat_map(|group| &group.items);
    let values = items.filter_map(|item| item.spread.as_ref().ok()).flatten();
    let x = if figure.logarithmic {
        // The axis begins below the smallest value, as its bar would have no length otherwise.
        Scale::log(figure.quantity, values.flat_map(|v| [*v, v / 2.0]))
    } else {
        Scale::linear_from_zero(figure.quantity, values.copied())
    };
    rows::draw(
        &chart,
        (x, figure.x_title),
        120.0,
        groups,
        |item| &item.series,
        |svg, panel, item, y| draw_row(svg, figure, panel, item, y),
    )
}

fn draw_row(svg: &mut Svg, figure: &Figure, panel: &Panel, item: &Item, y: f64) {
    let Series { label, style } = &item.series;
    let [low, middle, high] = match &item.spread {
        Ok(spread) => *spread,
        Err(why) => {
            svg.text((panel.left + 10.0, y + 4.0), Anchor::Start, "empty", why);
            return;
        }
    };
    let text = figure.text;
    let found = format!("{}{}", if item.at_least { "≥ " } else { "" }, text(middle));
    let tip = format!(
        "{label}|median {found}|{} to {} over the repetitions",
        text(low),
        text(high)
    );
    svg.open(&[("data-tip", &tip)]);
    let end = panel.px(middle);
    svg.rect(
        (panel.left, y - 7.0),
        (end - panel.left, 14.0),
        &[("fill", style.colour), ("fill-opacity", "0.85")],
    );
    let whisker = [("class", "ink"), ("stroke-width", "1.3")];
    let (from, to) = (panel.px(low), panel.px(high));
    if to - from > 0.5 {
        svg.line((from, y), (to, y), &whisker);
        [from, to]
            .into_iter()
            .for_each(|x| svg.line((x, y - 4.0), (x, y + 4.0), &whisker));
    }
    svg.close();
    svg.text((end.max(to) + 8.0, y + 4.0), Anchor::Start, "label", &found);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;

    #[test]
    fn a_bar_without_data_displays_the_reason() {
        let item = |spread| Item {
            series: Series {
                label: "x".to_string(),
                style: Style::of(0),
            },
            spread,
            at_least: true,
        };
        let figure = Figure {
            name: "bars",
            title: "t",
            x_title: "x",
            quantity: Quantity::RatePps,
            logarithmic: true,
            text: taut_measure::quantity::rate,
        };
        let groups = [Column {
            heading: "g".to_string(),
            items: vec![
                item(Ok([1e6, 2e6, 3e6])),
                item(Err("no data: cannot pace".to_string())),
            ],
        }];
        let svg = draw(&figure, &groups);
        assert!(
            svg.contains("cannot pace") && svg.contains("≥ 2.00 Mpkt/s"),
            "{svg}"
        );
    }
}
