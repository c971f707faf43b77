//! Back-to-back frames: the longest burst of a frame size, and the derived buffer size (RFC 9004).

use super::throughput::ThroughputRow;
use super::{CONFIDENCE, mean};
use crate::results::{Measured, Unit};
use schemars::JsonSchema;
use serde::Serialize;
use taut_measure::{BufferTime, Interval, mean_beside_median};

/// The results of back-to-back frames for a frame size.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct BurstRow {
    /// Mean of the repetitions' longest bursts, packets (RFC 9004).
    pub mean: f64,
    /// The mean of the repetitions' longest bursts, with the confidence interval of their median; none without
    /// repetitions.
    pub interval: Option<Interval>,
    /// Longest burst of the worst repetition, packets.
    pub min: u64,
    /// Longest burst of the best repetition, packets.
    pub max: u64,
    /// Standard deviation of the repetitions' longest bursts, packets.
    pub deviation: f64,
    /// Rate at which bursts were sent, packets per second: mean over the longest burst of each repetition.
    pub burst_pps: f64,
    /// The derived buffer time; none if the buffer never overflowed.
    pub buffer: Option<BufferTime>,
    /// Number of repetitions in which no burst failed, so that the longest tried burst counts.
    pub unlimited: u32,
    /// Number of repetitions for the frame size.
    pub repetitions: u32,
}

pub(super) fn bursts(units: &[&Unit], throughput: Option<&ThroughputRow>) -> Option<BurstRow> {
    let mut lengths = Vec::new();
    let (mut rates, mut unlimited_in) = (Vec::new(), 0);
    for unit in units {
        if let Measured::BackToBack {
            length,
            unlimited,
            bursts,
        } = &unit.measured
        {
            lengths.push(*length);
            unlimited_in += u32::from(*unlimited);
            // The longest burst gives the best estimate of the rate.
            let longest = bursts.iter().max_by_key(|burst| burst.length);
            rates.extend(
                longest.map(|b| (b.counts.sent + b.counts.refused) as f64 / b.counts.seconds),
            );
        }
    }
    let values: Vec<f64> = lengths.iter().map(|length| *length as f64).collect();
    let (mean_length, burst_pps) = (mean(&values), mean(&rates));
    let squares: f64 = values.iter().map(|v| (v - mean_length).powi(2)).sum();
    Some(BurstRow {
        mean: mean_length,
        interval: mean_beside_median(&values, CONFIDENCE),
        min: *lengths.iter().min()?,
        max: *lengths.iter().max()?,
        deviation: (squares / (values.len() as f64 - 1.0).max(1.0)).sqrt(),
        burst_pps,
        buffer: throughput
            .filter(|_| unlimited_in == 0)
            .and_then(|t| BufferTime::of(mean_length, burst_pps, t.mean_pps)),
        unlimited: unlimited_in,
        repetitions: values.len() as u32,
    })
}
