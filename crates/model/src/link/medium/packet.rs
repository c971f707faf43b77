//! A packet that waits for the medium, and one that has arrived or is lost.

#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub(super) id: u32,
    pub(super) bytes: u32,
    pub(super) since_ns: u64,
}

/// The outcome of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// The packet arrives at the receiver.
    Arrives,
    /// The packet was sent as often as allowed and is lost.
    Lost,
}

/// A packet that has arrived or is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ended {
    /// Time at which the packet arrives or is given up, ns.
    pub at_ns: u64,
    /// Start of the packet's last transmission, after all waiting and backoff, ns.
    pub begun_ns: u64,
    /// Direction, 0 or 1.
    pub way: usize,
    /// Identifier that the caller passed to [`SharedMedium::offer`](super::SharedMedium::offer).
    pub id: u32,
    /// Outcome of the packet.
    pub fate: Fate,
}
