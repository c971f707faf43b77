//! Warnings for the reader of the results: too few packets, a generator that fell behind, missing files.

use super::latency::{BEYOND, LatencyRow, percentile};
use super::{SizeRow, named_size};
use crate::results::{Measured, Part, Results, Soak};
use taut_measure::Limit;
use taut_measure::quantity::{count, rate, share};
use taut_results::Completion;

/// A warning for the reader.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{about}{what}")]
pub struct Warning {
    /// The part of the measurement that the warning is about, such as a frame size.
    pub about: About,
    /// The text of the warning.
    pub what: What,
}

/// The part of the measurement that a warning is about. Sizes are frame sizes as configured.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum About {
    #[error("{}: ", named_size(.0))]
    Size(String),
    #[error("{}, repetition {}: ", named_size(.0), .1)]
    Repetition(String, u32),
    #[error("{} at {}: ", named_size(size), rate(*rate_pps))]
    Load { size: String, rate_pps: f64 },
    #[error("")]
    SomeLoads,
    #[error("soak: ")]
    Soak,
}

/// The text of a warning.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum What {
    #[error("limited by the generator, which could not offer more; the device may be faster")]
    LimitedByGenerator,
    #[error("limited by the highest rate offered, which held; the device may be faster")]
    LimitedByRange,
    #[error(
        "a rate failed although a higher one passed; a single throughput does not describe this device, see the loss curve"
    )]
    NotMonotonic,
    #[error(
        "{none_held} of {repetitions} repetitions found no rate within the allowed loss; they count as 0"
    )]
    NoRateHeld { none_held: u32, repetitions: u32 },
    #[error("the search did not finish; it had found {} after {trials} trials", found_pps.map_or("nothing".to_string(), rate))]
    SearchDidNotEnd {
        found_pps: Option<f64>,
        trials: usize,
    },
    #[error(
        "the buffer is estimated from a throughput with up to {} loss; RFC 9004 section 5 requires the throughput without loss",
        share(*tolerance)
    )]
    BufferWithLoss { tolerance: f64 },
    #[error("no latency, as no rate held to measure it at")]
    NoLatency,
    #[error("no data: no packet came back with a time stamp")]
    NothingStamped,
    #[error(
        "no latency of the device alone: the tap saw no packet both enter and leave the device"
    )]
    TapSawNothing,
    #[error("the tap missed {} frames: its loss counts are unreliable", count(*frames))]
    TapMissed { frames: u64 },
    #[error("the generator fell behind by {} packets: the load was lower than the one shown", count(*packets))]
    FellBehind { packets: u64 },
    #[error(
        "too few packets for {} and above at some loads: {} or more are needed, {} were received; see --latency-seconds",
        percentile(*quantile),
        count((BEYOND / (1.0 - quantile)).round() as u64),
        count(*packets)
    )]
    TooFewPackets { quantile: f64, packets: u64 },
    #[error("the generator left {} packets unsent", count(*packets))]
    NeverSent { packets: u64 },
    #[error("{intervals} intervals were lost because the disk was too slow")]
    IntervalsLost { intervals: u64 },
    #[error("no data: nothing came back")]
    NothingCameBack,
    #[error("{0}")]
    Busy(String),
}

pub(super) fn warnings(results: &Results, rows: &[SizeRow]) -> Vec<Warning> {
    let is_finished = results.head.manifest.completion == Completion::Finished;
    let settings = &results.head.settings;
    let mut warnings = Vec::new();
    let mut warn = |about: About, of: Vec<What>| {
        let about = |what| Warning {
            about: about.clone(),
            what,
        };
        warnings.extend(of.into_iter().map(about));
    };
    let busy = taut_results::busy(&results.head.manifest.noise);
    warn(About::SomeLoads, busy.into_iter().map(What::Busy).collect());
    for row in rows {
        let size = || row.size.clone();
        warn(About::Size(size()), of_size(row, settings.loss_tolerance));
        for load in &row.latency {
            let (size, rate_pps) = (size(), load.rate_pps);
            warn(About::Load { size, rate_pps }, of_load(load));
        }
        if settings.has(Part::Latency) && row.latency.is_empty() && is_finished {
            warn(About::Size(size()), vec![What::NoLatency]);
        }
    }
    warn(
        About::SomeLoads,
        too_few_packets(rows).into_iter().collect(),
    );
    if let Some(soak) = &results.soak {
        warn(About::Soak, of_soak(soak, is_finished));
    }
    for unit in &results.units {
        if let Measured::Throughput { result } = &unit.measured
            && !result.complete
        {
            let (found_pps, trials) = (result.rate_pps, result.trials.len());
            let what = What::SearchDidNotEnd { found_pps, trials };
            let about = About::Repetition(unit.size.clone(), unit.repetition);
            warn(about, vec![what]);
        }
    }
    warnings
}

