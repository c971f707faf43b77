//! The clock that supplies the send times of packets. The send times in arriving packets are compared with it.

use std::time::{Duration, SystemTime};

/// The clock's units per second, as in [`super::Header::sent`].
pub(super) const UNITS_PER_S: u64 = 1 << 16;

/// The time for which a clock reading is reused, in ticks of the worker's time-stamp counter: tens of microseconds. One
/// reading costs about a tenth of a short packet's encryption.
const STALE_TICKS: u64 = 1 << 17;

/// Returns a time in units of the header, rounded up.
pub(super) fn units(time: Duration) -> u64 {
    time.as_secs() * UNITS_PER_S + (u64::from(time.subsec_nanos()) << 16).div_ceil(1_000_000_000)
}

/// Returns the time since 1970 by the machine's clock.
pub(super) fn of_the_machine() -> Duration {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default()
}

/// A clock whose readings are reused for [`STALE_TICKS`], because a reading takes time.
pub(super) struct Clock {
    read: fn() -> Duration,
    /// The time of the last reading, in ticks of the worker's counter; none before the first reading.
    read_ticks: Option<u64>,
    now: u64,
}

impl Clock {
    pub(super) fn new(read: fn() -> Duration) -> Self {
        Self {
            read,
            read_ticks: None,
            now: 0,
        }
    }

    /// Records that a batch arrives at `now_ticks`, a time of the worker's time-stamp counter.
    #[inline]
    pub(super) fn advance(&mut self, now_ticks: u64) {
        let is_fresh = |read: u64| now_ticks.wrapping_sub(read) < STALE_TICKS;
        if !self.read_ticks.is_some_and(is_fresh) {
            self.read_ticks = Some(now_ticks);
            self.read();
        }
    }

    /// Returns the time of the last reading, since 1970 in units of 1 / [`UNITS_PER_S`] s.
    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.now
    }

    #[cold]
    pub(super) fn read(&mut self) -> u64 {
        self.now = units((self.read)());
        self.now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_rounded_up_to_clock_units() {
        let of = |ns| units(Duration::from_nanos(ns));
        assert_eq!([of(0), of(1), of(15_258), of(15_259)], [0, 1, 1, 2]);
        assert_eq!(of(5_500_000_000), 5 * UNITS_PER_S + UNITS_PER_S / 2);
        assert!(units(of_the_machine()) < 1 << 48);
    }

    #[test]
    fn a_recent_clock_reading_is_reused() {
        let mut clock = Clock::new(|| Duration::from_secs(7));
        clock.advance(5);
        assert_eq!(clock.now(), 7 * UNITS_PER_S);
        clock.now = 1;
        clock.advance(5 + STALE_TICKS - 1);
        assert_eq!(clock.now(), 1);
        clock.advance(5 + STALE_TICKS);
        assert_eq!(clock.now(), 7 * UNITS_PER_S);
        clock.now = 1;
        assert_eq!(clock.read(), 7 * UNITS_PER_S);
    }
}
