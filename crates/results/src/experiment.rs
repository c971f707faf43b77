//! `experiment.json`: what was asked for, on which machine, of which devices, and how it ended.

use crate::Manifest;
use serde::{Deserialize, Serialize};

/// The whole of `experiment.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// What every results folder says.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// What every device was measured with.
    pub settings: Settings,
    /// Devices in the order of the report.
    pub devices: Vec<DeviceInfo>,
    /// The clock of all stamps.
    pub clock: Clock,
    /// What two cores of this machine need to pass a cache line; `None` when not measured.
    pub ping_pong: Option<PingPong>,
}

impl Experiment {
    /// The layout version that this program reads and writes.
    pub const SCHEMA: u32 = 1;
}

/// Completion of an experiment or a benchmark: how far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Completion {
    /// It is under way, or ended without a word (killed, power lost).
    Running,
    /// It was stopped by the user; what is there is complete in itself, other parts are missing.
    Interrupted,
    /// It came to its end, but some of its runs failed. (Of experiments only: a benchmark leaves out what fails.)
    Incomplete,
    /// All that was planned is there.
    Finished,
}

/// How long and how hard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Shortened, to see that it works.
    Quick,
    /// The usual lengths.
    Default,
    /// The reference's lengths.
    Full,
}

/// Settings common to all devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// Lengths chosen by the user.
    pub mode: Mode,
    /// Frame size in bytes, frame check sequence included: 64 is the smallest.
    pub frame_size_bytes: u32,
    /// Constant rate of the latency measurement, packets per second.
    pub rate_pps: f64,
    /// Length of one measurement at the constant rate, s.
    pub cbr_seconds: f64,
    /// Length of one trial of the sweep, s.
    pub trial_seconds: f64,
    /// Repetitions, devices interleaved in each.
    pub repetitions: u32,
    /// Seed of everything random.
    pub seed: u64,
}

/// One source of noise.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Noise {
    /// Short name.
    pub name: String,
    /// What it does to the results here.
    pub detail: String,
    /// Share of the time that a busy loop on a core lost to others; none for other sources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taken: Option<f64>,
}

/// More of a core than this taken by others makes latencies theirs.
pub const MOST_TAKEN: f64 = 0.02;

/// What to say first of results from a machine that others kept busy, by its sources of noise: one sentence and what to do.
pub fn busy(noise: &[Noise]) -> Option<String> {
    let taken = noise
        .iter()
        .filter_map(|noise| noise.taken)
        .fold(0.0, f64::max);
    (taken > MOST_TAKEN).then(|| {
        format!(
            "The machine was busy: others took {:.1} % of a core that was measured on. Latencies here are as much theirs as the \
             device's; stop what else runs (taut tune noise hears it), and measure again.",
            taken * 100.0
        )
    })
}

/// Something not measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// What is missing.
    pub what: String,
    /// Why.
    pub why: String,
    /// How to get it.
    pub how: String,
}

/// An attempt at a measurement that failed and was made again: what came of the later one is in the results, which would look
/// more reliable than they are without this.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailedAttempt {
    /// What was measured, and in which repetition.
    pub what: String,
    /// Why it failed.
    pub why: String,
}

/// How frames travel between the generator and the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Shared memory between two processes.
    Memif,
    /// Shared memory between two processes as between a virtual machine and its host.
    Vhost,
    /// Virtual Ethernet pairs between network namespaces.
    Veth,
}

impl Transport {
    /// The transport's name in tables and figures.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Memif => "memif",
            Transport::Vhost => "vhost",
            Transport::Veth => "veth",
        }
    }
}

/// What a device is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A forwarder under test.
    Forwarder,
    /// The generator looped back to itself: what the measurement itself costs.
    Calibration,
}

/// A device under test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceInfo {
    /// Unique name, also of its folder under `runs`.
    pub id: String,
    /// Name in tables and figures; unique within its transport.
    pub label: String,
    /// How frames reach it.
    pub transport: Transport,
    /// Forwarder or calibration.
    pub kind: Kind,
    /// What moves its packets: `memif`, `bridge`, `AF_PACKET`, `AF_XDP`, `XDP`, or the name of the program
    /// that does. Devices of one transport and I/O that have a flush policy differ in it alone and are
    /// compared with each other.
    pub io: String,
    /// Flush policy as written on the command line, `full(32, drain 100 us)`; `None` where the
    /// device has none.
    pub flush: Option<String>,
    /// Longest time the flush policy lets a packet wait (drain or flush timer), ns.
    pub flush_wait_ns: Option<u64>,
    /// The command that ran it.
    pub command: Vec<String>,
    /// Anything a reader should know; may be empty.
    pub note: String,
}

/// The clock behind the stamps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// What it is, for example `TSC`.
    pub source: String,
    /// Ticks per second.
    pub hz: f64,
    /// Bound of the calibration's error, parts per million.
    pub error_ppm: f64,
}

/// Round trip of a cache line between the two cores used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PingPong {
    /// Median round trip, ns.
    pub p50_ns: f64,
    /// Round trips measured.
    pub count: u64,
}
