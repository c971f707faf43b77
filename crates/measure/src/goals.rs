//! Searches with several goals (RFC 9971, Multiple Loss Ratio Search): each goal has a loss ratio, a trial duration, a
//! duration sum, an exceed ratio and a width. All goals use all trials, so a further goal costs only the trials that
//! the earlier ones do not answer.
//!
//! Names of fields are those of RFC 9971, sections 4.6 (Search Goal) and 4.8 (results).

use crate::search::Limit;
use crate::throughput::{
    EXCEED_RATIO, Method, ThroughputSearch, ThroughputSettings, ThroughputSettingsError, Wanted,
    verdict,
};
use serde::{Deserialize, Serialize};

/// A Search Goal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Goal Loss Ratio: highest loss ratio of a good trial, 0..1.
    pub loss_ratio: f64,
    /// Goal Exceed Ratio: fraction of the trials at a load that may be bad, 0..1.
    pub exceed_ratio: f64,
    /// Goal Final Trial Duration, s.
    pub final_trial_duration: f64,
    /// Goal Duration Sum: duration of the trials that decide about a load, s.
    pub duration_sum: f64,
    /// Goal Width: distance of the bounds at which the search ends, as a fraction of the upper bound.
    pub width: f64,
}

/// The Goal Result of a Search Goal. Loads are packets per second, in both directions together if there are two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GoalResult {
    /// The Search Goal.
    pub goal: Goal,
    /// True for a Regular Goal Result: both bounds are known, at most the Goal Width apart, and due to the device. An
    /// Irregular Goal Result lacks a bound, or its search did not finish, or the generator limited it.
    pub regular: bool,
    /// Relevant Lower Bound: the highest load that achieves the goal, below the Relevant Upper Bound; none if no load
    /// does.
    pub relevant_lower_bound: Option<f64>,
    /// Relevant Upper Bound: the lowest load that does not achieve the goal; none if all do.
    pub relevant_upper_bound: Option<f64>,
    /// Conditional Throughput: the Relevant Lower Bound, reduced by the highest loss ratio of the trials at that load,
    /// of which the fraction Goal Exceed Ratio with the highest loss is not considered. None without a Relevant Lower
    /// Bound.
    pub conditional_throughput: Option<f64>,
    /// Reason why no higher load was found.
    pub limited_by: Limit,
}

impl Goal {
    /// Returns the goal of a search.
    fn of(settings: &ThroughputSettings) -> Self {
        Self {
            loss_ratio: settings.loss_tolerance,
            exceed_ratio: settings.exceed_ratio,
            final_trial_duration: settings.trial_seconds,
            duration_sum: settings.trial_seconds * f64::from(settings.votes),
            width: settings.precision,
        }
    }

    /// Returns the settings of a search for this goal, with the range of loads and all further settings from `others`.
    fn settings(&self, others: &ThroughputSettings) -> ThroughputSettings {
        ThroughputSettings {
            method: Method::Mlr,
            precision: self.width,
            loss_tolerance: self.loss_ratio,
            trial_seconds: self.final_trial_duration,
            votes: self.votes(),
            exceed_ratio: self.exceed_ratio,
            ..*others
        }
    }

    /// Returns the number of full-length trials whose durations add up to at least the Goal Duration Sum.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a conversion of a float saturates"
    )]
    fn votes(&self) -> u32 {
        // The slack allows for sums such as 3 * 0.1.
        (self.duration_sum / self.final_trial_duration - 1e-9).ceil() as u32
    }

    /// Returns the estimated total duration of the trials that the goal adds to a search, s.
    pub(crate) fn estimate_seconds(&self) -> f64 {
        4.0 * f64::from(self.votes()) * self.final_trial_duration
    }
}

impl std::str::FromStr for Goal {
    type Err = String;

