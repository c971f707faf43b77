//! State of packets between creation, sending and recording.

use taut_wire::{StampLayout, Sum};

/// Packets that were sent and not yet recorded.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handed {
    pub(super) made: usize,
    /// Number of packets that the port rejected: the last packets of the batch.
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
    /// Time at which the packet's transmission on the line begins, ticks; without a line, the intended send time.
    pub(super) place: u64,
    /// First send timestamp of the packet, ticks; 0 before the first.
    pub(super) first_stamp: u64,
    /// True if the packet is a filler, which belongs to no stream.
    pub(super) filler: bool,
    /// True if a script made the packet; the template is then not used.
    pub(super) crafted: bool,
    pub(super) layout: Option<StampLayout>,
}
