//! Rules of a switch inside the kernel: XDP programs go by the first that fits (ebpf/xdp_switch.bpf.c), and hand up the frames
//! that they do not decide.
//!
//! Built with feature `xdp`; without it, making one says what is lacking.

#[cfg(feature = "xdp")]
mod maps;

#[cfg(feature = "xdp")]
pub use maps::KernelSwitch;
#[cfg(not(feature = "xdp"))]
pub use without::KernelSwitch;

/// Ports that a switch in the kernel has at most.
pub const MOST_PORTS: usize = 64;
/// Rules that it has at most.
pub const MOST_RULES: usize = 64;
/// Words of a key.
pub const WORDS: usize = 8;

/// What becomes of the frames that a rule fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The process decides.
    Up,
    /// They leave through a port, with these addresses of destination and source, or their own.
    Send {
        /// Number of the port.
        port: u32,
        /// Address of the destination that they get.
        destination: Option<[u8; 6]>,
        /// Address of the source that they get.
        source: Option<[u8; 6]>,
    },
    /// They leave through all ports but their own.
    Flood,
    /// They are dropped by a rule.
    Drop,
    /// They are dropped as no rule fits.
    Miss,
}

/// A rule: the bits that a key must have where the mask has bits, and what becomes of frames that have them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwitchRule {
    /// Bits that must be there.
    pub value: [u64; WORDS],
    /// Bits that are looked at.
    pub mask: [u64; WORDS],
    /// What becomes of them.
    pub verdict: Verdict,
}

/// Frames by what became of them in the kernel, those handed up not among them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SwitchCounts {
    /// Sent by a rule.
    pub sent: u64,
    /// Dropped by a rule.
    pub stopped: u64,
    /// Dropped as no rule fits.
    pub missed: u64,
    /// Dropped as there was no room to hand them up.
    pub too_much: u64,
}

#[cfg(not(feature = "xdp"))]
mod without {
    use super::{SwitchCounts, SwitchRule};
    use crate::functions::DryRun;
    use crate::upcall::UpcallPrograms;
    use taut_sys::Error;

    /// The switch's maps in the kernel. This build cannot make them.
    #[derive(Debug)]
    pub enum KernelSwitch {}

    impl KernelSwitch {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn new(_: &[SwitchRule], _: bool, _: usize) -> Result<Self, Error> {
            Err(Error::missing(
                "a switch in the kernel",
                "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
            ))
        }

        /// Frames by what became of them.
        pub fn counts(&self) -> SwitchCounts {
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

    impl UpcallPrograms for KernelSwitch {}
}
