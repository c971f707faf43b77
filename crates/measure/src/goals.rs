//! Searches with several goals (RFC 9971, Multiple Loss Ratio Search): each goal has a loss ratio, a trial duration, a
//! duration sum, an exceed ratio and a width. All goals use all trials, so a further goal costs only trials at loads
//! that the trials of the earlier goals do not decide.

use crate::goal::{Goal, GoalResult};
use crate::search::Limit;
use crate::throughput::{
    Method, ThroughputSearch, ThroughputSettings, ThroughputSettingsError, Wanted, verdict,
};

impl ThroughputSettings {
    /// Returns the goal of a search with these settings.
    fn goal(&self) -> Goal {
        Goal {
            loss_ratio: self.loss_tolerance,
            exceed_ratio: self.exceed_ratio,
            final_trial_duration: self.trial_seconds,
            duration_sum: self.trial_seconds * f64::from(self.votes),
            width: self.precision,
        }
    }

    /// Returns the settings of a search for another goal in the same range of loads.
    fn for_goal(&self, goal: &Goal) -> Self {
        Self {
            method: Method::Mlr,
            precision: goal.width,
            loss_tolerance: goal.loss_ratio,
            trial_seconds: goal.final_trial_duration,
            votes: goal.votes(),
            exceed_ratio: goal.exceed_ratio,
            ..*self
        }
    }
}

impl ThroughputSearch {
    /// Adds goals, which the search pursues in their order, after the goal of its settings.
    ///
    /// # Errors
    /// Returns an error for an invalid goal, or if the method is not MLRsearch.
    pub fn with_goals(mut self, goals: &[Goal]) -> Result<Self, ThroughputSettingsError> {
        if self.settings.method != Method::Mlr && !goals.is_empty() {
            return Err(ThroughputSettingsError::Goals);
        }
        for goal in goals {
            Self::new(self.settings.for_goal(goal))?;
        }
        self.goals = goals.to_vec();
        Ok(self)
    }

    /// Returns the next trial for one of the added goals; `None` if the reported trials decide all of them. The goal in
    /// the settings is not considered.
    pub(crate) fn next_of_goals(&self) -> Option<Wanted> {
        let mut goals = self.goals.iter();
        goals.find_map(|goal| self.seen_by(goal).next_of_first_goal())
    }

    /// Returns a copy of the search for the given goal, with all trials judged by that goal's loss ratio.
    fn seen_by(&self, goal: &Goal) -> Self {
        let settings = self.settings.for_goal(goal);
        let judged = self.trials.iter().map(|trial| {
            let mut trial = *trial;
            trial.verdict = verdict(&trial.outcome, settings.loss_tolerance);
            trial
        });
        Self {
            settings,
            trials: judged.collect(),
            goals: Vec::new(),
            duration_sum: goal.duration_sum,
        }
    }

    /// Returns the result for each goal, first for the goal of the settings; empty unless the method is MLRsearch.
    pub(crate) fn goal_results(&self) -> Vec<GoalResult> {
        if self.settings.method != Method::Mlr {
            return Vec::new();
        }
        let first = self.settings.goal();
        let all = std::iter::once(&first).chain(&self.goals);
        all.map(|goal| self.goal_result(goal)).collect()
    }

