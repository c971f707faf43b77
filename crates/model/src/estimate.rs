//! Values that models return: a value with its interval, the model's known errors, and the variables that were outside
//! the range of the fit.
//!
//! Gallenmüller 2021, section 4, requires that models be measurable, but states no intervals. The intervals here are
//! this project's.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A value that is not a number, or invalid for its quantity.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{what} is {found}: it needs {needs}")]
pub struct WrongValue {
    /// The quantity, with its unit.
    pub what: String,
    /// The value that was rejected.
    pub found: f64,
    /// The allowed values, in words.
    pub needs: &'static str,
}

/// Returns `value` if it is finite and not negative.
///
/// # Errors
/// [`WrongValue`] for NaN, infinite and negative values.
pub(crate) fn not_negative(what: &str, value: f64) -> Result<f64, WrongValue> {
    check(what, value, value >= 0.0, "a finite number of at least 0")
}

/// Returns `value` if it is finite and above 0.
///
/// # Errors
/// [`WrongValue`] for NaN, infinite and negative values, and for 0.
pub(crate) fn positive(what: &str, value: f64) -> Result<f64, WrongValue> {
    check(what, value, value > 0.0, "a finite number above 0")
}

/// Returns `value` if it is a probability strictly between 0 and 1.
///
/// # Errors
/// [`WrongValue`] for all other values.
pub(crate) fn probability(what: &str, value: f64) -> Result<f64, WrongValue> {
    let inside = value > 0.0 && value < 1.0;
    check(what, value, inside, "a share between 0 and 1")
}

/// Returns `value` if it is a share of a whole, 0 to 1.
///
/// # Errors
/// [`WrongValue`] for values below 0 and above 1.
pub(crate) fn share(what: &str, value: f64) -> Result<f64, WrongValue> {
    let inside = (0.0..=1.0).contains(&value);
    check(what, value, inside, "a share from 0 to 1")
}

fn check(what: &str, found: f64, holds: bool, needs: &'static str) -> Result<f64, WrongValue> {
    if found.is_finite() && holds {
        return Ok(found);
    }
    let what = what.to_owned();
    Err(WrongValue { what, found, needs })
}

/// A quantity and its interval. The unit is in the name of the field that holds the estimate.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Unchecked")]
pub struct Estimate {
    /// The estimate itself, without its interval.
    pub value: f64,
    /// Lower end of the interval, in the unit of the value.
    pub low: f64,
    /// Upper end of the interval, in the unit of the value.
    pub high: f64,
    /// Probability that an interval computed in this manner covers the true value, 0 to 1. It is 1 for a number taken
    /// as exact, and 0 for a single run, which does not show how much runs differ.
    pub confidence: f64,
}

/// An estimate as read from a file, before validation.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Unchecked {
    value: f64,
    low: f64,
    high: f64,
    confidence: f64,
}

impl TryFrom<Unchecked> for Estimate {
    type Error = WrongValue;

    fn try_from(read: Unchecked) -> Result<Self, WrongValue> {
        Self::new(read.value, read.low, read.high, read.confidence)
    }
}

impl Estimate {
    /// Returns an estimate for a number taken as exact: its interval has length zero.
    ///
    /// # Errors
    /// [`WrongValue`] for NaN, infinite and negative numbers.
    pub fn given(value: f64) -> Result<Self, WrongValue> {
        Self::new(value, value, value, 1.0)
    }

    /// Returns an estimate of a quantity that is not negative.
    ///
    /// # Errors
    /// [`WrongValue`] for NaN, infinite and negative numbers, an interval that does not enclose its value, and a
    /// confidence outside [0, 1].
    pub fn new(value: f64, low: f64, high: f64, confidence: f64) -> Result<Self, WrongValue> {
        not_negative("an estimate", value)?;
        check(
            "lower end of an interval",
            low,
            low <= value,
            "at most the value",
        )?;
        check(
            "upper end of an interval",
            high,
            high >= value,
            "at least the value",
        )?;
        let share = (0.0..=1.0).contains(&confidence);
        check("a confidence", confidence, share, "0 to 1")?;
        Ok(Self {
            value,
            low,
            high,
            confidence,
        })
    }

    /// Zero, as an exact number.
    pub const ZERO: Self = Self {
        value: 0.0,
        low: 0.0,
        high: 0.0,
        confidence: 1.0,
    };

    /// Returns the sum of two estimates. The bounds of its interval are the sums of the lower and of the upper bounds,
    /// which is valid for any dependence between the estimates. If both are uncertain, the confidence is that both
    /// intervals cover their values (Bonferroni).
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let missing = (1.0 - self.confidence) + (1.0 - other.confidence);
        Self {
            value: self.value + other.value,
            low: self.low + other.low,
            high: self.high + other.high,
            confidence: (1.0 - missing).max(0.0),
        }
    }

    /// Returns the estimate, value and bounds, multiplied by a non-negative number.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        self.map(|value| value * factor)
    }

    /// Returns the estimate with `function`, which must be monotone, applied to its value and bounds.
    #[must_use]
    pub fn map(self, function: impl Fn(f64) -> f64) -> Self {
        let (a, b) = (function(self.low), function(self.high));
        Self {
            value: function(self.value),
            low: a.min(b),
            high: a.max(b),
            confidence: self.confidence,
        }
    }
}

