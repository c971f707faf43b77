//! The status of a capture and of its triggers, and the result of a query, in the format for users.

use crate::analyser::AnalyserStatus;
use crate::delays::LookedAfter;
use crate::dump::{Dumped, QueryOutput};
use crate::flows::FlowsStatus;
use crate::keeper;
use crate::ring::Count;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The status of a trigger, for users.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TriggerStatus {
    /// Name of the trigger.
    pub name: String,
    /// Number of times that the trigger has fired.
    pub fired: u64,
    /// Number of dumps that the trigger has begun.
    pub begun: u64,
    /// Number of dumps that the trigger has not begun because of its limit per minute.
    pub limited: u64,
    /// Packets of the trigger's dumps that were written.
    #[serde(default)]
    pub written: u64,
    /// Packets of the trigger's dumps that could not be written.
    #[serde(default)]
    pub lost: u64,
}

/// The result of a query for captured packets.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// Number of packets that the query has written.
    pub packets: u64,
    /// Size of the file in bytes.
    pub file_bytes: u64,
    /// Number of packets for which the query's filter was evaluated.
    pub looked_at: u64,
    /// Number of packets that were overwritten during the query.
    pub missed: u64,
    /// Number of bytes read from disk.
    pub disk_bytes_read: u64,
    /// Number of damaged blocks and index pages on disk, which may contain more packets.
    pub damaged: u64,
}

impl Found {
    pub(super) fn written(self, output: QueryOutput, file: &Path) -> Result<Self, String> {
        let written = output.finish();
        let (packets, file_bytes) = written.map_err(|e| format!("{}: {e}", file.display()))?;
        Ok(Self {
            packets,
            file_bytes,
            ..self
        })
    }
}

/// The status of a capture.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Process identifier of the capture.
    pub process: u32,
    /// Size of the ring in bytes.
    pub ring_bytes: u64,
    /// Size in bytes to which the ring can be enlarged while the capture runs.
    pub most_bytes: u64,
    /// Packets that were stored in memory.
    pub kept: Count,
    /// Packets that were stored in memory and have been overwritten.
    pub overwritten: Count,
    /// Packets for which the ring had no free bucket.
    pub lost: Count,
    /// Time of the oldest packet in memory, nanoseconds since 1970; none if there is no packet.
    pub oldest_ns: Option<u64>,
    /// Time at which the capture began on the clock of the packets, nanoseconds since 1970; 0 if an earlier version
    /// captures.
    #[serde(default)]
    pub began_ns: u64,
    /// Current time on the clock of the packets, nanoseconds since 1970.
    pub now_ns: u64,
    /// Number of times that a producer skipped a bucket because a reader used it.
    pub passed_over: u64,
    /// Number of packets that were overwritten in the ring before triggers were evaluated for them.
    pub not_looked_at: u64,
    /// Percentiles of the time from a packet's timestamp until its triggers were evaluated; none if no packet was
    /// timed.
    #[serde(default)]
    pub looked_after: Option<LookedAfter>,
    /// Status of each trigger.
    pub triggers: Vec<TriggerStatus>,
    /// Status of each analyser.
    #[serde(default)]
    pub analysers: Vec<AnalyserStatus>,
    /// Dumps that are being written.
    pub dumping: Vec<Dumped>,
    /// Latest finished dumps.
    pub dumps: Vec<Dumped>,
    /// Status of the ring on disk; none if the capture has none.
    pub disk: Option<keeper::Status>,
    /// Status of the flow table, with the flows of the highest rates; none if the capture has no flow table.
    pub flows: Option<FlowsStatus>,
    /// Failures that persist at the time of this status, one line each.
    pub trouble: Vec<String>,
}

impl Status {
    /// Returns the age of the oldest packet in memory, in seconds; 0 if there is no packet.
    pub fn looks_back_seconds(&self) -> f64 {
        let ns = self
            .oldest_ns
            .map_or(0, |it| self.now_ns.saturating_sub(it));
        ns as f64 / 1e9
    }

    /// Returns the packets and bytes stored per second in the time since an earlier status.
    pub fn kept_per_second(&self, before: &Self) -> (f64, f64) {
        let seconds = self.now_ns.saturating_sub(before.now_ns).max(1) as f64 / 1e9;
        let packets = self.kept.packets - before.kept.packets;
        let bytes = self.kept.bytes - before.kept.bytes;
        (packets as f64 / seconds, bytes as f64 / seconds)
    }

    /// Returns the number of dumps that all triggers have begun.
    pub fn dumps_begun(&self) -> u64 {
        self.triggers.iter().map(|it| it.begun).sum()
    }
}
