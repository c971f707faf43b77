//! Delays: the time from a packet's timestamp until it is processed, counted by one thread and readable by any.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};

/// Binary logarithm of the number of slots for each octave of delays: the error of a counted delay is at most 1.6 %.
const PARTS_SHIFT: u32 = 5;
const PARTS: u64 = 1 << PARTS_SHIFT;
/// Number of bits of the longest delay that has a slot: 18 minutes. Longer delays share the last slot.
const BITS: u32 = 40;
const PLACES: usize = ((BITS - PARTS_SHIFT + 1) as usize) << PARTS_SHIFT;

/// The counts of delays by the length of the delay.
#[derive(Debug)]
pub(crate) struct Delays {
    counts: Box<[AtomicU64]>,
    most_ns: AtomicU64,
}

/// The percentiles of delays in nanoseconds, measured on one packet in 31.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LookedAfter {
    /// Number of packets whose delay was measured.
    pub packets: u64,
    /// Median delay.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest delay.
    pub most_ns: u64,
}

impl Default for Delays {
    fn default() -> Self {
        Self {
            counts: (0..PLACES).map(|_| AtomicU64::new(0)).collect(),
            most_ns: AtomicU64::new(0),
        }
    }
}

/// Returns the slot of a delay. Each short delay has a slot of its own; longer delays share a slot with delays of
/// nearly the same length.
#[inline]
fn place(ns: u64) -> usize {
    let ns = ns.min((1 << BITS) - 1);
    let doublings = (ns >> PARTS_SHIFT).checked_ilog2().map_or(0, |it| it + 1);
    match doublings {
        0 => ns as usize,
        it => ((u64::from(it) << PARTS_SHIFT) + (ns >> (it - 1)) - PARTS) as usize,
    }
}

/// Returns the delay in the middle of the range of a slot, ns.
fn middle(place: usize) -> u64 {
    let place = place as u64;
    match place >> PARTS_SHIFT {
        0 => place,
        it => ((((place & (PARTS - 1)) + PARTS) << 1 | 1) << (it - 1)) >> 1,
    }
}

impl Delays {
    /// Counts a delay; called by one thread only.
    #[inline]
    pub(crate) fn count(&self, ns: u64) {
        // Relaxed: each count is independent, and only this thread adds.
        let count = &self.counts[place(ns)];
        count.store(count.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        if ns > self.most_ns.load(Ordering::Relaxed) {
            self.most_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Returns the percentiles of the counted delays; none if nothing was counted.
    pub(crate) fn read(&self) -> Option<LookedAfter> {
        let load = |it: &AtomicU64| it.load(Ordering::Relaxed);
        let counts: Vec<_> = self.counts.iter().map(load).collect();
        let packets: u64 = counts.iter().sum();
        let most_ns = load(&self.most_ns);
        let at = |share: f64| {
            let rank = (packets as f64 * share).ceil() as u64;
            let mut below = 0;
            let found = counts.iter().position(|count| {
                below += count;
                below >= rank.max(1)
            });
            found.map_or(0, middle).min(most_ns)
        };
        (packets > 0).then(|| LookedAfter {
            packets,
            p50_ns: at(0.5),
            p99_ns: at(0.99),
            p999_ns: at(0.999),
            most_ns,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn delay_percentiles_are_accurate_to_two_percent(mut delays in proptest::collection::vec(0..1_u64 << 39, 1..500)) {
            let counted = Delays::default();
            delays.iter().for_each(|it| counted.count(*it));
            delays.sort_unstable();
            let read = counted.read().unwrap();
            prop_assert_eq!((read.packets, read.most_ns), (delays.len() as u64, *delays.last().unwrap()));
            for (share, found) in [(0.5, read.p50_ns), (0.99, read.p99_ns), (0.999, read.p999_ns)] {
                let rank = (delays.len() as f64 * share).ceil() as usize;
                let want = delays[rank.max(1) - 1] as f64;
                prop_assert!((found as f64 - want).abs() <= want * 0.016 + 1.0, "{found} {want}");
            }
        }

        #[test]
        fn histogram_buckets_are_in_the_order_of_their_delays(a in 0..u64::MAX, b in 0..u64::MAX) {
            prop_assert!(place(a) < PLACES && (a > b || place(a) <= place(b)));
        }
    }

    #[test]
    fn an_empty_delay_histogram_has_no_summary() {
        assert_eq!(Delays::default().read(), None);
        let edges: Vec<_> = (0..200).map(place).collect();
        assert!(edges.windows(2).all(|it| it[1] - it[0] <= 1));
    }
}
