//! Jitter: the difference between the latencies of successive packets. RFC 4689 section 3.2.5: the absolute difference
//! of the forwarding delays of consecutive packets.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::latency::LatencyHistogram;

/// A recorder of the jitter of one flow, one packet at a time.
///
/// A pair consists of two packets with successive sequence numbers. A pair with a lost packet is skipped, so that a
/// loss does not appear as jitter; RFC 4689 pairs consecutively received packets, across losses. A packet that arrives
/// after a higher sequence number is skipped; [`JitterRecorder::from_samples`] sorts all packets first, so it pairs
/// such packets too.
#[derive(Debug, Clone, Default)]
pub struct JitterRecorder {
    previous: Option<(u64, u64)>,
    jitter: LatencyHistogram,
}

/// The summary of jitter, in ns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct JitterSummary {
    /// Number of pairs of packets with successive sequence numbers.
    pub count: u64,
    /// Mean absolute difference between the latencies of successive packets, ns.
    pub avg_ns: f64,
    /// Largest absolute difference between the latencies of successive packets, ns.
    pub max_ns: u64,
    /// Standard deviation of the absolute differences between the latencies of successive packets, ns (population).
    pub std_ns: f64,
}

impl JitterRecorder {
    /// Creates a recorder without packets.
    pub fn new() -> Self {
        Self::default()
    }

    /// Records the next received packet: its sequence number and latency. Never allocates.
    #[inline]
    pub fn record(&mut self, sequence: u64, latency_ns: u64) {
        if let Some((previous, previous_ns)) = self.previous {
            if sequence <= previous {
                return;
            }
            if sequence - previous == 1 {
                self.jitter.record(latency_ns.abs_diff(previous_ns));
            }
        }
        self.previous = Some((sequence, latency_ns));
    }

    /// Records `(sequence, latency_ns)` pairs in any order of arrival. Only the first of several packets with the same
    /// sequence number counts. Sorts a copy.
    pub fn from_samples(samples: impl IntoIterator<Item = (u64, u64)>) -> Self {
        let mut in_sequence: Vec<(u64, u64)> = samples.into_iter().collect();
        // The sort is stable: the first arrival of a duplicate stays first, and `record` ignores the rest.
        in_sequence.sort_by_key(|&(sequence, _)| sequence);
        let mut recorder = Self::new();
        for (sequence, latency_ns) in in_sequence {
            recorder.record(sequence, latency_ns);
        }
        recorder
    }

    /// Adds the pairs of another flow; no pair consists of packets of both flows.
    pub fn merge(&mut self, other: &JitterRecorder) {
        self.jitter.merge(&other.jitter);
    }

    /// Returns the distribution of the absolute differences.
    pub fn histogram(&self) -> &LatencyHistogram {
        &self.jitter
    }

    /// Returns the summary of the recorded jitter; `None` before the first pair.
    pub fn summary(&self) -> Option<JitterSummary> {
        Some(JitterSummary {
            count: self.jitter.count(),
            avg_ns: self.jitter.mean_ns()?,
            max_ns: self.jitter.max_ns()?,
            std_ns: self.jitter.std_ns()?,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn streamed(samples: &[(u64, u64)]) -> JitterRecorder {
        let mut recorder = JitterRecorder::new();
        for &(sequence, latency_ns) in samples {
            recorder.record(sequence, latency_ns);
        }
        recorder
    }

    #[test]
    fn constant_latency_has_no_jitter() {
        let summary = streamed(&[(0, 500), (1, 500), (2, 500)]).summary().unwrap();
        assert_eq!((summary.count, summary.max_ns), (2, 0));
        assert_eq!((summary.avg_ns, summary.std_ns), (0.0, 0.0));
    }

    #[test]
    fn latency_increases_and_decreases_both_count_as_jitter() {
        let summary = streamed(&[(7, 100), (8, 130), (9, 120)]).summary().unwrap();
        assert_eq!((summary.count, summary.max_ns), (2, 30));
        assert_eq!((summary.avg_ns, summary.std_ns), (20.0, 10.0));
    }

    #[test]
    fn a_single_packet_has_no_jitter() {
        assert_eq!(streamed(&[(0, 10)]).summary(), None);
        assert_eq!(JitterRecorder::new().summary(), None);
    }

    #[test]
    fn packet_pairs_with_a_lost_packet_are_skipped() {
        let summary = streamed(&[(0, 10), (1, 20), (3, 900), (4, 905)])
            .summary()
            .unwrap();
        assert_eq!((summary.count, summary.max_ns), (2, 10));
    }

    #[test]
    fn streamed_jitter_skips_reordered_packets_and_slice_jitter_pairs_packets() {
        let arrivals = [(0, 10), (2, 30), (1, 90), (3, 31)];
        assert_eq!(streamed(&arrivals).summary().unwrap().count, 1);
        let all = JitterRecorder::from_samples(arrivals).summary().unwrap();
        assert_eq!((all.count, all.max_ns), (3, 80));
    }

    #[test]
    fn jitter_uses_the_first_arrival_of_a_duplicated_packet() {
        let all = JitterRecorder::from_samples([(0, 10), (1, 15), (1, 900), (2, 15)]);
        assert_eq!(all.summary().unwrap().max_ns, 5);
    }

    #[test]
    fn extreme_sequence_numbers_and_latencies_neither_panic_nor_overflow() {
        let summary = streamed(&[(u64::MAX - 1, u64::MAX), (u64::MAX, 0), (0, 5)]).summary();
        assert_eq!(summary.unwrap().max_ns, u64::MAX);
    }

    #[test]
    fn packets_of_merged_flows_are_not_paired_across_flows() {
        let mut one = streamed(&[(0, 10), (1, 20)]);
        one.merge(&streamed(&[(2, 500), (3, 505)]));
        let summary = one.summary().unwrap();
        assert_eq!((summary.count, summary.max_ns), (2, 10));
    }

    proptest! {
        #[test]
        fn stream_and_slice_jitter_agree_when_packets_arrive_in_order(
            kept in prop::collection::vec((any::<bool>(), 0u64..1_000_000), 0..200),
        ) {
            let samples: Vec<(u64, u64)> = kept.iter().enumerate()
                .filter(|(_, (kept, _))| *kept)
                .map(|(sequence, (_, latency_ns))| (sequence as u64, *latency_ns))
                .collect();
            let naive: Vec<u64> = samples.windows(2)
                .filter(|pair| pair[1].0 == pair[0].0 + 1)
                .map(|pair| pair[1].1.abs_diff(pair[0].1))
                .collect();
            let from_stream = streamed(&samples);
            prop_assert_eq!(from_stream.histogram().count(), naive.len() as u64);
            prop_assert_eq!(from_stream.histogram().max_ns(), naive.iter().max().copied());
            let from_slice = JitterRecorder::from_samples(samples);
            prop_assert_eq!(from_stream.histogram(), from_slice.histogram());
        }
    }
}
