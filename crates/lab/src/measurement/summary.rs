//! What `taut generate` says of a measurement: its JSON line, `summary.json`, and what the report is made of.

use crate::evaluate::{Causes, SlowestSummary};
use crate::probed::Budget;
use serde::{Deserialize, Serialize};
use taut_host::{EnergyUse, SystemActivity};
use taut_measure::{GapSummary, JitterSummary, SequenceReport, Summary};
use taut_model::Cause;
use taut_port::PortCounters;
use taut_results::{CoreInterruptions, DeviceInfo};
use taut_sys::{Clock, Work};
use taut_tap::Inside;
use taut_traffic::{SamplerAccount, Tally};

/// Summary of a measurement of one stream or several.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrafficSummary {
    /// `summary`: tells the line from others that `taut generate --json` prints.
    pub event: String,
    /// Account of the first stream, also at the top: most traffic is one stream.
    #[serde(flatten)]
    pub first: StreamSummary,
    /// Time at which it began, RFC 3339.
    pub started: String,
    /// The command that repeats it.
    pub command_line: String,
    /// Seed of the arrivals of random patterns; none in results that do not state it.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Counters of the generator's ports, in their order.
    #[serde(default)]
    pub ports: Vec<PortCounters>,
    /// The device, if it was made for the measurement.
    pub device: Option<MeasuredDevice>,
    /// What the figures depend on besides the machine's hardware.
    #[serde(default)]
    pub versions: Versions,
    /// How often and for how long the device's core was taken away meanwhile; none of a device that does not note it.
    #[serde(default)]
    pub device_interruptions: Option<TakenAway>,
    /// Time that the device's worker took for packets meanwhile; none of a device that does not note it, or too short a time.
    #[serde(default)]
    pub device_work: Option<DeviceWork>,
    /// Activity of the machine meanwhile.
    pub activity: Option<SystemActivity>,
    /// Energy and processor time of it.
    pub energy: Option<EnergyUse>,
    /// Account of each stream.
    pub streams: Vec<StreamSummary>,
    /// What a tap saw of the same packets; none without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
}

/// Time that a worker took for packets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct DeviceWork {
    /// Time of rounds in which packets came, without that for which the core was taken away, for each packet, ns.
    pub packet_ns: f64,
    /// Packets of a batch, the mean.
    pub batch: f64,
    /// Packets that came.
    pub packets: u64,
}

impl DeviceWork {
    /// None where no packet came.
    pub(crate) fn of(work: Work, clock: &Clock) -> Option<Self> {
        (work.packets > 0).then(|| Self {
            packet_ns: clock.to_ns(work.ticks) / work.packets as f64,
            batch: work.packets as f64 / work.batches.max(1) as f64,
            packets: work.packets,
        })
    }
}

/// How often and for how long a core was taken away.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TakenAway {
    /// Times a second.
    pub per_second: f64,
    /// Share of the time, 0 to 1.
    pub share: f64,
    /// The same by length, the shortest first; lengths that there were none of are left out.
    #[serde(default)]
    pub by_length: Vec<TakenFor>,
}

/// How often a core was taken away for about so long.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TakenFor {
    /// Times a second.
    pub per_second: f64,
    /// Mean length, ns.
    pub mean_ns: f64,
}

/// Ends of the classes of lengths, ns: what is longer than the last is a class of its own.
const LENGTHS_NS: [f64; 4] = [1e4, 1e5, 1e6, 1e7];

impl TakenAway {
    /// Sums up the interruptions of a core in the first `seconds`; none where there was no room for some of them, or no time.
    pub(crate) fn of(core: &CoreInterruptions, seconds: f64) -> Option<Self> {
        let length_ns = seconds * 1e9;
        let inside = |(start, length): &(i64, u64)| {
            let end = (*start as f64 + *length as f64).min(length_ns);
            let inside = end - (*start as f64).max(0.0);
            (inside > 0.0).then_some(inside)
        };
        let inside: Vec<f64> = core.each.iter().filter_map(inside).collect();
        (core.unkept == 0 && seconds > 0.0).then(|| Self {
            per_second: inside.len() as f64 / seconds,
            share: inside.iter().sum::<f64>() / length_ns,
            by_length: Self::by_length(&inside, seconds),
        })
    }

