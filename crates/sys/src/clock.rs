//! The time-stamp counter and its calibration against `CLOCK_MONOTONIC_RAW`.

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Returns the processor's time-stamp counter, in cycles.
///
/// The read is not serialising: neighbouring loads may move across it by a few cycles. That is far below the cost of a
/// packet, and a fence would cost more for every packet.
#[inline(always)]
pub fn ticks() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: RDTSC has no memory effects and every x86-64 processor has it.
        #[allow(unused_unsafe)]
        unsafe {
            core::arch::x86_64::_rdtsc()
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        let value: u64;
        // SAFETY: reading the virtual counter register has no side effects and is allowed in user space.
        unsafe { core::arch::asm!("mrs {}, cntvct_el0", out(reg) value, options(nomem, nostack)) };
        value
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        raw_ns()
    }
}

fn raw_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicRaw);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The relation between the cycles of [`ticks`] and nanoseconds of `CLOCK_MONOTONIC_RAW`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Clock {
    /// Cycles of the time-stamp counter per second.
    pub hz: f64,
    /// Bound of the calibration error, in parts per million: half the sum of the widths of both readings, divided by
    /// the calibration interval. The width of a reading is the maximum time between its two clock values.
    pub error_ppm: f64,
}

/// A reading of the time-stamp counter and one of `CLOCK_MONOTONIC_RAW`, with the maximum time between them.
#[derive(Clone, Copy)]
struct Pair {
    ticks: u64,
    ns: u64,
    bracket_ticks: u64,
}

/// Reads the time-stamp counter and `CLOCK_MONOTONIC_RAW` as close together as possible: the best of 64 attempts.
fn pair() -> Pair {
    let mut best = Pair {
        ticks: 0,
        ns: 0,
        bracket_ticks: u64::MAX,
    };
    for _ in 0..64 {
        let before = ticks();
        let ns = raw_ns();
        let after = ticks();
        let bracket_ticks = after.saturating_sub(before);
        if bracket_ticks < best.bracket_ticks {
            best = Pair {
                ticks: before + bracket_ticks / 2,
                ns,
                bracket_ticks,
            };
        }
    }
    best
}

impl Clock {
    /// Calibrates the clock for the time `interval`. A longer interval reduces the error (100 ms gives about one part
    /// per million).
    pub fn calibrate(interval: Duration) -> Clock {
        let first = pair();
        std::thread::sleep(interval.max(Duration::from_millis(1)));
        let last = pair();
        let elapsed_ticks = (last.ticks - first.ticks) as f64;
        let elapsed_ns = (last.ns - first.ns).max(1) as f64;
        // Counters of about 10 MHz may return the same value twice; up to one tick has then passed between both
        // readings.
        let width_ticks = first.bracket_ticks + 1 + last.bracket_ticks + 1;
        Clock {
            hz: elapsed_ticks * 1e9 / elapsed_ns,
            error_ppm: width_ticks as f64 / 2.0 / elapsed_ticks * 1e6,
        }
    }

    /// Converts cycles to nanoseconds.
    #[inline]
    pub fn to_ns(&self, ticks: u64) -> f64 {
        ticks as f64 * (1e9 / self.hz)
    }

    /// Converts nanoseconds to cycles.
    #[inline]
    pub fn to_ticks(&self, ns: f64) -> f64 {
        ns * (self.hz / 1e9)
    }
}

/// The clock of arrival timestamps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StampClock {
    /// The kernel's `CLOCK_REALTIME`, in units of `unit_ns`.
    Realtime {
        /// Unit of the timestamps, ns.
        unit_ns: u32,
    },
    /// The kernel's `CLOCK_MONOTONIC`, ns.
    Monotonic,
    /// Wall-clock time at which packets were recorded in a file, ns. It is unrelated to the time of reading the file.
    Recorded,
    /// A clock that cannot be related to the clocks of this machine.
    Unknown,
}

/// The relation between a clock of the kernel and the cycle counter at one moment.
#[derive(Debug, Clone, Copy)]
pub struct ClockReading {
    /// Value of the cycle counter at the reading.
    pub ticks: u64,
    /// Time of the kernel's clock at the same moment, ns.
    pub ns: u64,
    /// Cycles between the two counter readings before and after the reading of the kernel's clock. They bound the error
    /// of this relation.
    pub bracket_ticks: u64,
    /// Unit of the clock's timestamps, ns.
    unit_ns: u32,
}

