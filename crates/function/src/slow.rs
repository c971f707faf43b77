//! The slow path of a function: a thread in addition to the worker, which processes packets that the worker does not
//! forward.

use crate::budget::Budget;
use std::time::{Duration, Instant};
use taut_port::Punt;
use taut_sys::Alarm;

/// A packet that a worker has punted to its slow path.
#[derive(Debug, Clone, Copy)]
pub struct Punted<'a> {
    /// The frame of the packet.
    pub frame: &'a [u8],
    /// The index of the ingress port in the chain, from 0.
    pub from_port: usize,
    /// The cause of the punt: the reason why the worker did not forward the packet.
    pub cause: Punt,
}

/// The path of a frame that a handler sends. The frame goes back into the chain, like a packet that the handler's
/// function has passed. It goes through the functions that follow in its direction, and leaves through a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// The ingress port of the packet. None for a frame that the function creates: such a frame passes through the
    /// chain as if it had arrived at the partner of its egress port.
    pub from_port: Option<usize>,
    /// The egress port of the frame.
    pub to_port: usize,
    /// The MTU of the egress link: the length in bytes of the longest IP packet that leaves unchanged. A longer IPv4
    /// packet is fragmented after the last function, if that is allowed.
    pub mtu: Option<u16>,
    /// True if the frame has no MAC addresses yet: earlier functions that only set addresses
    /// ([`Needs::sets_addresses`](crate::Needs::sets_addresses)) process it first.
    pub lacks_addresses: bool,
}

impl Passage {
    /// Returns the path of a frame that the function creates, which leaves through `to_port`.
    #[must_use]
    pub fn of_own(to_port: usize) -> Self {
        Self {
            from_port: None,
            to_port,
            mtu: None,
            lacks_addresses: false,
        }
    }

    /// Returns the path of a packet that arrived at `from_port`, was buffered or changed, and leaves through `to_port`.
    #[must_use]
    pub fn between(from_port: usize, to_port: usize) -> Self {
        Self {
            from_port: Some(from_port),
            ..Self::of_own(to_port)
        }
    }
}

/// The callback that sends a frame through the functions that follow in the chain. It returns false if there is no
/// space for the frame.
pub type Send<'a> = dyn FnMut(Passage, &[u8]) -> bool + 'a;

/// A handler of packets on the slow path. It belongs to the thread of the slow path: it may allocate and take its time,
/// and the worker never waits for it.
pub trait Handler: std::marker::Send {
    /// Processes a packet; `send` sends frames. Returns false to leave the packet to the handlers of later functions.
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool;

    /// Sends frames that arrive from other sources than the worker, such as the kernel; returns true if there were any.
    /// Called repeatedly.
    fn poll(&mut self, _: &mut Send<'_>) -> bool {
        false
    }

    /// Makes `alarm` wake the slow path when [`Handler::poll`] will have work.
    fn arm(&mut self, _: &mut Alarm) {}

    /// Returns true if the handler's function has ended; the slow path then removes the handler.
    fn is_over(&self) -> bool {
        false
    }
}

/// The number of ICMP errors that may be sent in a burst (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f).
const ERRORS_AT_ONCE: u64 = 50;
/// The minimum time between ICMP errors after a burst.
const ERRORS_APART: Duration = Duration::from_millis(1);

/// The rate limit on ICMP errors, so that a flood of bad packets does not cause a flood of errors.
#[derive(Debug)]
pub struct ErrorLimit {
    begun: Instant,
    budget: Budget,
}

impl ErrorLimit {
    /// Creates a rate limit that has not admitted any ICMP errors yet, so its complete burst is available.
    pub fn unused() -> Self {
        Self {
            begun: Instant::now(),
            budget: Budget::new(ERRORS_AT_ONCE, ERRORS_APART.as_nanos() as u64, 0),
        }
    }

    /// Returns true if one more ICMP error may be sent, and counts that error.
    pub fn admits(&mut self) -> bool {
        self.budget.admits(self.begun.elapsed().as_nanos() as u64)
    }
}
