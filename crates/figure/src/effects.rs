//! Effects of settings as ratios with their intervals, a row per setting, beside the line of no effect.

use taut_measure::quantity::Quantity;

use super::axes::Panel;
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{Chart, Column, Series, rows};

/// The effect of one setting, as a row of the figure.
#[derive(Debug, Clone)]
pub struct Item {
    /// Label and style of the row.
    pub series: Series,
    /// Lower end of the effect's interval, the effect as a ratio, and upper end of the interval. If there is no ratio,
    /// the field has the reason, which is drawn in its place.
    pub ratio: Result<[f64; 3], String>,
    /// True if the effect is statistically significant: its mark is filled.
    pub stated: bool,
}

/// Draws groups of effects over one logarithmic axis.
pub fn chart(chart: &Chart<'_>, x_title: &str, groups: &[Column<Item>]) -> String {
    let items = groups.iter().flat_map(|group| &group.items);
    let ratios = items.filter_map(|item| item.ratio.as_ref().ok()).flatten();
    // The line of no effect is always in the panel.
    let x = Scale::log(Quantity::Number, ratios.copied().chain([0.9, 1.1]));
    rows::draw(
        chart,
        (x, x_title),
        120.0,
        groups,
        |item| &item.series,
        draw_row,
    )
}

fn draw_row(svg: &mut Svg, panel: &Panel, item: &Item, y: f64) {
    let one = panel.px(1.0);
    svg.line((one, y - 12.0), (one, y + 12.0), &[("class", "frame")]);
    let [low, ratio, high] = match &item.ratio {
        Ok(ratio) => *ratio,
        Err(why) => {
            svg.text((panel.left + 10.0, y + 4.0), Anchor::Start, "empty", why);
            return;
        }
    };
    let text = |value: f64| format!("{value:.2}");
    let said = if item.stated {
        "an effect"
    } else {
        "no effect shown"
    };
    let tip = format!(
        "{}|ratio {}|{} to {}|{said}",
        item.series.label,
        text(ratio),
        text(low),
        text(high)
    );
    svg.open(&[("data-tip", &tip)]);
    let colour = item.series.style.colour;
    let line = [
        ("stroke", colour),
        ("stroke-width", "1.5"),
        ("stroke-dasharray", item.series.style.dash),
    ];
    let (from, to) = (panel.px(low), panel.px(high));
    svg.line((from, y), (to, y), &line);
    for x in [from, to] {
        svg.line((x, y - 4.0), (x, y + 4.0), &line);
    }
    let mark = item.series.style.marker((panel.px(ratio), y), 4.5);
    match item.stated {
        true => svg.path(&mark, &[("fill", colour)]),
        false => svg.path(
            &mark,
            &[
                ("class", "paper"),
                ("stroke", colour),
                ("stroke-width", "1.5"),
            ],
        ),
    }
    svg.close();
    svg.text(
        (to.max(one) + 8.0, y + 4.0),
        Anchor::Start,
        "label",
        &text(ratio),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;

    #[test]
    fn a_row_without_an_effect_displays_the_reason() {
        let item = |ratio, stated| Item {
            series: Series {
                label: "governor".to_string(),
                style: Style::of(0),
            },
            ratio,
            stated,
        };
        let groups = [Column {
            heading: "energy".to_string(),
            items: vec![
                item(Ok([0.4, 0.5, 0.6]), true),
                item(Err("no data: no RAPL here".to_string()), false),
            ],
        }];
        let svg = chart(&Chart::new("effects", "t", "d"), "ratio", &groups);
        assert!(
            svg.contains("no RAPL here") && svg.contains("0.50"),
            "{svg}"
        );
        assert!(svg.contains("an effect"), "{svg}");
    }
}
