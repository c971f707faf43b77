//! Observes measurement packets on the links of a device: programs at trace points of the kernel record when each
//! packet enters or leaves the device. All attachments end with the process, however it ends.
//!
//! A link is a veth pair. Frames of every sender that uses the kernel's queueing are visible (the kernel's own bridge
//! and routing, ordinary sockets). Frames of senders that bypass this queueing (AF_XDP, packet sockets with
//! `PACKET_QDISC_BYPASS`) are visible unless the receiving end has an XDP program. Frames that XDP programs redirect
//! are invisible.
//!
//! The module needs feature `xdp`; in builds without the feature, starting returns an error.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(feature = "xdp")]
mod driver;

#[cfg(feature = "xdp")]
pub use driver::WireTap;
#[cfg(not(feature = "xdp"))]
pub use without::WireTap;

/// Numbers of observations and frames that a wiretap missed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Missed {
    /// Observations that did not fit into the ring between the kernel and this process.
    pub ring_full: u64,
    /// Frames in the interfaces' own counters that no program of the wiretap observed. They were redirected by XDP,
    /// sent past the trace points, or sent while the kernel did not run the programs.
    pub unseen: u64,
}

/// Returns the size, in bytes, of a ring with space for `sightings` observations between two calls of
/// [`WireTap::take`].
pub fn ring_bytes(sightings: f64) -> u32 {
    /// Size of the record of one observation, with the ring's header for it, bytes.
    const BYTES: f64 = 32.0;
    /// The range of the ring size, bytes. The minimum is large enough for a pause of the reader.
    const RANGE: std::ops::RangeInclusive<u32> = 1 << 20..=1 << 29;
    let wanted = (sightings * BYTES).min(f64::from(*RANGE.end())) as u32;
    wanted.max(*RANGE.start()).next_power_of_two()
}

/// An observation of a wiretap: one measurement packet crosses one link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Time on `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// Sequence number of the packet in its flow, from the timestamp record (`taut-wire`) in the packet's payload.
    pub sequence: u64,
    /// Number of the packet's flow, from the timestamp record (`taut-wire`) in the packet's payload.
    pub flow: u16,
    /// Index, from 0, of the interface on whose link the packet was observed.
    pub side: usize,
    /// True if the packet left the device; otherwise it entered.
    pub leaving: bool,
}

/// The replacement of [`WireTap`] in builds without feature `xdp`.
#[cfg(not(feature = "xdp"))]
mod without {
    use super::{Missed, Sighting};
    use taut_sys::Error;

    /// Observes links. Builds without feature `xdp` do not support it.
    #[derive(Debug)]
    pub enum WireTap {}

    impl WireTap {
        /// Returns an error that names the missing feature.
        ///
        /// # Errors
        /// The function always fails.
        pub fn start(_: &[String], _: u32) -> Result<Self, Error> {
            Err(Error::missing(
                "watching wires",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Does nothing: no value of this type exists in builds without feature `xdp`.
        pub fn take(&mut self, _: impl FnMut(Sighting)) {}

        /// Returns nothing: no value of this type exists in builds without feature `xdp`.
        pub fn missed(&self) -> Missed {
            Missed::default()
        }
    }
}
