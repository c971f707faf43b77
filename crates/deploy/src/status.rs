//! Status of a chain while it is up.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_engine::{Count, CountersView};

/// A chain, as its supervisor sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Name of the chain.
    pub name: String,
    /// The file that it was made from.
    pub file: String,
    /// Placement of its functions, in the words of chain files.
    pub placement: String,
    /// Process number of its supervisor.
    pub supervisor: u32,
    /// Time at which the chain came up, seconds since 1970.
    pub up_since: u64,
    /// Segments of the chain, west first.
    pub segments: Vec<SegmentStatus>,
}

/// Condition of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// The segment has not been heard of yet.
    Starting,
    /// The segment passes packets.
    Up,
    /// The segment's process died, and is to be started again.
    Down,
    /// The segment has done all there was to do, as at the end of a capture file.
    Ended,
}

/// A segment of a chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentStatus {
    /// Name: the segment's number in the row, from 1, and what it does.
    pub name: String,
    /// Functions of the segment.
    pub functions: Vec<String>,
    /// `user` or `kernel`.
    pub place: String,
    /// The namespace that it is in, if it has its own.
    pub namespace: Option<String>,
    /// Accelerator of the virtual machine that it is in, if it has one: `kvm`, or `emulated`.
    #[serde(default)]
    pub machine: Option<String>,
    /// The core of its worker.
    pub core: Option<usize>,
    /// Waiting policy of its worker; none in the kernel.
    pub wait: Option<String>,
    /// Ports of the segment, west first.
    pub ports: Vec<String>,
    /// Ports that nothing passes now, each with the reason, as when its cable was taken away.
    #[serde(default)]
    pub links_down: BTreeMap<String, String>,
    /// Condition of the segment.
    pub condition: Condition,
    /// Process number of the segment, while it has one.
    pub pid: Option<u32>,
    /// Time at which that process began, seconds since 1970.
    pub up_since: Option<u64>,
    /// Number of times that it has been started again.
    pub restarts: u32,
    /// Words that it said last when it ended by itself; empty if it never did.
    pub last_words: String,
    /// Counts of its workers, all starts together, a second ago at most; what one that died had counted since, is lost.
    pub counters: CountersView,
    /// Counts of its functions, for those that tell, by function and outcome: of its present start, a second ago at most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub counts: Vec<Count>,
    /// Lost on its wires while its process was dead: what its neighbours sent to it, or could not send.
    pub lost_while_down: u64,
    /// Lost in it, by cause.
    pub dropped: BTreeMap<String, u64>,
}
