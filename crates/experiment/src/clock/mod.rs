//! Clocks of nodes that follow the clock of a reference node during a run, by NTP (chrony) or PTP (linuxptp). The run
//! begins when a stated bound on their error is met.
//!
//! [`keep_clock`] runs on each node as a command of the run. It stops other daemons that set the clock, starts its own
//! daemon, waits for the bound, and undoes both at the end (`keep.rs`). `chrony.rs` and `ptp.rs` write configurations
//! and parse readings.

mod chrony;
mod keep;
mod ptp;

pub use keep::{ClockError, keep_clock, restore_daemons};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Text in the line that a node prints with its first reading.
pub(crate) const READY: &str = "\"bound_ns\"";

/// Method of clock synchronisation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ClockMethod {
    /// NTP, by chronyd.
    Chrony,
    /// PTP (IEEE 1588), by ptp4l of linuxptp.
    Ptp,
}

/// Request to a node to synchronise its clock, or to measure the clock's error.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ClockOrder {
    /// Method of clock synchronisation.
    pub method: ClockMethod,
    /// Address of the reference node, for chrony; `None` on the reference node itself.
    pub address: Option<String>,
    /// Interface of this node on the link to the reference node or to its followers, for PTP.
    pub interface: Option<String>,
    /// True for the reference node, whose clock the other nodes follow.
    pub is_reference: bool,
    /// True if the clock is set; false if its error is only measured.
    pub adjust: bool,
    /// True if the network card takes the timestamps (hardware timestamps), for PTP.
    pub hardware: bool,
    /// Maximum error of the clock when the run begins, s.
    pub bound_s: f64,
    /// Time within which the maximum error must be met, s.
    pub within_s: f64,
}

/// The difference between the clock of a node and that of the reference node.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockReading {
    /// Offset of the node's clock from the reference node's clock, ns.
    pub offset_ns: f64,
    /// Delay of the network path to the reference node, ns: the round trip for chrony, one direction for PTP.
    pub path_delay_ns: f64,
    /// Root dispersion (NTP's estimate of the clock's error) that the daemon reports, ns; 0 for PTP, which has none.
    pub root_dispersion_ns: f64,
    /// Bound on the error of the clock, ns: the sum of the offset, the dispersion, and the path's greatest possible
    /// asymmetry.
    pub bound_ns: f64,
}

/// The record of a node's clock during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockRecord {
    /// Role of the node.
    pub node: String,
    /// Role of the reference node, whose clock the node follows.
    pub reference: String,
    /// Method of clock synchronisation.
    pub method: ClockMethod,
    /// Reading of the clock before the first command of the run.
    pub before: ClockReading,
    /// Reading of the clock after the last command of the run; `None` if there is no reading.
    pub after: Option<ClockReading>,
}

/// Parses a text as the output of each method's daemon: first chrony, then PTP.
#[doc(hidden)]
pub fn parse_readings(text: &str) -> [Option<ClockReading>; 2] {
    [chrony::reading(text), ptp::reading(text)]
}
