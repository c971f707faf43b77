//! The summary of a set of latencies: count, extremes, mean, deviation, percentiles.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::latency::LatencyHistogram;
use crate::moments::Moments;
use crate::rank::nearest_rank;

/// Number of samples that are required beyond a percentile.
const SAMPLES_BEYOND: f64 = 10.0;

/// The summary of latencies, in ns. A percentile for which there are too few samples is `None`.
///
/// The rule: a percentile `p` needs at least 10 / (1 - p) samples (p50 20, p90 100, p99 1,000, p99.999 1,000,000), so
/// that about 10 samples are beyond it. With fewer, a single outlier decides the value; with 10, the fraction beyond is
/// known to about a third (1/sqrt(10), Poisson). The maximum is always present: it is the largest observed latency, not
/// an estimate of future maxima.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Number of latency samples.
    pub count: u64,
    /// Smallest latency sample, ns.
    pub min_ns: u64,
    /// Arithmetic mean of the latencies, ns.
    pub avg_ns: f64,
    /// Median, by nearest rank like all percentiles of the summary; `None` with too few samples.
    pub p50_ns: Option<u64>,
    /// 90th percentile; `None` with too few samples, and in files of versions before 0.3.
    #[serde(default)]
    pub p90_ns: Option<u64>,
    /// 95th percentile; `None` with too few samples, and in files of versions before 0.3.
    #[serde(default)]
    pub p95_ns: Option<u64>,
    /// 99th percentile; `None` with too few samples.
    pub p99_ns: Option<u64>,
    /// 99.9th percentile; `None` with too few samples.
    pub p99_9_ns: Option<u64>,
    /// 99.99th percentile; `None` with too few samples.
    pub p99_99_ns: Option<u64>,
    /// 99.999th percentile; `None` with too few samples.
    pub p99_999_ns: Option<u64>,
    /// Largest latency sample, ns.
    pub max_ns: u64,
    /// Standard deviation of the samples (population: divided by the count).
    pub std_ns: f64,
}

impl Summary {
    /// Computes the exact summary of samples; `None` without samples. Works on a copy, in O(n).
    ///
    /// ```
    /// let latencies_ns: Vec<u32> = (1..=1000).collect();
    /// let summary = taut_measure::Summary::from_samples(&latencies_ns).unwrap();
    /// assert_eq!((summary.p50_ns, summary.p99_ns), (Some(500), Some(990)));
    /// assert_eq!(summary.p99_9_ns, None); // 1,000 samples do not carry p99.9
    /// ```
    pub fn from_samples<T: Copy + Ord + Into<u64>>(samples_ns: &[T]) -> Option<Summary> {
        let mut moments = Moments::EMPTY;
        samples_ns
            .iter()
            .for_each(|&value| moments.record(value.into()));
        let mut scratch = samples_ns.to_vec();
        // Percentiles are computed in rising order, so the values below the last computed percentile are already in
        // front of it.
        let mut settled = 0;
        Summary::build(&moments, |rank| {
            let rank = usize::try_from(rank).ok()?;
            let (_, &mut value, _) = scratch
                .get_mut(settled..)?
                .select_nth_unstable(rank.checked_sub(settled)?);
            settled = rank;
            Some(value.into())
        })
    }

    /// Returns the summary of a histogram; `None` if it is empty. Percentiles are as precise as its buckets.
    pub fn from_histogram(latency: &LatencyHistogram) -> Option<Summary> {
        Summary::build(latency.moments(), |rank| latency.value_at_rank(rank))
    }

    fn build(moments: &Moments, mut at_rank: impl FnMut(u64) -> Option<u64>) -> Option<Summary> {
        let mut percentile = |p: f64| {
            if !carries(moments.count, p) {
                return None;
            }
            at_rank(nearest_rank(moments.count, p)?)
        };
        Some(Summary {
            count: moments.count,
            min_ns: moments.min,
            avg_ns: moments.mean()?,
            p50_ns: percentile(0.5),
            p90_ns: percentile(0.9),
            p95_ns: percentile(0.95),
            p99_ns: percentile(0.99),
            p99_9_ns: percentile(0.999),
            p99_99_ns: percentile(0.9999),
            p99_999_ns: percentile(0.99999),
            max_ns: moments.max,
            std_ns: moments.standard_deviation()?,
        })
    }
}

