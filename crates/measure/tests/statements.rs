//! Simulation of the decision whether the ratio of two median latencies is stated, on machines whose other programs
//! interrupt both devices.
//!
//! `TAUT_STATEMENTS_MACHINES` sets the number of machines, and `TAUT_STATEMENTS_CSV` a file for the counts.

#![allow(clippy::unwrap_used)]

use fastrand::Rng;
use std::collections::BTreeMap;
use std::env;
use std::fmt::Write as _;
use taut_measure::{Bounded, Interval, LatencyHistogram, bounded_ratio_interval, disturbed_share};

/// Number of packets in a repetition.
const PACKETS: u32 = 3_000;
/// Time between two packets, ns.
const GAP_NS: f64 = 10_000.0;
/// Duration of a repetition, ns.
const SPAN_NS: f64 = PACKETS as f64 * GAP_NS;

/// Numbers of repetitions, in increasing order.
const REPETITIONS: [usize; 2] = [3, 6];
/// Standard deviations of the logarithm of a device's median over the repetitions.
const SPREADS: [f64; 4] = [0.05, 0.1, 0.2, 0.3];
/// Fractions of the time that other programs take.
const STOLEN: [f64; 4] = [0.0, 0.01, 0.03, 0.05];
/// True ratios between the latencies of two devices.
const RATIOS: [f64; 8] = [1.0, 1.05, 1.3, 2.0, 3.0, 5.0, 10.0, 50.0];

/// The law of the logarithm of a device's median over the repetitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Variation {
    /// Both devices vary by a normal distribution.
    Normal,
    /// Both devices vary by an exponential distribution, which has one long tail.
    Skewed,
    /// One device varies by an exponential distribution; the other device does not vary.
    OneSkewed,
}

const VARIATIONS: [Variation; 3] = [Variation::Normal, Variation::Skewed, Variation::OneSkewed];

/// A synthetic machine with two devices; fields that end in `_index` are positions in the lists above.
struct Machine {
    variation: Variation,
    spread_index: usize,
    stolen_index: usize,
    ratio_index: usize,
    /// Median latency of the faster device without interruptions, ns.
    median_ns: f64,
    /// Time for a packet that waited for the end of an interruption, ns.
    service_ns: f64,
    /// True if the slower device lets packets wait for a timer, so that its latencies are spread evenly.
    has_timer: bool,
}

fn normal(random: &mut Rng) -> f64 {
    let radius = (-2.0 * (1.0 - random.f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.f64()).cos()
}

fn exponential(random: &mut Rng) -> f64 {
    -(1.0 - random.f64()).ln()
}

/// Returns start and length of the interruptions in a repetition, ns. Lengths have a heavy tail: a Pareto law from
/// 20 us to 10 ms.
fn interruptions(random: &mut Rng, stolen: f64) -> Vec<(f64, f64)> {
    const SHORTEST_NS: f64 = 2e4;
    const LONGEST_NS: f64 = 1e7;
    const MEAN_NS: f64 = 5.82e4;
    let mut found = Vec::new();
    // Without stolen time the first start is infinite.
    let gap_ns = |random: &mut Rng| exponential(random) * MEAN_NS / stolen;
    let mut start_ns = gap_ns(random);
    while start_ns < SPAN_NS {
        let length_ns = SHORTEST_NS * (1.0 - random.f64()).powf(-1.0 / 1.5);
        found.push((start_ns, length_ns.min(LONGEST_NS)));
        start_ns += gap_ns(random);
    }
    found
}

fn share(interruptions: &[(f64, f64)]) -> f64 {
    interruptions.iter().map(|(_, length)| length).sum::<f64>() / SPAN_NS
}

impl Machine {
    fn draw(random: &mut Rng) -> Self {
        Self {
            variation: VARIATIONS[random.usize(..VARIATIONS.len())],
            spread_index: random.usize(..SPREADS.len()),
            stolen_index: random.usize(..STOLEN.len()),
            ratio_index: random.usize(..RATIOS.len()),
            median_ns: 1e3 * 20.0_f64.powf(random.f64()),
            service_ns: 500.0 * 10.0_f64.powf(random.f64()),
            has_timer: random.bool(),
        }
    }

    fn ratio(&self) -> f64 {
        RATIOS[self.ratio_index]
    }

    /// Returns the factors of both medians in one repetition; the median of their ratio is 1.
    fn factors(&self, random: &mut Rng) -> [f64; 2] {
        let spread = SPREADS[self.spread_index];
        let mut skewed = || spread * (exponential(random) - std::f64::consts::LN_2);
        let logarithms = match self.variation {
            Variation::Skewed => [skewed(), skewed()],
            Variation::OneSkewed => [0.0, skewed()],
            Variation::Normal => [spread * normal(random), spread * normal(random)],
        };
        logarithms.map(f64::exp)
    }

    /// Returns the median latency of a device in one repetition, with the bounds that a measurement would derive.
    fn measure(&self, random: &mut Rng, median_ns: f64, has_timer: bool) -> Option<Bounded> {
        let stolen = STOLEN[self.stolen_index];
        let pauses = interruptions(random, stolen);
        let mut next = pauses.iter().peekable();
        let mut latency = LatencyHistogram::new();
        // After an interruption, packets wait for those before them.
        let mut free_ns = 0.0_f64;
        for packet in 0..PACKETS {
            let now_ns = f64::from(packet) * GAP_NS;
            while let Some((start_ns, length_ns)) = next.next_if(|(start, _)| *start <= now_ns) {
                free_ns = free_ns.max(*start_ns) + length_ns;
            }
            let waited_ns = (free_ns - now_ns).max(0.0);
            if waited_ns > 0.0 {
                free_ns += self.service_ns;
            }
            let own_ns = if has_timer {
                2.0 * median_ns * random.f64()
            } else {
                median_ns * (0.2 * normal(random)).exp()
            };
            latency.record((own_ns + waited_ns) as u64);
        }
        // The log of the run misses some interruptions; a busy loop before the run recorded others.
        let logged = share(&pauses) * (0.5 + 0.5 * random.f64());
        let taken = logged.max(share(&interruptions(random, stolen)));
        Bounded::quantile(&latency, 0.5, disturbed_share(taken, 0.0))
    }

    /// Returns the ratio of both devices in one repetition; none if too much of the repetition was disturbed.
    fn pair(&self, random: &mut Rng) -> Option<Bounded> {
        let [over, under] = self.factors(random);
        let over_ns = self.ratio() * self.median_ns * over;
        let over = self.measure(random, over_ns, self.has_timer)?;
        let under = self.measure(random, self.median_ns * under, false)?;
        over.over(under)
    }
}

/// Numbers of simulated machines by the result of the decision on their ratio.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    machines: u32,
    /// Machines with an interval, whether stated or not.
    measured: u32,
    /// Machines whose interval contains the true ratio.
    covered: u32,
    stated: u32,
    /// Machines whose stated interval does not contain the true ratio.
    wrong: u32,
}

