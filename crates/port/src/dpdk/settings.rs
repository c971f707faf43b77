//! The settings of a DPDK device, parsed from the spec of its port.

use crate::{PortError, PortSpec};

/// The backend's name.
pub(super) const NAME: &str = "dpdk";

/// The default number of descriptors of each transmit and receive ring of a device.
const RING: u16 = 512;

/// The size of the ring that the AF_XDP driver fills, whatever size is configured.
const AF_XDP_RING: u16 = 2048;

/// The maximum payload, bytes, of a frame that fits into a buffer with its header, two VLAN tags and its frame check
/// sequence.
const LONGEST_MTU: u64 = 2048 - 14 - 8 - 4;

/// The settings of a device in a spec, without its name and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// Number of descriptors of each transmit and receive ring.
    pub(super) ring: u16,
    /// Number of receive queues.
    pub(super) queues: u16,
    /// Maximum payload of a frame, bytes; 0 keeps the default of the driver.
    pub(super) mtu: u16,
    /// Rate limit of the device for sending, Mbit/s; 0 is no limit.
    pub(super) rate_mbps: u32,
    /// True if the device shall stamp received packets.
    pub(super) stamps: bool,
}

impl Settings {
    pub(super) fn of(spec: &PortSpec) -> Result<Self, PortError> {
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
                Some(other) => return Err(spec.error(format!("stamps={other}: expected hardware"))),
            },
        })
    }
}

/// Returns the number of mbufs in the rings of all DPDK ports in `specs`.
#[cfg(dpdk)]
pub(super) fn mbufs_in_rings(specs: &[PortSpec]) -> u32 {
    specs
        .iter()
        .filter(|spec| spec.backend() == NAME)
        .filter_map(|spec| Settings::of(spec).ok())
        .map(|settings| u32::from(settings.ring) * (u32::from(settings.queues) + 1))
        .sum()
}
