//! A router's fast path inside the kernel: its tables lie in maps where XDP programs look destinations up
//! (ebpf/xdp_router.bpf.c), and hand up the frames that they do not decide.
//!
//! Built with feature `xdp`; without it, making one says what is lacking.

#[cfg(feature = "xdp")]
mod mapped;
#[cfg(feature = "xdp")]
mod maps;

#[cfg(feature = "xdp")]
pub use maps::KernelRouter;
#[cfg(not(feature = "xdp"))]
pub use without::KernelRouter;

/// Interfaces that a router in the kernel has at most.
pub const MOST_INTERFACES: usize = 64;

/// The router's end of a port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RouterInterface {
    /// Its MAC address.
    pub mac: [u8; 6],
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
    /// Whether the process has frames for groups of stations and of other protocols than IP.
    pub listens: bool,
}

/// Settings of the programs, beside what the routes say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterSettings {
    /// The interfaces, by number of the port: [`MOST_INTERFACES`] at most.
    pub interfaces: Vec<RouterInterface>,
    /// Number that the hash of a flow begins with.
    pub flow_seed: u64,
    /// Blocks of the table of IPv4, for /24 networks with longer prefixes in them.
    pub blocks_v4: usize,
    /// Next hops there can be, with number 0, which is no route.
    pub hops: usize,
    /// Shares of the flows of all groups of next hops together.
    pub shares: usize,
}

#[cfg(not(feature = "xdp"))]
mod without {
    use super::RouterSettings;
    use crate::functions::DryRun;
    use crate::upcall::UpcallPrograms;
    use std::io;
    use std::net::Ipv6Addr;
    use taut_sys::Error;

    /// The router's maps in the kernel. This build cannot make them.
    #[derive(Debug)]
    pub enum KernelRouter {}

    impl KernelRouter {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn new(_: RouterSettings, _: usize) -> Result<Self, Error> {
            Err(Error::missing(
                "a router in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Has IPv4 addresses with these first 24 bits lead to a next hop or a block.
        pub fn set_first_v4(&self, _: usize, _: u16) {
            match *self {}
        }

        /// Has the addresses with that last byte lead to a next hop where a block is.
        pub fn set_in_block_v4(&self, _: usize, _: usize, _: u16) {
            match *self {}
        }

        /// Lets the route of an IPv6 prefix lead to a next hop.
        ///
        /// # Errors
        /// None.
        pub fn set_v6(&self, _: Ipv6Addr, _: u8, _: Option<u32>) -> io::Result<()> {
            match *self {}
        }

        /// Says what becomes of packets of a next hop.
        pub fn set_hop(&self, _: usize, _: u64) {
            match *self {}
        }

        /// Gives a share of a group's flows another next hop.
        pub fn set_share(&self, _: usize, _: usize) {
            match *self {}
        }

        /// Packets by what became of them.
        pub fn outcomes(&self) -> Vec<u64> {
            match *self {}
        }

        /// The program of frames that come in through a port, without an interface.
        ///
        /// # Errors
        /// None.
        pub fn dry_run(&self, _: usize) -> Result<DryRun, Error> {
            match *self {}
        }
    }

    impl UpcallPrograms for KernelRouter {}
}
