//! Least squares: coefficients with intervals, criteria, leave-one-out errors, predictions with intervals.
//! (Seber and Lee, Linear Regression Analysis, 2003, chapters 3 to 5 and 10.)

use super::design::finite;
use super::{Design, FitError, Spread};
use crate::estimate::{ErrorBasis, Errors, Estimate, WrongValue, probability};
use nalgebra::{DMatrix, DVector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};

/// Smallest diagonal element of R (of the QR decomposition, with columns scaled to length 1) at which terms count as
/// distinguishable, as a share of the largest element.
const RANK: f64 = 1e-10;
/// Residuals below this share of the responses count as rounding errors. A perfect fit is assumed to have errors of
/// this size, so that its likelihood is finite.
const ROUNDING: f64 = 1e-13;

/// One coefficient of a fit. The interval may reach below 0 even if the quantity cannot be negative: the data then do
/// not show whether it differs from 0.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Coefficient {
    /// Name of the coefficient's term.
    pub name: String,
    /// Estimate of the coefficient.
    pub value: f64,
    /// Lower end of the coefficient's interval.
    pub low: f64,
    /// Upper end of the coefficient's interval.
    pub high: f64,
    /// Standard error of the coefficient.
    pub standard_error: f64,
}

/// Criteria for comparing models of the same runs; smaller values are better. They count the coefficients and the
/// variance as parameters, and assume normal errors.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Criteria {
    /// Akaike's criterion.
    pub aic: f64,
    /// Akaike's criterion with a correction for few runs. `None` if there are too few runs for the correction.
    pub aicc: Option<f64>,
    /// Schwarz's (Bayesian) criterion.
    pub bic: f64,
}

/// A model fitted to runs.
#[derive(Debug, Clone, PartialEq)]
pub struct LinearFit {
    /// Coefficients, in the order of the design's terms.
    pub coefficients: Vec<Coefficient>,
    /// Probability that a coefficient's interval covers the true value, if errors are normal and independent.
    pub confidence: f64,
    /// The assumed scatter of the responses.
    pub spread: Spread,
    /// Number of runs to which the model was fitted.
    pub rows: usize,
    /// Number of runs minus number of terms.
    pub degrees_of_freedom: usize,
    /// Standard deviation of the residuals; relative to the response if the spread is relative.
    pub residual_std: f64,
    /// Share of the (weighted) variance around the mean that the model explains. It is below 0 if the mean of the
    /// responses predicts them better than the model.
    pub r_squared: f64,
    /// Criteria; `None` for robust fits, which have no likelihood.
    pub criteria: Option<Criteria>,
    /// Errors on the runs of the fit itself. `None` if a response is 0.
    pub in_sample: Option<Errors>,
    /// Error of each run, predicted by a fit to all other runs. `None` if a response is 0, or if a single run
    /// determines a term.
    pub leave_one_out: Option<Errors>,
    /// Measured minus predicted value of each run, in the unit of the response.
    pub residuals: Vec<f64>,
    /// Covariance of the coefficients, `terms x terms`.
    pub covariance: Vec<Vec<f64>>,
}

impl LinearFit {
    /// Returns the prediction for a run with the given values of the terms. The interval covers the response of one new
    /// run with the fit's confidence (a prediction interval).
    ///
    /// # Errors
    /// [`FitError::WrongShape`] for another number of terms, [`FitError::Value`] for numbers that are not finite.
    pub fn predict(&self, terms: &[f64]) -> Result<Estimate, FitError> {
        if terms.len() != self.coefficients.len() {
            return Err(FitError::WrongShape {
                what: "terms to predict at",
                found: terms.len(),
                needed: self.coefficients.len(),
            });
        }
        let values: Vec<f64> = self.coefficients.iter().map(|c| c.value).collect();
        let interval = PredictionInterval {
            values: &values,
            covariance: &self.covariance,
            spread: self.spread,
            residual_std: self.residual_std,
            degrees_of_freedom: self.degrees_of_freedom as f64,
            confidence: self.confidence,
        };
        Ok(interval.at(terms)?)
    }

    /// Returns the errors on runs that were not used in the fit. Returns `None` without runs or if a response is 0.
    ///
    /// # Errors
    /// The errors of [`LinearFit::predict`].
    pub fn held_out(
        &self,
        rows: &[Vec<f64>],
        measured: &[f64],
    ) -> Result<Option<Errors>, FitError> {
        let predicted = rows.iter().map(|row| self.predict(row).map(|at| at.value));
        let predicted = predicted.collect::<Result<Vec<f64>, FitError>>()?;
        let pairs = predicted.into_iter().zip(measured.iter().copied());
        Ok(Errors::of(ErrorBasis::HeldOut, pairs))
    }
}

