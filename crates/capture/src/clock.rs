//! Times of packets in nanoseconds since 1970. They are derived from the time-stamp counter and never run backwards.
//!
//! The packet clock is compared with the kernel's `CLOCK_REALTIME` once a second, and follows it with a rate correction
//! of at most 500 parts per million. The times of packets do not jump when the kernel's clock is set.

use std::time::Duration;
use taut_sys::{Clock, ClockReading, StampClock, ticks};

/// Interval at which the packet clock is compared with the kernel's clock.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum correction of the packet clock's rate, as a fraction.
const MOST_SLEW: f64 = 500e-6;

/// The clock for the packets of one thread.
#[derive(Debug, Clone)]
pub struct PacketClock {
    clock: Clock,
    /// Cycle count from which the current rate of the clock applies; `base_ns` is the time at that count, nanoseconds
    /// since 1970.
    base_ticks: u64,
    base_ns: u64,
    ns_per_tick: f64,
    look_ticks: u64,
    /// Kernel's time minus the packet clock's time at the last comparison, ns; negative if the kernel's clock is
    /// behind.
    ahead_ns: i64,
}

impl PacketClock {
    /// Creates a packet clock that converts cycles by the calibrated clock `clock`, and begins with the kernel's time.
    pub fn new(clock: Clock) -> Self {
        let (base_ticks, base_ns) = realtime();
        Self {
            clock,
            base_ticks,
            base_ns,
            ns_per_tick: 1e9 / clock.hz,
            look_ticks: base_ticks + clock.to_ticks(LOOK.as_nanos() as f64) as u64,
            ahead_ns: 0,
        }
    }

    /// Returns the time at a current or very recent cycle count, nanoseconds since 1970.
    #[inline(always)]
    pub fn at(&mut self, ticks: u64) -> u64 {
        if ticks >= self.look_ticks {
            self.look();
        }
        self.of(ticks)
    }

    /// Returns the current time, nanoseconds since 1970.
    pub fn now(&mut self) -> u64 {
        self.at(ticks())
    }

    /// Returns the kernel's time minus the packet clock's time at the last comparison, ns; negative if the kernel's
    /// clock is behind.
    pub fn ahead_ns(&self) -> i64 {
        self.ahead_ns
    }

    /// Returns the time at a cycle count within a second of now, in nanoseconds since 1970, without reading the
    /// kernel's clock.
    #[inline(always)]
    pub fn of(&self, ticks: u64) -> u64 {
        // A recent cycle count may be before the base.
        let since = ticks.wrapping_sub(self.base_ticks) as i64;
        self.base_ns
            .wrapping_add((since as f64 * self.ns_per_tick) as i64 as u64)
    }

    #[cold]
    fn look(&mut self) {
        let (at_ticks, real_ns) = realtime();
        self.follow(at_ticks, real_ns);
    }

    fn follow(&mut self, at_ticks: u64, real_ns: u64) {
        let here_ns = self.of(at_ticks);
        let ahead = real_ns as i64 - here_ns as i64;
        let look_ns = LOOK.as_nanos() as f64;
        let slew = (ahead as f64 / look_ns).clamp(-MOST_SLEW, MOST_SLEW);
        (self.base_ticks, self.base_ns) = (at_ticks, here_ns);
        self.ns_per_tick = (1e9 / self.clock.hz) * (1.0 + slew);
        self.look_ticks = at_ticks + self.clock.to_ticks(look_ns) as u64;
        self.ahead_ns = ahead;
    }
}

/// Returns a cycle count and the kernel's time at the same moment.
fn realtime() -> (u64, u64) {
    match ClockReading::now(StampClock::Realtime { unit_ns: 1 }) {
        Some(reading) => (reading.ticks, reading.ns),
        // This case does not occur, because the clock can always be read.
        None => (ticks(), 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_times_follow_the_kernel_clock_and_never_run_backwards() {
        let clock = Clock {
            hz: 1e9,
            error_ppm: 1.0,
        };
        let mut packets = PacketClock::new(clock);
        let (begin, begin_ns) = (packets.base_ticks, packets.base_ns);
        let mut at = begin;
        let mut before = 0;
        // The kernel's clock is set back by an hour, then forward by a millisecond.
        for ahead_ns in [-3_600_000_000_000, -3_600_000_000_000, 1_000_000, 1_000_000] {
            let real_ns = (begin_ns + (at - begin)) as i64 + ahead_ns;
            packets.follow(at, real_ns as u64);
            for _ in 0..10 {
                at += 100_000_000;
                let now = packets.of(at);
                assert!(now > before);
                before = now;
            }
        }
        assert_eq!(packets.ahead_ns().signum(), 1);
    }

    #[test]
    fn packet_clock_and_kernel_clock_agree_within_two_microseconds() {
        let mut packets = PacketClock::new(Clock::calibrate(Duration::from_millis(20)));
        let before = realtime().1;
        let now = packets.now();
        let after = realtime().1;
        let slack = 2_000;
        assert!(
            (before - slack..=after + slack).contains(&now),
            "{before} {now} {after}"
        );
    }
}
