//! Inter-packet gaps compared with the requested gap: the accuracy and the precision of a generator. The definitions
//! are those of the MoonGen evaluation (Gallenmüller 2021, section 3.3): accuracy is the mean gap, precision the mean
//! squared error against the requested gap.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::latency::LatencyHistogram;

/// A recorder of the gaps of one flow, one packet at a time.
#[derive(Debug, Clone)]
pub struct GapRecorder {
    asked_gap_ns: f64,
    /// Sum of the requested gaps, ns.
    asked_ns: f64,
    /// Sum of the squared differences between recorded and requested gaps, ns².
    squares_ns2: f64,
    gaps: LatencyHistogram,
    absolute_errors: LatencyHistogram,
}

/// The summary of recorded gaps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GapSummary {
    /// Number of gaps: packets minus one.
    pub count: u64,
    /// Requested gap, ns; the mean of the requested gaps if the pattern has several.
    pub asked_gap_ns: f64,
    /// Mean gap, ns. An accurate generator's mean gap equals the requested gap.
    pub mean_gap_ns: f64,
    /// Median absolute error against the requested gap, rounded to integer ns.
    pub median_absolute_error_ns: u64,
    /// Mean squared error against the requested gap, ns². It is small for a precise generator.
    pub mean_squared_error_ns2: f64,
}

impl GapRecorder {
    /// Creates a recorder for a requested gap of `asked_gap_ns` (1e9 / rate in packets per second).
    pub fn new(asked_gap_ns: f64) -> Self {
        GapRecorder {
            asked_gap_ns,
            asked_ns: 0.0,
            squares_ns2: 0.0,
            gaps: LatencyHistogram::new(),
            absolute_errors: LatencyHistogram::new(),
        }
    }

    /// Records the gaps between successive timestamps, ns. A timestamp before its predecessor is a gap of 0.
    pub fn from_timestamps(asked_gap_ns: f64, timestamps_ns: &[u64]) -> Self {
        let mut recorder = Self::new(asked_gap_ns);
        for pair in timestamps_ns.windows(2) {
            recorder.record(pair[1].saturating_sub(pair[0]));
        }
        recorder
    }

    /// Records the next gap. Never allocates.
    #[inline]
    pub fn record(&mut self, gap_ns: u64) {
        self.record_asked(gap_ns, self.asked_gap_ns);
    }

    /// Records the next gap with a requested gap of `asked_ns`, for patterns other than a constant rate.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "an error of 2^64 ns does not happen, and would saturate"
    )]
    pub fn record_asked(&mut self, gap_ns: u64, asked_ns: f64) {
        let error_ns = gap_ns as f64 - asked_ns;
        self.asked_ns += asked_ns;
        self.squares_ns2 += error_ns * error_ns;
        self.gaps.record(gap_ns);
        self.absolute_errors.record(error_ns.abs().round() as u64);
    }

    /// Adds the gaps of another recorder.
    pub fn merge(&mut self, other: &Self) {
        self.asked_ns += other.asked_ns;
        self.squares_ns2 += other.squares_ns2;
        self.gaps.merge(&other.gaps);
        self.absolute_errors.merge(&other.absolute_errors);
    }

    /// Clears all gaps without freeing the memory.
    pub fn clear(&mut self) {
        self.asked_ns = 0.0;
        self.squares_ns2 = 0.0;
        self.gaps.clear();
        self.absolute_errors.clear();
    }

    /// Returns the distribution of the gaps.
    pub fn histogram(&self) -> &LatencyHistogram {
        &self.gaps
    }

    /// Returns the summary of the recorded gaps; `None` before the first gap.
    pub fn summary(&self) -> Option<GapSummary> {
        let count = self.gaps.count();
        Some(GapSummary {
            count,
            asked_gap_ns: self.asked_ns / count as f64,
            mean_gap_ns: self.gaps.mean_ns()?,
            median_absolute_error_ns: self.absolute_errors.quantile(0.5)?,
            mean_squared_error_ns2: self.squares_ns2 / count as f64,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_perfect_generator_has_no_gap_error() {
        let stamps: Vec<u64> = (0..100).map(|packet| packet * 500).collect();
        let summary = GapRecorder::from_timestamps(500.0, &stamps)
            .summary()
            .unwrap();
        assert_eq!((summary.count, summary.mean_gap_ns), (99, 500.0));
        assert_eq!(summary.mean_squared_error_ns2, 0.0);
        assert_eq!(summary.median_absolute_error_ns, 0);
    }

    #[test]
    fn packet_pairs_have_an_accurate_mean_gap_but_low_precision() {
        // The packets are sent in back-to-back pairs: gaps of 100 ns and 900 ns alternate, so the mean gap is 500 ns.
        let stamps = [0, 100, 1000, 1100, 2000];
        let summary = GapRecorder::from_timestamps(500.0, &stamps)
            .summary()
            .unwrap();
        assert_eq!(summary.mean_gap_ns, 500.0);
        assert_eq!(summary.mean_squared_error_ns2, 160_000.0);
        assert_eq!(summary.median_absolute_error_ns, 400);
    }

    #[test]
    fn gap_errors_use_the_fractional_nanoseconds_of_the_configured_gap() {
        let summary = GapRecorder::from_timestamps(67.2, &[0, 67, 134])
            .summary()
            .unwrap();
        assert!((summary.mean_squared_error_ns2 - 0.04).abs() < 1e-9);
        assert_eq!(summary.median_absolute_error_ns, 0);
    }

    #[test]
    fn fewer_than_two_packets_have_no_gap() {
        assert_eq!(GapRecorder::from_timestamps(500.0, &[]).summary(), None);
        assert_eq!(GapRecorder::from_timestamps(500.0, &[7]).summary(), None);
    }

    #[test]
    fn a_clock_that_runs_backwards_yields_a_zero_gap() {
        let recorder = GapRecorder::from_timestamps(10.0, &[100, 90, 100]);
        assert_eq!(recorder.histogram().min_ns(), Some(0));
    }

    proptest! {
        #[test]
        fn mean_squared_error_agrees_with_its_definition(
            gaps in prop::collection::vec(0u64..1_000_000, 1..200), asked in 1.0..1_000_000.0f64,
        ) {
            let mut recorder = GapRecorder::new(asked);
            gaps.iter().for_each(|&gap| recorder.record(gap));
            let squares: f64 = gaps.iter().map(|&gap| (gap as f64 - asked).powi(2)).sum();
            let naive = squares / gaps.len() as f64;
            let found = recorder.summary().unwrap().mean_squared_error_ns2;
            prop_assert!((found - naive).abs() <= 1e-9 * naive.max(1.0), "{found} against {naive}");
        }
    }
}
