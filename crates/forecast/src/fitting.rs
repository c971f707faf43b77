//! Selection of the model and of the columns for a fit, and its check on held-out runs. (Gallenmüller 2021, section 4,
//! names AIC and BIC for the choice of terms.)

use crate::table::Table;
use crate::{Described, ForecastError};
use std::collections::BTreeSet;
use taut_model::access::{self, AccessFit, Point, STRUCTURE};
use taut_model::estimate::ErrorBasis;
use taut_model::fit::{LinearFit, Spread, Tried};
use taut_model::model_file::{
    Factor, Fitting, Kind, Method, Model, ModelFile, Provenance, Run, Shape, Variable, carried,
};
use taut_model::{chain, resource};

/// The settings of a fit.
#[derive(Debug, Clone)]
pub struct What {
    /// The model's kind; derived from the columns if `None`.
    pub kind: Option<Kind>,
    /// Column of the response; the model's default if `None`.
    pub response: Option<String>,
    /// True for robust regression, in which outliers get little weight.
    pub robust: bool,
    /// Seed of the random choice of held-out runs.
    pub seed: u64,
    /// Probability that intervals should cover the true value.
    pub confidence: f64,
    /// Date of the fit, for the model file.
    pub date: String,
    /// The machine whose caches an access model uses.
    pub machine: Described,
}

/// A model, and details of its fit.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// The model, fitted to all runs. Its errors are those of a fit to one half of the runs, evaluated on the other
    /// half.
    pub model: Model,
    /// The fit of the model to all runs.
    pub fit: LinearFit,
    /// All sets of terms that were tried.
    pub tried: Vec<Tried>,
    /// The fitted access model; `None` for other kinds of models.
    pub access: Option<AccessFit>,
}

/// Names of columns that are not variables of a chain but that a model may use, with their units.
const MORE_COLUMNS: [(&str, &str); 2] = [(STRUCTURE, "bytes"), ("bytes", "bytes")];

/// Returns all column names that models know, with their units.
fn known_columns() -> impl Iterator<Item = (&'static str, &'static str)> {
    chain::VARIABLES.into_iter().chain(MORE_COLUMNS)
}

/// Fits a model to a table. Its errors come from a fit to half of the runs, drawn by seed, evaluated on the other half.
///
/// # Errors
/// Columns are missing, runs are too few or all alike, or values are invalid.
pub fn fit(table: &Table, what: &What) -> Result<Fitted, ForecastError> {
    let mut table = table.clone();
    table.derive();
    let there: BTreeSet<String> = table.columns().into_iter().collect();
    let kind = what.kind.unwrap_or_else(|| by_columns(&there));
    let response = what
        .response
        .clone()
        .unwrap_or_else(|| usual_response(kind).to_owned());
    let runs = runs(&table, &response, &there)?;
    let mut access = None;
    let fitting = if kind == Kind::Access {
        let fitted = fit_access(&runs, what)?;
        let fitting = fitted.fitting(what.confidence);
        access = Some(fitted);
        fitting
    } else {
        fitting_of_terms(kind, &response, &runs, what)
    };
    let from = Provenance {
        date: what.date.clone(),
        data: table.sources.clone(),
        machine: what
            .machine
            .name
            .iter()
            .map(|name| ("cpu".to_owned(), name.clone()))
            .collect(),
    };
    let whole = fitting.fit(&runs, &[], &from)?;
    let mut file: ModelFile = whole.model.file().clone();
    let (seen, held_out) = halves(&runs, what.seed);
    // With too few runs for two halves, only the leave-one-out error is available.
    if let Ok(half) = fitting.fit(&seen, &held_out, &from) {
        let errors = half
            .model
            .errors()
            .filter(|errors| errors.basis == ErrorBasis::HeldOut);
        file.errors.extend(errors);
    }
    Ok(Fitted {
        model: Model::try_from(file)?,
        fit: whole.fit,
        tried: whole.tried,
        access,
    })
}

/// Returns the fitting of a model whose terms are chosen from candidate sets.
fn fitting_of_terms(kind: Kind, response: &str, runs: &[Run], what: &What) -> Fitting {
    let sets = carried(sets(kind), runs);
    let names: BTreeSet<&str> = sets
        .iter()
        .flatten()
        .flat_map(|shape| &shape.factors)
        .map(Factor::variable)
        .collect();
    let variable = |(name, unit): (&str, &str)| Variable {
        name: name.to_owned(),
        unit: unit.to_owned(),
    };
    let variables = known_columns()
        .filter(|(name, _)| names.contains(name))
        .map(variable);
    let unit = if kind == Kind::Wlan {
        "us"
    } else {
        "cycles/packet"
    };
    Fitting {
        kind,
        response: variable((response, unit)),
        variables: variables.collect(),
        sets,
        method: if what.robust {
            Method::Robust
        } else {
            Method::LeastSquares
        },
        spread: Spread::Relative,
        confidence: what.confidence,
    }
}

