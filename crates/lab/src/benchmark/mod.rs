//! The frame that every benchmark is put into: what is done around a measurement, how subjects take turns, and what results
//! folders and their pages have in common.
//!
//! A benchmark implements [`Benchmark`]: what it measures ([`Benchmark::prepare`], [`Benchmark::turns`]), how it measures one
//! unit ([`Benchmark::measure`]), and what becomes of the outcomes ([`Benchmark::report`], [`Benchmark::text`]). [`run`] does
//! the rest: cores and clock, facts of the machine, noise and interruptions before and after, the order of the units, progress,
//! what happens when a unit fails or somebody presses Ctrl-C, and the results folder. The benchmark's line in
//! [`kinds`] makes `taut report` know its folders.

pub(crate) mod definition;
pub(crate) mod error;
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