/// The data on which the errors of a model were computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorBasis {
    /// Errors on runs that were not used in the fit.
    HeldOut,
    /// Errors of each run, predicted by a fit to all other runs.
    LeaveOneOut,
    /// Errors on the runs of the fit itself; they underestimate the errors on new runs.
    InSample,
    /// Errors that the source of the model publishes, for another machine.
    Published,
}

/// Relative errors of a model: |predicted - measured| / measured.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Errors {
    /// The data on which the errors were computed.
    pub basis: ErrorBasis,
    /// Number of runs over which the errors were computed.
    pub count: u64,
    /// Median of the relative errors (nearest rank).
    pub median: f64,
    /// 95th percentile of the relative errors (nearest rank); with fewer than 20 runs it is the largest error.
    pub p95: f64,
    /// Largest of the relative errors.
    pub max: f64,
}

impl Errors {
    /// Returns the errors of pairs of predicted and measured values. Returns `None` without pairs, with numbers that
    /// are not finite, and if a measured value is 0, as it has no relative error.
    pub fn of(basis: ErrorBasis, pairs: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let relative = pairs.into_iter().map(|(predicted, measured): (f64, f64)| {
            let error = ((predicted - measured) / measured).abs();
            error.is_finite().then_some(error)
        });
        let mut relative = relative.collect::<Option<Vec<f64>>>()?;
        relative.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let rank = (share * relative.len() as f64).ceil() as usize;
            relative.get(rank.saturating_sub(1)).copied()
        };
        Some(Self {
            basis,
            count: relative.len() as u64,
            median: at(0.5)?,
            p95: at(0.95)?,
            max: at(1.0)?,
        })
    }
}

/// A variable whose value is outside the range of the fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Outside {
    /// Name of the variable.
    pub variable: String,
    /// The value for which the prediction was requested.
    pub asked: f64,
    /// Smallest value among the runs of the fit.
    pub min: f64,
    /// Largest value among the runs of the fit.
    pub max: f64,
}

/// The result of evaluating a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Prediction {
    /// The value and its interval.
    pub estimate: Estimate,
    /// The unit of the value and its interval.
    pub unit: String,
    /// Known errors of the model; `None` if it was never checked, which a report has to mention.
    pub errors: Option<Errors>,
    /// Variables outside the range of the fit. If there are any, the real uncertainty is larger than the interval and
    /// the errors show.
    pub outside: Vec<Outside>,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn invalid_estimates_cause_a_one_line_error() {
        for wrong in [f64::NAN, f64::INFINITY, -1.0] {
            let error = Estimate::given(wrong).unwrap_err().to_string();
            assert!(error.contains("needs a finite number"), "{error}");
            assert!(!error.contains('\n'));
        }
        assert!(Estimate::new(1.0, 2.0, 3.0, 0.95).is_err());
        assert!(Estimate::new(1.0, 0.0, 0.5, 0.95).is_err());
        assert!(Estimate::new(1.0, 0.0, 2.0, 1.1).is_err());
        let swapped = "value = 1.0\nlow = 2.0\nhigh = 0.0\nconfidence = 0.95";
        assert!(toml::from_str::<Estimate>(swapped).is_err());
    }

    #[test]
    fn the_confidence_of_a_sum_follows_the_bonferroni_bound() {
        let a = Estimate::new(10.0, 9.0, 12.0, 0.95).unwrap();
        let sum = a.plus(a).plus(Estimate::given(1.0).unwrap());
        assert_eq!((sum.value, sum.low, sum.high), (21.0, 19.0, 25.0));
        assert!((sum.confidence - 0.9).abs() < 1e-12);
    }

    #[test]
    fn a_decreasing_function_swaps_the_limits_of_the_interval() {
        let rate = Estimate::new(100.0, 50.0, 200.0, 0.95)
            .unwrap()
            .map(|c| 1000.0 / c);
        assert_eq!((rate.low, rate.value, rate.high), (5.0, 10.0, 20.0));
    }

    #[test]
    fn error_percentiles_are_order_statistics_and_absent_without_valid_pairs() {
        let pairs = (1..=20).map(|i| (100.0 + f64::from(i), 100.0));
        let errors = Errors::of(ErrorBasis::HeldOut, pairs).unwrap();
        assert!((errors.median - 0.10).abs() < 1e-12);
        assert!((errors.p95 - 0.19).abs() < 1e-12);
        assert!((errors.max - 0.20).abs() < 1e-12);
        assert_eq!(Errors::of(ErrorBasis::HeldOut, []), None);
        assert_eq!(Errors::of(ErrorBasis::HeldOut, [(1.0, 0.0)]), None);
    }
}
