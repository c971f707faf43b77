//! The summary of a measurement of `taut generate`: its JSON line, `summary.json`, and the input of the report.

use crate::evaluate::{Causes, SlowestSummary};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize, Serializer};
use taut_host::{EnergyUse, SystemActivity};
use taut_measure::{GapSummary, JitterSummary, SequenceReport, Summary};
use taut_model::Cause;
use taut_port::PortCounters;
use taut_results::{CoreInterruptions, DeviceInfo};
use taut_sys::{Clock, Work};
use taut_tap::Inside;
use taut_traffic::{SamplerAccount, Tally};

/// Summary of a measurement with one or more streams.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TrafficSummary {
    /// The constant `summary`, which distinguishes this line from other lines of `taut generate --json`.
    pub event: String,
    /// Time at which the measurement began, RFC 3339.
    pub started: String,
    /// The command that repeats the measurement.
    pub command_line: String,
    /// Seed for the arrivals of random patterns; none in results that do not contain it.
    #[serde(default)]
    pub seed: Option<u64>,
    /// Counters of the generator's ports, in the order of the ports.
    #[serde(default)]
    pub ports: Vec<PortCounters>,
    /// The device, if taut set it up for the measurement.
    pub device: Option<MeasuredDevice>,
    /// The software versions that affect the results.
    #[serde(default)]
    pub versions: Versions,
    /// Interruptions of the device's core during the measurement; none for a device that does not log them.
    #[serde(default)]
    pub device_interruptions: Option<TakenAway>,
    /// Interruptions of the generator's core during the measurement; none if they are unknown.
    #[serde(default)]
    pub generator_interruptions: Option<TakenAway>,
    /// Work of the device's worker during the measurement; none if the device does not log its work, or if the log
    /// shows no packet, as after a very short measurement.
    #[serde(default)]
    pub device_work: Option<DeviceWork>,
    /// Activity of the machine during the measurement; none in results that do not contain it.
    pub activity: Option<SystemActivity>,
    /// Energy and processor time of the measurement; none in results that do not contain them.
    pub energy: Option<EnergyUse>,
    /// Summary of each stream.
    #[serde(flatten)]
    pub streams: Streams,
    /// Latency of the device alone, for the packets of this measurement, as a wiretap on the device's links observed
    /// it; none without a wiretap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inside: Option<Inside>,
    /// Warnings for the reader of the results, one sentence each.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// Time that a worker spent on packets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct DeviceWork {
    /// Time per packet in iterations with packets, without interruptions, ns.
    pub packet_ns: f64,
    /// Mean number of packets per batch that the worker received.
    pub batch: f64,
    /// Number of packets that the worker received.
    pub packets: u64,
}

impl DeviceWork {
    /// Computes the times of a worker; none if no packet was received.
    pub(crate) fn of(work: Work, clock: &Clock) -> Option<Self> {
        (work.packets > 0).then(|| Self {
            packet_ns: clock.to_ns(work.ticks) / work.packets as f64,
            batch: work.packets as f64 / work.batches.max(1) as f64,
            packets: work.packets,
        })
    }
}

/// Frequency and length of a core's interruptions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TakenAway {
    /// Interruptions of the core per second.
    pub per_second: f64,
    /// Fraction of the measurement for which the core was interrupted, 0 to 1.
    pub share: f64,
    /// Interruptions by class of length, the shortest first. Empty classes are omitted.
    #[serde(default)]
    pub by_length: Vec<TakenFor>,
}

/// The interruptions of a core in one class of length.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TakenFor {
    /// Interruptions of this class of length per second.
    pub per_second: f64,
    /// Mean length of an interruption of this class, ns.
    pub mean_ns: f64,
}

/// Upper bounds of the classes of length, ns. Longer interruptions form one more class.
const LENGTHS_NS: [f64; 4] = [1e4, 1e5, 1e6, 1e7];

