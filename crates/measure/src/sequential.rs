//! The sequential comparison of two programs that run in pairs: after each pair it reports whether the second program
//! is worse than a limit. Reading the result after every pair does not cause more false alarms.
//!
//! # Method
//!
//! A pair runs both programs once, in random order. Its value is the log ratio `ln(head / base)`. If the programs do
//! not differ, only the random order decides the sign of that value, whatever else runs on the machine. Drift, bursts
//! and autocorrelation change its size, never the probability of its sign. If `head` takes a constant factor `r` of the
//! time of `base`, the same holds for the value less `ln(r)`.
//!
//! The test bets on that sign. Starting with 1, a stake `s` multiplies the wealth by `1 + tanh(s g)`, where `g` is the
//! value less the limit, divided by the scatter of the earlier pairs, and clipped. `g` is as likely as `-g` if the
//! ratio is the limit, so the expected factor is 1, and at most 1 if the ratio is below. By Ville's inequality the
//! wealth then ever reaches `1 / level` with a probability of at most `level`. The inverse of the maximum wealth is an
//! always-valid p-value. (Ramdas, Grünwald, Vovk and Shafer 2023, "Game-theoretic statistics and safe anytime-valid
//! inference", section 4. The symmetric case is de la Peña's, 1999.) Several stakes run side by side with equal shares
//! of the initial wealth, so that the test suits small and large differences.

use crate::interval::{Interval, IntervalMethod};
use crate::rank::median;
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// The stakes that share the initial wealth. The best stake is the difference between the programs, divided by the
/// scatter of the pairs.
const STAKES: [f64; 7] = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2];

/// Limit of a pair's influence, in multiples of the scatter: a pair during which the machine stood still counts as one
/// pair.
const CLIP: f64 = 2.0;

/// The ratio of the median absolute deviation to the standard deviation of a normal distribution.
const DEVIATION_OF_NORMAL: f64 = 0.674_489_750_196_081_7;

/// Fraction of comparisons that must find an effect for it to be called detectable.
pub const POWER: f64 = 0.8;

/// Number of comparisons that [`Sequential::pairs_needed`] simulates.
const SIMULATED: usize = 100;

/// Number of simulated comparisons that must find an effect: the fraction [`POWER`] of [`SIMULATED`].
const NEEDED: usize = 80;

/// Seed of the simulation in [`Sequential::pairs_needed`].
const SEED: u64 = 1;

/// Bets that values are above 0; they win only if the values are more often above than below 0.
#[derive(Debug, Clone, Default)]
struct Bets {
    /// Logarithm of the wealth of each stake.
    log_wealth: [f64; STAKES.len()],
    /// Logarithm of the highest mean wealth that the bets have reached, at least 0.
    most: f64,
}

impl Bets {
    /// Settles the bets on `value` > 0. `scatter` must depend only on earlier values.
    fn settle(&mut self, value: f64, scatter: f64) {
        let size = if scatter > 0.0 {
            (value / scatter).clamp(-CLIP, CLIP)
        } else if value == 0.0 {
            0.0
        } else {
            CLIP.copysign(value)
        };
        for (log_wealth, stake) in self.log_wealth.iter_mut().zip(STAKES) {
            *log_wealth += (stake * size).tanh().ln_1p();
        }
        let highest = self.log_wealth.into_iter().fold(f64::MIN, f64::max);
        let sum: f64 = self
            .log_wealth
            .iter()
            .map(|log| (log - highest).exp())
            .sum();
        let wealth = highest + (sum / STAKES.len() as f64).ln();
        self.most = self.most.max(wealth);
    }

    /// Returns the always-valid p-value of "values are not more often above than below 0".
    fn p_value(&self) -> f64 {
        (-self.most).exp()
    }
}

/// The decision of the comparison after a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Decision {
    /// The ratio head / base is above the limit.
    Worse,
    /// The ratio head / base is below the limit.
    Within,
    /// The recorded pairs do not suffice for a decision.
    Open,
}

