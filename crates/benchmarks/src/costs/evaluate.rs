//! Fits the models: one for each kind of port, from one half of its points, checked against the other half.

use super::trial::{Bottleneck, Trial};
use super::{Results, design};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};
use taut_bench::report::flatten;
use taut_measure::{Limit, median};
use taut_model::Errors;
use taut_model::chain;
use taut_model::fit::Spread;
use taut_model::model_file::{
    Fitted, Fitting, Kind, Method, Model, Provenance, Run, Source, Variable, Variables, carried,
};
use taut_results::hex;

const CONFIDENCE: f64 = 0.95;

/// Returns the goal for the median error of a port's model on points that were not used for the fit, as a fraction.
fn goal(port: &str) -> f64 {
    match port {
        "memif" => 0.1,
        _ => 0.05,
    }
}

/// A run, and the prediction of the fitted model for it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Compared {
    /// Index of the run's point in the design.
    pub number: usize,
    /// Values of the model's variables in this run.
    pub at: Variables,
    /// Measured cycles per packet of the run.
    pub measured_cycles: f64,
    /// Cycles per packet that the model predicts for the run.
    pub predicted_cycles: f64,
    /// True if the model was fitted without this run.
    pub held_out: bool,
    /// The bottleneck of the run: worker or generator.
    pub bottleneck: Bottleneck,
}

impl Compared {
    /// Returns the prediction minus the measurement, as a fraction of the measurement.
    pub fn error(&self) -> f64 {
        self.predicted_cycles / self.measured_cycles - 1.0
    }
}

/// A term of a fitted model: its coefficient with the confidence interval.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct TermRow {
    /// The name of the term.
    pub name: String,
    /// Unit of the coefficient.
    pub unit: String,
    /// Fitted value of the coefficient.
    pub value: f64,
    /// Lower bound of the coefficient's confidence interval.
    pub low: f64,
    /// Upper bound of the coefficient's confidence interval.
    pub high: f64,
}

/// The results of a kind of port.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PortModel {
    /// Id of the kind of port.
    pub port: String,
    /// Number of runs of the kind of port.
    pub runs: usize,
    /// Number of runs in which the generator was the bottleneck.
    pub generator_bound: usize,
    /// Number of runs that are used neither for the fit nor for the check, because the hypervisor moved a virtual CPU
    /// to another core during the run.
    pub moved: usize,
    /// Number of runs to which the model was fitted.
    pub fitted: usize,
    /// Errors of the model on the held-out runs, which were not used for the fit; none without a model or without such
    /// runs.
    pub held_out: Option<Errors>,
    /// Errors of the model on those held-out runs in which the worker was the bottleneck; none without a model.
    pub held_out_saturated: Option<Errors>,
    /// Goal for the model's median error on held-out runs (not used for the fit), as a fraction.
    pub goal: f64,
    /// True if the median error is within the goal; none without a model.
    pub meets_goal: Option<bool>,
    /// Median fraction of the time in which the worker's core was interrupted.
    pub interrupted: f64,
    /// Highest rate of all runs, packets per second.
    pub highest_pps: f64,
    /// The part that limited the highest rate, such as the generator.
    pub highest_limited_by: Limit,
    /// Terms of the model; empty without a model.
    pub terms: Vec<TermRow>,
    /// The reason why there is no model; none if there is one.
    pub no_model: Option<String>,
    /// Every run with its prediction.
    #[serde(skip)]
    pub compared: Vec<Compared>,
    /// The fitted model of this kind of port; none if the fit failed.
    #[serde(skip)]
    pub model: Option<Model>,
}

/// An evaluated results folder.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The results folder that was evaluated.
    pub results: &'a Results,
    /// The kinds of ports, in the order of the report.
    pub ports: Vec<PortModel>,
}

impl<'a> Evaluation<'a> {
    /// Fits a model to each kind of port.
    pub fn of(results: &'a Results) -> Self {
        let ports = results.head.own.ports.iter();
        Self {
            results,
            ports: ports.map(|port| port_model(results, &port.id)).collect(),
        }
    }
}

