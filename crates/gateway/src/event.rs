//! The events that workers send to the control plane: a ring for each worker, which never waits. The next packet
//! repeats an event that was lost because the ring was full.

use std::net::IpAddr;

/// The capacity of a worker's ring, in events.
pub(super) const RING: usize = 4096;

/// An event of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A usage rule has reached a volume.
    Used { session: u64, rule: u32 },
    /// The first packet has been buffered for a forwarding rule.
    Held { session: u64, rule: u32 },
    /// A GTP-U peer has replied to an echo request.
    Echoed { remote: IpAddr },
}
