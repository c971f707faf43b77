//! The input of a fit: a row for each run, a column for each term, and the measured responses.

use super::FitError;
use crate::estimate::{WrongValue, positive};
use nalgebra::{DMatrix, DVector};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The assumed scatter of measured values around the model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Spread {
    /// Equal scatter for all values: the fit minimises absolute errors.
    #[default]
    Absolute,
    /// Scatter in proportion to the value: the fit minimises relative errors, and values have to be above 0. Weights
    /// follow the measured values, which lowers predictions by a relative amount of about the squared scatter: by 0.04
    /// % at a scatter of 2 %.
    Relative,
}

/// The runs to which a model is fitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Design {
    names: Vec<String>,
    spread: Spread,
    /// Value of each term in each run (`runs x terms`), without weights.
    columns: DMatrix<f64>,
    responses: DVector<f64>,
    /// Weight of each run's squared error; the mean of the weights is 1.
    weights: DVector<f64>,
}

impl Design {
    /// Returns a design. Each row of `rows` holds the terms of a run in the order of `names`; `responses` holds the
    /// measured value of each run.
    ///
    /// # Errors
    /// [`FitError::WrongShape`] for rows of other lengths, [`FitError::Value`] for numbers that are not finite and,
    /// where the spread is relative, responses that are not above 0.
    pub fn new(
        names: &[&str],
        rows: &[Vec<f64>],
        responses: &[f64],
        spread: Spread,
    ) -> Result<Self, FitError> {
        same("responses, one for each run", responses.len(), rows.len())?;
        for row in rows {
            same("terms in a run", row.len(), names.len())?;
            for (name, value) in names.iter().zip(row) {
                finite(name, *value)?;
            }
        }
        for response in responses {
            match spread {
                Spread::Absolute => finite("a response", *response)?,
                Spread::Relative => positive("a response", *response)?,
            };
        }
        Ok(Self {
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            spread,
            columns: DMatrix::from_fn(rows.len(), names.len(), |row, column| rows[row][column]),
            responses: DVector::from_column_slice(responses),
            weights: DVector::from_element(rows.len(), 1.0),
        })
    }

    /// Returns the design with a weight for each run, such as the inverse of its variance; only ratios of weights
    /// matter. A prediction interval then holds for a run of average weight.
    ///
    /// # Errors
    /// [`FitError::WrongShape`] unless there are as many weights as runs, [`FitError::Value`] for weights that are not
    /// above 0.
    pub fn weighted(mut self, weights: &[f64]) -> Result<Self, FitError> {
        same("weights, one for each run", weights.len(), self.rows())?;
        for weight in weights {
            positive("a weight", *weight)?;
        }
        let mean = positive(
            "mean of weights",
            weights.iter().sum::<f64>() / weights.len() as f64,
        )?;
        self.weights = DVector::from_column_slice(weights) / mean;
        Ok(self)
    }

    /// Returns the number of runs.
    pub fn rows(&self) -> usize {
        self.columns.nrows()
    }

    /// Returns the names of the terms.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the assumed scatter of the responses.
    pub fn spread(&self) -> Spread {
        self.spread
    }

    /// Returns the design with only these terms, in the order given.
    ///
    /// # Errors
    /// [`FitError::WrongShape`] for an unknown term.
    pub fn only(&self, terms: &[usize]) -> Result<Self, FitError> {
        if let Some(&beyond) = terms.iter().find(|&&term| term >= self.names.len()) {
            return Err(FitError::WrongShape {
                what: "terms of the table",
                found: self.names.len(),
                needed: beyond + 1,
            });
        }
        Ok(Self {
            names: terms.iter().map(|&term| self.names[term].clone()).collect(),
            spread: self.spread,
            columns: self.columns.select_columns(terms),
            responses: self.responses.clone(),
            weights: self.weights.clone(),
        })
    }

    pub(super) fn columns(&self) -> &DMatrix<f64> {
        &self.columns
    }

    pub(super) fn responses(&self) -> &DVector<f64> {
        &self.responses
    }

    /// Returns, for each run, the factor that gives all runs equal scatter. It is the root of the run's weight, divided
    /// by the run's response if the spread is relative.
    pub(super) fn scales(&self) -> DVector<f64> {
        let of_spread = match self.spread {
            Spread::Absolute => DVector::from_element(self.rows(), 1.0),
            Spread::Relative => self.responses.map(|response| 1.0 / response),
        };
        of_spread.zip_map(&self.weights, |scale, weight| scale * weight.sqrt())
    }
}

fn same(what: &'static str, found: usize, needed: usize) -> Result<(), FitError> {
    if found == needed {
        return Ok(());
    }
    Err(FitError::WrongShape {
        what,
        found,
        needed,
    })
}

/// Returns `found` if it is finite.
///
/// # Errors
/// [`WrongValue`] for NaN and infinite values.
pub(crate) fn finite(what: &str, found: f64) -> Result<f64, WrongValue> {
    if found.is_finite() {
        return Ok(found);
    }
    let what = what.to_owned();
    let needs = "a finite number";
    Err(WrongValue { what, found, needs })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn tables_with_missing_or_invalid_values_are_refused() {
        let rows = [vec![1.0, 2.0], vec![1.0]];
        let error = Design::new(&["a", "b"], &rows, &[1.0, 2.0], Spread::Absolute).unwrap_err();
        assert_eq!(error.to_string(), "terms in a run: 1 given, 2 needed");
        let error = Design::new(&["a"], &[vec![1.0]], &[1.0, 2.0], Spread::Absolute);
        assert!(matches!(error, Err(FitError::WrongShape { .. })));
        for wrong in [f64::NAN, f64::INFINITY] {
            assert!(Design::new(&["a"], &[vec![wrong]], &[1.0], Spread::Absolute).is_err());
            assert!(Design::new(&["a"], &[vec![1.0]], &[wrong], Spread::Absolute).is_err());
        }
        assert!(Design::new(&["a"], &[vec![1.0]], &[0.0], Spread::Relative).is_err());
        let design = Design::new(&["a"], &[vec![1.0]], &[1.0], Spread::Relative).unwrap();
        for wrong in [&[][..], &[0.0], &[f64::NAN], &[1.0, 1.0]] {
            assert!(design.clone().weighted(wrong).is_err());
        }
    }
}
