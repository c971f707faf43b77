//! A port on one queue of a network interface through an AF_XDP socket: frames skip the kernel's
//! network stack, and two such ports of one worker share their packet memory, so that forwarding
//! between them copies nothing in user space.
//!
//! Built with feature `xdp`; without it the specs are known and say what is lacking.

#[cfg(feature = "xdp")]
mod port;
#[cfg(feature = "xdp")]
mod program;
#[cfg(feature = "xdp")]
mod ring;
#[cfg(feature = "xdp")]
mod socket;
#[cfg(all(test, feature = "xdp"))]
mod tests;

use crate::{Backend, Handling, PortSpec, Receives, Sends};
#[cfg(feature = "xdp")]
pub(crate) use port::Shared;
#[cfg(feature = "xdp")]
use port::{open, probe};
#[cfg(not(feature = "xdp"))]
use without::{open, probe};

/// `af_xdp:INTERFACE[,queue=0][,ring=2048][,mode=native|generic]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "af_xdp",
    summary: "a queue of a network interface, through an AF_XDP socket; needs root",
    target: "INTERFACE",
    options: &[
        ("queue", "receive and transmit queue (default 0)"),
        (
            "ring",
            "entries of each ring, a power of two from 64 to 32768 (default 2048)",
        ),
        (
            "mode",
            "native (in the driver) or generic (any driver, slower); default: the first that works",
        ),
    ],
    // One ring's worth of empty frames with the kernel, one of frames to be sent.
    frames: |spec| 2 * ring_entries(spec).unwrap_or(RING_ENTRIES),
    aligned: true,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPool,
        sends: Sends::FromPool,
    }],
    passes_on: false,
    probe,
    open,
};

const RING_ENTRIES: u32 = 2048;

/// Entries of each ring that a spec asks for; none if what it says is no such number.
fn ring_entries(spec: &PortSpec) -> Option<u32> {
    let entries = spec.number("ring", 64..=32768).ok()?;
    let entries = entries.map_or(RING_ENTRIES, |n| n as u32);
    entries.is_power_of_two().then_some(entries)
}

/// What stands in where the backend is not built.
#[cfg(not(feature = "xdp"))]
mod without {
    use crate::{Port, PortError, PortSpec, Resources};

    pub(super) fn probe() -> Result<String, PortError> {
        Err(missing("AF_XDP ports"))
    }

    pub(super) fn open(spec: &PortSpec, _: &mut Resources) -> Result<Box<dyn Port>, PortError> {
        Err(missing(&format!("opening {spec}")))
    }

    fn missing(what: &str) -> PortError {
        PortError::missing(
            what,
            "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
        )
    }
}