    fn goal_result(&self, goal: &Goal) -> GoalResult {
        let seen = self.seen_by(goal);
        let found = seen.result_of_first_goal();
        // A search that has both bounds ends once they are at most the Goal Width apart.
        let is_complete = seen.next_of_first_goal().is_none();
        let is_of_device = found.limited_by == Limit::Device;
        GoalResult {
            goal: *goal,
            regular: is_complete && is_of_device && found.rate_pps.is_some(),
            relevant_lower_bound: found.rate_pps,
            relevant_upper_bound: found.failing_pps,
            conditional_throughput: found.conditional_pps,
            limited_by: found.limited_by,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::goal::EXCEED_RATIO;
    use crate::search::TrialOutcome;
    use crate::throughput::Class;
    use fastrand::Rng;

    fn settings(loss_tolerance: f64) -> ThroughputSettings {
        ThroughputSettings {
            method: Method::Mlr,
            min_pps: 1e3,
            max_pps: 2e7,
            precision: 0.005,
            loss_tolerance,
            trial_seconds: 1.0,
            votes: 5,
            exceed_ratio: EXCEED_RATIO,
        }
    }

    /// Runs a search on a device that forwards `capacity` packets per second. From nine tenths of `capacity` on, the
    /// device loses a few packets in one of fifty trials.
    fn run(mut search: ThroughputSearch, capacity: f64, seed: u64) -> crate::ThroughputResult {
        let mut random = Rng::with_seed(seed);
        while let Some(wanted) = search.next() {
            let sent = (wanted.rate_pps * wanted.seconds) as u64;
            let mut received = sent.min((capacity * wanted.seconds) as u64);
            if wanted.rate_pps > 0.9 * capacity && random.f64() < 0.02 {
                received -= received / 1_000;
            }
            let outcome = TrialOutcome {
                offered_pps: wanted.rate_pps,
                sent,
                received,
                refused: 0,
                generator_behind: false,
            };
            search.report(wanted, outcome);
        }
        search.result()
    }

    /// Returns the outcome of a trial in which the device loses the fraction `lost`.
    fn lossy(wanted: Wanted, lost: f64) -> TrialOutcome {
        let sent = (wanted.rate_pps * wanted.seconds) as u64;
        TrialOutcome {
            offered_pps: wanted.rate_pps,
            sent,
            received: sent - (sent as f64 * lost) as u64,
            refused: 0,
            generator_behind: false,
        }
    }

    #[test]
    fn searches_for_several_goals_find_the_bounds_of_separate_searches() {
        let goals: [Goal; 2] = [
            "loss=0.5%,sum=5,width=0.5%".parse().unwrap(),
            "loss=10%,sum=5,width=0.5%".parse().unwrap(),
        ];
        for capacity in [5e4, 1.3e6, 8e6] {
            let search = ThroughputSearch::new(settings(0.0)).unwrap();
            let together = run(search.with_goals(&goals).unwrap(), capacity, 1);
            assert!(
                together.complete && together.goals.len() == 3,
                "{together:?}"
            );
            let mut apart = 0;
            for (result, loss) in together.goals.iter().zip([0.0, 0.005, 0.1]) {
                let alone = run(ThroughputSearch::new(settings(loss)).unwrap(), capacity, 1);
                apart += alone.trials.len();
                assert!(result.regular, "{result:?}");
                let (low, high) = (result.relevant_lower_bound, result.relevant_upper_bound);
                let truth = capacity / (1.0 - loss);
                assert!(
                    low.unwrap() <= truth * 1.000_1 && high.unwrap() >= truth * 0.99,
                    "{result:?}"
                );
                let ratio = low.unwrap() / alone.rate_pps.unwrap();
                assert!((0.99..1.01).contains(&ratio), "{ratio} {result:?}");
            }
            assert!(
                together.trials.len() < apart,
                "{} {apart}",
                together.trials.len()
            );
        }
    }

    #[test]
    fn the_conditional_throughput_stays_below_the_load_with_loss() {
        let search = ThroughputSearch::new(settings(0.0)).unwrap();
        let goals: [Goal; 1] = ["loss=10%,sum=5".parse().unwrap()];
        let found = run(search.with_goals(&goals).unwrap(), 1e6, 3);
        let lossy = &found.goals[1];
        assert!(lossy.relevant_lower_bound.unwrap() > 1.09e6);
        assert!(
            lossy.conditional_throughput.unwrap() <= 1e6 * 1.001,
            "{lossy:?}"
        );
    }

    #[test]
    fn a_search_without_a_failing_load_is_reported_as_irregular() {
        let found = run(ThroughputSearch::new(settings(0.0)).unwrap(), 1e9, 1);
        let only = &found.goals[0];
        assert!(!only.regular && only.relevant_upper_bound.is_none());
        assert_eq!(only.limited_by, Limit::Range);
    }

    #[test]
    fn the_duration_sum_may_be_a_fraction_of_trial_durations() {
        let mut search = ThroughputSearch::new(settings(0.0)).unwrap();
        let wanted = Wanted {
            rate_pps: 1e6,
            seconds: 1.0,
        };
        search.report(wanted, lossy(wanted, 0.5));
        // One bad second is more than 40 % of 2.4 s and less than 40 % of 3 s.
        for (sum, class) in [("2.4", Class::Fails), ("3", Class::Undecided)] {
            let goal: Goal = format!("loss=0,exceed=0.4,sum={sum}").parse().unwrap();
            let seen = search.seen_by(&goal);
            assert_eq!(seen.classes(goal.duration_sum), [(1e6, class)], "{sum}");
        }
    }

    #[test]
    fn long_trials_weigh_more_in_the_conditional_throughput() {
        let mut search = ThroughputSearch::new(ThroughputSettings {
            loss_tolerance: 0.2,
            votes: 4,
            ..settings(0.0)
        })
        .unwrap();
        for (seconds, lost) in [(3.0, 0.0), (1.0, 0.1)] {
            let wanted = Wanted {
                rate_pps: 1e6,
                seconds,
            };
            search.report(wanted, lossy(wanted, lost));
        }
        assert_eq!(search.result_of_first_goal().conditional_pps, Some(1e6));
    }

    #[test]
    fn several_goals_need_the_method_of_mlrsearch() {
        let goal: Goal = "loss=0.5%".parse().unwrap();
        let binary = ThroughputSettings {
            method: Method::Binary,
            ..settings(0.0)
        };
        assert!(
            ThroughputSearch::new(binary)
                .unwrap()
                .with_goals(&[goal])
                .is_err()
        );
    }
}
