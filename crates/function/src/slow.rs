//! Work that a function leaves to a thread beside its worker, on packets that the worker does not forward.

use crate::budget::Budget;
use std::time::{Duration, Instant};
use taut_port::Punt;
use taut_sys::Alarm;

/// A packet that a worker has handed to its slow path.
#[derive(Debug, Clone, Copy)]
pub struct Punted<'a> {
    /// Frame of the packet.
    pub frame: &'a [u8],
    /// Number of the port that it came in through.
    pub from_port: usize,
    /// Reason for which it was punted.
    pub cause: Punt,
}

/// Way of a frame that a handler sends. The frame goes back into the chain: in its direction it meets the functions behind the one
/// that the handler belongs to, as a packet that this one let pass, and leaves through a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Passage {
    /// The port that the packet came in through. None for a frame that the function has made itself: it goes in the direction of
    /// packets that leave through its port, as if it had come in through the port's partner.
    pub from_port: Option<usize>,
    /// The port that the frame leaves through.
    pub to_port: usize,
    /// Longest IP packet, in bytes, that leaves as it is: one of IPv4 that is longer, and may be cut, is cut behind the last function.
    pub mtu: Option<u16>,
    /// Whether nobody has given the frame MAC addresses yet: functions in front that do nothing else
    /// ([`Function::sets_addresses`](crate::Function::sets_addresses)) see it first.
    pub lacks_addresses: bool,
}

impl Passage {
    /// The way of a frame that the function has made itself.
    #[must_use]
    pub fn of_own(to_port: usize) -> Self {
        Self {
            from_port: None,
            to_port,
            mtu: None,
            lacks_addresses: false,
        }
    }

    /// The way of a packet that came in through a port, and was held or changed.
    #[must_use]
    pub fn between(from_port: usize, to_port: usize) -> Self {
        Self {
            from_port: Some(from_port),
            ..Self::of_own(to_port)
        }
    }
}

/// Sends a frame on its way through the rest of the chain. False if there is no room for it.
pub type Send<'a> = dyn FnMut(Passage, &[u8]) -> bool + 'a;

/// Handler of packets on the slow path. It belongs to the thread of the slow path: it may allocate and take its time,
/// and the worker waits for nothing.
pub trait Handler: std::marker::Send {
    /// Does what there is to do with a packet; false leaves it to the handlers behind this one.
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool;

    /// Sends what has come from elsewhere than the worker; true if there was anything. Called again and again.
    fn poll(&mut self, _: &mut Send<'_>) -> bool {
        false
    }

    /// Makes `alarm` ring when [`Handler::poll`] will have something.
    fn arm(&mut self, _: &mut Alarm) {}

    /// Whether the function that it works for is no more.
    fn is_over(&self) -> bool {
        false
    }
}

/// Errors that may be told of at once (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f).
const ERRORS_AT_ONCE: u64 = 50;
/// Time between errors after that.
const ERRORS_APART: Duration = Duration::from_millis(1);

/// Keeps whoever sends nonsense from having as much of it answered.
#[derive(Debug)]
pub(crate) struct ErrorLimit {
    begun: Instant,
    budget: Budget,
}

impl ErrorLimit {
    pub(crate) fn new() -> Self {
        Self {
            begun: Instant::now(),
            budget: Budget::new(ERRORS_AT_ONCE, ERRORS_APART.as_nanos() as u64, 0),
        }
    }

    /// Whether one more error may be told of.
    pub(crate) fn admits(&mut self) -> bool {
        self.budget.admits(self.begun.elapsed().as_nanos() as u64)
    }
}
