//! The wiring of a switch: its ports to the generator, the cables between its ports, and the links to a second switch
//! that multiplies traffic. It comes from a file, or is built in.

use super::device::Switch;
use super::p4runtime::{P4, Pipeline};
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::Arc;
use taut_port::PortSpec;
use taut_settings::SettingsFileError;

/// Port numbers: from 1 as in OpenFlow, up to the limit of a chain.
const PORTS: RangeInclusive<u32> = 1..=255;
/// Port numbers of a P4 pipeline, which may also be those of a driver.
const P4_PORTS: RangeInclusive<u32> = 0..=65_535;

/// The wiring of a switch, from a file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Topology {
    /// Pairs of the switch's own ports that a cable connects.
    #[serde(default)]
    pub(super) cables: Vec<[u32; 2]>,
    pub(super) generator: Generator,
    pub(super) amplifier: Option<Amplifier>,
    p4: Option<P4>,
    /// The pipeline that the section `[p4]` names.
    #[serde(skip)]
    pub(super) pipeline: Option<Arc<Pipeline>>,
}

/// The ports between the switch and the generator.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Generator {
    /// The generator's two ports, for a switch that this machine does not set up; none for other switches.
    pub ports: Option<[String; 2]>,
    /// The switch's port to the generator's first port; none if an amplifier is in between.
    first: Option<u32>,
    /// The switch's port to the generator's second port.
    second: u32,
    /// Capacity of the switch's port `second`, in background packets (864 bytes) per second, for a switch that this
    /// machine does not set up. Without the capacity, the measurement `qos` is skipped for that switch.
    pub return_pps: Option<f64>,
}

/// The ports of the switch between the generator and the measured switch.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Amplifier {
    /// Name of the switch that multiplies traffic; none if `--amplifier` names it.
    pub device: Option<String>,
    /// The amplifier's port to the generator's first port.
    first: u32,
    /// The amplifier's ports, each with the connected port of the measured switch.
    links: Vec<[u32; 2]>,
}

/// The wiring of a measurement point, as port numbers of the switch.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Wiring {
    /// Ingress port of the packets: from the generator's first port, or over the first link of the amplifier.
    pub first: u32,
    /// Egress port of the packets, to the generator's second port.
    pub last: u32,
    pub cables: Vec<[u32; 2]>,
    pub before: Option<Before>,
}

/// The amplifier's ports.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Before {
    /// The amplifier's port to the generator's first port.
    pub first: u32,
    /// The amplifier's ports, each with the connected port of the measured switch.
    pub links: Vec<[u32; 2]>,
}

/// The destination of the link at a switch port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leads {
    ToFirst,
    ToLast,
    /// The port at the other end of the cable with this index.
    Along(usize),
    /// The amplifier (the switch that multiplies traffic), over the link with this index.
    ToAmplifier(usize),
    Nowhere,
}

impl Topology {
    /// Reads a topology file.
    ///
    /// # Errors
    /// Returns an error if the file is missing or invalid.
    pub fn read(path: &Path) -> Result<Self, SettingsFileError> {
        let text = SettingsFileError::read(path)?;
        let name = path.display().to_string();
        let mut topology = Self::parse(&text, &name)?;
        if let Some(p4) = &topology.p4 {
            let folder = path.parent().unwrap_or(Path::new("."));
            let opened = p4.open(folder).and_then(|it| topology.check_width(it));
            let pipeline =
                opened.map_err(|why| SettingsFileError::wrong(&text, &name, None, why))?;
            topology.pipeline = Some(Arc::new(pipeline));
        }
        Ok(topology)
    }

    /// Returns the pipeline if its actions can send through all ports.
    fn check_width(&self, pipeline: Pipeline) -> Result<Pipeline, String> {
        let wiring = self.wiring(u32::MAX, u32::MAX);
        let mut ports = wiring.ports().into_iter();
        match ports.find(|port| !pipeline.has_port(*port)) {
            Some(port) => Err(format!(
                "port {port} does not fit into the parameter of `send`"
            )),
            None => Ok(pipeline),
        }
    }

