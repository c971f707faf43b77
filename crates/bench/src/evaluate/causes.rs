//! The causes of a device's slowest packets: each packet above a run's 99.9th percentile is compared with the logged
//! interruptions of generator and device.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_model::{Attribution, Cause, Gap, Interrupt, Scene, Ticks, find_ticks};

use taut_results::{MeasuredInterruptions, Run, Sample};

/// Maximum number of packets delayed by ticks that are stored for the figure.
const DRAWN: usize = 10_000;

/// The causes of a device's latency outliers, over all runs with known causes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Causes {
    /// Number of packets above their run's 99.9th percentile.
    pub spikes: u64,
    /// Number of packets above their run's 99.9th percentile, by cause.
    pub by_cause: BTreeMap<Cause, u64>,
    /// True if the device logged its interruptions in every run.
    pub device_known: bool,
    /// Number of interruptions that were counted but not stored. Outliers during them have no known cause.
    pub unkept: u64,
    /// The expected and the measured effect of periodic ticks on this traffic, from the first run with ticks; none if
    /// no run had ticks, or if the expectation is unknown.
    #[serde(skip)]
    pub aliasing: Option<Aliasing>,
}

/// Expected and measured effect of timer ticks on one run.
#[derive(Debug, Clone, PartialEq)]
pub struct Aliasing {
    /// The traffic of the run, and the timer ticks that were found.
    pub scene: Scene,
    /// Packets that a tick delayed, as measured: intended send time in s, latency in ns.
    pub measured: Vec<(f64, f64)>,
}

impl Causes {
    /// Returns the fraction of outliers with the given cause, 0 to 1.
    pub fn share(&self, cause: Cause) -> f64 {
        let count = self.by_cause.get(&cause).copied().unwrap_or(0);
        count as f64 / self.spikes.max(1) as f64
    }

    /// Adds the causes of another run.
    pub fn merge(&mut self, other: Self) {
        self.device_known = other.device_known && (self.device_known || self.spikes == 0);
        self.spikes += other.spikes;
        self.unkept += other.unkept;
        for (cause, count) in other.by_cause {
            *self.by_cause.entry(cause).or_default() += count;
        }
        self.aliasing = self.aliasing.take().or(other.aliasing);
    }
}

/// Finds the causes of the latency outliers in one run, packet by packet.
pub struct RunCauses {
    attribution: Attribution,
    threshold_ns: u64,
    spikes: u64,
    by_cause: BTreeMap<Cause, u64>,
    device_known: bool,
    unkept: u64,
    scene: Scene,
    ticked: Vec<(f64, f64)>,
}

impl RunCauses {
    /// Prepares the search for causes in a run; none for a run without logged interruptions, or with too few packets
    /// for a 99.9th percentile.
    pub fn of(run: &Run) -> Option<Self> {
        let cbr = run.cbr.as_ref()?;
        let found = run.interruptions.as_ref()?;
        let latency = cbr.latency.as_ref()?;
        let usual_ns = latency.p50_ns? as f64;
        let threshold_ns = latency.p99_9_ns?;
        let duration_ns = (cbr.sent + cbr.refused) as f64 * 1e9 / cbr.offered_pps;
        Some(Self::new(
            found,
            cbr.offered_pps,
            duration_ns,
            usual_ns,
            threshold_ns,
        ))
    }

    pub(super) fn new(
        found: &MeasuredInterruptions,
        rate_pps: f64,
        duration_ns: f64,
        usual_ns: f64,
        threshold_ns: u64,
    ) -> Self {
        let mut interrupts = Vec::new();
        let mut told_apart = |mut gaps: Vec<Gap>| {
            if let Some(ticks) = find_ticks(&mut gaps, duration_ns) {
                interrupts.push(interrupt(&ticks));
            }
            gaps
        };
        let generator = told_apart(found.generator.gaps());
        let device = found.device.as_ref();
        let device_gaps = device.map_or_else(Vec::new, |device| told_apart(device.gaps()));
        Self {
            attribution: Attribution::new(generator, device_gaps, usual_ns),
            threshold_ns,
            spikes: 0,
            by_cause: BTreeMap::new(),
            device_known: device.is_some(),
            unkept: found.generator.unkept + device.map_or(0, |device| device.unkept),
            scene: Scene {
                rate_pps,
                undisturbed_ns: usual_ns,
                seconds: duration_ns / 1e9,
                interrupts,
            },
            ticked: Vec::new(),
        }
    }

