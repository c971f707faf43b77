//! Rules of a switch inside the kernel: XDP programs apply the first matching rule (ebpf/xdp_switch.bpf.c), and pass
//! undecided frames up to the process.
//!
//! The module needs feature `xdp`; in builds without the feature, [`KernelSwitch::new`] returns an error.

#[cfg(feature = "xdp")]
mod maps;

#[cfg(feature = "xdp")]
pub use maps::KernelSwitch;
#[cfg(not(feature = "xdp"))]
pub use without::KernelSwitch;

/// Maximum number of ports of a switch in the kernel.
pub const MOST_PORTS: usize = 64;
/// Maximum number of rules of a switch in the kernel.
pub const MOST_RULES: usize = 64;
/// Number of 64-bit words in a key. A key contains the header fields that rules compare.
pub const WORDS: usize = 8;

/// The action for frames that match a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The frames are passed up to the process that loaded the XDP program.
    Up,
    /// The frames leave through one port. The destination and source addresses are replaced if new ones are set.
    Send {
        /// Index of the egress port.
        port: u32,
        /// New destination MAC address; none leaves the address unchanged.
        destination: Option<[u8; 6]>,
        /// New source MAC address; none leaves the address unchanged.
        source: Option<[u8; 6]>,
    },
    /// The frames leave through all ports except the ingress port.
    Flood,
    /// A rule drops the frames.
    Drop,
    /// The frames are dropped because no rule matches.
    Miss,
}

/// A rule: a mask and a value for the key, and the action for frames that match.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchRule {
    /// Value that the masked bits of a frame's key must have.
    pub value: [u64; WORDS],
    /// Mask of the key bits that the rule compares.
    pub mask: [u64; WORDS],
    /// Action for frames that match.
    pub verdict: Verdict,
}

/// Numbers of frames by the action of the XDP programs, without frames that were passed up.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// Frames sent by a rule.
    pub sent: u64,
    /// Frames dropped by a rule.
    pub stopped: u64,
    /// Frames dropped because no rule matches.
    pub missed: u64,
    /// Frames dropped because the ring to the process was full.
    pub too_much: u64,
}

#[cfg(not(feature = "xdp"))]
mod without {
    use super::{SwitchCounts, SwitchRule};
    use crate::functions::DryRun;
    use crate::upcall::UpcallPrograms;
    use taut_sys::Error;

    /// The switch's maps in the kernel. Builds without feature `xdp` do not support them.
    #[derive(Debug)]
    pub enum KernelSwitch {}

    impl KernelSwitch {
        /// Returns an error that names the missing feature.
        ///
        /// # Errors
        /// The function always fails.
        pub fn new(_: &[SwitchRule], _: bool, _: usize) -> Result<Self, Error> {
            Err(Error::missing(
                "a switch in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Returns the numbers of frames by the action of the XDP programs.
        pub fn counts(&self) -> SwitchCounts {
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

    impl UpcallPrograms for KernelSwitch {}
}
