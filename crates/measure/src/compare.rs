//! Whether two groups of runs differ: how far, how surely, and whether there are runs enough to tell.
//!
//! A group is one value per run (its p99, say), runs being independent of each other. What is compared
//! are groups, never packets: packets of a run depend on each other.

use crate::interval::{Interval, all_finite, inside_unit, interval_between, percentile_levels};
use crate::rank::median;
use fastrand::Rng;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal};

/// Runs that each group needs before it is tested: of three against three, even groups wholly apart
/// come about by chance in one of ten cases.
pub const MIN_RUNS: usize = 4;

/// Up to so many runs in both groups together the p-value is exact.
const EXACT_RUNS: usize = 40;

/// Two groups of runs compared. Values, medians and differences are in the metric's unit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Comparison {
    /// Runs of either group.
    pub runs: [u64; 2],
    /// Medians of either group.
    pub medians: [f64; 2],
    /// Median of `b` less median of `a`; `None` with fewer than [`MIN_RUNS`] runs in a group.
    pub difference: Option<Interval>,
    /// Median of `b` over median of `a`; `None` also unless all values are above zero.
    pub ratio: Option<Interval>,
    /// Probability that a run of `b` has a greater value than one of `a`, equal ones counting half
    /// (probability of superiority, Vargha and Delaney's A): 0.5 where they do not differ.
    pub superiority: f64,
    /// How often runs of `b` are above less how often below those of `a`, -1 to 1 (Cliff 1993).
    pub cliffs_delta: f64,
    /// Two-sided p-value of [`mann_whitney`]; `None` with fewer than [`MIN_RUNS`] runs in a group.
    pub p_value: Option<f64>,
}

/// What a comparison says, given how many were made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finding {
    /// The groups differ.
    Differs,
    /// No difference was shown. There may be one: the interval says how great.
    NotShown,
    /// Whatever the values, so few runs cannot show a difference among so many comparisons.
    TooFewRuns {
        /// Runs that each group needs.
        needed: u64,
    },
}

/// One of many comparisons, judged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Judged {
    /// p-value corrected by [`holm`]; `None` where there is none.
    pub corrected_p_value: Option<f64>,
    /// What it says.
    pub finding: Finding,
}

/// Compares the runs of `b` with those of `a`; `None` when a group is empty or holds what is no number.
///
/// The intervals are percentile bootstraps of medians, each group resampled on its own (BCa does not
/// fit: the jackknife of a median does not converge). Resamples and seed as in
/// [`crate::bootstrap_interval`], with too few resamples there is no interval.
///
/// ```
/// let before = [101.0, 98.0, 103.0, 99.0, 100.0];
/// let after = [121.0, 119.0, 124.0, 118.0, 120.0];
/// let found = taut_measure::compare(&before, &after, 0.95, 2000, 1).unwrap();
/// assert_eq!((found.medians, found.superiority), ([100.0, 120.0], 1.0));
/// assert!(found.p_value.unwrap() < 0.01 && found.ratio.unwrap().low > 1.1);
/// ```
pub fn compare(
    a: &[f64],
    b: &[f64],
    confidence: f64,
    resamples: usize,
    seed: u64,
) -> Option<Comparison> {
    let medians = [median(a)?, median(b)?];
    if !all_finite(a) || !all_finite(b) {
        return None;
    }
    let superiority = wins(a, b) / (a.len() as f64 * b.len() as f64);
    let tested = a.len().min(b.len()) >= MIN_RUNS;
    let positive = a.iter().chain(b).all(|&value| value > 0.0);
    let pairs = if tested {
        resampled_medians(a, b, confidence, resamples, seed)
    } else {
        Vec::new()
    };
    let interval = |of: fn([f64; 2]) -> f64| {
        let mut estimates: Vec<f64> = pairs.iter().map(|pair| of(*pair)).collect();
        estimates.sort_by(f64::total_cmp);
        let (low, high) = percentile_levels(confidence);
        all_finite(&estimates).then_some(())?;
        interval_between(&estimates, low, high, of(medians), confidence)
    };
    Some(Comparison {
        runs: [a.len() as u64, b.len() as u64],
        medians,
        difference: interval(|[a, b]| b - a),
        ratio: positive.then(|| interval(|[a, b]| b / a)).flatten(),
        superiority,
        cliffs_delta: 2.0 * superiority - 1.0,
        p_value: tested.then(|| mann_whitney(a, b)).flatten(),
    })
}

