//! What every results folder says of itself.

use crate::noise::{Noise, noise};
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use taut_host::{CorePlan, Machine};

/// What the head of every results folder says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Layout version of the folder.
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
    #[serde(rename = "stage")]
    pub completion: Completion,
    /// Facts about the machine, as an object of names and values; nested objects are sections.
    pub machine: serde_json::Value,
    /// Which core did what, in one or two sentences.
    pub core_plan: String,
    /// Known sources of noise.
    pub noise: Vec<Noise>,
    /// What could not be measured here.
    pub left_out: Vec<LeftOut>,
    /// Attempts that failed and were made again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed_attempts: Vec<FailedAttempt>,
}

impl Manifest {
    /// Makes the manifest of a measurement that begins now.
    pub fn begin(
        (schema, title): (u32, String),
        command_line: &str,
        cores: &CorePlan,
        left_out: Vec<LeftOut>,
    ) -> Self {
        let machine = Machine::read();
        Self {
            schema,
            title,
            taut_version: env!("CARGO_PKG_VERSION").to_string(),
            started: instant(SystemTime::now()),
            command_line: command_line.to_string(),
            completion: Completion::Running,
            machine: serde_json::to_value(&machine).unwrap_or_default(),
            core_plan: cores.note.clone(),
            noise: noise(cores, None),
            left_out,
            failed_attempts: Vec::new(),
        }
    }
}

/// Completion of an experiment or a benchmark: how far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completion {
    /// It is under way, or ended without a word (killed, power lost).
    Running,
    /// It was stopped by the user; what is there is complete in itself, other parts are missing.
    Interrupted,
    /// It came to its end, but some of its runs failed. (Of experiments only: a benchmark leaves out what fails.)
    Incomplete,
    /// All that was planned is there.
    Finished,
}

/// Something not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// What is missing.
    pub what: String,
    /// Why.
    pub why: String,
    /// How to get it.
    pub how: String,
}

/// An attempt at a measurement that failed and was made again: what came of the later one is in the results, which would look
/// more reliable than they are without this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedAttempt {
    /// What was measured, and in which repetition.
    pub what: String,
    /// Why it failed.
    pub why: String,
}

/// A point in time to the second: `2026-11-21T08:15:00Z` (RFC 3339).
pub fn instant(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Returns the point in time that [`instant`] wrote. None for what is none.
pub fn moment(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(text).ok()
}

/// Returns bytes, such as those of a digest, as people compare them: two digits each.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
/// How a measurement came about.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Origin {
    /// When it began, RFC 3339, UTC.
    pub started: String,
    /// What repeats it.
    pub command_line: String,
    /// What the figures depend on besides the machine's hardware.
    pub versions: serde_json::Value,
    /// It ended before all probes that were asked for had been sent.
    pub stopped: bool,
}
