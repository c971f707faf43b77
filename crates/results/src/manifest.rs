//! The manifest of a results folder.

use crate::noise::{Noise, noise};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::SystemTime;
use taut_host::{CorePlan, Machine};

/// The fields that every results folder has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Layout version of the folder.
    pub schema: u32,
    /// Title of the experiment, in one line.
    pub title: String,
    /// Version of taut that ran the experiment.
    pub taut_version: String,
    /// Time at which the experiment began, RFC 3339.
    pub started: String,
    /// The command that repeats the experiment.
    pub command_line: String,
    /// The state of the experiment: running, interrupted, incomplete or finished.
    #[serde(rename = "stage")]
    pub completion: Completion,
    /// Facts about the machine, as an object of names and values; nested objects are sections.
    pub machine: serde_json::Value,
    /// The task of each core, in one or two sentences.
    pub core_plan: String,
    /// Known sources of noise on the machine; empty if there are none.
    pub noise: Vec<Noise>,
    /// Measurements that were skipped because they were impossible on this machine.
    pub left_out: Vec<LeftOut>,
    /// Attempts that failed and were repeated.
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

/// The state of an experiment or a benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Completion {
    /// The experiment is running, or its process ended before it could record another state (killed, power loss).
    Running,
    /// The user stopped the experiment; existing parts are complete, others are missing.
    Interrupted,
    /// The experiment ended, but some of its runs failed. (A benchmark skips failed parts instead.)
    Incomplete,
    /// All planned parts exist.
    Finished,
}

/// A measurement that was skipped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// The measurement that was skipped.
    pub what: String,
    /// The reason why the measurement was skipped.
    pub why: String,
    /// The action that makes the measurement possible.
    pub how: String,
}

/// A measurement attempt that failed and was repeated. The results contain only the later attempt; without this record,
/// they would look more reliable than they are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedAttempt {
    /// The measurement, with the number of its repetition.
    pub what: String,
    /// The reason why the attempt failed.
    pub why: String,
}

/// Formats a point in time to the second: `2026-11-21T08:15:00Z` (RFC 3339).
pub fn instant(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// Parses a point in time that [`instant`] formatted; returns `None` for any other text.
pub fn moment(text: &str) -> Option<SystemTime> {
    humantime::parse_rfc3339(text).ok()
}

/// Returns the bytes as hexadecimal text with two digits per byte, for example for a digest.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
/// The origin of a measurement: its time, command and software.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Origin {
    /// Time at which the measurement began, RFC 3339, UTC.
    pub started: String,
    /// The command that repeats the measurement.
    pub command_line: String,
    /// Versions of the software that the results depend on.
    #[schemars(with = "Option<BTreeMap<String, Option<String>>>")]
    pub versions: serde_json::Value,
    /// True if the measurement ended before all requested probes were sent.
    pub stopped: bool,
}