/// The comparison of two programs, pair by pair.
///
/// ```
/// use taut_measure::sequential::{Decision, Sequential};
/// // The second program takes 10 % longer, the limit is 3 %, and one of 100 decisions may be wrong.
/// let mut comparison = Sequential::new(1.03, 0.01);
/// let noise = [0.99, 1.01, 1.02, 0.98, 1.0, 1.01, 0.99, 1.02, 0.98, 1.0, 1.01, 0.99];
/// let found = noise.map(|noise| comparison.record(100.0, 110.0 * noise));
/// assert_eq!(found[1], Decision::Open);
/// assert_eq!(found[11], Decision::Worse);
/// assert!((comparison.ratio(0.95).unwrap().point - 1.1).abs() < 0.01);
/// ```
#[derive(Debug, Clone)]
pub struct Sequential {
    /// Logarithm of the limit: the highest ratio head / base that does not count as worse.
    limit: f64,
    level: f64,
    above: Bets,
    below: Bets,
    /// The log ratio of each pair.
    values: Vec<f64>,
    /// For each pair, the scatter (standard deviation, estimated robustly) of the log ratios of all earlier pairs.
    scatters: Vec<f64>,
    decision: Decision,
}

impl Sequential {
    /// Begins a comparison. `limit` is the highest ratio head / base that is not worse, such as 1.03. `level` is the
    /// highest probability of a wrong [`Decision::Worse`], and of a wrong [`Decision::Within`], however many pairs are
    /// run; 0 to 1, both excluded.
    pub fn new(limit: f64, level: f64) -> Self {
        Self {
            limit: limit.ln(),
            level,
            above: Bets::default(),
            below: Bets::default(),
            values: Vec::new(),
            scatters: Vec::new(),
            decision: Decision::Open,
        }
    }

    /// Records the values of a pair, both above zero, and returns the decision. Later pairs do not change a decision.
    pub fn record(&mut self, base: f64, head: f64) -> Decision {
        let scatter = scatter(&self.values);
        // The difference is finite even where the ratio is not, and changes only its sign with exchanged values.
        self.record_log_ratio(head.ln() - base.ln(), scatter)
    }

    fn record_log_ratio(&mut self, value: f64, scatter: f64) -> Decision {
        self.above.settle(value - self.limit, scatter);
        self.below.settle(self.limit - value, scatter);
        self.values.push(value);
        self.scatters.push(scatter);
        if self.decision == Decision::Open {
            self.decision = if self.above.p_value() <= self.level {
                Decision::Worse
            } else if self.below.p_value() <= self.level {
                Decision::Within
            } else {
                Decision::Open
            };
        }
        self.decision
    }

    /// Returns the decision after all recorded pairs.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Returns the number of recorded pairs.
    pub fn pairs(&self) -> usize {
        self.values.len()
    }

    /// Returns the always-valid p-value of "head is at most as bad as the limit": small if head is worse.
    pub fn p_worse(&self) -> f64 {
        self.above.p_value()
    }

    /// Returns the always-valid p-value of "head is at least as bad as the limit": small if head is within it.
    pub fn p_within(&self) -> f64 {
        self.below.p_value()
    }

    /// Returns the median of the ratios head / base; `None` before the first pair.
    pub fn median_ratio(&self) -> Option<f64> {
        median(&self.values).map(f64::exp)
    }

    /// Returns the median ratio head / base with the interval of the ratios that the recorded pairs do not exclude.
    /// With the probability `confidence`, the true ratio is in every interval of a sequence with one interval after
    /// each pair. Each is therefore wider than an interval for a number of pairs that is fixed in advance. Returns `None` if the pairs are too few to bound the ratio: six or
    /// fewer for 95 %.
    pub fn ratio(&self, confidence: f64) -> Option<Interval> {
        let point = median(&self.values)?;
        let level = (1.0 - confidence) / 2.0;
        Some(Interval {
            low: self.bound(level, point, -1.0)?.exp(),
            point: point.exp(),
            high: self.bound(level, point, 1.0)?.exp(),
            confidence,
            count: self.values.len() as u64,
            method: IntervalMethod::AlwaysValid,
        })
    }

