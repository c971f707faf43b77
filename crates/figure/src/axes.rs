//! A panel: the area between two axes, its grid, ticks and labels, and the data with which the hover script converts a
//! position back to values.

use super::WIDTH;
use super::scale::{Scale, Spacing, Tick};
use super::svg::{Anchor, Svg, number, text_width};

/// The area of a plot and its axes.
#[derive(Debug, Clone, Copy)]
pub struct Panel {
    /// Left edge of the panel, px.
    pub left: f64,
    /// Top edge of the panel, px.
    pub top: f64,
    /// Width of the panel, px.
    pub width: f64,
    /// Height of the panel, px.
    pub height: f64,
    /// The horizontal axis of the panel.
    pub x: Scale,
    /// The vertical axis of the panel.
    pub y: Scale,
}

/// The labels of a panel.
#[derive(Debug, Clone, Copy, Default)]
pub struct Labels<'a> {
    /// Title below the x axis. Without a title, the tick labels of the x axis are hidden too.
    pub x: Option<&'a str>,
    /// Title along the y axis.
    pub y: Option<&'a str>,
    /// Approximate number of labelled y ticks; 0 for a y axis whose rows have names instead of numbers.
    pub y_ticks: usize,
    /// Approximate number of labelled x ticks.
    pub x_ticks: usize,
}

/// Size of a tick label, px (`.tick` in svg.rs).
const TICK_SIZE: f64 = 11.0;
/// Gap between two tick labels, px.
const TICK_GAP: f64 = 8.0;

/// The rule by which the hover read-out selects values in a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hover {
    /// The values of all series at the pointer's x.
    AtX,
    /// The values of the single point nearest to the pointer.
    Nearest,
}

impl Panel {
    /// Position of a value on the x axis, px.
    pub fn px(&self, value: f64) -> f64 {
        self.left + self.width * self.x.place(value)
    }

    /// Position of a value on the y axis, px.
    pub fn py(&self, value: f64) -> f64 {
        self.top + self.height * (1.0 - self.y.place(value))
    }

    /// Lower edge of the panel, px.
    pub fn bottom(&self) -> f64 {
        self.top + self.height
    }

    /// Right edge of the panel, px.
    pub fn right(&self) -> f64 {
        self.left + self.width
    }

    /// Opens the panel's group and draws grid, ticks and labels. The caller draws the data next and then calls
    /// [`Panel::close`].
    pub fn open(&self, svg: &mut Svg, hover: Hover, labels: Labels<'_>) {
        let hover = if hover == Hover::AtX { "x" } else { "xy" };
        let x = describe(&self.x, self.left, self.right());
        let y = describe(&self.y, self.bottom(), self.top);
        svg.open(&[
            ("class", "panel"),
            ("data-hover", hover),
            ("data-x", &x),
            ("data-y", &y),
        ]);
        svg.rect(
            (self.left, self.top),
            (self.width, self.height),
            &[("class", "hit")],
        );
        self.x_axis(svg, labels);
        self.y_axis(svg, labels);
    }

    /// Draws the left and bottom axis lines over the data, and closes the group.
    pub fn close(&self, svg: &mut Svg) {
        // Only the left and bottom lines: the grid guides the eye, and a full box would compete with the data.
        let corners = [
            (self.left, self.top),
            (self.left, self.bottom()),
            (self.right(), self.bottom()),
        ];
        svg.path(
            super::svg::Path::through(corners).data(),
            &[("class", "frame")],
        );
        svg.close();
    }

    /// Writes `why`, the reason for the missing data, in the middle of the panel.
    pub fn empty(&self, svg: &mut Svg, why: &str) {
        svg.text(
            (
                self.left + self.width / 2.0,
                self.top + self.height / 2.0 + 4.0,
            ),
            Anchor::Middle,
            "empty",
            why,
        );
    }

    /// Returns the ticks of the x axis from left to right. A label that would overlap the one before it is omitted.
    fn x_ticks(&self, wanted: usize) -> Vec<Tick> {
        let mut ticks = self.x.ticks(wanted);
        let mut taken = f64::NEG_INFINITY;
        for tick in &mut ticks {
            let Some(label) = &tick.label else { continue };
            let half = text_width(label, TICK_SIZE) / 2.0;
            let x = self.px(tick.value);
            if x - half < taken + TICK_GAP {
                tick.label = None;
            } else {
                taken = x + half;
            }
        }
        ticks
    }

