//! The effect of each setting on each measure, and the statements about it.
//!
//! A setting is judged in two ways. *Alone*: the trial with only this setting on and the trial without any setting in
//! the same repetition are a pair. The interval is that of the median ratio, and the test is the randomisation test of
//! pairs. *In the design*: all settings change at once. The interval and the test are those of least squares on the
//! logarithms. Each way spends half of the significance level, with Holm's correction over the settings, so that the
//! probability of any false statement about a measure is at most the level.

use super::cases::{AS_FOUND, Case};
use crate::tail::{Percentile, Tail};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use taut_measure::screening::{self, stated};
use taut_measure::{Interval, median, ratio_interval};

/// Confidence of each interval.
const CONFIDENCE: f64 = 0.95;
/// Highest probability that any statement about a measure is false.
pub(super) const LEVEL: f64 = 0.05;
/// Shortest gap (interruption) that the loops record, ns. A trial without a gap counts with this length.
const SHORTEST_GAP_NS: f64 = 1_000.0;

/// A trial of a case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outcome {
    /// The name of the case.
    pub case: String,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// The measured latency, interruptions and energy of the trial.
    pub tail: Tail,
}

/// A quantity that a setting may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// The highest percentile of the latency for which all trials have enough packets.
    Tail,
    /// The longest interruption of the forwarder's loop.
    LongestGap,
    /// The energy of the processor packages during a trial.
    Energy,
}

impl Measure {
    /// All measures, in the order of the report.
    pub const ALL: [Self; 3] = [Self::Tail, Self::LongestGap, Self::Energy];

    fn of(self, tail: &Tail, percentile: Percentile) -> Option<f64> {
        match self {
            Self::Tail => tail.latency_ns(percentile),
            Self::LongestGap => Some((tail.longest_gap_ns? as f64).max(SHORTEST_GAP_NS)),
            Self::Energy => tail.joules.filter(|joules| *joules > 0.0),
        }
    }
}

/// The effect of a setting, either alone or in the screening design.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct WayEffect {
    /// Ratio of the measure with the setting on to that with it off.
    pub ratio: Interval,
    /// p-value of the hypothesis that the setting changes nothing, without correction.
    pub p_value: f64,
    /// True if the effect is significant: its p-value is below the level after the correction.
    pub stated: bool,
}

/// The statement about the effect of a setting on a measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The setting lowers the measure, such as the latency.
    Lowers,
    /// The setting raises the measure, such as the latency.
    Raises,
    /// The setting alone lowers the measure and in the design raises it, or the reverse: its effect depends on other
    /// settings.
    Depends,
    /// No effect is shown; the confidence intervals contain its possible size.
    NotShown,
    /// There are too few complete repetitions for any statement.
    TooFew,
    /// The measure has no data.
    NoData,
}

/// The effect of a setting on a measure.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Row {
    /// The name of the setting.
    pub setting: String,
    /// The measure on which the setting has the effect.
    pub measure: Measure,
    /// The effect of the setting while no other setting is on; none without data.
    pub alone: Option<WayEffect>,
    /// The mean effect of the setting over all combinations of other settings in the screening design; none without a
    /// complete repetition.
    pub in_design: Option<WayEffect>,
    /// The statement about the effect.
    pub verdict: Verdict,
}

impl Row {
    /// Returns the estimate that readers see first: that of the screening design, which has more runs, or else that of
    /// the setting alone.
    pub fn shown(&self) -> Option<&WayEffect> {
        self.in_design.as_ref().or(self.alone.as_ref())
    }
}

/// Returns the highest percentile for which every trial has enough packets; none without trials.
pub(super) fn percentile(outcomes: &[Outcome]) -> Option<Percentile> {
    Percentile::reached(outcomes.iter().map(|it| it.tail.received).min()?)
}

/// Judges the effect of each of `settings` on `measure`; the rows are in the order of `settings`.
pub fn judge(
    settings: &[String],
    outcomes: &[Outcome],
    measure: Measure,
    percentile: Percentile,
) -> Vec<Row> {
    let table = Table::of(outcomes, measure, percentile);
    let needed = screening::pairs_needed(settings.len(), LEVEL / 2.0);
    let alone: Vec<_> = settings
        .iter()
        .map(|setting| table.alone(setting))
        .collect();
    let pairs = alone.iter().flatten().map(|effect| effect.ratio.count);
    let enough_pairs = pairs.min().is_some_and(|pairs| pairs >= needed);
    let alone = correct(alone);
    let in_design = correct(table.in_design(settings.len()));
    let has_design = in_design.iter().any(Option::is_some);
    let rows = settings.iter().zip(alone).zip(in_design);
    rows.map(|((setting, alone), in_design)| Row {
        setting: setting.clone(),
        measure,
        verdict: verdict(
            alone.as_ref(),
            in_design.as_ref(),
            enough_pairs || has_design,
        ),
        alone,
        in_design,
    })
    .collect()
}

