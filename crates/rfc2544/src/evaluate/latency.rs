//! Latency for a frame size at each load, and latency of the device alone.

use super::{CONFIDENCE, mean, side_by_side};
use crate::results::{Counts, LoadLatency, Measured, Unit};
use schemars::JsonSchema;
use serde::Serialize;
use taut_bench::evaluate::SlowestSummary;
use taut_measure::quantity::{rate, three_digits};
use taut_measure::{Interval, LatencyHistogram, median_interval};
use taut_model::Cause;
use taut_results::histogram;
use taut_tap::Inside;

/// The quantiles that are reported for every latency, as fractions.
pub(crate) const QUANTILES: [f64; 6] = [0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999];

/// Returns the name of a quantile, such as `p99.9`.
pub(crate) fn percentile(quantile: f64) -> String {
    format!(
        "p{}",
        taut_measure::quantity::Quantity::Quantile.tick(quantile)
    )
}

/// Minimum number of packets beyond a quantile: p99.999 needs more than a million packets.
pub(super) const BEYOND: f64 = 10.0;

/// The latency at one quantile, over all repetitions at a load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct QuantileRow {
    /// The quantile: 0.99 is p99.
    pub quantile: f64,
    /// The latency at the quantile, ns; none if too few packets are beyond it.
    pub ns: Option<f64>,
    /// The median of the repetitions' own values, with its interval; none for a single repetition, or if a repetition
    /// has too few packets.
    pub interval: Option<Interval>,
}

/// Latency at one load.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct LatencyRow {
    /// The load as a fraction of the throughput; none if the rate was configured.
    pub share: Option<f64>,
    /// Offered rate, packets per second.
    pub rate_pps: f64,
    /// Number of measured packets in all repetitions.
    pub packets: u64,
    /// Mean latency, ns; none if no packet came back.
    pub mean_ns: Option<f64>,
    /// Maximum latency, ns; none if no packet came back.
    pub max_ns: Option<u64>,
    /// Latencies at several quantiles, in increasing order of the quantile.
    pub quantiles: Vec<QuantileRow>,
    /// Fraction of the offered packets that did not come back.
    pub loss: f64,
    /// Packets that the generator did not send because it fell behind.
    pub unsent: u64,
    /// Latency of the device alone, for the same packets, measured on its links; none without a wiretap.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inside: Option<InsideRow>,
    /// The causes of the slowest packets; none if they are unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestSummary>,
    #[serde(skip)]
    pub(crate) worst: Worst,
    #[serde(skip)]
    pub(crate) histogram: LatencyHistogram,
}

/// The slowest packets at one load, with the repetitions one after another.
#[derive(Debug, Clone, Default)]
pub(crate) struct Worst {
    /// Send time (s), latency (ns) and cause of each packet.
    pub(crate) packets: Vec<((f64, f64), Option<Cause>)>,
    /// Time at which each repetition ends, s.
    pub(crate) ends: Vec<f64>,
}

impl Worst {
    fn of(repetitions: &[&LoadLatency]) -> Self {
        let mut worst = Self::default();
        let mut begun = 0.0;
        for load in repetitions {
            for (sent, latency, cause) in load.slowest.iter().flat_map(|slowest| &slowest.each) {
                worst.packets.push(((begun + sent, *latency), Some(*cause)));
            }
            begun += load.counts.seconds;
            worst.ends.push(begun);
        }
        worst
    }
}

fn slowest(repetitions: &[&LoadLatency]) -> Option<SlowestSummary> {
    let each = repetitions
        .iter()
        .filter_map(|load| load.slowest.as_ref().map(|slowest| slowest.summary.clone()));
    each.reduce(|mut all, one| {
        all.merge(one);
        all
    })
}

/// Latency of the device alone, as a wiretap measured it on the device's links.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct InsideRow {
    /// Packets that the wiretap observed both entering and leaving the device.
    pub packets: u64,
    /// Fraction of the packets observed entering the device that were not observed leaving it.
    pub loss: f64,
    /// Frames that the wiretap did not observe or could not store.
    pub missed: u64,
    /// Mean latency of the device alone, ns; none if no packet was observed both entering and leaving it.
    pub mean_ns: Option<f64>,
    /// Latencies of the device alone at several quantiles, in increasing order of the quantile, without intervals.
    pub quantiles: Vec<QuantileRow>,
    /// Maximum latency of the device alone, ns; none if no packet was observed both entering and leaving it.
    pub max_ns: Option<u64>,
}

impl LatencyRow {
    /// Returns the load as text: `10 % of throughput`, or the rate.
    pub fn load(&self) -> String {
        let of = if self.share.is_some() {
            " of throughput"
        } else {
            ""
        };
        self.short_load() + of
    }

    /// Returns the load as short text: `10 %`, or the rate.
    pub(crate) fn short_load(&self) -> String {
        let per_cent = |share: f64| three_digits(share * 100.0);
        self.share.map_or_else(
            || rate(self.rate_pps),
            |share| format!("{} %", per_cent(share).trim_end_matches(".0")),
        )
    }
}

pub(super) fn latency(units: &[&Unit]) -> Vec<LatencyRow> {
    let repetitions: Vec<&Vec<LoadLatency>> = units
        .iter()
        .filter_map(|unit| match &unit.measured {
            Measured::Latency { loads } => Some(loads),
            _ => None,
        })
        .collect();
    side_by_side(&repetitions)
        .iter()
        .map(|of_load| latency_row(of_load))
        .collect()
}

