//! Forwarding inside the kernel: an XDP program on each interface redirects frames to another interface, while this
//! process only counts and watches. All attachments end with the process, however it ends.
//!
//! The module needs feature `xdp`; in builds without the feature, starting returns an error.

#[cfg(feature = "xdp")]
mod direction;
#[cfg(feature = "xdp")]
mod forwarder;
mod header_change;
#[cfg(feature = "xdp")]
mod refusals;

#[cfg(feature = "xdp")]
pub use forwarder::KernelForwarder;
pub use header_change::{Address, HeaderChange};
#[cfg(not(feature = "xdp"))]
pub use without::KernelForwarder;

use crate::Mode;
use crate::functions::KernelFunctions;
use crate::upcall::UpcallPrograms;

/// The XDP program that processes frames. A list of [`HeaderChange`] has one entry for each port, which applies to
/// frames that leave through that port.
#[derive(Debug, Clone, Copy)]
pub enum KernelProgram<'a> {
    /// Address changes only, or none.
    Headers(&'a [HeaderChange]),
    /// Programs of a function, which pass undecided frames up to the process; the addresses of other frames are changed
    /// after the function.
    Upcall(&'a dyn UpcallPrograms, &'a [HeaderChange]),
    /// Functions of a chain, in order.
    Functions(&'a KernelFunctions),
}

/// An ingress interface, and the egress interface of its frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrance {
    /// Name of the interface.
    pub interface: String,
    /// Modes in which the XDP program may be attached, in order of preference.
    pub modes: &'static [Mode],
    /// Index of the entrance whose interface is the egress interface.
    pub to: usize,
}

/// Counters of one interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Frames that entered through the interface.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Frames that left through the interface.
    pub tx_packets: u64,
    /// Bytes of `tx_packets`.
    pub tx_bytes: u64,
}

/// Counters of a [`KernelForwarder`] since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Frames that entered through the ingress interfaces.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Frames that the driver of the egress interface accepted.
    pub tx_packets: u64,
    /// Bytes of frames passed to the egress interface, including frames that the interface's driver refused.
    pub tx_bytes: u64,
    /// Frames dropped because they are too short to contain the addresses to change.
    pub too_short: u64,
    /// Frames dropped because the egress interface did not exist or was down, or its driver's ring was full.
    pub refused: u64,
    /// Frames dropped because they are longer than 16383 bytes, the limit of the XDP programs.
    pub too_long: u64,
    /// Frames dropped by a function of the chain.
    pub dropped: u64,
    /// Frames passed up to the process.
    pub handed_up: u64,
}

/// The replacement of [`KernelForwarder`] in builds without feature `xdp`.
#[cfg(not(feature = "xdp"))]
mod without {
    use super::{Entrance, InterfaceCounters, KernelCounters, KernelProgram};
    use taut_sys::Error;

    /// Forwards between interfaces inside the kernel. Builds without feature `xdp` do not support it.
    #[derive(Debug)]
    pub enum KernelForwarder {}

    impl KernelForwarder {
        /// Returns an error that names the missing feature.
        ///
        /// # Errors
        /// The function always fails.
        pub fn start(_: &[Entrance], _: KernelProgram<'_>) -> Result<Self, Error> {
            Err(Error::missing(
                "forwarding in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Replaces the attached XDP programs in all directions, or in none.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn replace(&mut self, _: KernelProgram<'_>) -> Result<(), Error> {
            match *self {}
        }

        /// Returns the counters, summed over all directions.
        pub fn counters(&self) -> KernelCounters {
            match *self {}
        }

        /// Returns the counters of each interface.
        pub fn interfaces(&self) -> Vec<InterfaceCounters> {
            match *self {}
        }

        /// Detaches the XDP programs; returns the final counters.
        pub fn end(self) -> KernelCounters {
            match self {}
        }

        /// Returns for each interface whether frames can pass it, or the reason why not.
        pub fn links(&mut self) -> Vec<Result<(), String>> {
            match *self {}
        }

        /// Returns lines of text for display, one for each direction.
        pub fn details(&self) -> Vec<String> {
            match *self {}
        }
    }
}
