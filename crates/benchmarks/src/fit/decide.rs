//! The search for the most bulk load within a latency bound, and what limits it. No I/O.
//!
//! A level (amount) of bulk load is *held* if the interval of the median of the trials' percentile is at or below the
//! bound. It is *missed* if the interval is above, and else undecided, which the search treats as not held. The search
//! bisects the levels of each way to confine the load: an answer lies between the highest level held and the lowest one
//! not held above it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_measure::{Interval, median, median_interval};

/// The highest level of bulk load, which has no limit on processor time. Level 0 is without bulk load.
pub const LEVELS: u32 = 8;
/// Number of phases of the search: one without bulk load, one with unlimited bulk load, and three bisections.
pub(super) const PHASES: u32 = 5;
/// Confidence of the interval of a level's median latency.
const CONFIDENCE: f64 = 0.95;
/// Fewest trials of a level for a statement: with fewer, no interval of the median has the required confidence.
pub const LEAST_TRIALS: u64 = 6;
/// The latency in ns that counts for packets which did not come back; it is longer than any trial.
pub(super) const NEVER_NS: f64 = 1e13;

/// The statement whether the latency at a level of bulk load stays within the bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Held {
    /// The latency is within the bound.
    Held,
    /// The latency is above the bound.
    Missed,
    /// The trials do not decide: the interval contains the bound, or there are too few trials.
    Undecided,
}

/// The reason why no more bulk load fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// No limit: all of the bulk load fits.
    Nothing,
    /// Even without bulk load the latency is above the bound.
    Machine,
    /// Packets of the forwarder were lost.
    Loss,
    /// The forwarder's loop was interrupted for longer than the bound.
    ForwarderCore,
    /// The generator's loop was interrupted for longer than the bound: the measurement is the limit, not the forwarder.
    Measurement,
    /// Both loops were interrupted for longer than the bound.
    BothCores,
    /// Neither loop was interrupted for longer than the bound: packets take longer for lack of cache or memory
    /// bandwidth.
    CacheOrMemory,
    /// The trials do not decide whether the latency at the next level is within the bound.
    Undecided,
    /// The search ended before its last level.
    Unfinished,
}

/// The results of a trial that the search uses.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Seen {
    /// The latency at the chosen percentile, ns; infinite if too many packets did not come back.
    pub latency_ns: f64,
    /// Longest interruption of the forwarder's loop, ns; none if it is not recorded.
    pub forwarder_gap_ns: Option<f64>,
    /// Longest interruption of the generator's loop, ns.
    pub generator_gap_ns: f64,
    /// Processor time of the bulk load, CPUs.
    pub bulk_cpus: f64,
}

/// A level of bulk load with its trials.
#[derive(Debug, Clone, PartialEq)]
pub struct Level {
    /// The number of the level, 0 to [`LEVELS`].
    pub level: u32,
    /// The trials at this level of bulk load.
    pub trials: Vec<Seen>,
}

impl Level {
    /// Returns the median over the trials of the latency at the chosen percentile, ns, with its interval; none without
    /// trials.
    pub fn latency(&self) -> Option<Interval> {
        let values = self.trials.iter().map(|it| it.latency_ns.min(NEVER_NS));
        median_interval(&values.collect::<Vec<_>>(), CONFIDENCE)
    }

    /// Returns the median of the bulk load's processor time, CPUs, with its interval; none without trials.
    pub fn bulk_cpus(&self) -> Option<Interval> {
        let values = self.trials.iter().map(|it| it.bulk_cpus);
        median_interval(&values.collect::<Vec<_>>(), CONFIDENCE)
    }

    /// Returns the statement whether the latency at this level is within the bound.
    pub fn held(&self, bound_ns: f64) -> Held {
        match self.latency() {
            Some(it) if it.count < LEAST_TRIALS => Held::Undecided,
            Some(it) if it.high <= bound_ns => Held::Held,
            Some(it) if it.low > bound_ns => Held::Missed,
            _ => Held::Undecided,
        }
    }