fn by_columns(there: &BTreeSet<String>) -> Kind {
    let has = |name: &str| there.contains(name);
    if has(STRUCTURE) {
        Kind::Access
    } else if has("hand_overs") {
        Kind::Chain
    } else if has("bytes") && has("time_us") {
        Kind::Wlan
    } else {
        Kind::Resource
    }
}

fn usual_response(kind: Kind) -> &'static str {
    match kind {
        Kind::Wlan => "time_us",
        _ => "cycles",
    }
}

/// Returns the candidate sets of terms for a model of the given kind.
fn sets(kind: Kind) -> Vec<Vec<Shape>> {
    match kind {
        Kind::Chain => chain::shapes(None),
        Kind::Wlan => {
            let packet = Shape::new("packet", "us", vec![]);
            let byte = Shape::new("byte", "us/byte", vec![Factor::power("bytes", 1.0)]);
            vec![vec![packet.clone()], vec![packet, byte]]
        }
        _ => resource::shapes(),
    }
}

fn runs(
    table: &Table,
    response: &str,
    there: &BTreeSet<String>,
) -> Result<Vec<Run>, ForecastError> {
    if !there.contains(response) {
        return Err(ForecastError::Wrong(format!(
            "no column \"{response}\" with a number in every run; there are {}: name the one that was measured with --response",
            there.iter().cloned().collect::<Vec<_>>().join(", ")
        )));
    }
    let known = |name: &&String| known_columns().any(|(column, _)| column == *name);
    let run = |row: &crate::table::Row| {
        let variables = row.numbers.iter().filter(|(name, _)| known(name));
        Some(Run {
            variables: variables
                .map(|(name, value)| (name.clone(), *value))
                .collect(),
            response: *row.numbers.get(response)?,
        })
    };
    let mut runs: Vec<Run> = table.rows.iter().filter_map(run).collect();
    // Constant columns are removed: a model cannot depend on them, and its users need not give them.
    let constant = |name: &str| {
        let values: Vec<f64> = runs
            .iter()
            .filter_map(|run| run.variables.get(name).copied())
            .collect();
        values.windows(2).all(|pair| pair[0] == pair[1])
    };
    let constants: Vec<String> = known_columns()
        .map(|(name, _)| name)
        .filter(|name| constant(name))
        .map(str::to_owned)
        .collect();
    for run in &mut runs {
        run.variables.retain(|name, _| !constants.contains(name));
    }
    Ok(runs)
}

fn fit_access(runs: &[Run], what: &What) -> Result<AccessFit, ForecastError> {
    let nominal = what.machine.hierarchy()?.ok_or_else(|| {
        ForecastError::Wrong(
            "the caches are unknown: give them in a machine file (--machine)".to_owned(),
        )
    })?;
    let point = |run: &Run| {
        let bytes = run.variables.get(STRUCTURE).copied();
        bytes.map(|bytes| Point {
            bytes,
            cycles: run.response,
            scatter: None,
        })
    };
    let points: Vec<Point> = runs.iter().filter_map(point).collect();
    Ok(access::fit(&nominal, &points, what.confidence)?)
}

