//! Confidence intervals: the range that contains the true median with a stated probability.
//!
//! An interval is for the median of independent repetitions, and its bounds are two of their values. Therefore its
//! confidence follows from the binomial distribution alone, for any distribution of the values (David and Nagaraja,
//! Order Statistics, section 7.1). A mean has no such interval: none holds for all distributions (Bahadur and Savage
//! 1956). With `n` values the confidence is at most 1 - 2^(1-n): 75 % for three, 94 % for five. If the requested 95 %
//! is impossible, the interval is the range of the values, and `confidence` is the probability that this range contains
//! the median.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::rank::{median, nearest_rank};

/// Minimum number of pairs of repetitions for a statement about a ratio. Two pairs are equal by chance too often.
pub const LEAST_PAIRS: u64 = 3;

/// The method by which an interval is computed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum IntervalMethod {
    /// The bounds are two of the sorted values; the method suits the median of independent values.
    #[default]
    OrderStatistics,
    /// The bounds are the smallest and the largest value, because there are too few values for the requested
    /// confidence.
    Range,
    /// The bounds are two of the sorted differences or ratios between the values of two groups.
    RankSum,
    /// The bounds are those of Student's t distribution for the logarithms of few values.
    Student,
    /// The bounds are the values that a sequential test does not exclude; the interval is valid after every pair, not
    /// only after the last.
    AlwaysValid,
}

/// An estimate and its interval, in the unit of the values.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower end of the interval, in the unit of the values.
    pub low: f64,
    /// Estimate of the true value, in the unit of the values.
    pub point: f64,
    /// Upper end of the interval, in the unit of the values.
    pub high: f64,
    /// Probability that an interval by this method, from this number of values, covers the true value, 0..1. It may
    /// differ from the requested confidence.
    pub confidence: f64,
    /// Number of values from which the interval was computed; for two groups, the number of values of the smaller
    /// group.
    #[serde(default)]
    pub count: u64,
    /// Method by which the interval was computed.
    #[serde(default)]
    pub method: IntervalMethod,
}

impl Interval {
    /// Returns true if the interval of a ratio supports a statement: that the ratio is not 1, or that it is about 1.
    /// The latter needs bounds within a quarter of each other. Fewer than [`LEAST_PAIRS`] values support no statement.
    pub fn says_something(&self) -> bool {
        let is_apart = self.low > 1.0 || self.high < 1.0;
        let is_narrow = self.high <= 1.25 * self.low;
        self.count >= LEAST_PAIRS && (is_apart || is_narrow)
    }

    /// Returns the confidence of the interval as text: `96 %`, `range of 3` if there are too few values for the
    /// requested confidence, or `one value`.
    pub fn claim(&self) -> String {
        match (self.method, self.count) {
            (IntervalMethod::Range, 1) => "one value".to_owned(),
            (IntervalMethod::Range, count) => format!("range of {count}"),
            _ => format!("{} %", self.percent()),
        }
    }

    /// Returns the bounds, each formatted by `show`: `1.39 to 13.3`.
    pub fn ends(&self, show: impl Fn(f64) -> String) -> String {
        format!("{} to {}", show(self.low), show(self.high))
    }

    /// Returns confidence and bounds: `96 % 1.39 to 13.3`, `range of 3: 1.39 to 13.3`, `one value`.
    pub fn short(&self, show: impl Fn(f64) -> String) -> String {
        match (self.method, self.count) {
            (IntervalMethod::Range, 1) => self.claim(),
            (IntervalMethod::Range, _) => format!("{}: {}", self.claim(), self.ends(show)),
            _ => format!("{} {}", self.claim(), self.ends(show)),
        }
    }

    /// Returns the interval in words, with the number of values if the confidence text does not contain it: `96 % 1.39
    /// to 13.3, n = 6`.
    pub fn words(&self, show: impl Fn(f64) -> String) -> String {
        match self.method {
            IntervalMethod::Range => self.short(show),
            _ => format!("{}, n = {}", self.short(show), self.count),
        }
    }

    /// Returns the confidence in integer percent, rounded down, so that it is never overstated.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a confidence lies between 0 and 1; it is rounded down on purpose"
    )]
    fn percent(&self) -> u32 {
        (self.confidence * 100.0 + 1e-9) as u32
    }
}

