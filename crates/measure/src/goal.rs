//! The Search Goal and the Goal Result of RFC 9971 (Multiple Loss Ratio Search), by the names that the RFC gives their
//! attributes.

use crate::search::Limit;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Goal Exceed Ratio that RFC 9971 recommends.
pub const EXCEED_RATIO: f64 = 0.5;

/// A Search Goal (RFC 9971): the loss and the trials with which a load counts as passed, and the precision of the
/// search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Goal {
    /// Goal Loss Ratio: highest loss ratio of a good trial, 0..1.
    pub loss_ratio: f64,
    /// Goal Exceed Ratio: fraction of the trials at a load that may be bad, 0..1.
    pub exceed_ratio: f64,
    /// Goal Final Trial Duration, s.
    pub final_trial_duration: f64,
    /// Goal Duration Sum: total duration of the trials that decide about a load, s.
    pub duration_sum: f64,
    /// Goal Width: distance of the bounds at which the search ends, as a fraction of the upper bound.
    pub width: f64,
}

/// The Goal Result of a Search Goal. Loads are packets per second, in both directions together if there are two.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct GoalResult {
    /// The Search Goal to which the result belongs.
    pub goal: Goal,
    /// True for a Regular Goal Result: both bounds are known, at most the Goal Width apart, and due to the device. An
    /// Irregular Goal Result lacks a bound, or its search did not finish, or the generator limited it.
    pub regular: bool,
    /// Relevant Lower Bound: the highest load that achieves the goal, below the Relevant Upper Bound; none if no load
    /// does.
    pub relevant_lower_bound: Option<f64>,
    /// Relevant Upper Bound: the lowest load that does not achieve the goal; none if all loads achieve it.
    pub relevant_upper_bound: Option<f64>,
    /// Conditional Throughput: the Relevant Lower Bound less the highest loss of the trials at that load. The fraction
    /// Goal Exceed Ratio of these trials, those with the highest loss, is not considered. None without a Relevant Lower
    /// Bound.
    pub conditional_throughput: Option<f64>,
    /// Reason why no higher load was found to achieve the goal.
    pub limited_by: Limit,
}

impl Goal {
    /// Returns the number of full-length trials whose durations add up to at least the Goal Duration Sum.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a conversion of a float saturates"
    )]
    pub(crate) fn votes(&self) -> u32 {
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
        let is_share = |share: f64, least: f64| (least..1.0).contains(&share);
        if !is_share(goal.loss_ratio, 0.0) || !is_share(goal.exceed_ratio, 0.0) {
            return Err(
                "the loss ratio and the exceed ratio must be at least 0 and below 1".to_owned(),
            );
        }
        if !is_share(goal.width, 1e-6) {
            return Err("the width must be at least 0.000001 and below 1".to_owned());
        }
        if !(goal.final_trial_duration > 0.0 && goal.final_trial_duration.is_finite()) {
            return Err("the trial duration must be above 0".to_owned());
        }
        Ok(goal)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn search_goals_have_defaults_and_invalid_goals_are_refused() {
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
    }
}
