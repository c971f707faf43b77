//! Claims: formulas over the runs, with the uncertainty that so few runs leave.

use super::Runs;
use super::selection::number;
use crate::definition::Claim;
use crate::experiment::Experiment;
use crate::folder::IndexedRun;
use crate::variables::{MOST_STEPS, Values, message};
use minijinja::value::Kwargs;
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use taut_measure::quantity::plain;
use taut_measure::{Interval, IntervalMethod, median, median_interval};

/// Probability with which an interval is to cover, from six repetitions on. With fewer it says what it covers.
const CONFIDENCE: f64 = 0.95;

/// Verdict on a claim: whether it holds here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Verdict {
    /// Text of the claim.
    pub text: String,
    /// The published figures.
    pub published: String,
    /// Formula of the claim.
    pub formula: String,
    /// Value of the formula.
    pub value: Option<f64>,
    /// Ends of the interval of the median over the repetitions, each of which gives the formula a value by itself, as
    /// its combinations share the machine's mood; `None` with one repetition, and for a formula that takes several.
    pub interval: Option<[f64; 2]>,
    /// Probability that such an interval covers that median, 0..1.
    #[serde(default)]
    pub coverage: f64,
    /// Method by which the interval was made.
    #[serde(default)]
    pub method: IntervalMethod,
    /// Repetitions behind it.
    pub repetitions: usize,
    /// Condition under which the claim holds.
    pub condition: String,
    /// Whether the claim holds.
    pub verdict: VerdictKind,
    /// Explanation, where it cannot be told or may be otherwise.
    pub note: String,
}

/// Kind of a verdict.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// The claim holds at the value and at both ends of its interval; in every repetition where they are fewer than 95
    /// % takes.
    Reproduced,
    /// The claim holds at none of these.
    NotReproduced,
    /// The claim holds at some of them.
    Unclear,
    /// The formula has no value: runs or metrics are missing.
    NoData,
}

impl VerdictKind {
    /// Returns the verdict as people read it.
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
    /// Writes one line: verdict, claim, figures.
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
    data: Arc<Data>,
    drawn: Arc<Mutex<Vec<usize>>>,
    by_repetition: Vec<Vec<usize>>,
}

struct Data {
    runs: Vec<IndexedRun>,
    /// The loop variables of all combinations that are planned.
    planned: Vec<Values>,
}

type Figure = fn(&[f64]) -> Option<f64>;

