//! A mobile gateway's fast path inside the kernel: XDP programs look bearers up in maps (ebpf/xdp_gateway.bpf.c), and
//! pass undecided frames up to the process. A path is a local and a remote address between which tunnels run.
//!
//! The module needs feature `xdp`; in builds without the feature, [`KernelGateway::new`] returns an error.

#[cfg(feature = "xdp")]
mod constants;
#[cfg(feature = "xdp")]
mod maps;

use std::net::IpAddr;

#[cfg(feature = "xdp")]
pub use maps::KernelGateway;
#[cfg(not(feature = "xdp"))]
pub use without::KernelGateway;

/// Maximum number of the gateway's own addresses per IP version.
pub const MOST_OWN: usize = 8;
/// Maximum number of further addresses to which no user packet may be sent.
#[cfg(feature = "xdp")]
const MOST_CLOSED: usize = 3;

/// Settings of the XDP programs, in addition to the bearers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The gateway's own addresses: at most [`MOST_OWN`] of each IP version.
    pub own: Vec<IpAddr>,
    /// Addresses, in addition to `own`, to which packets from a tunnel must not be sent: at most three.
    pub closed: Vec<IpAddr>,
    /// Indices of the ports at which tunnel packets may arrive; none if all ports accept them.
    pub tunnels: Option<Vec<usize>>,
    /// Maximum number of bearers.
    pub bearers: usize,
    /// Maximum number of meters; the index of the first meter is 1.
    pub meters: usize,
    /// Maximum number of different source addresses that bearers check; the index of the first is 1.
    pub checked: usize,
    /// Longest outer IP packet in bytes.
    pub mtu: usize,
    /// True if frames that are not for the gateway pass unchanged.
    pub passes_others: bool,
    /// True if the process replies to requests for the MAC address of the gateway's own addresses.
    pub answers_neighbours: bool,
}

/// The map entry of one bearer, which the XDP programs read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelBearer {
    /// TEID of the tunnel into which packets are sent. In a bearer that decapsulates, the index of the source addresses
    /// that are checked, 0 for none.
    pub teid: u32,
    /// Index of the path on which tunnel packets are sent, from 1; 0 for none.
    pub path: u16,
    /// QoS flow identifier (QFI) that is written into the packets of the bearer.
    pub qfi: u8,
    /// Action that the XDP programs apply to the bearer's packets: a value of `enum action` in ebpf/xdp_gateway.bpf.c.
    pub action: u8,
}

#[cfg(not(feature = "xdp"))]
mod without {
    use super::{GatewaySettings, KernelBearer};
    use crate::upcall::UpcallPrograms;
    use std::io;
    use std::net::IpAddr;
    use taut_sys::Error;

    /// The gateway's maps in the kernel. Builds without feature `xdp` do not support them.
    #[derive(Debug)]
    pub enum KernelGateway {}

    impl KernelGateway {
        /// Returns an error that names the missing feature.
        ///
        /// # Errors
        /// The function always fails.
        pub fn new(_: GatewaySettings, _: usize) -> Result<Self, Error> {
            Err(Error::missing(
                "a gateway in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Adds or replaces a bearer.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn set(&self, _: u64, _: KernelBearer) -> io::Result<()> {
            match *self {}
        }

        /// Removes a bearer.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn remove(&self, _: u64) -> io::Result<()> {
            match *self {}
        }

        /// Sets the meters of a bearer.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn meter(&self, _: u64, _: [u32; 2]) -> io::Result<()> {
            match *self {}
        }

        /// Removes a bearer's meters.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn unmeter(&self, _: u64) -> io::Result<()> {
            match *self {}
        }

        /// Restarts a meter.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn set_meter(&self, _: u32, _: u64) -> io::Result<()> {
            match *self {}
        }

        /// Sets the source addresses with this index.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn set_sources(&self, _: u32, _: u32, _: u64) -> io::Result<()> {
            match *self {}
        }

        /// Sets the addresses of the path with this index.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn set_path(&self, _: u16, _: IpAddr, _: IpAddr) -> io::Result<()> {
            match *self {}
        }

        /// Returns the index of the port through which packets of a path last left.
        pub fn port_of(&self, _: u16) -> Option<usize> {
            match *self {}
        }

        /// Returns the number of packets with each outcome, without packets that were passed up.
        pub fn outcomes(&self) -> Vec<u64> {
            match *self {}
        }
    }

    impl UpcallPrograms for KernelGateway {}
}
