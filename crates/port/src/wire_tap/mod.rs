//! Watches measurement packets cross the wires of a device: programs at trace points of the kernel note when
//! each one enters or leaves. Everything attached is gone with the process, however it ends.
//!
//! A wire is a veth pair. What is seen on it: frames of every sender that goes through the kernel's queueing
//! (the kernel's own bridge and routing, ordinary sockets), and frames of those that go straight to the driver
//! (AF_XDP, packet sockets that bypass queueing) unless the receiving end has an XDP program. What XDP programs
//! redirect is not seen.
//!
//! Built with feature `xdp`; without it, starting says what is lacking.

#[cfg(feature = "xdp")]
mod driver;
#[cfg(all(test, feature = "xdp"))]
mod tests;

#[cfg(feature = "xdp")]
pub use driver::WireTap;
#[cfg(not(feature = "xdp"))]
pub use without::WireTap;

/// One measurement packet crosses one wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    /// `CLOCK_MONOTONIC`, ns.
    pub time_ns: u64,
    /// Number of the packet in its flow, as its stamp says.
    pub sequence: u64,
    /// Flow, as its stamp says.
    pub flow: u16,
    /// Which of the watched interfaces, from 0.
    pub side: usize,
    /// Out of the device; else into it.
    pub leaving: bool,
}

/// What stands in where taps are not built.
#[cfg(not(feature = "xdp"))]
mod without {
    use super::Sighting;
    use crate::PortError;

    /// Watches wires. This build cannot.
    #[derive(Debug)]
    pub enum WireTap {}

    impl WireTap {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn start(_: &[String]) -> Result<Self, PortError> {
            Err(PortError::missing(
                "watching wires",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Nothing, as there is no such value.
        pub fn take(&mut self, _: impl FnMut(Sighting)) {}

        /// Nothing, as there is no such value.
        pub fn missed(&self) -> u64 {
            0
        }
    }
}
