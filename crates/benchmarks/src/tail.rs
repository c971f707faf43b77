//! A trial that measures the tail of a forwarder's latencies, the longest gap on each core, and the energy.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_bench::benchmark::{Failed, Rig};
use taut_bench::device::{Device, DeviceUnderTest, Notes, RunError, Site, with_instrument};
use taut_bench::measurement::{Meanwhile, Watched, measured};
use taut_host::Meter;
use taut_measure::LatencyHistogram;
use taut_measure::rank::nearest_rank;
use taut_results::{CoreInterruptions, buckets, histogram};
use taut_traffic::{Instrument, Sizes, Summaries, Tally, Traffic, Trial as Sent};

/// Duration of the warm-up before each trial.
const WARM_UP: Duration = Duration::from_millis(100);
/// Least number of packets above a percentile in a trial: with fewer, the percentile is the latency of a few packets.
const PACKETS_BEYOND: f64 = 10.0;

/// A percentile of the latency.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Percentile {
    /// The name of the percentile, such as `p99.999`.
    pub name: &'static str,
    /// The fraction of latencies below the percentile, 0..1.
    pub quantile: f64,
}

/// The percentiles by which a tail can be described, highest first.
pub const PERCENTILES: [Percentile; 5] = [
    percentile("p99.999", 0.999_99),
    percentile("p99.99", 0.999_9),
    percentile("p99.9", 0.999),
    percentile("p99", 0.99),
    percentile("p50", 0.5),
];

const fn percentile(name: &'static str, quantile: f64) -> Percentile {
    Percentile { name, quantile }
}

impl Percentile {
    /// Returns the highest percentile with enough packets above it in trials of at least `packets` packets; none if
    /// there is none.
    pub fn reached(packets: u64) -> Option<Self> {
        PERCENTILES
            .into_iter()
            .find(|percentile| percentile.packets_needed() <= packets)
    }

    /// Returns the number of packets that a trial needs for the percentile.
    pub fn packets_needed(self) -> u64 {
        (PACKETS_BEYOND / (1.0 - self.quantile)).round() as u64
    }
}

/// The device and the traffic of trials.
#[derive(Debug, Clone)]
pub struct Load {
    /// The device under test.
    pub device: Device,
    /// The offered rate, packets per second.
    pub rate_pps: f64,
    /// The length of a trial.
    pub trial: Duration,
}

/// The results of a trial that measures tail latency.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tail {
    /// Packets that the schedule required to be sent.
    pub owed: u64,
    /// Number of packets that came back.
    pub received: u64,
    /// Histogram of the latencies: the lower end of each bucket in ns, and its number of packets.
    pub latency: Vec<(u64, u64)>,
    /// Longest interruption of the forwarder's loop, ns; none if the device does not record interruptions.
    pub longest_gap_ns: Option<u64>,
    /// Longest interruption of the generator's loop, ns.
    pub generator_gap_ns: u64,
    /// Energy of the processor packages, J; none without a meter.
    pub joules: Option<f64>,
    /// The meter of the energy, or the reason why there is none.
    pub energy_source: String,
}

impl Tail {
    /// Returns the latency at a percentile of the packets that came back, ns; none if there are too few packets for it.
    pub fn latency_ns(&self, at: Percentile) -> Option<f64> {
        let latency = histogram(&self.latency);
        let reached = latency.count() >= at.packets_needed();
        reached
            .then(|| latency.quantile(at.quantile))?
            .map(|ns| ns as f64)
    }

    /// Returns the latency at a percentile of all packets that the schedule required to be sent, ns; none if there are
    /// too few. Packets that did not come back count as infinitely late.
    pub fn latency_of_all_ns(&self, at: Percentile) -> Option<f64> {
        if self.owed < at.packets_needed() {
            return None;
        }
        let latency = histogram(&self.latency);
        let rank = nearest_rank(self.owed, at.quantile)?;
        let found = latency.value_at_rank(rank);
        Some(found.map_or(f64::INFINITY, |ns| ns as f64))
    }

    /// Returns the number of scheduled packets that did not come back.
    pub fn missing(&self) -> u64 {
        self.owed.saturating_sub(self.received)
    }

