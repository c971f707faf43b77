//! What a function has done to packets that its worker does not forward, on a thread beside it.

use taut_port::{Alarm, Punt};

/// A packet that a worker has handed to its slow path.
#[derive(Debug, Clone, Copy)]
pub struct Punted<'a> {
    /// Its frame.
    pub frame: &'a [u8],
    /// Number of the port that it came in through.
    pub from_port: usize,
    /// Why.
    pub cause: Punt,
}

/// Sends a frame through a port of the worker. False if there is no room for it.
pub type Send<'a> = dyn FnMut(usize, &[u8]) -> bool + 'a;

/// One thing that is done on the slow path. Belongs to the thread of the slow path: it may allocate and take its time, and
/// the worker waits for nothing.
pub trait Handler: std::marker::Send {
    /// Does what there is to do with a packet; false leaves it to the handlers behind this one.
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool;

    /// Sends what has come from elsewhere than the worker; true if there was anything. Called again and again.
    fn poll(&mut self, _: &mut Send<'_>) -> bool {
        false
    }

    /// Has `alarm` ring when [`Handler::poll`] will have something.
    fn arm(&mut self, _: &mut Alarm) {}

    /// Whether the function that it works for is no more.
    fn is_over(&self) -> bool {
        false
    }
}
