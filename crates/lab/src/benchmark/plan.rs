//! The plan of a benchmark run: the settings that all benchmarks have.

use std::path::PathBuf;
use std::time::Duration;
use taut_results::Mode;

/// The settings of a benchmark run.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The mode, which sets the lengths and the number of repetitions.
    pub mode: Mode,
    /// Seed of the order of the units.
    pub seed: u64,
    /// The results folder, which must not contain results yet.
    pub folder: PathBuf,
    /// The `taut` program, which benchmarks start as forwarder or generator.
    pub program: PathBuf,
    /// The command that repeats this run.
    pub command_line: String,
    /// Ids of the subjects to measure; empty for all supported ones.
    pub only: Vec<String>,
    /// Length of each trial; none for the length of the mode.
    pub trial: Option<Duration>,
}
