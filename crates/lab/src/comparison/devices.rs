//! The devices of the comparison, and which of them this machine can have.

use crate::results::{DeviceInfo, Kind, LeftOut, Transport};
use std::time::Duration;
use taut_engine::Flush;
use taut_port::backends;

/// The reference's buffer: 32 packets, drained every 100 µs.
const FULL: Flush = Flush::Full {
    n: 32,
    drain: Duration::from_micros(100),
};
const EVERY: Flush = Flush::Every {
    period: Duration::from_micros(50),
};
const IDLE: Flush = Flush::Idle { n: 32 };

/// How a device is reached and what it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// `taut forward` over memif.
    Memif {
        /// Its flush policy.
        flush: Flush,
    },
    /// The generator's two memif ports connected to each other.
    MemifLoop,
    /// The Linux bridge between two veth pairs.
    Bridge,
    /// `taut forward` between two veth pairs on packet sockets.
    AfPacket {
        /// Its flush policy.
        flush: Flush,
    },
    /// `taut forward` between two veth pairs on AF_XDP sockets.
    AfXdp {
        /// Its flush policy.
        flush: Flush,
    },
    /// `taut forward --in-kernel` between two veth pairs: XDP programs.
    Kernel,
    /// The generator at both ends of one veth pair.
    VethLoop,
}

/// A device of the comparison.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its folder's name.
    pub id: &'static str,
    /// Its name in tables.
    pub label: String,
    /// What it is.
    pub way: Way,
}

impl Device {
    fn new(id: &'static str, way: Way) -> Self {
        let label = match way {
            Way::Memif { flush } => flush.to_string(),
            Way::AfPacket { flush } => format!("AF_PACKET {flush}"),
            Way::AfXdp { flush } => format!("AF_XDP {flush}"),
            Way::Bridge => "Linux bridge".to_string(),
            Way::Kernel => "XDP redirect".to_string(),
            Way::MemifLoop | Way::VethLoop => "generator loop".to_string(),
        };
        Self { id, label, way }
    }

    /// Transport and name.
    pub fn full_name(&self) -> String {
        format!("{} {}", self.transport().name(), self.label)
    }

    pub(super) fn transport(&self) -> Transport {
        match self.way {
            Way::Memif { .. } | Way::MemifLoop => Transport::Memif,
            _ => Transport::Veth,
        }
    }

    pub(super) fn flush(&self) -> Option<Flush> {
        match self.way {
            Way::Memif { flush } | Way::AfPacket { flush } | Way::AfXdp { flush } => Some(flush),
            _ => None,
        }
    }

    /// What the results folder says of it.
    pub fn info(&self) -> DeviceInfo {
        let (io, note) = match self.way {
            Way::Memif { .. } => (
                "memif",
                "client on both links with one packet pool: frames are forwarded without a copy",
            ),
            Way::MemifLoop => (
                "memif",
                "one hop instead of two, both ends on the generator's core",
            ),
            Way::Bridge => (
                "bridge",
                "kernel work steered to the device's core by receive packet steering (RPS), which wakes it by an interrupt",
            ),
            Way::AfPacket { .. } => (
                "AF_PACKET",
                "kernel work on the receiving side steered to the device's core (RPS); mapped rings, TPACKET_V2",
            ),
            Way::AfXdp { .. } => (
                "AF_XDP",
                "the XDP program runs on the sender's core (XDP frames cannot be steered); copy mode, as veth has no other",
            ),
            Way::Kernel => (
                "XDP",
                "XDP programs in a kernel thread on the device's core (threaded NAPI); the generator's ends have GRO on, without which veth takes no redirected frames",
            ),
            Way::VethLoop => (
                "AF_PACKET",
                "one veth hop instead of two, both ends on the generator's core",
            ),
        };
        let command = match self.way {
            Way::Bridge => ["ip", "link", "add", "bridge0", "type", "bridge"]
                .map(String::from)
                .to_vec(),
            _ => self
                .arguments(["SOCKET-OR-INTERFACE-1", "SOCKET-OR-INTERFACE-2"], None)
                .map(|arguments| {
                    std::iter::once("taut".to_string())
                        .chain(arguments)
                        .collect()
                })
                .unwrap_or_default(),
        };
        DeviceInfo {
            id: self.id.to_string(),
            label: self.label.clone(),
            transport: self.transport(),
            kind: match self.way {
                Way::MemifLoop | Way::VethLoop => Kind::Calibration,
                _ => Kind::Forwarder,
            },
            io: io.to_string(),
            flush: self.flush().map(|f| f.to_string()),
            flush_wait_ns: match self.flush() {
                Some(Flush::Full { drain: t, .. } | Flush::Every { period: t }) => {
                    u64::try_from(t.as_nanos()).ok()
                }
                _ => None,
            },
            command,
            note: note.to_string(),
        }
    }

