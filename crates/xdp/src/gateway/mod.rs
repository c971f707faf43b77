//! A mobile gateway's fast path inside the kernel: its bearers lie in maps where XDP programs look them up
//! (ebpf/xdp_gateway.bpf.c), and hand up the frames that they do not decide.
//!
//! Built with feature `xdp`; without it, making one says what is lacking.

#[cfg(feature = "xdp")]
mod constants;
#[cfg(feature = "xdp")]
mod maps;

use std::net::IpAddr;

#[cfg(feature = "xdp")]
pub use maps::KernelGateway;
#[cfg(not(feature = "xdp"))]
pub use without::KernelGateway;

/// The gateway's own addresses of one IP version that the programs know at most.
pub const MOST_OWN: usize = 8;
/// Further addresses at most that no user packet may go to.
#[cfg(feature = "xdp")]
const MOST_CLOSED: usize = 2;

/// Settings of the programs, beside what the bearers say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GatewaySettings {
    /// The gateway's own addresses: [`MOST_OWN`] of each IP version at most.
    pub own: Vec<IpAddr>,
    /// Other addresses that no packet out of a tunnel goes to, as none goes to the own ones: two at most.
    pub closed: Vec<IpAddr>,
    /// Numbers of the ports that tunnels come in by; all of them if none.
    pub tunnels: Option<Vec<usize>>,
    /// Bearers there can be.
    pub bearers: usize,
    /// Meters there can be: numbers from 1 on.
    pub meters: usize,
    /// Longest outer IP packet in bytes.
    pub mtu: usize,
    /// Whether frames that are none of the gateway's pass untouched.
    pub passes_others: bool,
    /// Whether the process answers who asks for the MAC address of the gateway's own addresses.
    pub answers_neighbours: bool,
}

/// Treatment of the packets of one bearer. The numbers mean what the function and the programs agree on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelBearer {
    /// The identifier that packets get.
    pub teid: u32,
    /// The path they take, from 1; 0 where they take none.
    pub path: u16,
    /// The QoS flow that they are marked with.
    pub qfi: u8,
    /// Number of the action on the packets.
    pub action: u8,
}

#[cfg(not(feature = "xdp"))]
mod without {
    use super::{GatewaySettings, KernelBearer};
    use crate::upcall::UpcallPrograms;
    use std::io;
    use std::net::IpAddr;
    use taut_sys::Error;

    /// The gateway's maps in the kernel. This build cannot make them.
    #[derive(Debug)]
    pub enum KernelGateway {}

    impl KernelGateway {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn new(_: GatewaySettings, _: usize) -> Result<Self, Error> {
            Err(Error::missing(
                "a gateway in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Puts a bearer in, or in the place of one of its key.
        ///
        /// # Errors
        /// None.
        pub fn set(&self, _: u64, _: KernelBearer) -> io::Result<()> {
            match *self {}
        }

        /// Takes a bearer out.
        ///
        /// # Errors
        /// None.
        pub fn remove(&self, _: u64) -> io::Result<()> {
            match *self {}
        }

        /// Gives a bearer its meters, or others than it has.
        ///
        /// # Errors
        /// None.
        pub fn meter(&self, _: u64, _: [u32; 2]) -> io::Result<()> {
            match *self {}
        }

        /// Takes a bearer's meters away.
        ///
        /// # Errors
        /// None.
        pub fn unmeter(&self, _: u64) -> io::Result<()> {
            match *self {}
        }

        /// Begins a meter anew.
        ///
        /// # Errors
        /// None.
        pub fn set_meter(&self, _: u32, _: u64) -> io::Result<()> {
            match *self {}
        }

        /// Gives a path its number.
        ///
        /// # Errors
        /// None.
        pub fn set_path(&self, _: u16, _: IpAddr, _: IpAddr) -> io::Result<()> {
            match *self {}
        }

        /// The port that packets of a path left through last.
        pub fn port_of(&self, _: u16) -> Option<usize> {
            match *self {}
        }

        /// Packets by what became of them.
        pub fn outcomes(&self) -> Vec<u64> {
            match *self {}
        }
    }

    impl UpcallPrograms for KernelGateway {}
}
