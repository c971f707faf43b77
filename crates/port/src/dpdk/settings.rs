//! The settings of a DPDK device, read from the spec of its port.

use crate::{PortError, PortSpec};

/// The backend's name.
pub(super) const NAME: &str = "dpdk";

/// Descriptors of each ring unless asked otherwise.
const RING: u16 = 512;

/// Size of the ring that AF_XDP's driver fills, whatever it is asked for.
const AF_XDP_RING: u16 = 2048;

/// Payload of the longest frame that, with its header, two VLAN tags and its check sequence, fits into a buffer.
const LONGEST_MTU: u64 = 2048 - 14 - 8 - 4;

/// Wishes of a spec to its device, but for its name and arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Settings {
    /// Descriptors of each ring.
    pub(super) ring: u16,
    /// Number of receive queues.
    pub(super) queues: u16,
    /// Longest payload of a frame; 0 leaves it to the driver.
    pub(super) mtu: u16,
    /// The device's limit for sending; 0 is none.
    pub(super) rate_mbps: u32,
    /// Whether the device is to stamp what it receives.
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
                Some(other) => return Err(spec.error(format!("stamps={other}: want hardware"))),
            },
        })
    }
}

/// Mbufs that the DPDK ports among these hold in their rings.
#[cfg(dpdk)]
pub(super) fn mbufs_in_rings(specs: &[PortSpec]) -> u32 {
    specs
        .iter()
        .filter(|spec| spec.backend() == NAME)
        .filter_map(|spec| Settings::of(spec).ok())
        .map(|settings| u32::from(settings.ring) * (u32::from(settings.queues) + 1))
        .sum()
}