/// The ratio of two quantities measured in interleaved pairs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PairedRatio {
    /// Median of the pairs' ratios, with its interval.
    pub median: Interval,
    /// Smallest ratio among the pairs.
    pub min: f64,
    /// Largest ratio among the pairs.
    pub max: f64,
    /// Number of pairs that were measured.
    pub pairs: u64,
}

/// Two positions among sorted values that enclose a quantile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranks {
    /// 0-based position of the lower end among the sorted values.
    pub low: u64,
    /// 0-based position of the upper end among the sorted values.
    pub high: u64,
    /// Probability that the two positions enclose the quantile, 0..1: at least the requested confidence.
    pub coverage: f64,
}

/// Returns the positions in `count` sorted values that enclose quantile `q` with at least `confidence`, for any
/// distribution (binomial order statistics: David and Nagaraja, Order Statistics, section 7.1).
///
/// The values must be independent. Returns `None` if there are too few values for quantile `q`: 1,000 values are too
/// few for p99.99. The run time is O(sqrt(count)).
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rank is at most the count, and rounded down on purpose"
)]
pub fn quantile_interval_ranks(count: u64, q: f64, confidence: f64) -> Option<Ranks> {
    if count < 2 || !inside_unit(q) || !inside_unit(confidence) {
        return None;
    }
    let tail = (1.0 - confidence) / 2.0;
    // Binomial weights are computed relative to that of the mode. Their recurrence is exact, unlike the incomplete beta
    // function for large arguments.
    let odds = q / (1.0 - q);
    let step_up = |k: u64| (count - k) as f64 / (k + 1) as f64 * odds;
    const NEGLIGIBLE: f64 = 1e-30;
    let mode = ((count as f64 * q) as u64).min(count);
    let (mut lowest, mut lowest_weight, mut total) = (mode, 1.0, 1.0);
    while lowest > 0 && lowest_weight > NEGLIGIBLE {
        lowest -= 1;
        lowest_weight /= step_up(lowest);
        total += lowest_weight;
    }
    let (mut highest, mut highest_weight) = (mode, 1.0);
    while highest < count && highest_weight > NEGLIGIBLE {
        highest_weight *= step_up(highest);
        highest += 1;
        total += highest_weight;
    }
    // Value number `low` (counted from 1) is above the quantile if fewer than `low` values are below the quantile.
    let (mut low, mut weight) = (lowest, lowest_weight);
    let mut below = weight;
    while below <= tail * total && low < count {
        weight *= step_up(low);
        low += 1;
        below += weight;
    }
    let missed_below = below - weight;
    // Value number `high` is below the quantile if at least `high` values are below the quantile.
    let (mut high, mut weight) = (highest + 1, highest_weight);
    let mut above = weight;
    while above <= tail * total && high > 1 {
        high -= 1;
        weight /= step_up(high - 1);
        above += weight;
    }
    let missed_above = above - weight;
    (low >= 1 && high <= count && low <= high).then(|| Ranks {
        low: low - 1,
        high: high - 1,
        coverage: 1.0 - (missed_below + missed_above) / total,
    })
}

/// Returns the distribution-free interval for quantile `q` of independent values, sorted ascending. Returns `None` with
/// too few values for `q`, and with NaN or infinite values.
///
/// The point is the nearest-rank quantile. For a histogram, pass the positions from [`quantile_interval_ranks`] to
/// [`crate::LatencyHistogram::value_at_rank`].
pub fn quantile_interval(sorted: &[f64], q: f64, confidence: f64) -> Option<Interval> {
    if !all_finite(sorted) {
        return None;
    }
    let count = sorted.len() as u64;
    let ranks = quantile_interval_ranks(count, q, confidence)?;
    let at = |rank: u64| sorted.get(usize::try_from(rank).ok()?).copied();
    Some(Interval {
        low: at(ranks.low)?,
        point: at(nearest_rank(count, q)?)?,
        high: at(ranks.high)?,
        confidence: ranks.coverage,
        count,
        method: IntervalMethod::OrderStatistics,
    })
}

