//! Comparison of two groups of runs: whether they differ, by how much, with which confidence, and whether there are
//! enough runs to tell.
//!
//! A group is one value per run (its p99, say); runs are independent of each other. Groups are compared, never packets:
//! packets of a run depend on each other.

use crate::interval::{Interval, IntervalMethod, all_finite, inside_unit};
use crate::rank::{median, median_of};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// Minimum number of runs per group for a test: with three against three, two completely separate groups occur by
/// chance in one of ten cases.
pub const MIN_RUNS: usize = 4;

/// Weight of the interpolation between two successive binomial probabilities that an interval misses the true value.
/// Groups with little scatter need this interpolation: their intervals miss the true value more often than the
/// intervals of groups without scatter. The value was found by simulation (`tests/coverage.rs` checks it).
const BETWEEN: f64 = 0.25;

/// Maximum number of runs in both groups together for an exact p-value.
const EXACT_RUNS: usize = 40;

/// The comparison of two groups of runs. Values, medians and differences are in the metric's unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Number of runs of each group, group `a` first.
    pub runs: [u64; 2],
    /// Median of each group, group `a` first, in the metric's unit.
    pub medians: [f64; 2],
    /// Difference between a run of `b` and a run of `a` (`b - a`): the median of all differences (Hodges and Lehmann
    /// 1963); `None` with fewer than [`MIN_RUNS`] runs in a group.
    pub difference: Option<Interval>,
    /// Ratio of a run of `b` to a run of `a`: the median of all ratios. `None` with fewer than [`MIN_RUNS`] runs in a
    /// group, or if a value is not above zero.
    pub ratio: Option<Interval>,
    /// Probability of superiority (Vargha and Delaney's A): the probability that a run of `b` has a greater value than
    /// a run of `a`, with ties counting half. It is 0.5 if the groups do not differ.
    pub superiority: f64,
    /// Cliff's delta: the probability that a run of `b` is above one of `a`, minus the probability that it is below, -1
    /// to 1 (Cliff 1993).
    pub cliffs_delta: f64,
    /// Two-sided p-value of [`mann_whitney`]; `None` with fewer than [`MIN_RUNS`] runs in a group.
    pub p_value: Option<f64>,
}

/// The result of a comparison, given the number of comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The groups differ.
    Differs,
    /// No difference was found. A difference may still exist: the interval shows its possible size.
    NotShown,
    /// There are too few runs for a test, or so few that even groups without overlap would not differ significantly
    /// after the correction for this number of comparisons.
    TooFewRuns {
        /// Number of runs per group from which a difference can be significant.
        needed: u64,
    },
}

/// The verdict on one of many comparisons.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// p-value corrected by [`holm`]; `None` if the comparison has no p-value.
    pub corrected_p_value: Option<f64>,
    /// Result of the comparison.
    pub finding: Finding,
}

/// Compares the runs of `b` with those of `a`; returns `None` if a group is empty or contains a NaN or infinite value.
///
/// The intervals are those of the rank-sum test (Moses 1965). All differences (or ratios) between a run of `b` and a
/// run of `a` are sorted, and the interval excludes as many of them at each end as `confidence` allows. The confidence
/// holds even if one group scatters more than the other.
///
/// ```
/// let before = [101.0, 98.0, 103.0, 99.0, 100.0, 102.0];
/// let after = [121.0, 119.0, 124.0, 118.0, 120.0, 122.0];
/// let found = taut_measure::compare(&before, &after, 0.95).unwrap();
/// assert_eq!((found.medians, found.superiority), ([100.5, 120.5], 1.0));
/// assert!(found.p_value.unwrap() < 0.01 && found.ratio.unwrap().low > 1.15);
/// ```
pub fn compare(a: &[f64], b: &[f64], confidence: f64) -> Option<Comparison> {
    let medians = [median(a)?, median(b)?];
    if !all_finite(a) || !all_finite(b) || !inside_unit(confidence) {
        return None;
    }
    let superiority = wins(a, b) / (a.len() as f64 * b.len() as f64);
    let tested = a.len().min(b.len()) >= MIN_RUNS;
    let positive = a.iter().chain(b).all(|&value| value > 0.0);
    let ends = tested.then(|| left_out(a.len(), b.len(), confidence));
    let interval = |of: fn(f64, f64) -> f64| {
        let (left_out, confidence) = ends?;
        let mut pairs: Vec<f64> = b
            .iter()
            .flat_map(|b| a.iter().map(|a| of(*a, *b)))
            .collect();
        all_finite(&pairs).then_some(())?;
        let last = pairs.len() - 1;
        let mut at = |rank: usize| *pairs.select_nth_unstable_by(rank, f64::total_cmp).1;
        Some(Interval {
            low: at(left_out),
            high: at(last - left_out),
            point: median_of(&mut pairs)?,
            confidence,
            count: a.len().min(b.len()) as u64,
            method: IntervalMethod::RankSum,
        })
    };
    Some(Comparison {
        runs: [a.len() as u64, b.len() as u64],
        medians,
        difference: interval(|a, b| b - a),
        ratio: positive.then(|| interval(|a, b| b / a)).flatten(),
        superiority,
        cliffs_delta: 2.0 * superiority - 1.0,
        p_value: tested.then(|| mann_whitney(a, b)).flatten(),
    })
}

