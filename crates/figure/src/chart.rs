//! A figure of one panel at any width: its names, its axes, and the positions of legend and panel. Each kind of figure
//! draws the data in the panel itself.

use super::axes::{Hover, Labels, Panel};
use super::scale::Scale;
use super::svg::{Svg, text_width};
use super::{Series, legend};
use taut_measure::quantity::Quantity;

/// Names and size of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Chart<'a> {
    /// Name of the figure, which makes its ids unique on a page.
    pub name: &'a str,
    /// Title of the figure for screen readers.
    pub title: &'a str,
    /// Longer description of the figure for screen readers.
    pub description: &'a str,
    /// Width of the figure, px; at least 300.
    pub width: f64,
}

/// An axis whose limits follow from the values.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Axis<'a> {
    /// Title of the axis. For a [`Quantity::Number`], the title also contains the unit.
    pub title: &'a str,
    /// The quantity of the values, which decides how they are formatted.
    pub quantity: Quantity,
    /// True for a logarithmic axis, which suits values over several powers of ten; all values must be above zero.
    pub log: bool,
}

const RIGHT: f64 = 26.0;

impl Axis<'_> {
    /// Returns the scale of the axis, with limits that fit the values.
    pub(super) fn scale(&self, values: impl IntoIterator<Item = f64>) -> Scale {
        let doubles = matches!(self.quantity, Quantity::Bytes | Quantity::Packets);
        if self.log && doubles {
            Scale::doublings(self.quantity, values)
        } else if self.log {
            Scale::log(self.quantity, values)
        } else {
            Scale::linear_around(self.quantity, values)
        }
    }
}

impl<'a> Chart<'a> {
    /// Returns a figure as wide as a page ([`super::WIDTH`]).
    pub fn new(name: &'a str, title: &'a str, description: &'a str) -> Self {
        Chart {
            name,
            title,
            description,
            width: super::WIDTH,
        }
    }

    pub(super) fn width(&self) -> f64 {
        if self.width.is_finite() {
            self.width.max(300.0)
        } else {
            super::WIDTH
        }
    }

    /// Returns an empty document of the given height.
    pub(super) fn svg(&self, height: f64) -> Svg {
        Svg::new(
            self.name,
            self.width(),
            height,
            self.title,
            self.description,
        )
    }

    /// Draws legend and axes, and calls `data` to draw the content of the panel.
    pub(super) fn draw(
        &self,
        hover: Hover,
        x: (Scale, &str),
        y: (Scale, &str),
        keys: &[&Series],
        data: impl FnOnce(&mut Svg, &Panel),
    ) -> String {
        let height = (self.width() * 0.4).clamp(190.0, 320.0);
        let left = left_of(&y.0, 6);
        let width = self.width() - left - RIGHT;
        let top = 8.0 + legend::strip_height(width, keys) + 14.0;
        let mut svg = self.svg(top + height + 46.0);
        legend::strip(&mut svg, (left, 8.0), width, keys);
        let panel = Panel {
            left,
            top,
            width,
            height,
            x: x.0,
            y: y.0,
        };
        let labels = Labels {
            x: Some(x.1),
            y: Some(y.1),
            x_ticks: x.0.ticks_along(width, 10),
            y_ticks: 6,
        };
        panel.open(&mut svg, hover, labels);
        data(&mut svg, &panel);
        panel.close(&mut svg);
        svg.finish()
    }
}

/// Returns the width that labels and title of a y axis need, px.
pub(super) fn left_of(y: &Scale, ticks: usize) -> f64 {
    let labels = y.ticks(ticks).into_iter().filter_map(|tick| tick.label);
    let widest = labels
        .map(|label| text_width(&label, 11.0))
        .fold(0.0, f64::max);
    16.0 + 52.0_f64.max(widest + 16.0)
}