/// Returns true if `count` samples are enough for percentile `p` by the rule at [`Summary`].
fn carries(count: u64, p: f64) -> bool {
    // Rounding corrects 10 / (1 - 0.999) = 10000.000000000009.
    count as f64 >= (SAMPLES_BEYOND / (1.0 - p)).round()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_samples_and_histograms_have_no_summary() {
        assert_eq!(Summary::from_samples::<u64>(&[]), None);
        assert_eq!(Summary::from_histogram(&LatencyHistogram::new()), None);
    }

    #[test]
    fn percentiles_are_reported_only_with_enough_samples() {
        for (count, present) in [
            (19, 0),
            (20, 1),
            (99, 1),
            (100, 2),
            (199, 2),
            (200, 3),
            (999, 3),
            (1_000, 4),
            (9_999, 4),
            (10_000, 5),
            (99_999, 5),
            (100_000, 6),
            (999_999, 6),
            (1_000_000, 7),
        ] {
            let samples: Vec<u32> = (0..count).collect();
            let summary = Summary::from_samples(&samples).unwrap();
            let shown = [
                summary.p50_ns,
                summary.p90_ns,
                summary.p95_ns,
                summary.p99_ns,
                summary.p99_9_ns,
                summary.p99_99_ns,
                summary.p99_999_ns,
            ];
            assert_eq!(shown.iter().flatten().count(), present, "{count} samples");
            assert!(shown[..present].iter().all(Option::is_some));
        }
    }

    #[test]
    fn the_summary_of_one_sample_has_no_percentiles() {
        let summary = Summary::from_samples(&[7u64]).unwrap();
        assert_eq!((summary.min_ns, summary.max_ns), (7, 7));
        assert_eq!((summary.avg_ns, summary.std_ns), (7.0, 0.0));
        assert_eq!(summary.p50_ns, None);
    }

    #[test]
    fn percentiles_of_a_million_shuffled_values_are_exact() {
        let mut samples: Vec<u64> = (1..=1_000_000).collect();
        fastrand::Rng::with_seed(1).shuffle(&mut samples);
        let summary = Summary::from_samples(&samples).unwrap();
        assert_eq!(summary.p50_ns, Some(500_000));
        assert_eq!(summary.p90_ns, Some(900_000));
        assert_eq!(summary.p95_ns, Some(950_000));
        assert_eq!(summary.p99_ns, Some(990_000));
        assert_eq!(summary.p99_9_ns, Some(999_000));
        assert_eq!(summary.p99_99_ns, Some(999_900));
        assert_eq!(summary.p99_999_ns, Some(999_990));
        assert_eq!(summary.avg_ns, 500_000.5);
    }

    #[test]
    fn a_summary_is_unchanged_after_conversion_to_json_and_back() {
        let summary = Summary::from_samples(&[1u64, 2, 4]).unwrap();
        let json = serde_json::to_string(&summary).unwrap();
        assert!(json.contains("\"p99_ns\":null"));
        assert_eq!(serde_json::from_str::<Summary>(&json).unwrap(), summary);
        // Files of earlier versions lack two percentiles.
        let old = json.replace("\"p90_ns\":null,\"p95_ns\":null,", "");
        assert!(!old.contains("p90_ns"), "{old}");
        assert_eq!(serde_json::from_str::<Summary>(&old).unwrap(), summary);
    }

    proptest! {
        #[test]
        fn summaries_from_histogram_and_samples_agree_within_one_bucket(
            samples in prop::collection::vec(0u64..100_000_000, 1..2_000),
        ) {
            let mut latency = LatencyHistogram::new();
            samples.iter().for_each(|&value| latency.record(value));
            let exact = Summary::from_samples(&samples).unwrap();
            let bucketed = Summary::from_histogram(&latency).unwrap();
            prop_assert_eq!(
                (exact.count, exact.min_ns, exact.max_ns, exact.avg_ns, exact.std_ns),
                (bucketed.count, bucketed.min_ns, bucketed.max_ns, bucketed.avg_ns, bucketed.std_ns)
            );
            for (a, b) in [(exact.p50_ns, bucketed.p50_ns), (exact.p99_ns, bucketed.p99_ns)] {
                prop_assert_eq!(a.is_some(), b.is_some());
                if let (Some(a), Some(b)) = (a, b) {
                    prop_assert!(a.abs_diff(b) as f64 <= a as f64 / 256.0);
                }
            }
        }
    }
}
