//! Screening of many factors: a design of runs, and the effect of each factor with its interval. A factor is on or off
//! in a run, and all factors change at once.
//!
//! The design is that of Plackett and Burman (Biometrika 1946) from a Hadamard matrix, folded over (Box and Wilson
//! 1951). Each run has a mirrored run, so that effects contain no interactions of two factors. The
//! effects are those of least squares on the logarithms of the values, and the order of the runs is the caller's to
//! randomise.

use statrs::distribution::{ContinuousCDF, StudentsT};

use crate::compare::holm;
use crate::interval::{Interval, IntervalMethod, all_finite, inside_unit};

/// Maximum number of factors of a design.
pub const MOST_FACTORS: usize = 63;
/// Maximum number of pairs for which [`sign_flip`] counts all ways to swap the values of pairs.
const EXACT_PAIRS: usize = 16;
/// Number of random swaps of the values of pairs that [`sign_flip`] draws if there are more pairs.
const DRAWN: u32 = 20_000;

/// The effect of one factor on the measured value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactorEffect {
    /// Ratio of a value with the factor on to a value with it off.
    pub ratio: Interval,
    /// Two-sided p-value of the hypothesis that the ratio is 1.
    pub p_value: f64,
}

/// Returns the runs of a design for `factors` factors: for each run, whether each factor is on. Each factor is on in one
/// half of the runs, and each pair of factors has all four combinations equally often. Returns `None` for no factor or
/// more than [`MOST_FACTORS`].
///
/// ```
/// let runs = taut_measure::screening::design(5).unwrap();
/// assert_eq!((runs.len(), runs[0].len()), (16, 5));
/// ```
pub fn design(factors: usize) -> Option<Vec<Vec<bool>>> {
    if factors == 0 || factors > MOST_FACTORS {
        return None;
    }
    let order = (1..).map(|n| 4 * n).filter(|order| *order > factors);
    let matrix = order.into_iter().find_map(hadamard)?;
    // The first column is constant.
    let runs = matrix.iter().map(|row| row[1..=factors].to_vec());
    let runs: Vec<Vec<bool>> = runs.collect();
    let mirrored = runs
        .iter()
        .map(|run| run.iter().map(|is_on| !is_on).collect());
    Some(runs.iter().cloned().chain(mirrored).collect())
}

/// Returns a Hadamard matrix of the given order whose first column is `true`: Sylvester's doubling, or Paley's
/// construction from the squares modulo a prime. Returns `None` for orders that these two do not reach.
fn hadamard(order: usize) -> Option<Vec<Vec<bool>>> {
    match order {
        1 => return Some(vec![vec![true]]),
        0 | 3 => return None,
        _ => {}
    }
    let prime = order - 1;
    let is_prime = prime > 2 && (2..prime).all(|divisor| !prime.is_multiple_of(divisor));
    if is_prime && prime % 4 == 3 {
        return Some(paley(prime));
    }
    if !order.is_multiple_of(2) {
        return None;
    }
    let half = hadamard(order / 2)?;
    let upper = half.iter().map(|row| [row.as_slice(), row].concat());
    let lower = half.iter().map(|row| {
        let negated: Vec<bool> = row.iter().map(|cell| !cell).collect();
        [row.as_slice(), &negated].concat()
    });
    Some(upper.chain(lower).collect())
}

/// Returns the Hadamard matrix of order `prime + 1`; `prime` modulo 4 is 3.
fn paley(prime: usize) -> Vec<Vec<bool>> {
    let is_square = |value: usize| (1..prime).any(|root| root * root % prime == value);
    let mut matrix = vec![vec![true; prime + 1]];
    for row in 0..prime {
        let cell = |column: usize| column != row && is_square((prime + column - row) % prime);
        let cells = (0..prime).map(cell);
        matrix.push(std::iter::once(true).chain(cells).collect());
    }
    matrix
}