/// Returns the variables of a run, among them the round trip of a cache line if all runs measured it. The batch
/// variable is the measured batch size, not the configured maximum.
fn variables(trial: &Trial, has_line: bool) -> Variables {
    let values = [
        Some(f64::from(trial.point.load_cycles)),
        Some(f64::from(trial.point.functions) - 1.0),
        Some(f64::from(trial.point.frame_bytes)),
        Some(trial.batch),
        trial.line().filter(|_| has_line),
    ];
    let names = chain::VARIABLES.iter().map(|(name, _)| (*name).to_owned());
    let known = names.zip(values);
    known
        .filter_map(|(name, value)| Some((name, value?)))
        .collect()
}

fn run(trial: &Trial, has_line: bool) -> Run {
    Run {
        variables: variables(trial, has_line),
        response: trial.cycles,
    }
}

fn fitting(seen: &[Run]) -> Fitting {
    let variable = |(name, unit): (&str, &str)| Variable {
        name: name.to_owned(),
        unit: unit.to_owned(),
    };
    // All runs of a kind of port have the same variables.
    let known = chain::VARIABLES
        .into_iter()
        .filter(|(name, _)| seen.iter().all(|run| run.variables.contains_key(*name)));
    Fitting {
        kind: Kind::Chain,
        response: variable(("cycles", "cycles/packet")),
        variables: known.map(variable).collect(),
        sets: carried(chain::shapes(None), seen),
        method: Method::Robust,
        spread: Spread::Relative,
        confidence: CONFIDENCE,
    }
}

/// Returns the trials of a kind of port, in the order of their points.
fn trials_of<'a>(results: &'a Results, port: &str) -> Vec<&'a Trial> {
    let mut trials: Vec<&Trial> = results
        .outcomes
        .iter()
        .filter(|trial| trial.port == port)
        .collect();
    trials.sort_by_key(|trial| trial.number);
    trials
}

fn port_model(results: &Results, port: &str) -> PortModel {
    let mut trials = trials_of(results, port);
    let planned = trials.len();
    trials.retain(|trial| !trial.was_moved());
    let has_line = trials.iter().all(|trial| trial.line().is_some());
    let (seen, held_out): (Vec<&Trial>, Vec<&Trial>) = trials
        .iter()
        .copied()
        .partition(|trial| design::is_fitted(trial.number));
    let run = |trial: &&Trial| run(trial, has_line);
    let runs = |of: &[&Trial]| of.iter().map(run).collect::<Vec<Run>>();
    let from = provenance(results, port, &seen);
    let fitted = fitting(&runs(&seen))
        .fit(&runs(&seen), &runs(&held_out), &from)
        .map_err(|error| error.to_string());
    let interrupted: Vec<f64> = trials.iter().map(|trial| trial.interrupted).collect();
    let highest = trials
        .iter()
        .max_by(|a, b| a.rate_pps.total_cmp(&b.rate_pps));
    let mut row = PortModel {
        port: port.to_owned(),
        runs: planned,
        moved: planned - trials.len(),
        generator_bound: trials
            .iter()
            .filter(|trial| trial.bottleneck == Bottleneck::Generator)
            .count(),
        fitted: seen.len(),
        held_out: None,
        held_out_saturated: None,
        goal: goal(port),
        meets_goal: None,
        interrupted: median(&interrupted).unwrap_or(0.0),
        highest_pps: highest.map_or(0.0, |trial| trial.rate_pps),
        highest_limited_by: match highest.map(|trial| trial.bottleneck) {
            Some(Bottleneck::Generator) => Limit::Generator,
            _ => Limit::Device,
        },
        terms: Vec::new(),
        no_model: None,
        compared: Vec::new(),
        model: None,
    };
    match fitted {
        Err(why) => row.no_model = Some(why),
        Ok(Fitted { model, .. }) => {
            let saturated: Vec<&Trial> = held_out
                .into_iter()
                .filter(|trial| trial.bottleneck == Bottleneck::Device)
                .collect();
            row.held_out = model
                .errors()
                .filter(|errors| errors.basis == taut_model::estimate::ErrorBasis::HeldOut);
            row.held_out_saturated = model.check(&runs(&saturated)).ok().flatten();
            row.meets_goal = row.held_out.map(|errors| errors.median <= row.goal);
            let both = trials.iter();
            row.compared = both
                .filter_map(|trial| compared(&model, trial, variables(trial, has_line)))
                .collect();
            row.terms = model.file().terms.iter().map(term_row).collect();
            row.model = Some(model);
        }
    }
    row
}

