//! `experiment.json`: the configuration, the machine, the devices, and how the experiment ended.

use crate::manifest::Manifest;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The content of `experiment.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Experiment {
    /// The manifest, which every results folder has.
    #[serde(flatten)]
    pub manifest: Manifest,
    /// The settings for every device.
    pub settings: Settings,
    /// Devices in the order of the report.
    pub devices: Vec<DeviceInfo>,
    /// The clock of all timestamps.
    pub clock: Clock,
    /// Round-trip time of a cache line between two cores of this machine; `None` if it was not measured.
    pub ping_pong: Option<PingPong>,
}

impl Experiment {
    /// The layout version that this program reads and writes.
    pub const SCHEMA: u32 = 1;
}

/// The length of measurements, as the user has selected it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Measurements are short, for a quick check.
    Quick,
    /// Measurements have their default lengths.
    Default,
    /// Measurements have their full lengths, with trials of up to a minute.
    Full,
}

/// Settings common to all devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The length of measurements, as the user has selected it.
    pub mode: Mode,
    /// Frame size in bytes, frame check sequence included: 64 is the smallest.
    pub frame_size_bytes: u32,
    /// Constant rate of the latency measurement, packets per second.
    pub rate_pps: f64,
    /// Length of one measurement at the constant rate, s.
    pub cbr_seconds: f64,
    /// Length of one trial of the sweep, s.
    pub trial_seconds: f64,
    /// Number of repetitions. Each repetition measures every device, so that the devices are interleaved.
    pub repetitions: u32,
    /// Seed of all random choices.
    pub seed: u64,
}

/// The transport of frames between the generator and the device.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// Shared memory between two processes.
    Memif,
    /// Shared memory as between a virtual machine and its host (vhost-user).
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

/// The kind of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A forwarder under test.
    Forwarder,
    /// The generator connected to itself: its latency is the measurement's own contribution.
    Calibration,
}

/// A device under test.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeviceInfo {
    /// Unique name, which is also the name of the device's folder below `runs`.
    pub id: String,
    /// Name in tables and figures; unique within its transport.
    pub label: String,
    /// Transport between the generator and the device.
    pub transport: Transport,
    /// The kind of the device: a forwarder under test, or the calibration.
    pub kind: Kind,
    /// Packet I/O of the device: `memif`, `bridge`, `AF_PACKET`, `AF_XDP`, `XDP`, or the name of the forwarding
    /// program. Devices with a flush policy that have the same transport and the same `io` differ only in their policy,
    /// and are compared with each other.
    pub io: String,
    /// Flush policy as written on the command line, `full(32, drain 100 us)`; `None` where the
    /// device has none.
    pub flush: Option<String>,
    /// Longest time for which the flush policy lets a packet wait, ns: the period of its drain or flush timer. `None`
    /// without such a timer.
    pub flush_wait_ns: Option<u64>,
    /// The command line that started the device.
    pub command: Vec<String>,
    /// A note for the reader; may be empty.
    pub note: String,
}

/// The clock of the timestamps.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Clock {
    /// Name of the clock source, for example `TSC`.
    pub source: String,
    /// Frequency of the clock, Hz.
    pub hz: f64,
    /// Bound of the calibration error, parts per million.
    pub error_ppm: f64,
}

/// Round-trip time of a cache line between the two cores of generator and device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PingPong {
    /// Median round-trip time of a cache line, ns.
    pub p50_ns: f64,
    /// Number of round trips of a cache line that were measured.
    pub count: u64,
}
