//! `cbr.json` and `sweep.json`: the results of one device in one repetition.

use serde::{Deserialize, Serialize};
use taut_host::EnergyUse;
use taut_measure::{JitterSummary, SearchResult, Summary};

/// The results of one measurement at a constant rate, in which every packet is recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CbrResult {
    /// Requested rate, packets per second.
    pub offered_pps: f64,
    /// Rate at which the generator sent, packets per second.
    pub sent_pps: f64,
    /// Rate at which packets came back, packets per second.
    pub received_pps: f64,
    /// Packets that the device accepted from the generator.
    pub sent: u64,
    /// Distinct packets that came back.
    pub received: u64,
    /// Packets that never came back.
    pub lost: u64,
    /// Scheduled packets that the device did not accept because its receive ring was full; not in `sent`.
    pub refused: u64,
    /// Packets that came back more than once.
    pub duplicate: u64,
    /// Packets that arrived after a packet that was sent later.
    pub reordered: u64,
    /// Packets that came back with changed contents.
    pub corrupt: u64,
    /// Received frames that were not the generator's.
    pub foreign: u64,
    /// Packets with a latency above the histogram's range; the top bucket counts them.
    pub saturated: u64,
    /// Latency from the send timestamp; `None` when nothing came back.
    pub latency: Option<Summary>,
    /// Latency from the intended send time, which includes delays of the sender; `None` when nothing came back.
    pub latency_from_intended: Option<Summary>,
    /// Differences between the latencies of successive packets; `None` without two successive packets that came back.
    pub jitter: Option<JitterSummary>,
    /// Send timestamps minus intended send times. Results of taut 0.1 call it `slip`.
    #[serde(alias = "slip")]
    pub send_delay: Option<Summary>,
    /// Activity of machine and device during the measurement (interrupts, switches, counters): names and values.
    pub activity: serde_json::Value,
    /// Energy and processor time; `None` in results of versions that did not record them.
    #[serde(default)]
    pub energy: Option<EnergyUse>,
}

/// Trials over a series of offered rates, and the result of a rate search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Trials in the order they ran.
    pub trials: Vec<SweepTrial>,
    /// Result of the search for the highest loss-free rate; `None` when it did not finish.
    pub search: Option<SearchResult>,
}

/// The results of one trial of the sweep, at one offered rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SweepTrial {
    /// Requested rate, packets per second.
    pub offered_pps: f64,
    /// Rate at which the generator sent, packets per second.
    pub sent_pps: f64,
    /// Rate at which packets came back, packets per second.
    pub received_pps: f64,
    /// Packets that the device accepted from the generator.
    pub sent: u64,
    /// Packets of the trial that came back.
    pub received: u64,
    /// Packets that never came back.
    pub lost: u64,
    /// Packets that the device did not accept because its receive ring was full.
    pub refused: u64,
    /// True if the generator could not sustain the rate: the trial is then no measurement of the device.
    pub behind: bool,
    /// Latency from the send timestamp; `None` when nothing came back.
    pub latency: Option<Summary>,
    /// Length of the trial, s.
    pub seconds: f64,
}