fn compared(model: &Model, trial: &Trial, at: Variables) -> Option<Compared> {
    let predicted = model.predict(&at).ok()?;
    Some(Compared {
        number: trial.number,
        at,
        measured_cycles: trial.cycles,
        predicted_cycles: predicted.estimate.value,
        held_out: !design::is_fitted(trial.number),
        bottleneck: trial.bottleneck,
    })
}

fn term_row(term: &taut_model::model_file::Term) -> TermRow {
    let coefficient = &term.coefficient;
    TermRow {
        name: term.shape.name.clone(),
        unit: term.shape.unit.clone(),
        value: coefficient.value,
        low: coefficient.low,
        high: coefficient.high,
    }
}

fn provenance(results: &Results, port: &str, seen: &[&Trial]) -> Provenance {
    let manifest = &results.head.manifest;
    let mut digest = Sha256::new();
    for trial in seen {
        digest.update(serde_json::to_vec(trial).unwrap_or_default());
    }
    Provenance {
        date: manifest.started.chars().take(10).collect(),
        data: vec![Source {
            name: format!("taut bench costs, {port}, {}", manifest.started),
            sha256: hex(&digest.finalize()),
            count: seen.len() as u64,
        }],
        machine: flatten(&manifest.machine).into_iter().collect(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::made_up;
    use super::*;

    #[test]
    fn the_fit_recovers_the_terms_and_predicts_held_out_runs() {
        let results = made_up::results();
        let ports = Evaluation::of(&results).ports;
        let value = |port: &PortModel, name: &str| {
            let term = port.terms.iter().find(|term| term.name == name);
            term.map_or(0.0, |term| term.value)
        };
        let (null, pair) = (&ports[0], &ports[1]);
        for port in [null, pair] {
            let errors = port.held_out.unwrap();
            assert!(errors.median < 0.01 && errors.max < 0.05, "{port:?}");
            assert_eq!(port.meets_goal, Some(true));
            assert!((value(port, "load") - 1.0).abs() < 0.02, "{port:?}");
        }
        assert_eq!(
            (null.runs, null.moved, null.held_out.unwrap().count),
            (40, 0, 20)
        );
        assert!(null.terms.iter().all(|term| !term.name.starts_with("line")));
        // A run in which a core was moved is used neither for the fit nor for the check.
        assert_eq!((pair.runs, pair.moved, pair.fitted), (40, 1, 19));
        assert!(
            (value(pair, "line_batch") - 0.4).abs() < 0.05,
            "{:?}",
            pair.terms
        );
        assert!(
            (value(pair, "line_byte") - 1e-4).abs() < 2e-5,
            "{:?}",
            pair.terms
        );
    }

    #[test]
    fn the_pair_model_has_large_errors_without_cache_line_cycles() {
        let mut results = made_up::results();
        for trial in &mut results.outcomes {
            trial.line_cycles.clear();
        }
        let pair = &Evaluation::of(&results).ports[1];
        let errors = pair.held_out.unwrap();
        assert!(errors.median > 0.02 && errors.p95 > 0.3, "{errors:?}");
        assert_eq!(pair.moved, 0);
    }

    #[test]
    fn no_term_is_negative_when_packets_have_no_fixed_cost() {
        let mut results = made_up::results();
        for trial in &mut results.outcomes {
            trial.cycles = (trial.cycles - 22.0).max(0.2);
        }
        let null = &Evaluation::of(&results).ports[0];
        let names: Vec<&str> = null.terms.iter().map(|term| term.name.as_str()).collect();
        assert!(
            names.contains(&"load") && !names.contains(&"io"),
            "{names:?}"
        );
        assert!(
            null.terms.iter().all(|term| term.value >= 0.0),
            "{:?}",
            null.terms
        );
    }

    #[test]
    fn too_few_runs_yield_an_explanation_instead_of_a_model() {
        let mut results = made_up::results();
        results.outcomes.retain(|trial| trial.number < 4);
        let ports = Evaluation::of(&results).ports;
        assert!(
            ports
                .iter()
                .all(|port| port.no_model.as_ref().unwrap().contains("runs"))
        );
    }
}
