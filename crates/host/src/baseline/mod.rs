//! Forwarders that others wrote, as devices under test: found, started, pinned and removed again.
//!
//! One file per program, one entry per way to run it. An entry is data: how the generator reaches it,
//! what it needs, and the commands that bring it up. They run in the device's namespace of a
//! [`Testbed`], or without one beside two sockets; all they write lies in one folder, so that
//! nothing of the host's own configuration is touched.

mod click;
mod dpdk_example;
mod l2fwd;
mod l3fwd;
mod linux_routing;
pub(crate) mod open_vswitch;
pub(crate) mod step;
mod suricata;
mod testpmd;
mod vpp;

use std::path::{Path, PathBuf};

use crate::net::testbed::{DEVICE_INTERFACES, Steering, Testbed};
use crate::permissions::{Missing, can_make_namespaces};

pub use open_vswitch::{management_socket, probe_cabled, start_cabled};
pub use step::{BaselineError, Running};
use step::{Step, start, text};

/// A forwarder that is not taut's.
pub struct Baseline {
    /// Name on the command line and of the folder.
    pub id: &'static str,
    /// Name in tables.
    pub label: &'static str,
    /// Mechanism that moves the packets, one or two words.
    pub io: &'static str,
    /// Note that a reader of the results must know, one or two clauses.
    pub note: &'static str,
    /// Way in which the generator reaches the baseline.
    pub reach: Reach,
    /// Frames that pass the baseline.
    pub frames: Frames,
    probe: fn() -> Result<String, Missing>,
    steps: fn(&CommandValues) -> Vec<Step>,
}

/// Way in which the generator reaches a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The baseline is between the device's two interfaces of a [`Testbed`].
    Veth {
        /// Whether frames for the baseline are processed on its CPU (receive packet steering). What takes frames by XDP
        /// cannot have that.
        steered: bool,
    },
    /// The baseline is the server of two memif links; the generator is the client.
    Memif {
        /// Rings that it sends with, of which the generator has to receive from each.
        tx_rings: u16,
    },
    /// The baseline is the server of two vhost-user links; the generator is what a virtual machine's network card would
    /// be (virtio-user).
    Vhost,
}

/// Frames that come through a baseline and are known again behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// Addressed to the generator's other interface.
    Through,
    /// Addressed to the MAC address of the device's near interface, and between
    /// [`linux_routing::HOSTS`].
    Routed,
    /// With one and the same UDP port as source and destination, since the two get swapped.
    SameUdpPorts,
}

/// The addresses between which [`Frames::Routed`] travel, the generator's two ends, and those of a router between them.
pub use linux_routing::{HOSTS as ROUTED_HOSTS, NETWORKS as ROUTED_NETWORKS};

/// Values that the commands of a baseline are made of.
struct CommandValues {
    /// Ends of the baseline: two interfaces or two sockets.
    ends: [String; 2],
    /// The CPU it has for itself.
    cpu: usize,
    /// Folder that the baseline may write to.
    folder: PathBuf,
}

/// Returns all baselines, in the order of reports.
#[must_use]
pub fn baselines() -> &'static [Baseline] {
    &[
        testpmd::MEMIF_IO,
        testpmd::MEMIF_MAC_SWAP,
        testpmd::MEMIF_5_TUPLE_SWAP,
        open_vswitch::MEMIF,
        l2fwd::BUFFERED,
        l2fwd::UNBUFFERED,
        l3fwd::LPM,
        l3fwd::FIB,
        vpp::ENTRY,
        testpmd::VHOST_IO,
        open_vswitch::VHOST,
        linux_routing::ENTRY,
        testpmd::AF_PACKET,
        testpmd::AF_XDP,
        open_vswitch::VETH,
        open_vswitch::VETH_AF_XDP,
        open_vswitch::VETH_DPDK,
        click::ENTRY,
        click::ROUTER,
        suricata::ENTRY,
        suricata::WITH_RULES,
    ]
}

