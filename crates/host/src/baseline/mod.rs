//! Forwarders of other projects as devices under test: found, started, pinned and removed again.
//!
//! Each program has one file, and each way to run the program has one entry there. An entry is data: how the generator
//! connects to the program, what the program requires, and the commands that start the program. The commands run in the
//! device's namespace of a [`Testbed`], or without a testbed on two sockets. All files that they write are in one
//! folder, so the host's own configuration does not change.

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

/// A forwarder of another project.
pub struct Baseline {
    /// The baseline's name on the command line, and the name of its folder.
    pub id: &'static str,
    /// The baseline's name in tables.
    pub label: &'static str,
    /// The mechanism by which the baseline moves packets, in one or two words.
    pub io: &'static str,
    /// A note about the baseline for readers of the results, in one or two clauses.
    pub note: &'static str,
    /// The connection between the generator and the baseline.
    pub reach: Reach,
    /// The frames that the baseline forwards.
    pub frames: Frames,
    probe: fn() -> Result<String, Missing>,
    steps: fn(&CommandValues) -> Vec<Step>,
}

/// The connection between the generator and a baseline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// The baseline is between the device's two interfaces of a [`Testbed`].
    Veth {
        /// True if the kernel processes frames for the baseline on the baseline's CPU (receive packet steering). A
        /// baseline that receives frames by XDP does not support this.
        steered: bool,
    },
    /// The baseline is the server of two memif links; the generator is the client.
    Memif {
        /// The number of the baseline's transmit rings; the generator has to receive from each.
        tx_rings: u16,
    },
    /// The baseline is the server of two vhost-user links. The generator acts as a virtual machine's NIC (virtio-user).
    Vhost,
}

/// The frames to send through a baseline so that the generator can identify them when they return.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frames {
    /// Frames addressed to the generator interface that receives them after the baseline has forwarded them.
    Through,
    /// Frames between the IP addresses [`linux_routing::HOSTS`], sent to the MAC address of the device's interface at
    /// the other end of the generator's link.
    Routed,
    /// Frames with equal UDP source and destination ports, because the baseline swaps the two ports.
    SameUdpPorts,
}

/// The addresses of [`Frames::Routed`]: those of the generator's two endpoints, and those of a router between them.
pub use linux_routing::{HOSTS as ROUTED_HOSTS, NETWORKS as ROUTED_NETWORKS};

/// Values that the command lines of a baseline contain: endpoints, CPU and folder.
struct CommandValues {
    /// The endpoints of the baseline: the names of two interfaces, or the paths of two sockets.
    ends: [String; 2],
    /// The CPU of the baseline.
    cpu: usize,
    /// The folder that the baseline may write to.
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
    /// Returns the installed version of the baseline.
    ///
    /// # Errors
    /// A requirement is missing; the error names the remedy.
    pub fn probe(&self) -> Result<String, Missing> {
        if self.on_interfaces() {
            can_make_namespaces()?;
        }
        (self.probe)()
    }

    /// Returns true if the baseline is between the interfaces of a [`Testbed`].
    #[must_use]
    pub fn on_interfaces(&self) -> bool {
        matches!(self.reach, Reach::Veth { .. })
    }

    /// Returns how frames for the baseline are steered if the device under test runs on `cpu`.
    #[must_use]
    pub fn steering(&self, cpu: usize) -> Steering {
        match self.reach {
            Reach::Veth { steered: true } => Steering::PacketSteering { cpu },
            Reach::Veth { steered: false } | Reach::Memif { .. } | Reach::Vhost => Steering::Sender,
        }
    }

    /// Returns the paths in `folder` of the two sockets of a baseline without interfaces: one for each of the
    /// generator's two ports.
    #[must_use]
    pub fn sockets(folder: &Path) -> [PathBuf; 2] {
        ["west.sock", "east.sock"].map(|name| folder.join(name))
    }

    /// Starts the baseline on `cpu`, between the interfaces of `testbed` or, without one, on the [`Baseline::sockets`]
    /// of `folder`. All files that the baseline creates are in `folder`, which must exist and which the caller removes.
    /// The baseline forwards frames when this returns.
    ///
    /// # Errors
    /// A step failed; programs that had been started are stopped.
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

    /// Returns the command lines that [`Baseline::start`] runs, for a shell in the device's namespace.
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
    fn baselines_have_unique_names_that_begin_with_their_backend() {
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
    fn every_file_that_a_baseline_writes_is_in_its_folder() {
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