    fn parse(text: &str, name: &str) -> Result<Self, SettingsFileError> {
        let read = toml::from_str::<Self>(text);
        let topology = read.map_err(|e| SettingsFileError::of_toml(text, name, &e))?;
        let checked = topology.check();
        checked.map_err(|why| SettingsFileError::wrong(text, name, None, why))?;
        Ok(topology)
    }

    fn check(&self) -> Result<(), String> {
        let Generator {
            ports,
            first,
            second,
            return_pps,
        } = &self.generator;
        match (first, &self.amplifier) {
            (None, None) => {
                return Err(
                    "generator: expected `first`, the switch's port to the generator's first one"
                        .to_string(),
                );
            }
            (Some(_), Some(_)) => {
                return Err(
                    "first: the generator's first port leads to the amplifier; leave it out"
                        .to_string(),
                );
            }
            _ => {}
        }
        for spec in ports.iter().flatten() {
            PortSpec::parse(spec).map_err(|e| format!("ports: {e}"))?;
        }
        if ports.as_ref().is_some_and(|[one, two]| one == two) {
            return Err("ports: expected two different ones".to_string());
        }
        if return_pps.is_some_and(|pps| !(1.0..=1e9).contains(&pps)) {
            return Err("return_pps: expected 1 to 1e9 packets a second".to_string());
        }
        let links = self.amplifier.iter().flat_map(|it| &it.links);
        let mut of_switch: Vec<(&str, u32)> = vec![("second", *second)];
        of_switch.extend(first.map(|port| ("first", port)));
        of_switch.extend(self.cables.iter().flatten().map(|port| ("cables", *port)));
        of_switch.extend(links.map(|[_, port]| ("links", *port)));
        each_once("the switch", &of_switch, self.ports())?;
        if let Some(amplifier) = &self.amplifier {
            if amplifier.links.is_empty() {
                return Err("links: expected at least one".to_string());
            }
            let mut own = vec![("first", amplifier.first)];
            own.extend(amplifier.links.iter().map(|[port, _]| ("links", *port)));
            each_once("the amplifier", &own, PORTS)?;
            if let Some(device) = &amplifier.device {
                device
                    .parse::<Switch>()
                    .map_err(|why| format!("device: {why}"))?;
            }
        }
        Ok(())
    }

    /// Returns the valid port numbers of the switch.
    fn ports(&self) -> RangeInclusive<u32> {
        if self.p4.is_some() { P4_PORTS } else { PORTS }
    }

    /// Returns the number of cables between ports of the switch.
    pub(super) fn cables(&self) -> u32 {
        self.cables.len() as u32
    }

    /// Returns the number of links to the amplifier.
    pub(super) fn links(&self) -> u32 {
        self.amplifier.as_ref().map_or(0, |it| it.links.len()) as u32
    }

    /// Returns the wiring of a point with `cables` cables and `links` links, or with all that exist if there are fewer.
    pub(super) fn wiring(&self, cables: u32, links: u32) -> Wiring {
        let some = |all: &[[u32; 2]], many: u32| -> Vec<[u32; 2]> {
            all.iter().copied().take(many as usize).collect()
        };
        let before = self.amplifier.as_ref().map(|it| Before {
            first: it.first,
            links: some(&it.links, links.max(1)),
        });
        let by_link = before.as_ref().and_then(|it| it.links.first());
        Wiring {
            first: by_link
                .map(|[_, port]| *port)
                .or(self.generator.first)
                .unwrap_or(1),
            last: self.generator.second,
            cables: some(&self.cables, cables),
            before,
        }
    }
}

/// Checks that all port numbers are valid, and that none is used twice.
fn each_once(whose: &str, ports: &[(&str, u32)], valid: RangeInclusive<u32>) -> Result<(), String> {
    let mut known = BTreeSet::new();
    for (key, port) in ports {
        if !valid.contains(port) {
            let (first, last) = (valid.start(), valid.end());
            return Err(format!(
                "{key}: port {port}: ports are numbered from {first} to {last}"
            ));
        }
        if !known.insert(*port) {
            return Err(format!(
                "{key}: port {port} of {whose} has a wire already; use one wire per port"
            ));
        }
    }
    Ok(())
}

