//! Forwarding inside the kernel: an XDP program on each interface hands its frames to the other one, and
//! this process only counts and watches. Everything attached is gone with it, however it ends.
//!
//! Built with feature `xdp`; without it, starting says what is lacking.

#[cfg(feature = "xdp")]
mod direction;
#[cfg(feature = "xdp")]
mod forwarder;
mod header_change;
#[cfg(feature = "xdp")]
mod refused;

#[cfg(feature = "xdp")]
pub use forwarder::KernelForwarder;
pub use header_change::{Address, HeaderChange};
#[cfg(not(feature = "xdp"))]
pub use without::KernelForwarder;

use crate::Mode;
use crate::functions::KernelFunctions;
use crate::upcall::UpcallPrograms;

/// Program for frames on their way. Changes of addresses have one entry for each port, for the frames that leave
/// through it.
#[derive(Debug, Clone, Copy)]
pub enum KernelProgram<'a> {
    /// A change of addresses at most.
    Headers(&'a [HeaderChange]),
    /// Programs of a function's own, which hand up what they do not decide; then addresses change.
    Upcall(&'a dyn UpcallPrograms, &'a [HeaderChange]),
    /// Functions, in order.
    Functions(&'a KernelFunctions),
}

/// Interface that frames enter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entrance {
    /// Name of the interface.
    pub interface: String,
    /// Places where its program may run: the first of these that works.
    pub modes: &'static [Mode],
    /// Number of the entrance whose interface frames leave through.
    pub to: usize,
}

/// Counts of what has passed one interface.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    /// Frames that entered.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Frames that left.
    pub tx_packets: u64,
    /// Bytes of `tx_packets`.
    pub tx_bytes: u64,
}

/// Counts of what passed through a [`KernelForwarder`] since it was started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KernelCounters {
    /// Frames that entered.
    pub rx_packets: u64,
    /// Bytes of `rx_packets`.
    pub rx_bytes: u64,
    /// Frames handed to the other interface's driver and taken by it.
    pub tx_packets: u64,
    /// Bytes of frames handed to the other interface, those that its driver did not take included.
    pub tx_bytes: u64,
    /// Dropped for want of the addresses that were to be changed.
    pub too_short: u64,
    /// Dropped because the other interface was not there, was down, or its driver had no room.
    pub refused: u64,
    /// Dropped because programs follow frames of 16383 bytes at most.
    pub too_long: u64,
    /// Dropped by a function.
    pub dropped: u64,
    /// Handed up to the process.
    pub handed_up: u64,
}

/// Stand-in where in-kernel forwarding is not built.
#[cfg(not(feature = "xdp"))]
mod without {
    use super::{Entrance, InterfaceCounters, KernelCounters, KernelProgram};
    use taut_sys::Error;

    /// Forwards between interfaces inside the kernel. This build cannot.
    #[derive(Debug)]
    pub enum KernelForwarder {}

    impl KernelForwarder {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn start(_: &[Entrance], _: KernelProgram<'_>) -> Result<Self, Error> {
            Err(Error::missing(
                "forwarding in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Puts other programs in the place of the present ones.
        ///
        /// # Errors
        /// None.
        pub fn replace(&mut self, _: KernelProgram<'_>) -> Result<(), Error> {
            match *self {}
        }

        /// Returns what has passed so far.
        pub fn counters(&self) -> KernelCounters {
            match *self {}
        }

        /// Returns what has passed each interface so far.
        pub fn interfaces(&self) -> Vec<InterfaceCounters> {
            match *self {}
        }

        /// Takes the programs off the interfaces; what has passed in all.
        pub fn end(self) -> KernelCounters {
            match self {}
        }

        /// State of each interface.
        pub fn links(&mut self) -> Vec<Result<(), String>> {
            match *self {}
        }

        /// Describes what became of each direction.
        pub fn details(&self) -> Vec<String> {
            match *self {}
        }
    }
}
