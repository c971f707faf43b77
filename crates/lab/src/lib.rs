//! Benchmarks and measurements: the quantities, the order of the trials, and the reports.
//!
//! The most important types:
//!
//! - [`benchmark::Benchmark`]: the definition of a benchmark, for [`benchmark::run`] and `taut report`.
//! - [`device::Device`]: the device of every measurement: a form of `taut forward`, the kernel, or a baseline.
//! - [`measurement::Measurement`]: one measurement of traffic, as `taut generate` performs it.
//!
//! A measurement writes a folder (`taut_results`). Its report reads the folder again, evaluates it, draws figures
//! (`taut_figure`), and writes the page. The folder is the only connection between measurement and page, so the same
//! folder gives the same bytes. [`benchmark::kinds`] lists every kind of folder. [`io_cost`], [`generators`], [`costs`]
//! and [`switch_bench`] implement [`benchmark::Benchmark`]. [`comparison`] and [`rfc2544`] have a procedure of their
//! own; [`probe_results`], [`capture_match`] and [`control_loop`] are smaller.
//!
//! Start with `benchmark/definition.rs`, then `io_cost/mod.rs`, then `device/mod.rs`.
//!
//! # The common procedure of benchmarks
//!
//! A type that implements [`benchmark::Benchmark`] defines the devices, the quantities of one repetition, the
//! measurement of one unit, and the display on page and terminal. [`benchmark::run`] does the rest: cores and clock,
//! facts of the machine, noise and interruptions, and an interleaved order by seed. It also shows progress, repeats a
//! failed unit once, handles Ctrl-C, and writes a complete results folder. Every folder begins with a manifest and
//! every page has the same shell. In `taut demo`, the experiment controls order, repetitions and further attempts.
//!
//! The device is a [`device::Device`]; one list serves the demo, RFC 2544, `taut generate --device` and experiments. A
//! comparison stores its samples in memory until a trial ends, so that no thread takes time from the two measured
//! cores. Workers of `taut generate --cores` open parts of one port and share one schedule (`measurement/together.rs`).

#![forbid(unsafe_code)]

pub mod benchmark;
pub mod capture_match;
pub mod comparison;
pub mod control_loop;
pub mod costs;
pub mod device;
pub mod evaluate;
pub mod generators;
pub mod io_cost;
pub mod measurement;
pub mod parallel;
pub mod probe_results;
pub mod report;
pub mod rfc2544;
pub mod switch_bench;

#[cfg(test)]
mod strangers;
#[cfg(test)]
mod synthetic;
