//! Fitting of a model to runs: its candidate sets of terms, the selection among them, and errors on held-out runs.

use super::{
    Kind, Model, ModelError, ModelFile, Range, SCHEMA, Shape, Source, Term, Variable, Variables,
};
use crate::estimate::Errors;
use crate::fit::{
    Choice, Design, LinearFit, Spread, Tried, choose, least_squares, not_below_0, robust,
};
use std::collections::BTreeMap;

/// One measurement, to which a model is fitted.
#[derive(Debug, Clone, PartialEq)]
pub struct Run {
    /// The values of the run's variables.
    pub variables: Variables,
    /// The measured value of the quantity that the model predicts.
    pub response: f64,
}

/// The method for estimating coefficients.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Method {
    /// Least squares.
    #[default]
    LeastSquares,
    /// Robust regression, in which outliers get little weight. Terms are still selected by least squares; if there are
    /// several sets, terms with coefficients below 0 are dropped.
    Robust,
}

/// Origin of the data, as known to the caller.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Provenance {
    /// The day of the fit.
    pub date: String,
    /// The results that contain the runs.
    pub data: Vec<Source>,
    /// Properties of the machine on which the data was measured.
    pub machine: BTreeMap<String, String>,
}

/// The settings of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitting {
    /// The kind of the model.
    pub kind: Kind,
    /// The quantity that the model predicts.
    pub response: Variable,
    /// The variables on which the terms depend.
    pub variables: Vec<Variable>,
    /// Candidate sets of terms, of which BIC selects one; a single set is used as it is.
    pub sets: Vec<Vec<Shape>>,
    /// The method for estimating coefficients.
    pub method: Method,
    /// The assumed scatter of the runs around the model.
    pub spread: Spread,
    /// Probability that intervals should cover the true value.
    pub confidence: f64,
}

/// A model, and details of its fit for a report.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The model that was fitted.
    pub model: Model,
    /// The fit; its residuals are in the order of the runs.
    pub fit: LinearFit,
    /// All sets of terms that were tried. Empty if only one was given.
    pub tried: Vec<Tried>,
}

impl Fitting {
    /// Fits to the runs of `seen`, and computes the errors on the runs of `held_out`, which may be empty.
    ///
    /// # Errors
    /// [`ModelError::Missing`] and [`ModelError::NoValue`] for runs that lack a variable, [`ModelError::Fit`] for too
    /// few runs, runs that do not distinguish terms, and values that are not numbers.
    pub fn fit(
        &self,
        seen: &[Run],
        held_out: &[Run],
        from: &Provenance,
    ) -> Result<Fitted, ModelError> {
        let shapes = self.distinct();
        let names: Vec<&str> = shapes.iter().map(|shape| shape.name.as_str()).collect();
        let mut rows = Vec::new();
        for run in seen {
            let row = shapes.iter().map(|shape| shape.value(&run.variables));
            rows.push(row.collect::<Result<Vec<f64>, ModelError>>()?);
        }
        let responses: Vec<f64> = seen.iter().map(|run| run.response).collect();
        let design = Design::new(&names, &rows, &responses, self.spread)?;
        let position = |shape| shapes.iter().position(|other| *other == shape);
        let sets = self
            .sets
            .iter()
            .map(|set| set.iter().filter_map(position).collect());
        let sets: Vec<Vec<usize>> = sets.collect();
        let (terms, fit, tried) = match sets.as_slice() {
            [only] => {
                let fit = least_squares(&design.only(only)?, self.confidence)?;
                (only.clone(), fit, Vec::new())
            }
            several => {
                let Choice { fit, terms, tried } = choose(&design, several, self.confidence)?;
                (terms, fit, tried)
            }
        };
        let (fit, terms) = match self.method {
            Method::LeastSquares => (fit, terms),
            Method::Robust if sets.len() == 1 => {
                (robust(&design.only(&terms)?, self.confidence)?, terms)
            }
            // The weights of robust regression may make a cost negative again.
            Method::Robust => {
                not_below_0(&design, &terms, |design| robust(design, self.confidence))?
            }
        };
        let terms = terms
            .iter()
            .zip(&fit.coefficients)
            .map(|(term, coefficient)| Term {
                coefficient: coefficient.clone(),
                shape: shapes[*term].clone(),
            });
        let file = self.file(terms.collect(), &fit, seen, from);
        let mut model = Model::try_from(file)?;
        model.0.errors.extend(model.check(held_out)?);
        Ok(Fitted { model, fit, tried })
    }

    fn file(
        &self,
        terms: Vec<Term>,
        fit: &LinearFit,
        seen: &[Run],
        from: &Provenance,
    ) -> ModelFile {
        let errors: Vec<Errors> = [fit.in_sample, fit.leave_one_out]
            .into_iter()
            .flatten()
            .collect();
        ModelFile {
            schema: SCHEMA,
            kind: self.kind,
            date: from.date.clone(),
            confidence: fit.confidence,
            spread: fit.spread,
            residual_std: fit.residual_std,
            degrees_of_freedom: fit.degrees_of_freedom as u64,
            r_squared: fit.r_squared,
            covariance: fit.covariance.clone(),
            response: self.response.clone(),
            criteria: fit.criteria,
            errors,
            terms,
            ranges: self
                .variables
                .iter()
                .map(|variable| range(variable, seen))
                .collect(),
            data: from.data.clone(),
            machine: from.machine.clone(),
        }
    }

    /// Returns the distinct terms of all sets.
    fn distinct(&self) -> Vec<&Shape> {
        let mut shapes: Vec<&Shape> = Vec::new();
        for shape in self.sets.iter().flatten() {
            if !shapes.contains(&shape) {
                shapes.push(shape);
            }
        }
        shapes
    }
}

/// Removes from `sets` the terms that the runs cannot determine, and returns the sets that are then still distinct. The
/// removed terms have a variable that is missing in a run, or constant in all runs.
pub fn carried(sets: Vec<Vec<Shape>>, runs: &[Run]) -> Vec<Vec<Shape>> {
    let varies = |name: &str| {
        let values = || runs.iter().map(|run| run.variables.get(name));
        values().all(|value| value.is_some())
            && values().any(|value| Some(value) != values().next())
    };
    let carries = |shape: &Shape| shape.factors.iter().all(|it| varies(it.variable()));
    let mut kept: Vec<Vec<Shape>> = Vec::new();
    for set in sets {
        let set: Vec<Shape> = set.into_iter().filter(carries).collect();
        if !kept.contains(&set) {
            kept.push(set);
        }
    }
    kept
}

fn range(variable: &Variable, runs: &[Run]) -> Range {
    let values = || {
        runs.iter()
            .filter_map(|run| run.variables.get(&variable.name).copied())
    };
    Range {
        variable: variable.name.clone(),
        unit: variable.unit.clone(),
        min: values().fold(f64::INFINITY, f64::min),
        max: values().fold(f64::NEG_INFINITY, f64::max),
    }
}
