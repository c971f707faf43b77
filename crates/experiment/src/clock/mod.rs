//! Clocks of nodes that follow the clock of a reference node during a run, by NTP (chrony) or PTP (linuxptp). The run
//! begins when a stated bound on their error is met.
//!
//! [`keep_clock`] runs on each node as a command of the run (`keep.rs`). It stops other daemons that set the clock,
//! starts its own, and waits for the bound. At the end it restores the earlier state. `chrony.rs` and `ptp.rs` have
//! configuration and readings.

mod chrony;
mod keep;
mod ptp;

pub use keep::{ClockError, keep_clock, restore_daemons};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Text that a node prints in the line with the first reading.
pub(crate) const READY: &str = "\"bound_ns\"";

/// Method of synchronisation.
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
    /// Method of synchronisation.
    pub method: ClockMethod,
    /// Address of the reference node, for chrony; `None` on the reference node itself.
    pub address: Option<String>,
    /// Interface to the reference node or the followers, for PTP.
    pub interface: Option<String>,
    /// True for the reference node, which the others follow.
    pub is_reference: bool,
    /// True if the clock is set; false if its error is only measured.
    pub adjust: bool,
    /// True if the hardware of the interface takes the timestamps, for PTP.
    pub hardware: bool,
    /// Maximum error of the clock, s.
    pub bound_s: f64,
    /// Time within which the clock's error must fall below the bound, s.
    pub within_s: f64,
}

/// The clock of a node compared with the reference node's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockReading {
    /// Offset of the clock from that of the reference node, ns.
    pub offset_ns: f64,
    /// Delay of the path to the reference: the round trip for chrony, one way for PTP, ns.
    pub path_delay_ns: f64,
    /// Dispersion that the daemon reports, ns; 0 for PTP, which has none.
    pub root_dispersion_ns: f64,
    /// Bound on the error of the clock: the offset, the dispersion, and the path's greatest possible asymmetry, ns.
    pub bound_ns: f64,
}

/// The clock of a node during a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ClockRecord {
    /// Role of the node.
    pub node: String,
    /// Role of the reference node.
    pub reference: String,
    /// Method of synchronisation.
    pub method: ClockMethod,
    /// Reading of the clock's error before the first command of the run.
    pub before: ClockReading,
    /// Reading of the clock's error after the last command of the run; `None` if there is none.
    pub after: Option<ClockReading>,
}

/// Parses `text` as the output of chronyc, and then as that of pmc; `None` for a format that it does not have.
#[doc(hidden)]
pub fn parse_readings(text: &str) -> [Option<ClockReading>; 2] {
    [chrony::reading(text), ptp::reading(text)]
}