impl Baseline {
    /// The version that is installed.
    ///
    /// # Errors
    /// What is missing for it here, and how to get it.
    pub fn probe(&self) -> Result<String, Missing> {
        if self.on_interfaces() {
            can_make_namespaces()?;
        }
        (self.probe)()
    }

    /// Whether the baseline stands between the interfaces of a [`Testbed`].
    #[must_use]
    pub fn on_interfaces(&self) -> bool {
        matches!(self.reach, Reach::Veth { .. })
    }

    /// Returns where the baseline's interfaces want their frames processed, when `cpu` is the device's.
    #[must_use]
    pub fn steering(&self, cpu: usize) -> Steering {
        match self.reach {
            Reach::Veth { steered: true } => Steering::PacketSteering { cpu },
            Reach::Veth { steered: false } | Reach::Memif { .. } | Reach::Vhost => Steering::Sender,
        }
    }

    /// The sockets on which one that stands between no interfaces listens.
    #[must_use]
    pub fn sockets(folder: &Path) -> [PathBuf; 2] {
        ["west.sock", "east.sock"].map(|name| folder.join(name))
    }

    /// Starts it on `cpu`, between the interfaces of `testbed` or, without one, on the
    /// [`Baseline::sockets`] of `folder`. All files that it makes lie in `folder`, which must exist and
    /// is the caller's to remove. Frames pass when it returns.
    ///
    /// # Errors
    /// What failed; what had been started by then is stopped.
    pub fn start(
        &self,
        testbed: Option<&Testbed>,
        cpu: usize,
        folder: &Path,
    ) -> Result<Running, BaselineError> {
        let place = self.place(cpu, folder);
        let namespace = testbed.map(Testbed::device_namespace);
        start((self.steps)(&place), namespace, cpu, folder)
    }

    /// The command lines that [`Baseline::start`] runs, for a shell in the device's namespace.
    #[must_use]
    pub fn commands(&self, cpu: usize, folder: &Path) -> Vec<String> {
        (self.steps)(&self.place(cpu, folder))
            .iter()
            .map(text)
            .collect()
    }

    fn place(&self, cpu: usize, folder: &Path) -> CommandValues {
        CommandValues {
            ends: match self.reach {
                Reach::Veth { .. } => DEVICE_INTERFACES.map(str::to_owned),
                Reach::Memif { .. } | Reach::Vhost => {
                    Self::sockets(folder).map(|path| path.display().to_string())
                }
            },
            cpu,
            folder: folder.to_owned(),
        }
    }
}

impl std::fmt::Debug for Baseline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

impl PartialEq for Baseline {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for Baseline {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn baselines_have_names_of_their_own_that_tell_how_they_are_reached() {
        let ids: BTreeSet<_> = baselines().iter().map(|b| b.id).collect();
        let labels: BTreeSet<_> = baselines()
            .iter()
            .map(|b| (b.on_interfaces(), b.reach == Reach::Vhost, b.label))
            .collect();
        assert_eq!((ids.len(), labels.len()), (baselines().len(), ids.len()));
        for baseline in baselines() {
            let start = match baseline.reach {
                Reach::Memif { .. } => "memif-",
                Reach::Vhost => "vhost-",
                Reach::Veth { .. } => "veth-",
            };
            assert!(baseline.id.starts_with(start), "{baseline:?}");
        }
    }

    #[test]
    fn every_file_that_a_baseline_is_told_to_write_lies_in_its_folder() {
        let folder = Path::new("/taut-scratch");
        for baseline in baselines() {
            for command in baseline.commands(1, folder) {
                for word in command.split(['=', ',', ' ', ':', '\'']) {
                    let is_written = word.starts_with('/')
                        && !word.starts_with("/usr/")
                        && !word.starts_with("/proc/sys/");
                    assert!(
                        !is_written || word.starts_with("/taut-scratch"),
                        "{baseline:?}: {word} in {command}"
                    );
                }
            }
        }
    }
}