impl Counts {
    fn add(&mut self, found: Option<Interval>, ratio: f64) {
        let covers = found.is_some_and(|it| (it.low..=it.high).contains(&ratio));
        let is_stated = found.is_some_and(|it| it.says_something());
        self.machines += 1;
        self.measured += u32::from(found.is_some());
        self.covered += u32::from(covers);
        self.stated += u32::from(is_stated);
        self.wrong += u32::from(is_stated && !covers);
    }

    fn sum(self, other: &Self) -> Self {
        Self {
            machines: self.machines + other.machines,
            measured: self.measured + other.measured,
            covered: self.covered + other.covered,
            stated: self.stated + other.stated,
            wrong: self.wrong + other.wrong,
        }
    }
}

/// Number of repetitions, variation, and indices of spread, stolen time and true ratio.
type Group = (usize, Variation, usize, usize, usize);

fn simulated(machines: u32) -> BTreeMap<Group, Counts> {
    let mut random = Rng::with_seed(11);
    let mut counts: BTreeMap<Group, Counts> = BTreeMap::new();
    for _ in 0..machines {
        let machine = Machine::draw(&mut random);
        let all = (0..REPETITIONS[1]).map(|_| machine.pair(&mut random));
        let all: Vec<Option<Bounded>> = all.collect();
        for repetitions in REPETITIONS {
            let pairs: Vec<Bounded> = all[..repetitions].iter().flatten().copied().collect();
            let group = (
                repetitions,
                machine.variation,
                machine.spread_index,
                machine.stolen_index,
                machine.ratio_index,
            );
            let found = bounded_ratio_interval(&pairs, 0.95);
            counts.entry(group).or_default().add(found, machine.ratio());
        }
    }
    counts
}

fn csv(counts: &BTreeMap<Group, Counts>) -> String {
    let mut text =
        "repetitions,variation,spread,stolen,ratio,machines,measured,covered,stated,wrong\n"
            .to_owned();
    for ((repetitions, variation, spread, stolen, ratio), of_group) in counts {
        let Counts {
            machines,
            measured,
            covered,
            stated,
            wrong,
        } = of_group;
        let (spread, stolen, ratio) = (SPREADS[*spread], STOLEN[*stolen], RATIOS[*ratio]);
        writeln!(
            text,
            "{repetitions},{variation:?},{spread},{stolen},{ratio},{machines},{measured},{covered},{stated},{wrong}"
        )
        .unwrap();
    }
    text
}

#[test]
fn stated_ratios_are_rarely_wrong_and_clear_ratios_rarely_withheld() {
    let machines = env::var("TAUT_STATEMENTS_MACHINES");
    let machines = machines.map_or(1_000, |number| number.parse().unwrap());
    let counts = simulated(machines);
    if let Ok(path) = env::var("TAUT_STATEMENTS_CSV") {
        std::fs::write(path, csv(&counts)).unwrap();
    }
    for repetitions in REPETITIONS {
        let sum = |is_wanted: &dyn Fn(&Group) -> bool| {
            let wanted = counts.iter();
            let wanted = wanted.filter(|(group, _)| group.0 == repetitions && is_wanted(group));
            wanted.fold(Counts::default(), |sum, (_, of_group)| sum.sum(of_group))
        };
        let fraction = |part: u32, of: u32| f64::from(part) / f64::from(of);
        let all = sum(&|_| true);
        let wrong = fraction(all.wrong, all.stated);
        let clear = sum(&|group| STOLEN[group.3] == 0.03 && RATIOS[group.4] >= 2.0);
        let needlessly = 1.0 - fraction(clear.stated, clear.machines);
        println!(
            "{repetitions} repetitions: {} of {machines} stated, {wrong:.4} of them wrong; {needlessly:.4} withheld needlessly",
            all.stated
        );
        assert!(wrong <= 0.05, "{repetitions}: {all:?}");
        assert!(needlessly <= 0.2, "{repetitions}: {clear:?}");
        assert!(clear.machines > machines / 10, "{clear:?}");
        for variation in VARIATIONS {
            let all = sum(&|group| group.1 == variation);
            let covered = fraction(all.covered, all.measured);
            let error = (0.95 * 0.05 / f64::from(all.measured)).sqrt();
            assert!(covered >= 0.95 - 3.5 * error, "{variation:?}: {all:?}");
        }
    }
}
