//! State of packets between creation, sending and recording.

use taut_wire::{StampLayout, Sum};

/// Packets that were sent and not recorded yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handed {
    pub(super) made: usize,
    /// Number of packets, the last of those made, that the port rejected.
    pub(super) refused: usize,
    pub(super) stamp: u64,
}

/// A packet between creation and sending.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pending {
    pub(super) stream: usize,
    pub(super) template: u32,
    pub(super) varied: Sum,
    pub(super) sequence: u64,
    /// Intended send time of the packet, ticks.
    pub(super) due: u64,
    /// Time at which the packet begins on the line, ticks; without a line, its intended send time.
    pub(super) place: u64,
    /// First timestamp of the packet, ticks; 0 before it has one.
    pub(super) first_stamp: u64,
    /// True if the packet is a filler, which belongs to no stream.
    pub(super) filler: bool,
    /// True if a script made the packet; it is then not made from the template.
    pub(super) crafted: bool,
    pub(super) layout: Option<StampLayout>,
}
