//! The plan of a benchmark run: the settings that all benchmarks have.

use std::path::PathBuf;
use std::time::Duration;
use taut_results::Mode;

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
