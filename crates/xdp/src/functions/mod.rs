//! Functions of a chain inside the kernel: one XDP program per direction does them in order
//! (ebpf/xdp_functions.bpf.c), and this process only says what they are to do, and reads what they counted.
//!
//! Built with feature `xdp`; without it, making one says what is lacking.

#[cfg(feature = "xdp")]
mod constants;
#[cfg(feature = "xdp")]
mod dry;
#[cfg(feature = "xdp")]
mod maps;
#[cfg(feature = "xdp")]
mod nat;

use crate::forward::HeaderChange;
use std::sync::Arc;
use std::time::Duration;

#[cfg(feature = "xdp")]
pub use dry::DryRun;
#[cfg(feature = "xdp")]
pub use maps::KernelFunctions;
#[cfg(not(feature = "xdp"))]
pub use without::{DryRun, KernelFunctions};

/// Functions of a chain at most.
pub const MOST_STAGES: usize = 16;

/// Buckets of flows that hops are given to.
pub const HOP_BUCKETS: usize = 1 << 16;

/// Function that frames of one direction pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFunction {
    /// Changes addresses, and counts nothing.
    Headers(HeaderChange),
    /// Lets everything pass, counted under that outcome.
    Passes {
        /// Number of the outcome among the function's.
        outcome: usize,
    },
    /// Exclusive or of every byte of UDP payloads with a key.
    Xor {
        /// The key.
        key: u8,
    },
    /// Two time stamps appended to UDP payloads.
    Ats {
        /// The longest IP packet that may leave, bytes.
        mtu: usize,
    },
    /// Accepts or drops.
    Filter {
        /// The first that fits decides.
        rules: Vec<KernelRule>,
        /// Whether packets are dropped that no rule fits.
        default_drops: bool,
    },
    /// Gives flows their next hop.
    Balance {
        /// The MAC address of each of the [`HOP_BUCKETS`].
        buckets: Arc<[[u8; 6]]>,
        /// Seed of the hash.
        seed: u64,
    },
    /// Translates addresses and ports; one of a chain at most.
    Nat {
        /// Frames leave through an outside port.
        is_outwards: bool,
        /// Translator of both directions.
        nat: Arc<KernelNat>,
    },
}

/// Settings that a translator decides by. Places of mappings and keys of inside endpoints are those of the function in
/// user space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelNat {
    /// The outside addresses, 16 at most.
    pub addresses: Vec<u32>,
    /// First and last outside port.
    pub ports: (u16, u16),
    /// Seed of the choice of ports.
    pub seed: u64,
    /// Mappings there can be.
    pub mappings: usize,
    /// Mappings that an inside address can have.
    pub mappings_per_host: u32,
    /// Buckets of the array that counts the mappings of inside addresses, a power of two.
    pub host_buckets: usize,
    /// Time from one sweep for mappings that have timed out to the next.
    pub sweep: Duration,
    /// Time without packets from inside after which a mapping ends.
    pub udp: Duration,
    /// Such time of a TCP connection that is open.
    pub tcp: Duration,
    /// Such time of a TCP connection that opens or closes.
    pub tcp_closing: Duration,
    /// Such time of an ICMP query.
    pub icmp: Duration,
    /// Place and inside key of mappings that are always there.
    pub forwards: Vec<(u32, u64)>,
}

/// A rule of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRule {
    /// Whether packets that it fits are dropped.
    pub drops: bool,
    /// Protocol that packets must have; None fits all.
    pub protocol: Option<u8>,
    /// The bits that source addresses share, and which those are. IPv4 addresses are their mapped IPv6 ones.
    pub source: (u128, u128),
    /// The bits that destination addresses share, and which those are.
    pub destination: (u128, u128),
    /// First and last source port; packets without ports do not fit.
    pub source_ports: Option<(u16, u16)>,
    /// First and last destination port.
    pub destination_ports: Option<(u16, u16)>,
}

/// A function at its place in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelStage {
    /// Number of the function in the chain: both directions count under it.
    pub number: usize,
    /// The function in this direction.
    pub function: KernelFunction,
}

impl KernelStage {
    /// The translator, if it is one.
    #[cfg(feature = "xdp")]
    fn nat(&self) -> Option<&KernelNat> {
        match &self.function {
            KernelFunction::Nat { nat, .. } => Some(nat),
            _ => None,
        }
    }
}

/// Result of [`DryRun::pass`] for one frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Passed {
    /// The frame as it leaves; none if it was dropped.
    pub frame: Option<Vec<u8>>,
    /// Time that the program took, mean of all repetitions, ns.
    pub duration_ns: u64,
}

#[cfg(not(feature = "xdp"))]
mod without {
    use super::{KernelStage, Passed};
    use std::convert::Infallible;
    use std::io;
    use taut_sys::Error;

    /// The maps and settings of functions in the kernel. This build cannot make them.
    #[derive(Debug)]
    pub enum KernelFunctions {}

    impl KernelFunctions {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn new(_: Vec<Vec<KernelStage>>) -> Result<Self, Error> {
            Err(Error::missing(
                "functions in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Goes on with functions of `before`.
        pub fn keep(&mut self, _: &Self, _: &[Option<usize>]) {
            match *self {}
        }

        /// Packets by what became of them in the function of that number.
        pub fn outcomes(&self, _: usize) -> Vec<u64> {
            match *self {}
        }

        /// The program of a direction without an interface.
        ///
        /// # Errors
        /// None.
        pub fn dry_run(&self, _: usize) -> Result<DryRun, Error> {
            match *self {}
        }
    }

    /// A program without an interface. This build has none.
    #[derive(Debug)]
    pub struct DryRun(Infallible);

    impl DryRun {
        /// Lets one frame pass.
        ///
        /// # Errors
        /// None.
        pub fn pass(&self, _: &[u8], _: u32) -> io::Result<Passed> {
            match self.0 {}
        }
    }
}
