//! The observations of a wiretap in one trial: they cover only the device, whereas the generator's statistics cover the
//! complete path.

use super::{Ends, Tapped};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_measure::{LatencyHistogram, Summary};
use taut_port::PortError;
use taut_xdp::wire_tap::{self, WireTap};

/// Packets of a trial as observed on the device's links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Inside {
    /// Packets that entered the device.
    pub entered: u64,
    /// Packets that entered the device and did not leave it.
    pub lost: u64,
    /// Frames that the wiretap missed, or had no space for.
    pub missed: u64,
    /// Summary of the time inside the device; none if no packet left it.
    pub summary: Option<Summary>,
    /// Histogram of the time inside the device: a bucket's lowest value (ns) and its count.
    pub histogram: Vec<(u64, u64)>,
}

/// A wiretap on the generator's ends of a device's links, for one trial.
pub struct TrialTap {
    tap: WireTap,
    interfaces: Vec<String>,
}

impl TrialTap {
    /// Observes `interfaces` of the calling thread's network namespace, with space for the observations of `packets`
    /// packets. All observations are read after the trial, because reading them during it would take time from a
    /// measuring core.
    ///
    /// # Errors
    /// The wiretap is unsupported here.
    pub fn start(interfaces: &[String], packets: f64) -> Result<Self, PortError> {
        let ring_bytes = wire_tap::ring_bytes(packets * 2.0);
        Ok(Self {
            tap: WireTap::start(interfaces, ring_bytes)?,
            interfaces: interfaces.to_vec(),
        })
    }

    /// Returns the observations of the packets that entered through the first interface.
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