/// Two-sided p-value of the rank-sum test of two independent groups (Mann and Whitney 1947): how often
/// groups drawn from one distribution would be at least so far apart. `None` when a group is empty or
/// holds what is no number.
///
/// Up to 40 runs together it is exact, ties or not: all ways to deal the runs out to the groups are
/// counted. Above, the normal approximation with corrections for ties and continuity.
pub fn mann_whitney(a: &[f64], b: &[f64]) -> Option<f64> {
    if a.is_empty() || b.is_empty() || !all_finite(a) || !all_finite(b) {
        return None;
    }
    let (few, many) = if a.len() <= b.len() { (a, b) } else { (b, a) };
    // Ranks doubled, so that the mean rank of tied values is whole.
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

/// p-values corrected for there being many (Holm 1979), in the order given: the chance that any true
/// "no difference" of the family falls below the level is at most the level.
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

/// Judges a family of comparisons at `level` (0.05, say), corrected by [`holm`].
pub fn judge(comparisons: &[Comparison], level: f64) -> Vec<Judged> {
    let tested: Vec<f64> = comparisons.iter().filter_map(|c| c.p_value).collect();
    let mut corrected = holm(&tested).into_iter();
    // Those with too few runs would be tests too, had they enough.
    let family = comparisons.len() as f64;
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
                _ => Finding::TooFewRuns {
                    needed: runs_needed(level / family),
                },
            };
            Judged {
                corrected_p_value,
                finding,
            }
        })
        .collect()
}

/// The p-value of groups wholly apart.
fn smallest_p_value(a: u64, b: u64) -> f64 {
    let few = a.min(b);
    let ways = (1..=few).map(|k| (a + b - few + k) as f64 / k as f64);
    2.0 / ways.product::<f64>()
}

fn runs_needed(level: f64) -> u64 {
    let enough = |runs: &u64| smallest_p_value(*runs, *runs) <= level;
    (MIN_RUNS as u64..1000).find(enough).unwrap_or(1000)
}

/// Of how many pairs the value of `b` is the greater; equal ones count half.
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

/// Medians of both groups, resampled; none with too few resamples for the tails.
fn resampled_medians(
    a: &[f64],
    b: &[f64],
    confidence: f64,
    resamples: usize,
    seed: u64,
) -> Vec<[f64; 2]> {
    if !inside_unit(confidence) || (resamples as f64) * (1.0 - confidence) < 1.999_999 {
        return Vec::new();
    }
    let mut random = Rng::with_seed(seed);
    let mut drawn = Vec::with_capacity(a.len().max(b.len()));
    let mut draw = |group: &[f64]| {
        drawn.clear();
        drawn.extend((0..group.len()).map(|_| group[random.usize(..group.len())]));
        crate::rank::median_of(&mut drawn).unwrap_or(f64::NAN)
    };
    (0..resamples).map(|_| [draw(a), draw(b)]).collect()
}

