//! Chooses the loads of MLRsearch (RFC 9971 leaves the choice to the implementation).
//!
//! The loads of a goal form a grid with the Goal Width as spacing. The bounds of a goal are therefore neighbours, and
//! the goals of a search share loads. A load leans towards the result, pass or fail, that it would have if its trials
//! ended now. Single trials narrow the range between the highest load that leans towards a pass and the lowest that
//! leans towards a failure. Once these two bounds are neighbours, further trials decide them, first the bound whose
//! result fewer trials would change. If the result of a bound changes, the bounds move.

use crate::throughput::{
    Class, SHORT, ThroughputSearch, ThroughputSettings, Wanted, bounds, class_at, fails,
};
use std::f64::consts::LN_2;

/// Distance of the next load from the lower bound, in grid steps, above which the trial is short.
const COARSE: f64 = 8.0;

/// Distance between the bounds, in grid steps, up to which only bisection narrows the range.
const FEW_STEPS: f64 = 4.0;

/// Number of rates at the start of a search whose loss determines the next lower rate. If loss hardly depends on the
/// rate, using it for more rates would lead to many small steps.
const SUGGESTING: usize = 2;

/// Ratio of a step to the previous step, while the other bound is unknown or far away.
const GROWTH: f64 = 4.0;

/// Difference of positions, in grid steps, that rounding may cause.
const ROUNDING: f64 = 1e-6;

/// The loads at multiples of the Goal Width below the highest load. A position is a number of grid steps above the
/// highest load, so it is at most 0.
struct Grid {
    min_pps: f64,
    max_pps: f64,
    /// Logarithm of the ratio of two neighbouring loads.
    step: f64,
}

impl Grid {
    fn new(settings: &ThroughputSettings) -> Self {
        Self {
            min_pps: settings.min_pps,
            max_pps: settings.max_pps,
            // The step is slightly smaller than the width, because rounding must not make it exceed the width.
            step: -(-settings.precision).ln_1p() * (1.0 - ROUNDING),
        }
    }

    fn position(&self, load_pps: f64) -> f64 {
        (load_pps.max(self.min_pps) / self.max_pps).ln() / self.step
    }

    /// Returns the load of the grid at or below `position` that is between the bounds; the middle of the bounds if the
    /// grid has no load there. Without a lower bound, the lowest load is taken instead of its neighbour.
    fn between(&self, position: f64, low: Option<f64>, high: f64) -> f64 {
        let lowest = low.map_or(f64::NEG_INFINITY, |low| {
            (self.position(low) + ROUNDING).floor() + 1.0
        });
        let highest = (self.position(high) - ROUNDING).ceil() - 1.0;
        if lowest > highest {
            return f64::midpoint(low.unwrap_or(self.min_pps), high);
        }
        let position = (position + ROUNDING).floor().clamp(lowest, highest);
        let load_pps = self.max_pps * (position * self.step).exp();
        if low.is_none() && load_pps < self.min_pps * self.step.exp() {
            self.min_pps
        } else {
            load_pps
        }
    }
}

impl ThroughputSearch {
    /// Returns the next trial of MLRsearch for the goal of the settings; `None` if its bounds are known.
    pub(crate) fn next_load(&self) -> Option<Wanted> {
        let ThroughputSettings {
            min_pps,
            max_pps,
            precision,
            trial_seconds,
            ..
        } = self.settings;
        if self.is_decided() {
            return None;
        }
        let wanted = |rate_pps, seconds| Some(Wanted { rate_pps, seconds });
        let leaning = self.leaning();
        let (low, high) = bounds(&leaning);
        let high = high.map(|(rate, _)| rate);
        let undecided = leaning.iter().find(|(rate, class)| {
            let is_between =
                low.is_none_or(|low| *rate > low) && high.is_none_or(|high| *rate < high);
            *class == Class::Undecided && is_between
        });
        // At this rate, the generator fell behind in all trials, so a short trial is repeated.
        if let Some((rate, _)) = undecided {
            return wanted(*rate, trial_seconds * SHORT);
        }
        match (low, high) {
            (_, None) => wanted(max_pps, trial_seconds),
            (None, Some(high)) if high <= min_pps => wanted(min_pps, trial_seconds),
            (Some(low), Some(high)) if high - low <= precision * high => {
                wanted(self.less_certain(low, high), trial_seconds)
            }
            (low, Some(high)) => Some(self.narrow(&leaning, low, high)),
        }
    }

    /// Returns each tried rate, in rising order, with the result that its trials would have if they ended now.
    pub(crate) fn leaning(&self) -> Vec<(f64, Class)> {
        self.classes(0.0)
    }

    /// Returns true if complete votes have found both bounds, or the only bound that exists in the range of rates.
    fn is_decided(&self) -> bool {
        let ThroughputSettings {
            min_pps,
            max_pps,
            precision,
            ..
        } = self.settings;
        match bounds(&self.classes(self.duration_sum)) {
            (Some(low), Some((high, _))) => high - low <= precision * high,
            (Some(low), None) => low >= max_pps,
            (None, Some((high, _))) => high <= min_pps,
            (None, None) => false,
        }
    }