/// Returns the warnings about a throughput, and about the buffer that was derived from it.
fn of_size(row: &SizeRow, tolerance: f64) -> Vec<What> {
    let mut what = Vec::new();
    if let Some(found) = &row.throughput {
        match found.limited_by {
            Limit::Device => {}
            Limit::Generator => what.push(What::LimitedByGenerator),
            Limit::Range => what.push(What::LimitedByRange),
        }
        if !found.monotonic {
            what.push(What::NotMonotonic);
        }
        if found.none_held > 0 {
            let (none_held, repetitions) = (found.none_held, found.repetitions);
            what.push(What::NoRateHeld {
                none_held,
                repetitions,
            });
        }
    }
    let bursts = row.back_to_back.as_ref();
    if bursts.is_some_and(|b| b.buffer.is_some()) && tolerance > 0.0 {
        what.push(What::BufferWithLoss { tolerance });
    }
    what
}

fn of_load(load: &LatencyRow) -> Vec<What> {
    let mut what = Vec::new();
    if load.packets == 0 {
        what.push(What::NothingStamped);
    }
    if let Some(inside) = &load.inside {
        if inside.packets == 0 {
            what.push(What::TapSawNothing);
        }
        if inside.missed > 0 {
            let frames = inside.missed;
            what.push(What::TapMissed { frames });
        }
    }
    if load.unsent > 0 {
        let packets = load.unsent;
        what.push(What::FellBehind { packets });
    }
    what
}

/// Returns a warning that names the lowest unknown quantile of all loads at which packets came back; none if all
/// quantiles are known.
fn too_few_packets(rows: &[SizeRow]) -> Option<What> {
    let loads = rows.iter().flat_map(|row| &row.latency);
    let unknown = loads.filter(|load| load.packets > 0).filter_map(|load| {
        let first = load.quantiles.iter().find(|q| q.ns.is_none())?;
        Some((first.quantile, load.packets))
    });
    let (quantile, packets) = unknown.min_by(|a, b| a.0.total_cmp(&b.0))?;
    Some(What::TooFewPackets { quantile, packets })
}

fn of_soak(soak: &Soak, is_finished: bool) -> Vec<What> {
    let mut what = Vec::new();
    if soak.counts.unsent > 0 && is_finished {
        let packets = soak.counts.unsent;
        what.push(What::NeverSent { packets });
    }
    if soak.skipped_intervals > 0 {
        let intervals = soak.skipped_intervals;
        what.push(What::IntervalsLost { intervals });
    }
    if soak.latency.is_none() {
        what.push(What::NothingCameBack);
    }
    what
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Evaluation;
    use super::*;
    use crate::made_up;

    #[test]
    fn loads_and_percentiles_with_too_few_packets_cause_warnings() {
        let (_parent, dir) = made_up::folder(Completion::Finished);
        let results = Results::load(&dir).unwrap();
        let warnings = Evaluation::of(&results).warnings;
        assert_eq!(
            (&warnings[0].about, &warnings[0].what),
            (
                &About::Load {
                    size: "imix".to_owned(),
                    rate_pps: 1e5
                },
                &What::NothingStamped
            )
        );
        let texts: Vec<String> = warnings.iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "IMIX at 100 kpkt/s: no data: no packet came back with a time stamp",
                "too few packets for p99 and above at some loads: 1\u{202f}000 or more are needed, 200 were \
                received; see --latency-seconds"
            ]
        );
    }
}
