//! The results folder: `io.json` says what was measured where, `series/` holds every trial.

use super::framework::Framework;
use super::trial::Series;
use crate::results::{LeftOut, Mode, Noise, ResultsError, Stage, read_each, read_head};
use serde::{Deserialize, Serialize};
use std::path::Path;
use taut_function::burn::BurnError;
use taut_host::machine::Cache;
use taut_sys::{Event, EventCounters};

/// The whole of `io.json`.
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
    /// Seed of the order in which frameworks take turns.
    pub seed: u64,
    /// Repetitions planned.
    pub repetitions: u32,
    /// Length of a trial, s.
    pub trial_seconds: f64,
    /// Steps per packet through a list.
    pub steps: u32,
    /// Frame size in bytes, frame check sequence included.
    pub frame_size_bytes: u32,
    /// Caches of the first CPU.
    pub caches: Vec<Cache>,
    /// Facts about the machine.
    pub machine: serde_json::Value,
    /// Which core did what.
    pub core_plan: String,
    /// Known sources of noise.
    pub noise: Vec<Noise>,
    /// What could not be measured here.
    pub left_out: Vec<LeftOut>,
    /// Frameworks in the order of the report.
    pub frameworks: Vec<Framework>,
    /// Ticks of the time-stamp counter per second: the cycles of every figure.
    pub tsc_hz: f64,
    /// Bound of that figure's error, parts per million.
    pub tsc_error_ppm: f64,
    /// How exactly the load is what it says.
    pub burn_errors: Vec<BurnError>,
    /// What the processor counted in the threads that handled packets, or why nothing.
    pub hardware_counters: HardwareCounters,
}

impl Head {
    /// The layout version that this program reads and writes.
    pub const SCHEMA: u32 = 2;
}

/// What the processor counted.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HardwareCounters {
    /// These events.
    Counted {
        /// In the order of the tables.
        events: Vec<Event>,
        /// Whether what the kernel did in those threads is in it.
        with_kernel: bool,
    },
    /// Nothing, and why.
    NoData(String),
}

impl HardwareCounters {
    /// What the calling thread finds.
    pub(super) fn probe() -> Self {
        let found = EventCounters::open(None, &Event::HARDWARE)
            .and_then(|counters| counters.read().map(|_| counters));
        match found {
            Ok(counters) => Self::Counted {
                events: counters.events().collect(),
                with_kernel: counters.counts_kernel(),
            },
            Err(taut_sys::Error::Missing { needs, .. }) => Self::NoData(format!("needs {needs}")),
            Err(e) => Self::NoData(e.to_string()),
        }
    }

    /// In a sentence without its end.
    pub fn in_words(&self) -> String {
        match self {
            Self::Counted {
                events,
                with_kernel,
            } => {
                let labels: Vec<_> = events.iter().map(|e| e.label()).collect();
                let kernel = if *with_kernel {
                    "with"
                } else {
                    "without (it takes root or CAP_PERFMON)"
                };
                format!(
                    "{} of the forwarder's thread, {kernel} what the kernel did in it",
                    labels.join(", ")
                )
            }
            Self::NoData(why) => format!("no data: no hardware counters here ({why})"),
        }
    }
}

/// Name of the file that makes a folder one of these.
pub(super) const HEAD: &str = "io.json";
/// Name of the folder of its series.
pub(super) const PARTS: &str = "series";

/// A results folder read back.
#[derive(Debug)]
pub struct Results {
    /// Its `io.json`.
    pub head: Head,
    /// Every complete series, by framework, part and repetition.
    pub series: Vec<Series>,
    /// What cannot be read, one sentence each.
    pub problems: Vec<String>,
}

impl Results {
    /// Reads a folder. Series that are damaged are named in `problems` and left out.
    ///
    /// # Errors
    /// When `io.json` is missing or unreadable.
    pub fn load(dir: &Path) -> Result<Self, ResultsError> {
        let head = read_head(&dir.join(HEAD), Head::SCHEMA)?;
        let (series, problems) = read_each(&dir.join(PARTS))?;
        Ok(Self {
            head,
            series,
            problems,
        })
    }
}
