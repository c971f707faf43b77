//! Status of a running chain.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_engine::{Count, CountersView};

/// The state of a chain as reported by its supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Name of the chain.
    pub name: String,
    /// Path of its file.
    pub file: String,
    /// Placement of its functions, as named in chain files.
    pub placement: String,
    /// Process number of its supervisor.
    pub supervisor: u32,
    /// Start of the chain, seconds since 1970-01-01.
    pub up_since: u64,
    /// Segments of the chain, west first.
    pub segments: Vec<SegmentStatus>,
}

/// Condition of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentStatus {
    /// Name: the position of the segment, from 1, and its functions.
    pub name: String,
    /// Functions of the segment.
    pub functions: Vec<String>,
    /// Place of the functions: `user` or `kernel`.
    pub place: String,
    /// Network namespace of the segment, if it has its own.
    pub namespace: Option<String>,
    /// Accelerator of its virtual machine, if it has one: `kvm`, or `emulated`.
    #[serde(default)]
    pub machine: Option<String>,
    /// The core of its worker; none in the kernel, or if the worker is not pinned.
    pub core: Option<usize>,
    /// Waiting policy of its worker; none in the kernel.
    pub wait: Option<String>,
    /// Ports of the segment, west first.
    pub ports: Vec<String>,
    /// Ports with a link that is down, each with the reason, such as an unplugged cable.
    #[serde(default)]
    pub links_down: BTreeMap<String, String>,
    /// Condition of the segment.
    pub condition: Condition,
    /// Process number of the segment, while it has one.
    pub pid: Option<u32>,
    /// Start of the segment's process, seconds since 1970-01-01.
    pub up_since: Option<u64>,
    /// Number of restarts of the process.
    pub restarts: u32,
    /// Last line that the process printed before it exited unrequested; empty if that never happened.
    pub last_words: String,
    /// Counters of its workers over all starts, at most a second old; the last counters of a process that died are
    /// lost.
    pub counters: CountersView,
    /// Counts by function and outcome, since the current start of the process, at most a second old.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Count>,
    /// Packets lost on the segment's links while its process was dead: packets that the neighbouring segments sent to
    /// it, or could not send.
    pub lost_while_down: u64,
    /// Packets lost in the segment, by cause.
    pub dropped: BTreeMap<String, u64>,
}
