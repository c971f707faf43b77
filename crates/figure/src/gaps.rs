//! Histograms of the inter-departure times (the gaps between packets), with one panel per generator and one column of
//! panels per rate. The axis reaches from 0 to three times the requested gap. After Gallenmüller 2021, figures 3.3 and
//! 3.4.

use taut_measure::quantity::{self, Quantity};

use super::axes::{Hover, Labels, Panel, columns};
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Column, Series, WIDTH, legend};

/// One generator's gaps at one rate.
#[derive(Debug, Clone)]
pub struct Item {
    /// Label and style of the generator.
    pub series: Series,
    /// The requested gap between packets, ns.
    pub asked_ns: f64,
    /// Fraction of the gaps in each bin; the last bin holds all gaps beyond the axis. Empty without data.
    pub shares: Vec<f64>,
    /// A note that is printed in the panel.
    pub note: String,
}

const PANEL_HEIGHT: f64 = 64.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 34.0;
const TOP: f64 = 36.0;

/// Draws the figure; the requested gap is `bins_per_gap` bins wide.
pub fn draw(name: &str, bins_per_gap: usize, columns_of: &[Column<Item>]) -> String {
    let rows = columns_of.iter().map(|c| c.items.len()).max().unwrap_or(0);
    let height = TOP + rows as f64 * ROW_HEIGHT + 34.0;
    let mut svg = Svg::new(
        name,
        WIDTH,
        height,
        "Gaps between packets per generator",
        "Share of the gaps over their length, one panel per generator, one column per rate.",
    );
    for ((left, width), column) in columns(columns_of.len(), 64.0, 18.0)
        .into_iter()
        .zip(columns_of)
    {
        svg.text((left, 16.0), Anchor::Start, "head", &column.heading);
        for (row, item) in column.items.iter().enumerate() {
            let bin_ns = item.asked_ns / bins_per_gap as f64;
            let shown = item.shares.len().saturating_sub(1).max(bins_per_gap * 3);
            let panel = Panel {
                left,
                top: TOP + row as f64 * ROW_HEIGHT + 18.0,
                width,
                height: PANEL_HEIGHT,
                x: Scale::linear(Quantity::TimeNs, 0.0, bin_ns * shown as f64),
                y: Scale::linear_from_zero(Quantity::Share, item.shares.iter().copied()),
            };
            draw_panel(
                &mut svg,
                &panel,
                item,
                bin_ns,
                row + 1 == column.items.len(),
            );
        }
        let middle = TOP + 18.0 + (column.items.len() as f64 * ROW_HEIGHT - 34.0) / 2.0;
        svg.text_upwards((left - 50.0, middle), "axis", "share of gaps per bin");
    }
    svg.finish()
}

fn draw_panel(svg: &mut Svg, panel: &Panel, item: &Item, bin_ns: f64, last: bool) {
    legend::above(svg, panel, &item.series);
    let Series { label, style } = &item.series;
    let labels = Labels {
        x: last.then_some("gap between packets"),
        y: None,
        x_ticks: 4,
        y_ticks: 2,
    };
    panel.open(svg, Hover::AtX, labels);
    let asked = panel.px(item.asked_ns);
    let mark = [("class", "ink"), ("stroke-dasharray", "3 3")];
    svg.line((asked, panel.top), (asked, panel.bottom()), &mark);
    svg.text(
        (panel.right() - 5.0, panel.top + 13.0),
        Anchor::End,
        "note",
        &item.note,
    );
    match item.shares.split_last() {
        None => panel.empty(svg, "no data"),
        Some((beyond, bins)) => {
            let mut steps = Vec::new();
            for (bin, share) in bins.iter().enumerate() {
                let y = panel.py(*share);
                let edge = |bin: usize| panel.px(bin as f64 * bin_ns);
                steps.extend([(edge(bin), y), (edge(bin + 1), y)]);
            }
            let line = [
                ("class", "line"),
                ("stroke", style.colour),
                ("stroke-width", "1.4"),
                ("data-label", label.as_str()),
            ];
            svg.path(Path::through(steps).data(), &line);
            if *beyond > 0.0 {
                svg.text(
                    (panel.right() - 5.0, panel.top + 26.0),
                    Anchor::End,
                    "note",
                    &format!("{} longer", quantity::share(*beyond)),
                );
            }
        }
    }
    panel.close(svg);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;

    #[test]
    fn gaps_beyond_the_axis_are_reported_as_a_percentage() {
        let item = |shares| Item {
            series: Series {
                label: "x".to_string(),
                style: Style::of(0),
            },
            asked_ns: 1_000.0,
            shares,
            note: String::new(),
        };
        let mut shares = vec![0.0; 31];
        (shares[10], shares[30]) = (0.9, 0.1);
        let column = Column {
            heading: "1 Mpkt/s".to_string(),
            items: vec![item(shares), item(Vec::new())],
        };
        let svg = draw("gaps", 10, &[column]);
        assert!(
            svg.contains("10.0 % longer") && svg.contains("no data"),
            "{svg}"
        );
    }
}
