//! The port `dpdk` on any device that DPDK has a driver for: network interfaces by their PCI address, and DPDK's
//! virtual devices (`net_memif`, `net_vhost`, `net_af_xdp`, `net_pcap`, ...).
//!
//! Rust code uses no structure of DPDK's. `shim.c` does, and fills [`Packet`](crate::Packet)s from mbufs in one pass
//! per batch. It is compiled if DPDK's headers are installed, embedded in the program, and loaded when the first DPDK
//! port is opened. Therefore taut starts on machines without DPDK.
//!
//! Packets are received in place, and any DPDK port of the same worker can send them without a copy.

#[cfg(dpdk)]
mod device;
#[cfg(dpdk)]
mod environment;
#[cfg(dpdk)]
mod library;
#[cfg(dpdk)]
mod memory;
#[cfg(dpdk)]
mod path;
#[cfg(dpdk)]
mod port;
#[cfg(dpdk)]
mod reason;
mod settings;
#[cfg(dpdk)]
mod setup;
#[cfg(all(test, dpdk))]
mod tests;
#[cfg(any(test, not(dpdk)))]
mod without;

use crate::{Attachment, Backend, Handling, Receives, Sends, Split};
#[cfg(dpdk)]
pub(crate) use memory::Shared;
#[cfg(dpdk)]
use port::{open, probe, split};
use settings::NAME;
#[cfg(not(dpdk))]
use without::{open, probe, split};

/// The backend of specs `dpdk:DEVICE[,ring=N][,rss=N][,mtu=N][,rate=N][,stamps=hardware][,ARGUMENT=VALUE...]`.
pub(crate) const BACKEND: Backend = Backend {
    name: NAME,
    summary: "a device of DPDK: a PCI address or net_memif0, net_vhost0, net_af_packet0, ...",
    target: "DEVICE",
    options: &[
        (
            "ring",
            "descriptors of each ring, 64 to 32768 (default 512; net_af_xdp: 2048); the driver may round",
        ),
        (
            "rss",
            "receive queues that the device spreads flows over, 1 to 16 (default 1)",
        ),
        (
            "mtu",
            "longest payload of a frame that is received, 1500 to 2022 bytes (default 1500)",
        ),
        (
            "rate",
            "limit that the device keeps when it sends, in Mbit/s (default none)",
        ),
        (
            "stamps",
            "hardware: the device stamps what it receives (default: nothing is stamped)",
        ),
        (
            "...",
            "anything else goes to the device as it is (role=client, iface=PATH, size=64)",
        ),
    ],
    frames: |_| 0,
    aligned: false,
    handling: &[Handling {
        variant: "",
        receives: Receives::InMbufs,
        sends: Sends::FromMbufs,
    }],
    passes_on: true,
    wakes: false,
    probe,
    open,
    split: Split::Parts(split),
    attachment: Attachment::Device,
    typical_cycles: Some(100.0),
    loop_back: None,
};

/// The version of DPDK with which this crate was built; None in a build without DPDK ports.
pub const BUILT_WITH: Option<&str> = option_env!("TAUT_DPDK_VERSION");