    fn by_length(lengths_ns: &[f64], seconds: f64) -> Vec<TakenFor> {
        let class = |length: f64| LENGTHS_NS.iter().filter(|end| length > **end).count();
        let of = |wanted: usize| {
            let of_class = lengths_ns.iter().filter(|length| class(**length) == wanted);
            let all: Vec<f64> = of_class.copied().collect();
            (!all.is_empty()).then(|| TakenFor {
                per_second: all.len() as f64 / seconds,
                mean_ns: all.iter().sum::<f64>() / all.len() as f64,
            })
        };
        (0..=LENGTHS_NS.len()).filter_map(of).collect()
    }
}

impl TrafficSummary {
    /// A summary in which everything is known: what every number of it is called follows from there.
    fn example() -> serde_json::Result<Self> {
        let mut example: Self = serde_json::from_str(include_str!("example.json"))?;
        example.ports = vec![PortCounters::default()];
        let by_cause = Cause::ALL.into_iter().map(|cause| (cause, 1)).collect();
        example.first.slowest = Some(SlowestSummary {
            above_ns: 1.0,
            causes: Causes {
                by_cause,
                ..Causes::default()
            },
        });
        example.streams = vec![example.first.clone()];
        Ok(example)
    }

    /// Returns an example of the JSON, with every number that there can be. Experiments are checked against it when they are read.
    pub fn example_json() -> serde_json::Value {
        Self::example()
            .and_then(serde_json::to_value)
            .unwrap_or_default()
    }
}

/// Account of one stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamSummary {
    /// Name of the stream.
    pub name: String,
    /// Packets per second that were asked for.
    pub asked_pps: f64,
    /// Packets per second that were sent; none if a stop came before the first.
    pub sent_pps: Option<f64>,
    /// Whether packets carry stamps, and are known again.
    #[serde(default = "yes")]
    pub measured: bool,
    /// Share of the packets offered that were lost or refused; none where that cannot be known.
    pub lost_share: Option<f64>,
    /// Different packets that came back per second.
    pub received_pps: Option<f64>,
    /// Counts of the trial.
    pub tally: Tally,
    /// Packets that never came back; none where that cannot be known.
    pub lost: Option<u64>,
    /// Round trips from the stamp, ns.
    pub latency_ns: Option<Summary>,
    /// Round trips from the time that each packet was due, ns.
    pub latency_from_intended_ns: Option<Summary>,
    /// Latency by the receiving port's own stamps; none where it has none.
    pub kernel_stamps: Option<KernelStamps>,
    /// Share of the packets that came back within the budget; none without a budget or stamps.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// Jitter (RFC 4689), ns.
    pub jitter_ns: Option<JitterSummary>,
    /// Send delay: how late packets were sent against their schedule, ns. Folders of 0.1 have it only as
    /// [`StreamSummary::send_slip_ns`].
    pub send_delay_ns: Option<Summary>,
    /// As [`StreamSummary::send_delay_ns`], under the name that it has until 0.3.
    pub send_slip_ns: Option<Summary>,
    /// Account of the sequence numbers (RFC 4737); none in folders of versions that did not keep it.
    pub sequence: Option<SequenceReport>,
    /// Gaps between packets sent, all of them, ns.
    pub send_gap_ns: Option<GapSummary>,
    /// Those among them in which the machine had the generator's core, ns.
    pub interrupted_send_gap_ns: Option<GapSummary>,
    /// Samples in the folder; none where none are kept.
    pub samples: Option<Kept>,
    /// What the slowest packets waited for.
    pub slowest: Option<SlowestSummary>,
}

impl StreamSummary {
    /// Returns the send delay, by whichever name it was written.
    pub fn send_delay(&self) -> Option<&Summary> {
        self.send_delay_ns.as_ref().or(self.send_slip_ns.as_ref())
    }
}

fn yes() -> bool {
    true
}

/// Latency by stamps of arrival that the kernel or the device took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelStamps {
    /// How far the clocks may be off each other, ns.
    pub error_ns: f64,
    /// Latency up to the stamp, ns; none where no packet had one.
    pub latency_ns: Option<Summary>,
}

/// What became of a stream's samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// Packets in the file.
    pub kept: u64,
    /// Packets and arrivals that are not in it.
    #[serde(flatten)]
    pub account: SamplerAccount,
}

