//! The port `af_xdp` on queues of a network interface through AF_XDP sockets. Frames bypass the kernel's network stack.
//! Two such ports of one worker share their packet memory, so that forwarding between them copies nothing in user
//! space.
//!
//! The backend is built with feature `xdp`. Without that feature the specs are known, but opening a port fails with a
//! reason.

#[cfg(feature = "xdp")]
mod filter;
#[cfg(feature = "xdp")]
mod options;
#[cfg(feature = "xdp")]
mod port;
#[cfg(feature = "xdp")]
mod program;
mod queues;
#[cfg(feature = "xdp")]
mod ring;
#[cfg(feature = "xdp")]
mod socket;
#[cfg(feature = "xdp")]
mod stamp;
#[cfg(all(test, feature = "xdp"))]
mod tests;

use crate::{Attachment, Backend, Handling, Receives, Sends, Split};
#[cfg(feature = "xdp")]
use port::{open, probe, split};
use queues::{RING_ENTRIES, queues, ring_entries};
#[cfg(feature = "xdp")]
pub(crate) use socket::Shared;
#[cfg(not(feature = "xdp"))]
use without::{open, probe, split};

/// The backend of specs `af_xdp:INTERFACE[,queue=0][,filter=all][,copy=auto][,poll=interrupt]
/// [,wakeup=need][,ring=2048][,mode=...][,stamps=kernel]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "af_xdp",
    summary: "queues of a network interface, through AF_XDP sockets; needs root",
    target: "INTERFACE",
    options: &[
        (
            "queue",
            "receive and transmit queue, or queues: 2, 0-3 (default 0)",
        ),
        (
            "filter",
            "frames to take, others stay with the kernel: ip, ip4, ip6, udp[:PORT[-PORT]], \
             tcp[:PORT[-PORT]], ether:0xTYPE, joined by + (default all)",
        ),
        (
            "copy",
            "zero (the driver uses the packet memory), copy, or auto: zero where it can (default)",
        ),
        (
            "poll",
            "interrupt (default), or busy: receive calls run the driver while nothing has come",
        ),
        (
            "wakeup",
            "need: call the kernel to send when it asks (default), or always",
        ),
        (
            "ring",
            "entries of each ring, a power of two from 64 to 32768 (default 2048)",
        ),
        (
            "mode",
            "native (in the driver) or generic (any driver, slower); default: the first that works",
        ),
        (
            "stamps",
            "kernel: when the kernel's XDP program saw each frame, beside when this program did",
        ),
    ],
    // Each queue has a ring of empty frames in the kernel, and one queue has a ring of frames to be sent.
    frames: |spec| {
        let queues = queues(spec).map_or(1, |queues| queues.count() as u32);
        (queues + 1) * ring_entries(spec).unwrap_or(RING_ENTRIES)
    },
    aligned: true,
    handling: &[Handling {
        variant: "",
        receives: Receives::InPool,
        sends: Sends::FromPool,
    }],
    passes_on: false,
    wakes: true,
    probe,
    open,
    split: Split::Parts(split),
    attachment: Attachment::Interface,
    typical_cycles: Some(5_900.0),
    loop_back: None,
};

/// A substitute for the AF_XDP backend in builds without the feature `xdp`.
#[cfg(not(feature = "xdp"))]
mod without {
    use crate::{Part, Port, PortError, PortSpec, Resources};

    pub(super) fn probe() -> Result<String, PortError> {
        Err(missing("AF_XDP ports"))
    }

    pub(super) fn open(spec: &PortSpec, _: &mut Resources) -> Result<Box<dyn Port>, PortError> {
        Err(missing(&format!("opening {spec}")))
    }

    pub(super) fn split(spec: &PortSpec, _: usize) -> Result<Vec<Part>, PortError> {
        Err(missing(&format!("opening {spec}")))
    }

    fn missing(what: &str) -> PortError {
        PortError::missing(
            what,
            "a build with feature \"xdp\" (cargo build --features xdp, with clang, libelf and zlib there)",
        )
    }
}
