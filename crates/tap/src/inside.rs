//! What a tap saw of one trial: the device alone, beside the generator's own account.

use super::{Ends, Tapped};
use serde::{Deserialize, Serialize};
use taut_measure::{LatencyHistogram, Summary};
use taut_port::PortError;
use taut_xdp::wire_tap::{self, WireTap};

/// Packets of a trial as seen on the device's wires.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Inside {
    /// Seen entering.
    pub entered: u64,
    /// Those of them that were not seen leaving.
    pub lost: u64,
    /// Frames that the tap did not see, or had no room for.
    pub missed: u64,
    /// Time inside.
    pub summary: Option<Summary>,
    /// Its histogram: a bucket's lowest value (ns) and how many.
    pub histogram: Vec<(u64, u64)>,
}

/// A tap on the generator's ends of a device's wires, for the length of one trial.
pub struct TrialTap {
    tap: WireTap,
    interfaces: Vec<String>,
}

impl TrialTap {
    /// Watches `interfaces` of the calling thread's network namespace, with room for `packets`: all wait until the
    /// trial is over, as reading them meanwhile would take time from a core that measures.
    ///
    /// # Errors
    /// What the tap lacks.
    pub fn start(interfaces: &[String], packets: f64) -> Result<Self, PortError> {
        let ring_bytes = wire_tap::ring_bytes(packets * 2.0);
        Ok(Self {
            tap: WireTap::start(interfaces, ring_bytes)?,
            interfaces: interfaces.to_vec(),
        })
    }

    /// What it saw of the packets that entered through the first interface.
    #[allow(
        unreachable_code,
        unused_variables,
        reason = "in builds without XDP there is no tap"
    )]
    pub fn finish(self) -> (Inside, LatencyHistogram) {
        let tapped = Tapped::new(self.tap, &self.interfaces, Ends::Generator, None);
        let (account, missed) = tapped.into_account();
        let inside = Inside {
            entered: account.entered,
            lost: account.lost,
            missed: missed.ring_full + missed.unseen,
            summary: Summary::from_histogram(&account.latency),
            histogram: taut_results::buckets(&account.latency),
        };
        (inside, account.latency)
    }
}
