//! Stacked rows: parts that add up to a total, one row per item, from left to right.

use super::axes::Panel;
use super::scale::Scale;
use super::svg::{Anchor, Svg};
use super::{Axis, Chart, Column, Series, rows};
use taut_measure::quantity::Quantity;

/// One row: an item whose parts add up to a total.
#[derive(Debug, Clone, PartialEq)]
pub struct Item {
    /// Label and style of the row.
    pub series: Series,
    /// Values of the row's parts, one for each name in `parts` of [`chart`]; `None` for an unknown part.
    pub parts: Vec<Option<f64>>,
}

/// Draws groups of rows over one axis, which begins at zero; `parts` has the name and style of each part.
pub fn chart(
    chart: &Chart<'_>,
    axis: Axis<'_>,
    parts: &[Series],
    groups: &[Column<Item>],
) -> String {
    let items = groups.iter().flat_map(|group| &group.items);
    let x = Scale::linear_from_zero(axis.quantity, items.map(whole));
    let keys: Vec<&Series> = parts.iter().collect();
    rows::draw_with_keys(
        chart,
        (x, axis.title),
        100.0,
        &keys,
        groups,
        |item| &item.series,
        |svg, panel, item, y| draw_row(svg, panel, axis.quantity, parts, item, y),
    )
}

/// Returns the sum of the row's known parts; unknown parts count as zero.
fn whole(item: &Item) -> f64 {
    item.parts.iter().flatten().sum()
}

fn draw_row(
    svg: &mut Svg,
    panel: &Panel,
    quantity: Quantity,
    parts: &[Series],
    item: &Item,
    y: f64,
) {
    if item.parts.iter().all(Option::is_none) {
        svg.text(
            (panel.left + 10.0, y + 4.0),
            Anchor::Start,
            "empty",
            "no data",
        );
        return;
    }
    let mut before = 0.0;
    for (part, value) in parts.iter().zip(&item.parts) {
        let Some(value) = *value else { continue };
        let tip = format!(
            "{}|{}: {}",
            item.series.label,
            part.label,
            quantity.text(value)
        );
        let (from, to) = (panel.px(before), panel.px(before + value));
        svg.open(&[("data-tip", &tip)]);
        svg.rect(
            (from, y - 7.0),
            (to - from, 14.0),
            &[("fill", part.style.colour), ("fill-opacity", "0.85")],
        );
        svg.close();
        before += value;
    }
    let unknown = item.parts.iter().any(Option::is_none);
    let text = format!(
        "{}{}",
        if unknown { "≥ " } else { "" },
        quantity.text(before)
    );
    svg.text(
        (panel.px(before) + 8.0, y + 4.0),
        Anchor::Start,
        "label",
        &text,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;

    #[test]
    fn stacked_bar_segments_are_contiguous_and_unknown_segments_are_omitted() {
        let series = |index: usize, label: &str| Series {
            label: label.to_owned(),
            style: Style::of(index),
        };
        let parts = [series(0, "sender"), series(1, "air"), series(2, "receiver")];
        let groups = [Column {
            heading: String::new(),
            items: vec![
                Item {
                    series: series(0, "ours"),
                    parts: vec![Some(1e6), Some(2e6), Some(3e6)],
                },
                Item {
                    series: series(1, "published"),
                    parts: vec![Some(2e6), None, Some(2e6)],
                },
                Item {
                    series: series(2, "neither"),
                    parts: vec![None; 3],
                },
            ],
        }];
        let axis = Axis {
            title: "time",
            quantity: Quantity::TimeNs,
            log: false,
        };
        let svg = chart(&Chart::new("stack", "t", "d"), axis, &parts, &groups);
        assert!(
            svg.contains("6.00 ms") && svg.contains("≥ 4.00 ms"),
            "{svg}"
        );
        assert!(svg.contains("no data") && svg.contains("ours|air: 2.00 ms"));
        // Each known part is drawn once.
        assert_eq!(svg.matches("data-tip=").count(), 5);
    }
}
