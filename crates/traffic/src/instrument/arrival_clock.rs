//! The clock of a receiving port's timestamps, and its relation to the ticks of send timestamps.

use taut_sys::{Clock, ClockReading, StampClock};

/// Time for which a reading of both clocks is valid, ns.
const FRESH_NS: f64 = 2e6;

/// The relation between the clock of arrival timestamps and the ticks of send timestamps; it is measured repeatedly.
#[derive(Debug, Clone, Copy)]
pub(super) struct Related {
    stamps: StampClock,
    now: ClockReading,
    fresh_until: u64,
    /// Largest error of all readings of the two clocks, ns.
    pub(super) error_ns: f64,
}

impl Related {
    pub(super) fn to(stamps: StampClock) -> Option<Self> {
        Some(Self {
            stamps,
            now: ClockReading::now(stamps)?,
            fresh_until: 0,
            error_ns: 0.0,
        })
    }

    #[inline(always)]
    pub(super) fn at(&mut self, seen: u64, clock: &Clock) -> ClockReading {
        if seen >= self.fresh_until {
            self.read(clock);
        }
        self.now
    }

    #[cold]
    fn read(&mut self, clock: &Clock) {
        self.now = ClockReading::now(self.stamps).unwrap_or(self.now);
        self.fresh_until = self.now.ticks + clock.to_ticks(FRESH_NS) as u64;
        self.error_ns = self.error_ns.max(self.now.error_ns(clock));
    }
}