/// Computes the two-sided p-value of the rank-sum test of two independent groups (Mann and Whitney 1947). It is the
/// probability that groups drawn from one distribution are at least this far apart. Returns `None` if a group is empty
/// or contains a NaN or infinite value.
///
/// For up to 40 runs in both groups together, the p-value is exact even with ties: all ways to assign the runs to the
/// groups are counted. For more runs, it is the normal approximation with corrections for ties and continuity.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.is_empty() || b.is_empty() || !all_finite(a) || !all_finite(b) {
        return None;
    }
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    // Ranks are doubled, so that the mean rank of tied values is an integer.
    let mut sorted = [few, many].concat();
    sorted.sort_by(f64::total_cmp);
    let doubled_rank = |value: f64| {
        let below = sorted.partition_point(|&other| other < value);
        let up_to = sorted.partition_point(|&other| other <= value);
        below + up_to + 1
    };
    let ranks: Vec<usize> = sorted.iter().map(|&value| doubled_rank(value)).collect();
    let sum: usize = few.iter().map(|&value| doubled_rank(value)).sum();
    if sorted.len() <= EXACT_RUNS {
        Some(exact_p_value(&ranks, few.len(), sum))
    } else {
        normal_p_value(&sorted, few.len(), sum)
    }
}

/// Returns p-values corrected for multiple comparisons (Holm 1979), in the given order. If a comparison counts as a
/// difference when its corrected value is below a level, the probability of any false difference is at most that level.
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut corrected = vec![1.0; p_values.len()];
    let mut highest = 0.0_f64;
    for (place, &index) in order.iter().enumerate() {
        let left = (p_values.len() - place) as f64;
        highest = highest.max((p_values[index] * left).min(1.0));
        corrected[index] = highest;
    }
    corrected
}

/// Returns the verdict on each of several comparisons at significance level `level` (0.05, say), with p-values
/// corrected by [`holm`].
pub fn judge(comparisons: &[Comparison], level: f64) -> Vec<Judged> {
    let tested: Vec<f64> = comparisons.iter().filter_map(|c| c.p_value).collect();
    let mut corrected = holm(&tested).into_iter();
    comparisons
        .iter()
        .map(|comparison| {
            let corrected_p_value = comparison.p_value.and_then(|_| corrected.next());
            let [a, b] = comparison.runs;
            let could_tell = corrected_p_value.is_some()
                && smallest_p_value(a, b) * tested.len() as f64 <= level;
            let finding = match corrected_p_value {
                Some(p) if p <= level => Finding::Differs,
                _ if could_tell => Finding::NotShown,
                // All comparisons count: with enough runs, those without a p-value would be tests as well.
                _ => Finding::TooFewRuns {
                    needed: runs_needed(comparisons.len(), level),
                },
            };
            Judged {
                corrected_p_value,
                finding,
            }
        })
        .collect()
}

/// Returns the smallest p-value that groups of `a` and `b` runs can have: the p-value of groups whose values do not
/// overlap.
fn smallest_p_value(a: u64, b: u64) -> f64 {
    let few = a.min(b);
    let ways = (1..=few).map(|k| (a + b - few + k) as f64 / k as f64);
    2.0 / ways.product::<f64>()
}

/// Returns the minimum number of runs in each group with which `comparisons` comparisons, judged together at
/// significance level `level`, can show a difference.
pub fn runs_needed(comparisons: usize, level: f64) -> u64 {
    let family = comparisons.max(1) as f64;
    let enough = |runs: &u64| smallest_p_value(*runs, *runs) * family <= level;
    (MIN_RUNS as u64..1000).find(enough).unwrap_or(1000)
}

