//! A virtual machine that is a node of an experiment, with its own kernel, its own NICs, links to other machines, and
//! an agent that runs commands.
//!
//! The process that [`keep_machine`] runs in owns the emulator. Commands reach the machine through a NIC of its own,
//! which leads to a port of the loopback interface of this host and nowhere else ([`dial`], `guest.rs`). The root is a
//! disk image whose changes are dropped, or, without one, a few programs of this host in memory.

mod guest;
mod host;
mod relay;

pub(super) use guest::run as run_guest;
pub use host::keep_machine;
pub use relay::dial;

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// Path inside a machine of its settings.
pub(super) const SETTINGS: &str = "/etc/taut/node.json";
/// Name inside a machine of the management NIC, on which commands arrive.
const MANAGEMENT: &str = "mgmt0";
/// MAC address of the management NIC.
const MANAGEMENT_MAC: &str = "52:54:00:74:61:00";
/// Address of the management NIC, to which QEMU's user network forwards connections, and the TCP port of the agent.
const AGENT: ([u8; 4], u16) = ([10, 0, 2, 15], 7);
/// Prefix of the line that a machine writes when its agent runs; the boot id follows.
const UP: &str = "taut-guest up ";

/// A virtual machine of an experiment.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeMachine {
    /// Host name inside the machine.
    pub name: String,
    /// Number of the machine's cores.
    pub cores: u32,
    /// Memory of the machine, MB.
    pub memory_mb: u32,
    /// Model of the NICs that are connected to other machines.
    pub card: Card,
    /// The ends of links (cables) at this machine, in the order of its NICs.
    pub cables: Vec<CableEnd>,
    /// Disk image with the root file system, in QEMU's qcow2 format if the name ends so, otherwise raw. It is not
    /// changed.
    pub image: Option<PathBuf>,
}

/// The end of a link between two machines: a NIC, and the socket at which frames to the NIC arrive.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CableEnd {
    /// Name of the interface inside the machine.
    pub interface: String,
    /// MAC address of the NIC.
    pub mac: String,
    /// Unix datagram socket of this end of the link, which the emulator makes.
    pub socket: PathBuf,
    /// Unix datagram socket of the other end of the link, to which frames are sent.
    pub peer: PathBuf,
}

/// Model of an emulated NIC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Card {
    /// The paravirtual virtio NIC, which is the fastest model.
    #[default]
    Virtio,
    /// Intel 82574L: 1 Gbit/s, two queues.
    E1000e,
    /// Intel 82576: 1 Gbit/s, eight queues and virtual functions; QEMU has it from version 8.0 on.
    Igb,
}

impl Card {
    /// Returns the name of the NIC model in QEMU.
    fn device(self) -> &'static str {
        match self {
            Self::Virtio => "virtio-net-pci",
            Self::E1000e => "e1000e",
            Self::Igb => "igb",
        }
    }

    /// Returns the name of the kernel module that drives this NIC model.
    fn module(self) -> &'static str {
        match self {
            Self::Virtio => "virtio_net",
            Self::E1000e => "e1000e",
            Self::Igb => "igb",
        }
    }
}

/// Settings that a machine reads when it boots.
#[derive(Debug, Serialize, Deserialize)]
struct Settings {
    name: String,
    /// Secret that every command must begin with.
    token: String,
    /// Name of the interface of each NIC, by the NIC's MAC address.
    interfaces: Vec<(String, String)>,
    /// True if the root file system is on a disk.
    has_disk: bool,
}