impl Wiring {
    /// Returns the built-in wiring. The first `links` ports lead to the amplifier; without links, port 1 leads to the
    /// generator. Pairs of the following ports are connected by `cables` cables, and the last port leads to the
    /// generator.
    pub fn built_in(cables: u32, links: u32) -> Self {
        let entries = links.max(1);
        let cable = |number: u32| [entries + 1 + 2 * number, entries + 2 + 2 * number];
        Self {
            first: 1,
            last: entries + 1 + 2 * cables,
            cables: (0..cables).map(cable).collect(),
            before: (links > 0).then(|| Before {
                first: 1,
                links: (1..=links).map(|number| [1 + number, number]).collect(),
            }),
        }
    }

    /// Returns the other end of the link at a port.
    pub fn leads(&self, port: u32) -> Leads {
        let links = self.before.iter().flat_map(|it| &it.links);
        if let Some(link) = links.map(|[_, own]| *own).position(|own| own == port) {
            return Leads::ToAmplifier(link);
        }
        let cable = self.cables.iter().position(|ends| ends.contains(&port));
        match cable {
            Some(cable) => Leads::Along(cable),
            None if port == self.first => Leads::ToFirst,
            None if port == self.last => Leads::ToLast,
            None => Leads::Nowhere,
        }
    }

    /// Returns the ports with a link, in ascending order.
    pub fn ports(&self) -> Vec<u32> {
        let links = self.before.iter().flat_map(|it| &it.links);
        let links = links.map(|[_, own]| *own);
        let ends = self.cables.iter().flatten().copied();
        let all: BTreeSet<u32> = [self.first, self.last]
            .into_iter()
            .chain(links)
            .chain(ends)
            .collect();
        all.into_iter().collect()
    }

    /// Returns the ports through which background packets enter on their way to the generator's second port. Without an
    /// amplifier these are the port to the generator's first port and the second port of each cable. With an amplifier,
    /// they are the ports of the links to the amplifier.
    pub fn feeds(&self) -> Vec<u32> {
        match &self.before {
            Some(before) => before.links.iter().map(|[_, port]| *port).collect(),
            None => {
                let far = self.cables.iter().map(|[_, far]| *far);
                std::iter::once(self.first).chain(far).collect()
            }
        }
    }
}

/// The wiring of the measured switch, and the switch that multiplies traffic.
#[derive(Debug, Clone, Default)]
pub struct Wires {
    /// The wiring from a file; none for the built-in wiring.
    pub topology: Option<Topology>,
    /// The second switch, which multiplies traffic; none if the measured switch does so itself.
    pub amplifier: Option<Switch>,
}

