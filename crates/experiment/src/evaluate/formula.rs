//! Formulas that compute a value from the metrics of runs.

use super::disturbance::{is_fragile, reason};
use super::selection::{Runs, number};
use crate::build::{is_base, names_build};
use crate::experiment::Experiment;
use crate::folder::IndexedRun;
use crate::metrics;
use crate::robust::{BASELINE, PERTURBATION};
use crate::variables::{MOST_STEPS, Values, message};
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use taut_measure::median;

/// The runs, in the form that formulas use.
pub(crate) struct Formulas {
    environment: Environment<'static>,
    pub(super) data: Arc<Data>,
    drawn: Arc<Mutex<Vec<usize>>>,
    pub(super) by_repetition: Vec<Vec<usize>>,
}

pub(super) struct Data {
    runs: Vec<IndexedRun>,
    /// Values of the loop variables in each planned combination.
    pub(super) planned: Vec<Values>,
}

/// The runs, in the form that the formulas of claims use.
pub(crate) struct ClaimFormulas {
    all: Formulas,
    /// Formulas over the runs with the new build (head) only, if the experiment has two builds.
    head: Option<Formulas>,
}

impl ClaimFormulas {
    pub(crate) fn new(runs: &Runs, experiment: &Experiment) -> Self {
        let with_builds = experiment.against.as_ref();
        Self {
            all: match experiment.robust {
                Some(_) => of_perturbation(experiment, runs, BASELINE, None),
                None => Formulas::new(runs, experiment),
            },
            head: with_builds.map(|_| Formulas::of_head(runs, experiment)),
        }
    }

    /// Returns the runs that a formula uses: only the runs with the new build (head), unless the formula names a build.
    pub(crate) fn of(&self, formula: &str) -> &Formulas {
        let head = self.head.as_ref().filter(|_| !names_build(formula));
        head.unwrap_or(&self.all)
    }
}

/// Returns the formulas over the runs of a perturbation. Only the first `repetitions` repetitions of these runs count.
pub(crate) fn of_perturbation(
    experiment: &Experiment,
    runs: &Runs,
    perturbation: &str,
    repetitions: Option<u32>,
) -> Formulas {
    let is_wanted = |value: Option<&serde_json::Value>| value.is_some_and(|it| it == perturbation);
    Formulas::of_part(
        runs,
        experiment,
        |loops| is_wanted(loops.get(PERTURBATION)),
        |run: &IndexedRun| repetitions.is_none_or(|most| run.repetition <= most),
    )
}

type Figure = fn(&[f64]) -> Option<f64>;

/// A call of a function in a formula.
struct Call {
    function: &'static str,
    metric: String,
    /// Indices of the planned combinations whose runs the call uses.
    combinations: BTreeSet<usize>,
}

/// The function that counts runs, which uses no value of a metric.
const COUNT: &str = "runs";

/// Functions that a formula can apply to the values that a metric has in the runs of selected combinations.
const FIGURES: [(&str, Figure); 5] = [
    ("median", median),
    ("mean", |values| {
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }),
    ("smallest", |values| values.iter().copied().reduce(f64::min)),
    ("largest", |values| values.iter().copied().reduce(f64::max)),
    (COUNT, |values| Some(values.len() as f64)),
];

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(MOST_STEPS));
    environment
}

fn cannot(reason: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, reason)
}

/// Returns the indices of the combinations whose variables have the values in `only`.
fn matching(planned: &[Values], only: &Kwargs) -> Result<BTreeSet<usize>, Error> {
    let mut wanted = Vec::new();
    for name in only.args() {
        let value: minijinja::Value = only.get(name)?;
        if !planned.iter().any(|loops| loops.contains_key(name)) {
            return Err(cannot(format!("unknown loop variable `{name}`")));
        }
        wanted.push((name.to_owned(), value));
    }
    only.assert_all_used()?;
    let matches = |loops: &Values| {
        wanted.iter().all(|(name, value)| {
            let own = loops.get(name);
            own.is_some_and(|own| minijinja::Value::from_serialize(own) == *value)
        })
    };
    let found = planned.iter().enumerate();
    Ok(found
        .filter_map(|(number, loops)| matches(loops).then_some(number))
        .collect())
}

impl Formulas {
    pub(crate) fn new(runs: &Runs, experiment: &Experiment) -> Self {
        let planned = experiment.variants().iter();
        Self::of(
            runs.runs.clone(),
            planned.map(|variant| variant.loops.clone()).collect(),
        )
    }

    /// Returns the formulas over the runs with the new build (head) only, for an experiment that `--against` also ran
    /// with a base build.
    fn of_head(runs: &Runs, experiment: &Experiment) -> Self {
        Self::of_part(runs, experiment, |loops| !is_base(loops), |_| true)
    }

