//! The models compared with published figures: each model's prediction of a figure, and its error. Only printed figures
//! and recorded data are here; results without a published counterpart are tested in the models' own files.
//!
//! A group that fits a model uses some of the published rows for the fit and checks the others. (Gallenmüller 2021,
//! sections 3 to 5, and the authors' raw data; the tables are in `data/`.)

mod dissertation;
mod flower;
mod moonroute;
mod pos;
mod table;

pub use flower::medians as flower_medians;

use crate::estimate::{ErrorBasis, Errors, Estimate, WrongValue};
use crate::fit::FitError;
use schemars::JsonSchema;
use serde::Serialize;

/// The verdict on a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The error of the prediction is within the limit.
    Holds,
    /// The error of the prediction exceeds the limit.
    Misses,
}

/// Name of the group that compares predictions of overload with the rate at which overload was observed to begin.
pub const OVERLOAD_AS_SEEN: &str = "overload, as seen";

/// A published figure with a model's prediction of it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Check {
    /// Name of the group of checks.
    pub group: &'static str,
    /// Name of the published figure.
    pub what: String,
    /// Section, figure or table in which the value is published.
    pub source: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// The published value, or the lower end of the published range.
    pub published_low: f64,
    /// The published value, or the upper end of the published range.
    pub published_high: f64,
    /// The model's prediction.
    pub predicted: Estimate,
    /// Distance of the prediction from the published value, as a fraction of that value; 0 within the published range.
    pub relative_error: f64,
    /// Largest relative error at which the verdict is [`Verdict::Holds`].
    pub limit: f64,
    /// True if the model was fitted to other rows of the same data, but not to the row of this check.
    pub held_out: bool,
    /// The verdict on the prediction.
    pub verdict: Verdict,
}

impl Check {
    /// Returns whether the prediction has an interval. It is a single value if the model computes from exact numbers,
    /// or if a link is the bottleneck.
    pub fn has_interval(&self) -> bool {
        self.predicted.low < self.predicted.high
    }

    /// Returns whether the interval of the prediction overlaps the published range.
    pub fn covered(&self) -> bool {
        self.predicted.low <= self.published_high && self.published_low <= self.predicted.high
    }
}

/// The result of a group of checks.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the group.
    pub group: &'static str,
    /// Relative errors over the checks of the group.
    pub errors: Errors,
    /// Number of checks whose prediction has an interval; see [`Check::has_interval`].
    pub intervals: u64,
    /// Number of checks whose interval overlaps the published range.
    pub covered: u64,
    /// Number of checks whose error exceeds the limit.
    pub misses: u64,
}

/// Reason why a check cannot be made from the published tables.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// A fit to published rows failed.
    #[error("cannot fit the published data: {0}")]
    Fit(#[from] FitError),
    /// A published value is invalid.
    #[error("invalid published figure: {0}")]
    Value(#[from] WrongValue),
}

/// Returns all checks, ordered by group.
///
/// # Errors
/// [`CheckError`] if the crate's tables of published data are damaged.
pub fn checks() -> Result<Vec<Check>, CheckError> {
    let mut checks = dissertation::checks()?;
    checks.extend(moonroute::checks()?);
    checks.extend(pos::checks()?);
    checks.extend(flower::checks()?);
    Ok(checks)
}

/// Returns a summary of each group, in the order of the groups.
pub fn summaries(checks: &[Check]) -> Vec<Summary> {
    let groups = checks.chunk_by(|a, b| a.group == b.group);
    let summary = |group: &[Check]| {
        let held_out = group.iter().all(|check| check.held_out);
        let basis = if held_out {
            ErrorBasis::HeldOut
        } else {
            ErrorBasis::Published
        };
        let pairs = group.iter().map(|check| (1.0 + check.relative_error, 1.0));
        let count = |of: fn(&Check) -> bool| group.iter().filter(|check| of(check)).count() as u64;
        Some(Summary {
            group: group.first()?.group,
            errors: Errors::of(basis, pairs)?,
            intervals: count(Check::has_interval),
            covered: count(|check| check.has_interval() && check.covered()),
            misses: count(|check| check.verdict == Verdict::Misses),
        })
    };
    groups.filter_map(summary).collect()
}

/// The properties that the checks of a group have in common.
#[derive(Debug, Clone, Copy)]
struct Group {
    name: &'static str,
    source: &'static str,
    unit: &'static str,
    limit: f64,
    held_out: bool,
}

impl Group {
    /// Returns a check of a published number.
    fn number(&self, what: String, published: f64, predicted: Estimate) -> Check {
        self.within(what, (published, published), predicted)
    }

    /// Returns a check of a number that is published as a range.
    fn within(&self, what: String, (low, high): (f64, f64), predicted: Estimate) -> Check {
        let nearest = predicted.value.clamp(low, high);
        let relative_error = ((predicted.value - nearest) / nearest).abs();
        let verdict = if relative_error <= self.limit {
            Verdict::Holds
        } else {
            Verdict::Misses
        };
        Check {
            group: self.name,
            what,
            source: self.source,
            unit: self.unit,
            published_low: low,
            published_high: high,
            predicted,
            relative_error,
            limit: self.limit,
            held_out: self.held_out,
            verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_model_reproduces_all_published_figures_except_one_known_case() {
        let checks = checks().unwrap();
        let misses: Vec<&Check> = checks
            .iter()
            .filter(|check| check.verdict == Verdict::Misses)
            .collect();
        let names: Vec<&str> = misses.iter().map(|check| check.what.as_str()).collect();
        assert_eq!(names, ["Snort-fwd, VM: highest rate seen"]);
    }

    #[test]
    fn every_prediction_has_an_interval_around_it() {
        for check in checks().unwrap() {
            let Estimate {
                value, low, high, ..
            } = check.predicted;
            assert!(low <= value && value <= high, "{check:?}");
        }
    }

    #[test]
    fn prediction_intervals_cover_85_percent_of_the_unfitted_runs() {
        let summaries = summaries(&checks().unwrap());
        let held_out = summaries
            .iter()
            .filter(|s| s.errors.basis == ErrorBasis::HeldOut);
        let (covered, intervals) = held_out
            .inspect(|summary| println!("{summary:?}"))
            .fold((0, 0), |sum, of| (sum.0 + of.covered, sum.1 + of.intervals));
        println!("{covered} of {intervals}");
        assert!(
            covered as f64 >= 0.85 * intervals as f64,
            "{covered} of {intervals}"
        );
    }
}
