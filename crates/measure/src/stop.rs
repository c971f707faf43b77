//! The rule for ending repetitions: once the median over the runs is known precisely enough.

use crate::interval::{Interval, median_interval};
use serde::{Deserialize, Serialize};

/// A rule to stop once both bounds of the median's interval are within a given fraction of the median.
///
/// Because the rule is checked after every run, it sometimes stops a little early. At a confidence of 95 %, the final
/// interval covers the true value in about nine of ten experiments. A higher `min_runs` brings this fraction closer to
/// 95 %.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StopRule {
    /// Maximum distance of both bounds from the median, as a fraction of the median: 0.05 for 5 %.
    pub within: f64,
    /// Confidence of the median's interval, for example 0.95.
    pub confidence: f64,
    /// Minimum number of runs. At 95 %, an interval takes at least six runs in any case.
    pub min_runs: u64,
    /// Maximum number of runs.
    pub max_runs: u64,
}

/// The decision of a [`StopRule`] after a run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// The median is known precisely enough.
    Reached(Interval),
    /// Another run is needed. Contains the current interval; `None` while there are too few runs for an interval.
    GoOn(Option<Interval>),
    /// The maximum number of runs is reached, and the median is not known precisely enough. Contains the last interval,
    /// if any.
    GivenUp(Option<Interval>),
}

impl StopRule {
    /// Decides from the values of the runs, in any order. With NaN or infinite values it never stops before `max_runs`.
    ///
    /// ```
    /// use taut_measure::{Progress, StopRule};
    /// let rule = StopRule { within: 0.05, confidence: 0.95, min_runs: 6, max_runs: 30 };
    /// assert!(matches!(rule.judge(&[100.0, 101.0, 99.0]), Progress::GoOn(None)));
    /// let steady = [100.0, 101.0, 99.0, 100.5, 99.5, 100.2];
    /// assert!(matches!(rule.judge(&steady), Progress::Reached(_)));
    /// ```
    pub fn judge(&self, values: &[f64]) -> Progress {
        let interval = median_interval(values, self.confidence)
            .filter(|interval| interval.confidence >= self.confidence);
        let runs = values.len() as u64;
        match interval {
            Some(found) if runs >= self.min_runs && self.is_close(&found) => {
                Progress::Reached(found)
            }
            _ if runs >= self.max_runs => Progress::GivenUp(interval),
            _ => Progress::GoOn(interval),
        }
    }

    fn is_close(&self, found: &Interval) -> bool {
        let reach = self.within * found.point.abs();
        found.high - found.point <= reach && found.point - found.low <= reach
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use fastrand::Rng;

    const RULE: StopRule = StopRule {
        within: 0.05,
        confidence: 0.95,
        min_runs: 8,
        max_runs: 30,
    };

    #[test]
    fn measurements_with_steady_values_stop_at_the_minimum_run_count() {
        for runs in 0..8 {
            let progress = RULE.judge(&vec![7.0; runs]);
            assert!(
                matches!(progress, Progress::GoOn(_)),
                "{runs}: {progress:?}"
            );
        }
        assert!(matches!(RULE.judge(&[7.0; 8]), Progress::Reached(found) if found.point == 7.0));
        assert!(matches!(RULE.judge(&[0.0; 8]), Progress::Reached(_)));
        assert!(matches!(RULE.judge(&[-7.0; 8]), Progress::Reached(_)));
    }

    #[test]
    fn scattered_values_request_runs_up_to_the_maximum_number() {
        let values: Vec<f64> = (0..30).map(|i| f64::from(i * 7 % 30 + 10)).collect();
        for runs in 0..30 {
            assert!(matches!(RULE.judge(&values[..runs]), Progress::GoOn(_)));
        }
        assert!(matches!(RULE.judge(&values), Progress::GivenUp(Some(_))));
    }

    #[test]
    fn one_outlier_does_not_prevent_the_stop() {
        let mut values = vec![100.0; 12];
        values[3] = 9e9;
        assert!(matches!(RULE.judge(&values), Progress::Reached(_)));
    }

    #[test]
    fn nan_values_never_satisfy_the_stop_rule() {
        let progress = RULE.judge(&[f64::NAN; 10]);
        assert_eq!(progress, Progress::GoOn(None));
        assert_eq!(RULE.judge(&[f64::NAN; 30]), Progress::GivenUp(None));
    }

    #[test]
    fn confidence_intervals_at_the_stop_mostly_cover_the_true_value() {
        let mut random = Rng::with_seed(5);
        let (mut stopped, mut covered) = (0, 0);
        for _ in 0..400 {
            let mut values = Vec::new();
            loop {
                values.push(100.0 + 20.0 * (random.f64() - 0.5));
                match RULE.judge(&values) {
                    Progress::GoOn(_) => {}
                    Progress::GivenUp(_) => break,
                    Progress::Reached(found) => {
                        stopped += 1;
                        covered += u32::from((found.low..=found.high).contains(&100.0));
                        break;
                    }
                }
            }
        }
        assert!(stopped > 100, "{stopped}");
        let share = f64::from(covered) / f64::from(stopped);
        assert!(share > 0.85, "{share} of {stopped}");
    }
}
