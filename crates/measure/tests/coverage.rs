//! Simulations that check whether every interval covers the true value as often as it claims, for benign and for
//! difficult distributions, at the numbers of repetitions in use.

#![allow(clippy::unwrap_used)]

use fastrand::Rng;
use taut_measure::{Interval, compare, mean_beside_median, median_interval, ratio_interval};

const CASES: u32 = 2_000;
const REPETITIONS: [usize; 10] = [2, 3, 4, 5, 6, 7, 8, 10, 20, 30];

/// The distributions that the values of repetitions have in these tests, with their medians.
#[derive(Debug, Clone, Copy)]
enum Law {
    Normal,
    /// Lognormal distribution: a heavy multiplicative spread.
    Lognormal,
    /// Pareto distribution: infinite variance, with a heavy tail on one side.
    Pareto,
    /// Student's t distribution: infinite variance, with heavy tails on both sides.
    Student2,
    /// In each repetition, the machine pauses with probability 0.1, which adds 1,000 to the value.
    Pauses,
}

const LAWS: [Law; 5] = [
    Law::Normal,
    Law::Lognormal,
    Law::Pareto,
    Law::Student2,
    Law::Pauses,
];

fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

impl Law {
    fn draw(self, random: &mut Rng) -> f64 {
        let uniform = 1.0 - random.f64();
        match self {
            Self::Normal => 10.0 + normal(random),
            Self::Lognormal => normal(random).exp(),
            Self::Pareto => uniform.powf(-1.0 / 1.5),
            // Student's t with two degrees of freedom is a normal value divided by the root of an exponential value.
            Self::Student2 => normal(random) / (-uniform.ln()).sqrt(),
            Self::Pauses => {
                let paused = if random.f64() < 0.1 { 1_000.0 } else { 0.0 };
                1.0 - uniform.ln() + paused
            }
        }
    }

    fn median(self) -> f64 {
        match self {
            Self::Normal => 10.0,
            Self::Lognormal => 1.0,
            Self::Pareto => 2.0_f64.powf(1.0 / 1.5),
            Self::Student2 => 0.0,
            // The median x solves 0.9 (1 - exp(1 - x)) = 0.5.
            Self::Pauses => 1.0 - (4.0_f64 / 9.0).ln(),
        }
    }

    fn values(self, random: &mut Rng, count: usize) -> Vec<f64> {
        (0..count).map(|_| self.draw(random)).collect()
    }
}

/// Runs `case` many times. Returns the fraction of its intervals that covered `truth`, and the lowest confidence that
/// an interval claimed.
fn covered(truth: f64, case: impl FnMut(&mut Rng) -> Interval) -> (f64, f64) {
    covered_of(CASES, truth, case)
}

fn covered_of(cases: u32, truth: f64, mut case: impl FnMut(&mut Rng) -> Interval) -> (f64, f64) {
    let mut random = Rng::with_seed(42);
    let (mut covers, mut claimed) = (0, 1.0_f64);
    for _ in 0..cases {
        let interval = case(&mut random);
        covers += u32::from((interval.low..=interval.high).contains(&truth));
        claimed = claimed.min(interval.confidence);
    }
    (f64::from(covers) / f64::from(cases), claimed)
}

/// Fails if the coverage is below the claim by more than chance explains: 3.5 standard errors, about one in 4,000 of
/// the checks here.
fn holds(what: &str, (covered, claimed): (f64, f64)) {
    let error = (claimed * (1.0 - claimed) / f64::from(CASES)).sqrt();
    assert!(
        covered >= claimed - 3.5 * error,
        "{what}: covers in {covered:.3} of the cases, claims {claimed:.3}"
    );
}

#[test]
fn median_intervals_have_the_stated_coverage() {
    for law in LAWS {
        for count in REPETITIONS {
            let median = covered(law.median(), |random| {
                median_interval(&law.values(random, count), 0.95).unwrap()
            });
            holds(&format!("median, {law:?}, n = {count}"), median);
            // The coverage must not exceed the claimed confidence either: both must be equal.
            let error = (median.1 * (1.0 - median.1) / f64::from(CASES)).sqrt();
            assert!(
                median.0 <= median.1 + 3.5 * error + 1e-9,
                "{law:?}, n = {count}: {median:?}"
            );
            let mean = covered(law.median(), |random| {
                mean_beside_median(&law.values(random, count), 0.95).unwrap()
            });
            holds(&format!("beside a mean, {law:?}, n = {count}"), mean);
        }
    }
}

#[test]
fn six_repetitions_suffice_for_a_95_percent_median_interval() {
    for count in REPETITIONS {
        let values: Vec<f64> = (0..count).map(|value| value as f64).collect();
        let claimed = median_interval(&values, 0.95).unwrap().confidence;
        assert_eq!(claimed >= 0.95, count >= 6, "{count}: {claimed}");
    }
}

#[test]
fn loss_intervals_cover_a_median_of_zero_often_enough() {
    // Most repetitions lose no packet, some lose one, and a few lose many: the median repetition loses none.
    for count in REPETITIONS {
        let found = covered(0.0, |random| {
            let losses: Vec<f64> = (0..count)
                .map(|_| match random.f64() {
                    burst if burst < 0.05 => 100.0,
                    one if one < 0.4 => 1.0,
                    _ => 0.0,
                })
                .collect();
            median_interval(&losses, 0.95).unwrap()
        });
        holds(&format!("loss, n = {count}"), found);
    }
}