/// Fits a model to the runs of a design by least squares.
///
/// # Errors
/// [`FitError::TooFewRows`] unless there are more runs than terms, [`FitError::Singular`] if terms are
/// indistinguishable, [`FitError::Value`] for a confidence outside (0, 1) or runs whose coefficients are not finite.
pub fn least_squares(design: &Design, confidence: f64) -> Result<LinearFit, FitError> {
    let scales = design.scales();
    let solved = Solved::new(design, &scales)?;
    let rows = design.rows() as f64;
    let degrees = (design.rows() - design.names().len()) as f64;
    let squares = solved.scaled_residuals.norm_squared();
    let rounding = (ROUNDING * scales.component_mul(design.responses()).norm()).powi(2);
    let squares = squares.max(rounding).max(f64::MIN_POSITIVE);
    let variance = squares / degrees;
    let covariance = &solved.inverse * variance;
    let log_scales: f64 = scales.iter().map(|scale| scale.ln()).sum();
    let minus_two_log =
        rows * ((std::f64::consts::TAU * squares / rows).ln() + 1.0) - 2.0 * log_scales;
    let criteria = Criteria::new(minus_two_log, rows, design.names().len() as f64 + 1.0);
    solved.fit(
        design,
        &scales,
        confidence,
        variance.sqrt(),
        &covariance,
        Some(criteria),
    )
}

impl Criteria {
    fn new(minus_two_log: f64, rows: f64, parameters: f64) -> Self {
        let aic = minus_two_log + 2.0 * parameters;
        let left = rows - parameters - 1.0;
        Self {
            aic,
            aicc: (left > 0.0).then(|| aic + 2.0 * parameters * (parameters + 1.0) / left),
            bic: minus_two_log + parameters * rows.ln(),
        }
    }
}

/// The data from which predictions with intervals are computed.
pub(crate) struct PredictionInterval<'a> {
    pub values: &'a [f64],
    pub covariance: &'a [Vec<f64>],
    pub spread: Spread,
    pub residual_std: f64,
    pub degrees_of_freedom: f64,
    pub confidence: f64,
}

impl PredictionInterval<'_> {
    /// Returns the prediction for a run, given the value of each term. Bounds below 0 are set to 0, as no response is
    /// negative.
    pub fn at(&self, terms: &[f64]) -> Result<Estimate, WrongValue> {
        for term in terms {
            finite("a term", *term)?;
        }
        let value: f64 = self
            .values
            .iter()
            .zip(terms)
            .map(|(value, term)| value * term)
            .sum();
        let own = terms.iter().zip(self.covariance).map(|(left, row)| {
            let row = row
                .iter()
                .zip(terms)
                .map(|(covariance, right)| covariance * right);
            left * row.sum::<f64>()
        });
        let own = own.sum::<f64>().max(0.0);
        let scatter = match self.spread {
            Spread::Absolute => self.residual_std,
            Spread::Relative => self.residual_std * value,
        };
        let half =
            student(self.degrees_of_freedom, self.confidence)? * (own + scatter.powi(2)).sqrt();
        let value = value.max(0.0);
        Estimate::new(
            value,
            (value - half).max(0.0),
            value + half,
            self.confidence,
        )
    }
}

/// The coefficients that minimise the sum of squares of the scaled residuals, found by QR.
pub(super) struct Solved {
    pub coefficients: DVector<f64>,
    /// Measured minus predicted value of each run, times its scale.
    pub scaled_residuals: DVector<f64>,
    /// Diagonal of the hat matrix: the influence of each run on its own prediction, 0 to 1.
    pub leverages: Vec<f64>,
    /// Inverse of X'WX.
    pub inverse: DMatrix<f64>,
}