    /// Arguments of `taut` that make this device of two sockets or interfaces; none for others.
    pub(super) fn arguments(&self, ends: [&str; 2], core: Option<usize>) -> Option<Vec<String>> {
        let ports = match self.way {
            Way::Memif { .. } => ends.map(|e| format!("memif:{e},role=client")),
            Way::AfPacket { .. } => ends.map(|e| format!("af_packet:{e}")),
            Way::AfXdp { .. } | Way::Kernel => ends.map(|e| format!("af_xdp:{e}")),
            Way::MemifLoop | Way::Bridge | Way::VethLoop => return None,
        };
        let mut arguments = vec!["forward".to_string()];
        for port in ports {
            arguments.extend(["--port".to_string(), port]);
        }
        if let Some(flush) = self.flush() {
            arguments.extend(["--flush".to_string(), flush.to_string()]);
        }
        if self.way == Way::Kernel {
            arguments.push("--in-kernel".to_string());
        } else if let Some(core) = core {
            arguments.extend(["--core".to_string(), core.to_string()]);
        }
        Some(arguments)
    }
}

/// The devices that this machine can have, and those it cannot, with the reason.
pub fn possible() -> (Vec<Device>, Vec<LeftOut>) {
    let mut devices = vec![
        Device::new("memif-full", Way::Memif { flush: FULL }),
        Device::new("memif-every", Way::Memif { flush: EVERY }),
        Device::new("memif-each", Way::Memif { flush: Flush::Each }),
        Device::new("memif-idle", Way::Memif { flush: IDLE }),
        Device::new("memif-loop", Way::MemifLoop),
    ];
    let mut left_out = Vec::new();
    if let Err(missing) = taut_host::permissions::can_make_namespaces() {
        left_out.push(LeftOut {
            what: "everything over veth: Linux bridge, AF_PACKET, AF_XDP, XDP redirect".to_string(),
            why: missing.what,
            how: missing.how_to_get_it,
        });
        return (devices, left_out);
    }
    devices.push(Device::new("veth-bridge", Way::Bridge));
    for (backend, both) in [
        (
            "af_packet",
            [
                Device::new("veth-af-packet-each", Way::AfPacket { flush: Flush::Each }),
                Device::new("veth-af-packet-idle", Way::AfPacket { flush: IDLE }),
            ],
        ),
        (
            "af_xdp",
            [
                Device::new("veth-af-xdp-each", Way::AfXdp { flush: Flush::Each }),
                Device::new("veth-af-xdp-idle", Way::AfXdp { flush: IDLE }),
            ],
        ),
    ] {
        match backends()
            .iter()
            .find(|b| b.name == backend)
            .map(|b| (b.probe)())
        {
            Some(Ok(_)) => devices.extend(both),
            Some(Err(e)) => left_out.push(LeftOut {
                what: format!("{backend} over veth"),
                why: e.to_string(),
                how: "see taut ports".to_string(),
            }),
            None => left_out.push(LeftOut {
                what: format!("{backend} over veth"),
                why: "this build has no such port".to_string(),
                how: "see taut ports".to_string(),
            }),
        }
    }
    // What forwarding in the kernel takes, AF_XDP takes too.
    if devices.iter().any(|d| matches!(d.way, Way::AfXdp { .. })) {
        devices.push(Device::new("veth-xdp-redirect", Way::Kernel));
    }
    devices.push(Device::new("veth-loop", Way::VethLoop));
    (devices, left_out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn devices_have_names_of_their_own() {
        let (devices, _) = possible();
        let ids: BTreeSet<_> = devices.iter().map(|d| d.id).collect();
        let names: BTreeSet<_> = devices.iter().map(Device::full_name).collect();
        assert_eq!((ids.len(), names.len()), (devices.len(), devices.len()));
        assert!(
            devices
                .iter()
                .any(|d| d.full_name() == "memif full(32, 100us)")
        );
    }
}
