//! Benchmarks and measurements: what is measured, in which order, and the reports that come of it.
//!
//! The types to know:
//!
//! - [`benchmark::Benchmark`]: what a benchmark says of itself, so that [`benchmark::run`] can run it and `taut report` show it.
//! - [`device::Device`]: what is measured, wherever something is measured: `taut forward` in its forms, the kernel, others' programs.
//! - [`measurement::Measurement`]: one measurement of traffic, as `taut generate` makes it.
//!
//! A measurement writes a folder (`taut_results`); its report reads it again, evaluates, has figures drawn
//! (`taut_figure`), and writes the page. Nothing goes from the measurement to the page but by the folder, so the same
//! folder gives the same bytes. [`benchmark::kinds`] lists every kind of folder. [`io_cost`], [`generators`] and
//! [`switched`] are benchmarks in the frame; [`comparison`] and [`rfc2544`] have a course of their own; [`probed`],
//! [`matched`] and [`controlled`] are smaller ones.
//!
//! Begin with `benchmark/definition.rs`, then `io_cost/mod.rs`, then `device/mod.rs`.
//!
//! # The frame of benchmarks
//!
//! A type that implements [`benchmark::Benchmark`] says which devices there are, what is measured of each in one
//! repetition, how one unit is measured, and how results appear on the page and the terminal. [`benchmark::run`] does
//! the rest: cores and clock, facts of the machine, noise and interruptions, an interleaved order by seed, progress,
//! one more attempt after a failure, Ctrl-C, and a complete results folder. Every folder begins with a manifest and
//! every page has the same shell. `taut demo` takes order, repetitions and further attempts from an experiment.
//!
//! The device is a [`device::Device`]; one list serves the demo, RFC 2544, `taut generate --device` and experiments. A
//! comparison keeps its samples in memory until a trial ends, so that no thread takes time from the two cores that are
//! measured. Workers of `taut generate --cores` open parts of one port and share one schedule
//! (`measurement/together.rs`).

#![forbid(unsafe_code)]

pub mod benchmark;
pub mod comparison;
pub mod controlled;
pub mod costs;
pub mod device;
pub mod evaluate;
pub mod generators;
pub mod io_cost;
pub mod matched;
pub mod measurement;
pub mod parallel;
pub mod probed;
pub mod report;
pub mod rfc2544;
pub mod switched;

#[cfg(test)]
mod strangers;
#[cfg(test)]
mod synthetic;
