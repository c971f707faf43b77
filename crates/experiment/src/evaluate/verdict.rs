//! Verdicts on claims: results are compared with published figures, including the uncertainty from the number of runs.

use super::formula::Formulas;
use crate::claim::{Claim, PublishedFigure, Region};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_measure::quantity::plain;
use taut_measure::{Interval, IntervalMethod, median_interval};

/// Coverage of the confidence intervals, which is reached with six repetitions or more. With fewer repetitions the
/// actual coverage is printed.
const CONFIDENCE: f64 = 0.95;

/// Verdict on a claim.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub struct Verdict {
    /// Text of the claim.
    pub text: String,
    /// The published result, as text.
    pub published: String,
    /// The published result as numbers; `None` for the experiment's own claim.
    #[serde(default)]
    pub figure: Option<PublishedFigure>,
    /// Range of values that agree with the published figure within the tolerance; both bounds are open without a
    /// figure.
    #[serde(default)]
    pub same: Region,
    /// The value divided by the published figure; `None` if there is no value or no figure, or if the ratio is
    /// meaningless.
    #[serde(default)]
    pub factor: Option<f64>,
    /// Formula of the claim.
    pub formula: String,
    /// Value of the formula over all complete repetitions; `None` if runs or metrics are missing.
    pub value: Option<f64>,
    /// Lower and upper bound of the confidence interval of the median over the repetitions. The formula is evaluated
    /// once per repetition, because the combinations of one repetition share the state of the machine. `None` with one
    /// repetition, and for a formula that combines several repetitions.
    pub interval: Option<[f64; 2]>,
    /// Probability that the confidence interval covers the true median, 0..1.
    #[serde(default)]
    pub coverage: f64,
    /// Method by which the confidence interval was computed.
    #[serde(default)]
    pub method: IntervalMethod,
    /// Number of repetitions that the value is based on.
    pub repetitions: usize,
    /// Condition under which the claim holds; for a published figure, the condition that the result has the published
    /// direction.
    pub condition: String,
    /// The kind of the verdict.
    pub verdict: VerdictKind,
    /// Reason from the experiment file why the result may differ from the published one. If there is no value or
    /// verdict, the reason for that.
    pub note: String,
}

/// Kind of a verdict.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum VerdictKind {
    /// The result has the published direction, and its interval overlaps the published figure within the tolerance.
    Same,
    /// The result has the published direction, but its size disagrees with the published size, or no size was
    /// published.
    SameDirection,
    /// The result has the opposite direction.
    Opposite,
    /// The condition of the experiment's own claim holds at the value and at both bounds of its interval. With too few
    /// repetitions for an interval of 95 %, it holds in each repetition.
    #[serde(alias = "reproduced")]
    Holds,
    /// The condition of the experiment's own claim holds neither at the value nor at a bound of its interval; with few
    /// repetitions, in no repetition.
    #[serde(alias = "not-reproduced")]
    Fails,
    /// The condition holds for some, but not all, of the values that are compared.
    Unclear,
    /// The formula has no value: runs or metrics are missing.
    NoData,
    /// Other programs disturbed at least half of the runs, and the formula uses means, maxima, high percentiles, losses
    /// or rates.
    NotMeasured,
}

impl VerdictKind {
    /// Returns the verdict as text.
    pub fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::SameDirection => "same direction",
            Self::Opposite => "opposite",
            Self::Holds => "holds",
            Self::Fails => "fails",
            Self::Unclear => "unclear",
            Self::NoData => "no data",
            Self::NotMeasured => "not measured",
        }
    }

    /// Returns the CSS class of the verdict's cell on a page.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Self::Same | Self::Holds => "good",
            Self::Opposite | Self::Fails => "bad",
            Self::SameDirection | Self::Unclear | Self::NoData | Self::NotMeasured => "open",
        }
    }

    /// Returns true if the verdict is conclusive: undisturbed data exist, and the verdict is not unclear.
    pub fn is_told(self) -> bool {
        !matches!(self, Self::Unclear | Self::NoData | Self::NotMeasured)
    }
}

impl Verdict {
    /// Returns the confidence interval of the value with its coverage; `None` if there is no interval.
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

    /// Returns the value with its interval, as text.
    pub fn here(&self) -> String {
        let value = self.value.map_or_else(|| "-".to_owned(), plain);
        match self.spread() {
            Some(interval) => format!("{value} ({})", interval.short(plain)),
            None => value,
        }
    }