/// Returns the distribution-free interval for the median of independent values in any order.
///
/// If there are too few values for `confidence` (95 % needs six), the interval is the range of the values. Returns
/// `None` without values, with NaN or infinite values, and unless `confidence` is within (0, 1).
///
/// ```
/// let three = taut_measure::median_interval(&[3.0, 1.0, 2.0], 0.95).unwrap();
/// assert_eq!((three.low, three.point, three.high, three.confidence), (1.0, 2.0, 3.0, 0.75));
/// assert_eq!(three.words(|value| value.to_string()), "range of 3: 1 to 3");
/// ```
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    if !all_finite(values) || !inside_unit(confidence) {
        return None;
    }
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let point = median(&sorted)?;
    let found = quantile_interval(&sorted, 0.5, confidence).unwrap_or(Interval {
        low: *sorted.first()?,
        point,
        high: *sorted.last()?,
        confidence: range_coverage(values.len()),
        count: values.len() as u64,
        method: IntervalMethod::Range,
    });
    Some(Interval { point, ..found })
}

/// Returns an interval with the mean of the values as its point and the bounds of [`median_interval`], because no
/// interval of a mean holds for all distributions. A mean outside of the bounds indicates a long tail. Returns `None`
/// in the same cases as [`median_interval`].
pub fn mean_beside_median(values: &[f64], confidence: f64) -> Option<Interval> {
    let interval = median_interval(values, confidence)?;
    Some(Interval {
        point: values.iter().sum::<f64>() / values.len() as f64,
        ..interval
    })
}

/// Returns the ratio `a / b` of two quantities measured in interleaved repetitions: pair `i` is `a[i]` and `b[i]`, so
/// that a temporary disturbance of the machine affects both.
///
/// The interval is that of [`median_interval`] over the pairs' ratios. Returns `None` also for lists of unequal length
/// and for values that are not above zero.
pub fn ratio_interval(a: &[f64], b: &[f64], confidence: f64) -> Option<PairedRatio> {
    let positive = |values: &[f64]| values.iter().all(|&value| value > 0.0);
    if a.len() != b.len() || !positive(a) || !positive(b) {
        return None;
    }
    let ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    Some(PairedRatio {
        median: median_interval(&ratios, confidence)?,
        min: ratios.iter().copied().reduce(f64::min)?,
        max: ratios.iter().copied().reduce(f64::max)?,
        pairs: ratios.len() as u64,
    })
}

/// Returns the probability that the range of `count` values contains the median of their distribution.
fn range_coverage(count: usize) -> f64 {
    1.0 - (1.0 - count as f64).exp2()
}

pub(crate) fn inside_unit(share: f64) -> bool {
    share > 0.0 && share < 1.0
}

