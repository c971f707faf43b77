//! The results folder: `generators.json` says what was measured where, `trials/` holds every trial.

use super::contender::Contender;
use super::trial::Trial;
use crate::io_cost::Transport;
use crate::results::{LeftOut, Mode, Noise, ResultsError, Stage, read_each, read_head};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The whole of `generators.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Head {
    /// Layout version of the folder; [`Head::SCHEMA`] when written by this version.
    pub schema: u32,
    /// One line that names the experiment.
    pub title: String,
    /// Version of taut that ran it.
    pub taut_version: String,
    /// When it began, RFC 3339.
    pub started: String,
    /// The command that repeats it.
    pub command_line: String,
    /// How far it came.
    pub stage: Stage,
    /// Lengths chosen by the user.
    pub mode: Mode,
    /// Seed of the order in which generators take turns.
    pub seed: u64,
    /// Repetitions planned.
    pub repetitions: u32,
    /// Length of a trial, s.
    pub trial_seconds: f64,
    /// Rates at which precision was compared over each transport, packets per second.
    pub rates: Vec<Rates>,
    /// Facts about the machine.
    pub machine: serde_json::Value,
    /// Which core did what: the receiver's is called the generator's there.
    pub core_plan: String,
    /// Known sources of noise.
    pub noise: Vec<Noise>,
    /// What could not be measured here.
    pub left_out: Vec<LeftOut>,
    /// Generators in the order of the report.
    pub generators: Vec<Contender>,
    /// Ticks of the time-stamp counter per second.
    pub tsc_hz: f64,
    /// Bound of that figure's error, parts per million.
    pub tsc_error_ppm: f64,
}

/// The rates over a transport.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    /// Over what.
    pub transport: Transport,
    /// Packets per second.
    pub pps: Vec<f64>,
    /// Why these.
    pub why: String,
}

impl Head {
    /// The layout version that this program reads and writes.
    pub const SCHEMA: u32 = 1;
}

/// Name of the file that makes a folder one of these.
pub(super) const HEAD: &str = "generators.json";
/// Name of the folder of its trials.
pub(super) const PARTS: &str = "trials";

/// A results folder read back.
#[derive(Debug)]
pub struct Results {
    /// Its `generators.json`.
    pub head: Head,
    /// Every trial, by the name of its file.
    pub trials: Vec<Trial>,
    /// What cannot be read, one sentence each.
    pub problems: Vec<String>,
}

impl Results {
    /// Reads a folder. Trials that are damaged are named in `problems` and left out.
    ///
    /// # Errors
    /// When `generators.json` is missing or unreadable.
    pub fn load(dir: &Path) -> Result<Self, ResultsError> {
        let head = read_head(&dir.join(HEAD), Head::SCHEMA)?;
        let (trials, problems) = read_each(&dir.join(PARTS))?;
        Ok(Self {
            head,
            trials,
            problems,
        })
    }
}
