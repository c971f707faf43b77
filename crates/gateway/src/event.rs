//! The events that workers send to the control plane. Each worker has a ring for its events, and never waits for space
//! in the ring. An event that is lost because the ring is full is repeated with the next packet.

use std::net::IpAddr;

/// The capacity in events of the ring from a worker to the control plane.
pub(super) const RING: usize = 4096;

/// An event of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A usage rule has reached one of its volume limits.
    Used { session: u64, rule: u32 },
    /// The first packet has been buffered for a forwarding rule.
    Held { session: u64, rule: u32 },
    /// A GTP-U peer has replied to an echo request.
    Echoed { remote: IpAddr },
}
