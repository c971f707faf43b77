//! Interruptions of a polling loop, which the loop detects itself when an iteration takes much longer than usual.

use crate::Clock;

/// The minimum length of an interrupted iteration. A poll of an empty ring takes some nanoseconds, an interrupt with
/// its entry and exit a microsecond or more.
const SHORTEST_NS: f64 = 1_000.0;

/// The minimum length of an interrupted iteration, as a multiple of the mean length of iterations of its kind (with or
/// without work).
const TIMES_AVERAGE: u64 = 4;

/// An interruption: a time in which the loop did not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interruption {
    /// Last cycle count before the interruption.
    pub start_ticks: u64,
    /// Cycles until the first cycle count after the interruption, including the loop's own work in that iteration.
    pub length_ticks: u64,
}

/// A watch for interruptions of a polling loop. It learns how long iterations with work and without work take. An
/// iteration counts as interrupted if it takes more than 1 µs, and more than four times the mean of its kind in the
/// preceding period.
///
/// An iteration costs one comparison with a limit ([`RoundWatch::is_interrupted`]); the loop reads the clock anyway and
/// sums up its own times. The limits follow the means whenever [`RoundWatch::adapt`] is called.
///
/// ```
/// use taut_sys::{Clock, RoundWatch};
///
/// let clock = Clock { hz: 1e9, error_ppm: 0.0 };
/// let mut watch = RoundWatch::new(&clock);
/// assert!(watch.is_interrupted(false, 1_001));
/// assert!(!watch.is_interrupted(false, 1_000));
/// // A hundred rounds with work took 600 ns each: 2.4 µs are nothing unusual.
/// watch.adapt([1_000, 100], [30_000, 60_000]);
/// assert!(!watch.is_interrupted(true, 2_400));
/// assert!(watch.is_interrupted(true, 2_401));
/// ```
#[derive(Debug, Clone)]
pub struct RoundWatch {
    /// Limits for iterations without work, and for iterations with work.
    limits_ticks: [u64; 2],
    /// Mean lengths of iterations without work, and of iterations with work.
    averages_ticks: [u64; 2],
    shortest_ticks: u64,
    /// Numbers of iterations since the start, without work and with work, as of the last call of `adapt`.
    rounds: [u64; 2],
    spent_ticks: [u64; 2],
}

impl RoundWatch {
    /// Makes a watch that knows no times yet. Before the first [`RoundWatch::adapt`], no iteration with work counts as
    /// interrupted.
    pub fn new(clock: &Clock) -> Self {
        let shortest_ticks = clock.to_ticks(SHORTEST_NS) as u64;
        Self {
            limits_ticks: [shortest_ticks, u64::MAX],
            averages_ticks: [0; 2],
            shortest_ticks,
            rounds: [0; 2],
            spent_ticks: [0; 2],
        }
    }

    /// Returns true if an iteration of `round_ticks` cycles was interrupted; `worked` is true for an iteration with
    /// work.
    #[inline(always)]
    pub fn is_interrupted(&self, worked: bool, round_ticks: u64) -> bool {
        round_ticks > self.limits_ticks[usize::from(worked)]
    }

    /// Returns the time that the interruption took from an iteration with work: the part of its length beyond the mean,
    /// or beyond `usual_ticks` if that is longer. Returns 0 if the iteration took less than four times the mean or
    /// `usual_ticks`, whichever is longer.
    pub fn taken_ticks(&self, usual_ticks: u64, round_ticks: u64) -> u64 {
        let usual = usual_ticks.max(self.averages_ticks[1]);
        match round_ticks > TIMES_AVERAGE.saturating_mul(usual) {
            true => round_ticks - usual,
            false => 0,
        }
    }

    /// Updates the limits. `rounds` are the counts of iterations, `spent_ticks` the cycles spent in them, both since
    /// the start: first without work, then with work.
    #[cold]
    pub fn adapt(&mut self, rounds: [u64; 2], spent_ticks: [u64; 2]) {
        for kind in 0..2 {
            let count = rounds[kind].saturating_sub(self.rounds[kind]);
            let spent = spent_ticks[kind].saturating_sub(self.spent_ticks[kind]);
            if let Some(average) = spent.checked_div(count) {
                self.averages_ticks[kind] = average;
                self.limits_ticks[kind] = (TIMES_AVERAGE * average).max(self.shortest_ticks);
            }
        }
        (self.rounds, self.spent_ticks) = (rounds, spent_ticks);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn watch() -> RoundWatch {
        RoundWatch::new(&Clock {
            hz: 1e9,
            error_ppm: 0.0,
        })
    }

    #[test]
    fn no_interruption_is_detected_before_the_work_cost_is_known() {
        let mut watch = watch();
        assert!(!watch.is_interrupted(true, 1_000_000));
        // There was no work yet, so the limit for iterations with work is still unknown.
        watch.adapt([100, 0], [3_000, 0]);
        assert!(!watch.is_interrupted(true, 1_000_000));
        watch.adapt([200, 10], [6_000, 20_000]);
        assert!(watch.is_interrupted(true, 8_001));
        assert_eq!(watch.taken_ticks(0, 8_001), 6_001);
        // An iteration with twice the usual work was not interrupted.
        assert_eq!(watch.taken_ticks(4_000, 8_001), 0);
        assert_eq!(watch.taken_ticks(4_000, 16_001), 12_001);
    }

    #[test]
    fn interruption_limits_adapt_to_iterations_since_the_last_adaptation() {
        let mut watch = watch();
        watch.adapt([0, 100], [0, 1_000_000]);
        assert!(!watch.is_interrupted(true, 40_000));
        watch.adapt([0, 200], [0, 1_100_000]);
        assert!(watch.is_interrupted(true, 4_001));
    }
}