    /// Returns the formulas over a part of the experiment: the combinations whose loop variables satisfy `is_part`, and
    /// those of their runs that satisfy `is_counted`. All other combinations count as not planned.
    pub(crate) fn of_part(
        runs: &Runs,
        experiment: &Experiment,
        is_part: impl Fn(&Values) -> bool,
        is_counted: impl Fn(&IndexedRun) -> bool,
    ) -> Self {
        let variants = experiment.variants().iter().enumerate();
        let part: Vec<usize> = variants
            .filter(|(_, variant)| is_part(&variant.loops))
            .map(|(index, _)| index)
            .collect();
        let wanted = |run: &&IndexedRun| is_part(&run.variables) && is_counted(run);
        let mut runs: Vec<IndexedRun> = runs.runs.iter().filter(wanted).cloned().collect();
        for run in &mut runs {
            let old = run.variant.checked_sub(1);
            let place = old.and_then(|old| part.binary_search(&old).ok());
            run.variant = place.map_or(0, |place| place + 1);
        }
        let loops = |index: &usize| experiment.variants()[*index].loops.clone();
        Self::of(runs, part.iter().map(loops).collect())
    }

    pub(super) fn of(runs: Vec<IndexedRun>, planned: Vec<Values>) -> Self {
        let data = Arc::new(Data { runs, planned });
        let runs = &data.runs;
        let drawn = Arc::new(Mutex::new((0..runs.len()).collect::<Vec<_>>()));
        let repetitions: BTreeSet<u32> = runs.iter().map(|run| run.repetition).collect();
        let by_repetition = repetitions
            .into_iter()
            .map(|repetition| {
                let of = |(index, run): (usize, &IndexedRun)| {
                    (run.repetition == repetition).then_some(index)
                };
                runs.iter().enumerate().filter_map(of).collect()
            })
            .collect();
        let mut environment = environment();
        for (name, figure) in FIGURES {
            let (data, drawn) = (Arc::clone(&data), Arc::clone(&drawn));
            environment.add_function(name, move |metric: String, only: Kwargs| {
                let drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
                let values = data.values(&drawn, &metric, &only)?;
                if values.is_empty() {
                    return Err(cannot(format!("no run with {metric} and these values")));
                }
                figure(&values).ok_or_else(|| cannot("no value".to_owned()))
            });
        }
        Self {
            environment,
            data,
            drawn,
            by_repetition,
        }
    }

    /// Returns the indices of those planned combinations whose runs a formula uses.
    ///
    /// # Errors
    /// The formula is not an expression, or uses a name that does not exist.
    pub(crate) fn taken(planned: &[Values], formula: &str) -> Result<BTreeSet<usize>, String> {
        Ok(joined(&calls(planned, formula)?))
    }

    /// Returns the reason why a formula's value is not measured: too many of the runs in `whole` in which it uses a
    /// fragile metric were disturbed. Returns `None` if the value is measured.
    pub(super) fn disturbance(&self, formula: &str, whole: &[Vec<usize>]) -> Option<String> {
        let calls = calls(&self.data.planned, formula).ok()?;
        let is_used = |run: &IndexedRun| {
            calls.iter().any(|call| {
                run.variant.checked_sub(1).is_some_and(|number| {
                    call.function != COUNT
                        && call.combinations.contains(&number)
                        && metrics::find(&run.metrics, &call.metric).is_some()
                        && is_fragile(run, &call.metric)
                })
            })
        };
        let runs = whole.iter().flatten();
        let runs = runs.filter_map(|index| self.data.runs.get(*index));
        let used: Vec<&IndexedRun> = runs.filter(|run| is_used(run)).collect();
        reason(&used)
    }

    /// Evaluates a condition once with a sample value, to find errors.
    ///
    /// # Errors
    /// The condition is invalid.
    pub(crate) fn try_condition(condition: &str) -> Result<(), String> {
        let context = BTreeMap::from([("value", 1.5)]);
        tried(&environment(), condition, context).map(|_| ())
    }

    /// Returns true if a condition holds for a value.
    ///
    /// # Errors
    /// The condition is invalid.
    pub(crate) fn try_at(condition: &str, value: f64) -> Result<bool, String> {
        let context = BTreeMap::from([("value", value)]);
        Ok(tried(&environment(), condition, context)?.is_true())
    }

    /// Returns the repetitions in which every combination in `taken` was measured. Each repetition is a list of the
    /// indices of its runs.
    pub(super) fn complete(&self, taken: &BTreeSet<usize>) -> Vec<Vec<usize>> {
        let is_whole = |runs: &&Vec<usize>| {
            let there: BTreeSet<usize> = runs
                .iter()
                .filter_map(|index| self.data.runs.get(*index)?.variant.checked_sub(1))
                .collect();
            taken.is_subset(&there)
        };
        self.by_repetition
            .iter()
            .filter(is_whole)
            .cloned()
            .collect()
    }

