//! Confidence intervals: how far a figure could have come out otherwise.
//!
//! All return `None` rather than an interval the data cannot carry: with fewer than two values,
//! with values or a confidence that are not finite or not within (0, 1), or with too few resamples.

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, Normal, StudentsT};

use crate::rank::{median, nearest_rank};

/// A point estimate and the interval around it, in the unit of the values it came from.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Lower end.
    pub low: f64,
    /// The estimate itself.
    pub point: f64,
    /// Upper end.
    pub high: f64,
    /// How often such an interval covers the truth, 0..1, for example 0.95.
    pub confidence: f64,
}

/// How two things measured in interleaved pairs compare.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PairedRatio {
    /// Median of the pairs' ratios, with its interval.
    pub median: Interval,
    /// Smallest ratio of a pair.
    pub min: f64,
    /// Largest ratio of a pair.
    pub max: f64,
    /// Pairs.
    pub pairs: u64,
}

/// The 0-based positions `(low, high)` in `count` sorted values that enclose quantile `q` with at
/// least `confidence`, whatever the distribution (binomial order statistics: David and Nagaraja,
/// Order Statistics, section 7.1).
///
/// Assumes independent values. `None` when the values do not reach far enough into the tail, as
/// 1,000 values do not for p99.99. Takes O(sqrt(count)).
pub fn quantile_interval_ranks(count: u64, q: f64, confidence: f64) -> Option<(u64, u64)> {
    if count < 2 || !inside_unit(q) || !inside_unit(confidence) {
        return None;
    }
    let tail = (1.0 - confidence) / 2.0;
    // Binomial weights relative to the mode: exact by recurrence where the incomplete beta
    // function of large arguments is not.
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
    // Value number `low` (from 1) lies above the quantile when fewer than `low` values lie below.
    let (mut low, mut weight) = (lowest, lowest_weight);
    let mut below = weight;
    while below <= tail * total && low < count {
        weight *= step_up(low);
        low += 1;
        below += weight;
    }
    // Value number `high` lies below the quantile when at least `high` values do.
    let (mut high, mut weight) = (highest + 1, highest_weight);
    let mut above = weight;
    while above <= tail * total && high > 1 {
        high -= 1;
        weight /= step_up(high - 1);
        above += weight;
    }
    (low >= 1 && high <= count && low <= high).then(|| (low - 1, high - 1))
}

/// Distribution-free interval for quantile `q` of independent values, sorted ascending.
///
/// The point is the nearest-rank quantile. For a histogram, take the positions from
/// [`quantile_interval_ranks`] to [`crate::LatencyHistogram::value_at_rank`].
pub fn quantile_interval(sorted: &[f64], q: f64, confidence: f64) -> Option<Interval> {
    if !all_finite(sorted) {
        return None;
    }
    let count = sorted.len() as u64;
    let (low, high) = quantile_interval_ranks(count, q, confidence)?;
    let at = |rank: u64| sorted.get(usize::try_from(rank).ok()?).copied();
    Some(Interval {
        low: at(low)?,
        point: at(nearest_rank(count, q)?)?,
        high: at(high)?,
        confidence,
    })
}

/// Distribution-free interval for the median of independent values in any order, from order statistics:
/// the ends are values. At 95 % it takes at least six values (2 / 2^6 = 3 % lie beyond their extremes);
/// with fewer there is none, whatever the method.
pub fn median_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let point = median(&sorted)?;
    Some(Interval {
        point,
        ..quantile_interval(&sorted, 0.5, confidence)?
    })
}

/// Interval for the mean of independent, about normally distributed values (Student's t).
pub fn mean_interval(values: &[f64], confidence: f64) -> Option<Interval> {
    if values.len() < 2 || !all_finite(values) || !inside_unit(confidence) {
        return None;
    }
    let count = values.len() as f64;
    let point = mean(values);
    let squares: f64 = values.iter().map(|value| (value - point).powi(2)).sum();
    let standard_error = (squares / (count - 1.0) / count).sqrt();
    let reach = student_quantile(0.5 + confidence / 2.0, count - 1.0)? * standard_error;
    Some(Interval {
        low: point - reach,
        point,
        high: point + reach,
        confidence,
    })
}