    fn of(tally: &Tally, latency: &LatencyHistogram, meanwhile: &Meanwhile) -> Self {
        let longest = |core: &CoreInterruptions| core.each.iter().map(|(_, ns)| *ns).max();
        let both = meanwhile.interruptions.as_ref().ok();
        let device = both.and_then(|both| both.device.as_ref());
        Self {
            owed: tally.owed,
            received: latency.count(),
            latency: buckets(latency),
            longest_gap_ns: device.map(|core| longest(core).unwrap_or(0)),
            generator_gap_ns: both.and_then(|both| longest(&both.generator)).unwrap_or(0),
            joules: meanwhile.energy.joules,
            energy_source: meanwhile.energy.source.clone(),
        }
    }
}

/// Sets the device up on its core of `rig`, measures one trial, and removes the device.
///
/// # Errors
/// The measurement was stopped, or the device does not work on this machine.
pub fn measure(rig: &Rig<'_>, load: &Load, stop: &AtomicBool) -> Result<Tail, Failed> {
    let under_test = DeviceUnderTest::Made(Box::new(load.device.clone()));
    let traffic = traffic(&under_test)?;
    let notes = under_test.notes().map_err(failed)?;
    let meter = Meter::of_this_machine();
    let site = Site {
        program: rig.program,
        generator_core: Some(rig.cores.generator),
        device_core: rig.cores.device,
        clock: rig.clock,
        tapped: false,
        interruptions: notes.as_ref().map(Notes::path),
    };
    let watched = Watched {
        meter: &meter,
        device_core: Some(rig.cores.device),
        generator_core: Some(rig.cores.generator),
        device_log: site.interruptions,
        clock: &rig.clock,
    };
    let sent = |duration| Sent {
        rate_pps: load.rate_pps,
        duration,
    };
    let tail = with_instrument(&site, &load.device, &traffic, stop, |instrument| {
        instrument.run(sent(WARM_UP), &mut Summaries::new(&rig.clock), stop);
        let mut seen = Summaries::new(&rig.clock);
        let trial = |instrument: &mut Instrument| instrument.run(sent(load.trial), &mut seen, stop);
        let (tally, meanwhile) = measured(watched, instrument, trial);
        Ok(Tail::of(&tally, &seen.latency, &meanwhile))
    });
    let tail = tail.map_err(failed)?;
    if stop.load(Ordering::Relaxed) {
        return Err(Failed::Stopped);
    }
    if tail.received == 0 {
        return Err(Failed::Broken("no packet came back".to_string()));
    }
    Ok(tail)
}

/// Returns a stream of 64-byte frames that the device forwards.
fn traffic(device: &DeviceUnderTest) -> Result<Traffic, Failed> {
    let sizes: Sizes = "64".parse().map_err(|e| Failed::Broken(format!("{e}")))?;
    device.traffic(&sizes, &[]).map_err(Failed::Broken)
}

fn failed(e: RunError) -> Failed {
    match e {
        RunError::Stopped => Failed::Stopped,
        other => Failed::Broken(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_trial_reaches_a_percentile_with_ten_packets_beyond() {
        let name = |packets| Percentile::reached(packets).map(|it| it.name);
        assert_eq!(name(1_000_000), Some("p99.999"));
        assert_eq!(name(999_999), Some("p99.99"));
        assert_eq!(name(100_000), Some("p99.99"));
        assert_eq!((name(20), name(19)), (Some("p50"), None));
    }

    #[test]
    fn missing_packets_count_as_infinitely_late() {
        let mut latency = LatencyHistogram::new();
        (0..995).for_each(|_| latency.record(1_000));
        let tail = Tail {
            owed: 1_000,
            received: 995,
            latency: buckets(&latency),
            ..Tail::default()
        };
        let [_, _, _, p99, p50] = PERCENTILES;
        assert_eq!(tail.missing(), 5);
        assert!(tail.latency_of_all_ns(p99).unwrap() < 1_100.0);
        let worse = Tail {
            owed: 1_020,
            ..tail.clone()
        };
        assert_eq!(worse.latency_of_all_ns(p99), Some(f64::INFINITY));
        assert!(worse.latency_of_all_ns(p50).unwrap() < 1_100.0);
        assert_eq!(worse.latency_of_all_ns(PERCENTILES[0]), None);
        assert_eq!(tail.latency_ns(p99), None);
    }
}