#[test]
fn ratio_intervals_cover_the_true_ratio_under_autocorrelated_load() {
    // A common disturbance, an AR(1) process, affects both values of a pair. In addition, each value has lognormal
    // noise of its own, and sometimes a pause affects one value of a pair.
    for count in REPETITIONS {
        let found = covered(2.0, |random| {
            let (mut mood, mut a, mut b) = (normal(random), Vec::new(), Vec::new());
            for _ in 0..count {
                mood = 0.9 * mood + 0.19_f64.sqrt() * normal(random);
                let pause = if random.f64() < 0.05 { 10.0 } else { 1.0 };
                let (over, under) = if random.bool() {
                    (pause, 1.0)
                } else {
                    (1.0, pause)
                };
                a.push(2.0 * mood.exp() * over * (0.3 * normal(random)).exp());
                b.push(mood.exp() * under * (0.3 * normal(random)).exp());
            }
            ratio_interval(&a, &b, 0.95).unwrap().median
        });
        holds(&format!("ratio, n = {count}"), found);
    }
}

/// Returns a high percentile of the latencies in one repetition. Latencies are exponential, with a disturbance of the
/// repetition and a disturbance of each slice of ten packets. Disturbances of neighbouring slices are correlated.
fn tail_of_repetition(law: Law, random: &mut Rng) -> f64 {
    let of_repetition = 0.3 * law.draw(random);
    let mut of_slice = 0.0;
    let mut latencies: Vec<f64> = (0..200)
        .map(|packet| {
            if packet % 10 == 0 {
                of_slice = 0.5 * of_slice + 0.2 * normal(random);
            }
            of_repetition + (of_slice - (1.0 - random.f64()).ln().abs().ln()).exp()
        })
        .collect();
    let (_, tail, _) = latencies.select_nth_unstable_by(197, f64::total_cmp);
    *tail
}

#[test]
fn percentile_intervals_cover_the_median_despite_dependent_slices() {
    for law in [Law::Normal, Law::Pareto, Law::Student2] {
        // The true value is the median over many repetitions, by definition.
        let mut random = Rng::with_seed(7);
        let many: Vec<f64> = (0..20_001)
            .map(|_| tail_of_repetition(law, &mut random))
            .collect();
        let truth = taut_measure::median(&many).unwrap();
        for count in [2, 3, 6, 10] {
            let mut draws = many.iter().skip(1).copied().cycle();
            let found = covered(truth, |_| {
                let tails: Vec<f64> = draws.by_ref().take(count).collect();
                median_interval(&tails, 0.95).unwrap()
            });
            holds(&format!("p99, {law:?}, n = {count}"), found);
        }
    }
}

#[test]
fn difference_intervals_cover_the_truth_at_unequal_variances() {
    std::thread::scope(|scope| {
        for law in LAWS {
            scope.spawn(move || differences_cover_the_truth(law));
        }
    });
}

/// Checks the intervals of differences between two groups of values from `law`, where the groups may have different
/// variances.
fn differences_cover_the_truth(law: Law) {
    for scatter in [0.0, 0.3, 1.0] {
        for (runs_a, runs_b) in [(4, 4), (6, 6), (12, 9), (6, 20)] {
            // Groups with different scatter do not differ by a mere shift: the true difference is then known only for
            // symmetric distributions.
            let symmetric = matches!(law, Law::Normal | Law::Student2);
            if !symmetric && scatter != 0.0 && scatter != 1.0 {
                continue;
            }
            let found = covered(5.0, |random| {
                let off = |random: &mut Rng| law.draw(random) - law.median();
                let a: Vec<f64> = (0..runs_a).map(|_| scatter * off(random)).collect();
                let b: Vec<f64> = (0..runs_b).map(|_| 5.0 + off(random)).collect();
                compare(&a, &b, 0.95).unwrap().difference.unwrap()
            });
            holds(
                &format!("{law:?} * {scatter}, {runs_a} and {runs_b} runs"),
                found,
            );
        }
    }
}

#[test]
fn ratio_intervals_of_groups_have_the_stated_coverage() {
    for runs in [5, 8, 12] {
        for scatter in [0.1, 1.0] {
            let found = covered(3.0, |random| {
                let a: Vec<f64> = (0..runs)
                    .map(|_| (scatter * normal(random)).exp())
                    .collect();
                let b: Vec<f64> = (0..runs).map(|_| 3.0 * normal(random).exp()).collect();
                compare(&a, &b, 0.95).unwrap().ratio.unwrap()
            });
            holds(
                &format!("ratio of groups, {runs} runs, scatter {scatter}"),
                found,
            );
        }
    }
}

/// A limit of the intervals: they assume independent repetitions. If neighbours are correlated, the intervals of one
/// device alone claim too much, as docs/explanation/what-a-difference-is.md states.
#[test]
fn intervals_of_correlated_repetitions_cover_the_median_too_rarely() {
    for (count, documented) in [(6, 0.84), (10, 0.87), (30, 0.81)] {
        let (covered, claimed) = covered(0.0, |random| {
            let mut value = normal(random);
            let series: Vec<f64> = (0..count)
                .map(|_| {
                    value = 0.5 * value + 0.75_f64.sqrt() * normal(random);
                    value
                })
                .collect();
            median_interval(&series, 0.95).unwrap()
        });
        assert!(
            (covered - documented).abs() < 0.03,
            "{count}: {covered} of {claimed}"
        );
    }
}
