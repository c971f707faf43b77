//! A fitted model as a file: its terms with intervals, what it was fitted on, the errors it is known to make; and what
//! it predicts. The command reads and writes it as TOML.
//!
//! [`Fitting`] makes a [`Model`] of [`Run`]s, [`Model::predict`] asks it. A model that is read has been checked: terms,
//! covariance and ranges belong together.

mod fitting;
mod shape;

pub use fitting::{Fitted, Fitting, Method, Provenance, Run, carried};
pub use shape::{Factor, Shape, Variables};

use crate::estimate::{ErrorBasis, Errors, Outside, Prediction, WrongValue, positive, probability};
use crate::fit::{Coefficient, Criteria, FitError, PredictionInterval, Spread, student};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Version of the file's layout.
pub const SCHEMA: u32 = 1;

/// What a model is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Cycles of a packet over load, size and batch: [`crate::resource`].
    Resource,
    /// Cycles of an access over the size of a structure: [`crate::access`].
    Access,
    /// Cycles of a packet over the functions of a chain: [`crate::chain`].
    Chain,
    /// The time that packets take the processor, which the highest rate follows from: [`crate::overload`].
    Overload,
    /// The time that a frame takes on a wireless link over its size.
    Wlan,
}

/// A quantity of runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variable {
    /// Its name.
    pub name: String,
    /// Its unit.
    pub unit: String,
}

/// Values of a variable that a model was fitted on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Range {
    /// Name of the variable.
    pub variable: String,
    /// Its unit.
    pub unit: String,
    /// The smallest value.
    pub min: f64,
    /// The largest value.
    pub max: f64,
}

/// A term with its coefficient.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Term {
    /// Its coefficient with its interval, under the term's name.
    pub coefficient: Coefficient,
    /// What the coefficient is multiplied by.
    pub shape: Shape,
}

/// Data that a model was fitted to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Source {
    /// Name of the results.
    pub name: String,
    /// SHA-256 of them, in hexadecimal.
    pub sha256: String,
    /// Runs in them.
    pub count: u64,
}

/// What a model file holds, not yet checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Version of the layout: [`SCHEMA`].
    pub schema: u32,
    /// What the model is about.
    pub kind: Kind,
    /// When it was fitted.
    pub date: String,
    /// Probability that intervals cover the truth.
    pub confidence: f64,
    /// How runs scatter.
    pub spread: Spread,
    /// Standard deviation of residuals; as a share of the response where the spread is relative.
    pub residual_std: f64,
    /// Runs less terms.
    pub degrees_of_freedom: u64,
    /// Share of the variance that it explains.
    pub r_squared: f64,
    /// Covariance of the coefficients.
    pub covariance: Vec<Vec<f64>>,
    /// What it predicts.
    pub response: Variable,
    /// Criteria by which its terms were chosen. None if fitted robustly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub criteria: Option<Criteria>,
    /// Errors by how they were found.
    #[serde(default)]
    pub errors: Vec<Errors>,
    /// Terms.
    pub terms: Vec<Term>,
    /// Values of each variable that it was fitted on.
    #[serde(default)]
    pub ranges: Vec<Range>,
    /// Data that it was fitted to.
    #[serde(default)]
    pub data: Vec<Source>,
    /// The machine that the data is from.
    #[serde(default)]
    pub machine: BTreeMap<String, String>,
}

/// Why a model cannot be made, read or asked.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelError {
    /// A variable that the model depends on was not given.
    #[error("the model depends on `{0}`: give it a value")]
    Missing(String),
    /// A variable that the model does not know.
    #[error("the model knows no `{asked}`: it knows {known}")]
    Unknown {
        /// What was given.
        asked: String,
        /// What there is.
        known: String,
    },
    /// A term that has no value there.
    #[error(
        "the model has no value at {variable} = {asked}: it needs a finite number where no term is divided by 0"
    )]
    NoValue {
        /// Name of the variable.
        variable: String,
        /// What it was asked at.
        asked: f64,
    },
    /// A file of another layout.
    #[error("the model file has schema {0}: this version reads {SCHEMA}; fit it again")]
    Schema(u32),
    /// Parts of a file that do not belong together.
    #[error("the model file is inconsistent: {0}")]
    Inconsistent(String),
    /// No fit.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A value that cannot be.
    #[error(transparent)]
    Value(#[from] WrongValue),
}

/// A fitted model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "ModelFile", into = "ModelFile")]
pub struct Model(ModelFile);

impl Model {
    /// What the model's file holds.
    pub fn file(&self) -> &ModelFile {
        &self.0
    }

    /// Returns what the model predicts of a run: its interval covers a single new run. Where it was asked outside the
    /// ranges that it was fitted on, the prediction says so.
    ///
    /// # Errors
    /// [`ModelError::Missing`], [`ModelError::Unknown`] and [`ModelError::NoValue`] for variables that the model
    /// cannot be asked at.
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

    /// Returns how many standard errors the intervals of its predictions reach to each side.
    ///
    /// # Errors
    /// [`ModelError::Value`] for degrees of freedom that no distribution has.
    pub fn reach(&self) -> Result<f64, ModelError> {
        let file = &self.0;
        Ok(student(file.degrees_of_freedom as f64, file.confidence)?)
    }

    /// Returns the errors that tell most: on held-out runs if there were such, else leave-one-out, else in sample.
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

    /// Returns the errors on runs that the model has not seen. None without runs, or if one measured 0.
    ///
    /// # Errors
    /// As of [`Model::predict`].
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
