//! Claims: formulas over the runs, with the uncertainty that so few runs leave.

use super::Runs;
use super::selection::number;
use crate::definition::Claim;
use crate::variables::{MOST_STEPS, message};
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use taut_lab::quantity::plain;
use taut_measure::median;

/// Times that the repetitions are drawn anew.
const RESAMPLES: usize = 1000;

/// Whether a claim holds here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// The claim.
    pub text: String,
    /// The published figures.
    pub published: String,
    /// The formula.
    pub formula: String,
    /// What it comes to.
    pub value: Option<f64>,
    /// Its 95 % interval: percentiles of the formula over repetitions drawn anew, all combinations of a
    /// repetition together, as they share the machine's mood; `None` with one repetition.
    pub interval: Option<[f64; 2]>,
    /// Repetitions behind it.
    pub repetitions: usize,
    /// When it holds.
    pub condition: String,
    /// Whether it does.
    pub verdict: VerdictKind,
    /// Why, where it cannot be told or may be otherwise.
    pub note: String,
}

/// Whether a claim holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// At the value and at both ends of its interval.
    Reproduced,
    /// At none of the three.
    NotReproduced,
    /// At some of them.
    Unclear,
    /// The formula has no value: runs or metrics are missing.
    NoData,
}

impl VerdictKind {
    /// As people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::NotReproduced => "not reproduced",
            Self::Unclear => "unclear",
            Self::NoData => "no data",
        }
    }
}

impl std::fmt::Display for Verdict {
    /// One line: verdict, claim, figures.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.verdict.name(), self.text)?;
        if let Some(value) = self.value {
            write!(f, " [{}", plain(value))?;
            if let Some([low, high]) = self.interval {
                write!(f, ", 95 % {} to {}", plain(low), plain(high))?;
            }
            write!(f, "; {}]", self.condition)?;
        }
        if !self.published.is_empty() {
            write!(f, " (published: {})", self.published)?;
        }
        if !self.note.is_empty() {
            write!(f, " {}", self.note)?;
        }
        Ok(())
    }
}

/// The runs as formulas see them.
pub(crate) struct Formulas {
    environment: Environment<'static>,
    drawn: Arc<Mutex<Vec<usize>>>,
    by_repetition: Vec<Vec<usize>>,
    seed: u64,
}

struct Data {
    runs: Vec<crate::folder::IndexedRun>,
}