pub(crate) fn all_finite(values: &[f64]) -> bool {
    values.iter().all(|value| value.is_finite())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SKEWED: [f64; 12] = [1.2, 0.4, 3.3, 0.9, 2.1, 7.5, 0.2, 1.8, 4.4, 0.7, 1.1, 2.6];

    #[test]
    fn quantile_interval_ranks_agree_with_scipy() {
        // The expected ranks are from scipy.stats.binom, searched with the same tail rule (SciPy 1.17.1).
        for (count, q, confidence, ranks) in [
            (20, 0.5, 0.95, (5, 14)),
            (100, 0.5, 0.95, (39, 60)),
            (1_000, 0.99, 0.95, (982, 996)),
            (100_000, 0.999, 0.99, (99_872, 99_925)),
            (1_000_000, 0.5, 0.95, (499_019, 500_980)),
            (100_000_000, 0.99999, 0.95, (99_998_937, 99_999_062)),
            (2_000_000_000, 0.5, 0.999, (999_926_421, 1_000_073_578)),
        ] {
            let found = quantile_interval_ranks(count, q, confidence).unwrap();
            assert_eq!((found.low, found.high), ranks, "{count} values, q {q}");
            let more = found.coverage - confidence;
            assert!((0.0..0.03).contains(&more), "{found:?}");
        }
    }

    #[test]
    fn median_interval_coverage_equals_the_binomial_probability() {
        // The expected values are 1 - 2/2^6, 1 - 2(1 + 10)/2^10, 1 - 2(1 + 20 + 190 + 1140 + 4845 + 15504)/2^20.
        for (count, coverage) in [(6, 0.96875), (10, 0.978515625), (20, 0.958610534667969)] {
            let found = quantile_interval_ranks(count, 0.5, 0.95).unwrap();
            assert!((found.coverage - coverage).abs() < 1e-12, "{found:?}");
        }
    }

    #[test]
    fn extreme_quantiles_of_few_values_have_no_interval() {
        assert_eq!(quantile_interval_ranks(1_000, 0.9999, 0.95), None);
        assert_eq!(quantile_interval_ranks(5, 0.5, 0.95), None);
        let six = quantile_interval_ranks(6, 0.5, 0.95).unwrap();
        assert_eq!((six.low, six.high), (0, 5));
    }

    #[test]
    fn quantile_interval_bounds_are_values_of_the_sample() {
        let sorted: Vec<f64> = (0..100).map(f64::from).collect();
        let interval = quantile_interval(&sorted, 0.5, 0.95).unwrap();
        assert_eq!(
            (interval.low, interval.point, interval.high),
            (39.0, 49.0, 60.0)
        );
    }

    #[test]
    fn invalid_values_or_confidences_yield_no_interval() {
        for values in [&[][..], &[1.0, f64::NAN][..], &[1.0, f64::INFINITY][..]] {
            assert_eq!(median_interval(values, 0.95), None);
            assert_eq!(mean_beside_median(values, 0.95), None);
            assert_eq!(quantile_interval(values, 0.5, 0.5), None);
            assert_eq!(ratio_interval(values, values, 0.95), None);
        }
        for confidence in [0.0, 1.0, -1.0, 2.0, f64::NAN] {
            assert_eq!(median_interval(&SKEWED, confidence), None);
            assert_eq!(quantile_interval(&SKEWED, 0.5, confidence), None);
        }
    }

    #[test]
    fn ratios_are_computed_for_each_pair_of_values() {
        let (a, b) = ([2.0, 40.0, 9.0], [1.0, 10.0, 3.0]);
        let ratio = ratio_interval(&a, &b, 0.95).unwrap();
        assert_eq!((ratio.min, ratio.median.point, ratio.max), (2.0, 3.0, 4.0));
        assert_eq!(
            (ratio.median.low, ratio.median.high, ratio.pairs),
            (2.0, 4.0, 3)
        );
        assert_eq!(ratio_interval(&a, &b[..2], 0.95), None);
        assert_eq!(ratio_interval(&a, &[1.0, 0.0, 3.0], 0.95), None);
    }

    #[test]
    fn fewer_than_six_values_yield_their_range_and_its_confidence() {
        let values = [3.0, 1.0, 2.0, 6.0, 5.0, 4.0];
        let six = median_interval(&values, 0.95).unwrap();
        assert_eq!((six.low, six.point, six.high), (1.0, 3.5, 6.0));
        assert_eq!(six.method, IntervalMethod::OrderStatistics);
        for (count, covered) in [(5, 0.9375), (4, 0.875), (3, 0.75), (2, 0.5), (1, 0.0)] {
            let few = median_interval(&values[..count], 0.95).unwrap();
            assert_eq!((few.confidence, few.count), (covered, count as u64));
            assert_eq!(few.method, IntervalMethod::Range);
        }
        assert!(median_interval(&values[..3], 0.7).unwrap().confidence >= 0.75);
        // The bounds are ranks 2 and 9 of ten (Conover, Practical Nonparametric Statistics, table A3).
        let ten: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let found = median_interval(&ten, 0.95).unwrap();
        assert_eq!((found.low, found.point, found.high), (2.0, 5.5, 9.0));
    }

    #[test]
    fn printed_intervals_state_their_actual_confidence_and_sample_size() {
        let words = |values: &[f64]| {
            median_interval(values, 0.95)
                .unwrap()
                .words(|v| v.to_string())
        };
        assert_eq!(words(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), "96 % 1 to 6, n = 6");
        assert_eq!(words(&[2.0, 1.0, 3.0]), "range of 3: 1 to 3");
        assert_eq!(words(&[2.0]), "one value");
    }

    #[test]
    fn a_mean_may_lie_outside_the_interval_of_the_median() {
        let found = mean_beside_median(&[1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 92.0], 0.95);
        let found = found.unwrap();
        assert_eq!(
            (found.low, found.point, found.high),
            (1.0, 100.0 / 9.0, 1.0)
        );
    }
}