    /// Returns the verdict with its factor, for a table in which the number of repetitions is a separate column: `same
    /// direction, × 9.3`.
    pub fn brief(&self) -> String {
        let name = self.verdict.name();
        match self.factor {
            Some(factor) if self.verdict == VerdictKind::SameDirection => {
                format!("{name}, × {}", plain(factor))
            }
            _ if self.verdict.is_told() && self.repetitions > 1 && self.interval.is_none() => {
                format!("{name}, without an interval")
            }
            _ => name.to_owned(),
        }
    }

    /// Returns the verdict as text, with its factor. With too few repetitions for an interval of 95 %, the text
    /// contains the number of repetitions: `same direction, 9.3 times the published figure, in all of 3 repetitions`.
    pub fn words(&self) -> String {
        let mut words = self.verdict.name().to_owned();
        if self.verdict == VerdictKind::SameDirection {
            words = match self.factor {
                Some(factor) => format!("{words}, {} times the published figure", plain(factor)),
                None if self.same == [None; 2] => format!("{words}, no size was published"),
                None => words,
            };
        }
        if !self.verdict.is_told() {
            return words;
        }
        match (self.repetitions, self.interval) {
            (1, _) => format!("{words}, in one repetition"),
            (_, None) => format!("{words}, without an interval"),
            (_, Some(_)) if self.coverage >= CONFIDENCE => words,
            (few, Some(_)) if self.verdict == VerdictKind::Same => {
                format!("{words}, by the range of {few} repetitions")
            }
            (few, Some(_)) => format!("{words}, in all of {few} repetitions"),
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
            if self.figure.is_none() {
                write!(f, "; {}", self.condition)?;
            }
            write!(f, "]")?;
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

/// Returns the confidence interval of the median of `in_each`, the formula's values in single repetitions. Returns
/// `None` for one repetition, and if `value`, the value over all runs, is outside the range of `in_each`. A formula
/// with such a value combines several repetitions, for example by counting runs.
fn spread(in_each: &[f64], value: f64) -> Option<Interval> {
    let least = in_each.iter().copied().reduce(f64::min)?;
    let most = in_each.iter().copied().reduce(f64::max)?;
    let slack = 1e-9 * value.abs();
    let among = least - slack <= value && value <= most + slack;
    median_interval(in_each, CONFIDENCE).filter(|found| found.count > 1 && among)
}

/// The value of a formula, and its uncertainty.
struct Found {
    value: f64,
    spread: Option<Interval>,
    repetitions: usize,
    /// Values for which the condition is evaluated: the value, and the bounds of its interval. With too few repetitions
    /// for an interval of 95 %, the values in single repetitions take the place of the bounds.
    judged: Vec<f64>,
    /// Reason why the value is not measured; `None` if it is.
    disturbance: Option<String>,
}

/// Evaluates a formula over all complete repetitions.
///
/// # Errors
/// The reason why the formula has no value.
fn find(formulas: &Formulas, formula: &str) -> Result<Found, String> {
    let taken = Formulas::taken(&formulas.data.planned, formula)?;
    let whole = formulas.complete(&taken);
    if whole.is_empty() {
        return Err(format!(
            "no repetition has all of the {} combinations that are compared",
            taken.len()
        ));
    }
    let in_each = formulas.in_each(formula, &whole);
    formulas.draw(whole.concat());
    let value = formulas.value(formula)?;
    let spread = spread(&in_each, value);
    let repetitions = match spread {
        Some(_) => in_each.len(),
        None => whole.len(),
    };
    let mut judged = vec![value];
    match spread {
        Some(found) if found.method == IntervalMethod::Range => judged.extend(in_each),
        Some(found) => judged.extend([found.low, found.high]),
        None => {}
    }
    Ok(Found {
        value,
        spread,
        repetitions,
        judged,
        disturbance: formulas.disturbance(formula, &whole),
    })
}

/// Returns the verdict on a claim.
pub(crate) fn verdict(formulas: &Formulas, claim: &Claim) -> Verdict {
    let figure = claim.figure().cloned();
    let mut verdict = Verdict {
        text: claim.text.clone(),
        published: claim.published_text(),
        same: figure
            .as_ref()
            .map_or([None; 2], |it| it.region(claim.tolerance.as_ref())),
        figure,
        factor: None,
        formula: claim.value.get_ref().clone(),
        value: None,
        interval: None,
        coverage: 0.0,
        method: IntervalMethod::Range,
        repetitions: formulas.by_repetition.len(),
        condition: claim.condition(),
        note: claim.note.clone(),
        verdict: VerdictKind::NoData,
    };
    let found = match find(formulas, &verdict.formula) {
        Ok(found) => found,
        Err(reason) => {
            verdict.note = reason;
            return verdict;
        }
    };
    verdict.value = Some(found.value);
    verdict.repetitions = found.repetitions;
    if let Some(spread) = found.spread {
        verdict.interval = Some([spread.low, spread.high]);
        (verdict.coverage, verdict.method) = (spread.confidence, spread.method);
    }
    verdict.factor = verdict
        .figure
        .as_ref()
        .and_then(|it| it.factor(found.value));
    let condition = &verdict.condition;
    let holds = |value: &f64| formulas.holds(condition, *value);
    let at: Result<Vec<bool>, String> = found.judged.iter().map(holds).collect();
    match at {
        Ok(at) => {
            let of_published = verdict.figure.is_some().then_some(verdict.same);
            verdict.verdict = kind(&found.judged, &at, of_published);
        }
        Err(reason) => {
            verdict.note = reason;
            return verdict;
        }
    }
    if let Some(reason) = found.disturbance {
        verdict.verdict = VerdictKind::NotMeasured;
        verdict.note = reason;
    }
    verdict
}

/// Returns the kind of verdict. `holds` contains for each value in `judged` whether the condition holds. `same` is the
/// range of values that agree with the published figure; `None` for the experiment's own claim.
fn kind(judged: &[f64], holds: &[bool], same: Option<Region>) -> VerdictKind {
    let all = holds.iter().all(|holds| *holds);
    let none = holds.iter().all(|holds| !holds);
    match same {
        None if all => VerdictKind::Holds,
        None if none => VerdictKind::Fails,
        // No size was published, so the result cannot have the same size.
        Some([None, None]) if all => VerdictKind::SameDirection,
        Some(same) if all && meets(judged, same) => VerdictKind::Same,
        Some(_) if all => VerdictKind::SameDirection,
        Some(_) if none => VerdictKind::Opposite,
        _ => VerdictKind::Unclear,
    }
}

/// Returns true if the range of `values` overlaps a region.
fn meets(values: &[f64], [from, to]: Region) -> bool {
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    from.is_none_or(|from| high >= from) && to.is_none_or(|to| low <= to)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::folder::IndexedRun;
    use crate::variables::Values;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// Returns formulas over runs of one combination, one run per repetition.
    fn formulas(values: &[f64]) -> Formulas {
        let run = |(index, value): (usize, &f64)| IndexedRun {
            id: format!("v1-r{}", index + 1),
            variant: 1,
            repetition: index as u32 + 1,
            warm_up: false,
            seconds: 1.0,
            variables: Values::default(),
            metrics: BTreeMap::from([("a".to_owned(), *value)]),
            programs: Vec::new(),
            checksum: String::new(),
        };
        let runs = values.iter().enumerate().map(run).collect();
        Formulas::of(runs, vec![Values::default()])
    }

    fn judged(values: &[f64], claim: &str) -> Verdict {
        let claim: Claim = toml::from_str(&format!(
            "text = 'it is so'\nvalue = \"median('a')\"\n{claim}"
        ))
        .unwrap();
        assert_eq!(claim.mistake(), None);
        verdict(&formulas(values), &claim)
    }

    const TWICE: &str =
        "published = { value = 2.0, unit = 'times', source = 'S 1', origin = 'printed' }";

    #[test]
    fn a_verdict_distinguishes_same_value_same_direction_and_opposite() {
        use VerdictKind::{NoData, Opposite, Same, SameDirection, Unclear};
        // Values from 1.6 to 2.5 are within the tolerance of the published figure.
        for (values, wanted) in [
            (&[2.0; 6][..], Same),
            (&[1.61; 6], Same),
            (&[1.59; 6], SameDirection),
            (&[2.49; 6], Same),
            (&[2.51; 6], SameDirection),
            (&[1.2, 1.3, 1.2, 1.3, 1.2, 1.7], Same),
            (&[20.0; 6], SameDirection),
            (&[0.9; 6], Opposite),
            // These values are within the tolerance of a figure near 1, but most are in the opposite direction.
            (&[0.9, 0.9, 0.9, 0.9, 0.9, 1.1], Unclear),
            (&[2.0, 0.9], Unclear),
            (&[2.0], Same),
            (&[f64::NAN], NoData),
        ] {
            assert_eq!(judged(values, TWICE).verdict, wanted, "{values:?}");
        }
        let ten = judged(&[20.0; 6], TWICE);
        assert_eq!(ten.factor, Some(10.0));
        assert_eq!(ten.words(), "same direction, 10 times the published figure");
        assert_eq!(
            judged(&[2.0], TWICE).to_string(),
            "same, in one repetition: it is so [2] (published: 2 times (S 1, printed))"
        );
        // The published value is ten per cent more than 1, so any value below 1 has the opposite direction, however
        // near to 1.
        let more =
            "published = { value = 1.1, unit = 'times', source = 'S 1', origin = 'printed' }";
        assert_eq!(judged(&[0.95; 6], more).verdict, Opposite);
        let bound =
            "published = { at_least = 7.0, unit = 'times', source = 'S 1', origin = 'printed' }";
        assert_eq!(judged(&[100.0; 6], bound).verdict, Same);
        assert_eq!(judged(&[3.0; 6], bound).verdict, SameDirection);
        let direction = "holds = 'value > 1'\npublished = { text = 'more', source = 'S 1', origin = 'printed' }";
        let more = judged(&[3.0; 6], direction);
        assert_eq!((more.verdict, more.factor), (SameDirection, None));
        assert_eq!(more.words(), "same direction, no size was published");
        assert_eq!(judged(&[0.5; 6], direction).verdict, Opposite);
        let none = "holds = 'value < 0.05'\ntolerance = { within = 0.01, why = 'counts' }\n\
                    published = { value = 0.0, unit = 'share', source = 'S 1', origin = 'printed' }";
        assert_eq!(judged(&[0.005; 6], none).verdict, Same);
        assert_eq!(judged(&[0.02; 6], none).verdict, SameDirection);
        assert_eq!(judged(&[0.5; 6], none).verdict, Opposite);
    }

    #[test]
    fn a_claim_of_our_own_gets_one_of_three_verdicts() {
        let own = "ours = true\nholds = 'value > 1'";
        let three = judged(&[2.0, 4.0, 3.0], own);
        assert_eq!(
            three.to_string(),
            "holds, in all of 3 repetitions: it is so [3, range of 3: 2 to 4; value > 1]"
        );
        let six = judged(&[2.0, 4.0, 3.0, 3.0, 3.0, 3.0], own);
        assert_eq!(
            six.to_string(),
            "holds: it is so [3, 96 % 2 to 4, n = 6; value > 1]"
        );
        assert_eq!(
            judged(&[0.5; 3], own).words(),
            "fails, in all of 3 repetitions"
        );
        assert_eq!(judged(&[2.0], own).words(), "holds, in one repetition");
        assert_eq!(judged(&[0.0, 2.0], own).words(), "unclear");
        // A text states a published result, but nothing can be compared with it.
        let words = judged(&[2.0; 6], "holds = 'value > 1'\npublished = 'some 4'");
        assert_eq!(words.verdict, VerdictKind::Holds);
        assert!(words.to_string().ends_with("(published: some 4)"));
    }

    /// Returns the verdict on a claim about `metric`, from six runs of which `busy` were disturbed.
    fn judged_on_busy_machine(metric: &str, busy: u32, claim: &str) -> Verdict {
        let run = |repetition: u32| IndexedRun {
            id: format!("v1-r{repetition}"),
            variant: 1,
            repetition,
            warm_up: false,
            seconds: 1.0,
            variables: Values::default(),
            metrics: BTreeMap::from([
                (metric.to_owned(), 2.0),
                (
                    "taken_share".to_owned(),
                    if repetition <= busy { 0.12 } else { 0.001 },
                ),
            ]),
            programs: vec!["cc1".to_owned()],
            checksum: String::new(),
        };
        let formulas = Formulas::of((1..=6).map(run).collect(), vec![Values::default()]);
        let text = format!("text = 'it is so'\nvalue = \"median('{metric}')\"\n{claim}");
        verdict(&formulas, &toml::from_str(&text).unwrap())
    }

    #[test]
    fn tail_claims_are_not_measured_with_half_the_runs_disturbed() {
        let own = "ours = true\nholds = 'value > 1'";
        for (claim, wanted) in [(own, VerdictKind::Holds), (TWICE, VerdictKind::Same)] {
            let tail = |busy| judged_on_busy_machine("latency_ns.p99_ns", busy, claim);
            assert_eq!(tail(2).verdict, wanted);
            assert_eq!(tail(3).verdict, VerdictKind::NotMeasured);
            let median = judged_on_busy_machine("latency_ns.p50_ns", 6, claim);
            assert_eq!(median.verdict, wanted);
        }
        let verdict = judged_on_busy_machine("latency_ns.p99_ns", 4, own);
        assert_eq!(
            verdict.to_string(),
            "not measured: it is so [2, 96 % 2 to 2, n = 6; value > 1] 12.0 % of a core went to other programs (most: \
             cc1) in 4 of 6 runs"
        );
        assert_eq!(verdict.brief(), "not measured");
        assert!(!verdict.verdict.is_told());
        let stored = serde_json::to_string(&verdict.verdict).unwrap();
        assert_eq!(stored, "\"not-measured\"");
    }

    #[test]
    fn former_verdict_names_are_still_parsed() {
        let read =
            |name: &str| serde_json::from_str::<VerdictKind>(&format!("\"{name}\"")).unwrap();
        assert_eq!(read("reproduced"), VerdictKind::Holds);
        assert_eq!(read("not-reproduced"), VerdictKind::Fails);
        assert_eq!(read("same-direction"), VerdictKind::SameDirection);
    }

    #[test]
    fn a_formula_over_several_repetitions_has_no_confidence_interval() {
        // Such a formula could count runs: one run in each of three repetitions, three in all.
        assert_eq!(spread(&[1.0; 3], 3.0), None);
        assert!(spread(&[1.0; 3], 1.0).is_some());
        assert_eq!(spread(&[1.0], 1.0), None);
        assert_eq!(spread(&[], 1.0), None);
    }

    proptest! {
        /// The verdict is independent of which of two quantities is the numerator.
        #[test]
        fn a_ratio_and_its_inverse_get_the_same_verdict(
            published in 0.01_f64..100.0,
            values in prop::collection::vec(0.01_f64..100.0, 1..9),
        ) {
            prop_assume!((published - 1.0).abs() > 1e-6);
            let claim = |value: f64| {
                format!("published = {{ value = {value:e}, unit = 'times', source = 'S 1', origin = 'printed' }}")
            };
            // The number of values is odd, so that the median of the ratios is the ratio in one of the repetitions.
            let values = &values[..values.len() - (1 - values.len() % 2)];
            let over = judged(values, &claim(published));
            let turned: Vec<f64> = values.iter().map(|value| 1.0 / value).collect();
            let under = judged(&turned, &claim(1.0 / published));
            let at_an_end = over.same.into_iter().flatten().any(|end| {
                values.iter().any(|value| (value / end - 1.0).abs() < 1e-9)
            });
            prop_assume!(!at_an_end && values.iter().all(|value| (value - 1.0).abs() > 1e-9));
            prop_assert_eq!(over.verdict, under.verdict);
        }
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
    fn repetitions_without_one_of_the_compared_runs_are_ignored() {
        let run = |variant: usize, repetition| IndexedRun {
            id: format!("v{variant}-r{repetition}"),
            variant,
            repetition,
            warm_up: false,
            seconds: 1.0,
            variables: planned()[variant - 1].clone(),
            metrics: BTreeMap::from([("a".to_owned(), variant as f64)]),
            programs: Vec::new(),
            checksum: String::new(),
        };
        let judged = |runs: Vec<IndexedRun>| {
            let formulas = Formulas::of(runs, planned());
            let claim = "text = 't'\nours = true\nholds = 'value > 0'\n\
                         value = \"median('a', flush='idle') / median('a', flush='full')\"";
            verdict(&formulas, &toml::from_str(claim).unwrap())
        };
        // The first runs of an interrupted experiment have different rates.
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
        assert_eq!(more.verdict, VerdictKind::Holds);
        assert_eq!(more.repetitions, 2);
        assert!((more.value.unwrap() - 2.0 / 3.0).abs() < 1e-9, "{more:?}");
    }
}