/// Counts the pairs of a value of `a` and a value of `b` in which the value of `b` is greater; ties count half.
fn wins(a: &[f64], b: &[f64]) -> f64 {
    let mut sorted = a.to_vec();
    sorted.sort_by(f64::total_cmp);
    let below = |value: f64| {
        let less = sorted.partition_point(|&other| other < value);
        let up_to = sorted.partition_point(|&other| other <= value);
        (less + up_to) as f64 / 2.0
    };
    b.iter().map(|&value| below(value)).sum()
}

/// Returns how many of the sorted pairs between two groups of `a` and `b` runs an interval may exclude at each end, and
/// the confidence of that interval. The number is the largest with which the interval has at least `confidence`; it is
/// 0 if there is no such number.
fn left_out(a: usize, b: usize, confidence: f64) -> (usize, f64) {
    let claims = Claims::of(a, b);
    let enough = |left_out: &usize| claims.of_pairs(*left_out) >= confidence;
    let most = (0..a * b / 2).take_while(enough).last().unwrap_or(0);
    (most, claims.of_pairs(most))
}

/// The confidence of intervals for two groups, by the number of pairs that the interval excludes at each end.
struct Claims {
    groups: [usize; 2],
    /// Cumulative distribution of the rank-sum statistic; empty for groups with more than [`EXACT_RUNS`] runs together.
    up_to: Vec<f64>,
}

impl Claims {
    fn of(a: usize, b: usize) -> Self {
        let ways = if a + b <= EXACT_RUNS {
            let ranks: Vec<usize> = (1..=a + b).collect();
            let sums = ways(&ranks, a);
            sums[(a * (a + 1) / 2).min(sums.len())..].to_vec()
        } else {
            Vec::new()
        };
        let all: f64 = ways.iter().sum();
        let mut sum = 0.0;
        let up_to = ways.iter().map(|ways| {
            sum += ways;
            sum / all
        });
        Self {
            groups: [a, b],
            up_to: up_to.collect(),
        }
    }

    /// Returns the confidence of an interval that excludes `left_out` pairs at each end. It is the lower of two
    /// confidences. The first is for groups with equal scatter, the second for a scattered group compared with a group
    /// without scatter. In the second case, each value of the scattered group occurs in as many pairs as the group
    /// without scatter has runs.
    fn of_pairs(&self, left_out: usize) -> f64 {
        let [a, b] = self.groups.map(|runs| runs as f64);
        let alike = match self.up_to.get(left_out) {
            Some(below) => *below,
            None => {
                let deviation = (a * b * (a + b + 1.0) / 12.0).sqrt();
                let off = a * b / 2.0 - left_out as f64 - 0.5;
                Normal::new(0.0, deviation).map_or(1.0, |normal| normal.sf(off))
            }
        };
        let alone = |runs: usize, other: usize| {
            let (whole, part) = (left_out / other, (left_out % other) as f64 / other as f64);
            let [below, above] = [whole, whole + 1].map(|few| binomial_up_to(few, runs));
            below + BETWEEN * part * (above - below)
        };
        let [a, b] = self.groups;
        let missed = alike.max(alone(a, b)).max(alone(b, a));
        1.0 - 2.0 * missed
    }
}

/// Returns the probability that at most `few` of `count` values are below the median of their distribution.
fn binomial_up_to(few: usize, count: usize) -> f64 {
    let mut term = (-(count as f64)).exp2();
    let mut sum = term;
    for k in 0..few.min(count) {
        term *= (count - k) as f64 / (k + 1) as f64;
        sum += term;
    }
    sum
}

fn exact_p_value(ranks: &[usize], few: usize, sum: usize) -> f64 {
    let ways = ways(ranks, few);
    let all: f64 = ways.iter().sum();
    let low: f64 = ways[..=sum].iter().sum();
    let high: f64 = ways[sum..].iter().sum();
    (2.0 * low.min(high) / all).min(1.0)
}

/// Returns, at the index of each sum, the number of ways to choose `few` of the ascending `ranks` so that they add up
/// to that sum.
fn ways(ranks: &[usize], few: usize) -> Vec<f64> {
    let most: usize = ranks.iter().rev().take(few).sum();
    let mut ways = vec![vec![0.0_f64; most + 1]; few + 1];
    ways[0][0] = 1.0;
    for &rank in ranks {
        for picked in (1..=few).rev() {
            for total in (rank..=most).rev() {
                ways[picked][total] += ways[picked - 1][total - rank];
            }
        }
    }
    ways.swap_remove(few)
}