impl Solved {
    pub fn new(design: &Design, scales: &DVector<f64>) -> Result<Self, FitError> {
        let (rows, terms) = design.columns().shape();
        if rows <= terms || terms == 0 {
            return Err(FitError::TooFewRows { rows, terms });
        }
        let mut scaled = design.columns().clone();
        for (mut row, scale) in scaled.row_iter_mut().zip(scales.iter()) {
            row *= *scale;
        }
        // Columns are scaled to length 1, so that the rank does not depend on units.
        let lengths: Vec<f64> = scaled.column_iter().map(|column| column.norm()).collect();
        for (mut column, length) in scaled.column_iter_mut().zip(&lengths) {
            if *length > 0.0 {
                column /= *length;
            }
        }
        let response = design.responses().component_mul(scales);
        let qr = scaled.clone().qr();
        let (q, r) = (qr.q(), qr.r());
        let singular = r.diagonal().iter().position(|element| element.abs() < RANK);
        let inverse_r = r
            .try_inverse()
            .filter(|_| singular.is_none())
            .ok_or_else(|| {
                let upto = singular.map_or(terms, |at| at + 1);
                FitError::Singular {
                    terms: design.names()[..upto].join(", "),
                }
            })?;
        let unit_coefficients = &inverse_r * q.tr_mul(&response);
        let scaled_residuals = response - &scaled * &unit_coefficients;
        let leverages = q
            .row_iter()
            .map(|row| row.norm_squared().min(1.0))
            .collect();
        let units = DVector::from_iterator(terms, lengths.iter().map(|length| 1.0 / length));
        let mut inverse = &inverse_r * inverse_r.transpose();
        for row in 0..terms {
            for column in 0..terms {
                inverse[(row, column)] *= units[row] * units[column];
            }
        }
        Ok(Self {
            coefficients: unit_coefficients.component_mul(&units),
            scaled_residuals,
            leverages,
            inverse,
        })
    }

    /// Returns the fit with these coefficients. `scales` are those of the design, without the weights of a robust fit.
    pub fn fit(
        &self,
        design: &Design,
        scales: &DVector<f64>,
        confidence: f64,
        residual_std: f64,
        covariance: &DMatrix<f64>,
        criteria: Option<Criteria>,
    ) -> Result<LinearFit, FitError> {
        let degrees_of_freedom = design.rows() - design.names().len();
        let quantile = student(degrees_of_freedom as f64, confidence)?;
        // Finite numbers may still have a sum or a square that is not finite.
        let coefficients = design.names().iter().enumerate().map(|(i, name)| {
            let what = format!("the coefficient of {name}");
            let standard_error = covariance[(i, i)].max(0.0).sqrt();
            let value = finite(&what, self.coefficients[i])?;
            Ok(Coefficient {
                name: name.clone(),
                value,
                low: finite(&what, value - quantile * standard_error)?,
                high: finite(&what, value + quantile * standard_error)?,
                standard_error,
            })
        });
        let coefficients = coefficients.collect::<Result<Vec<_>, FitError>>()?;
        let measured = design.responses();
        let predicted = design.columns() * &self.coefficients;
        let residuals = measured - &predicted;
        let pairs = predicted.iter().copied().zip(measured.iter().copied());
        let pulled = residuals.iter().zip(&self.leverages).zip(measured.iter());
        let others = pulled.map(|((residual, leverage), measured)| {
            (measured - residual / (1.0 - leverage), *measured)
        });
        Ok(LinearFit {
            coefficients,
            confidence,
            spread: design.spread(),
            rows: design.rows(),
            degrees_of_freedom,
            residual_std,
            r_squared: r_squared(&residuals, measured, scales),
            criteria,
            in_sample: Errors::of(ErrorBasis::InSample, pairs),
            leave_one_out: Errors::of(ErrorBasis::LeaveOneOut, others),
            residuals: residuals.iter().copied().collect(),
            covariance: covariance
                .row_iter()
                .map(|row| row.iter().copied().collect())
                .collect(),
        })
    }
}

fn r_squared(residuals: &DVector<f64>, measured: &DVector<f64>, scales: &DVector<f64>) -> f64 {
    let weights = scales.component_mul(scales);
    let mean = weights.dot(measured) / weights.sum();
    let around_mean = measured
        .map(|value| value - mean)
        .component_mul(scales)
        .norm_squared();
    let left = residuals.component_mul(scales).norm_squared();
    // Equal responses have no variance to explain.
    if around_mean > 0.0 {
        1.0 - left / around_mean
    } else {
        0.0
    }
}

/// Returns the half-width of a confidence interval in standard errors, from Student's t distribution.
pub(crate) fn student(degrees_of_freedom: f64, confidence: f64) -> Result<f64, WrongValue> {
    let confidence = probability("a confidence", confidence)?;
    let distribution = StudentsT::new(0.0, 1.0, degrees_of_freedom).map_err(|_| WrongValue {
        what: "degrees of freedom".to_owned(),
        found: degrees_of_freedom,
        needs: "a number above 0",
    })?;
    Ok(distribution.inverse_cdf(0.5 + confidence / 2.0))
}

#[cfg(test)]
mod tests;