/// Counts, for every sum, the ways to pick `few` of the ranks that add up to it.
fn exact_p_value(ranks: &[usize], few: usize, sum: usize) -> f64 {
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
    let ways = &ways[few];
    let all: f64 = ways.iter().sum();
    let low: f64 = ways[..=sum].iter().sum();
    let high: f64 = ways[sum..].iter().sum();
    (2.0 * low.min(high) / all).min(1.0)
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
    use fastrand::Rng;
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
    fn intervals_agree_with_numpys_resampling() {
        // numpy: percentiles 2.5 and 97.5 of the medians of 1,000,000 resamples.
        let found = compare(&A, &B, 0.95, 20_000, 3).unwrap();
        let (difference, ratio) = (found.difference.unwrap(), found.ratio.unwrap());
        about(difference.point, 2.3);
        assert!((difference.low - 0.4).abs() < 0.15, "{difference:?}");
        assert!((difference.high - 4.5).abs() < 0.15, "{difference:?}");
        about(ratio.point, 3.8 / 1.5);
        assert!((ratio.low - 1.15).abs() < 0.06, "{ratio:?}");
        assert!((ratio.high - 5.67).abs() < 0.4, "{ratio:?}");
        assert_eq!(compare(&A, &B, 0.95, 20_000, 3).unwrap(), found);
    }

    #[test]
    fn effect_is_the_share_of_pairs_that_are_greater() {
        let found = compare(&[1.0, 2.0], &[2.0, 3.0], 0.95, 100, 1).unwrap();
        assert_eq!((found.superiority, found.cliffs_delta), (0.875, 0.75));
        let found = compare(&A, &A, 0.95, 100, 1).unwrap();
        assert_eq!((found.superiority, found.cliffs_delta), (0.5, 0.0));
    }

    #[test]
    fn three_runs_are_too_few_to_tell_however_far_apart() {
        let found = compare(&[1.0, 1.1, 1.2], &[9.0, 9.1, 9.2, 9.3, 9.4], 0.95, 100, 1).unwrap();
        assert_eq!((found.p_value, found.difference), (None, None));
        let judged = judge(&[found], 0.05);
        assert_eq!(judged[0].finding, Finding::TooFewRuns { needed: 4 });
        assert_eq!(judged[0].corrected_p_value, None);
    }

    #[test]
    fn four_runs_tell_one_difference_but_not_one_of_many() {
        let apart = compare(&[1.0, 1.1, 1.2, 1.3], &[9.0, 9.1, 9.2, 9.3], 0.95, 100, 1).unwrap();
        let alone = judge(std::slice::from_ref(&apart), 0.05);
        assert_eq!(alone[0].finding, Finding::Differs);
        let many = judge(&vec![apart; 10], 0.05);
        // 2 / C(12, 6) = 0.0022 is the first that ten times fits.
        assert!(
            many.iter()
                .all(|one| one.finding == Finding::TooFewRuns { needed: 6 })
        );
    }

    #[test]
    fn runs_enough_and_nothing_seen_is_not_shown() {
        let same = compare(&A, &A, 0.95, 100, 1).unwrap();
        let apart = compare(&A, &A.map(|value| value + 10.0), 0.95, 100, 1).unwrap();
        let judged = judge(&[same, apart], 0.05);
        assert_eq!(judged[0].finding, Finding::NotShown);
        assert_eq!(judged[0].corrected_p_value, Some(1.0));
        assert_eq!(judged[1].finding, Finding::Differs);
    }

    #[test]
    fn holm_multiplies_by_what_is_left_and_never_falls() {
        // By hand: sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1.
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in corrected.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            about(*found, expected);
        }
        assert_eq!(holm(&[0.9, 0.8]), [1.0, 1.0]);
        assert!(holm(&[]).is_empty());
    }

    #[test]
    fn senseless_groups_are_not_compared_and_zeros_have_no_ratio() {
        assert_eq!(compare(&[], &A, 0.95, 100, 1), None);
        assert_eq!(compare(&A, &[f64::NAN; 5], 0.95, 100, 1), None);
        assert_eq!(mann_whitney(&A, &[]), None);
        let zero = compare(&[0.0; 5], &A, 0.95, 100, 1).unwrap();
        assert!(zero.ratio.is_none() && zero.difference.is_some());
        let single = compare(&[1.0], &[2.0], 0.95, 100, 1).unwrap();
        assert_eq!((single.medians, single.p_value), ([1.0, 2.0], None));
        let coarse = compare(&A, &B, 0.95, 10, 1).unwrap();
        assert!(coarse.difference.is_none() && coarse.p_value.is_some());
    }

    #[test]
    fn interval_covers_the_true_difference_about_as_often_as_it_says() {
        let mut random = Rng::with_seed(11);
        for runs in [5, 12, 30] {
            let covered = (0..400u64).filter(|&seed| {
                let mut group = |shift: f64| -> Vec<f64> {
                    (0..runs)
                        .map(|_| shift - (1.0 - random.f64()).ln())
                        .collect()
                };
                let (a, b) = (group(1.0), group(3.0));
                let found = compare(&a, &b, 0.95, 400, seed).unwrap();
                let interval = found.difference.unwrap();
                (interval.low..=interval.high).contains(&2.0)
            });
            let percent = covered.count() as f64 / 4.0;
            assert!((90.0..=99.9).contains(&percent), "{runs} runs: {percent} %");
        }
    }

    proptest! {
        #[test]
        fn comparing_the_other_way_round_mirrors_it(
            a in prop::collection::vec(0i32..30, 1..30),
            b in prop::collection::vec(0i32..30, 1..30),
        ) {
            let floats = |values: &[i32]| values.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
            let (a, b) = (floats(&a), floats(&b));
            let there = compare(&a, &b, 0.95, 100, 1).unwrap();
            let back = compare(&b, &a, 0.95, 100, 1).unwrap();
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
