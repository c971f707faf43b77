//! The clock by which a receiving port stamps arrivals, and how it relates to the ticks of send stamps.

use taut_sys::{Clock, ClockReading, StampClock};

/// Time for which a reading is good.
const FRESH_NS: f64 = 2e6;

/// The relation of arrival stamps' clock to the ticks, kept fresh.
#[derive(Debug, Clone, Copy)]
pub(super) struct Related {
    stamps: StampClock,
    now: ClockReading,
    fresh_until: u64,
    /// Error of the worst reading so far.
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