impl Formulas {
    pub(crate) fn new(runs: &Runs, seed: u64) -> Self {
        let data = Arc::new(Data {
            runs: runs.runs.clone(),
        });
        let drawn = Arc::new(Mutex::new((0..runs.runs.len()).collect::<Vec<_>>()));
        let repetitions: BTreeSet<u32> = runs.runs.iter().map(|run| run.repetition).collect();
        let by_repetition = repetitions
            .into_iter()
            .map(|repetition| {
                let of = |(index, run): (usize, &crate::folder::IndexedRun)| {
                    (run.repetition == repetition).then_some(index)
                };
                runs.runs.iter().enumerate().filter_map(of).collect()
            })
            .collect();
        let mut environment = Environment::new();
        environment.set_undefined_behavior(UndefinedBehavior::Strict);
        environment.set_fuel(Some(MOST_STEPS));
        type Figure = fn(&[f64]) -> Option<f64>;
        let figures: [(&'static str, Figure); 5] = [
            ("median", median),
            ("mean", |values| {
                Some(values.iter().sum::<f64>() / values.len() as f64)
            }),
            ("smallest", |values| values.iter().copied().reduce(f64::min)),
            ("largest", |values| values.iter().copied().reduce(f64::max)),
            ("runs", |values| Some(values.len() as f64)),
        ];
        for (name, figure) in figures {
            let (data, drawn) = (Arc::clone(&data), Arc::clone(&drawn));
            environment.add_function(name, move |metric: String, only: Kwargs| {
                let drawn = drawn.lock().unwrap_or_else(PoisonError::into_inner);
                let values = data.values(&drawn, &metric, &only)?;
                only.assert_all_used()?;
                if values.is_empty() {
                    return Err(Error::new(
                        ErrorKind::InvalidOperation,
                        format!("no run with {metric} and these values"),
                    ));
                }
                figure(&values).ok_or_else(|| Error::new(ErrorKind::InvalidOperation, "no value"))
            });
        }
        Self {
            environment,
            drawn,
            by_repetition,
            seed,
        }
    }

    fn value(&self, formula: &str) -> Result<f64, String> {
        let value = self
            .environment
            .compile_expression(formula)
            .and_then(|e| e.eval(()))
            .map_err(|e| message(&e))?;
        f64::try_from(value)
            .map_err(|_| "the formula gives no number".to_owned())
            .and_then(|value| {
                if value.is_finite() {
                    Ok(value)
                } else {
                    Err("the formula gives no finite number".to_owned())
                }
            })
    }

    fn holds(&self, condition: &str, value: f64) -> Result<bool, String> {
        let context = std::collections::BTreeMap::from([("value", value)]);
        let result = self
            .environment
            .compile_expression(condition)
            .and_then(|e| e.eval(context))
            .map_err(|e| message(&e))?;
        Ok(result.is_true())
    }

    fn draw(&self, runs: Vec<usize>) {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = runs;
    }

    /// The formula's 95 % interval.
    fn interval(&self, formula: &str) -> Option<[f64; 2]> {
        let repetitions = self.by_repetition.len();
        if repetitions < 2 {
            return None;
        }
        let mut rng = fastrand::Rng::with_seed(self.seed);
        let mut values: Vec<f64> = (0..RESAMPLES)
            .filter_map(|_| {
                let drawn = (0..repetitions).flat_map(|_| {
                    self.by_repetition[rng.usize(0..repetitions)]
                        .iter()
                        .copied()
                });
                self.draw(drawn.collect());
                self.value(formula).ok()
            })
            .collect();
        self.draw(self.by_repetition.concat());
        values.sort_by(f64::total_cmp);
        // Draws without a value would hide one side of the truth.
        let enough = values.len() * 10 > RESAMPLES * 9;
        enough.then(|| {
            [
                values[values.len() / 40],
                values[values.len() - 1 - values.len() / 40],
            ]
        })
    }
}

impl Data {
    fn values(&self, drawn: &[usize], metric: &str, only: &Kwargs) -> Result<Vec<f64>, Error> {
        let mut wanted = Vec::new();
        for name in only.args() {
            let value: minijinja::Value = only.get(name)?;
            wanted.push((name.to_owned(), value));
        }
        if let Some((name, _)) = wanted
            .iter()
            .find(|(name, _)| !self.runs.iter().any(|run| run.variables.contains_key(name)))
        {
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("there is no loop variable `{name}`"),
            ));
        }
        let matches = |run: &crate::folder::IndexedRun| {
            wanted.iter().all(|(name, value)| {
                run.variables
                    .get(name)
                    .is_some_and(|own| minijinja::Value::from_serialize(own) == *value)
            })
        };
        Ok(drawn
            .iter()
            .filter_map(|index| self.runs.get(*index))
            .filter(|run| matches(run))
            .filter_map(|run| number(run, metric))
            .collect())
    }
}

/// Judges a claim.
pub(crate) fn verdict(formulas: &Formulas, claim: &Claim) -> Verdict {
    let (formula, condition) = (claim.value.get_ref(), claim.holds.get_ref());
    let mut verdict = Verdict {
        text: claim.text.clone(),
        published: claim.published.clone(),
        formula: formula.clone(),
        value: None,
        interval: None,
        repetitions: formulas.by_repetition.len(),
        condition: condition.clone(),
        verdict: VerdictKind::NoData,
        note: claim.note.clone(),
    };
    let value = match formulas.value(formula) {
        Ok(value) => value,
        Err(reason) => {
            verdict.note = reason;
            return verdict;
        }
    };
    verdict.value = Some(value);
    verdict.interval = formulas.interval(formula);
    let at: Result<Vec<bool>, String> = std::iter::once(value)
        .chain(verdict.interval.into_iter().flatten())
        .map(|value| formulas.holds(condition, value))
        .collect();
    verdict.verdict = match at {
        Ok(at) if at.iter().all(|holds| *holds) => VerdictKind::Reproduced,
        Ok(at) if at.iter().all(|holds| !holds) => VerdictKind::NotReproduced,
        Ok(_) => VerdictKind::Unclear,
        Err(reason) => {
            verdict.note = reason;
            VerdictKind::NoData
        }
    };
    verdict
}
