//! The slowest packets of one measurement, each with its cause.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_model::Cause;

use super::causes::{Causes, RunCauses};
use taut_measure::quantity::{count, share, time};
use taut_results::MeasuredInterruptions;

/// The slowest packets of a measurement with their causes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowestPackets {
    /// Summary of the causes of the slowest packets.
    #[serde(flatten)]
    pub summary: SlowestSummary,
    /// Send time since the start (s), latency (ns) and cause of each packet, in the order of sending.
    pub each: Vec<(f64, f64, Cause)>,
}

/// The causes of the slowest packets.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SlowestSummary {
    /// The lowest latency among the slowest packets, ns.
    pub above_ns: f64,
    /// Number of the slowest packets by cause.
    #[serde(flatten)]
    pub causes: Causes,
}

impl SlowestPackets {
    /// Finds the cause of each packet (send time since the start and latency, ns, in the order of sending) from the
    /// interruptions logged in their measurement. `usual_ns` is the latency of an undisturbed packet, such as the
    /// median. Returns none without packets.
    pub fn of(
        found: &MeasuredInterruptions,
        duration_ns: f64,
        usual_ns: f64,
        packets: &[(f64, f64)],
    ) -> Option<Self> {
        let above_ns = packets.iter().map(|packet| packet.1).reduce(f64::min)?;
        let mut run = RunCauses::new(found, 1.0, duration_ns, usual_ns, 0);
        let mut each = Vec::new();
        for (sent_ns, latency_ns) in packets {
            if let Some(cause) = run.add(*sent_ns, *sent_ns, *latency_ns) {
                // Rounded to nanoseconds: more digits are not known and would only enlarge the file.
                each.push((sent_ns.round() / 1e9, latency_ns.round(), cause));
            }
        }
        let mut causes = run.finish();
        // The expected effect of ticks depends on the packet rate, which is unknown here.
        causes.aliasing = None;
        Some(Self {
            summary: SlowestSummary { above_ns, causes },
            each,
        })
    }
}

impl SlowestSummary {
    /// Adds the slowest packets of another measurement.
    pub fn merge(&mut self, other: Self) {
        self.above_ns = self.above_ns.min(other.above_ns);
        self.causes.merge(other.causes);
    }

    /// Returns a line: `25 packets from 81.0 µs on: device's core: timer tick 80 %, unexplained 20 %`.
    pub fn line(&self) -> String {
        let causes = Cause::ALL.into_iter().filter_map(|cause| {
            let part = self.causes.share(cause);
            (part > 0.0).then(|| format!("{} {}", cause.name(), share(part)))
        });
        let causes: Vec<String> = causes.collect();
        let device = if self.causes.device_known {
            ""
        } else {
            " (the device's core is not known)"
        };
        format!(
            "{} packets from {} on: {}{device}",
            count(self.causes.spikes),
            time(self.above_ns),
            causes.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_results::CoreInterruptions;

    #[test]
    fn every_outlier_gets_a_cause_that_serializes_unchanged() {
        let found = MeasuredInterruptions {
            generator: CoreInterruptions {
                unkept: 0,
                each: (0..500)
                    .map(|n| (n * 4_000_000 + 1_000_000, 6_000))
                    .collect(),
            },
            device: Some(CoreInterruptions {
                unkept: 3,
                each: vec![(7_000_000, 90_000)],
            }),
        };
        // The packets are delayed by a tick, by the device's interruption, by the queue after that interruption, and by
        // no known cause, in this order. The last packet is not slow.
        let packets = [
            (1_001_000.0, 6_000.0),
            (7_010_000.0, 81_000.0),
            (7_090_900.0, 9_000.0),
            (9_900_000.0, 12_000.0),
            (9_950_000.0, 1_000.0),
        ];
        let slowest = SlowestPackets::of(&found, 2e9, 1_000.0, &packets).unwrap();
        let causes = &slowest.summary.causes;
        assert_eq!(
            (causes.spikes, causes.unkept, causes.device_known),
            (4, 3, true)
        );
        let wanted = [
            Cause::GeneratorTick,
            Cause::DeviceOther,
            Cause::Behind,
            Cause::Unexplained,
        ];
        assert_eq!(
            slowest.each.iter().map(|each| each.2).collect::<Vec<_>>(),
            wanted
        );
        for cause in wanted {
            assert_eq!(causes.share(cause), 0.25, "{cause:?}");
        }
        let text = serde_json::to_string(&slowest).unwrap();
        assert_eq!(
            serde_json::from_str::<SlowestPackets>(&text).unwrap(),
            slowest
        );
        let line = slowest.summary.line();
        assert!(
            line.starts_with("4 packets from 1.00 µs on: device's core: other interruption 25.0 %"),
            "{line}"
        );
        let mut both = slowest.summary.clone();
        both.merge(slowest.summary);
        assert_eq!(both.causes.spikes, 8);
        assert_eq!(SlowestPackets::of(&found, 2e9, 1_000.0, &[]), None);
    }
}