/// Interval for any statistic of independent values by the bias-corrected, accelerated bootstrap
/// (BCa: Efron 1987), or the plain percentile bootstrap where BCa is undefined.
///
/// Meant for repetitions, not packets: `statistic` runs `resamples + values.len()` times. The tails
/// need at least 2 / (1 - confidence) resamples; 2,000 is a good number for 95 %. The same seed
/// gives the same interval.
pub fn bootstrap_interval(
    values: &[f64],
    statistic: impl Fn(&[f64]) -> f64,
    confidence: f64,
    resamples: usize,
    seed: u64,
) -> Option<Interval> {
    let estimates = resampled_estimates(values, 1, &statistic, confidence, resamples, seed)?;
    let point = statistic(values);
    let (low, high) = bias_corrected_levels(values, &statistic, point, &estimates, confidence)
        .unwrap_or_else(|| percentile_levels(confidence));
    interval_between(&estimates, low, high, point, confidence)
}

/// Interval for a statistic of a series whose neighbours depend on each other, by the moving-block
/// bootstrap (Künsch 1989): whole runs of `block_length` neighbours are drawn, which keeps their
/// dependence. Percentile ends.
///
/// Blocks must be longer than the dependence; the cube root of the count is the usual start.
/// `None` unless the series holds at least two blocks. Resamples and seed as in
/// [`bootstrap_interval`].
pub fn block_bootstrap(
    series: &[f64],
    block_length: usize,
    statistic: impl Fn(&[f64]) -> f64,
    confidence: f64,
    resamples: usize,
    seed: u64,
) -> Option<Interval> {
    if block_length == 0 || block_length > series.len() / 2 {
        return None;
    }
    let estimates = resampled_estimates(
        series,
        block_length,
        &statistic,
        confidence,
        resamples,
        seed,
    )?;
    let (low, high) = percentile_levels(confidence);
    interval_between(&estimates, low, high, statistic(series), confidence)
}

/// Ratio `a / b` of things measured in interleaved repetitions: pair `i` is `a[i]` and `b[i]`, so
/// that what disturbs the machine for a while disturbs both.
///
/// The interval is a percentile bootstrap of the median ratio. With `n` pairs no interval within
/// the observed ratios can cover more often than 1 - 2^(1-n): 75 % for 3 pairs, 94 % for 5, and so
/// with fewer than 6 pairs a 95 % interval claims too much. `None` also for lists of unequal length
/// and for values that are not above zero.
pub fn ratio_interval(
    a: &[f64],
    b: &[f64],
    confidence: f64,
    resamples: usize,
    seed: u64,
) -> Option<PairedRatio> {
    let positive = |values: &[f64]| values.iter().all(|&value| value > 0.0);
    if a.len() != b.len() || !positive(a) || !positive(b) {
        return None;
    }
    let mut ratios: Vec<f64> = a.iter().zip(b).map(|(a, b)| a / b).collect();
    let estimates = resampled_estimates(&ratios, 1, &median_or_nan, confidence, resamples, seed)?;
    ratios.sort_by(f64::total_cmp);
    let (low, high) = percentile_levels(confidence);
    Some(PairedRatio {
        median: interval_between(&estimates, low, high, median(&ratios)?, confidence)?,
        min: *ratios.first()?,
        max: *ratios.last()?,
        pairs: ratios.len() as u64,
    })
}

