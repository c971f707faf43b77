//! What is known of a chain while it is up.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_engine::CountersView;

/// A chain, as its supervisor sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub name: String,
    /// The file that it was made from.
    pub file: String,
    /// What its functions are spread over, in the words of chain files.
    pub placement: String,
    /// Process number of its supervisor.
    pub supervisor: u32,
    /// When it came up, seconds since 1970.
    pub up_since: u64,
    /// Its segments, west first.
    pub segments: Vec<SegmentStatus>,
}

/// What a segment is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Condition {
    /// Not heard of yet.
    Starting,
    /// Packets pass.
    Up,
    /// Its process died, and is to be started again.
    Down,
    /// It has done all there was to do, as at the end of a capture file.
    Ended,
}

/// A segment of a chain.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SegmentStatus {
    /// Its number in the row, from 1, and what it does.
    pub name: String,
    /// Its functions.
    pub functions: Vec<String>,
    /// `user` or `kernel`.
    pub place: String,
    /// The namespace that it is in, if it has its own.
    pub namespace: Option<String>,
    /// Who runs the virtual machine that it is in, if it has one: `kvm`, or `emulated`.
    #[serde(default)]
    pub machine: Option<String>,
    /// The core of its worker.
    pub core: Option<usize>,
    /// How its worker waits; none in the kernel.
    pub wait: Option<String>,
    /// Its ports, west first.
    pub ports: Vec<String>,
    /// Ports that nothing passes now, each with the reason, as when its cable was taken away.
    #[serde(default)]
    pub links_down: BTreeMap<String, String>,
    /// What it is doing.
    pub condition: Condition,
    /// Its process number, while it has one.
    pub pid: Option<u32>,
    /// Since when that process runs, seconds since 1970.
    pub up_since: Option<u64>,
    /// How often it has been started again.
    pub restarts: u32,
    /// What it said last when it ended by itself; empty if it never did.
    pub last_words: String,
    /// What its workers counted, all starts together, a second ago at most; what one that died had counted since, is lost.
    pub counters: CountersView,
    /// Lost on its wires while its process was dead: what its neighbours sent to it, or could not send.
    pub lost_while_down: u64,
    /// Lost in it, by cause.
    pub dropped: BTreeMap<String, u64>,
}