    fn x_axis(&self, svg: &mut Svg, labels: Labels<'_>) {
        for tick in self.x_ticks(labels.x_ticks) {
            let x = self.px(tick.value);
            let class = if tick.label.is_some() {
                "grid"
            } else {
                "minor"
            };
            svg.line((x, self.top), (x, self.bottom()), &[("class", class)]);
            if let (Some(label), Some(_)) = (&tick.label, labels.x) {
                svg.line(
                    (x, self.bottom()),
                    (x, self.bottom() + 4.0),
                    &[("class", "mark")],
                );
                svg.text((x, self.bottom() + 16.0), Anchor::Middle, "tick", label);
            }
        }
        if let Some(title) = labels.x {
            svg.text(
                (self.left + self.width / 2.0, self.bottom() + 34.0),
                Anchor::Middle,
                "axis",
                title,
            );
        }
    }

    fn y_axis(&self, svg: &mut Svg, labels: Labels<'_>) {
        let ticks = if labels.y_ticks == 0 {
            Vec::new()
        } else {
            self.y.ticks(labels.y_ticks)
        };
        let labels_of = ticks.iter().filter_map(|tick| tick.label.as_ref());
        let widest = labels_of
            .map(|label| text_width(label, 11.0))
            .fold(0.0, f64::max);
        for tick in ticks {
            let y = self.py(tick.value);
            let class = if tick.label.is_some() {
                "grid"
            } else {
                "minor"
            };
            svg.line((self.left, y), (self.right(), y), &[("class", class)]);
            if let Some(label) = &tick.label {
                svg.line((self.left - 4.0, y), (self.left, y), &[("class", "mark")]);
                svg.text((self.left - 7.0, y + 3.8), Anchor::End, "tick", label);
            }
        }
        if let Some(title) = labels.y {
            svg.text_upwards(
                (
                    self.left - 52.0_f64.max(widest + 16.0),
                    self.top + self.height / 2.0,
                ),
                "axis",
                title,
            );
        }
    }
}

/// Returns the left edge and width of each of `count` panels side by side, with `left` px free before and `right` px
/// free after each.
pub fn columns(count: usize, left: f64, right: f64) -> Vec<(f64, f64)> {
    let each = WIDTH / count.max(1) as f64;
    (0..count)
        .map(|index| (index as f64 * each + left, each - left - right))
        .collect()
}

fn describe(scale: &Scale, from_px: f64, to_px: f64) -> String {
    let spacing = match scale.spacing {
        Spacing::Linear => "linear",
        Spacing::Log => "log",
        Spacing::Nines => "nines",
    };
    format!(
        "{spacing} {} {} {} {} {}",
        scale.quantity.name(),
        scale.min,
        scale.max,
        number(from_px),
        number(to_px)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use taut_measure::quantity::Quantity;

    #[test]
    fn x_axis_labels_do_not_overlap_at_any_width() {
        let scales = [
            Scale::nines(10_000_000),
            Scale::log(Quantity::TimeNs, [700.0, 2e8]),
            Scale::linear(Quantity::Seconds, 0.0, 100_000.0),
        ];
        for x in scales {
            let mut shown = Vec::new();
            for width in (20..=1000).step_by(7) {
                let panel = Panel {
                    left: 70.0,
                    top: 0.0,
                    width: f64::from(width),
                    height: 100.0,
                    x,
                    y: x,
                };
                let ticks = panel.x_ticks(8);
                let labels = ticks
                    .iter()
                    .filter_map(|tick| Some((panel.px(tick.value), tick.label.as_ref()?)))
                    .map(|(at, label)| (at, text_width(label, TICK_SIZE) / 2.0));
                let labels: Vec<_> = labels.collect();
                for pair in labels.windows(2) {
                    let room = (pair[1].0 - pair[1].1) - (pair[0].0 + pair[0].1);
                    assert!(room >= TICK_GAP, "{width}: {ticks:?}");
                }
                shown.push(labels.len());
            }
            let all = x.ticks(8).iter().filter(|t| t.label.is_some()).count();
            assert!(shown[0] >= 1 && shown[0] < all, "{shown:?}");
            assert_eq!(shown.last(), Some(&all), "a wide panel shows every label");
        }
    }
}