    pub(super) fn value(&self, formula: &str) -> Result<f64, String> {
        let value = tried(&self.environment, formula, ())?;
        let value = f64::try_from(value).map_err(|_| "the formula gives no number".to_owned())?;
        if value.is_finite() {
            Ok(value)
        } else {
            Err("the formula gives no finite number".to_owned())
        }
    }

    pub(super) fn holds(&self, condition: &str, value: f64) -> Result<bool, String> {
        let context = BTreeMap::from([("value", value)]);
        Ok(tried(&self.environment, condition, context)?.is_true())
    }

    pub(super) fn draw(&self, runs: Vec<usize>) {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = runs;
    }

    /// Returns the formula's value in each repetition; repetitions in which the formula has no value are skipped.
    pub(super) fn in_each(&self, formula: &str, repetitions: &[Vec<usize>]) -> Vec<f64> {
        let alone = |runs: &Vec<usize>| {
            self.draw(runs.clone());
            self.value(formula).ok()
        };
        repetitions.iter().filter_map(alone).collect()
    }
}

/// Returns the calls in a formula, in their order.
///
/// # Errors
/// The formula is not an expression, or uses a name that does not exist.
fn calls(planned: &[Values], formula: &str) -> Result<Vec<Call>, String> {
    let calls = Arc::new(Mutex::new(Vec::new()));
    let planned: Arc<[Values]> = planned.into();
    let mut environment = environment();
    for (function, _) in FIGURES {
        let (calls, planned) = (Arc::clone(&calls), Arc::clone(&planned));
        environment.add_function(function, move |metric: String, only: Kwargs| {
            let combinations = matching(&planned, &only)?;
            let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
            calls.push(Call {
                function,
                metric,
                combinations,
            });
            // A call that uses further combinations returns another value than earlier calls, so that a difference of
            // two metrics in a denominator is not zero.
            Ok(1.0 + joined(&calls).len() as f64)
        });
    }
    tried(&environment, formula, ()).map_err(|reason| with_figures(&reason))?;
    let mut calls = calls.lock().unwrap_or_else(PoisonError::into_inner);
    Ok(std::mem::take(&mut *calls))
}

/// Returns the indices of the combinations of variables that function calls of a formula use, each index once.
fn joined(calls: &[Call]) -> BTreeSet<usize> {
    let combinations = calls.iter().flat_map(|call| &call.combinations);
    combinations.copied().collect()
}

/// Returns the value of an expression, or the reason why it has none.
fn tried(
    environment: &Environment<'_>,
    expression: &str,
    context: impl Serialize,
) -> Result<minijinja::Value, String> {
    environment
        .compile_expression(expression)
        .and_then(|expression| expression.eval(context))
        .map_err(|e| message(&e))
}

/// Adds the list of available functions to an error message about an unknown function; returns other messages
/// unchanged.
fn with_figures(reason: &str) -> String {
    if reason.contains("is unknown") {
        let names = FIGURES.map(|(name, _)| name).join(", ");
        format!("{reason}; a formula has {names}")
    } else {
        reason.to_owned()
    }
}

impl Data {
    fn values(&self, drawn: &[usize], metric: &str, only: &Kwargs) -> Result<Vec<f64>, Error> {
        let wanted = matching(&self.planned, only)?;
        Ok(drawn
            .iter()
            .filter_map(|index| self.runs.get(*index))
            .filter(|run| wanted.iter().any(|number| number + 1 == run.variant))
            .filter_map(|run| number(run, metric))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn planned() -> Vec<Values> {
        let loops = |flush: &str, rate: u32| {
            let values = serde_json::json!({ "flush": flush, "rate": rate });
            serde_json::from_value(values).unwrap()
        };
        vec![
            loops("idle", 10),
            loops("full", 10),
            loops("idle", 20),
            loops("full", 20),
        ]
    }

    #[test]
    fn formula_errors_are_found_before_the_first_run() {
        let taken = |formula: &str| Formulas::taken(&planned(), formula);
        let ratio = "median('a', flush='idle') / median('a', flush='full')";
        assert_eq!(taken(ratio), Ok(BTreeSet::from([0, 1, 2, 3])));
        assert_eq!(taken("runs('a', rate=20)"), Ok(BTreeSet::from([2, 3])));
        assert_eq!(taken("3"), Ok(BTreeSet::new()));
        // The plan has no combination with rate 30; another `--set` could add it, so this is not an error.
        assert_eq!(taken("median('a', rate=30)"), Ok(BTreeSet::new()));
        for (wrong, part) in [
            ("median('a'", "end of input"),
            ("medain('a')", "a formula has median"),
            ("median('a', flsh='idle')", "unknown loop variable `flsh`"),
        ] {
            let reason = taken(wrong).unwrap_err();
            assert!(reason.contains(part), "{wrong}: {reason}");
        }
        assert!(Formulas::try_condition("value > 1 and value < 3").is_ok());
        for wrong in ["value >> 1", "valu > 1", "value >"] {
            assert!(Formulas::try_condition(wrong).is_err(), "{wrong}");
        }
    }
}
