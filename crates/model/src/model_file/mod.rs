//! A fitted model as a file, with its predictions. The file holds terms with intervals, the ranges of the data and the
//! known errors. The command reads and writes it as TOML.
//!
//! [`Fitting`] fits a [`Model`] to [`Run`]s, and [`Model::predict`] evaluates it. A model that was read is consistent:
//! terms, covariance and ranges match.

mod fitting;
mod shape;

pub use fitting::{Fitted, Fitting, Method, Provenance, Run, carried};
pub use shape::{Factor, Shape, Variables};

use crate::estimate::{ErrorBasis, Errors, Outside, Prediction, WrongValue, positive, probability};
use crate::fit::{Coefficient, Criteria, FitError, PredictionInterval, Spread, student};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the model file's layout.
pub const SCHEMA: u32 = 1;

/// The quantity that a model predicts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Cycles of a packet, by load, frame size and batch: [`crate::resource`].
    Resource,
    /// The cycles of one memory access, by the size of the structure: [`crate::access`].
    Access,
    /// Cycles of a packet, by the functions of a chain: [`crate::chain`].
    Chain,
    /// Processor time of a packet, which determines the highest rate: [`crate::overload`].
    Overload,
    /// Time of a frame on a wireless link, by its size.
    Wlan,
}

/// A measured quantity of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Name of the quantity.
    pub name: String,
    /// Unit of the quantity.
    pub unit: String,
}

/// The range of a variable among the runs of the fit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Name of the variable.
    pub variable: String,
    /// Unit of the variable.
    pub unit: String,
    /// Smallest value of the variable.
    pub min: f64,
    /// Largest value of the variable.
    pub max: f64,
}

/// A term with its coefficient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Coefficient of the term, with its interval; it has the term's name.
    pub coefficient: Coefficient,
    /// The factors by which the coefficient is multiplied.
    pub shape: Shape,
}

/// A results file or folder to which a model was fitted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name of the file or folder.
    pub name: String,
    /// SHA-256 of the contents of the file or folder, in hexadecimal.
    pub sha256: String,
    /// Number of runs in the file or folder.
    pub count: u64,
}

/// The content of a model file, before validation.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Version of the layout: [`SCHEMA`].
    pub schema: u32,
    /// The quantity that the model predicts.
    pub kind: Kind,
    /// Date of the fit.
    pub date: String,
    /// Probability that intervals cover the true value.
    pub confidence: f64,
    /// The assumed scatter of the runs around the model.
    pub spread: Spread,
    /// Standard deviation of the residuals; relative to the response if the spread is relative.
    pub residual_std: f64,
    /// Number of runs minus number of terms.
    pub degrees_of_freedom: u64,
    /// Share of the variance that the model explains.
    pub r_squared: f64,
    /// Covariance matrix of the coefficients.
    pub covariance: Vec<Vec<f64>>,
    /// The quantity that the model predicts, with its unit.
    pub response: Variable,
    /// Criteria by which the model's terms were selected. `None` for a robust fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub criteria: Option<Criteria>,
    /// Known errors of the model, each with the data on which they were computed.
    #[serde(default)]
    pub errors: Vec<Errors>,
    /// The terms of the model, with their coefficients.
    pub terms: Vec<Term>,
    /// Range of each variable among the runs of the fit.
    #[serde(default)]
    pub ranges: Vec<Range>,
    /// The results to which the model was fitted.
    #[serde(default)]
    pub data: Vec<Source>,
    /// Properties of the machine on which the data was measured.
    #[serde(default)]
    pub machine: BTreeMap<String, String>,
}

/// Reason why a model cannot be fitted, read or evaluated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A variable on which the model depends has no value.
    #[error("the model depends on `{0}`: give it a value")]
    Missing(String),
    /// A variable that is unknown to the model.
    #[error("unknown variable `{asked}`: the model has {known}")]
    Unknown {
        /// The name that is no variable of the model.
        asked: String,
        /// The names that the model knows.
        known: String,
    },
    /// A variable at whose value a term is not defined.
    #[error(
        "the model is undefined at {variable} = {asked}: use a finite number that divides no term by 0"
    )]
    NoValue {
        /// Name of the variable.
        variable: String,
        /// The value at which a term is not defined.
        asked: f64,
    },
    /// A file with another layout version.
    #[error("the model file has schema {0}: this version reads {SCHEMA}; fit it again")]
    Schema(u32),
    /// Parts of the file contradict each other.
    #[error("the model file is inconsistent: {0}")]
    Inconsistent(String),
    /// A fit that failed.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A value in the model is invalid.
    #[error(transparent)]
    Value(#[from] WrongValue),
}

/// A fitted model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "ModelFile", into = "ModelFile")]
pub struct Model(ModelFile);

impl Model {
    /// Returns the contents of the model's file.
    pub fn file(&self) -> &ModelFile {
        &self.0
    }