/// Splits the runs at random into two halves, and returns both.
fn halves(runs: &[Run], seed: u64) -> (Vec<Run>, Vec<Run>) {
    let mut order: Vec<usize> = (0..runs.len()).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut order);
    let (seen, held_out) = order.split_at(runs.len().div_ceil(2));
    let of = |half: &[usize]| half.iter().map(|at| runs[*at].clone()).collect();
    (of(seen), of(held_out))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::table::Row;
    use taut_model::model_file::Variables;

    fn what(kind: Option<Kind>) -> What {
        What {
            kind,
            response: None,
            robust: false,
            seed: 1,
            confidence: 0.95,
            date: "2026-01-01".to_owned(),
            machine: Described::default(),
        }
    }

    fn row(values: &[(&str, f64)]) -> Row {
        Row {
            numbers: values
                .iter()
                .map(|(name, value)| ((*name).to_owned(), *value))
                .collect(),
            ..Row::default()
        }
    }

    /// Returns runs of 90 + load + 0.05 bytes + 160 / batch + 9 (functions - 1) cycles, with 1 % of noise.
    fn table() -> Table {
        let mut random = fastrand::Rng::with_seed(7);
        let rows = (0..80).map(|_| {
            let (load, bytes) = (random.f64() * 1_000.0, 64.0 + random.f64() * 1_400.0);
            let (batch, functions) = (f64::from(random.u8(1..=64)), f64::from(random.u8(1..=10)));
            let cycles = 90.0 + load + 0.05 * bytes + 160.0 / batch + 9.0 * (functions - 1.0);
            row(&[
                ("load_cycles", load),
                ("frame_bytes", bytes),
                ("batch", batch),
                ("functions", functions),
                ("cycles", cycles * (1.0 + 0.02 * (random.f64() - 0.5))),
            ])
        });
        Table {
            rows: rows.collect(),
            sources: Vec::new(),
        }
    }

    #[test]
    fn costs_fitted_on_half_the_runs_predict_the_other_half() {
        let fitted = fit(&table(), &what(None)).unwrap();
        let file = fitted.model.file();
        assert_eq!(file.kind, Kind::Chain);
        let value = |name: &str| {
            let term = file.terms.iter().find(|term| term.shape.name == name);
            term.map(|term| term.coefficient.value).unwrap_or(f64::NAN)
        };
        assert!((value("load") - 1.0).abs() < 0.02, "{file:?}");
        assert!((value("hand_over") - 9.0).abs() < 2.0 && (value("batch") - 160.0).abs() < 20.0);
        let errors = fitted.model.errors().unwrap();
        assert_eq!((errors.basis, errors.count), (ErrorBasis::HeldOut, 40));
        assert!(errors.median < 0.02, "{errors:?}");
        let asked = [
            ("load_cycles", 100.0),
            ("frame_bytes", 64.0),
            ("batch", 32.0),
            ("hand_overs", 4.0),
        ];
        let asked: Variables = asked
            .into_iter()
            .map(|(name, at)| (name.to_owned(), at))
            .collect();
        let predicted = fitted.model.predict(&asked).unwrap();
        assert!(
            (predicted.estimate.value / 234.2 - 1.0).abs() < 0.03,
            "{predicted:?}"
        );
    }

    #[test]
    fn constant_columns_are_excluded_from_the_model() {
        let mut table = table();
        for row in &mut table.rows {
            row.numbers.insert("batch".to_owned(), 32.0);
            row.numbers.remove("functions");
        }
        let fitted = fit(&table, &what(None)).unwrap();
        assert_eq!(fitted.model.file().kind, Kind::Resource);
        let names: Vec<_> = fitted
            .model
            .file()
            .ranges
            .iter()
            .map(|range| range.variable.clone())
            .collect();
        assert_eq!(names, ["load_cycles", "frame_bytes"]);
    }

    #[test]
    fn a_wireless_link_fits_a_constant_and_per_byte_time() {
        let rows = [64.0, 256.0, 512.0, 1024.0, 1400.0, 1500.0]
            .map(|bytes| row(&[("bytes", bytes), ("pps", 1e6 / (0.15 * bytes + 282.43))]));
        let table = Table {
            rows: rows.into(),
            sources: Vec::new(),
        };
        let fitted = fit(&table, &what(None)).unwrap();
        let values: Vec<f64> = fitted.fit.coefficients.iter().map(|it| it.value).collect();
        assert!(
            (values[0] - 282.43).abs() < 1e-6 && (values[1] - 0.15).abs() < 1e-9,
            "{values:?}"
        );
    }

    #[test]
    fn tables_that_cannot_be_fitted_cause_a_one_line_error() {
        let mut few = table();
        few.rows.truncate(4);
        assert!(
            fit(&few, &what(None))
                .unwrap_err()
                .to_string()
                .contains("runs")
        );
        let without = what(None);
        let missing = What {
            response: Some("pps".to_owned()),
            ..without.clone()
        };
        let error = fit(&table(), &missing).unwrap_err().to_string();
        assert!(
            error.contains("--response") && error.contains("load_cycles"),
            "{error}"
        );
        let access = fit(&table(), &what(Some(Kind::Access)))
            .unwrap_err()
            .to_string();
        assert!(access.contains("--machine"), "{access}");
    }
}