    /// Returns the log ratio nearest to `point` that the bets exclude at `level`, above `point` if `sign` is 1, below
    /// if it is -1. Returns `None` if the bets exclude no ratio within a factor of e^32.
    fn bound(&self, level: f64, point: f64, sign: f64) -> Option<f64> {
        let excluded = |distance: f64| {
            let at = point + sign * distance;
            let mut bets = Bets::default();
            for (value, scatter) in self.values.iter().zip(&self.scatters) {
                bets.settle(sign * (at - value), *scatter);
            }
            bets.p_value() <= level
        };
        let (mut inside, mut outside) = (0.0, 32.0);
        if !excluded(outside) {
            return None;
        }
        for _ in 0..40 {
            let middle = f64::midpoint(inside, outside);
            if excluded(middle) {
                outside = middle;
            } else {
                inside = middle;
            }
        }
        Some(point + sign * outside)
    }

    /// Returns the smallest detectable ratio head / base, as a factor above 1 of the limit: `pairs` pairs find it with
    /// a probability of [`POWER`], given the scatter of the recorded pairs. Returns `None` with fewer than four pairs,
    /// or if not even a factor of two is found.
    pub fn smallest_detectable(&self, pairs: usize) -> Option<f64> {
        // Steps of a factor of 2^(1/4) from 0.1 % on. The simulations of all steps draw the same pairs, so that a larger
        // effect is found where a smaller one is.
        let effects: Vec<f64> = (0..=40)
            .map(|step| 1.0 + (0.001 * 2_f64.powf(f64::from(step) / 4.0)).min(1.0))
            .collect();
        let is_missed = |factor: &f64| self.pairs_needed(*factor, pairs).is_none();
        effects.get(effects.partition_point(is_missed)).copied()
    }

    /// Returns the number of pairs within which a comparison finds a head whose ratio is `factor` times the limit, with
    /// a probability of [`POWER`]. It assumes the scatter of the recorded pairs. For a factor below 1, it returns the
    /// number within which the comparison finds that head is within the limit. Returns `None` with fewer than four
    /// pairs, or if `most` pairs do not suffice. The same pairs give the same number: the seed of the simulation is
    /// fixed.
    pub fn pairs_needed(&self, factor: f64, most: usize) -> Option<usize> {
        if self.values.len() < 4 {
            return None;
        }
        let middle = median(&self.values)?;
        let scatter = scatter(&self.values);
        let effect = factor.ln();
        let wanted = if effect > 0.0 {
            Decision::Worse
        } else {
            Decision::Within
        };
        let mut random = Rng::with_seed(SEED);
        let mut lengths: Vec<usize> = Vec::new();
        for _ in 0..SIMULATED {
            let mut simulated = Self::new(self.limit.exp(), self.level);
            for pair in 1..=most {
                let residual = self.values[random.usize(..self.values.len())] - middle;
                let residual = if random.bool() { residual } else { -residual };
                let value = self.limit + effect + residual;
                let decision = simulated.record_log_ratio(value, scatter);
                if decision == wanted {
                    lengths.push(pair);
                }
                if decision != Decision::Open {
                    break;
                }
            }
        }
        lengths.sort_unstable();
        lengths.get(NEEDED - 1).copied()
    }
}

