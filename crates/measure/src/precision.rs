//! The precision of a generator at a constant rate, computed from the gaps between its packets, which an independent
//! observer measured. The result contains squared and absolute errors against the requested gap, pauses, bunches and a
//! histogram. The definitions follow Gallenmüller 2021, section 3.3.

use serde::{Deserialize, Serialize};

/// Length by which a gap must exceed the requested gap to count as a pause of the sender, ns.
pub const PAUSE_NS: f64 = 100_000.0;

/// Number of histogram bins per requested gap.
pub const BINS_PER_GAP: usize = 50;
/// Length of the histogram in requested gaps; longer gaps count in the last bin.
const COVERED_GAPS: usize = 3;

/// Fraction of gaps, those with the greatest errors, that the trimmed mean squared error excludes.
pub const TRIMMED_SHARE: f64 = 0.001;

/// The precision of a series of gaps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Precision {
    /// Number of gaps between successive packets.
    pub count: u64,
    /// Requested gap between packets, ns.
    pub asked_ns: f64,
    /// Mean gap between packets, ns.
    pub mean_ns: f64,
    /// Mean squared error against the requested gap, ns².
    pub mean_squared_error_ns2: f64,
    /// Mean squared error without the fraction [`TRIMMED_SHARE`] of the gaps with the greatest errors, ns².
    pub trimmed_squared_error_ns2: f64,
    /// Median absolute error against the requested gap, ns.
    pub median_absolute_error_ns: f64,
    /// 99th percentile of the gaps' absolute error against the requested gap, ns.
    pub p99_absolute_error_ns: f64,
    /// Greatest absolute error of a gap against the requested gap, ns.
    pub max_absolute_error_ns: f64,
    /// Number of gaps more than [`PAUSE_NS`] longer than requested.
    pub pauses: u64,
    /// Fraction of the gaps that are shorter than half the requested gap: packets sent in bunches.
    pub bunched_share: f64,
    /// Number of gaps in each bin; a bin is a fiftieth of the requested gap wide. The last bin counts all gaps of at
    /// least three requested gaps.
    pub bins: Vec<u64>,
}

impl Precision {
    /// Computes the precision from `gaps_ns`, and sorts `gaps_ns` by their error; returns `None` without gaps.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "bins and ranks are not negative; a gap too long for a bin saturates, and is bounded below"
    )]
    pub fn of(gaps_ns: &mut [f64], asked_ns: f64) -> Option<Self> {
        if gaps_ns.is_empty() || asked_ns.is_nan() || asked_ns <= 0.0 {
            return None;
        }
        let count = gaps_ns.len() as f64;
        let mut bins = vec![0; BINS_PER_GAP * COVERED_GAPS + 1];
        let (mut pauses, mut bunched) = (0, 0_u64);
        for gap in gaps_ns.iter() {
            let bin = (gap / asked_ns * BINS_PER_GAP as f64) as usize;
            bins[bin.min(BINS_PER_GAP * COVERED_GAPS)] += 1;
            pauses += u64::from(*gap > asked_ns + PAUSE_NS);
            bunched += u64::from(*gap < asked_ns / 2.0);
        }
        let mean_ns = gaps_ns.iter().sum::<f64>() / count;
        gaps_ns.sort_unstable_by(|a, b| (a - asked_ns).abs().total_cmp(&(b - asked_ns).abs()));
        let error = |rank: f64| {
            let index = ((rank * count).ceil() as usize).clamp(1, gaps_ns.len()) - 1;
            (gaps_ns[index] - asked_ns).abs()
        };
        let mean_square = |gaps: &[f64]| {
            let sum: f64 = gaps.iter().map(|gap| (gap - asked_ns).powi(2)).sum();
            sum / gaps.len() as f64
        };
        let kept = ((count * (1.0 - TRIMMED_SHARE)).ceil() as usize).max(1);
        Some(Self {
            count: gaps_ns.len() as u64,
            asked_ns,
            mean_ns,
            mean_squared_error_ns2: mean_square(gaps_ns),
            trimmed_squared_error_ns2: mean_square(&gaps_ns[..kept]),
            median_absolute_error_ns: error(0.5),
            p99_absolute_error_ns: error(0.99),
            max_absolute_error_ns: error(1.0),
            pauses,
            bunched_share: bunched as f64 / count,
            bins,
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn perfect_gaps_have_no_error_and_one_bin() {
        let found = Precision::of(&mut [1_000.0; 20], 1_000.0).unwrap();
        assert_eq!((found.count, found.mean_ns), (20, 1_000.0));
        assert_eq!(found.mean_squared_error_ns2, 0.0);
        assert_eq!(found.max_absolute_error_ns, 0.0);
        assert_eq!((found.pauses, found.bunched_share), (0, 0.0));
        assert_eq!(found.bins[BINS_PER_GAP], 20);
        assert_eq!(found.bins.iter().sum::<u64>(), 20);
    }

    #[test]
    fn packet_pairs_have_accurate_mean_gaps_and_count_as_bunched() {
        let mut gaps = [100.0, 1_900.0].repeat(50);
        let found = Precision::of(&mut gaps, 1_000.0).unwrap();
        assert_eq!(found.mean_ns, 1_000.0);
        assert_eq!(found.mean_squared_error_ns2, 810_000.0);
        assert_eq!(found.median_absolute_error_ns, 900.0);
        assert_eq!(found.bunched_share, 0.5);
        assert_eq!((found.bins[5], found.bins[95]), (50, 50));
    }

    #[test]
    fn an_outlier_dominates_the_plain_but_not_the_trimmed_error() {
        let mut gaps = vec![1_010.0; 1_999];
        gaps.push(1_001_000.0);
        let found = Precision::of(&mut gaps, 1_000.0).unwrap();
        assert_eq!(found.pauses, 1);
        assert_eq!(found.bins[BINS_PER_GAP * COVERED_GAPS], 1);
        let expected = (1_999.0 * 100.0 + 1e12) / 2_000.0;
        assert!((found.mean_squared_error_ns2 - expected).abs() < 1e-3);
        assert_eq!(found.trimmed_squared_error_ns2, 100.0);
        assert_eq!(found.median_absolute_error_ns, 10.0);
        assert_eq!(found.p99_absolute_error_ns, 10.0);
        assert_eq!(found.max_absolute_error_ns, 1_000_000.0);
    }

    #[test]
    fn missing_gaps_and_invalid_configured_gaps_yield_no_precision() {
        assert_eq!(Precision::of(&mut [], 1_000.0), None);
        assert_eq!(Precision::of(&mut [1.0], 0.0), None);
        assert_eq!(Precision::of(&mut [1.0], f64::NAN), None);
    }
}
