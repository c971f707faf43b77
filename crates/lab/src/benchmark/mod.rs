//! The common procedure of all benchmarks: the steps around a measurement, the interleaved order of the subjects, and
//! the layout of results folders and pages.
//!
//! A benchmark implements [`Benchmark`]: the subjects ([`Benchmark::prepare`], [`Benchmark::turns`]), the measurement
//! of one unit ([`Benchmark::measure`]), and the output ([`Benchmark::report`], [`Benchmark::text`]). A *unit* is one
//! part of a subject's measurement in one repetition. [`run`] does the rest: cores and clock, facts of the machine,
//! noise and interruptions before and after, and the order of the units. It also shows progress, handles failed units
//! and Ctrl-C, and writes the results folder. `taut report` finds the folders of a benchmark through its entry in
//! [`kinds`].

pub(crate) mod definition;
pub(crate) mod error;
pub(crate) mod highest;
mod kinds;
pub(crate) mod plan;
pub(crate) mod results;
pub(crate) mod rig;
pub(crate) mod run;
pub(crate) mod shell;
pub(crate) mod surroundings;
pub mod tables;

pub use crate::report::display::Shown;
pub use definition::{Benchmark, Head, Results};
pub use error::BenchmarkError;
pub use kinds::{Kind, kind_of, kinds};
pub use plan::Plan;
pub use rig::{Failed, Repeats, Rig, Unit};
pub use run::{Observer, run};