/// Returns the effect of each factor. `blocks` has the values of each repetition of the design, in the order of
/// `design`; differences between repetitions do not enter. Returns `None` without repetitions, with values that are not
/// above zero, and with incomplete repetitions.
pub fn effects(
    design: &[Vec<bool>],
    blocks: &[Vec<f64>],
    confidence: f64,
) -> Option<Vec<FactorEffect>> {
    let factors = design.first()?.len();
    let whole = |block: &Vec<f64>| {
        block.len() == design.len() && all_finite(block) && block.iter().all(|&value| value > 0.0)
    };
    if blocks.is_empty() || !blocks.iter().all(whole) || !inside_unit(confidence) {
        return None;
    }
    let centred = blocks.iter().flat_map(|block| {
        let mean = block.iter().map(|value| value.ln()).sum::<f64>() / block.len() as f64;
        block.iter().map(move |value| value.ln() - mean)
    });
    let rows: Vec<(&[bool], f64)> = (design.iter().map(Vec::as_slice).cycle())
        .zip(centred)
        .collect();
    let count = rows.len() as f64;
    let sign = |is_on: bool| if is_on { 1.0 } else { -1.0 };
    let halves: Vec<f64> = (0..factors)
        .map(|factor| {
            rows.iter()
                .map(|(run, value)| sign(run[factor]) * value)
                .sum::<f64>()
                / count
        })
        .collect();
    let residuals = rows.iter().map(|(run, value)| {
        let fitted = run.iter().zip(&halves).map(|(on, half)| sign(*on) * half);
        (value - fitted.sum::<f64>()).powi(2)
    });
    let freedom = count - blocks.len() as f64 - factors as f64;
    let variance = residuals.sum::<f64>() / freedom;
    let student = StudentsT::new(0.0, 1.0, freedom).ok()?;
    let error = 2.0 * (variance / count).sqrt();
    let reach = student.inverse_cdf(f64::midpoint(confidence, 1.0)) * error;
    let effect = |half: &f64| {
        let point = 2.0 * half;
        // Without any scatter, only an effect of exactly 0 is possible under the hypothesis.
        let p_value = match error > 0.0 {
            true => 2.0 * student.cdf(-(point / error).abs()),
            false => f64::from(u8::from(point == 0.0)),
        };
        FactorEffect {
            ratio: Interval {
                low: (point - reach).exp(),
                point: point.exp(),
                high: (point + reach).exp(),
                confidence,
                count: (rows.len() / 2) as u64,
                method: IntervalMethod::Student,
            },
            p_value,
        }
    };
    Some(halves.iter().map(effect).collect())
}

/// Returns the two-sided p-value of the randomisation test of pairs (Fisher 1935). It is the fraction of all ways to swap
/// the values of pairs for which the sum of `differences` is at least as far from zero. It holds if the order within
/// each pair was drawn at random, whatever the distribution. For more than 16 pairs, swaps are drawn from `seed`.
/// Returns `None` without differences, or with NaN or infinite ones.
pub fn sign_flip(differences: &[f64], seed: u64) -> Option<f64> {
    if differences.is_empty() || !all_finite(differences) {
        return None;
    }
    let found = differences.iter().sum::<f64>().abs();
    // Rounding must not make a swap of all values differ from no swap.
    let limit = found - found * 1e-12;
    let as_far = |swapped: u64| {
        let each = differences.iter().enumerate();
        let sign = |at: usize| if swapped >> at & 1 == 1 { -1.0 } else { 1.0 };
        each.map(|(at, value)| sign(at) * value).sum::<f64>().abs() >= limit
    };
    if differences.len() <= EXACT_PAIRS {
        let ways = 1_u64 << differences.len();
        let count = (0..ways).filter(|swapped| as_far(*swapped)).count();
        return Some(count as f64 / ways as f64);
    }
    let mut random = fastrand::Rng::with_seed(seed);
    let mut as_far_drawn = || {
        let mut draw = |value: &f64| if random.bool() { -value } else { *value };
        differences.iter().map(&mut draw).sum::<f64>().abs() >= limit
    };
    let count = (0..DRAWN).filter(|_| as_far_drawn()).count();
    // The observed assignment is one of them, so that the p-value is never understated (Phipson and Smyth 2010).
    Some((count as f64 + 1.0) / (f64::from(DRAWN) + 1.0))
}

/// Returns the smallest number of pairs with which the p-value of [`sign_flip`] can be below `level` after [`holm`]'s
/// correction for `tests` tests.
pub fn pairs_needed(tests: usize, level: f64) -> u64 {
    let is_enough = |pairs: &u32| 0.5_f64.powf(f64::from(*pairs) - 1.0) * tests as f64 <= level;
    u64::from((1..64).find(is_enough).unwrap_or(64))
}