impl TakenAway {
    /// Summarises the interruptions of a core in the first `seconds`; none if some were not stored, or the time is
    /// zero.
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
    /// Returns the summary of the first stream.
    pub fn first(&self) -> &StreamSummary {
        &self.streams.first
    }

    /// Returns a summary of two streams with every field set. The names of all metrics are derived from this example.
    fn example() -> serde_json::Result<Self> {
        let mut example: Self = serde_json::from_str(include_str!("example.json"))?;
        example.ports = vec![PortCounters::default()];
        let by_cause = Cause::ALL.into_iter().map(|cause| (cause, 1)).collect();
        example.streams.first.slowest = Some(SlowestSummary {
            above_ns: 1.0,
            causes: Causes {
                by_cause,
                ..Causes::default()
            },
        });
        example.streams.others = vec![example.first().clone()];
        Ok(example)
    }

    /// Returns an example of the JSON with every possible number. The metrics that an experiment names are checked
    /// against this example when the experiment is read.
    pub fn example_json() -> serde_json::Value {
        Self::example()
            .and_then(serde_json::to_value)
            .unwrap_or_default()
    }
}

/// Summaries of one or more streams.
#[derive(Debug, Clone, PartialEq, Deserialize, JsonSchema)]
#[serde(try_from = "Stored")]
#[schemars(with = "Written<'static>")]
pub struct Streams {
    /// Summary of the first stream.
    pub first: StreamSummary,
    /// Summaries of all streams after the first.
    pub others: Vec<StreamSummary>,
}

impl Streams {
    /// Returns the summaries, the first stream's first.
    pub fn iter(&self) -> impl Iterator<Item = &StreamSummary> {
        std::iter::once(&self.first).chain(&self.others)
    }
}

impl Serialize for Streams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let streams = self.iter().collect();
        Written { streams }.serialize(serializer)
    }
}

/// The field of a summary that contains the streams, as this version writes it.
#[derive(Serialize, JsonSchema)]
struct Written<'a> {
    streams: Vec<&'a StreamSummary>,
}

/// The fields of a stored summary that contain the streams, in the format of this or an earlier version of taut.
#[derive(Deserialize)]
struct Stored {
    /// Summary of the first stream, if its fields are next to `streams` and not inside, as versions 0.1 and 0.2 wrote
    /// them.
    #[serde(flatten)]
    beside: Option<StreamSummary>,
    /// Summary of each stream; empty in some folders that version 0.1 wrote.
    #[serde(default)]
    streams: Vec<StreamSummary>,
}

impl TryFrom<Stored> for Streams {
    type Error = &'static str;

    fn try_from(stored: Stored) -> Result<Self, Self::Error> {
        let mut streams = stored.streams.into_iter();
        let first = streams.next().or(stored.beside);
        Ok(Self {
            first: first.ok_or("expected the summary of one stream or more in `streams`")?,
            others: streams.collect(),
        })
    }
}

