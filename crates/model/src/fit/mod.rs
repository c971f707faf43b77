//! Fits of models that are linear in their coefficients, by least squares and Huber's robust regression. Each fit has
//! intervals, criteria for choosing terms, and errors on runs that were not used in the fit.
//!
//! A [`Design`] is a table of terms, a row per run, with the measured responses. [`least_squares`] and [`robust`] fit a
//! [`LinearFit`] to it; [`choose`] returns the best of several sets of terms by BIC. (Seber and Lee, Linear Regression
//! Analysis, 2003; Huber, Robust Statistics, 1981; Akaike 1974; Schwarz 1978; Hurvich and Tsai 1989.)

mod choice;
mod design;
mod linear;
mod robust;

pub(crate) use choice::not_below_0;
pub use choice::{Choice, Tried, choose};
pub use design::{Design, Spread};
pub use linear::{Coefficient, Criteria, LinearFit, least_squares};
pub(crate) use linear::{PredictionInterval, student};
pub use robust::robust;

use crate::estimate::WrongValue;

/// Reason why there is no fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// The number of runs does not exceed the number of terms.
    #[error("{rows} runs for {terms} terms: a fit with intervals needs at least {}", terms + 1)]
    TooFewRows {
        /// Number of runs in the data.
        rows: usize,
        /// Number of terms in the model.
        terms: usize,
    },
    /// There are too few runs to decide which terms the model needs.
    #[error("{rows} runs are too few for {terms} terms: choosing among terms needs at least {}", terms + 3)]
    TooFewToChoose {
        /// Number of runs in the data.
        rows: usize,
        /// Number of terms to choose from.
        terms: usize,
    },
    /// Some terms are linear combinations of others in all runs.
    #[error(
        "the runs do not distinguish {terms}: vary their variables independently of each other"
    )]
    Singular {
        /// Names of the terms involved.
        terms: String,
    },
    /// The coefficients of all terms are below 0, but costs and times are positive.
    #[error(
        "the fitted cost of {terms} is negative, which is impossible: measure over wider ranges of the variables"
    )]
    Below0 {
        /// Names of the terms.
        terms: String,
    },
    /// The length of a row is not the number of terms, or the number of rows is not the number of responses.
    #[error("{what}: {found} given, {needed} needed")]
    WrongShape {
        /// Name of the list with the wrong length.
        what: &'static str,
        /// Actual length of the list.
        found: usize,
        /// Required length of the list.
        needed: usize,
    },
    /// A value of the data is invalid.
    #[error(transparent)]
    Value(#[from] WrongValue),
}