fn verdict(alone: Option<&WayEffect>, in_design: Option<&WayEffect>, could_tell: bool) -> Verdict {
    let said = [alone, in_design].into_iter().flatten();
    let said: Vec<bool> = said
        .filter(|effect| effect.stated)
        .map(|effect| effect.ratio.point < 1.0)
        .collect();
    match (said.contains(&true), said.contains(&false)) {
        (true, true) => Verdict::Depends,
        (true, false) => Verdict::Lowers,
        (false, true) => Verdict::Raises,
        (false, false) if alone.is_none() && in_design.is_none() => Verdict::NoData,
        (false, false) if could_tell => Verdict::NotShown,
        (false, false) => Verdict::TooFew,
    }
}

/// Sets `stated` for the effects that are significant after Holm's correction.
fn correct(mut effects: Vec<Option<WayEffect>>) -> Vec<Option<WayEffect>> {
    let p_values: Vec<f64> = effects.iter().flatten().map(|it| it.p_value).collect();
    let said = stated(&p_values, LEVEL / 2.0);
    for (effect, said) in effects.iter_mut().flatten().zip(said) {
        effect.stated = said;
    }
    effects
}

/// The values of one measure, by case and repetition.
struct Table<'a>(BTreeMap<(&'a str, u32), f64>);

impl<'a> Table<'a> {
    fn of(outcomes: &'a [Outcome], measure: Measure, percentile: Percentile) -> Self {
        let value = |it: &'a Outcome| {
            let value = measure.of(&it.tail, percentile)?;
            Some(((it.case.as_str(), it.repetition), value))
        };
        Self(outcomes.iter().filter_map(value).collect())
    }

    fn value(&self, case: &str, repetition: u32) -> Option<f64> {
        self.0.get(&(case, repetition)).copied()
    }

    fn repetitions(&self) -> std::ops::RangeInclusive<u32> {
        1..=self
            .0
            .keys()
            .map(|(_, repetition)| *repetition)
            .max()
            .unwrap_or(0)
    }

    fn alone(&self, setting: &str) -> Option<WayEffect> {
        let case = Case::alone(setting);
        let pairs = self.repetitions().filter_map(|repetition| {
            let on = self.value(&case, repetition)?;
            Some((on, self.value(AS_FOUND, repetition)?))
        });
        let (on, off): (Vec<f64>, Vec<f64>) = pairs.unzip();
        let differences: Vec<f64> = on
            .iter()
            .zip(&off)
            .map(|(on, off)| (on / off).ln())
            .collect();
        Some(WayEffect {
            ratio: ratio_interval(&on, &off, CONFIDENCE)?.median,
            p_value: screening::sign_flip(&differences, 1)?,
            stated: false,
        })
    }

    /// Returns the effects of the settings in the screening design, from its complete repetitions.
    fn in_design(&self, factors: usize) -> Vec<Option<WayEffect>> {
        let none = vec![None; factors];
        let Some(design) = screening::design(factors) else {
            return none;
        };
        let block = |repetition| {
            (0..design.len())
                .map(|run| self.value(&Case::in_design(run), repetition))
                .collect::<Option<Vec<f64>>>()
        };
        let blocks: Vec<Vec<f64>> = self.repetitions().filter_map(block).collect();
        let Some(effects) = screening::effects(&design, &blocks, CONFIDENCE) else {
            return none;
        };
        let effect = |effect: screening::FactorEffect| WayEffect {
            ratio: effect.ratio,
            p_value: effect.p_value,
            stated: false,
        };
        effects.into_iter().map(effect).map(Some).collect()
    }
}

/// Returns the median of a measure without any setting on, with its interval; none without data.
pub(super) fn as_found(
    outcomes: &[Outcome],
    measure: Measure,
    percentile: Percentile,
) -> Option<Interval> {
    let found = outcomes.iter().filter(|it| it.case == AS_FOUND);
    let values: Vec<f64> = found
        .filter_map(|it| measure.of(&it.tail, percentile))
        .collect();
    let interval = taut_measure::median_interval(&values, CONFIDENCE)?;
    Some(Interval {
        point: median(&values)?,
        ..interval
    })
}