/// Sorted estimates from resamples drawn in blocks of `block_length` neighbours.
fn resampled_estimates(
    values: &[f64],
    block_length: usize,
    statistic: &impl Fn(&[f64]) -> f64,
    confidence: f64,
    resamples: usize,
    seed: u64,
) -> Option<Vec<f64>> {
    let enough = inside_unit(confidence) && resamples as f64 * (1.0 - confidence) >= 1.999_999;
    if values.len() < 2 || !all_finite(values) || !enough {
        return None;
    }
    let mut random = Rng::with_seed(seed);
    let mut resample = Vec::with_capacity(values.len() + block_length);
    let mut estimates = Vec::with_capacity(resamples);
    for _ in 0..resamples {
        resample.clear();
        while resample.len() < values.len() {
            let start = random.usize(..=values.len() - block_length);
            resample.extend_from_slice(&values[start..start + block_length]);
        }
        resample.truncate(values.len());
        estimates.push(statistic(&resample));
    }
    estimates.sort_by(f64::total_cmp);
    all_finite(&estimates).then_some(estimates)
}

fn student_quantile(level: f64, freedom: f64) -> Option<f64> {
    if freedom < 1000.0 {
        return Some(StudentsT::new(0.0, 1.0, freedom).ok()?.inverse_cdf(level));
    }
    // statrs loses digits here; the normal quantile and two terms of its expansion in 1/freedom
    // (Abramowitz and Stegun 26.7.5) are right to nine.
    let z = Normal::new(0.0, 1.0).ok()?.inverse_cdf(level);
    let first = (z.powi(3) + z) / 4.0;
    let second = (5.0 * z.powi(5) + 16.0 * z.powi(3) + 3.0 * z) / 96.0;
    Some(z + first / freedom + second / freedom.powi(2))
}

pub(crate) fn percentile_levels(confidence: f64) -> (f64, f64) {
    ((1.0 - confidence) / 2.0, (1.0 + confidence) / 2.0)
}

/// The percentiles of the sorted estimates at which a BCa interval ends.
fn bias_corrected_levels(
    values: &[f64],
    statistic: &impl Fn(&[f64]) -> f64,
    point: f64,
    estimates: &[f64],
    confidence: f64,
) -> Option<(f64, f64)> {
    let normal = Normal::new(0.0, 1.0).ok()?;
    let below = estimates.partition_point(|&estimate| estimate < point);
    let up_to = estimates.partition_point(|&estimate| estimate <= point);
    // Ties count half, or a statistic with few values would look biased.
    let share_below = (below + up_to) as f64 / 2.0 / estimates.len() as f64;
    if !inside_unit(share_below) {
        return None;
    }
    let bias = normal.inverse_cdf(share_below);

    let mut without_one = values[1..].to_vec();
    let mut left_out = Vec::with_capacity(values.len());
    for (index, &value) in values.iter().enumerate() {
        left_out.push(statistic(&without_one));
        if let Some(slot) = without_one.get_mut(index) {
            *slot = value;
        }
    }
    let centre = mean(&left_out);
    let power_sum = |power| {
        left_out
            .iter()
            .map(|one| (centre - one).powi(power))
            .sum::<f64>()
    };
    let acceleration = power_sum(3) / (6.0 * power_sum(2).powf(1.5));

    let level = |plain: f64| {
        let shifted = bias + normal.inverse_cdf(plain);
        normal.cdf(bias + shifted / (1.0 - acceleration * shifted))
    };
    let (low, high) = percentile_levels(confidence);
    let (low, high) = (level(low), level(high));
    // The correction diverges for a strongly skewed jackknife: then its order flips.
    (inside_unit(low) && inside_unit(high) && low < high).then_some((low, high))
}

pub(crate) fn interval_between(
    estimates: &[f64],
    low: f64,
    high: f64,
    point: f64,
    confidence: f64,
) -> Option<Interval> {
    let at = |level| {
        let rank = nearest_rank(estimates.len() as u64, level)?;
        estimates.get(usize::try_from(rank).ok()?).copied()
    };
    point.is_finite().then_some(())?;
    Some(Interval {
        low: at(low)?,
        point,
        high: at(high)?,
        confidence,
    })
}

pub(crate) fn inside_unit(share: f64) -> bool {
    share > 0.0 && share < 1.0
}