/// Returns, for each p-value, whether the effect is stated at `level`, with [`holm`]'s correction: the probability of
/// any false statement among them is at most `level`.
pub fn stated(p_values: &[f64], level: f64) -> Vec<bool> {
    holm(p_values).iter().map(|p| *p <= level).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns the values of a synthetic machine in one repetition: each factor multiplies the value by its ratio.
    fn machine(
        design: &[Vec<bool>],
        ratios: &[f64],
        heavy: bool,
        random: &mut fastrand::Rng,
    ) -> Vec<f64> {
        let value = |run: &Vec<bool>| {
            let normal = (0..12).map(|_| random.f64()).sum::<f64>() - 6.0;
            let noise = match heavy {
                // One run in ten is three times as slow.
                true => 0.2 * normal + if random.f64() < 0.1 { 1.1 } else { 0.0 },
                false => 0.3 * normal,
            };
            let on = run
                .iter()
                .zip(ratios)
                .filter_map(|(on, ratio)| on.then_some(*ratio));
            20_000.0 * on.product::<f64>() * noise.exp()
        };
        design.iter().map(value).collect()
    }

    #[test]
    fn every_pair_of_factors_is_balanced_in_each_design() {
        for factors in [1, 2, 3, 7, 11, 12, 19, 24, 40, MOST_FACTORS] {
            let runs = design(factors).unwrap();
            assert!(runs.len() <= 4 * (factors + 4), "{factors}: {}", runs.len());
            for a in 0..factors {
                let on = runs.iter().filter(|run| run[a]).count();
                assert_eq!(2 * on, runs.len(), "factor {a} of {factors}");
                for b in 0..a {
                    let both = runs.iter().filter(|run| run[a] && run[b]).count();
                    assert_eq!(4 * both, runs.len(), "{a} and {b} of {factors}");
                }
            }
        }
        assert_eq!((design(0), design(MOST_FACTORS + 1)), (None, None));
    }

    #[test]
    fn interactions_of_two_factors_do_not_change_main_effects() {
        let runs = design(7).unwrap();
        let value = |run: &Vec<bool>| if run[0] == run[1] { 400.0 } else { 100.0 };
        let block: Vec<f64> = runs.iter().map(value).collect();
        for effect in effects(&runs, &[block], 0.95).unwrap() {
            assert!((effect.ratio.point - 1.0).abs() < 1e-9, "{effect:?}");
        }
    }

    #[test]
    fn known_effects_of_a_synthetic_machine_are_found() {
        let mut random = fastrand::Rng::with_seed(5);
        let runs = design(8).unwrap();
        let mut ratios = [1.0; 8];
        (ratios[2], ratios[5]) = (0.5, 1.6);
        let blocks: Vec<_> = (0..4)
            .map(|_| machine(&runs, &ratios, true, &mut random))
            .collect();
        let found = effects(&runs, &blocks, 0.95).unwrap();
        let p_values: Vec<f64> = found.iter().map(|effect| effect.p_value).collect();
        let said = stated(&p_values, 0.05);
        let expected: Vec<bool> = ratios.iter().map(|ratio| *ratio != 1.0).collect();
        assert_eq!(said, expected, "{found:?}");
        assert!(found[2].ratio.high < 1.0 && found[5].ratio.low > 1.0);
    }

    #[test]
    fn the_false_positive_rate_is_at_most_the_significance_level() {
        let mut random = fastrand::Rng::with_seed(11);
        let runs = design(8).unwrap();
        for heavy in [false, true] {
            let (mut any, mut covered) = (0, 0);
            const TRIES: u32 = 400;
            for _ in 0..TRIES {
                let blocks: Vec<_> = (0..2)
                    .map(|_| machine(&runs, &[1.0; 8], heavy, &mut random))
                    .collect();
                let found = effects(&runs, &blocks, 0.95).unwrap();
                let p_values: Vec<f64> = found.iter().map(|effect| effect.p_value).collect();
                any += u32::from(stated(&p_values, 0.05).contains(&true));
                let holds = |e: &&FactorEffect| e.ratio.low <= 1.0 && 1.0 <= e.ratio.high;
                covered += found.iter().filter(holds).count();
            }
            // Bounds are four standard errors from the nominal values.
            assert!(f64::from(any) / f64::from(TRIES) < 0.05 + 0.044, "{any}");
            let share = covered as f64 / f64::from(8 * TRIES);
            assert!(share > 0.95 - 0.016, "{share}");
        }
    }

    #[test]
    fn swapped_pairs_have_the_p_values_of_an_exact_count() {
        assert_eq!(sign_flip(&[1.0; 6], 1), Some(2.0 / 64.0));
        assert_eq!(sign_flip(&[1.0, -1.0], 1), Some(1.0));
        assert_eq!(sign_flip(&[], 1), None);
        // More pairs are drawn: the p-value of equal signs is the smallest possible.
        let drawn = sign_flip(&[1.0; 20], 1).unwrap();
        assert!(drawn < 1e-3 && drawn > 0.0, "{drawn}");
        assert_eq!((pairs_needed(1, 0.05), pairs_needed(12, 0.025)), (6, 10));
    }

    #[test]
    fn equal_pairs_are_declared_different_rarely() {
        let mut random = fastrand::Rng::with_seed(3);
        const TRIES: u32 = 1_000;
        let mut said = 0;
        for _ in 0..TRIES {
            // Skewed values; the two of a pair have one distribution.
            let mut value = || -> f64 { 1.0 / (1.0 - random.f64()).sqrt() };
            let pairs: Vec<f64> = (0..8).map(|_| value().ln() - value().ln()).collect();
            said += u32::from(sign_flip(&pairs, 1).unwrap() <= 0.05);
        }
        assert!(f64::from(said) / f64::from(TRIES) < 0.05 + 0.028, "{said}");
    }

    #[test]
    fn incomplete_or_invalid_repetitions_have_no_effects() {
        let runs = design(3).unwrap();
        assert_eq!(effects(&runs, &[], 0.95), None);
        assert_eq!(effects(&runs, &[vec![1.0; 7]], 0.95), None);
        assert_eq!(effects(&runs, &[vec![0.0; 8]], 0.95), None);
        // Values without scatter have an effect of exactly 1.
        let same = effects(&runs, &[vec![5.0; 8]], 0.95).unwrap();
        assert!(
            same.iter()
                .all(|effect| (effect.ratio.point, effect.p_value) == (1.0, 1.0))
        );
    }
}