/// Summary of one stream.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct StreamSummary {
    /// Name of the stream.
    pub name: String,
    /// Requested packets per second.
    pub asked_pps: f64,
    /// Sent packets per second; none if the measurement ended before the first packet.
    pub sent_pps: Option<f64>,
    /// True if the stream's packets carry a timestamp and a sequence number, so that latency and loss can be measured.
    #[serde(default = "yes")]
    pub measured: bool,
    /// Fraction of the offered packets that were lost or refused; none if no packet was offered, or if the packets
    /// carry no sequence number.
    pub lost_share: Option<f64>,
    /// Distinct packets per second that came back; none if the measurement ended before the first packet.
    pub received_pps: Option<f64>,
    /// Counts of the stream's packets in the trial.
    pub tally: Tally,
    /// Packets that never came back; none if the packets carry no sequence number.
    pub lost: Option<u64>,
    /// Latency from the send timestamp to the arrival, ns; none if no latency was measured.
    pub latency_ns: Option<Summary>,
    /// Latency from the intended send time to the arrival, ns; none if no latency was measured.
    pub latency_from_intended_ns: Option<Summary>,
    /// Latency by the receiving port's own timestamps; none if the port takes no timestamps.
    pub kernel_stamps: Option<KernelStamps>,
    /// Fraction of the packets that came back within the budget; none without a budget or timestamps.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// Jitter (RFC 4689), ns; none without two successive packets.
    pub jitter_ns: Option<JitterSummary>,
    /// Send delay: time from the intended to the actual sending of a packet, ns; none if no delay was recorded. Folders
    /// of version 0.1 contain the send delay only as [`StreamSummary::send_slip_ns`].
    pub send_delay_ns: Option<Summary>,
    /// Copy of [`StreamSummary::send_delay_ns`] under its old name, present until version 0.3; none in later results.
    pub send_slip_ns: Option<Summary>,
    /// Statistics of the sequence numbers (RFC 4737); none in folders of versions that did not store them.
    pub sequence: Option<SequenceReport>,
    /// All inter-departure times, ns; none if fewer than two packets were sent.
    pub send_gap_ns: Option<GapSummary>,
    /// Inter-departure times during interruptions of the generator's core, ns; none without such times.
    pub interrupted_send_gap_ns: Option<GapSummary>,
    /// Counts of the samples in the folder; none if no samples are stored.
    pub samples: Option<Kept>,
    /// The causes of the slowest packets; none if they are unknown.
    pub slowest: Option<SlowestSummary>,
}

impl StreamSummary {
    /// Returns the send delay, from [`StreamSummary::send_slip_ns`] in folders that have it only under its old name;
    /// none if neither field is present.
    pub fn send_delay(&self) -> Option<&Summary> {
        self.send_delay_ns.as_ref().or(self.send_slip_ns.as_ref())
    }
}

fn yes() -> bool {
    true
}

/// Latency by the arrival timestamps that the receiving port (kernel or NIC) took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct KernelStamps {
    /// Maximum error of the arrival timestamps relative to the send timestamps, ns.
    pub error_ns: f64,
    /// Latency up to the arrival timestamp, ns; none if no packet had an arrival timestamp.
    pub latency_ns: Option<Summary>,
}

/// Counts of a stream's stored samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Kept {
    /// Number of packets in the sample file.
    pub kept: u64,
    /// Counts of the packets and arrivals that are not in the sample file.
    #[serde(flatten)]
    pub account: SamplerAccount,
}

/// The device of a measurement, if taut set it up.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MeasuredDevice {
    /// The device's description.
    #[serde(flatten)]
    pub info: DeviceInfo,
    /// The version of the device on this machine, or other evidence that the device is available; none if a requirement
    /// is missing.
    pub found_here: Option<String>,
}

/// The software versions that affect results.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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