    /// Returns the bound whose trials have not decided yet; of two such bounds the one that fewer trials would change.
    fn less_certain(&self, low: f64, high: f64) -> f64 {
        let classes = self.classes(self.duration_sum);
        let is_open = |rate| class_at(&classes, rate) == Class::Undecided;
        let exceed = self.settings.exceed_ratio;
        let certainty = |rate| {
            let [good, bad] = self.effective_seconds(rate);
            ((exceed * good - (1.0 - exceed) * bad).abs(), good + bad)
        };
        match (is_open(low), is_open(high)) {
            (true, false) => low,
            (true, true) if certainty(low) <= certainty(high) => low,
            _ => high,
        }
    }

    /// Returns a trial at a load between the bounds `low` and `high`, which are derived from the results towards which
    /// the loads lean.
    fn narrow(&self, leaning: &[(f64, Class)], low: Option<f64>, high: f64) -> Wanted {
        let grid = Grid::new(&self.settings);
        let is_begun = leaning.len() > SUGGESTING;
        let (position, reach) = match low {
            None => {
                let top = grid.position(high);
                let step = self.step_down(&grid, leaning, high);
                let by_generator = class_at(leaning, high) == Class::GeneratorFails;
                let expected = grid.position(self.expected_pps(high));
                let is_hint = !is_begun || by_generator;
                let position = if is_hint {
                    expected.min(top - step)
                } else {
                    top - step
                };
                (position, step)
            }
            Some(low) => {
                let position = self.position_between(&grid, leaning, low, high);
                (position, position - grid.position(low))
            }
        };
        let rate_pps = grid.between(position, low, high);
        let is_short = is_begun && reach > COARSE && rate_pps > self.settings.min_pps;
        let length = if is_short { SHORT } else { 1.0 };
        Wanted {
            rate_pps,
            seconds: length * self.settings.trial_seconds,
        }
    }

    /// Returns the number of grid steps from the lowest failing rate, `high`, to the next rate while no rate passes.
    fn step_down(&self, grid: &Grid, leaning: &[(f64, Class)], high: f64) -> f64 {
        let top = grid.position(high);
        let expected = grid.position(self.expected_pps(high));
        if class_at(leaning, high) == Class::GeneratorFails && expected > top - 1.0 {
            // This step halves the rate.
            return LN_2 / grid.step;
        }
        let Some(above) = next_failing(leaning, high) else {
            return 1.0;
        };
        // If the loss at the rate above predicted the rate `high`, no step has been taken yet, and the first step is
        // one grid step.
        let is_expected = grid.position(self.expected_pps(above)).floor() > top - 0.5;
        if leaning.len() <= SUGGESTING + 1 && is_expected {
            return 1.0;
        }
        GROWTH * (grid.position(above) - top)
    }

    /// Returns the position of the next rate between two bounds that are more than a grid step apart.
    fn position_between(&self, grid: &Grid, leaning: &[(f64, Class)], low: f64, high: f64) -> f64 {
        let (bottom, top) = (grid.position(low), grid.position(high));
        let steps = (top - bottom - ROUNDING).ceil();
        let middle = bottom + (0.5 * steps).floor();
        let gap_above = next_failing(leaning, high).map(|above| grid.position(above) - top);
        // True if the search stepped down from the upper to the lower bound: their distance is no longer than one
        // growing step.
        let is_step = gap_above.is_some_and(|gap| top - bottom <= 1.1 * GROWTH * gap);
        if steps <= FEW_STEPS || is_step {
            return middle;
        }
        let expected = grid.position(self.expected_pps(high));
        if expected > bottom + 1.0 && gap_above.is_none_or(|gap| gap > 2.0) {
            return expected;
        }
        let below = leaning
            .iter()
            .rfind(|(rate, class)| *rate < low && *class == Class::Holds);
        let is_suggested = (bottom - ROUNDING..bottom + 1.0).contains(&expected);
        let step = match below {
            Some((below, _)) if !is_suggested => GROWTH * (bottom - grid.position(*below)),
            _ => 1.0,
        };
        middle.min(bottom + step.max(1.0))
    }

    /// Returns the rate, packets per second, whose loss would be the tolerated one if the device carried as much as in
    /// the trials at `rate_pps`.
    fn expected_pps(&self, rate_pps: f64) -> f64 {
        let (mut sum, mut count) = (0.0, 0.0);
        for trial in self.trials.iter().filter(|t| t.asked_pps() == rate_pps) {
            sum += trial.outcome.offered_pps.min(rate_pps) * (1.0 - trial.outcome.loss_ratio());
            count += 1.0;
        }
        sum / count / (1.0 - self.settings.loss_tolerance)
    }
}

