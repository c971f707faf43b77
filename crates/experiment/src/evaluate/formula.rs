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
use taut_measure::{Interval, IntervalMethod, median, median_interval};

/// How often an interval is to cover, from six repetitions on. With fewer it says what it covers.
const CONFIDENCE: f64 = 0.95;

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
    /// Ends of the interval of the median over the repetitions, each of which gives the formula a value by itself, as
    /// its combinations share the machine's mood; `None` with one repetition, and for a formula that takes several.
    pub interval: Option<[f64; 2]>,
    /// How often such an interval covers that median, 0..1.
    #[serde(default)]
    pub coverage: f64,
    /// How the interval came about.
    #[serde(default)]
    pub method: IntervalMethod,
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
    /// At the value and at both ends of its interval; in every repetition where they are fewer than 95 % takes.
    Reproduced,
    /// At none of these.
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

impl Verdict {
    /// The value's interval; `None` where it has none.
    pub fn spread(&self) -> Option<Interval> {
        let [low, high] = self.interval?;
        Some(Interval {
            low,
            point: self.value?,
            high,
            confidence: self.coverage,
            count: self.repetitions as u64,
            method: self.method,
        })
    }

    /// The verdict as people read it, with what it rests on where that is less than 95 % of anything:
    /// `reproduced in all of 3 repetitions`.
    pub fn words(&self) -> String {
        let name = self.verdict.name();
        let told = match self.verdict {
            VerdictKind::Reproduced => "all",
            VerdictKind::NotReproduced => "none",
            VerdictKind::Unclear | VerdictKind::NoData => return name.to_owned(),
        };
        match (self.repetitions, self.interval) {
            (1, _) => format!("{name} in one repetition"),
            (_, None) => format!("{name}, without an interval"),
            (_, Some(_)) if self.coverage >= CONFIDENCE => name.to_owned(),
            (few, Some(_)) if told == "all" => format!("{name} in all of {few} repetitions"),
            (few, Some(_)) => format!("{name} in any of {few} repetitions"),
        }
    }
}

impl std::fmt::Display for Verdict {
    /// One line: verdict, claim, figures.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.words(), self.text)?;
        if let Some(value) = self.value {
            write!(f, " [{}", plain(value))?;
            if let Some(interval) = self.spread() {
                write!(f, ", {}", interval.words(plain))?;
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
}

struct Data {
    runs: Vec<crate::folder::IndexedRun>,
}

impl Formulas {
    pub(crate) fn new(runs: &Runs) -> Self {
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

    /// What the formula comes to in each repetition alone that gives it a value.
    fn in_each(&self, formula: &str) -> Vec<f64> {
        let alone = |runs: &Vec<usize>| {
            self.draw(runs.clone());
            self.value(formula).ok()
        };
        let values = self.by_repetition.iter().filter_map(alone).collect();
        self.draw(self.by_repetition.concat());
        values
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

/// The interval of the repetitions' median. `None` of one, and where the value over all runs lies beyond what
/// repetitions give by themselves: such a formula takes several, as one that counts runs does.
fn spread(in_each: &[f64], value: f64) -> Option<Interval> {
    let least = in_each.iter().copied().reduce(f64::min)?;
    let most = in_each.iter().copied().reduce(f64::max)?;
    let slack = 1e-9 * value.abs();
    let among = least - slack <= value && value <= most + slack;
    median_interval(in_each, CONFIDENCE).filter(|found| found.count > 1 && among)
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
        coverage: 0.0,
        method: IntervalMethod::Range,
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
    let in_each = formulas.in_each(formula);
    let mut judged = vec![value];
    if let Some(found) = spread(&in_each, value) {
        verdict.interval = Some([found.low, found.high]);
        (verdict.coverage, verdict.method) = (found.confidence, found.method);
        verdict.repetitions = in_each.len();
        match found.method {
            IntervalMethod::Range => judged.extend(in_each),
            _ => judged.extend([found.low, found.high]),
        }
    }
    let at: Result<Vec<bool>, String> = judged
        .into_iter()
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn verdict_of(in_each: &[f64], verdict: VerdictKind) -> Verdict {
        let value = median(in_each).unwrap();
        let found = spread(in_each, value);
        Verdict {
            text: "it is so".to_owned(),
            published: String::new(),
            formula: String::new(),
            value: Some(value),
            interval: found.map(|found| [found.low, found.high]),
            coverage: found.map_or(0.0, |found| found.confidence),
            method: found.map_or_else(Default::default, |found| found.method),
            repetitions: in_each.len(),
            condition: "value > 1".to_owned(),
            verdict,
            note: String::new(),
        }
    }

    #[test]
    fn a_verdict_says_what_it_rests_on_where_that_is_less_than_a_verdict_claims() {
        use VerdictKind::{NotReproduced, Reproduced, Unclear};
        let three = verdict_of(&[2.0, 4.0, 3.0], Reproduced);
        assert_eq!(
            three.to_string(),
            "reproduced in all of 3 repetitions: it is so [3, range of 3: 2 to 4; value > 1]"
        );
        let six = verdict_of(&[2.0, 4.0, 3.0, 3.0, 3.0, 3.0], Reproduced);
        assert_eq!(
            six.to_string(),
            "reproduced: it is so [3, 96 % 2 to 4, n = 6; value > 1]"
        );
        let words = |values: &[f64], verdict| verdict_of(values, verdict).words();
        assert_eq!(
            words(&[0.5; 3], NotReproduced),
            "not reproduced in any of 3 repetitions"
        );
        assert_eq!(words(&[2.0], Reproduced), "reproduced in one repetition");
        assert_eq!(words(&[0.0, 2.0], Unclear), "unclear");
    }

    #[test]
    fn a_formula_that_takes_several_repetitions_has_no_interval() {
        // Such as the number of runs: one in each of three repetitions.
        assert_eq!(spread(&[1.0; 3], 3.0), None);
        assert!(spread(&[1.0; 3], 1.0).is_some());
        assert_eq!(spread(&[1.0], 1.0), None);
        assert_eq!(spread(&[], 1.0), None);
    }
}