/// Functions by which formulas can ask about the runs of some combinations.
const FIGURES: [(&str, Figure); 5] = [
    ("median", median),
    ("mean", |values| {
        Some(values.iter().sum::<f64>() / values.len() as f64)
    }),
    ("smallest", |values| values.iter().copied().reduce(f64::min)),
    ("largest", |values| values.iter().copied().reduce(f64::max)),
    ("runs", |values| Some(values.len() as f64)),
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

/// The combinations, by their numbers, that have these values.
fn matching(planned: &[Values], only: &Kwargs) -> Result<BTreeSet<usize>, Error> {
    let mut wanted = Vec::new();
    for name in only.args() {
        let value: minijinja::Value = only.get(name)?;
        if !planned.iter().any(|loops| loops.contains_key(name)) {
            return Err(cannot(format!("there is no loop variable `{name}`")));
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

    fn of(runs: Vec<IndexedRun>, planned: Vec<Values>) -> Self {
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

    /// The combinations that a formula takes runs of, by their numbers among those planned.
    ///
    /// # Errors
    /// What is wrong with the formula: it is no expression, or asks for something that is not there.
    pub(crate) fn taken(planned: &[Values], formula: &str) -> Result<BTreeSet<usize>, String> {
        let taken = Arc::new(Mutex::new(BTreeSet::new()));
        let planned: Arc<[Values]> = planned.into();
        let mut environment = environment();
        for (name, _) in FIGURES {
            let (taken, planned) = (Arc::clone(&taken), Arc::clone(&planned));
            environment.add_function(name, move |_: String, only: Kwargs| {
                let found = matching(&planned, &only)?;
                let mut taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
                taken.extend(found);
                // Any two differ, so that nothing is divided by none.
                Ok(1.0 + taken.len() as f64)
            });
        }
        tried(&environment, formula, ()).map_err(|reason| with_figures(&reason))?;
        let taken = taken.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(taken.clone())
    }

    /// Tries a condition with a made-up value.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn try_condition(condition: &str) -> Result<(), String> {
        let context = BTreeMap::from([("value", 1.5)]);
        tried(&environment(), condition, context).map(|_| ())
    }

    /// Places of the runs of each repetition in which all of these combinations were measured.
    fn complete(&self, taken: &BTreeSet<usize>) -> Vec<Vec<usize>> {
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

    fn value(&self, formula: &str) -> Result<f64, String> {
        let value = tried(&self.environment, formula, ())?;
        let value = f64::try_from(value).map_err(|_| "the formula gives no number".to_owned())?;
        if value.is_finite() {
            Ok(value)
        } else {
            Err("the formula gives no finite number".to_owned())
        }
    }

    fn holds(&self, condition: &str, value: f64) -> Result<bool, String> {
        let context = BTreeMap::from([("value", value)]);
        Ok(tried(&self.environment, condition, context)?.is_true())
    }

    fn draw(&self, runs: Vec<usize>) {
        *self.drawn.lock().unwrap_or_else(PoisonError::into_inner) = runs;
    }

    /// Returns what the formula comes to in each of these repetitions alone that gives it a value.
    fn in_each(&self, formula: &str, repetitions: &[Vec<usize>]) -> Vec<f64> {
        let alone = |runs: &Vec<usize>| {
            self.draw(runs.clone());
            self.value(formula).ok()
        };
        repetitions.iter().filter_map(alone).collect()
    }
}

/// Returns what an expression comes to.
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

/// A reason, with what formulas can use where they use something else.
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
    let judged = judge(formulas, claim.value.get_ref(), claim.holds.get_ref());
    Verdict {
        text: claim.text.clone(),
        published: claim.published.clone(),
        note: if judged.note.is_empty() {
            claim.note.clone()
        } else {
            judged.note
        },
        ..judged
    }
}

/// Judges a formula by its condition.
fn judge(formulas: &Formulas, formula: &str, condition: &str) -> Verdict {
    let mut verdict = Verdict {
        text: String::new(),
        published: String::new(),
        formula: formula.to_owned(),
        value: None,
        interval: None,
        coverage: 0.0,
        method: IntervalMethod::Range,
        repetitions: formulas.by_repetition.len(),
        condition: condition.to_owned(),
        note: String::new(),
        verdict: VerdictKind::NoData,
    };
    let whole = Formulas::taken(&formulas.data.planned, formula).map(|taken| {
        let whole = formulas.complete(&taken);
        (taken, whole)
    });
    let whole = match whole {
        Ok((_, whole)) if !whole.is_empty() => whole,
        Ok((taken, _)) => {
            verdict.note = format!(
                "no repetition has all of the {} combinations that are compared",
                taken.len()
            );
            return verdict;
        }
        Err(reason) => {
            verdict.note = reason;
            return verdict;
        }
    };
    let in_each = formulas.in_each(formula, &whole);
    formulas.draw(whole.concat());
    let value = match formulas.value(formula) {
        Ok(value) => value,
        Err(reason) => {
            verdict.note = reason;
            return verdict;
        }
    };
    verdict.value = Some(value);
    verdict.repetitions = whole.len();
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
    fn a_formula_is_tried_before_the_first_run() {
        let taken = |formula: &str| Formulas::taken(&planned(), formula);
        let ratio = "median('a', flush='idle') / median('a', flush='full')";
        assert_eq!(taken(ratio), Ok(BTreeSet::from([0, 1, 2, 3])));
        assert_eq!(taken("runs('a', rate=20)"), Ok(BTreeSet::from([2, 3])));
        assert_eq!(taken("3"), Ok(BTreeSet::new()));
        // Of combinations that only another --set plans.
        assert_eq!(taken("median('a', rate=30)"), Ok(BTreeSet::new()));
        for (wrong, part) in [
            ("median('a'", "end of input"),
            ("medain('a')", "a formula has median"),
            ("median('a', flsh='idle')", "no loop variable `flsh`"),
        ] {
            let reason = taken(wrong).unwrap_err();
            assert!(reason.contains(part), "{wrong}: {reason}");
        }
        assert!(Formulas::try_condition("value > 1 and value < 3").is_ok());
        for wrong in ["value >> 1", "valu > 1", "value >"] {
            assert!(Formulas::try_condition(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn only_repetitions_with_all_that_is_compared_count() {
        let run = |variant: usize, repetition| IndexedRun {
            id: format!("v{variant}-r{repetition}"),
            variant,
            repetition,
            warm_up: false,
            seconds: 1.0,
            variables: planned()[variant - 1].clone(),
            metrics: BTreeMap::from([("a".to_owned(), variant as f64)]),
            checksum: String::new(),
        };
        let judged = |runs: Vec<IndexedRun>| {
            let formulas = Formulas::of(runs, planned());
            let (value, holds) = (
                "median('a', flush='idle') / median('a', flush='full')",
                "value > 0",
            );
            judge(&formulas, value, holds)
        };
        // The first of an interrupted experiment: another rate each.
        let unpaired = judged(vec![run(1, 1), run(4, 1)]);
        assert_eq!(unpaired.verdict, VerdictKind::NoData);
        assert!(unpaired.note.contains("all of the 4"), "{}", unpaired.note);
        let whole = |repetition| (1..=4).map(move |variant| run(variant, repetition));
        let more = judged(
            whole(1)
                .chain(whole(2))
                .chain([run(1, 3), run(4, 3)])
                .collect(),
        );
        assert_eq!(more.verdict, VerdictKind::Reproduced);
        assert_eq!(more.repetitions, 2);
        assert!((more.value.unwrap() - 2.0 / 3.0).abs() < 1e-9, "{more:?}");
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
