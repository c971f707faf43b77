//! A switch that connects virtual machines to each other and to outside ports, each pair of ports by a virtual cable:
//! Open vSwitch with DPDK.
//!
//! Virtual machines are connected by vhost-user: the machine's emulator listens on the socket and the switch retries to
//! connect, so that a machine may start and stop. All files that the switch writes are in one folder; the system's own
//! Open vSwitch, if there is one, is not changed.

use crate::baseline::open_vswitch::{
    Switch, daemon_with_dpdk, dpdk_driver, dpdk_settings, probe_daemon_with_dpdk, version,
};
use crate::baseline::{BaselineError, Running, step};
use crate::permissions::Missing;
use std::path::{Path, PathBuf};

/// One end of a virtual cable: a port of the switch, whose frames leave through the port at the cable's other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SwitchPort {
    /// A virtual machine's NIC: the vhost-user socket on which its emulator listens.
    Machine(PathBuf),
    /// A network interface, through DPDK's packet-socket driver.
    Interface(String),
    /// The socket of a memif link; the switch is its server.
    Memif(PathBuf),
}

impl SwitchPort {
    /// Returns the name of the DPDK driver that the port needs; `None` if it needs none.
    fn driver(&self) -> Option<&'static str> {
        match self {
            Self::Machine(_) => None,
            Self::Interface(_) => Some("net_af_packet"),
            Self::Memif(_) => Some("net_memif"),
        }
    }

    /// Returns the name of the switch's port, and its settings.
    fn name_and_options(&self, number: usize) -> [String; 2] {
        match self {
            Self::Machine(socket) => [
                format!("vhost{number}"),
                format!(
                    "type=dpdkvhostuserclient options:vhost-server-path={}",
                    socket.display()
                ),
            ],
            Self::Interface(name) => [
                format!("dpdk{number}"),
                format!("type=dpdk options:dpdk-devargs=net_af_packet{number},iface={name}"),
            ],
            Self::Memif(socket) => [
                format!("dpdk{number}"),
                format!(
                    "type=dpdk options:dpdk-devargs=net_memif{number},role=server,id=0,socket={},socket-abstract=no",
                    socket.display()
                ),
            ],
        }
    }
}

/// The description of a virtual switch that connects pairs of ports.
#[derive(Debug, Clone, Copy)]
pub struct VirtualSwitch<'a> {
    /// The two ports that each virtual cable connects: the switch forwards the frames of one to the other.
    pub cables: &'a [[SwitchPort; 2]],
    /// The network namespace of the switch's interfaces; `None` is the caller's.
    pub namespace: Option<&'a str>,
    /// The CPU of the switch's polling thread, which sleeps while no packets arrive.
    pub core: usize,
    /// The folder that the switch may write to; the caller removes it.
    pub folder: &'a Path,
}

impl VirtualSwitch<'_> {
    /// Returns the switch's name and version.
    ///
    /// # Errors
    /// A requirement of the virtual switch is missing; the error names the remedy.
    pub fn probe(&self) -> Result<String, Missing> {
        let daemon = probe_daemon_with_dpdk()?;
        for driver in self.cables.iter().flatten().filter_map(SwitchPort::driver) {
            dpdk_driver(driver)?;
        }
        Ok(version(daemon))
    }

    /// Starts the switch. It forwards frames between the two ports of each cable as soon as both exist.
    ///
    /// # Errors
    /// A step failed; programs that had been started are stopped.
    pub fn start(&self) -> Result<Running, BaselineError> {
        step::start(self.steps(), self.namespace, self.core, self.folder)
    }

    fn steps(&self) -> Vec<step::Step> {
        let ports = self.cables.iter().flatten().enumerate();
        let ports: Vec<_> = ports
            .map(|(number, port)| port.name_and_options(number))
            .collect();
        let mut settings: Vec<String> = dpdk_settings(self.core).into();
        // The polling thread shares its core with others. The setting has different names in older and newer versions.
        for name in ["pmd-maxsleep", "pmd-sleep-max"] {
            settings.push(format!("other_config:{name}={LONGEST_REST_US}"));
        }
        let has_interfaces = self
            .cables
            .iter()
            .flatten()
            .any(|port| matches!(port, SwitchPort::Interface(_)));
        Switch {
            folder: self.folder,
            daemon: daemon_with_dpdk().unwrap_or("ovs-vswitchd"),
            bridge: &format!("taut{}", std::process::id()),
            own_network: !has_interfaces,
            settings: &settings,
            ports: &ports,
        }
        .steps()
    }
}

/// The longest sleep of the switch's polling thread while no packets arrive, us.
const LONGEST_REST_US: u32 = 50;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cable_has_two_ports_and_a_flow_per_direction() {
        let cables = [
            [
                SwitchPort::Interface("west".to_owned()),
                SwitchPort::Machine("/scratch/a.sock".into()),
            ],
            [
                SwitchPort::Machine("/scratch/b.sock".into()),
                SwitchPort::Memif("/scratch/m.sock".into()),
            ],
        ];
        let switch = VirtualSwitch {
            cables: &cables,
            namespace: None,
            core: 1,
            folder: Path::new("/scratch"),
        };
        let lines: Vec<String> = switch.steps().iter().map(step::text).collect();
        for part in [
            "dpdk0 ofport_request=1 type=dpdk options:dpdk-devargs=net_af_packet0,iface=west",
            "vhost1 ofport_request=2 type=dpdkvhostuserclient options:vhost-server-path=/scratch/a.sock",
            "vhost2 ofport_request=3 type=dpdkvhostuserclient options:vhost-server-path=/scratch/b.sock",
            "in_port=1,actions=output:2",
            "in_port=4,actions=output:3",
        ] {
            assert!(lines.iter().any(|l| l.contains(part)), "{part}: {lines:#?}");
        }
        assert!(
            lines
                .iter()
                .all(|l| !l.contains("in_port=2,actions=output:3") && !l.contains("unshare"))
        );
    }
}