/// Returns the scatter of the values: the standard deviation that a normal distribution with their median absolute
/// deviation has; 0 with fewer than three values.
fn scatter(values: &[f64]) -> f64 {
    if values.len() < 3 {
        return 0.0;
    }
    let Some(middle) = median(values) else {
        return 0.0;
    };
    let deviations: Vec<f64> = values.iter().map(|value| (value - middle).abs()).collect();
    median(&deviations).map_or(0.0, |deviation| deviation / DEVIATION_OF_NORMAL)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LEVEL: f64 = 0.01;

    /// A simulated machine that other programs disturb: drift, bursts that last over several runs, two clock
    /// frequencies, and rare pauses. No disturbance depends on which of the two compared programs is run.
    struct Machine {
        random: Rng,
        drift: f64,
        burst: f64,
        is_slow: bool,
    }

    impl Machine {
        fn new(seed: u64) -> Self {
            Self {
                random: Rng::with_seed(seed),
                drift: 0.0,
                burst: 0.0,
                is_slow: false,
            }
        }

        /// Returns the time of a run that takes `alone` on a machine without other programs.
        fn run(&mut self, alone: f64) -> f64 {
            let normal: f64 = (0..12).map(|_| self.random.f64()).sum::<f64>() - 6.0;
            self.drift = 0.95 * self.drift + 0.005 * normal;
            self.burst *= 0.7;
            if self.random.f64() < 0.05 {
                self.burst += 0.3 * self.random.f64();
            }
            if self.random.f64() < 0.02 {
                self.is_slow = !self.is_slow;
            }
            let pause = if self.random.f64() < 0.01 { 10.0 } else { 0.0 };
            let clock = if self.is_slow { 1.25 } else { 1.0 };
            let noise = 0.01 * (self.random.f64() - 0.5);
            alone * clock * (self.drift + noise).exp() * (1.0 + self.burst + pause)
        }
    }

    /// Compares two programs, of which the second takes `ratio` times as long, for at most `most` pairs.
    fn compare(seed: u64, ratio: f64, limit: f64, most: usize) -> Sequential {
        let mut machine = Machine::new(seed);
        let mut comparison = Sequential::new(limit, LEVEL);
        for _ in 0..most {
            let (base, head) = if machine.random.bool() {
                let base = machine.run(1.0);
                (base, machine.run(ratio))
            } else {
                let head = machine.run(ratio);
                (machine.run(1.0), head)
            };
            if comparison.record(base, head) != Decision::Open {
                break;
            }
        }
        comparison
    }

    /// Returns the fractions of comparisons that end with [`Decision::Worse`] and with [`Decision::Within`].
    fn shares(ratio: f64, limit: f64, most: usize, runs: u64) -> [f64; 2] {
        let found: Vec<Decision> = (0..runs)
            .map(|seed| compare(seed, ratio, limit, most).decision())
            .collect();
        [Decision::Worse, Decision::Within].map(|wanted| {
            let count = found.iter().filter(|decision| **decision == wanted).count();
            count as f64 / runs as f64
        })
    }

    #[test]
    fn equal_programs_on_a_busy_machine_are_rarely_called_worse() {
        // At the limit itself, where a wrong decision is most likely. The standard error of 1 % in 2,000 is 0.22 %.
        for (ratio, limit) in [(1.0, 1.0), (1.03, 1.03)] {
            let [worse, within] = shares(ratio, limit, 200, 2_000);
            assert!(worse <= LEVEL + 0.007, "{ratio} {limit}: {worse}");
            assert!(within <= LEVEL + 0.007, "{ratio} {limit}: {within}");
        }
        assert_eq!(shares(1.0, 1.03, 200, 500)[0], 0.0);
    }

    #[test]
    fn a_clearly_slower_program_is_found_on_a_busy_machine() {
        let [found, _] = shares(1.1, 1.03, 200, 200);
        assert!(found > 0.95, "{found}");
        let [_, cleared] = shares(1.0, 1.05, 200, 200);
        assert!(cleared > 0.9, "{cleared}");
    }

    #[test]
    fn exchanging_the_programs_exchanges_the_decisions() {
        let mut machine = Machine::new(7);
        let (mut one, mut other) = (
            Sequential::new(1.02, LEVEL),
            Sequential::new(1.0 / 1.02, LEVEL),
        );
        for _ in 0..60 {
            let (base, head) = (machine.run(1.0), machine.run(1.1));
            let exchanged = match other.record(head, base) {
                Decision::Worse => Decision::Within,
                Decision::Within => Decision::Worse,
                Decision::Open => Decision::Open,
            };
            assert_eq!(one.record(base, head), exchanged);
        }
        assert_eq!(one.decision(), Decision::Worse);
        assert!((one.p_worse() - other.p_within()).abs() < 1e-12);
    }

    #[test]
    fn intervals_contain_the_true_ratio_throughout_a_sequential_comparison() {
        let mut missed = 0;
        for seed in 0..300 {
            let mut machine = Machine::new(seed);
            let mut comparison = Sequential::new(1.0, LEVEL);
            let mut is_missed = false;
            for pair in 0..60 {
                let head_first = machine.random.bool();
                let first = machine.run(if head_first { 1.07 } else { 1.0 });
                let second = machine.run(if head_first { 1.0 } else { 1.07 });
                let (base, head) = if head_first {
                    (second, first)
                } else {
                    (first, second)
                };
                comparison.record(base, head);
                if pair % 10 == 9 {
                    let interval = comparison.ratio(0.9).unwrap();
                    is_missed |= interval.low > 1.07 || interval.high < 1.07;
                    assert!(interval.low <= interval.point && interval.point <= interval.high);
                }
            }
            missed += u32::from(is_missed);
        }
        // 30 of 300 are allowed on average; five standard errors more are 26.
        assert!(missed <= 56, "{missed}");
    }

    #[test]
    fn equal_and_huge_values_lead_to_the_correct_decision() {
        let mut equal = Sequential::new(1.03, LEVEL);
        let decisions: Vec<Decision> = (0..12).map(|_| equal.record(5.0, 5.0)).collect();
        assert_eq!(decisions[11], Decision::Within);
        assert!(equal.p_worse() == 1.0 && equal.ratio(0.95).unwrap().point == 1.0);
        let mut huge = Sequential::new(1.03, LEVEL);
        for _ in 0..12 {
            huge.record(f64::MIN_POSITIVE, f64::MAX);
        }
        assert_eq!(huge.decision(), Decision::Worse);
        assert_eq!(Sequential::new(1.0, LEVEL).median_ratio(), None);
        assert_eq!(Sequential::new(1.0, LEVEL).pairs_needed(2.0, 100), None);
    }

    #[test]
    fn the_estimated_number_of_pairs_agrees_with_simulated_comparisons() {
        let comparison = {
            let mut machine = Machine::new(3);
            let mut comparison = Sequential::new(1.03, LEVEL);
            for _ in 0..100 {
                let (base, head) = (machine.run(1.0), machine.run(1.0));
                comparison.record(base, head);
            }
            comparison
        };
        let needed = comparison.pairs_needed(1.05, 1_000).unwrap();
        let [found, _] = shares(1.03 * 1.05, 1.03, needed, 200);
        assert!((0.5..=0.98).contains(&found), "{needed} pairs: {found}");
        let detectable = comparison.smallest_detectable(needed).unwrap();
        assert!((1.02..=1.06).contains(&detectable), "{detectable}");
    }

    #[test]
    fn effects_below_the_smallest_detectable_effect_are_undetectable() {
        let mut machine = Machine::new(11);
        let mut comparison = Sequential::new(1.03, LEVEL);
        for pair in 0..40 {
            assert!(pair >= 4 || comparison.smallest_detectable(100).is_none());
            let (base, head) = (machine.run(1.0), machine.run(1.0));
            comparison.record(base, head);
        }
        let found = |factor: f64| comparison.pairs_needed(factor, 40).is_some();
        let smallest = comparison.smallest_detectable(40).unwrap();
        let smaller = 1.0 + (smallest - 1.0) / 2_f64.powf(0.25);
        assert!(found(smallest) && !found(smaller), "{smallest}");
        // No effect is found within five pairs.
        assert_eq!(comparison.smallest_detectable(5), None);
    }
}
