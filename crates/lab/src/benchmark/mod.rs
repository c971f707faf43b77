//! The frame that every benchmark is put into: what is done around a measurement, how subjects take turns, and what results
//! folders and their pages have in common.
//!
//! A benchmark implements [`Benchmark`]: what it measures ([`Benchmark::prepare`], [`Benchmark::turns`]), how it measures one
//! unit ([`Benchmark::measure`]), and what becomes of the outcomes ([`Benchmark::report`], [`Benchmark::text`]). [`run`] does
//! the rest: cores and clock, facts of the machine, noise and interruptions before and after, the order of the units, progress,
//! what happens when a unit fails or somebody presses Ctrl-C, and the results folder. The benchmark's line in
//! [`kinds`] makes `taut report` know its folders.

mod kinds;
mod results;
mod run;
mod shell;
mod surroundings;
pub mod tables;

pub use kinds::{Kind, Shown, kind_of, kinds};
pub use results::{Head, Results};
#[cfg(test)]
pub(crate) use results::{read_results, show};
pub(crate) use run::choose;
pub use run::{Failed, Observer, Repeats, Rig, Unit, run};
pub(crate) use shell::{Shell, ended_early, publish, write_page};
pub(crate) use surroundings::{Surroundings, watched};

use crate::report::ReportError;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_results::{LeftOut, Mode, ResultsError};

/// A benchmark of several subjects, such as frameworks or generators, which take turns.
pub trait Benchmark: Sync {
    /// One of the things that are measured of a subject.
    type Part: Copy + PartialEq + Send + Sync;
    /// What comes of a unit: a file of the results folder.
    type Outcome: Serialize + DeserializeOwned + Send;
    /// What the head of the results folder says besides [`Head`]'s own fields.
    type Facts: Serialize + DeserializeOwned;

    /// Command that runs it, such as `bench io`.
    const COMMAND: &'static str;
    /// One line that names it.
    const TITLE: &'static str;
    /// Name of the file that makes a folder one of its results.
    const HEAD: &'static str;
    /// Layout version of that file.
    const SCHEMA: u32;
    /// Name of the outcomes, and of the folder that holds them.
    const OUTCOMES: &'static str;
    /// What a subject is called.
    const SUBJECT: &'static str;
    /// What to do about a subject that fails.
    const ADVICE: &'static str;
    /// Number of phases. What a later one measures follows from the outcomes of those before it.
    const PHASES: u32 = 1;

    /// Finds the subjects that this machine has, as far as the plan asks for them, and returns what it lacks.
    ///
    /// # Errors
    /// When the plan asks for what there is not.
    fn prepare(&mut self, plan: &Plan, rig: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError>;

    /// Repetitions of everything, interleaved.
    fn repetitions(&self) -> u32;

    /// Length of a trial.
    fn trial(&self) -> Duration;

    /// What the head says now. It is asked again when a phase begins.
    fn facts(&self) -> Self::Facts;

    /// Called when a phase begins, with the outcomes of the phases before.
    fn begin_phase(&mut self, _phase: u32, _outcomes: &[Self::Outcome]) {}

    /// Subjects, by their index, and parts of a repetition (counted from 1) of a phase (counted from 0).
    fn turns(&self, phase: u32, repetition: u32) -> Vec<(usize, Self::Part)>;

    /// Name of a subject's part for a file, such as `memif-load`.
    fn file_name(&self, subject: usize, part: Self::Part) -> String;

    /// Name of a subject's part for people.
    fn label(&self, subject: usize, part: Self::Part) -> String;

    /// Estimate of the time that a unit takes.
    fn estimate(&self, subject: usize, part: Self::Part) -> Duration;

    /// Measures a unit. It runs on a thread of its own, which may pin itself and enter a namespace.
    ///
    /// # Errors
    /// When it was stopped, or does not work here.
    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<Self::Part>,
        stop: &AtomicBool,
    ) -> Result<Self::Outcome, Failed>;

    /// Writes summary, figures and page into the folder, and returns the page's path.
    ///
    /// # Errors
    /// When the folder cannot be written.
    fn report(dir: &Path, results: &Results<Self>) -> Result<PathBuf, ReportError>
    where
        Self: Sized;

    /// Tables and findings for a terminal of so many columns.
    fn text(results: &Results<Self>, width: Option<usize>) -> String
    where
        Self: Sized;
}

/// What every benchmark is told.
#[derive(Debug, Clone)]
pub struct Plan {
    /// How long and how often.
    pub mode: Mode,
    /// Seed of the order in which subjects take turns.
    pub seed: u64,
    /// The results folder, which must not hold results yet.
    pub folder: PathBuf,
    /// The `taut` program, which benchmarks start as forwarder or generator.
    pub program: PathBuf,
    /// The command that repeats all this.
    pub command_line: String,
    /// Ids of the subjects to measure; all that are possible if empty.
    pub only: Vec<String>,
    /// Length of each trial, if not the mode's.
    pub trial: Option<Duration>,
}

/// Why a benchmark has no result at all.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A subject was asked for that there is not.
    #[error("no {what} \"{asked}\" here; there are {there}")]
    Unknown {
        /// What a subject is called.
        what: &'static str,
        /// Id that was asked for.
        asked: String,
        /// Ids that there are.
        there: String,
    },
    /// A subject was asked for that the machine lacks something for.
    #[error("{0}")]
    Missing(String),
    /// Nothing could be measured.
    #[error("no {what} could be measured; the first said: {why}")]
    Nothing {
        /// What a subject is called.
        what: &'static str,
        /// What the first one that failed said.
        why: String,
    },
    /// A core cannot be used.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
    /// The machine lacks something that all of it needs.
    #[error(transparent)]
    Port(#[from] taut_port::PortError),
}
