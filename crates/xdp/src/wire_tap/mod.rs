//! Watches measurement packets cross the wires of a device: programs at trace points of the kernel note when
//! each one enters or leaves. Everything attached is gone with the process, however it ends.
//!
//! A wire is a veth pair. What is seen on it: frames of every sender that goes through the kernel's queueing
//! (the kernel's own bridge and routing, ordinary sockets), and frames of those that go straight to the driver
//! (AF_XDP, packet sockets that bypass queueing) unless the receiving end has an XDP program. What XDP programs
//! redirect is not seen.
//!
//! Built with feature `xdp`; without it, starting says what is lacking.

use serde::{Deserialize, Serialize};

#[cfg(feature = "xdp")]
mod driver;

#[cfg(feature = "xdp")]
pub use driver::WireTap;
#[cfg(not(feature = "xdp"))]
pub use without::WireTap;

/// Account of what a tap did not see or could not tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missed {
    /// Sightings that the ring between the kernel and this process had no room for.
    pub ring_full: u64,
    /// Frames of any kind that crossed according to the interfaces' own counters, and that no program saw:
    /// redirected by XDP, sent past the trace points, or in a moment at which the kernel did not run them.
    pub unseen: u64,
}

/// Bytes of the ring for `sightings`: what is to fit in between two calls of [`WireTap::take`].
pub fn ring_bytes(sightings: f64) -> u32 {
    /// A record, and what the ring itself notes of it.
    const BYTES: f64 = 32.0;
    /// A ring is no larger than this, whatever is asked for, and not too small for a pause of the reader.
    const RANGE: std::ops::RangeInclusive<u32> = 1 << 20..=1 << 29;
    let wanted = (sightings * BYTES).min(f64::from(*RANGE.end())) as u32;
    wanted.max(*RANGE.start()).next_power_of_two()
}

/// Sighting: one measurement packet crosses one wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// Time on `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// Number of the packet in its flow, as its stamp says.
    pub sequence: u64,
    /// Flow, as its stamp says.
    pub flow: u16,
    /// Number of the watched interface, from 0.
    pub side: usize,
    /// Whether the packet left the device; else it went into it.
    pub leaving: bool,
}

/// Stand-in where taps are not built.
#[cfg(not(feature = "xdp"))]
mod without {
    use super::{Missed, Sighting};
    use taut_sys::Error;

    /// Watches wires. This build cannot.
    #[derive(Debug)]
    pub enum WireTap {}

    impl WireTap {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn start(_: &[String], _: u32) -> Result<Self, Error> {
            Err(Error::missing(
                "watching wires",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Does nothing, as there is no such value.
        pub fn take(&mut self, _: impl FnMut(Sighting)) {}

        /// Returns nothing, as there is no such value.
        pub fn missed(&self) -> Missed {
            Missed::default()
        }
    }
}
