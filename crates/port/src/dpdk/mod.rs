//! A port on any device that DPDK has a driver for: network interfaces by their PCI address, and DPDK's
//! virtual devices (`net_memif`, `net_vhost`, `net_af_xdp`, `net_pcap`, ...).
//!
//! Rust sees no structure of DPDK's: `shim.c` does, and fills [`Packet`](crate::Packet)s from mbufs in
//! one pass per batch. It is compiled where DPDK's headers are there, carried in the program, and loaded
//! when a DPDK port is first asked for, so that taut starts where DPDK is not installed.
//!
//! Packets are received in place, and handed over to whichever DPDK port of the same worker sends them.

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
#[cfg(all(test, dpdk))]
mod tests;
#[cfg(any(test, not(dpdk)))]
mod without;

use crate::{Backend, Handling, PortError, PortSpec, Receives, Sends, Split};
#[cfg(dpdk)]
pub(crate) use memory::Shared;
#[cfg(dpdk)]
use port::{open, probe, split};
#[cfg(not(dpdk))]
use without::{open, probe, split};

/// `dpdk:DEVICE[,ring=N][,rss=N][,mtu=N][,rate=N][,stamps=hardware][,ARGUMENT=VALUE...]`.
pub(crate) const BACKEND: Backend = Backend {
    name: "dpdk",
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
};

/// Version of DPDK that this was built with; none where DPDK ports are not built in.
pub const BUILT_WITH: Option<&str> = option_env!("TAUT_DPDK_VERSION");

const RING: u16 = 512;

/// Size of the ring that AF_XDP's driver fills, whatever it is asked for.
const AF_XDP_RING: u16 = 2048;

/// Payload of the longest frame that, with its header, two VLAN tags and its check sequence, fits into a buffer.
const LONGEST_MTU: u64 = 2048 - 14 - 8 - 4;

/// Wishes of a spec to its device, but for its name and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Settings {
    /// Descriptors of each ring.
    ring: u16,
    /// Number of receive queues.
    queues: u16,
    /// Longest payload of a frame; 0 leaves it to the driver.
    mtu: u16,
    /// The device's limit for sending; 0 is none.
    rate_mbps: u32,
    /// Whether the device is to stamp what it receives.
    stamps: bool,
}

impl Settings {
    fn of(spec: &PortSpec) -> Result<Self, PortError> {
        let default = if spec.target().starts_with("net_af_xdp") {
            AF_XDP_RING
        } else {
            RING
        };
        Ok(Self {
            ring: spec
                .number("ring", 64..=32768)?
                .map_or(default, |n| n as u16),
            queues: spec.number("rss", 1..=16)?.unwrap_or(1) as u16,
            mtu: spec.number("mtu", 1500..=LONGEST_MTU)?.unwrap_or(0) as u16,
            rate_mbps: spec.number("rate", 1..=400_000)?.unwrap_or(0) as u32,
            stamps: match spec.option("stamps") {
                None => false,
                Some("hardware") => true,
                Some(other) => return Err(spec.error(format!("stamps={other}: want hardware"))),
            },
        })
    }
}