    /// Parses a goal such as `loss=0.5%,trial=1,sum=21,exceed=0.5,width=0.5%`: `trial` and `sum` in seconds; `sum` is
    /// by default three trials, `exceed` 0.5, `width` 1 %, `trial` 1.
    fn from_str(text: &str) -> Result<Self, String> {
        const KEYS: &str = "loss=0.5%,trial=1,sum=21,exceed=0.5,width=0.5%";
        let mut goal = Self {
            loss_ratio: f64::NAN,
            exceed_ratio: EXCEED_RATIO,
            final_trial_duration: 1.0,
            duration_sum: f64::NAN,
            width: 0.01,
        };
        for part in text.split(',') {
            let (key, value) = part
                .split_once('=')
                .ok_or_else(|| format!("`{part}` is not KEY=VALUE; expected {KEYS}"))?;
            let number = match value.trim().strip_suffix('%') {
                Some(percent) => percent.trim().parse::<f64>().map(|it| it / 100.0),
                None => value.trim().parse::<f64>(),
            };
            let number =
                number.map_err(|_| format!("`{value}` is not a number; expected {KEYS}"))?;
            let field = match key.trim() {
                "loss" => &mut goal.loss_ratio,
                "trial" => &mut goal.final_trial_duration,
                "sum" => &mut goal.duration_sum,
                "exceed" => &mut goal.exceed_ratio,
                "width" => &mut goal.width,
                _ => return Err(format!("unknown key `{key}`; expected {KEYS}")),
            };
            *field = number;
        }
        if goal.loss_ratio.is_nan() {
            return Err(format!("a goal needs `loss`, as in {KEYS}"));
        }
        if goal.duration_sum.is_nan() {
            goal.duration_sum = 3.0 * goal.final_trial_duration;
        }
        if !(goal.duration_sum > 0.0 && goal.duration_sum.is_finite()) {
            return Err("the duration sum must be above 0".to_owned());
        }
        let range = ThroughputSettings {
            method: Method::Mlr,
            min_pps: 1.0,
            max_pps: 2.0,
            precision: goal.width,
            loss_tolerance: goal.loss_ratio,
            trial_seconds: goal.final_trial_duration,
            votes: 1,
            exceed_ratio: goal.exceed_ratio,
        };
        ThroughputSearch::new(range).map_err(|e| e.to_string())?;
        Ok(goal)
    }
}

impl ThroughputSearch {
    /// Adds goals, which the search pursues in their order after that of its settings.
    ///
    /// # Errors
    /// Returns an error for an invalid goal, or if the method is not MLRsearch.
    pub fn with_goals(mut self, goals: &[Goal]) -> Result<Self, ThroughputSettingsError> {
        if self.settings.method != Method::Mlr && !goals.is_empty() {
            return Err(ThroughputSettingsError::Goals);
        }
        for goal in goals {
            Self::new(goal.settings(&self.settings))?;
        }
        self.goals = goals.to_vec();
        Ok(self)
    }

    /// Returns the next trial for one of the added goals; `None` if the trials so far decide all of them. The goal in
    /// the settings is not considered.
    pub(crate) fn next_of_goals(&self) -> Option<Wanted> {
        let mut goals = self.goals.iter();
        goals.find_map(|goal| self.seen_by(goal).next_of_first_goal())
    }

    /// Returns a copy of the search for the given goal, with all trials judged by that goal's loss ratio.
    fn seen_by(&self, goal: &Goal) -> Self {
        let settings = goal.settings(&self.settings);
        let judged = self.trials.iter().map(|trial| {
            let mut trial = *trial;
            trial.verdict = verdict(&trial.outcome, settings.loss_tolerance);
            trial
        });
        Self {
            settings,
            trials: judged.collect(),
            goals: Vec::new(),
        }
    }

    /// Returns the result for each goal, that of the settings first; empty unless the method is MLRsearch.
    pub(crate) fn goal_results(&self) -> Vec<GoalResult> {
        if self.settings.method != Method::Mlr {
            return Vec::new();
        }
        let first = Goal::of(&self.settings);
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
    use crate::search::TrialOutcome;
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

    /// Runs a search on a device that carries `capacity` packets per second, and loses a few packets of one trial in
    /// fifty from nine tenths of that on.
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
    fn a_device_that_carries_every_load_has_an_irregular_result() {
        let found = run(ThroughputSearch::new(settings(0.0)).unwrap(), 1e9, 1);
        let only = &found.goals[0];
        assert!(!only.regular && only.relevant_upper_bound.is_none());
        assert_eq!(only.limited_by, Limit::Range);
    }

    #[test]
    fn goals_are_parsed_with_defaults_and_wrong_ones_are_refused() {
        let goal: Goal = "loss=0.5%,trial=2".parse().unwrap();
        assert_eq!((goal.loss_ratio, goal.final_trial_duration), (0.005, 2.0));
        assert_eq!(
            (goal.duration_sum, goal.exceed_ratio, goal.width),
            (6.0, 0.5, 0.01)
        );
        assert_eq!(goal.votes(), 3);
        for wrong in [
            "",
            "loss",
            "loss=x",
            "trial=1",
            "loss=2",
            "loss=0,width=0",
            "loss=0,sum=0",
            "loss=0,exceed=1",
            "x=1",
        ] {
            assert!(wrong.parse::<Goal>().is_err(), "{wrong}");
        }
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