/// The device of a measurement, if it was made for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MeasuredDevice {
    /// What it is.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// What of it this machine has, such as the version of the program.
    pub found_here: Option<String>,
}

/// What figures depend on besides the machine's hardware.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Versions {
    /// Version of taut.
    pub taut: String,
    /// Release of the kernel; none if it is not known.
    pub kernel: Option<String>,
}

impl Versions {
    /// Reads the versions of this program and this machine.
    pub fn here() -> Self {
        let kernel = taut_host::Machine::read().kernel_release;
        Self {
            taut: env!("CARGO_PKG_VERSION").to_string(),
            kernel: kernel.map(|fact| fact.value),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// What an early version wrote of one stream.
    const OLD: &str = r#"{"event": "summary", "name": "traffic", "asked_pps": 1e4, "sent_pps": 1e4, "lost_share": 0.5,
        "received_pps": 5e3, "lost": 3, "latency_ns": null, "jitter_ns": null,
        "send_slip_ns": {"count": 1, "min_ns": 1, "avg_ns": 2.0, "p50_ns": 2, "p99_ns": 3, "p99_9_ns": 3, "p99_99_ns": 3,
            "p99_999_ns": 3, "max_ns": 3, "std_ns": 1.0},
        "tally": {"owed": 6, "sent": 6, "refused": 0, "unsent": 0, "received": 3, "corrupt": 0, "foreign": 0, "seconds": 2.0,
            "stopped": false},
        "started": "2026-11-21T08:15:00Z", "command_line": "taut generate", "device": null, "streams": [],
        "ports": [{"rx_packets": 3, "tx_packets": 6}]}"#;

    #[test]
    fn a_core_was_taken_away_as_often_and_for_as_long_as_it_noted_meanwhile() {
        // One from before the first packet that reaches 100 ns into it, one inside, one from after the last.
        let core = CoreInterruptions {
            unkept: 0,
            each: vec![(-900, 1_000), (500_000_000, 9_900), (1_000_000_001, 5)],
        };
        let found = TakenAway::of(&core, 1.0).unwrap();
        assert_eq!((found.per_second, found.share), (2.0, 1e-5));
        let each = |per_second, mean_ns| TakenFor {
            per_second,
            mean_ns,
        };
        assert_eq!(found.by_length, [each(2.0, 5_000.0)]);
        let pauses = CoreInterruptions {
            unkept: 0,
            each: vec![(0, 2_000), (1, 4_000), (5_000, 3_000_000), (9, 20_000_000)],
        };
        let by_length = TakenAway::of(&pauses, 2.0).unwrap().by_length;
        assert_eq!(by_length, [each(1.0, 3e3), each(0.5, 3e6), each(0.5, 2e7)]);
        let unkept = CoreInterruptions { unkept: 1, ..core };
        assert_eq!(TakenAway::of(&unkept, 1.0), None);
    }

    #[test]
    fn the_example_knows_everything() {
        let example = TrafficSummary::example().unwrap();
        let value = TrafficSummary::example_json();
        let again: TrafficSummary = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(again, example);
        fn nothing(value: &serde_json::Value) -> bool {
            match value {
                serde_json::Value::Null => true,
                serde_json::Value::Object(object) => object
                    .iter()
                    .any(|(key, value)| key != "device" && nothing(value)),
                serde_json::Value::Array(list) => list.iter().any(nothing),
                _ => false,
            }
        }
        assert!(!nothing(&value), "{value:#}");
    }

    #[test]
    fn a_summary_comes_back_as_it_was_and_an_early_one_is_read() {
        let summary: TrafficSummary = serde_json::from_str(OLD).unwrap();
        assert!(summary.first.measured && summary.first.sequence.is_none());
        assert_eq!(summary.first.send_delay().unwrap().max_ns, 3);
        let text = serde_json::to_string(&summary).unwrap();
        let again: TrafficSummary = serde_json::from_str(&text).unwrap();
        assert_eq!(again, summary);
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["event"], "summary");
        // What is not known is null, and not left out.
        assert!(value["latency_ns"].is_null() && value.get("latency_ns").is_some());
        assert!(value.get("inside").is_none());
    }
}
