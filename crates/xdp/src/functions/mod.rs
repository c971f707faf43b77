//! Functions of a chain inside the kernel: one XDP program per direction runs them in order (ebpf/xdp_functions.bpf.c),
//! and this process only writes their settings, and reads their counters.
//!
//! The module needs feature `xdp`; in builds without the feature, [`KernelFunctions::new`] returns an error.

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

/// Maximum number of functions in a chain.
pub const MOST_STAGES: usize = 16;

/// Number of buckets over which flows are spread; each bucket has one next hop.
pub const HOP_BUCKETS: usize = 1 << 16;

/// A function for frames of one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelFunction {
    /// Changes MAC addresses; the function has no outcome counters.
    Headers(HeaderChange),
    /// Passes every packet, and counts all packets under the same outcome.
    Passes {
        /// Index, in the function's list of outcomes, of the outcome under which all packets are counted.
        outcome: usize,
    },
    /// Exclusive-ors every byte of UDP payloads with a key.
    Xor {
        /// Byte with which each byte of the payload is exclusive-ored.
        key: u8,
    },
    /// Appends two timestamps to UDP payloads.
    Ats {
        /// The longest IP packet that may leave, bytes.
        mtu: usize,
    },
    /// Accepts or drops packets.
    Filter {
        /// The rules; the first matching rule decides.
        rules: Vec<KernelRule>,
        /// True if packets without a matching rule are dropped.
        default_drops: bool,
    },
    /// Assigns flows to next hops.
    Balance {
        /// The MAC address of the next hop of each of the [`HOP_BUCKETS`] buckets.
        buckets: Arc<[[u8; 6]]>,
        /// Seed of the hash that assigns a flow to a bucket.
        seed: u64,
    },
    /// Translates addresses and ports; a chain has at most one.
    Nat {
        /// True if the frames of this direction leave through an outside port.
        is_outwards: bool,
        /// The settings of NAT, which both directions share.
        nat: Arc<KernelNat>,
    },
}

/// Settings of NAT. The encoding of mapping slots and inside keys is that of the function `nat` in user space.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelNat {
    /// The outside IPv4 addresses as numbers (the first byte is the highest), at most 16.
    pub addresses: Vec<u32>,
    /// First and last outside port that mappings may use.
    pub ports: (u16, u16),
    /// Seed for the choice of outside ports.
    pub seed: u64,
    /// Maximum number of mappings.
    pub mappings: usize,
    /// Maximum number of mappings per inside address.
    pub mappings_per_host: u32,
    /// Number of buckets of the array that counts the mappings per inside address, a power of two.
    pub host_buckets: usize,
    /// Interval of the sweeps for expired mappings.
    pub sweep: Duration,
    /// Time without packets from the inside after which a UDP mapping expires.
    pub udp: Duration,
    /// Idle timeout of the mapping of an established TCP connection.
    pub tcp: Duration,
    /// Idle timeout of the mapping of a TCP connection that is being opened or closed.
    pub tcp_closing: Duration,
    /// Idle timeout of the mapping of an ICMP query.
    pub icmp: Duration,
    /// Slot and inside key (the encoded inside address and port) of each permanent mapping.
    pub forwards: Vec<(u32, u64)>,
}

/// A rule of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRule {
    /// True if packets that match are dropped.
    pub drops: bool,
    /// The fields of matching packets.
    pub fields: KernelFields,
}

/// The fields of IP packets that a rule compares.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KernelFields {
    /// Protocol of matching packets; none matches every protocol.
    pub protocol: Option<u8>,
    /// The required value of the masked bits of source addresses, and the mask. IPv4 addresses are compared as
    /// IPv4-mapped IPv6 addresses.
    pub source: (u128, u128),
    /// The required value of the masked bits of destination addresses, and the mask, as for `source`.
    pub destination: (u128, u128),
    /// First and last source port, which packets without ports never match; none matches every packet.
    pub source_ports: Option<(u16, u16)>,
    /// First and last destination port, which packets without ports never match; none matches every packet.
    pub destination_ports: Option<(u16, u16)>,
}

/// A rule of a classifier, which selects one of several chains for frames.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelClassRule {
    /// The EtherType after up to two VLAN tags; none matches every frame.
    pub ethertype: Option<u16>,
    /// The identifier of the outer VLAN tag (the inner value is none for frames without a tag); none matches every
    /// frame.
    pub vlan: Option<Option<u16>>,
    /// The fields of IP packets; none matches every frame, also other ones than IP packets. All fragments count as
    /// packets without ports.
    pub ip: Option<KernelFields>,
    /// The differentiated services code point of IP packets; none matches every frame. A rule with this value has a
    /// value of `ip` too.
    pub dscp: Option<u8>,
    /// The class of matching frames.
    pub class: u8,
}

/// A classifier in front of the functions: a frame passes the functions of its class only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelClassifier {
    /// The rules for the frames that leave through each port, in order; the first that matches decides.
    pub rules: Vec<Vec<KernelClassRule>>,
    /// The class of frames that no rule matches.
    pub default: u8,
    /// The number of chains. The class of a chain is its index. The next class has no functions, and the one after it
    /// is dropped.
    pub chains: usize,
    /// The class of each function, by index of the function in the chain file.
    pub of_function: Vec<u8>,
}

impl KernelClassifier {
    /// Returns the number of classes: the chains, the class without functions, and the dropped one.
    #[cfg(feature = "xdp")]
    fn classes(&self) -> usize {
        self.chains + 2
    }
}

/// A function and its position in a chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelStage {
    /// Index of the function in the chain; packets of both directions are counted under this index.
    pub number: usize,
    /// The function, with its settings for frames of one direction.
    pub function: KernelFunction,
}

impl KernelStage {
    /// Returns the settings of NAT, if the function is NAT.
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
    /// The frame after processing; none if the XDP program dropped it.
    pub frame: Option<Vec<u8>>,
    /// Mean running time of the XDP program per run, over all repetitions, ns.
    pub duration_ns: u64,
}

#[cfg(not(feature = "xdp"))]
mod without {
    use super::{KernelClassifier, KernelStage, Passed};
    use std::convert::Infallible;
    use std::io;
    use taut_sys::Error;

    /// The maps and settings of functions in the kernel. Builds without feature `xdp` do not support them.
    #[derive(Debug)]
    pub enum KernelFunctions {}

    impl KernelFunctions {
        /// Returns an error that names the missing feature.
        ///
        /// # Errors
        /// The function always fails.
        pub fn new(_: Vec<Vec<KernelStage>>, _: Option<KernelClassifier>) -> Result<Self, Error> {
            Err(Error::missing(
                "functions in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Takes over the state of functions of an earlier chain.
        pub fn keep(&mut self, _: &Self, _: &[Option<usize>]) {
            match *self {}
        }

        /// Returns the number of frames of each class.
        pub fn classes(&self) -> Vec<u64> {
            match *self {}
        }

        /// Returns the packets by outcome of the function with the given index.
        pub fn outcomes(&self, _: usize) -> Vec<u64> {
            match *self {}
        }

        /// Returns the XDP program of a direction without an interface.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn dry_run(&self, _: usize) -> Result<DryRun, Error> {
            match *self {}
        }
    }

    /// A program without an interface. Builds without feature `xdp` do not support it.
    #[derive(Debug)]
    pub struct DryRun(Infallible);

    impl DryRun {
        /// Runs the XDP program on one frame.
        ///
        /// # Errors
        /// The function cannot be called, because no value of this type exists in builds without feature `xdp`.
        pub fn pass(&self, _: &[u8], _: u32) -> io::Result<Passed> {
            match self.0 {}
        }
    }
}