    fn limit(&self, bound_ns: f64) -> Limit {
        if self.held(bound_ns) == Held::Undecided {
            return Limit::Undecided;
        }
        let middle = |value: fn(&Seen) -> Option<f64>| {
            let values: Vec<f64> = self.trials.iter().filter_map(value).collect();
            median(&values).unwrap_or(0.0) > bound_ns
        };
        let lost = self.latency().is_some_and(|it| it.point >= NEVER_NS);
        let forwarder = middle(|it| it.forwarder_gap_ns);
        let generator = middle(|it| Some(it.generator_gap_ns));
        match (lost, forwarder, generator) {
            (_, true, true) => Limit::BothCores,
            (_, true, false) => Limit::ForwarderCore,
            (_, false, true) => Limit::Measurement,
            (true, false, false) => Limit::Loss,
            (false, false, false) => Limit::CacheOrMemory,
        }
    }
}

/// The result of the search for one way to confine bulk load.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer<'a> {
    /// The highest level held (within the bound) below all that are not held; none if not even level 0 is held.
    pub held: Option<&'a Level>,
    /// The lowest level that is not held (within the bound); none if all are.
    pub not_held: Option<&'a Level>,
    /// The reason why no more bulk load fits.
    pub limit: Limit,
    /// Upper bound on the probability that any level of this search is wrongly called held or missed, 0..1.
    pub error: f64,
}

/// Returns the level of bulk load that the search measures next, given the measured ones; none at its end.
pub fn next(levels: &[Level], bound_ns: f64) -> Option<u32> {
    let (held, not_held) = ends(levels, bound_ns);
    let at = |level: Option<&Level>| level.map(|it| it.level);
    match (at(held), at(not_held)) {
        (None, None) => Some(0),
        (None, Some(_)) | (Some(LEVELS), None) => None,
        (Some(_), None) => Some(LEVELS),
        (Some(held), Some(not_held)) if not_held - held <= 1 => None,
        (Some(held), Some(not_held)) => Some(held.midpoint(not_held)),
    }
}

fn ends(levels: &[Level], bound_ns: f64) -> (Option<&Level>, Option<&Level>) {
    let is_held = |level: &&Level| level.held(bound_ns) == Held::Held;
    let not_held = levels.iter().filter(|level| !is_held(level));
    let not_held = not_held.min_by_key(|level| level.level);
    let below = |level: &&Level| not_held.is_none_or(|limit| level.level < limit.level);
    let held = levels.iter().filter(is_held).filter(below);
    (held.max_by_key(|level| level.level), not_held)
}

