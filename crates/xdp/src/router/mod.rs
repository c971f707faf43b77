//! A router's fast path inside the kernel: XDP programs look destinations up in maps (ebpf/xdp_router.bpf.c), and pass
//! undecided frames up to the process.
//!
//! The module needs feature `xdp`; in builds without the feature, [`KernelRouter::new`] returns an error.

#[cfg(feature = "xdp")]
mod map_memory;
#[cfg(feature = "xdp")]
mod maps;

#[cfg(feature = "xdp")]
pub use maps::KernelRouter;
#[cfg(not(feature = "xdp"))]
pub use without::KernelRouter;

/// Maximum number of interfaces of a router in the kernel.
pub const MOST_INTERFACES: usize = 64;

/// The router's settings for one port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RouterInterface {
    /// MAC address of the port.
    pub mac: [u8; 6],
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
    /// True if multicast frames, and frames of protocols other than IP, are passed up to the process.
    pub listens: bool,
}

/// Settings of the XDP programs, in addition to the routes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterSettings {
    /// The interfaces, by index of the port: at most [`MOST_INTERFACES`].
    pub interfaces: Vec<RouterInterface>,
    /// Seed of the flow hash.
    pub flow_seed: u64,
    /// Number of blocks of the IPv4 table, one for each /24 network that has routes with longer prefixes.
    pub blocks_v4: usize,
    /// Maximum number of next hops, including the one with index 0, which means no route.
    pub hops: usize,
    /// Number of shares (hash buckets of flows), summed over all ECMP groups.
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

    /// The router's maps in the kernel. Builds without feature `xdp` do not support them.
    #[derive(Debug)]
    pub enum KernelRouter {}

    impl KernelRouter {
        /// Returns an error that names the missing feature.
        ///
        /// # Errors
        /// The function always fails.
        pub fn new(_: RouterSettings, _: usize) -> Result<Self, Error> {
            Err(Error::missing(
                "a router in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Sets the entry for IPv4 addresses with the given first 24 bits: a next hop or a block.
        pub fn set_first_v4(&self, _: usize, _: u16) {
            match *self {}
        }

        /// Sets the next hop of the addresses with the given last byte in a block, which has the entries of one /24
        /// network.
        pub fn set_in_block_v4(&self, _: usize, _: usize, _: u16) {
            match *self {}
        }

        /// Sets the next hop of an IPv6 route.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn set_v6(&self, _: Ipv6Addr, _: u8, _: Option<u32>) -> io::Result<()> {
            match *self {}
        }

        /// Sets the entry of a next hop.
        pub fn set_hop(&self, _: usize, _: u64) {
            match *self {}
        }

        /// Sets the next hop of a share of a group's flows.
        pub fn set_share(&self, _: usize, _: usize) {
            match *self {}
        }

        /// Returns the number of packets with each outcome, without packets that were passed up.
        pub fn outcomes(&self) -> Vec<u64> {
            match *self {}
        }

        /// Loads the XDP program for frames that enter through a port, without attaching it to an interface.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn dry_run(&self, _: usize) -> Result<DryRun, Error> {
            match *self {}
        }
    }

    impl UpcallPrograms for KernelRouter {}
}
