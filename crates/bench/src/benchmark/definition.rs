//! The trait that each benchmark implements, and the type for a results folder that was read from disk.

use super::error::BenchmarkError;
use super::plan::Plan;
use super::rig::{Failed, Rig, Unit};
use crate::report::error::ReportError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_results::{LeftOut, Manifest, Mode};

/// A benchmark of several subjects, such as frameworks or generators, whose measurements are interleaved.
pub trait Benchmark: Sync {
    /// A part of a subject's measurement, such as one measured quantity.
    type Part: Copy + PartialEq + Send + Sync;
    /// The result of one unit (one part of a subject's measurement in one repetition), stored as one file of the
    /// results folder.
    type Outcome: Serialize + DeserializeOwned + Send;
    /// The fields of the manifest that only this benchmark has, in addition to [`Head`]'s own fields.
    type Facts: Serialize + DeserializeOwned;

    /// The texts and numbers that all runs of the benchmark share.
    const DESCRIPTION: Description;

    /// Selects the subjects that the plan requests and this machine supports. Returns the skipped subjects.
    ///
    /// # Errors
    /// Returns an error if the plan requests a subject that does not exist.
    fn prepare(&mut self, plan: &Plan, rig: &Rig<'_>) -> Result<Vec<LeftOut>, BenchmarkError>;

    /// Returns the settings of this run. The procedure calls this method again at the beginning of each phase, because
    /// the outcomes of earlier phases may change the facts.
    fn settings(&self) -> Settings<Self::Facts>;

    /// Prepares a phase from the outcomes of the earlier phases.
    fn begin_phase(&mut self, _phase: u32, _outcomes: &[Self::Outcome]) {}

    /// Returns the units of one repetition (counted from 1) of a phase (counted from 0), each as subject index and
    /// part.
    fn turns(&self, phase: u32, repetition: u32) -> Vec<(usize, Self::Part)>;

    /// Returns the file name, the label and the estimated duration of a part of a subject's measurement.
    fn describe(&self, subject: usize, part: Self::Part) -> Described;

    /// Measures a unit: a subject's part in one repetition. The method runs on a thread of its own, which may pin
    /// itself to a core and enter a namespace.
    ///
    /// # Errors
    /// Returns an error if the measurement was stopped, or the unit does not work on this machine.
    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<Self::Part>,
        stop: &AtomicBool,
    ) -> Result<Self::Outcome, Failed>;

    /// Writes the summary, the figures and the page into the folder. Returns the path of the page, and tables and
    /// findings for a terminal with `width` columns.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be written.
    fn report(
        dir: &Path,
        results: &Results<Self>,
        width: Option<usize>,
    ) -> Result<(PathBuf, String), ReportError>
    where
        Self: Sized;
}

/// The texts and numbers that all runs of a benchmark share.
#[derive(Debug, Clone, Copy)]
pub struct Description {
    /// The command that runs the benchmark, such as `bench io`.
    pub command: &'static str,
    /// The title of the benchmark, in one line.
    pub title: &'static str,
    /// The name of the file that identifies a results folder of this benchmark.
    pub head: &'static str,
    /// The layout version of the file called `head`.
    pub schema: u32,
    /// The plural noun for the outcomes, such as `trials`, and the name of the folder that contains them.
    pub outcomes: &'static str,
    /// The noun for a subject (something that the benchmark compares) in messages, such as `framework`.
    pub subject: &'static str,
    /// The advice that is printed if the measurement of a subject fails.
    pub advice: &'static str,
    /// The number of phases. The outcomes of one phase decide what a later phase measures.
    pub phases: u32,
}

/// The settings of a run, which its manifest contains.
#[derive(Debug, Clone)]
pub struct Settings<F> {
    /// The number of interleaved repetitions.
    pub repetitions: u32,
    /// The length of a trial.
    pub trial: Duration,
    /// The fields of the manifest that only this benchmark has.
    pub facts: F,
}

/// The names of a part of a subject's measurement, and the time that the measurement takes.
#[derive(Debug, Clone)]
pub struct Described {
    /// The name of the part's file, such as `memif-load`.
    pub file_name: String,
    /// The name of the part for readers.
    pub label: String,
    /// The estimated duration of the measurement.
    pub estimate: Duration,
}

/// The complete manifest of a benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head<F> {
    /// The fields that every results folder has.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// The mode that the user selected, which sets lengths and repetitions.
    pub mode: Mode,
    /// Seed of the random order of the measurements.
    pub seed: u64,
    /// Planned number of repetitions.
    pub repetitions: u32,
    /// Length of a trial in seconds.
    pub trial_seconds: f64,
    /// Frequency of the time-stamp counter in Hz; all cycles in the results are counts of this counter.
    pub tsc_hz: f64,
    /// Bound on the error of `tsc_hz`, parts per million.
    pub tsc_error_ppm: f64,
    /// The fields that only this benchmark has.
    #[serde(flatten)]
    pub own: F,
}

/// The contents of a results folder, read from disk.
#[derive(Debug)]
pub struct Results<B: Benchmark> {
    /// The manifest of the results folder.
    pub head: Head<B::Facts>,
    /// The results of complete measurements, in the order of their file names.
    pub outcomes: Vec<B::Outcome>,
    /// Descriptions of the files that cannot be read, one sentence each.
    pub problems: Vec<String>,
}
