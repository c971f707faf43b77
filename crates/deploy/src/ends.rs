//! Checks and creates the ends of a chain and the links between its segments.

use crate::error::{DeployError, in_one_line};
use crate::vm::{self, Cabling};
use crate::wires::{Wires, two_ends};
use std::path::{Path, PathBuf};
use taut_engine::{Chain, Place, Placement, Stage};
use taut_host::net::namespace_exists;
use taut_host::{DeviceError, Namespace, Running, SwitchPort, Veth, VirtualSwitch, WireEnd};
use taut_port::{PortSpec, backends};

/// Longest name of an interface: `IFNAMSIZ` of `linux/if.h` minus the terminating zero.
const LONGEST_INTERFACE: usize = 15;

/// The links that were created for a chain; dropping this value removes them.
#[derive(Debug, Default)]
pub(crate) struct Laid {
    /// The segments' ports.
    pub wires: Wires,
    /// The namespace of each segment that has its own.
    pub namespaces: Vec<Namespace>,
    /// Names of the chain's outer ports whose links this program created.
    made_ends: Vec<String>,
    // Links are removed explicitly: removing only their namespaces would not remove both ends at once.
    veths: Vec<Veth>,
    /// The sockets of each virtual machine's NICs, west and east; none without virtual machines.
    pub cards: Vec<[PathBuf; 2]>,
    /// Switch that connects virtual machines, and its namespace.
    switch: Option<Running>,
    switch_namespace: Option<Namespace>,
}

impl Laid {
    /// Returns true if the peer of a port was also created for the chain. The port's link must then come up soon after
    /// the start.
    pub(crate) fn is_ours(&self, port: &str) -> bool {
        let mut ours = self.wires.joints.iter().flatten().chain(&self.made_ends);
        ours.any(|own| own == port)
    }

    /// Returns an error if the switch between the virtual machines has exited.
    pub(crate) fn check(&mut self) -> Result<(), DeviceError> {
        self.switch.as_mut().map_or(Ok(()), Running::check)
    }
}

impl Drop for Laid {
    fn drop(&mut self) {
        self.switch = None;
        self.veths.clear();
    }
}

/// Checks the properties of a chain's ends and links that can be checked before any link is created.
pub(crate) fn check(chain: &Chain) -> Result<(), DeployError> {
    let wrong = |text: String| Err(DeployError::Chain(text));
    let distributed = chain.placement != Placement::Compact;
    if distributed {
        two_ends(chain.ports.len())?;
    }
    if chain.machine.is_some() && chain.placement != Placement::Vm {
        return wrong(
            "[machine] is for placement = \"vm\": leave it out, or give that".to_string(),
        );
    }
    if distributed && chain.place == Place::Kernel {
        return wrong(
            "place = \"kernel\" of the whole chain is for placement = \"compact\"; else give `place` to functions"
                .to_string(),
        );
    }
    let mut seen: Vec<(String, &PortSpec)> = Vec::new();
    for port in &chain.ports {
        let Some(what) = port.exclusive() else {
            continue;
        };
        if let Some((_, other)) = seen.iter().find(|(taken, _)| *taken == what) {
            return wrong(format!(
                "ports \"{}\" and \"{}\" are both {what}: packets would loop; give each end its own",
                other.text(),
                port.text()
            ));
        }
        seen.push((what, port));
    }
    for port in &chain.ports {
        if chain.placement.is_in_namespaces() && port.kind().attachment.is_of_namespace() {
            return wrong(format!(
                "port \"{}\": a function in a namespace does not see interfaces of this one: take veth:INTERFACE as the \
                 chain's end and bridge or route to it, or placement = \"processes\"",
                port.text()
            ));
        }
        if port.is_wire() {
            check_far_end(port)?;
        } else if chain.placement == Placement::Vm {
            vm::switch_port(port).map_err(DeployError::Chain)?;
        }
    }
    Ok(())
}

fn far_end(port: &PortSpec) -> WireEnd {
    WireEnd::new(port.option("netns"), port.target())
}

