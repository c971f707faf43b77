//! Latency over time, one panel per device: the slowest packets, coloured by cause, over a sample of all packets. The
//! layout follows Stylianopoulos et al., figure 3, and Gallenmüller's scatter of the 5000 worst latencies.

use taut_measure::quantity::{self, Quantity};

use super::axes::{Hover, Labels, Panel, columns};
use super::scale::Scale;
use super::svg::{Anchor, Path, Svg};
use super::{Column, Series, WIDTH, legend};

/// The packets of one device over time. Points are (time in s, latency in ns).
#[derive(Debug, Clone)]
pub struct Item<'a> {
    /// Label and style of the device.
    pub series: Series,
    /// The slowest packets, one series per cause where the cause is known.
    pub worst: Vec<(Series, Vec<(f64, f64)>)>,
    /// A sample of all packets of the device, drawn behind the slowest ones.
    pub background: &'a [(f64, f64)],
    /// The time at which each repetition ends, s.
    pub ends: &'a [f64],
    /// Name and length (ns) of a timer of the device, drawn as a line at that latency; `None` without a timer.
    pub timer: Option<(&'a str, f64)>,
}

const PANEL_HEIGHT: f64 = 100.0;
const ROW_HEIGHT: f64 = PANEL_HEIGHT + 34.0;
const TOP: f64 = 36.0;

/// Draws the figure, with a legend of `keys` above the panels.
pub fn draw(columns_of: &[Column<Item<'_>>], keys: &[&Series]) -> String {
    let rows = columns_of
        .iter()
        .map(|column| column.items.len())
        .max()
        .unwrap_or(0);
    let keys_height = legend::strip_height(WIDTH - 20.0, keys);
    let top_of_all = TOP + keys_height;
    let mut svg = Svg::new(
        "timeline",
        WIDTH,
        top_of_all + rows as f64 * ROW_HEIGHT + 34.0,
        "Latency over time",
        "Round-trip latency of single packets over time, one panel per device; the worst packets in colour.",
    );
    let items = || columns_of.iter().flat_map(|column| &column.items);
    let y = Scale::log(
        Quantity::TimeNs,
        items()
            .flat_map(|item| {
                item.worst
                    .iter()
                    .flat_map(|(_, points)| points)
                    .chain(item.background)
            })
            .map(|point| point.1),
    );
    let seconds = items()
        .filter_map(|item| item.ends.last())
        .fold(0.0, |most: f64, end| most.max(*end));
    let x = Scale::linear(Quantity::Seconds, 0.0, seconds);
    legend::strip(&mut svg, (10.0, 0.0), WIDTH - 20.0, keys);
    for ((left, width), column) in columns(columns_of.len(), 70.0, 18.0)
        .into_iter()
        .zip(columns_of)
    {
        svg.text(
            (left, keys_height + 16.0),
            Anchor::Start,
            "head",
            &column.heading,
        );
        for (row, item) in column.items.iter().enumerate() {
            let panel = Panel {
                left,
                top: top_of_all + row as f64 * ROW_HEIGHT + 18.0,
                width,
                height: PANEL_HEIGHT,
                x,
                y,
            };
            draw_panel(&mut svg, &panel, item, row + 1 == column.items.len());
        }
        let middle = top_of_all + 18.0 + (column.items.len() as f64 * ROW_HEIGHT - 34.0) / 2.0;
        svg.text_upwards((left - 55.0, middle), "axis", "round-trip latency");
    }
    svg.finish()
}

fn draw_panel(svg: &mut Svg, panel: &Panel, item: &Item<'_>, last: bool) {
    legend::above(svg, panel, &item.series);
    let Series { label, .. } = &item.series;
    let labels = Labels {
        x: last.then_some(match item.ends {
            [] | [_] => "time (s)",
            _ => "time, one repetition after the other (s)",
        }),
        y: None,
        x_ticks: 6,
        y_ticks: 5,
    };
    panel.open(svg, Hover::Nearest, labels);
    if item.worst.is_empty() && item.background.is_empty() {
        panel.empty(svg, "no data");
    }
    draw_ends(svg, panel, item.ends);
    dots(
        svg,
        panel,
        item.background,
        &[
            ("stroke", "#a8a8a8"),
            ("stroke-width", "1.6"),
            ("data-label", label),
        ],
    );
    for (cause, points) in &item.worst {
        let told = format!("{label}, {}", cause.label);
        dots(
            svg,
            panel,
            points,
            &[
                ("stroke", cause.style.colour),
                ("stroke-width", "2"),
                ("stroke-opacity", "0.6"),
                ("data-label", &told),
            ],
        );
    }
    if let Some((name, ns)) = item.timer {
        draw_timer(svg, panel, name, ns);
    }
    panel.close(svg);
}

/// Draws a vertical line where each repetition ends, except the last.
fn draw_ends(svg: &mut Svg, panel: &Panel, ends: &[f64]) {
    for end in ends.iter().rev().skip(1) {
        let x = panel.px(*end);
        svg.line(
            (x, panel.top),
            (x, panel.bottom()),
            &[
                ("class", "faint"),
                ("stroke-width", "1"),
                ("stroke-dasharray", "1 2"),
            ],
        );
    }
}

/// Draws the length of a timer as a horizontal line with a note.
fn draw_timer(svg: &mut Svg, panel: &Panel, name: &str, ns: f64) {
    let y = panel.py(ns);
    svg.line(
        (panel.left, y),
        (panel.right(), y),
        &[
            ("class", "ink"),
            ("stroke-width", "1"),
            ("stroke-dasharray", "6 3"),
        ],
    );
    let note = format!("– – {name} {}", quantity::time(ns));
    svg.text((panel.right(), panel.top - 6.0), Anchor::End, "note", &note);
}

fn dots(svg: &mut Svg, panel: &Panel, points: &[(f64, f64)], look: &[(&str, &str)]) {
    let mut path = Path::default();
    for (seconds, ns) in points {
        path.dot(panel.px(*seconds), panel.py(*ns));
    }
    if !points.is_empty() {
        let attributes: Vec<(&str, &str)> = [("class", "dots")]
            .into_iter()
            .chain(look.iter().copied())
            .collect();
        svg.path(path.data(), &attributes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Style;

    #[test]
    fn the_time_axis_names_repetitions_only_if_several_exist() {
        let drawn = |ends: &[f64]| {
            let item = Item {
                series: Series {
                    label: "a".to_owned(),
                    style: Style::of(0),
                },
                worst: Vec::new(),
                background: &[(0.5, 1e3)],
                ends,
                timer: None,
            };
            let column = Column {
                heading: "b".to_owned(),
                items: vec![item],
            };
            draw(&[column], &[])
        };
        assert!(drawn(&[1.0]).contains(">time (s)<"));
        assert!(drawn(&[1.0, 2.0]).contains(">time, one repetition after the other (s)<"));
    }
}
