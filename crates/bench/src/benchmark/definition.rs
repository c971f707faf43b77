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

    /// Returns the settings of this run. [`super::run`] calls this method again at the beginning of each phase, because
    /// the results of earlier phases may change them.
    fn settings(&self) -> Settings<Self::Facts>;

    /// Prepares a phase of the benchmark from the results of the earlier phases.
    fn begin_phase(&mut self, _phase: u32, _outcomes: &[Self::Outcome]) {}

    /// Returns the units (single measurements) of one repetition (counted from 1) of a phase (counted from 0), each as
    /// subject index and part.
    fn turns(&self, phase: u32, repetition: u32) -> Vec<(usize, Self::Part)>;

    /// Returns the names of a subject's part, and the estimated duration of its measurement.
    fn describe(&self, subject: usize, part: Self::Part) -> Described;

    /// Measures a unit, which is one part of a subject in one repetition. The method runs on a separate thread, which
    /// may pin itself to a core and enter a namespace.
    ///
    /// # Errors
    /// Returns an error if the measurement was stopped, or if the unit (a part of a subject) does not work on this
    /// machine.
    fn measure(
        &self,
        rig: &Rig<'_>,
        unit: &Unit<Self::Part>,
        stop: &AtomicBool,
    ) -> Result<Self::Outcome, Failed>;

    /// Writes the summary, the figures and the page into the results folder. Returns the path of the page, and tables
    /// and findings for a terminal with `width` columns.
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
    /// The name of the manifest file, by which results folders of this benchmark are identified.
    pub head: &'static str,
    /// The layout version of the manifest file called `head`.
    pub schema: u32,
    /// The plural noun for the stored results, such as `trials`, and the name of the folder that contains them.
    pub outcomes: &'static str,
    /// The noun for a measured item in messages, such as `framework`.
    pub subject: &'static str,
    /// The advice that is printed if the measurement of a subject, such as a framework, fails.
    pub advice: &'static str,
    /// The number of phases of the benchmark. The results of one phase decide what a later phase measures.
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

/// The names of a subject's part, and the estimated duration of its measurement.
#[derive(Debug, Clone)]
pub struct Described {
    /// The name of the results file without repetition and extension, such as `memif-load`.
    pub file_name: String,
    /// The name of the measured part for readers.
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
    /// The mode that the user selected, which sets the length of trials and the number of repetitions.
    pub mode: Mode,
    /// Seed of the random order of the single measurements.
    pub seed: u64,
    /// Planned number of repetitions.
    pub repetitions: u32,
    /// Length of a trial in seconds.
    pub trial_seconds: f64,
    /// Frequency of the time-stamp counter in Hz; all cycles in the results are counts of this counter.
    pub tsc_hz: f64,
    /// Bound on the error of `tsc_hz`, parts per million.
    pub tsc_error_ppm: f64,
    /// The fields of the manifest that only this benchmark has.
    #[serde(flatten)]
    pub own: F,
}

/// The contents of a results folder, read from disk.
#[derive(Debug)]
pub struct Results<B: Benchmark> {
    /// The manifest of the results folder.
    pub head: Head<B::Facts>,
    /// The complete results of single measurements, in the order of their file names.
    pub outcomes: Vec<B::Outcome>,
    /// The files of the folder that cannot be read, one sentence each.
    pub problems: Vec<String>,
}
