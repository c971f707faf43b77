//! Packets between being made, being handed over and being told to the records.

use taut_wire::{StampLayout, Sum};

/// What was handed over and not told to the records yet.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Handed {
    pub(super) made: usize,
    /// How many of them, the last ones, the port did not take.
    pub(super) refused: usize,
    pub(super) stamp: u64,
}

/// A packet between being made and being handed over.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Pending {
    pub(super) stream: usize,
    pub(super) template: u32,
    pub(super) varied: Sum,
    pub(super) sequence: u64,
    /// Time at which the packet is due; ticks.
    pub(super) due: u64,
    /// Time at which the packet has its place on the line: when it is due where there is no line; ticks.
    pub(super) place: u64,
    /// Time of the first stamp that the packet got; ticks, 0 before it has one.
    pub(super) first_stamp: u64,
    /// Whether the packet is a filler, which is no stream's.
    pub(super) filler: bool,
    /// Whether a hand made the packet; it takes the place of the template's.
    pub(super) crafted: bool,
    pub(super) layout: Option<StampLayout>,
}
