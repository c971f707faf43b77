//! Policing by virtual scheduling (the generic cell rate algorithm, ITU-T I.371 annex A) with bytes in the place of
//! cells. A meter stores one time and the cost of a byte.
//!
//! The XDP program crates/xdp/ebpf/xdp_gateway.bpf.c does the same computation.

use crate::sync::atomic::{AtomicU64, Ordering};
use std::num::NonZeroU64;

/// The number of meter time units in a nanosecond. A 64-bit number of units lasts for nine years.
pub const UNITS_PER_NS: u64 = 64;
/// The number of fraction bits in the cost of a byte.
const COST_DIGITS: u32 = 14;
/// The burst of a meter, as a duration in ns: the bytes that arrive in this time at the meter's rate.
const BURST_NS: u64 = 10_000_000;
/// The smallest burst of a meter in bytes; the packet that exceeds the burst still passes.
const BURST_BYTES: u64 = 15_000;

/// Returns the cost of a byte (the time that it takes at a rate, in time units with a fraction). The cost is rounded
/// up, so that the rate is never exceeded; at 100 Gbit/s the rounding error is at most one part in a hundred thousand.
pub fn cost(kbps: NonZeroU64) -> u64 {
    const ONE_KBPS_BYTE_NS: u64 = 8_000_000;
    ((ONE_KBPS_BYTE_NS * UNITS_PER_NS) << COST_DIGITS).div_ceil(kbps.get())
}

/// The number of bytes in 1,000 bits. A meter that limits packets per second counts each packet as this many bytes.
pub const KBIT_BYTES: u64 = 125;

/// Returns the time that `bytes` bytes take at the meter's rate, in time units ([`UNITS_PER_NS`]); `cost` is the cost
/// of one byte.
#[inline(always)]
pub fn price(cost: u64, bytes: u64) -> u64 {
    let price = (u128::from(cost) * u128::from(bytes)).div_ceil(1 << COST_DIGITS);
    u64::try_from(price).unwrap_or(u64::MAX)
}

/// A rate limit that a single worker uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Meter {
    /// The theoretical arrival time of the next packet: the time at which the passed bytes would have arrived at the
    /// rate.
    pub due: u64,
    /// The cost of a byte, from [`cost`].
    pub cost: u64,
}

impl Meter {
    /// Returns true if a packet that arrives at the time `now` passes.
    #[inline(always)]
    pub fn passes(&self, now: u64) -> bool {
        let burst = (BURST_NS * UNITS_PER_NS).max((BURST_BYTES * self.cost) >> COST_DIGITS);
        self.due <= now.saturating_add(burst)
    }

    /// Counts a packet of `bytes` bytes that passes at the time `now`.
    #[inline(always)]
    pub fn charge(&mut self, now: u64, bytes: u16) {
        let price = (u64::from(bytes) * self.cost).div_ceil(1 << COST_DIGITS);
        self.due = self.due.max(now).saturating_add(price);
    }
}

/// A meter that several workers share. Packets that pass at the same moment at several workers may exceed the rate by
/// one packet per worker.
#[derive(Debug, Default)]
pub struct SharedMeter {
    due: AtomicU64,
    cost: AtomicU64,
}

impl Clone for SharedMeter {
    fn clone(&self) -> Self {
        let Meter { due, cost } = self.read();
        Self {
            due: AtomicU64::new(due),
            cost: AtomicU64::new(cost),
        }
    }
}

impl SharedMeter {
    /// Returns a copy of the meter's current state. No other memory depends on this state, so relaxed memory ordering
    /// suffices.
    #[inline(always)]
    pub fn read(&self) -> Meter {
        Meter {
            due: self.due.load(Ordering::Relaxed),
            cost: self.cost.load(Ordering::Relaxed),
        }
    }

    /// Restarts the meter with another cost of a byte, and thus another rate.
    pub fn begin(&self, cost: u64) {
        self.cost.store(cost, Ordering::Relaxed);
        self.due.store(0, Ordering::Relaxed);
    }

    /// Counts a packet that passes, as [`Meter::charge`] does.
    #[inline(always)]
    pub fn charge(&self, now: u64, bytes: u16) {
        let mut seen = self.read();
        loop {
            let mut charged = seen;
            charged.charge(now, bytes);
            let (before, after) = (seen.due, charged.due);
            let order = Ordering::Relaxed;
            match self.due.compare_exchange_weak(before, after, order, order) {
                Ok(_) => return,
                Err(due) => seen.due = due,
            }
        }
    }
}

/// Tests that run every interleaving of a few steps: `./run miri`.
#[cfg(all(test, loom))]
mod interleavings {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    #[test]
    fn a_meter_counts_concurrent_packets_in_every_interleaving() {
        loom::model(|| {
            let shared = Arc::new(SharedMeter::default());
            shared.begin(1 << COST_DIGITS);
            let worker = {
                let shared = Arc::clone(&shared);
                thread::spawn(move || {
                    shared.charge(10, 100);
                    shared.charge(10, 30);
                })
            };
            shared.charge(10, 7);
            shared.charge(10, 2);
            worker.join().unwrap();
            assert_eq!(shared.read().due, 10 + 139);
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_meter_counts_the_packets_of_several_concurrent_workers() {
        let shared = SharedMeter::default();
        shared.begin(cost(NonZeroU64::new(1_000_000).unwrap()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..10_000).for_each(|_| shared.charge(SECOND, 100)));
            }
        });
        let mut alone = shared.clone().read();
        alone.due = 0;
        (0..40_000).for_each(|_| alone.charge(SECOND, 100));
        assert_eq!(shared.read(), alone);
    }

