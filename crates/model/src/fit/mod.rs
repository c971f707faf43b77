//! Fits of models that are linear in their coefficients: least squares and Huber's robust regression, with intervals,
//! criteria to choose terms by, and errors on what a fit has not seen.
//!
//! A [`Design`] is a table of terms, a row per run, beside what was measured. [`least_squares`] and [`robust`] make a
//! [`LinearFit`] of it, [`choose`] the best of several sets of terms by BIC. (Seber and Lee, Linear Regression
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

/// Why there is no fit.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum FitError {
    /// There are not more runs than terms.
    #[error("{rows} runs for {terms} terms: a fit with intervals needs at least {}", terms + 1)]
    TooFewRows {
        /// Runs that there are.
        rows: usize,
        /// Terms that were asked for.
        terms: usize,
    },
    /// There are too few runs to tell whether a term belongs.
    #[error("{rows} runs do not carry {terms} terms: to choose among terms it needs at least {}", terms + 3)]
    TooFewToChoose {
        /// Runs that there are.
        rows: usize,
        /// Terms that were asked for.
        terms: usize,
    },
    /// Some terms are combinations of others in all runs.
    #[error(
        "the runs do not tell {terms} apart: vary what these depend on independently of each other"
    )]
    Singular {
        /// Names of the terms.
        terms: String,
    },
    /// No term is a cost or a time.
    #[error("{terms} come out below 0, where no cost can be: vary what they depend on more")]
    Below0 {
        /// Names of the terms.
        terms: String,
    },
    /// Rows that are not as long as there are terms, or not as many as responses.
    #[error("{what}: there are {found}, and it needs {needed}")]
    WrongShape {
        /// What there is too much or too little of.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many are needed.
        needed: usize,
    },
    /// A value that cannot be.
    #[error(transparent)]
    Value(#[from] WrongValue),
}
