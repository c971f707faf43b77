//! What workers have to tell whoever decides: a ring of each worker's, which never waits. What it has no room for is
//! told of again by the next packet.

use std::net::IpAddr;

/// Events that may be on their way from one worker.
pub(super) const RING: usize = 4096;

/// What has happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Event {
    /// A volume of a usage rule is reached.
    Used { session: u64, rule: u32 },
    /// A first packet is kept for a forwarding rule.
    Held { session: u64, rule: u32 },
    /// A peer of tunnels has answered an echo request.
    Echoed { remote: IpAddr },
}
