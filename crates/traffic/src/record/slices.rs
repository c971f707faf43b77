//! Latencies in successive time slices of a trial.

use super::{Account, Record, WithLive, compiled_here};
use crate::slowest::Slowest;
use taut_measure::{Arrival, LatencyHistogram, SequenceTracker};
use taut_sys::Clock;

/// Latencies per time slice, the slowest packets, and the sequence statistics.
#[derive(Debug)]
pub struct Sliced {
    ns_per_tick: f64,
    slices_per_tick: f64,
    /// One histogram per time slice of the trial: latencies, ns, of the packets that arrived in the slice.
    pub slices: Vec<LatencyHistogram>,
    /// Latencies and arrival times of the slowest packets.
    pub slowest: Slowest,
    /// Loss, duplicates and reordering.
    pub sequence: SequenceTracker,
}

impl Sliced {
    /// Makes the record of a trial of `seconds` seconds and about `packets` packets, with at least one slice.
    pub fn new(clock: &Clock, seconds: f64, slices: usize, packets: f64) -> Self {
        Self {
            ns_per_tick: clock.to_ns(1),
            slices_per_tick: slices as f64 / clock.to_ticks(seconds * 1e9).max(1.0),
            slices: vec![LatencyHistogram::new(); slices],
            slowest: Slowest::of(packets as u64),
            sequence: SequenceTracker::new(),
        }
    }

    /// Returns one histogram with the latencies of all slices together.
    pub fn whole(&self) -> LatencyHistogram {
        let mut whole = LatencyHistogram::new();
        self.slices.iter().for_each(|slice| whole.merge(slice));
        whole
    }
}

impl Record for Sliced {
    compiled_here!(run, Self);

    #[inline(always)]
    fn sent(&mut self, _: u64, _: u64, _: u64) {}

    #[inline(always)]
    fn refused(&mut self, _: u64) {}

    #[inline(always)]
    fn received(&mut self, sequence: u64, latency_ticks: u64, seen_ticks: u64) {
        if self.sequence.record(sequence) == Arrival::Duplicate {
            return;
        }
        let slice = (seen_ticks as f64 * self.slices_per_tick) as usize;
        let last = self.slices.len() - 1;
        let latency_ns = (latency_ticks as f64 * self.ns_per_tick) as u64;
        self.slices[slice.min(last)].record(latency_ns);
        self.slowest.received(latency_ticks, seen_ticks);
    }

    fn received_unique(&self) -> Option<u64> {
        Some(self.sequence.received_unique())
    }
}

impl Account for Sliced {
    compiled_here!(run_watched, WithLive<'_, Self>);

    #[inline(always)]
    fn seen(&self) -> &SequenceTracker {
        &self.sequence
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn every_packet_counts_in_the_slice_of_its_arrival_time() {
        let clock = Clock::calibrate(Duration::from_millis(2));
        let mut sliced = Sliced::new(&clock, 1.0, 4, 5.0);
        let at = |seconds: f64| clock.to_ticks(seconds * 1e9) as u64;
        for (sequence, seconds) in [(0, 0.1), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1.7)] {
            sliced.received(sequence, at(1e-6), at(seconds));
        }
        let counts: Vec<u64> = sliced.slices.iter().map(LatencyHistogram::count).collect();
        assert_eq!(counts, [1, 1, 1, 2]);
        assert_eq!(sliced.whole().count(), 5);
        assert_eq!(sliced.slowest.packets().len(), 1);
    }
}
