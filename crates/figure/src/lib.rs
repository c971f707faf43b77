//! Figures of results as stand-alone SVG files, and tables for terminals.
//!
//! The types to know:
//!
//! - [`Series`] and its [`Style`]: label and look of a line, a panel or a bar.
//! - [`Column`]: a heading with items of one type, drawn side by side with other columns.
//! - [`Chart`] and its two [`Axis`]: titles, units and limits of a figure with one panel.
//!
//! There is one file for each kind of plot. Its `draw` takes plain numbers and returns an SVG document, independent of
//! any experiment. `axes.rs` makes panels, [`Scale`] chooses their ticks, and `svg.rs` writes the text; a report's
//! script shows the values under the pointer. The same input yields the same bytes. Sizes are in px. A figure is
//! [`WIDTH`] wide unless its chart has another width, and as high as its content needs. [`taut_measure::quantity`]
//! formats numbers. [`table`] lays out tables for terminals, [`bar_chart`] histograms.
//!
//! Begin with `chart.rs`, then `scatter.rs`, then `axes.rs`.

#![forbid(unsafe_code)]

pub mod animation;
pub mod bar_chart;
pub mod bars;
pub mod boxes;
pub mod cdf;
pub mod chart;
pub mod curves;
pub mod distribution;
pub mod effects;
pub mod gaps;
pub mod heat;
pub mod histogram;
pub mod jitter;
pub mod lines;
pub mod load;
pub mod marks;
pub mod percentiles;
pub mod scatter;
pub mod stack;
pub mod table;
pub mod timeline;

mod axes;
#[cfg(test)]
mod gallery;
mod legend;
mod rows;
mod scale;
mod style;
mod svg;

pub use chart::{Axis, Chart};
pub use distribution::{Distribution, Item};
pub use scale::Scale;
pub use style::Style;
pub use svg::DARK;

/// Width of every figure, px.
pub const WIDTH: f64 = 1000.0;

/// Label and look of a line, a panel or a bar.
#[derive(Debug, Clone, PartialEq)]
pub struct Series {
    /// Label of the series.
    pub label: String,
    /// Colour, dashes and marker of the series.
    pub style: Style,
}

/// A heading with items of one type, drawn side by side with other columns.
#[derive(Debug, Clone, PartialEq)]
pub struct Column<T> {
    /// Heading above the items of the column.
    pub heading: String,
    /// Items of the column, top to bottom.
    pub items: Vec<T>,
}
