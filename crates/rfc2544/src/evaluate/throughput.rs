//! The throughput of a frame size over its repetitions.

use super::{CONFIDENCE, mean};
use crate::results::{Measured, Unit};
use schemars::JsonSchema;
use serde::Serialize;
use taut_measure::{
    Goal, GoalResult, Interval, Limit, ThroughputResult, mean_beside_median, median,
};

/// Bytes per frame on the link in addition to the frame: preamble, start delimiter, minimum inter-frame gap (IEEE
/// 802.3).
const WIRE_OVERHEAD_BYTES: f64 = 20.0;

/// The throughput for a frame size.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct ThroughputRow {
    /// Mean over the repetitions, packets per second. A repetition without a loss-free rate counts as zero.
    pub mean_pps: f64,
    /// The mean of the repetitions' throughputs, with the confidence interval of their median; none without
    /// repetitions.
    pub interval: Option<Interval>,
    /// Lowest throughput of a repetition, packets per second.
    pub min_pps: f64,
    /// Highest throughput of a repetition, packets per second.
    pub max_pps: f64,
    /// Mean of the Conditional Throughput, packets per second: throughput minus the tolerated loss.
    pub conditional_pps: f64,
    /// Bits per second of frames, frame check sequences included.
    pub layer2_bits: f64,
    /// Bits per second on the link, preambles and inter-frame gaps included.
    pub layer1_bits: f64,
    /// The reason that limited the throughput in most repetitions, or the first of several equally frequent reasons.
    pub limited_by: Limit,
    /// True if no repetition had a failed rate below its throughput.
    pub monotonic: bool,
    /// Number of repetitions in which every rate failed.
    pub none_held: u32,
    /// Number of repetitions with a complete search.
    pub repetitions: u32,
    /// The results by the names of RFC 9971, one for each goal; the goal of the throughput is the first. Empty without
    /// MLRsearch.
    pub goals: Vec<GoalRow>,
}

/// The results for a goal of MLRsearch over the repetitions. Loads are packets per second; each is the median of the
/// repetitions that have it.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GoalRow {
    /// The Search Goal (RFC 9971) that the row is about.
    pub goal: Goal,
    /// Number of repetitions with a Regular Goal Result.
    pub regular: u32,
    /// Relevant Lower Bound, packets per second: the median over the repetitions that have it; none if no repetition
    /// has it.
    pub relevant_lower_bound: Option<f64>,
    /// Relevant Upper Bound, packets per second: the median over the repetitions that have it; none if no repetition
    /// has it.
    pub relevant_upper_bound: Option<f64>,
    /// Conditional Throughput, packets per second: the median over the repetitions that have it; none if no repetition
    /// has it.
    pub conditional_throughput: Option<f64>,
}

/// Returns one row for each goal of the searches.
fn goals(searches: &[&ThroughputResult]) -> Vec<GoalRow> {
    let count = searches.iter().map(|it| it.goals.len()).max().unwrap_or(0);
    let row = |index: usize| {
        let found: Vec<&GoalResult> = searches
            .iter()
            .filter_map(|it| it.goals.get(index))
            .collect();
        let middle = |of: fn(&GoalResult) -> Option<f64>| {
            let loads: Vec<f64> = found.iter().filter_map(|result| of(result)).collect();
            median(&loads)
        };
        Some(GoalRow {
            goal: found.first()?.goal,
            regular: found.iter().filter(|it| it.regular).count() as u32,
            relevant_lower_bound: middle(|it| it.relevant_lower_bound),
            relevant_upper_bound: middle(|it| it.relevant_upper_bound),
            conditional_throughput: middle(|it| it.conditional_throughput),
        })
    };
    (0..count).filter_map(row).collect()
}

impl ThroughputRow {
    /// Returns the reason that limited the throughput, as text.
    pub(crate) fn limit(&self) -> &'static str {
        match (self.mean_pps > 0.0, self.limited_by) {
            (false, _) => "no rate held",
            (true, Limit::Device) => "the device",
            (true, Limit::Generator) => "the generator",
            (true, Limit::Range) => "the highest rate offered",
        }
    }
}

pub(super) fn throughput(units: &[&Unit], bytes: f64) -> Option<ThroughputRow> {
    let complete: Vec<_> = units
        .iter()
        .filter_map(|unit| match &unit.measured {
            Measured::Throughput { result } if result.complete => Some(result),
            _ => None,
        })
        .collect();
    // A repetition without any loss-free rate counts as zero. Skipping it would make the device look better.
    let or_none = |rate: Option<f64>| rate.unwrap_or(0.0);
    let rates: Vec<f64> = complete.iter().map(|r| or_none(r.rate_pps)).collect();
    let conditional = complete.iter().map(|r| or_none(r.conditional_pps));
    let conditional: Vec<f64> = conditional.collect();
    let mean_pps = mean(&rates);
    let of_limit = |limit: Limit| complete.iter().filter(|r| r.limited_by == limit).count();
    let limited_by = [Limit::Device, Limit::Generator, Limit::Range]
        .into_iter()
        // `max_by_key` returns the last of equal maxima, so the reversed order selects the first of equally frequent
        // reasons.
        .rev()
        .max_by_key(|limit| of_limit(*limit))?;
    (!complete.is_empty()).then(|| ThroughputRow {
        mean_pps,
        interval: mean_beside_median(&rates, CONFIDENCE),
        min_pps: rates.iter().copied().fold(f64::INFINITY, f64::min),
        max_pps: rates.iter().copied().fold(0.0, f64::max),
        conditional_pps: mean(&conditional),
        layer2_bits: mean_pps * bytes * 8.0,
        layer1_bits: mean_pps * (bytes + WIRE_OVERHEAD_BYTES) * 8.0,
        limited_by,
        monotonic: complete.iter().all(|r| r.monotonic),
        none_held: complete.iter().filter(|r| r.rate_pps.is_none()).count() as u32,
        repetitions: complete.len() as u32,
        goals: goals(&complete),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Evaluation, What};
    use super::*;
    use crate::results::Results;
    use crate::{made_up, tables};
    use taut_results::Completion;

    #[test]
    fn a_repetition_without_a_passed_rate_counts_as_zero_throughput() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let mut results = Results::load(&dir).unwrap();
        let held = Evaluation::of(&results).rows[0].throughput.clone().unwrap();
        let Measured::Throughput { mut result } = made_up::throughput() else {
            unreachable!("that is what it makes");
        };
        (result.rate_pps, result.conditional_pps) = (None, None);
        results.units.push(Unit {
            size: "64".to_owned(),
            repetition: 3,
            measured: Measured::Throughput { result },
        });
        let evaluation = Evaluation::of(&results);
        let found = evaluation.rows[0].throughput.as_ref().unwrap();
        assert_eq!((found.none_held, found.repetitions), (1, 3));
        assert!((found.mean_pps / held.mean_pps - 2.0 / 3.0).abs() < 1e-9);
        assert!((found.conditional_pps / held.conditional_pps - 2.0 / 3.0).abs() < 1e-9);
        assert_eq!((found.min_pps, found.interval.unwrap().low), (0.0, 0.0));
        let what = What::NoRateHeld {
            none_held: 1,
            repetitions: 3,
        };
        assert!(evaluation.warnings.iter().any(|w| w.what == what));
        let text = tables::text(&evaluation, None);
        assert!(text.contains("no rate held in 1 of 3"), "{text}");
        assert!(text.contains("range of 3: 0 pkt/s to"), "{text}");
    }
}