impl Wires {
    /// Combines the wiring from a file with a switch that multiplies traffic, named in the file or as `amplifier`.
    ///
    /// # Errors
    /// Returns an error if the wiring and the amplifier are incompatible with each other or with the switches.
    pub fn new(
        topology: Option<Topology>,
        amplifier: Option<Switch>,
        switches: &[Switch],
    ) -> Result<Self, String> {
        let of_file = topology.as_ref().and_then(|it| it.amplifier.as_ref());
        let named = of_file.and_then(|it| it.device.as_ref());
        let named = named.map(|text| text.parse()).transpose()?;
        let amplifier = amplifier.or(named);
        match (&amplifier, of_file, &topology) {
            (None, Some(_), _) => {
                return Err(
                    "the topology has an amplifier: name it there (device) or by --amplifier"
                        .to_string(),
                );
            }
            (Some(_), None, Some(_)) => {
                return Err(
                    "--amplifier: the topology does not describe its wires; add [amplifier]"
                        .to_string(),
                );
            }
            _ => {}
        }
        for switch in switches {
            let needs_file = !switch.is_set_up();
            let ports = topology.as_ref().and_then(|it| it.generator.ports.as_ref());
            if needs_file && ports.is_none() {
                return Err(format!(
                    "{switch}: expected --topology FILE, which lists the ports of the generator that lead to it (generator.ports)"
                ));
            }
            if *switch == Switch::OpenVSwitch && topology.is_some() {
                return Err(format!(
                    "{switch}: its wires are built in; leave --topology out, or the switch"
                ));
            }
            let is_p4 = matches!(switch, Switch::P4Runtime(_));
            let pipeline = topology.as_ref().and_then(|it| it.pipeline.as_ref());
            if is_p4 && pipeline.is_none() {
                return Err(format!(
                    "{switch}: expected [p4] in the topology file, which names the pipeline and its tables"
                ));
            }
            if switch.is_set_up() && pipeline.is_some() {
                return Err(format!(
                    "{switch}: [p4] in the topology file is for p4runtime:HOST:PORT"
                ));
            }
            let Some(amplifier) = &amplifier else {
                continue;
            };
            if is_p4 || matches!(amplifier, Switch::P4Runtime(_)) {
                return Err(format!(
                    "--amplifier {amplifier}: a P4Runtime switch neither has nor is one"
                ));
            }
            let goes_together = match amplifier {
                Switch::Taut => *switch == Switch::Taut,
                other => !other.is_set_up() && needs_file,
            };
            if !goes_together {
                return Err(format!(
                    "--amplifier {amplifier}: it cannot amplify for {switch}; use taut for taut, a switch on the network for another"
                ));
            }
            if amplifier == switch && needs_file && *switch != Switch::ByHand {
                return Err(format!(
                    "--amplifier {amplifier}: must differ from the measured switch"
                ));
            }
        }
        Ok(Self {
            topology,
            amplifier,
        })
    }

    /// Returns the pipeline of a switch with a P4Runtime server.
    pub(super) fn pipeline(&self) -> Option<&Arc<Pipeline>> {
        self.topology.as_ref()?.pipeline.as_ref()
    }

    /// Returns the capacity of the return port in background packets per second, as given in the topology file; none if
    /// the file does not give it.
    pub(super) fn return_pps(&self) -> Option<f64> {
        self.topology.as_ref()?.generator.return_pps
    }

