//! The models held to what others have published: for each figure what the model says, and the error.
//! Only printed figures and recorded data are here; results of these models alone are tested beside the models.
//!
//! Where a group fits, it does so on some of the published rows and is held to the others. (Gallenmüller 2021,
//! sections 3 to 5, and the authors' raw data; the tables are in `data/`.)

mod dissertation;
mod flower;
mod moonroute;
mod pos;
mod table;

pub use flower::medians as flower_medians;

use crate::estimate::{ErrorBasis, Errors, Estimate, WrongValue};
use crate::fit::FitError;
use serde::Serialize;

/// Whether a model holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The error is within the limit.
    Holds,
    /// It is not.
    Misses,
}

/// Group of the four cases of overload as they were seen, beside what the model says of each.
pub const OVERLOAD_AS_SEEN: &str = "overload, as seen";

/// A published figure beside what a model says.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Check {
    /// Figures that belong together.
    pub group: &'static str,
    /// The figure.
    pub what: String,
    /// Section, figure or table that it is from.
    pub source: &'static str,
    /// Unit of the values.
    pub unit: &'static str,
    /// The published value, or the lower end of what is published.
    pub published_low: f64,
    /// The published value, or the upper end of what is published.
    pub published_high: f64,
    /// What the model says.
    pub predicted: Estimate,
    /// How far the prediction is from what is published, as a share of it; 0 within its ends.
    pub relative_error: f64,
    /// Error up to which the model holds.
    pub limit: f64,
    /// Whether the model was fitted to other rows of the same data, and is held to this one.
    pub held_out: bool,
    /// Whether it holds.
    pub verdict: Verdict,
}

impl Check {
    /// Whether the prediction has an interval. It is a point where the model computes with given numbers, and where a
    /// line binds.
    pub fn has_interval(&self) -> bool {
        self.predicted.low < self.predicted.high
    }

    /// Whether the interval of the prediction meets what is published.
    pub fn covered(&self) -> bool {
        self.predicted.low <= self.published_high && self.published_low <= self.predicted.high
    }
}

/// How a group of checks came out.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Summary {
    /// Name of the group.
    pub group: &'static str,
    /// Relative errors over its checks.
    pub errors: Errors,
    /// Checks whose prediction has an interval: it is a point where given numbers are computed with, or a line binds.
    pub intervals: u64,
    /// Those among them whose interval meets what is published.
    pub covered: u64,
    /// Checks that miss.
    pub misses: u64,
}

/// Why a check cannot be made: the published tables do not carry it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CheckError {
    /// A fit to published rows fails.
    #[error("a fit to published data: {0}")]
    Fit(#[from] FitError),
    /// A published value cannot be.
    #[error("a published value: {0}")]
    Value(#[from] WrongValue),
}

/// Returns all checks, group after group.
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

/// Returns how each group came out, in their order.
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

/// What checks of a group have in common.
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

    /// Returns a check of a number that is published as lying between two.
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
    fn all_published_figures_hold_but_the_one_that_the_published_bound_misses() {
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
    fn intervals_of_fits_meet_most_of_what_they_were_held_to() {
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