/// Returns the latency at a quantile, ns; none if too few packets are beyond the quantile.
fn carried(histogram: &LatencyHistogram, quantile: f64) -> Option<u64> {
    // The tolerance is for rounding: 1 - 0.99999 is slightly less than 0.00001.
    let enough = histogram.count() as f64 * (1.0 - quantile) >= BEYOND * (1.0 - 1e-9);
    histogram.quantile(quantile).filter(|_| enough)
}

fn inside_row(repetitions: &[&LoadLatency]) -> Option<InsideRow> {
    let seen: Vec<&Inside> = repetitions
        .iter()
        .filter_map(|load| load.inside.as_ref())
        .collect();
    if seen.is_empty() {
        return None;
    }
    let mut whole = LatencyHistogram::new();
    seen.iter()
        .for_each(|inside| whole.merge(&histogram(&inside.histogram)));
    let sum = |of: fn(&Inside) -> u64| seen.iter().map(|inside| of(inside)).sum::<u64>();
    let of_quantile = |quantile| QuantileRow {
        quantile,
        ns: carried(&whole, quantile).map(|ns| ns as f64),
        interval: None,
    };
    Some(InsideRow {
        packets: whole.count(),
        loss: sum(|i| i.lost) as f64 / (sum(|i| i.entered) as f64).max(1.0),
        missed: sum(|i| i.missed),
        mean_ns: whole.mean_ns(),
        quantiles: QUANTILES.map(of_quantile).to_vec(),
        max_ns: seen
            .iter()
            .filter_map(|i| Some(i.summary.as_ref()?.max_ns))
            .max(),
    })
}

/// Merges the slices of a repetition into one histogram.
fn whole(load: &LoadLatency) -> LatencyHistogram {
    let mut whole = LatencyHistogram::new();
    load.histograms().iter().for_each(|one| whole.merge(one));
    whole
}

fn latency_row(repetitions: &[&LoadLatency]) -> LatencyRow {
    let each: Vec<LatencyHistogram> = repetitions.iter().map(|load| whole(load)).collect();
    let mut histogram = LatencyHistogram::new();
    each.iter().for_each(|one| histogram.merge(one));
    let packets = histogram.count();
    let quantiles = QUANTILES
        .into_iter()
        .map(|quantile| {
            let value = carried(&histogram, quantile);
            // Only repetitions are independent. Packets and slices of one repetition share its conditions.
            let own = each.iter().map(|one| carried(one, quantile));
            let own: Option<Vec<f64>> = own.map(|ns| ns.map(|ns| ns as f64)).collect();
            let interval = own
                .and_then(|own| median_interval(&own, CONFIDENCE))
                .filter(|interval| interval.count > 1);
            QuantileRow {
                quantile,
                ns: value.map(|ns| ns as f64),
                interval,
            }
        })
        .collect();
    let sum = |of: fn(&Counts) -> u64| repetitions.iter().map(|r| of(&r.counts)).sum::<u64>();
    let offered = sum(|c| c.sent + c.refused);
    let max_ns = repetitions
        .iter()
        .filter_map(|r| Some(r.summary.as_ref()?.max_ns))
        .max();
    let means: Vec<(f64, f64)> = repetitions
        .iter()
        .filter_map(|r| Some((r.summary.as_ref()?.avg_ns, r.summary.as_ref()?.count as f64)))
        .collect();
    let weight: f64 = means.iter().map(|m| m.1).sum();
    LatencyRow {
        share: repetitions.first().and_then(|r| r.share),
        rate_pps: mean(
            &repetitions
                .iter()
                .map(|r| r.counts.offered_pps)
                .collect::<Vec<_>>(),
        ),
        packets,
        mean_ns: (weight > 0.0).then(|| means.iter().map(|m| m.0 * m.1).sum::<f64>() / weight),
        max_ns,
        quantiles,
        loss: (offered - sum(|c| c.received).min(offered)) as f64 / (offered as f64).max(1.0),
        unsent: sum(|c| c.unsent),
        inside: inside_row(repetitions),
        slowest: slowest(repetitions),
        worst: Worst::of(repetitions),
        histogram,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Evaluation;
    use super::*;
    use crate::made_up;
    use crate::results::Results;
    use taut_results::Completion;

    #[test]
    fn tail_latency_intervals_use_the_percentiles_of_each_repetition() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let mut results = Results::load(&dir).unwrap();
        // In the third repetition all latencies are ten times as long.
        let mut slow = made_up::load(0.9, 100_000);
        for (ns, _) in slow.slices.iter_mut().flatten() {
            *ns *= 10;
        }
        let loads = vec![made_up::load(0.1, 100), slow];
        results.units.push(Unit {
            size: "64".to_owned(),
            repetition: 3,
            measured: Measured::Latency { loads },
        });
        let evaluation = Evaluation::of(&results);
        let p99 = evaluation.rows[0].latency[1].quantiles[2];
        let interval = p99.interval.unwrap();
        assert_eq!((interval.count, interval.confidence), (3, 0.75));
        assert!((1_500.0..1_600.0).contains(&interval.low), "{p99:?}");
        assert_eq!(interval.point, interval.low, "two of three are alike");
        assert!((15_000.0..16_000.0).contains(&interval.high), "{p99:?}");
        assert!(p99.ns.unwrap() > 10_000.0, "of all packets: {p99:?}");
    }
}