    /// Returns the number of ports through which background packets can enter.
    pub(super) fn feeds(&self) -> usize {
        let wires = self.topology.as_ref().map(|it| match &self.amplifier {
            Some(_) => it.links(),
            None => it.cables() + 1,
        });
        wires.map_or(usize::MAX, |many| many as usize)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn read(text: &str) -> Result<Topology, String> {
        Topology::parse(text, "wires.toml").map_err(|e| e.to_string())
    }

    #[test]
    fn the_wiring_uses_the_requested_cables_of_the_topology_file() {
        let one = read(
            "cables = [[2, 3], [10, 11]]\n[generator]\nports = [\"null:\", \"tap:t0\"]\nfirst = 1\nsecond = 48\nreturn_pps = 1e6\n",
        )
        .unwrap();
        let wiring = one.wiring(1, 0);
        assert_eq!((wiring.first, wiring.last), (1, 48));
        assert_eq!(wiring.ports(), [1, 2, 3, 48]);
        assert_eq!(wiring.feeds(), [1, 3]);
        assert_eq!(wiring.leads(10), Leads::Nowhere);
        assert_eq!(one.wiring(7, 0).cables.len(), 2);
        let two = read(
            "[generator]\nsecond = 9\n[amplifier]\ndevice = \"by-hand\"\nfirst = 1\nlinks = [[2, 5], [3, 6]]\n",
        )
        .unwrap();
        let wiring = two.wiring(0, 2);
        assert_eq!((wiring.first, wiring.feeds()), (5, vec![5, 6]));
        assert_eq!(wiring.leads(6), Leads::ToAmplifier(1));
        assert_eq!((two.cables(), two.links()), (0, 2));
    }

    #[test]
    fn the_built_in_wiring_uses_every_port() {
        let one = Wiring::built_in(2, 0);
        assert_eq!(one.ports(), (1..=6).collect::<Vec<_>>());
        assert_eq!((one.first, one.last), (1, 6));
        assert_eq!(one.cables, [[2, 3], [4, 5]]);
        let two = Wiring::built_in(1, 3);
        assert_eq!(two.ports(), (1..=6).collect::<Vec<_>>());
        assert_eq!((two.feeds(), two.last), (vec![1, 2, 3], 6));
    }

    #[test]
    fn invalid_topologies_are_refused_with_the_key_and_a_hint() {
        let generator = "[generator]\nfirst = 1\nsecond = 4\n";
        for (text, want) in [
            (format!("cables = [[2, 2]]\n{generator}"), "cables: port 2"),
            (format!("cables = [[2, 1]]\n{generator}"), "has a wire"),
            (format!("cables = [[0, 2]]\n{generator}"), "from 1 to 255"),
            (format!("cables = [[2]]\n{generator}"), "cables"),
            (format!("colour = 1\n{generator}"), "colour"),
            ("cables = []\n".to_string(), "generator"),
            ("[generator]\nsecond = 4\n".to_string(), "expected `first`"),
            (format!("{generator}return_pps = 0\n"), "return_pps: expected"),
            (
                format!("{generator}ports = [\"null:\", \"null:\"]\n"),
                "two different",
            ),
            (
                format!("{generator}ports = [\"nul:\", \"null:\"]\n"),
                "ports: ",
            ),
            (
                format!("{generator}[amplifier]\nfirst = 1\nlinks = [[2, 2]]\n"),
                "leave it out",
            ),
            (
                "[generator]\nsecond = 4\n[amplifier]\nfirst = 1\nlinks = []\n".to_string(),
                "links: expected at least one",
            ),
            (
                "[generator]\nsecond = 4\n[amplifier]\nfirst = 1\nlinks = [[1, 2]]\n".to_string(),
                "of the amplifier has a wire",
            ),
            (
                "[generator]\nsecond = 4\n[amplifier]\ndevice = \"hub\"\nfirst = 1\nlinks = [[2, 2]]\n"
                    .to_string(),
                "device: there are",
            ),
        ] {
            let message = read(&text).unwrap_err();
            assert!(message.contains(want), "{text}: {message}");
            assert!(message.starts_with("wires.toml"), "{message}");
        }
    }

    fn topology(text: &str) -> Option<Topology> {
        Some(toml::from_str(text).unwrap())
    }

    #[test]
    fn incompatible_combinations_of_topology_amplifier_and_switch_are_reported() {
        let network = Switch::OpenFlow("192.0.2.1:6653".to_string());
        let generator = "[generator]\nports = [\"null:\", \"tap:t\"]\n";
        let one = || topology(&format!("{generator}first = 1\nsecond = 4\n"));
        let two = |device: &str| {
            topology(&format!(
                "{generator}second = 4\n[amplifier]\n{device}first = 1\nlinks = [[2, 2]]\n"
            ))
        };
        for (file, amplifier, switch, want) in [
            (None, None, &network, "expected --topology"),
            (one(), Some(Switch::ByHand), &network, "add [amplifier]"),
            (two(""), None, &network, "name it there"),
            (one(), None, &Switch::OpenVSwitch, "built in"),
            (None, Some(Switch::Taut), &Switch::Bridge, "cannot amplify"),
            (two(""), Some(Switch::Taut), &network, "cannot amplify"),
            (two(""), Some(network.clone()), &network, "must differ"),
            (
                two("device = \"openflow:192.0.2.1:6653\"\n"),
                None,
                &network,
                "must differ",
            ),
        ] {
            let said = Wires::new(file, amplifier, std::slice::from_ref(switch)).unwrap_err();
            assert!(said.contains(want), "{said}");
        }
        Wires::new(None, Some(Switch::Taut), &[Switch::Taut]).unwrap();
        Wires::new(two("device = \"by-hand\"\n"), None, &[network]).unwrap();
    }
}
