//! `experiment.json`: what was asked for, on which machine, of which devices, and how it ended.

use crate::manifest::Manifest;
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
