//! Evaluates the trials: throughput, latency quantiles, loss and bursts for each frame size, each with the spread or
//! interval of its repetitions.

mod bursts;
mod latency;
mod limits;
mod loss;
mod throughput;
mod warnings;

pub(super) use bursts::BurstRow;
pub(super) use latency::{InsideRow, LatencyRow};
pub(super) use latency::{QUANTILES, percentile};
pub(super) use limits::Missed;
pub(super) use loss::LossRow;
pub(super) use throughput::{GoalRow, ThroughputRow};
pub(super) use warnings::Warning;
#[cfg(test)]
pub(super) use warnings::What;

use super::results::{Results, Unit};
use schemars::JsonSchema;
use serde::Serialize;

/// Confidence of an interval of the median over at least six repetitions. An interval over fewer repetitions reports
/// its own confidence.
const CONFIDENCE: f64 = 0.95;

/// Returns the name of a frame size as configured: `64 bytes`, `IMIX`.
pub(super) fn named_size(size: &str) -> String {
    match size {
        "imix" => "IMIX".to_owned(),
        size => format!("{size} bytes"),
    }
}

/// The results for a frame size.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct SizeRow {
    /// Frame size as configured.
    pub size: String,
    /// Mean frame size, bytes.
    pub average_bytes: f64,
    /// Highest rate with at most the tolerated loss; none if no search finished.
    pub throughput: Option<ThroughputRow>,
    /// Latency at each load, in increasing order of the load.
    pub latency: Vec<LatencyRow>,
    /// Loss at each rate, in decreasing order of the rate.
    pub loss: Vec<LossRow>,
    /// Results of back-to-back frames; none if they were not measured.
    pub back_to_back: Option<BurstRow>,
}

/// The evaluated results of a results folder.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The results folder that was evaluated.
    pub results: &'a Results,
    /// Rows by frame size, in the configured order.
    pub rows: Vec<SizeRow>,
    /// Limits that the results violate.
    pub missed: Vec<Missed>,
    /// Warnings for the reader: too few packets, a generator that fell behind, missing files.
    pub warnings: Vec<Warning>,
}

impl<'a> Evaluation<'a> {
    /// Evaluates a results folder.
    pub fn of(results: &'a Results) -> Self {
        let sizes = results.head.sizes.iter().zip(&results.head.average_bytes);
        let rows: Vec<SizeRow> = sizes
            .map(|(size, bytes)| {
                let units: Vec<&Unit> = results.units.iter().filter(|u| u.size == *size).collect();
                let throughput = throughput::throughput(&units, *bytes);
                SizeRow {
                    size: size.clone(),
                    average_bytes: *bytes,
                    latency: latency::latency(&units),
                    loss: loss::loss(&units),
                    back_to_back: bursts::bursts(&units, throughput.as_ref()),
                    throughput,
                }
            })
            .collect();
        let missed = limits::missed(results, &rows);
        let warnings = warnings::warnings(results, &rows);
        Self {
            results,
            rows,
            missed,
            warnings,
        }
    }

    /// Returns true if other programs took too much of a core.
    pub(super) fn is_busy(&self) -> bool {
        taut_results::busy(&self.results.head.manifest.noise).is_some()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Returns, for each index, the points with this index in all repetitions.
fn side_by_side<'a, T>(repetitions: &[&'a Vec<T>]) -> Vec<Vec<&'a T>> {
    let longest = repetitions.iter().map(|points| points.len()).max();
    let at = |index| {
        let points = repetitions.iter();
        points.filter_map(|points| points.get(index)).collect()
    };
    (0..longest.unwrap_or(0)).map(at).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::made_up;
    use taut_measure::Limit;
    use taut_model::Cause;
    use taut_results::Completion;

    #[test]
    fn the_evaluation_recovers_the_capacity_of_a_synthetic_device() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let results = Results::load(&dir).unwrap();
        assert!(results.problems.is_empty(), "{:?}", results.problems);
        let evaluation = Evaluation::of(&results);
        let row = &evaluation.rows[0];
        let found = row.throughput.as_ref().unwrap();
        assert!((0.98e6..=1e6).contains(&found.mean_pps), "{found:?}");
        assert_eq!((found.limited_by, found.repetitions), (Limit::Device, 2));
        assert_eq!(found.layer1_bits / found.layer2_bits, 84.0 / 64.0);
        let [few, many] = row.latency.as_slice() else {
            panic!("{:?}", row.latency)
        };
        // Of 200 packets at least ten are beyond p90 and p95, but only two beyond p99.
        let known: Vec<bool> = few.quantiles.iter().map(|q| q.ns.is_some()).collect();
        assert_eq!(known, [true, true, false, false, false, false]);
        let p50 = many.quantiles[0];
        let interval = p50.interval.unwrap();
        assert!(interval.low <= p50.ns.unwrap() && p50.ns.unwrap() <= interval.high);
        assert!((1_200.0..1_400.0).contains(&p50.ns.unwrap()), "{p50:?}");
        let losses: Vec<f64> = row.loss.iter().map(|point| point.loss[1]).collect();
        assert_eq!(losses, [0.75, 2.0 / 3.0, 0.5, 0.0, 0.0]);
        let bursts = row.back_to_back.as_ref().unwrap();
        let buffer = bursts.buffer.unwrap();
        // At four times the throughput, three quarters of the packets are lost.
        assert!(
            (2_990.0..3_030.0).contains(&buffer.corrected_packets),
            "{buffer:?}"
        );
        let slowest = many.slowest.as_ref().unwrap();
        assert_eq!(slowest.causes.spikes, 4);
        assert_eq!(slowest.causes.share(Cause::DeviceTick), 0.5);
        let times: Vec<f64> = many.worst.packets.iter().map(|p| p.0.0).collect();
        assert_eq!(times, [0.25, 0.5, 1.25, 1.5], "repetitions end to end");
        assert!(evaluation.rows[1].throughput.is_none());
    }
}