fn next_failing(leaning: &[(f64, Class)], rate_pps: f64) -> Option<f64> {
    let mut rates = leaning.iter();
    let found = rates.find(|(rate, class)| *rate > rate_pps && fails(*class));
    found.map(|(rate, _)| *rate)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::goal::{EXCEED_RATIO, Goal};
    use crate::search::TrialOutcome;
    use crate::throughput::{Method, ThroughputResult};

    /// The range of loads and the loss-free goal that FD.io CSIT uses.
    const SETTINGS: ThroughputSettings = ThroughputSettings {
        method: Method::Mlr,
        min_pps: 1e4,
        max_pps: 14_880_952.0,
        precision: 0.005,
        loss_tolerance: 0.0,
        trial_seconds: 1.0,
        votes: 21,
        exceed_ratio: EXCEED_RATIO,
    };

    /// Runs a search with a further goal of 0.5 % loss. `received` returns how many packets of a trial come back, given
    /// the trial, its number and its packets.
    fn search(mut received: impl FnMut(Wanted, u32, u64) -> u64) -> ThroughputResult {
        let goal: Goal = "loss=0.5%,sum=21,width=0.5%".parse().unwrap();
        let search = ThroughputSearch::new(SETTINGS).unwrap();
        let mut search = search.with_goals(&[goal]).unwrap();
        let mut number = 0;
        while let Some(wanted) = search.next() {
            let sent = (wanted.rate_pps * wanted.seconds) as u64;
            let outcome = TrialOutcome {
                offered_pps: wanted.rate_pps,
                sent,
                received: received(wanted, number, sent).min(sent),
                refused: 0,
                generator_behind: false,
            };
            search.report(wanted, outcome);
            number += 1;
        }
        search.result()
    }

    #[test]
    fn a_search_for_two_goals_needs_three_votes_of_trials() {
        for capacity in [2.3e4, 3.21e5, 1e6, 7.77e6, 1.3e7] {
            let found = search(|wanted, _, _| (capacity * wanted.seconds) as u64);
            let [strict, lossy] = &found.goals[..] else {
                panic!("{found:?}")
            };
            assert!(strict.regular && lossy.regular, "{found:?}");
            // Of 21 trials, 11 equal ones decide. The goals share a bound.
            assert_eq!(found.trials.len(), 1 + 3 * 11, "{capacity}");
            assert_eq!(strict.relevant_upper_bound, lossy.relevant_lower_bound);
            assert!(strict.relevant_lower_bound.unwrap() <= capacity);
            assert!(strict.relevant_upper_bound.unwrap() > capacity);
        }
    }

    #[test]
    fn constant_loss_leads_to_the_lowest_rate_in_growing_steps() {
        for lost in [0.006, 0.01, 0.05, 0.5] {
            let found = search(|_, _, sent| (sent as f64 * (1.0 - lost)) as u64);
            assert!(found.goals.iter().all(|goal| !goal.regular), "{found:?}");
            assert_eq!(found.rate_pps, None);
            let trials = found.trials.len();
            assert!(trials <= 11 + 15, "{lost}: {trials}");
        }
    }

    #[test]
    fn loss_that_hardly_depends_on_rates_suggests_no_small_steps() {
        // The device loses 0.1 % of the packets from half of its capacity on.
        let capacity = 1e6;
        let found = search(|wanted, _, sent| {
            let lost = if wanted.rate_pps > 0.5 * capacity {
                sent / 1_000
            } else {
                0
            };
            sent.min((capacity * wanted.seconds) as u64) - lost
        });
        let lower = found.goals[0].relevant_lower_bound.unwrap();
        assert!((0.497e6..=0.5e6).contains(&lower), "{lower}");
        assert!(found.trials.len() <= 4 * 11 + 25, "{}", found.trials.len());
    }

    #[test]
    fn a_random_loss_at_the_second_highest_rate_is_outvoted() {
        let found = search(|wanted, number, sent| {
            let accident = if number == 1 { sent / 1_000 } else { 0 };
            sent.min((1e6 * wanted.seconds) as u64) - accident
        });
        let lower = found.goals[0].relevant_lower_bound.unwrap();
        assert!((0.994e6..=1e6).contains(&lower), "{lower}");
    }

    #[test]
    fn adjacent_search_grid_rates_are_a_goal_width_apart() {
        let grid = Grid::new(&SETTINGS);
        let high = grid.between(-100.5, None, 14_880_952.0);
        assert_eq!(grid.position(high).round(), -101.0);
        let low = grid.between(-1e9, Some(grid.between(-103.0, None, high)), high);
        assert_eq!(grid.position(low).round(), -102.0);
        let width = (high - low) / high;
        assert!(width <= 0.005 && width > 0.004_999_9, "{width}");
        // Without a load of the grid between them, the middle of the bounds is next.
        assert_eq!(grid.between(0.0, Some(low), high), f64::midpoint(low, high));
        // Less than a step above the lowest load, the lowest load is next.
        assert_eq!(grid.between(f64::NEG_INFINITY, None, 1.001e4), 1e4);
    }
}