/// Latency budget of round trips.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Budget {
    /// The maximum latency of a packet that is within the budget, ns.
    pub ns: u64,
    /// Fraction of the packets that came back within the budget: of the sent probes, or of the packets that `taut
    /// generate` offered. Lost packets count as outside of the budget.
    pub share: f64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::{Value, json};

    /// A summary of one stream as an early version wrote it.
    const OLD: &str = r#"{"event": "summary", "name": "traffic", "asked_pps": 1e4, "sent_pps": 1e4, "lost_share": 0.5,
        "received_pps": 5e3, "lost": 3, "latency_ns": null, "jitter_ns": null,
        "send_slip_ns": {"count": 1, "min_ns": 1, "avg_ns": 2.0, "p50_ns": 2, "p99_ns": 3, "p99_9_ns": 3, "p99_99_ns": 3,
            "p99_999_ns": 3, "max_ns": 3, "std_ns": 1.0},
        "tally": {"owed": 6, "sent": 6, "refused": 0, "unsent": 0, "received": 3, "corrupt": 0, "foreign": 0, "seconds": 2.0,
            "stopped": false},
        "started": "2026-11-21T08:15:00Z", "command_line": "taut generate", "device": null, "streams": [],
        "ports": [{"rx_packets": 3, "tx_packets": 6}]}"#;

    #[test]
    fn interruptions_are_counted_and_clipped_to_the_measured_time() {
        // The first interruption begins before the first packet and overlaps by 100 ns, the second is inside, the third
        // is after the last packet.
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
    fn the_example_summary_fills_every_field() {
        let example = TrafficSummary::example().unwrap();
        let value = TrafficSummary::example_json();
        let again: TrafficSummary = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(again, example);
        fn nothing(value: &Value) -> bool {
            match value {
                Value::Null => true,
                Value::Object(object) => object
                    .iter()
                    .any(|(key, value)| key != "device" && nothing(value)),
                Value::Array(list) => list.iter().any(nothing),
                _ => false,
            }
        }
        assert!(!nothing(&value), "{value:#}");
    }

    #[test]
    fn old_summaries_parse_and_serialize_unchanged() {
        let summary: TrafficSummary = serde_json::from_str(OLD).unwrap();
        assert!(summary.first().measured && summary.first().sequence.is_none());
        assert_eq!(summary.first().send_delay().unwrap().max_ns, 3);
        let text = serde_json::to_string(&summary).unwrap();
        let again: TrafficSummary = serde_json::from_str(&text).unwrap();
        assert_eq!(again, summary);
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["event"], "summary");
        // Unknown values are null, not omitted.
        let first = &value["streams"][0];
        assert!(first["latency_ns"].is_null() && first.get("latency_ns").is_some());
        // The fields of the first stream are only in the list of streams.
        assert!(value.get("latency_ns").is_none() && value.get("tally").is_none());
        assert!(value.get("inside").is_none());
    }

    #[test]
    fn a_summary_without_streams_is_an_error() {
        let mut value = TrafficSummary::example_json();
        value["streams"] = json!([]);
        let error = serde_json::from_value::<TrafficSummary>(value).unwrap_err();
        assert!(error.to_string().contains("one stream or more"), "{error}");
    }

    fn stream(name: &str) -> Value {
        json!({"name": name, "asked_pps": 1e4, "tally": {"owed": 6, "sent": 6, "refused": 0, "unsent": 0, "received": 3,
            "corrupt": 0, "foreign": 0, "seconds": 2.0, "stopped": false}})
    }

    /// Returns the names of the streams that are read from `value`.
    fn names(value: Value) -> Vec<String> {
        let streams: Streams = serde_json::from_value(value).unwrap();
        streams.iter().map(|stream| stream.name.clone()).collect()
    }

    #[test]
    fn streams_are_written_as_a_list_and_read_from_it() {
        let value = json!({"streams": [stream("a"), stream("b")]});
        let streams: Streams = serde_json::from_value(value.clone()).unwrap();
        assert_eq!(names(value), ["a", "b"]);
        let written = serde_json::to_value(&streams).unwrap();
        assert_eq!(written.as_object().unwrap().len(), 1, "{written}");
        assert_eq!(written["streams"][1]["tally"]["sent"], 6);
        assert_eq!(names(written), ["a", "b"]);
    }

    #[test]
    fn in_summaries_with_a_stream_list_only_the_list_counts() {
        let mut value = stream("a");
        value["streams"] = json!([stream("a"), stream("b")]);
        assert_eq!(names(value), ["a", "b"]);
    }

    #[test]
    fn summaries_without_a_stream_list_have_one_stream() {
        let mut value = stream("a");
        assert_eq!(names(value.clone()), ["a"]);
        value["streams"] = json!([]);
        assert_eq!(names(value), ["a"]);
    }

    #[test]
    fn a_summary_without_any_stream_is_refused() {
        for value in [json!({}), json!({"streams": []}), json!({"streams": [{}]})] {
            let error = serde_json::from_value::<Streams>(value.clone()).unwrap_err();
            let text = error.to_string();
            assert!(
                text.contains("streams") || text.contains("missing field"),
                "{value}: {text}"
            );
        }
    }
}
