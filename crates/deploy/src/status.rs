//! Status of a running chain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_engine::{Count, CountersView};

/// The state of a chain as reported by its supervisor.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Name of the chain.
    pub name: String,
    /// Path of the chain file.
    pub file: String,
    /// Placement of the chain's functions, as named in chain files.
    pub placement: String,
    /// Process identifier of the chain's supervisor.
    pub supervisor: u32,
    /// Time at which the chain started, seconds since 1970-01-01.
    pub up_since: u64,
    /// Segments of the chain, west first.
    pub segments: Vec<SegmentStatus>,
}

/// Condition of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// The segment has not reported yet.
    Starting,
    /// The segment passes packets.
    Up,
    /// The segment's process died, and will be restarted.
    Down,
    /// The segment has finished, for example at the end of a capture file.
    Ended,
}

/// A segment of a chain.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct SegmentStatus {
    /// Name: the position of the segment, from 1, and its functions.
    pub name: String,
    /// Functions of the segment.
    pub functions: Vec<String>,
    /// Place of the functions: `user` or `kernel`.
    pub place: String,
    /// Network namespace of the segment, if it has its own.
    pub namespace: Option<String>,
    /// Accelerator of the segment's virtual machine: `kvm` or `emulated`. None if the segment runs in no virtual
    /// machine.
    #[serde(default)]
    pub machine: Option<String>,
    /// Core of the segment's worker; none if the segment is in the kernel, or if the worker is not pinned.
    pub core: Option<usize>,
    /// Waiting policy of the segment's worker; none if the segment is in the kernel.
    pub wait: Option<String>,
    /// Ports of the segment, west first.
    pub ports: Vec<String>,
    /// Ports with a link that is down, each with the reason, such as an unplugged cable.
    #[serde(default)]
    pub links_down: BTreeMap<String, String>,
    /// Condition of the segment.
    pub condition: Condition,
    /// Identifier of the segment's process; none while no process runs.
    pub pid: Option<u32>,
    /// Time at which the segment's process started, seconds since 1970-01-01; none while no process runs.
    pub up_since: Option<u64>,
    /// Number of restarts of the process.
    pub restarts: u32,
    /// Last line that the process printed before it exited unrequested; empty if that never happened.
    pub last_words: String,
    /// Counters of the segment's workers over all starts of their process, at most a second old. Counts since the last
    /// report of a process that died are missing.
    pub counters: CountersView,
    /// Counters of the segment's functions, such as packets by outcome, since the current start of the process, at most
    /// a second old.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Count>,
    /// Packets lost on the segment's links while its process was dead: packets that the neighbouring segments sent to
    /// it, or could not send.
    pub lost_while_down: u64,
    /// Packets lost in the segment, by cause.
    pub dropped: BTreeMap<String, u64>,
}
