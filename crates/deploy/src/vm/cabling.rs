//! The connections between the NICs of virtual machines and the ends of the chain.

use super::can_make_machines;
use super::kernel::Kernel;
use crate::DeployError;
use std::path::{Path, PathBuf};
use taut_host::{SwitchPort, VirtualSwitch};
use taut_port::{Attachment, PortSpec};

/// The two NICs of each virtual machine of a chain, and the connections between them. A machine's west NIC leads to
/// the first port of the chain, its east NIC to the last one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cabling {
    /// Sockets of each machine's NICs, west and east.
    pub cards: Vec<[PathBuf; 2]>,
    /// Connections that the switch makes: one more than there are machines.
    pub cables: Vec<[SwitchPort; 2]>,
}

impl Cabling {
    /// Puts `machines` in a row between the chain's two ends; sockets are in `folder`.
    #[must_use]
    pub fn row(ends: [SwitchPort; 2], machines: usize, folder: &Path) -> Self {
        let socket = |at: usize, side: &str| folder.join(format!("card-{}-{side}.sock", at + 1));
        let cards: Vec<[PathBuf; 2]> = (0..machines)
            .map(|at| ["west", "east"].map(|side| socket(at, side)))
            .collect();
        let [west, east] = ends;
        let mut loose = west;
        let mut cables = Vec::new();
        for [west_card, east_card] in &cards {
            cables.push([loose, SwitchPort::Machine(west_card.clone())]);
            loose = SwitchPort::Machine(east_card.clone());
        }
        cables.push([loose, east]);
        Self { cards, cables }
    }
}

/// Returns the switch's port for a chain's end.
///
/// # Errors
/// The switch does not support the port; the error lists the supported ones.
pub fn switch_port(port: &PortSpec) -> Result<SwitchPort, String> {
    match port.kind().attachment {
        Attachment::Process if port.option("role") == Some("server") => Err(format!(
            "{port}: the switch is the server of memif links: leave out role="
        )),
        Attachment::Process => Ok(SwitchPort::Memif(port.target().into())),
        Attachment::Interface => Ok(SwitchPort::Interface(port.target().to_string())),
        _ => Err(format!(
            "{port} cannot be the end of a chain in virtual machines: use veth:, memif: or af_packet:"
        )),
    }
}

/// Checks that chains can run in virtual machines here; downloads the machines' kernel if there is none.
///
/// # Errors
/// A requirement is missing.
pub fn can_run_chains() -> Result<(), DeployError> {
    can_make_machines()?;
    Kernel::find()?;
    let cables = Cabling::row(
        ["west", "east"].map(|end| SwitchPort::Interface(end.to_string())),
        1,
        Path::new("/"),
    )
    .cables;
    let switch = VirtualSwitch {
        cables: &cables,
        namespace: None,
        core: 0,
        folder: Path::new("/"),
    };
    switch.probe()?;
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_virtual_machines_connect_from_east_nic_to_west_nic() {
        let ends = ["a", "b"].map(|end| SwitchPort::Interface(end.to_string()));
        let row = Cabling::row(ends.clone(), 2, Path::new("/run"));
        let card = |name: &str| SwitchPort::Machine(Path::new("/run").join(name));
        assert_eq!(
            row.cables,
            [
                [ends[0].clone(), card("card-1-west.sock")],
                [card("card-1-east.sock"), card("card-2-west.sock")],
                [card("card-2-east.sock"), ends[1].clone()],
            ]
        );
        assert_eq!(row.cards[1][0], Path::new("/run/card-2-west.sock"));
    }

    #[test]
    fn ports_that_the_switch_cannot_reach_are_refused() {
        let of = |text: &str| switch_port(&PortSpec::parse(text).unwrap());
        assert_eq!(
            of("af_xdp:eth1").unwrap(),
            SwitchPort::Interface("eth1".to_string())
        );
        assert_eq!(
            of("memif:/tmp/a.sock").unwrap(),
            SwitchPort::Memif("/tmp/a.sock".into())
        );
        assert!(of("null:").unwrap_err().contains("use veth:"));
        assert!(
            of("memif:/tmp/a.sock,role=server")
                .unwrap_err()
                .contains("leave out role")
        );
    }
}
