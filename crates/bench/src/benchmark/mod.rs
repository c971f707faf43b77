//! The common procedure of all benchmarks: the steps around a measurement, the interleaved order of the subjects, and
//! the layout of results folders and pages.
//!
//! A benchmark implements [`Benchmark`]: the subjects ([`Benchmark::prepare`], [`Benchmark::turns`]), the measurement
//! of one unit ([`Benchmark::measure`]), and the output ([`Benchmark::report`]). A *unit* is one
//! part of a subject's measurement in one repetition. [`run`] does the rest: cores and clock, facts of the machine,
//! noise and interruptions before and after, and the order of the units. It also shows progress, handles failed units
//! and Ctrl-C, and writes the results folder. `taut report` finds the folders of a benchmark through its entry in the
//! command's list of kinds.

mod definition;
mod error;
mod estimate;
pub mod highest;
mod plan;
mod results;
mod rig;
mod run;
pub(crate) mod shell;
mod surroundings;
pub mod tables;

pub use definition::{Benchmark, Described, Description, Head, Results, Settings};
pub use error::BenchmarkError;
pub use estimate::Estimate;
pub use plan::{Plan, fresh_folder};
pub use results::{read_results, show};
pub use rig::{Failed, Repeats, Rig, Unit};
pub use run::{Observer, choose, run};
pub use shell::{OtherPrograms, Shell, Warned, ended_early, publish, write_page};
pub use surroundings::{Surroundings, watched};