pub(crate) fn all_finite(values: &[f64]) -> bool {
    values.iter().all(|value| value.is_finite())
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn median_or_nan(values: &[f64]) -> f64 {
    median(values).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SKEWED: [f64; 12] = [1.2, 0.4, 3.3, 0.9, 2.1, 7.5, 0.2, 1.8, 4.4, 0.7, 1.1, 2.6];

    /// Of 400 simulated cases, how many intervals cover the truth, in percent.
    fn coverage(truth: f64, mut case: impl FnMut(&mut Rng, u64) -> Interval) -> f64 {
        let mut random = Rng::with_seed(42);
        let covers = (0..400u64).filter(|&seed| {
            let interval = case(&mut random, seed);
            interval.low <= truth && truth <= interval.high
        });
        covers.count() as f64 / 4.0
    }

    fn normal_value(random: &mut Rng) -> f64 {
        let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
        radius * (std::f64::consts::TAU * random.f64()).cos()
    }

    fn exponential(random: &mut Rng, count: usize) -> Vec<f64> {
        (0..count).map(|_| -(1.0 - random.f64()).ln()).collect()
    }

    #[test]
    fn order_statistics_agree_with_scipy() {
        // scipy.stats.binom, searched for the same tail rule (SciPy 1.17.1).
        for (count, q, confidence, ranks) in [
            (20, 0.5, 0.95, (5, 14)),
            (100, 0.5, 0.95, (39, 60)),
            (1_000, 0.99, 0.95, (982, 996)),
            (100_000, 0.999, 0.99, (99_872, 99_925)),
            (1_000_000, 0.5, 0.95, (499_019, 500_980)),
            (100_000_000, 0.99999, 0.95, (99_998_937, 99_999_062)),
            (2_000_000_000, 0.5, 0.999, (999_926_421, 1_000_073_578)),
        ] {
            let found = quantile_interval_ranks(count, q, confidence);
            assert_eq!(found, Some(ranks), "{count} values, q {q}");
        }
    }

    #[test]
    fn quantile_beyond_the_reach_of_the_values_has_no_interval() {
        assert_eq!(quantile_interval_ranks(1_000, 0.9999, 0.95), None);
        assert_eq!(quantile_interval_ranks(5, 0.5, 0.95), None);
        assert_eq!(quantile_interval_ranks(6, 0.5, 0.95), Some((0, 5)));
    }

    #[test]
    fn quantile_interval_names_values_of_the_sample() {
        let sorted: Vec<f64> = (0..100).map(f64::from).collect();
        let interval = quantile_interval(&sorted, 0.5, 0.95).unwrap();
        assert_eq!(
            (interval.low, interval.point, interval.high),
            (39.0, 49.0, 60.0)
        );
    }

    #[test]
    fn mean_interval_agrees_with_scipy() {
        // scipy.stats.t.interval (SciPy 1.17.1).
        for (confidence, low, high) in [
            (0.90, 1.1019921678134637, 3.264674498853202),
            (0.95, 0.8580724738852819, 3.508594192781384),
            (0.99, 0.31325992861688645, 4.05340673804978),
        ] {
            let interval = mean_interval(&SKEWED, confidence).unwrap();
            assert!((interval.low - low).abs() < 1e-9, "{interval:?}");
            assert!((interval.high - high).abs() < 1e-9, "{interval:?}");
        }
    }

    #[test]
    fn student_quantiles_agree_with_scipy_for_few_and_many_values() {
        // scipy.stats.t.ppf(0.975, n - 1) (SciPy 1.17.1); values of deviation 1 alternate.
        for (count, t) in [
            (2usize, 12.706204736174694),
            (10, 2.262157162798205),
            (100, 1.9842169515864174),
            (1_001, 1.9623390808264074),
            (10_000, 1.960201263621357),
            (100_000, 1.9599877077718442),
            (1_000_000, 1.959966356814107),
        ] {
            let values: Vec<f64> = (0..count).map(|i| (i % 2) as f64).collect();
            let interval = mean_interval(&values, 0.95).unwrap();
            let reach = t * (0.25 / (count as f64 - 1.0)).sqrt();
            let found = (interval.high - interval.low) / 2.0;
            assert!(
                (found / reach - 1.0).abs() < 1e-6,
                "{count}: {found} against {reach}"
            );
        }
    }

    #[test]
    fn bias_corrected_bootstrap_agrees_with_scipy() {
        // scipy.stats.bootstrap(method="BCa", n_resamples=2_000_000) (SciPy 1.17.1).
        let deviation = |values: &[f64]| {
            let centre = mean(values);
            let squares: f64 = values.iter().map(|value| (value - centre).powi(2)).sum();
            (squares / values.len() as f64).sqrt()
        };
        let found = bootstrap_interval(&SKEWED, mean, 0.95, 100_000, 7).unwrap();
        assert!((found.low - 1.3333).abs() < 0.03, "{found:?}");
        assert!((found.high - 3.7750).abs() < 0.06, "{found:?}");
        let found = bootstrap_interval(&SKEWED, deviation, 0.95, 100_000, 7).unwrap();
        assert!((found.low - 1.0923).abs() < 0.03, "{found:?}");
        assert!((found.high - 3.2126).abs() < 0.06, "{found:?}");
    }

    #[test]
    fn blocks_of_one_agree_with_scipys_percentile_bootstrap() {
        let found = block_bootstrap(&SKEWED, 1, mean, 0.95, 100_000, 7).unwrap();
        assert!((found.low - 1.1917).abs() < 0.03, "{found:?}");
        assert!((found.high - 3.4250).abs() < 0.03, "{found:?}");
    }

    #[test]
    fn same_seed_gives_the_same_interval_and_another_seed_another() {
        let run = |seed| bootstrap_interval(&SKEWED, mean, 0.95, 100, seed).unwrap();
        assert_eq!(run(1), run(1));
        assert_ne!(run(1), run(2));
    }

    #[test]
    fn equal_values_give_an_interval_of_no_width() {
        let interval = bootstrap_interval(&[3.0; 5], median_or_nan, 0.95, 100, 1).unwrap();
        assert_eq!(
            (interval.low, interval.point, interval.high),
            (3.0, 3.0, 3.0)
        );
    }

    #[test]
    fn too_little_or_senseless_data_has_no_interval() {
        let median = median_or_nan;
        for values in [
            &[][..],
            &[1.0][..],
            &[1.0, f64::NAN][..],
            &[1.0, f64::INFINITY][..],
        ] {
            assert_eq!(mean_interval(values, 0.95), None);
            assert_eq!(quantile_interval(values, 0.5, 0.5), None);
            assert_eq!(bootstrap_interval(values, median, 0.95, 1000, 1), None);
            assert_eq!(block_bootstrap(values, 1, median, 0.95, 1000, 1), None);
            assert_eq!(ratio_interval(values, values, 0.95, 1000, 1), None);
        }
        for confidence in [0.0, 1.0, -1.0, 2.0, f64::NAN] {
            assert_eq!(mean_interval(&SKEWED, confidence), None);
            assert_eq!(quantile_interval(&SKEWED, 0.5, confidence), None);
            assert_eq!(
                bootstrap_interval(&SKEWED, median, confidence, 1000, 1),
                None
            );
        }
        assert_eq!(bootstrap_interval(&SKEWED, median, 0.95, 39, 1), None);
        assert!(bootstrap_interval(&SKEWED, median, 0.95, 40, 1).is_some());
        assert_eq!(block_bootstrap(&SKEWED, 0, median, 0.95, 1000, 1), None);
        assert_eq!(block_bootstrap(&SKEWED, 7, median, 0.95, 1000, 1), None);
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let (a, b) = ([2.0, 40.0, 9.0], [1.0, 10.0, 3.0]);
        let ratio = ratio_interval(&a, &b, 0.95, 1000, 1).unwrap();
        assert_eq!((ratio.min, ratio.median.point, ratio.max), (2.0, 3.0, 4.0));
        assert_eq!(
            (ratio.median.low, ratio.median.high, ratio.pairs),
            (2.0, 4.0, 3)
        );
        assert_eq!(ratio_interval(&a, &b[..2], 0.95, 1000, 1), None);
        assert_eq!(ratio_interval(&a, &[1.0, 0.0, 3.0], 0.95, 1000, 1), None);
    }

    #[test]
    fn median_of_six_values_lies_between_their_extremes_and_of_five_nobody_knows() {
        let found = median_interval(&[3.0, 1.0, 2.0, 6.0, 5.0, 4.0], 0.95).unwrap();
        assert_eq!((found.low, found.point, found.high), (1.0, 3.5, 6.0));
        assert_eq!(median_interval(&[1.0, 2.0, 3.0, 4.0, 5.0], 0.95), None);
        // Ranks 2 and 9 of ten (Conover, Practical Nonparametric Statistics, table A3).
        let ten: Vec<f64> = (1..=10).rev().map(f64::from).collect();
        let found = median_interval(&ten, 0.95).unwrap();
        assert_eq!((found.low, found.point, found.high), (2.0, 5.5, 9.0));
    }

    #[test]
    fn median_interval_covers_the_median_as_often_as_it_says() {
        let share = coverage(std::f64::consts::LN_2, |random, _| {
            let mut values = exponential(random, 101);
            values.sort_by(f64::total_cmp);
            quantile_interval(&values, 0.5, 0.95).unwrap()
        });
        assert!((93.0..=99.0).contains(&share), "{share} %");
    }

    #[test]
    fn tail_interval_covers_the_tail_as_often_as_it_says() {
        let share = coverage(100f64.ln(), |random, _| {
            let mut values = exponential(random, 2_000);
            values.sort_by(f64::total_cmp);
            quantile_interval(&values, 0.99, 0.95).unwrap()
        });
        assert!((93.0..=99.0).contains(&share), "{share} %");
    }

    #[test]
    fn student_interval_covers_the_mean_as_often_as_it_says() {
        let share = coverage(0.0, |random, _| {
            let values: Vec<f64> = (0..8).map(|_| normal_value(random)).collect();
            mean_interval(&values, 0.95).unwrap()
        });
        assert!((92.0..=98.0).contains(&share), "{share} %");
    }

    #[test]
    fn bootstrap_interval_covers_a_skewed_mean_as_often_as_it_says() {
        let share = coverage(1.0, |random, seed| {
            bootstrap_interval(&exponential(random, 50), mean, 0.95, 500, seed).unwrap()
        });
        assert!((90.0..=99.0).contains(&share), "{share} %");
    }

    #[test]
    fn ratio_interval_covers_the_true_ratio_through_shared_disturbance() {
        let share = coverage(2.0, |random, seed| {
            let (mut a, mut b) = (Vec::new(), Vec::new());
            for _ in 0..15 {
                let disturbance = 1.0 + 10.0 * random.f64();
                a.push(2.0 * disturbance * (0.1 * normal_value(random)).exp());
                b.push(disturbance * (0.1 * normal_value(random)).exp());
            }
            ratio_interval(&a, &b, 0.95, 500, seed).unwrap().median
        });
        assert!((90.0..=99.0).contains(&share), "{share} %");
    }

    #[test]
    fn blocks_cover_the_mean_of_a_dependent_series_where_single_draws_do_not() {
        let series = |random: &mut Rng| {
            let mut value = 0.0;
            let next = |_| {
                value = 0.7 * value + normal_value(random);
                value
            };
            (0..600).map(next).collect::<Vec<f64>>()
        };
        let in_blocks = coverage(0.0, |random, seed| {
            block_bootstrap(&series(random), 25, mean, 0.95, 300, seed).unwrap()
        });
        let single = coverage(0.0, |random, seed| {
            block_bootstrap(&series(random), 1, mean, 0.95, 300, seed).unwrap()
        });
        assert!((88.0..=99.0).contains(&in_blocks), "{in_blocks} %");
        assert!(single < 75.0, "{single} %");
    }
}