fn normal_p_value(sorted: &[f64], few: usize, sum: usize) -> Option<f64> {
    let (all, few) = (sorted.len() as f64, few as f64);
    let many = all - few;
    let ties: f64 = sorted
        .chunk_by(|a, b| a == b)
        .map(|equal| (equal.len() as f64).powi(3) - equal.len() as f64)
        .sum();
    let variance = few * many / 12.0 * (all + 1.0 - ties / (all * (all - 1.0)));
    if variance <= 0.0 {
        return Some(1.0);
    }
    let off = (sum as f64 / 2.0 - few * (all + 1.0) / 2.0).abs();
    let normal = Normal::new(0.0, 1.0).ok()?;
    let beyond = normal.sf((off - 0.5) / variance.sqrt());
    Some((2.0 * beyond).min(1.0))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const A: [f64; 12] = [1.2, 0.4, 3.3, 0.9, 2.1, 7.5, 0.2, 1.8, 4.4, 0.7, 1.1, 2.6];
    const B: [f64; 9] = [2.3, 5.1, 3.4, 8.2, 1.9, 4.6, 6.6, 2.9, 3.8];

    fn about(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-12, "{found} != {expected}");
    }

    #[test]
    fn exact_p_values_agree_with_scipy() {
        // scipy.stats.mannwhitneyu(method="exact"), and PermutationMethod with ties (SciPy 1.17.1).
        let p = |a: &[f64], b: &[f64]| mann_whitney(a, b).unwrap();
        about(p(&A, &B), 0.011757901541183275);
        about(p(&B, &A), 0.011757901541183275);
        about(p(&[1., 2., 3., 4.], &[5., 6., 7., 8.]), 0.02857142857142857);
        about(
            p(&[1., 9., 3., 4.], &[5., 6., 7., 8., 2., 10.]),
            0.35238095238095235,
        );
        about(
            p(&[1., 2., 2., 3., 5.], &[2., 3., 4., 4., 5., 6.]),
            0.18181818181818182,
        );
        let even: Vec<f64> = (0..20).map(|i| f64::from(2 * i)).collect();
        let later: Vec<f64> = even.iter().map(|value| value + 7.0).collect();
        about(p(&even, &later), 0.0859140199856938);
    }

    #[test]
    fn approximate_p_values_agree_with_scipy() {
        // scipy.stats.mannwhitneyu(method="asymptotic") (SciPy 1.17.1); 28 of 110 values are tied.
        let a: Vec<f64> = (0..60).map(|i| f64::from(i * 37 % 101)).collect();
        for (shift, expected) in [(6, 0.7389926361510317), (16, 0.043997332927825816)] {
            let b: Vec<f64> = (0..50).map(|i| f64::from(i * 53 % 97 + shift)).collect();
            let found = mann_whitney(&a, &b).unwrap();
            assert!((found - expected).abs() < 1e-9, "{found} != {expected}");
        }
        assert_eq!(mann_whitney(&[3.0; 30], &[3.0; 30]), Some(1.0));
    }

    #[test]
    fn interval_ranks_agree_with_the_rank_sum_table() {
        // Conover, Practical Nonparametric Statistics, table A7: for two groups of ten runs with equal scatter, 23
        // pairs may be excluded at each end.
        let alike = Claims::of(10, 10).up_to;
        assert!(alike[23] <= 0.025 && alike[24] > 0.025, "{alike:?}");
        let found = compare(&A, &B, 0.95).unwrap();
        let (difference, ratio) = (found.difference.unwrap(), found.ratio.unwrap());
        assert!(difference.confidence >= 0.95 && difference.confidence < 0.97);
        assert_eq!(difference.method, IntervalMethod::RankSum);
        assert!((difference.low..difference.high).contains(&difference.point));
        assert!((ratio.low..ratio.high).contains(&ratio.point));
    }

    #[test]
    fn four_runs_per_group_yield_an_interval_with_reduced_confidence() {
        let found = compare(&[1.0, 2.0, 3.0, 4.0], &[11.0, 12.0, 13.0, 14.0], 0.95).unwrap();
        let difference = found.difference.unwrap();
        assert_eq!(
            (difference.low, difference.point, difference.high),
            (7.0, 10.0, 13.0)
        );
        assert_eq!((difference.confidence, difference.count), (0.875, 4));
    }

    #[test]
    fn approximate_and_exact_confidence_agree_for_large_groups() {
        let (exact, near) = (
            Claims::of(20, 20),
            Claims {
                groups: [20, 20],
                up_to: Vec::new(),
            },
        );
        for left_out in [80, 100, 127, 150] {
            let off = exact.of_pairs(left_out) - near.of_pairs(left_out);
            assert!(off.abs() < 0.002, "{left_out}: {off}");
        }
    }

    #[test]
    fn superiority_is_the_fraction_of_pairs_with_greater_second_value() {
        let found = compare(&[1.0, 2.0], &[2.0, 3.0], 0.95).unwrap();
        assert_eq!((found.superiority, found.cliffs_delta), (0.875, 0.75));
        let found = compare(&A, &A, 0.95).unwrap();
        assert_eq!((found.superiority, found.cliffs_delta), (0.5, 0.0));
    }

    #[test]
    fn three_runs_are_too_few_to_show_any_difference() {
        let found = compare(&[1.0, 1.1, 1.2], &[9.0, 9.1, 9.2, 9.3, 9.4], 0.95).unwrap();
        assert_eq!((found.p_value, found.difference), (None, None));
        let judged = judge(&[found], 0.05);
        assert_eq!(judged[0].finding, Finding::TooFewRuns { needed: 4 });
        assert_eq!(judged[0].corrected_p_value, None);
    }

    #[test]
    fn four_runs_suffice_for_one_comparison_but_not_for_ten() {
        let apart = compare(&[1.0, 1.1, 1.2, 1.3], &[9.0, 9.1, 9.2, 9.3], 0.95).unwrap();
        let alone = judge(std::slice::from_ref(&apart), 0.05);
        assert_eq!(alone[0].finding, Finding::Differs);
        let many = judge(&vec![apart; 10], 0.05);
        // Two groups of six runs are the smallest whose least p-value, 2 / C(12, 6) = 0.0022, is below 0.05 after
        // multiplication by ten comparisons.
        assert!(
            many.iter()
                .all(|one| one.finding == Finding::TooFewRuns { needed: 6 })
        );
    }

    #[test]
    fn equal_groups_with_enough_runs_show_no_difference() {
        let same = compare(&A, &A, 0.95).unwrap();
        let apart = compare(&A, &A.map(|value| value + 10.0), 0.95).unwrap();
        let judged = judge(&[same, apart], 0.05);
        assert_eq!(judged[0].finding, Finding::NotShown);
        assert_eq!(judged[0].corrected_p_value, Some(1.0));
        assert_eq!(judged[1].finding, Finding::Differs);
    }

    #[test]
    fn holm_correction_multiplies_by_remaining_comparisons_and_never_decreases() {
        // Computed by hand: the sorted values 0.005, 0.01, 0.03 and 0.04 are multiplied by 4, 3, 2 and 1.
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in corrected.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            about(*found, expected);
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn invalid_groups_are_not_compared_and_zeros_have_no_ratio() {
        assert_eq!(compare(&[], &A, 0.95), None);
        assert_eq!(compare(&A, &[f64::NAN; 5], 0.95), None);
        assert_eq!(mann_whitney(&A, &[]), None);
        let zero = compare(&[0.0; 5], &A, 0.95).unwrap();
        assert!(zero.ratio.is_none() && zero.difference.is_some());
        let single = compare(&[1.0], &[2.0], 0.95).unwrap();
        assert_eq!((single.medians, single.p_value), ([1.0, 2.0], None));
    }

    proptest! {
        #[test]
        fn swapping_the_two_samples_mirrors_the_comparison(
            a in prop::collection::vec(0i32..30, 1..30),
            b in prop::collection::vec(0i32..30, 1..30),
        ) {
            let floats = |values: &[i32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
            let (a, b) = (floats(&a), floats(&b));
            let there = compare(&a, &b, 0.95).unwrap();
            let back = compare(&b, &a, 0.95).unwrap();
            prop_assert!((there.superiority + back.superiority - 1.0).abs() < 1e-12);
            match (there.p_value, back.p_value) {
                (Some(p), Some(q)) => {
                    prop_assert!((p - q).abs() < 1e-9 && p > 0.0 && p <= 1.0);
                    prop_assert!(p >= smallest_p_value(there.runs[0], there.runs[1]) * 0.999_999
                        || there.runs[0] + there.runs[1] > 40);
                }
                (p, q) => prop_assert_eq!((p, q), (None, None)),
            }
        }
    }
}
