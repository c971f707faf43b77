//! The trait that each benchmark implements, and its results folder as it is read.

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

/// The whole of a benchmark's head file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head<F> {
    /// What every results folder says.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// Lengths chosen by the user.
    pub mode: Mode,
    /// Seed of the order in which subjects take turns.
    pub seed: u64,
    /// Repetitions planned.
    pub repetitions: u32,
    /// Length of a trial, s.
    pub trial_seconds: f64,
    /// Ticks of the time-stamp counter per second: the cycles of every figure.
    pub tsc_hz: f64,
    /// Bound of that figure's error, parts per million.
    pub tsc_error_ppm: f64,
    /// What only this benchmark says.
    #[serde(flatten)]
    pub own: F,
}

#[cfg(test)]
impl<F> Head<F> {
    /// A head of nothing in particular, for tests.
    pub(crate) fn made_up(schema: u32, own: F) -> Self {
        Self {
            manifest: crate::synthetic::manifest(schema),
            mode: Mode::Quick,
            seed: 1,
            repetitions: 3,
            trial_seconds: 0.1,
            tsc_hz: 2.6e9,
            tsc_error_ppm: 1.0,
            own,
        }
    }
}

/// A results folder read back.
#[derive(Debug)]
pub struct Results<B: Benchmark> {
    /// Its head.
    pub head: Head<B::Facts>,
    /// Every complete outcome, by the name of its file.
    pub outcomes: Vec<B::Outcome>,
    /// What cannot be read, one sentence each.
    pub problems: Vec<String>,
}
