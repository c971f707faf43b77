//! The plan of a benchmark run: the settings that all benchmarks have, and the name of a new results folder.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use taut_results::Mode;

/// The settings of a benchmark run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The mode, which sets the length of trials and the number of repetitions.
    pub mode: Mode,
    /// Seed of the random order of the measurements.
    pub seed: u64,
    /// The results folder, which must not contain results yet.
    pub folder: PathBuf,
    /// The `taut` program, which benchmarks start as forwarder or generator.
    pub program: PathBuf,
    /// The command that repeats this run.
    pub command_line: String,
    /// Ids of the subjects to measure; empty for all supported ones.
    pub only: Vec<String>,
    /// Length of each trial; none for the default length of the mode.
    pub trial: Option<Duration>,
}

/// Returns a name for a new results folder under `parent`, with the current date and time: `demo-2026-11-21T08-15-00Z`.
pub fn fresh_folder(parent: &Path, name: &str) -> PathBuf {
    let now = taut_results::instant(SystemTime::now()).replace(':', "-");
    let path = |n: u32| {
        parent.join(if n == 1 {
            format!("{name}-{now}")
        } else {
            format!("{name}-{now}-{n}")
        })
    };
    (1..)
        .map(path)
        .find(|p| !p.exists())
        .unwrap_or_else(|| path(1))
}