    /// Returns the cause of the next packet's latency; none for a packet with at most the median latency, and for a
    /// lost packet.
    pub fn of_next(&mut self, sample: &Sample) -> Option<Cause> {
        let due_ns = sample.intended_send_ns as f64;
        let sent_ns = due_ns + f64::from(sample.send_delay_ns);
        self.add(due_ns, sent_ns, f64::from(sample.latency_ns?))
    }

    pub(super) fn add(&mut self, due_ns: f64, sent_ns: f64, latency_ns: f64) -> Option<Cause> {
        let cause = self.attribution.cause(sent_ns, latency_ns)?;
        if matches!(cause, Cause::DeviceTick | Cause::GeneratorTick) && self.ticked.len() < DRAWN {
            self.ticked.push((due_ns / 1e9, latency_ns));
        }
        if latency_ns > self.threshold_ns as f64 {
            self.spikes += 1;
            *self.by_cause.entry(cause).or_default() += 1;
        }
        Some(cause)
    }

    /// Returns the causes of the latency outliers of the run.
    pub fn finish(self) -> Causes {
        let has_ticks = !self.scene.interrupts.is_empty();
        Causes {
            spikes: self.spikes,
            by_cause: self.by_cause,
            device_known: self.device_known,
            unkept: self.unkept,
            aliasing: has_ticks.then_some(Aliasing {
                scene: self.scene,
                measured: self.ticked,
            }),
        }
    }
}

fn interrupt(ticks: &Ticks) -> Interrupt {
    Interrupt {
        per_second: 1e9 / ticks.period_ns,
        cost_ns: ticks.cost_ns,
        phase_ns: ticks.phase_ns,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use taut_results::CoreInterruptions;

    /// Returns ticks of 6 µs, 250 per second, for two seconds.
    fn ticking() -> CoreInterruptions {
        CoreInterruptions {
            unkept: 0,
            each: (0..500)
                .map(|n| (n * 4_000_000 + 1_000_000, 6_000))
                .collect(),
        }
    }

    #[test]
    fn measured_timer_ticks_are_simulated() {
        let found = MeasuredInterruptions {
            generator: ticking(),
            device: None,
        };
        let run = RunCauses::new(&found, 1e4, 2e9, 1_000.0, 0);
        let [interrupt] = run.scene.interrupts.as_slice() else {
            panic!("{:?}", run.scene);
        };
        assert!((interrupt.per_second - 250.0).abs() < 1e-6);
        assert_eq!(interrupt.cost_ns, 6_000.0);
    }

    #[test]
    fn device_causes_are_unknown_if_one_run_lacks_device_interruptions() {
        let without = MeasuredInterruptions {
            generator: ticking(),
            device: None,
        };
        let with = MeasuredInterruptions {
            device: Some(ticking()),
            ..without.clone()
        };
        let run = |found| {
            let mut run = RunCauses::new(found, 1e4, 2e9, 1_000.0, 0);
            run.add(0.0, 0.0, 2_000.0);
            run.finish()
        };
        let mut causes = Causes::default();
        causes.merge(run(&with));
        assert!(causes.device_known && causes.aliasing.is_some());
        causes.merge(run(&without));
        assert!(!causes.device_known);
        causes.merge(run(&with));
        assert!(!causes.device_known);
        assert_eq!(causes.spikes, 3);
    }
}