fn check_far_end(port: &PortSpec) -> Result<(), DeployError> {
    let wrong = |reason: String| Err(taut_port::PortError::bad_spec(port.text(), reason).into());
    let name = port.target();
    if name.len() > LONGEST_INTERFACE || name.contains(['/', ' ']) {
        return wrong(format!(
            "{name} cannot be the name of an interface: 1 to {LONGEST_INTERFACE} letters"
        ));
    }
    if let Some(namespace) = port.option("netns")
        && !namespace_exists(namespace)
    {
        return wrong(format!(
            "namespace \"{namespace}\" does not exist: ip netns add {namespace}"
        ));
    }
    if far_end(port).exists() {
        return wrong(format!(
            "interface {name} exists already, but a chain creates its own: choose another name"
        ));
    }
    Ok(())
}

/// Creates the links of a chain with the segments `parts`; sockets are in `folder`.
pub(crate) fn lay(
    chain: &Chain,
    parts: &[(Vec<Stage>, Place)],
    folder: &Path,
) -> Result<Laid, DeployError> {
    let mut laid = Laid::default();
    let in_namespaces = chain.placement.is_in_namespaces();
    if in_namespaces {
        for _ in parts {
            laid.namespaces.push(Namespace::fresh()?);
        }
    }
    let has_xdp = uses_xdp(chain);
    let over = if has_xdp { "af_xdp" } else { "af_packet" };
    let last = parts.len() - 1;
    for (at, port) in chain.ports.iter().enumerate() {
        if !port.is_wire() {
            laid.wires.ends.push(port.text().to_string());
            continue;
        }
        let (segment, side) = if at == 0 { (0, "west") } else { (last, "east") };
        let near = match laid.namespaces.get(segment) {
            Some(namespace) => WireEnd::new(Some(namespace.name()), side),
            None => WireEnd::own(),
        };
        let address = port.option("address");
        let wire = Veth::to_host(&near, &far_end(port), has_xdp, address, chain.workers)?;
        laid.veths.push(wire);
        let mut spec = format!("{over}:{}", near.interface);
        if chain.workers > 1 && has_xdp {
            spec += &format!(",queue=0-{}", chain.workers - 1);
        }
        laid.made_ends.push(spec.clone());
        laid.wires.ends.push(spec);
    }
    for at in 0..last {
        laid.wires.joints.push(match chain.placement {
            Placement::Threads => {
                let spec = format!("pair:{at}");
                [spec.clone(), spec]
            }
            Placement::Namespaces | Placement::Hybrid => {
                let end = |segment: usize, side: &str| {
                    WireEnd::new(Some(laid.namespaces[segment].name()), side)
                };
                let wire = Veth::between(&end(at, "east"), &end(at + 1, "west"), has_xdp)?;
                laid.veths.push(wire);
                [format!("{over}:east"), format!("{over}:west")]
            }
            _ => {
                let socket = folder.join(format!("wire-{}.sock", at + 1));
                ["server", "client"].map(|role| format!("memif:{},role={role}", socket.display()))
            }
        });
    }
    Ok(laid)
}

/// Returns true if workers receive from a chain's links through AF_XDP, false if through AF_PACKET.
fn uses_xdp(chain: &Chain) -> bool {
    let has_xdp = backends()
        .iter()
        .any(|backend| backend.name == "af_xdp" && (backend.probe)().is_ok());
    // AF_XDP queues cannot be reassigned, so chains that workers may join later use AF_PACKET, whose sockets form a
    // group.
    has_xdp && !chain.has_room()
}