    /// Returns the prediction for a run with the given variables; its interval covers the response of one new run. The
    /// prediction lists variables outside the range of the fit.
    ///
    /// # Errors
    /// [`ModelError::Missing`], [`ModelError::Unknown`] and [`ModelError::NoValue`] for variables that are missing,
    /// unknown, or without a value.
    pub fn predict(&self, variables: &Variables) -> Result<Prediction, ModelError> {
        let file = &self.0;
        if let Some(unknown) = variables.keys().find(|name| file.range(name).is_none()) {
            let known: Vec<&str> = file
                .ranges
                .iter()
                .map(|range| range.variable.as_str())
                .collect();
            return Err(ModelError::Unknown {
                asked: unknown.clone(),
                known: known.join(", "),
            });
        }
        let terms = file.terms.iter().map(|term| term.shape.value(variables));
        let terms = terms.collect::<Result<Vec<f64>, ModelError>>()?;
        let values: Vec<f64> = file
            .terms
            .iter()
            .map(|term| term.coefficient.value)
            .collect();
        let interval = PredictionInterval {
            values: &values,
            covariance: &file.covariance,
            spread: file.spread,
            residual_std: file.residual_std,
            degrees_of_freedom: file.degrees_of_freedom as f64,
            confidence: file.confidence,
        };
        let outside = file.ranges.iter().filter_map(|range| {
            let asked = *variables.get(&range.variable)?;
            let inside = (range.min..=range.max).contains(&asked);
            (!inside).then(|| Outside {
                variable: range.variable.clone(),
                asked,
                min: range.min,
                max: range.max,
            })
        });
        Ok(Prediction {
            estimate: interval.at(&terms)?,
            unit: file.response.unit.clone(),
            errors: self.errors(),
            outside: outside.collect(),
        })
    }

    /// Returns the half-width of prediction intervals in standard errors.
    ///
    /// # Errors
    /// [`ModelError::Value`] for invalid degrees of freedom.
    pub fn reach(&self) -> Result<f64, ModelError> {
        let file = &self.0;
        Ok(student(file.degrees_of_freedom as f64, file.confidence)?)
    }

    /// Returns the most informative errors: those on held-out runs if they exist, else leave-one-out errors, else those
    /// on the runs of the fit.
    pub fn errors(&self) -> Option<Errors> {
        let of = |basis| {
            self.0
                .errors
                .iter()
                .find(|errors| errors.basis == basis)
                .copied()
        };
        of(ErrorBasis::HeldOut)
            .or_else(|| of(ErrorBasis::LeaveOneOut))
            .or_else(|| of(ErrorBasis::Published))
            .or_else(|| of(ErrorBasis::InSample))
    }

    /// Returns the errors on runs that were not used in the fit. Returns `None` without runs, or if a response is 0.
    ///
    /// # Errors
    /// The errors of [`Model::predict`].
    pub fn check(&self, runs: &[Run]) -> Result<Option<Errors>, ModelError> {
        let mut pairs = Vec::new();
        for run in runs {
            let predicted = self.predict(&run.variables)?.estimate.value;
            pairs.push((predicted, run.response));
        }
        Ok(Errors::of(ErrorBasis::HeldOut, pairs))
    }
}

impl ModelFile {
    fn range(&self, variable: &str) -> Option<&Range> {
        self.ranges.iter().find(|range| range.variable == variable)
    }
}

impl TryFrom<ModelFile> for Model {
    type Error = ModelError;

    fn try_from(file: ModelFile) -> Result<Self, ModelError> {
        if file.schema != SCHEMA {
            return Err(ModelError::Schema(file.schema));
        }
        let wrong = |what: String| Err(ModelError::Inconsistent(what));
        let terms = file.terms.len();
        if terms == 0 {
            return wrong("it has no terms".to_owned());
        }
        let square =
            file.covariance.len() == terms && file.covariance.iter().all(|row| row.len() == terms);
        if !square {
            return wrong(format!(
                "the covariance of {terms} terms needs {terms} rows of {terms}"
            ));
        }
        let numbers = file.covariance.iter().flatten().copied();
        let numbers = numbers.chain(file.terms.iter().map(|term| term.coefficient.value));
        if let Some(number) = numbers
            .chain([file.residual_std])
            .find(|number| !number.is_finite())
        {
            return wrong(format!("{number} among terms, covariance or residual_std"));
        }
        for factor in file.terms.iter().flat_map(|term| &term.shape.factors) {
            let variable = factor.variable();
            match file.range(variable) {
                None => return wrong(format!("no range of `{variable}`")),
                Some(range)
                    if range.min.is_nan() || range.max.is_nan() || range.min > range.max =>
                {
                    return wrong(format!("the range of `{variable}` has its ends swapped"));
                }
                Some(_) => {}
            }
        }
        if let Some(source) = file.data.iter().find(|source| !is_sha256(&source.sha256)) {
            return wrong(format!(
                "the sha256 of `{}` needs 64 hexadecimal digits",
                source.name
            ));
        }
        positive("degrees of freedom", file.degrees_of_freedom as f64)?;
        probability("a confidence", file.confidence)?;
        Ok(Self(file))
    }
}

impl From<Model> for ModelFile {
    fn from(model: Model) -> Self {
        model.0
    }
}

fn is_sha256(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests;
