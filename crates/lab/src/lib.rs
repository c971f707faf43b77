//! Results folders, figures, reports and comparisons; what a running measurement shows.
//!
//! The types to know:
//!
//! - [`benchmark::Benchmark`]: what a benchmark says of itself, so that [`benchmark::run`] can run it and `taut report` show it.
//! - [`device::Device`]: what is measured, wherever something is measured: `taut forward` in its forms, the kernel, others' programs.
//! - [`results::Folder`] and [`results::Recording`]: results while they are written, of a comparison and of one measurement. A
//!   part is never taken for the whole.
//!
//! A measurement writes a folder; its report reads it again, evaluates, and writes figures and page. Nothing goes from the
//! measurement to the page but by the folder, so the same folder gives the same bytes. [`benchmark::kinds`] lists every kind
//! of folder. [`io_cost`] and [`generators`] are benchmarks in the frame; [`comparison`] and [`rfc2544`] have a course of
//! their own; [`probed`] and [`tapped`] are smaller ones. [`figure`] draws SVG and knows no measurement. [`live`] and [`metrics`]
//! show a measurement that runs.
//!
//! Begin with `benchmark/mod.rs`, then `io_cost/mod.rs`, then `device/mod.rs`.

#![forbid(unsafe_code)]

pub mod benchmark;
pub mod comparison;
pub mod device;
pub mod evaluate;
pub mod figure;
pub mod generators;
pub mod io_cost;
pub mod live;
pub mod measurement;
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
