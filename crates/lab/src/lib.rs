//! Results folders, figures, reports and comparisons; what a running measurement shows.
//!
//! The types to know:
//!
//! - [`results::Folder`] and [`results::Recording`]: results while they are written, of a comparison and of one
//!   measurement. A part is never taken for the whole.
//! - [`evaluate::Evaluation`]: what figures, tables and report show, made from a folder alone.
//! - [`comparison::Observer`]: who is told how far a measurement is.
//!
//! A measurement writes a folder; [`report::write`] and [`report::write_recording`] read it again, evaluate, and write
//! figures and page. Nothing goes from the measurement to the page but by the folder, so the same folder gives the same
//! bytes. [`comparison`], [`io_cost`], [`generators`] and [`rfc2544`] each have their results, evaluation and report of
//! that kind; [`probed`] and [`tapped`] are smaller ones. [`figure`] draws SVG and knows no measurement. [`live`] and
//! [`metrics`] show a measurement that runs.
//!
//! Begin with `results/mod.rs`, then `evaluate/mod.rs`, then `report/mod.rs`.

pub mod comparison;
pub mod evaluate;
pub mod figure;
pub mod generators;
pub mod io_cost;
pub mod live;
pub mod metrics;
pub mod parallel;
pub mod probed;
pub mod quantity;
pub mod report;
pub mod results;
pub mod rfc2544;
pub mod table;
pub mod tapped;

#[cfg(test)]
mod synthetic;
