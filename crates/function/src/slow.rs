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

/// Sends a frame through a port of the worker. False if there is no room for it.
pub type Send<'a> = dyn FnMut(usize, &[u8]) -> bool + 'a;

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
