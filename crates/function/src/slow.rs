//! What a function has done to packets that its worker does not forward, on a thread beside it.

use std::time::{Duration, Instant};
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

/// How many errors may be told of at once (RFC 1812 section 4.3.2.8, RFC 4443 section 2.4 f).
const ERRORS_AT_ONCE: u32 = 50;
/// How far apart they may be after that.
const ERRORS_APART: Duration = Duration::from_millis(1);

/// Keeps whoever sends nonsense from having as much of it answered.
#[derive(Debug)]
pub(crate) struct ErrorLimit {
    left: u32,
    since: Instant,
}

impl ErrorLimit {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            left: ERRORS_AT_ONCE,
            since: now,
        }
    }

    /// Whether one more may be told of.
    pub(crate) fn admits(&mut self, now: Instant) -> bool {
        let earned = now.saturating_duration_since(self.since).as_nanos() / ERRORS_APART.as_nanos();
        let earned = u32::try_from(earned).unwrap_or(u32::MAX);
        if earned > 0 {
            self.left = self.left.saturating_add(earned).min(ERRORS_AT_ONCE);
            self.since = now;
        }
        let admits = self.left > 0;
        self.left -= u32::from(admits);
        admits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_come_in_bursts_and_then_at_a_rate() {
        let begun = Instant::now();
        let mut limit = ErrorLimit::new(begun);
        let admitted = |limit: &mut ErrorLimit, ms: u64| {
            let now = begun + Duration::from_millis(ms);
            (0..1000).filter(|_| limit.admits(now)).count()
        };
        assert_eq!(admitted(&mut limit, 0), 50);
        assert_eq!(admitted(&mut limit, 3), 3);
        assert_eq!(admitted(&mut limit, 10_000), 50);
        assert_eq!(admitted(&mut limit, 10_000), 0);
    }
}
