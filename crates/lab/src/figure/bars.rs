//! One figure per thing as bars on a logarithmic axis, in groups, with the spread over the repetitions.

use crate::quantity::Quantity;

use super::axes::{Hover, Labels, Panel};
use super::scale::Scale;
use super::svg::{Anchor, Svg, text_width};
use super::{Column, Series, WIDTH};

/// One bar.
#[derive(Debug, Clone)]
pub struct Item {
    /// Whose.
    pub series: Series,
    /// Smallest, median and largest over the repetitions, or why there is none.
    pub spread: Result<[f64; 3], String>,
}

/// What the bars show.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Name of the file.
    pub name: &'static str,
    /// Title for those who cannot see it.
    pub title: &'static str,
    /// Title of the axis.
    pub x_title: &'static str,
    /// What the values are.
    pub quantity: Quantity,
    /// A value in words.
    pub text: fn(f64) -> String,
}

const ROW: f64 = 24.0;
const HEAD: f64 = 28.0;
const TOP: f64 = 8.0;

/// Draws the figure: all groups over one axis.
pub fn draw(figure: &Figure, groups: &[Column<Item>]) -> String {
    let items = || groups.iter().flat_map(|group| &group.items);
    let body = items().count() as f64 * ROW + groups.len() as f64 * HEAD + 6.0;
    let mut svg = Svg::new(
        figure.name,
        WIDTH,
        TOP + body + 46.0,
        figure.title,
        "Bars: median over the repetitions; whiskers: smallest and largest. Logarithmic axis.",
    );
    let left = items()
        .map(|item| text_width(&item.series.label, 12.0))
        .fold(60.0, f64::max)
        + 36.0;
    let values = items()
        .filter_map(|item| item.spread.as_ref().ok())
        .flatten();
    let panel = Panel {
        left,
        top: TOP,
        width: WIDTH - left - 120.0,
        height: body,
        // Room below the smallest, or its bar would have no length.
        x: Scale::log(figure.quantity, values.flat_map(|v| [*v, v / 2.0])),
        y: Scale::linear(Quantity::Share, 0.0, 1.0),
    };
    let labels = Labels {
        x: Some(figure.x_title),
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
            draw_row(&mut svg, figure, &panel, item, row_top + ROW / 2.0);
            row_top += ROW;
        }
    }
    panel.close(&mut svg);
    svg.finish()
}

fn draw_row(svg: &mut Svg, figure: &Figure, panel: &Panel, item: &Item, y: f64) {
    let Series { label, style } = &item.series;
    svg.text((panel.left - 12.0, y + 4.0), Anchor::End, "label", label);
    let [low, middle, high] = match &item.spread {
        Ok(spread) => *spread,
        Err(why) => {
            svg.text((panel.left + 10.0, y + 4.0), Anchor::Start, "empty", why);
            return;
        }
    };
    let text = figure.text;
    let tip = format!(
        "{label}|median {}|{} to {} over the repetitions",
        text(middle),
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
        &text(middle),
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figure::Style;

    #[test]
    fn a_bar_without_data_says_why() {
        let item = |spread| Item {
            series: Series {
                label: "x".to_string(),
                style: Style::of(0),
            },
            spread,
        };
        let figure = Figure {
            name: "bars",
            title: "t",
            x_title: "x",
            quantity: Quantity::RatePps,
            text: crate::quantity::rate,
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
            svg.contains("cannot pace") && svg.contains("2.00 Mpkt/s"),
            "{svg}"
        );
    }
}