/// Returns the result of the search from the measured levels of bulk load.
pub fn answer(levels: &[Level], bound_ns: f64) -> Answer<'_> {
    let (held, not_held) = ends(levels, bound_ns);
    let limit = match (held, not_held) {
        _ if next(levels, bound_ns).is_some() => Limit::Unfinished,
        (None, Some(level)) if level.held(bound_ns) == Held::Missed => Limit::Machine,
        (_, Some(level)) => level.limit(bound_ns),
        _ => Limit::Nothing,
    };
    let miss = |level: &Level| {
        level
            .latency()
            .map_or(1.0, |it| (1.0 - it.confidence) / 2.0)
    };
    Answer {
        held,
        not_held,
        limit,
        error: levels.iter().map(miss).sum::<f64>().min(1.0),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const BOUND_NS: f64 = 50_000.0;

    /// Returns a level of a synthetic machine on which the latency percentile rises with the load and varies by 10 %.
    fn level(level: u32, slope: f64, gaps: [f64; 2], random: &mut fastrand::Rng) -> Level {
        let trial = |_| Seen {
            latency_ns: 20_000.0 * (1.0 + slope * f64::from(level)) * (0.9 + 0.2 * random.f64()),
            forwarder_gap_ns: Some(gaps[0]),
            generator_gap_ns: gaps[1],
            bulk_cpus: f64::from(level) / f64::from(LEVELS),
        };
        Level {
            level,
            trials: (0..6).map(trial).collect(),
        }
    }

    fn search(slope: f64, gaps: [f64; 2]) -> (Vec<Level>, u32) {
        let mut random = fastrand::Rng::with_seed(1);
        let (mut levels, mut phases) = (Vec::new(), 0);
        while let Some(at) = next(&levels, BOUND_NS) {
            levels.push(level(at, slope, gaps, &mut random));
            phases += 1;
        }
        (levels, phases)
    }

    #[test]
    fn the_search_finds_the_known_limit_of_a_synthetic_machine() {
        // At level 4 the percentile is at most 46.2 us, at level 6 at least 50.4 us; level 5 is at the bound.
        let (levels, phases) = search(0.3, [1e3, 1e3]);
        let found = answer(&levels, BOUND_NS);
        assert!(phases <= PHASES);
        assert_eq!(found.held.unwrap().level, 4);
        assert_eq!(found.not_held.unwrap().level, 5);
        assert!(found.error <= f64::from(PHASES) / 64.0 + 1e-9);
    }

    #[test]
    fn a_machine_that_always_holds_or_misses_ends_the_search() {
        let (levels, phases) = search(0.0, [1e3, 1e3]);
        let found = answer(&levels, BOUND_NS);
        assert_eq!((phases, found.held.unwrap().level), (2, LEVELS));
        assert_eq!(found.limit, Limit::Nothing);
        let mut random = fastrand::Rng::with_seed(1);
        let mut slow = level(0, 0.0, [1e3, 1e3], &mut random);
        slow.trials.iter_mut().for_each(|it| it.latency_ns += 1e5);
        let slow = [slow];
        assert_eq!(next(&slow, BOUND_NS), None);
        let found = answer(&slow, BOUND_NS);
        assert_eq!((found.held, found.limit), (None, Limit::Machine));
    }

    #[test]
    fn the_limit_is_the_loop_that_was_interrupted() {
        let limit = |gaps| answer(&search(2.0, gaps).0, BOUND_NS).limit;
        assert_eq!(limit([4e6, 1e3]), Limit::ForwarderCore);
        assert_eq!(limit([1e3, 4e6]), Limit::Measurement);
        assert_eq!(limit([4e6, 4e6]), Limit::BothCores);
        assert_eq!(limit([1e3, 1e3]), Limit::CacheOrMemory);
    }

    #[test]
    fn lost_packets_miss_every_bound() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut lossy = level(8, 0.0, [1e3, 1e3], &mut random);
        lossy
            .trials
            .iter_mut()
            .for_each(|it| it.latency_ns = f64::INFINITY);
        assert_eq!(lossy.held(BOUND_NS), Held::Missed);
        assert_eq!(lossy.limit(BOUND_NS), Limit::Loss);
    }

    #[test]
    fn few_trials_and_unfinished_searches_decide_nothing() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut short = level(0, 0.0, [1e3, 1e3], &mut random);
        short.trials.truncate(5);
        assert_eq!(short.held(BOUND_NS), Held::Undecided);
        assert_eq!(answer(&[short], BOUND_NS).limit, Limit::Undecided);
        let first = [level(0, 0.0, [1e3, 1e3], &mut random)];
        assert_eq!(answer(&first, BOUND_NS).limit, Limit::Unfinished);
    }

    #[test]
    fn a_level_at_the_bound_is_seldom_called_held() {
        // The median of the percentile is exactly the bound, the worst case: six of six trials below it are 1 in 64.
        let mut random = fastrand::Rng::with_seed(8);
        const TRIES: u32 = 4_000;
        let is_held = |_: &u32| {
            let mut at = level(0, 0.0, [0.0, 0.0], &mut random);
            at.trials.iter_mut().for_each(|it| it.latency_ns *= 2.5);
            at.held(BOUND_NS) == Held::Held
        };
        let share = (0..TRIES).filter(is_held).count() as f64 / f64::from(TRIES);
        assert!(share < 1.0 / 64.0 + 0.008, "{share}");
    }
}