impl ClockReading {
    /// Returns the maximum error of times relative to the clock's timestamps, ns: the sum of the error of this reading
    /// and the error from truncating timestamps to their unit.
    #[inline]
    pub fn error_ns(&self, clock: &Clock) -> f64 {
        clock.to_ns(self.bracket_ticks) + f64::from(self.unit_ns - 1)
    }

    /// Reads the kernel's clock and the cycle counter within about a hundred nanoseconds. The relation changes with
    /// every correction of the clock, up to 500 ns per millisecond, so read it again every few milliseconds. None for a
    /// clock that this machine cannot read.
    #[inline]
    pub fn now(clock: StampClock) -> Option<Self> {
        let (id, unit_ns) = match clock {
            StampClock::Realtime { unit_ns } => (ClockId::Realtime, unit_ns),
            StampClock::Monotonic => (ClockId::Monotonic, 1),
            StampClock::Recorded | StampClock::Unknown => return None,
        };
        let before = ticks();
        let now = clock_gettime(id);
        let bracket_ticks = ticks().saturating_sub(before);
        Some(Self {
            ticks: before + bracket_ticks / 2,
            ns: now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64,
            bracket_ticks,
            unit_ns,
        })
    }

    /// Returns the time from a cycle count to a timestamp of the kernel's clock, ns. Both have to be near the time of
    /// this reading.
    #[inline]
    pub fn elapsed_ns(&self, clock: &Clock, from_ticks: u64, to_stamp: u64) -> f64 {
        let to_ns = to_stamp.wrapping_mul(u64::from(self.unit_ns));
        let after = to_ns.wrapping_sub(self.ns) as i64;
        let before = self.ticks.wrapping_sub(from_ticks) as i64;
        after as f64 + before as f64 * (1e9 / clock.hz)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn elapsed_time_by_kernel_clocks_agrees_with_the_tick_counter() {
        let clock = Clock::calibrate(Duration::from_millis(20));
        for kernel in [StampClock::Realtime { unit_ns: 1 }, StampClock::Monotonic] {
            let reading = ClockReading::now(kernel).unwrap();
            let begun = ticks();
            std::thread::sleep(Duration::from_millis(5));
            let end = ClockReading::now(kernel).unwrap();
            let by_kernel = reading.elapsed_ns(&clock, begun, end.ns);
            let by_ticks = clock.to_ns(end.ticks - begun);
            let bound = clock.to_ns(reading.bracket_ticks + end.bracket_ticks) + 5e6 * 1e-3;
            assert!(
                (by_kernel - by_ticks).abs() < bound,
                "{kernel:?}: {by_kernel} {by_ticks} {bound}"
            );
        }
        assert!(ClockReading::now(StampClock::Unknown).is_none());
        assert!(ClockReading::now(StampClock::Recorded).is_none());
    }

    #[test]
    fn kernel_timestamps_in_microseconds_are_converted_correctly() {
        let clock = Clock::calibrate(Duration::from_millis(20));
        let reading = ClockReading::now(StampClock::Realtime { unit_ns: 1000 }).unwrap();
        let elapsed = reading.elapsed_ns(&clock, reading.ticks, reading.ns / 1000 + 5);
        assert!((4000.0..=5000.0).contains(&elapsed), "{elapsed}");
        assert!(reading.error_ns(&clock) >= 999.0);
    }

    #[test]
    fn clock_calibration_reports_its_error_and_converts_in_both_directions() {
        let clock = Clock::calibrate(Duration::from_millis(20));
        assert!(clock.hz > 1e6, "{clock:?}");
        assert!(clock.error_ppm > 0.0 && clock.error_ppm < 1e5, "{clock:?}");
        let ns = clock.to_ns(clock.to_ticks(1_000_000.0) as u64);
        assert!((ns - 1_000_000.0).abs() < 2.0 * 1e9 / clock.hz, "{ns}");
    }

    #[test]
    fn ticks_do_not_run_backwards_on_one_thread() {
        let mut last = ticks();
        for _ in 0..10_000 {
            let now = ticks();
            assert!(now >= last);
            last = now;
        }
    }
}