    const SECOND: u64 = 1_000_000_000 * UNITS_PER_NS;

    fn meter(kbps: u64) -> Meter {
        Meter {
            due: 0,
            cost: cost(NonZeroU64::new(kbps).unwrap()),
        }
    }

    /// Offers packets of mixed sizes to a meter for `seconds` seconds, at `times` times its rate. Returns the offered
    /// bytes and the passed bytes.
    fn passed(kbps: u64, times: f64, seconds: f64) -> (u64, u64) {
        let mut meter = meter(kbps);
        let mut random = fastrand::Rng::with_seed(kbps);
        let (mut now, mut offered, mut passed) = (SECOND as f64, 0, 0);
        let begun = now;
        while now < begun + seconds * SECOND as f64 {
            let bytes = [40, 64, 576, 1400, 1500][random.usize(..5)];
            offered += u64::from(bytes);
            if meter.passes(now as u64) {
                meter.charge(now as u64, bytes);
                passed += u64::from(bytes);
            }
            let byte_units = 8.0 / (kbps as f64 * 1e3) * SECOND as f64;
            now += f64::from(bytes) * byte_units / times;
        }
        (offered, passed)
    }

    #[test]
    fn traffic_below_the_rate_passes_and_excess_is_dropped() {
        for kbps in [64, 1000, 50_000, 1_000_000, 10_000_000] {
            // At low rates the burst is as much as the bytes of a second or two, which is visible in the result.
            let seconds = (2e5 / kbps as f64).clamp(0.2, 120.0);
            let rate = kbps as f64 * 125.0 * seconds;
            let burst = (BURST_BYTES as f64).max(kbps as f64 * 125.0 * 0.01);
            for (times, seconds) in [(0.5, seconds.min(20.0)), (1.0, (5.0 * seconds).min(20.0))] {
                let (offered, passed) = passed(kbps, times, seconds);
                assert_eq!(offered, passed, "{times} times {kbps} kbit/s");
            }
            let (offered, passed) = passed(kbps, 3.0, seconds);
            assert!(offered as f64 > 2.9 * rate);
            let share = passed as f64 / (rate + burst);
            assert!(
                (share - 1.0).abs() < 0.02,
                "{share} of {kbps} kbit/s and the burst"
            );
        }
    }

    #[test]
    fn a_burst_passes_once_and_again_after_the_meter_refills() {
        // The burst is 15000 bytes and one packet at a low rate, 10 ms and one packet at a high one.
        for (kbps, wanted) in [(1, 11), (1_000, 11), (128_000, 107)] {
            let mut meter = meter(kbps);
            let burst = |meter: &mut Meter, now: u64| {
                let mut passed = 0;
                while meter.passes(now) {
                    meter.charge(now, 1500);
                    passed += 1;
                }
                passed
            };
            assert_eq!(burst(&mut meter, SECOND), wanted, "{kbps}");
            assert_eq!(burst(&mut meter, SECOND), 0, "{kbps}");
            let later = SECOND + 2000 * SECOND;
            assert_eq!(burst(&mut meter, later), wanted, "{kbps}");
        }
    }

    #[test]
    fn extreme_rates_and_packet_lengths_are_computed_correctly() {
        let mut slowest = meter(1);
        slowest.charge(0, u16::MAX);
        // This is the cost of 65535 bytes at 1 kbit/s.
        let wanted = 65_535 * 8_000_000 * UNITS_PER_NS;
        assert_eq!(slowest.due, wanted);
        slowest.due = u64::MAX;
        slowest.charge(u64::MAX, u16::MAX);
        assert_eq!(slowest.due, u64::MAX);
        // This is the highest rate that fits into the message: 2^40 - 1 kbit/s.
        let fastest = meter((1 << 40) - 1);
        assert!(fastest.cost > 0 && fastest.passes(0));
    }

    proptest! {
        /// In any period, and for any arrivals, the bytes that pass are at most those of the rate, the burst, and one
        /// packet.
        #[test]
        fn a_meter_passes_at_most_rate_burst_and_one_packet(
            kbps in prop_oneof![1u64..100_000, 1u64..1 << 40],
            arrivals in proptest::collection::vec((0u64..50_000_000, 0u16..=u16::MAX), 1..200),
        ) {
            let mut meter = meter(kbps);
            let mut now = 0;
            let mut passed = Vec::new();
            for (gap_ns, bytes) in arrivals {
                now += gap_ns * UNITS_PER_NS;
                if meter.passes(now) {
                    meter.charge(now, bytes);
                    passed.push((now, u64::from(bytes)));
                }
            }
            let bytes_in = |units: u64| kbps as f64 * 125.0 * units as f64 / SECOND as f64;
            let burst = (BURST_BYTES as f64).max(bytes_in(BURST_NS * UNITS_PER_NS));
            for begin in 0..passed.len() {
                let (from, _) = passed[begin];
                let mut sum = 0;
                for (at, bytes) in &passed[begin..] {
                    // The last packet, which may exceed the burst, does not count.
                    let most = bytes_in(at - from) + burst;
                    prop_assert!(sum as f64 <= most * (1.0 + 1e-9) + 1.0, "{sum} of {most}");
                    sum += bytes;
                }
            }
        }
    }
}
