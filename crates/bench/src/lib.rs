//! The common parts of benchmarks: their procedure, devices under test, the measurement of traffic, and pages.
//!
//! The most important types:
//!
//! - [`benchmark::Benchmark`]: the definition of a benchmark, for [`benchmark::run`] and `taut report`.
//! - [`device::Device`]: the device of every measurement: a form of `taut forward`, the kernel, or a baseline.
//! - [`framework::Session`]: a packet I/O backend and its forwarder, set up for a series of trials.
//! - [`measurement::Measurement`]: one measurement of traffic, as `taut generate` performs it.
//!
//! A measurement writes a folder (`taut_results`). Its report reads the folder again, evaluates it, draws figures
//! (`taut_figure`), and writes the page. The folder is the only connection between measurement and page, so the same
//! folder gives the same bytes. The benchmarks are in crates of their own, `taut-benchmarks`, `taut-rfc2544` and
//! `taut-comparison`, each with its pages; the templates of these extend `report/base.html` here (`askama.toml`). Their
//! tests share `testing/`. The command lists every kind of folder (`src/kinds.rs`).
//!
//! Start with `benchmark/definition.rs`, then `device/mod.rs`.
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
pub mod device;
pub mod evaluate;
pub mod framework;
pub mod measurement;
pub mod report;

#[cfg(test)]
#[path = "../testing/strangers.rs"]
mod strangers;