/// Creates the links of a chain of virtual machines, one for each of `parts`, and the switch that connects them, with
/// its polling thread on `core`.
pub(crate) fn lay_for_machines(
    chain: &Chain,
    parts: &[(Vec<Stage>, Place)],
    folder: &Path,
    core: usize,
) -> Result<Laid, DeployError> {
    vm::can_run_chains()?;
    let machine = chain.machine.clone().unwrap_or_default();
    // The two ports inside each virtual machine.
    let inside: Vec<[String; 2]> = parts
        .iter()
        .map(|(_, place)| vm::ports_inside(*place, machine.port))
        .collect();
    let mut laid = Laid::default();
    let ports = |number: usize| inside[number].clone();
    let ([west, _], [_, east]) = (ports(0), ports(parts.len() - 1));
    laid.wires.ends = vec![west.clone(), east.clone()];
    let joints = (1..parts.len()).map(|at| [ports(at - 1)[1].clone(), ports(at)[0].clone()]);
    laid.wires.joints = joints.collect();
    laid.made_ends = vec![west, east];
    // A switch in its own namespace could not use this namespace's interfaces, so the switch gets one only if no port
    // is an interface that exists already.
    let needs_ours = |port: &PortSpec| {
        !port.is_wire() && matches!(vm::switch_port(port), Ok(SwitchPort::Interface(_)))
    };
    if !chain.ports.iter().any(needs_ours) {
        laid.switch_namespace = Some(Namespace::fresh()?);
    }
    let namespace = laid.switch_namespace.as_ref().map(Namespace::name);
    let mut ends = Vec::new();
    for (port, side) in chain.ports.iter().zip(["west", "east"]) {
        ends.push(if port.is_wire() {
            let near = namespace.map_or_else(WireEnd::own, |name| WireEnd::new(Some(name), side));
            let wire = Veth::to_host(&near, &far_end(port), false, port.option("address"), 1)?;
            laid.veths.push(wire);
            SwitchPort::Interface(near.interface)
        } else {
            vm::switch_port(port).map_err(DeployError::Chain)?
        });
    }
    let Ok(ends) = ends.try_into() else {
        return Err(DeployError::Chain("two ports, two ends".to_string()));
    };
    let Cabling { cards, cables } = Cabling::row(ends, parts.len(), folder);
    let switch = VirtualSwitch {
        cables: &cables,
        namespace,
        core,
        folder,
    };
    let switch = switch.start().map_err(|e| DeployError::Segment {
        segment: "switch".to_string(),
        reason: in_one_line(&e),
    })?;
    laid.switch = Some(switch);
    laid.cards = cards;
    Ok(laid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_functions::FUNCTIONS;

    fn complaint(text: &str) -> String {
        let chain = Chain::parse(text, "x.toml", FUNCTIONS).unwrap();
        check(&chain).map_or_else(|e| e.to_string(), |()| "none".to_string())
    }

    #[test]
    fn chains_with_the_same_port_at_both_ends_are_refused() {
        for (ports, part) in [
            (
                "\"memif:/tmp/a.sock\", \"memif:/tmp/a.sock,role=client\"",
                "both memif socket /tmp/a.sock, id 0",
            ),
            ("\"af_packet:eth0\", \"af_xdp:eth0\"", "both interface eth0"),
            (
                "\"veth:a,netns=n\", \"veth:a,netns=n\"",
                "both interface a in namespace n",
            ),
            ("\"pcap:a.pcap\", \"pcap:a.pcap,role=write\"", "would loop"),
        ] {
            let message = complaint(&format!("ports = [{ports}]\n"));
            assert!(message.contains(part), "{message}");
            assert!(!message.contains('\n'), "{message}");
        }
        let fine = "ports = [\"memif:/tmp/a.sock,id=1\", \"memif:/tmp/a.sock,id=2\"]";
        assert_eq!(complaint(fine), "none");
        assert_eq!(complaint("ports = [\"null:\", \"null:\"]"), "none");
    }

    #[test]
    fn unsupported_ports_and_placements_are_refused_with_a_remedy() {
        for (text, part) in [
            ("placement = \"threads\"\nports = [\"null:\"]", "1 ports"),
            (
                "placement = \"processes\"\nplace = \"kernel\"\nports = [\"null:\", \"null:\"]",
                "give `place` to functions",
            ),
            (
                "placement = \"namespaces\"\nports = [\"null:\", \"af_xdp:eth0\"]",
                "take veth:INTERFACE",
            ),
            (
                "placement = \"vm\"\nports = [\"null:\", \"veth:a\"]",
                "cannot be the end of a chain in virtual machines",
            ),
            (
                "ports = [\"null:\"]\n[machine]\ncores = 2",
                "[machine] is for placement = \"vm\"",
            ),
            (
                "ports = [\"null:\", \"veth:a,netns=taut-no-such\"]",
                "ip netns add taut-no-such",
            ),
            (
                "ports = [\"null:\", \"veth:lo\"]",
                "interface lo exists already",
            ),
            (
                "ports = [\"null:\", \"veth:abcdefghijklmnop\"]",
                "cannot be the name",
            ),
        ] {
            let message = complaint(text);
            assert!(message.contains(part), "{message}");
        }
    }
}
