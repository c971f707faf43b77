//! Switches that can be measured, and what each of them can do.

use super::openflow::{Address, Controller};
use super::part::{Does, Matching, Part};
use super::topology::Topology;
use crate::benchmark::Failed;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::net::ToSocketAddrs;
use std::str::FromStr;
use std::time::Duration;
use taut_host::Missing;
use taut_host::baseline::probe_cabled;
use taut_host::permissions::{can_load_xdp, can_make_namespaces, can_open_packet_sockets};
use taut_results::LeftOut;

/// How long a switch on the network may take to greet.
const GREETING: Duration = Duration::from_secs(3);
/// More rules nobody makes by hand.
const MOST_BY_HAND: u32 = 10;
const MOST_IN_KERNEL: u32 = 63;
/// Each port takes packet memory of its own, which the kernel locks.
const MOST_AF_XDP_CABLES: u32 = 8;
/// Background is copied so often.
pub(super) const COPIES: u32 = 3;

/// A switch that is measured.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Switch {
    /// The function `switch` of `taut forward` between memif links; cables are `pair` ports.
    Taut,
    /// The same on AF_XDP sockets of veth interfaces; cables are veth pairs.
    TautAfXdp,
    /// The same in the kernel, between veth interfaces, with rules from a file; cables are veth pairs.
    TautInKernel,
    /// Open vSwitch with its user-space datapath and DPDK.
    OpenVSwitch,
    /// The kernel's bridge between veth interfaces; cables are veth pairs.
    Bridge,
    /// A switch on the network that waits for controllers at this `HOST:PORT`.
    OpenFlow(String),
    /// A switch whose rules a person makes.
    ByHand,
}

/// Those that have no address.
const NAMED: [Switch; 6] = [
    Switch::Taut,
    Switch::TautAfXdp,
    Switch::TautInKernel,
    Switch::OpenVSwitch,
    Switch::Bridge,
    Switch::ByHand,
];

impl Switch {
    /// Name of the switch on the command line and in files.
    pub fn id(&self) -> &str {
        match self {
            Self::Taut => "taut",
            Self::TautAfXdp => "taut-af-xdp",
            Self::TautInKernel => "taut-in-kernel",
            Self::OpenVSwitch => "openvswitch",
            Self::Bridge => "bridge",
            Self::OpenFlow(_) => "openflow",
            Self::ByHand => "by-hand",
        }
    }

    /// Name of the switch in tables.
    pub fn label(&self) -> String {
        match self {
            Self::Taut => "taut".to_string(),
            Self::TautAfXdp => "taut, AF_XDP".to_string(),
            Self::TautInKernel => "taut, in the kernel".to_string(),
            Self::OpenVSwitch => "Open vSwitch".to_string(),
            Self::Bridge => "Linux bridge".to_string(),
            Self::OpenFlow(_) => self.to_string(),
            Self::ByHand => "by hand".to_string(),
        }
    }

    /// Name of the switch as part of the name of a file.
    pub(super) fn file_name(&self) -> String {
        let name = self.to_string();
        name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-")
    }

    /// Whether it is set up here, and taken down again.
    pub(super) fn is_set_up(&self) -> bool {
        !matches!(self, Self::OpenFlow(_) | Self::ByHand)
    }

    /// Version that this machine has, or what is missing.
    pub(super) fn found(&self) -> Result<String, LeftOut> {
        let missing = |missing: Missing| LeftOut {
            what: self.label(),
            why: missing.what,
            how: missing.how_to_get_it,
        };
        let own = || format!("taut {}", env!("CARGO_PKG_VERSION"));
        match self {
            Self::Taut => Ok(own()),
            Self::TautAfXdp | Self::TautInKernel => can_make_namespaces()
                .and_then(|()| can_load_xdp())
                .map(|()| own())
                .map_err(missing),
            Self::OpenVSwitch => probe_cabled().map_err(missing),
            Self::Bridge => can_make_namespaces()
                .and_then(|()| can_open_packet_sockets())
                .map(|()| "of this kernel".to_string())
                .map_err(missing),
            Self::OpenFlow(_) => self.describe().map_err(|why| LeftOut {
                what: self.label(),
                why,
                how: "look whether it waits for controllers there, and speaks OpenFlow 1.3"
                    .to_string(),
            }),
            Self::ByHand => Ok("as a person says".to_string()),
        }
    }

    /// Where a switch on the network waits for controllers.
    pub(super) fn address(&self) -> Result<Address, String> {
        let Self::OpenFlow(text) = self else {
            return Err(format!("{self} has no address"));
        };
        let mut found = text.to_socket_addrs().map_err(|e| format!("{text}: {e}"))?;
        let first = found.next().ok_or_else(|| format!("{text}: no address"))?;
        Ok(Address::Tcp(first))
    }

    /// What a switch on the network says of itself.
    fn describe(&self) -> Result<String, String> {
        let controller = Controller::connect(&self.address()?, &[], GREETING);
        let described = controller.and_then(|mut it| it.description());
        described.map_err(|failed| match failed {
            Failed::Broken(why) => why,
            Failed::Stopped => "stopped".to_string(),
        })
    }

    /// Why it cannot do what a point wants, if it cannot. Nothing is said of points that are there to compare with and that it has
    /// no counterpart of.
    pub(super) fn cannot(&self, part: Part, wires: &Wires) -> Option<&'static str> {
        const ONLY_FLOODS: &str = "a bridge has no rules: it sends from port to port";
        match (self, part) {
            (Self::Taut, _) => None,
            (Self::TautAfXdp, Part::Qos { .. }) => {
                Some("wires of the kernel drop what they have no room for: nothing waits in it")
            }
            (Self::TautAfXdp, Part::Amplify { cables }) if cables > MOST_AF_XDP_CABLES => {
                Some("it gets 8 cables at most, as each port has packet memory of its own")
            }
            (Self::TautAfXdp, _) => None,
            (Self::TautInKernel, Part::Qos { .. }) => Some("programs in the kernel have no queues"),
            (Self::TautInKernel, Part::Insertion { .. }) => {
                Some("in the kernel rules stand in a file, and stay")
            }
            (Self::TautInKernel, Part::Rules { rules, .. }) if rules > MOST_IN_KERNEL => {
                Some("there are 63 rules in the kernel at most")
            }
            (Self::TautInKernel, Part::Actions { does }) if does != Does::Output => {
                Some("but for sending and addresses of stations, the process does it")
            }
            (Self::TautInKernel, _) => None,
            (Self::OpenVSwitch, Part::Qos { .. }) => {
                Some("its user-space datapath has no queues of strict priority")
            }
            (Self::Bridge, Part::Qos { .. } | Part::Insertion { .. } | Part::Actions { .. }) => {
                Some(ONLY_FLOODS)
            }
            (Self::Bridge, Part::Rules { matching, .. }) if matching != Matching::Plain => {
                Some(ONLY_FLOODS)
            }
            (Self::Bridge, _) => None,
            (
                _,
                Part::Rules {
                    matching: Matching::Plain,
                    ..
                },
            ) => Some(""),
            (Self::OpenVSwitch, _) => None,
            (Self::OpenFlow(_) | Self::ByHand, Part::Qos { .. })
                if wires.return_pps().is_none() =>
            {
                Some("the topology file does not say what the port back carries (return_pps)")
            }
            (Self::OpenFlow(_) | Self::ByHand, Part::Qos { .. })
                if wires.feeds() < COPIES as usize =>
            {
                Some("background wants 2 cables, or 3 links to the amplifier")
            }
            (Self::ByHand, Part::Insertion { .. }) => {
                Some("what a person takes says nothing about the switch")
            }
            (Self::ByHand, Part::Rules { rules, .. }) if rules > MOST_BY_HAND => {
                Some("nobody makes more than 10 rules by hand")
            }
            (Self::OpenFlow(_) | Self::ByHand, _) => None,
        }
    }

    /// How long a switch may take over the first packet of each flow.
    pub(super) fn first_packet(&self) -> Duration {
        match self {
            // It makes a flow of its own of each address.
            Self::OpenVSwitch | Self::OpenFlow(_) => Duration::from_micros(20),
            _ => Duration::from_micros(1),
        }
    }

    /// How often it brings its counters up to date.
    pub(super) fn counts_every(&self) -> Duration {
        Duration::from_millis(match self {
            // About twice a second, and with others it is not known.
            Self::OpenVSwitch | Self::OpenFlow(_) => 1_100,
            _ => 5,
        })
    }

    /// About how long its start takes.
    pub(super) fn starts_within(&self) -> Duration {
        Duration::from_millis(match self {
            Self::Taut => 350,
            Self::TautAfXdp | Self::TautInKernel | Self::Bridge => 1_500,
            Self::OpenVSwitch => 3_000,
            Self::OpenFlow(_) => 100,
            Self::ByHand => 60_000,
        })
    }
}

impl Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenFlow(address) => write!(f, "openflow:{address}"),
            _ => f.write_str(self.id()),
        }
    }
}

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(switch) = NAMED.into_iter().find(|switch| switch.id() == text) {
            return Ok(switch);
        }
        let Some(address) = text.strip_prefix("openflow:") else {
            return Err(
                "there are taut, taut-af-xdp, taut-in-kernel, openvswitch, bridge, openflow:HOST:PORT and by-hand"
                    .to_string(),
            );
        };
        let parts = address.rsplit_once(':');
        let is_address = parts.is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        match is_address {
            true => Ok(Self::OpenFlow(address.to_string())),
            false => Err("want openflow:HOST:PORT, such as openflow:192.0.2.1:6653".to_string()),
        }
    }
}

impl From<Switch> for String {
    fn from(switch: Switch) -> Self {
        switch.to_string()
    }
}

impl TryFrom<String> for Switch {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

/// What switches are wired with.
#[derive(Debug, Clone, Default)]
pub struct Wires {
    /// None is what is built in.
    pub topology: Option<Topology>,
    /// The switch that multiplies traffic, if that is another one.
    pub amplifier: Option<Switch>,
}

impl Wires {
    /// Wires that a file says, and a switch that multiplies traffic if it names one or `amplifier` does.
    ///
    /// # Errors
    /// When both do not go together, or not with the switches.
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
                    "--amplifier: the topology says nothing of its wires; add [amplifier]"
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
                    "{switch}: want --topology FILE, which says which ports of the generator lead to it (generator.ports)"
                ));
            }
            if *switch == Switch::OpenVSwitch && topology.is_some() {
                return Err(format!(
                    "{switch}: its wires are built in; leave --topology out, or the switch"
                ));
            }
            let Some(amplifier) = &amplifier else {
                continue;
            };
            let goes_together = match amplifier {
                Switch::Taut => *switch == Switch::Taut,
                other => !other.is_set_up() && needs_file,
            };
            if !goes_together {
                return Err(format!(
                    "--amplifier {amplifier}: it cannot stand before {switch}; taut stands before taut, a switch on the network before another"
                ));
            }
            if amplifier == switch && needs_file && *switch != Switch::ByHand {
                return Err(format!(
                    "--amplifier {amplifier}: want another switch than the one that is measured"
                ));
            }
        }
        Ok(Self {
            topology,
            amplifier,
        })
    }

    /// Background packets a second that the port back carries, where that is not made here.
    pub(super) fn return_pps(&self) -> Option<f64> {
        self.topology.as_ref()?.generator.return_pps
    }

    /// Ports that background can come in through.
    fn feeds(&self) -> usize {
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
    use crate::switched::part::{Lengths, Order};
    use taut_results::Mode;

    fn topology(text: &str) -> Option<Topology> {
        Some(toml::from_str(text).unwrap())
    }

    #[test]
    fn switches_have_names_that_are_read_back() {
        for text in [
            "taut",
            "taut-af-xdp",
            "taut-in-kernel",
            "openvswitch",
            "bridge",
            "by-hand",
            "openflow:[2001:db8::1]:6653",
            "openflow:switch.example:6653",
        ] {
            let switch: Switch = text.parse().unwrap();
            assert_eq!(switch.to_string(), text);
            let name = switch.file_name();
            assert!(!name.contains([':', '[', '/']), "{name}");
        }
        for text in [
            "",
            "hub",
            "openflow:",
            "openflow:host",
            "openflow:host:0",
            "openflow::1",
        ] {
            text.parse::<Switch>().unwrap_err();
        }
    }

    #[test]
    fn what_a_switch_cannot_do_has_a_reason() {
        let wires = Wires::default();
        let rules = |matching, rules| Part::Rules { matching, rules };
        let insertion = Part::Insertion {
            order: Order::Equal,
        };
        let qos = Part::Qos {
            load_percent: 0,
            priority: true,
        };
        let actions = Part::Actions { does: Does::Meter };
        let network = Switch::OpenFlow("h:1".to_string());
        for (switch, part, can) in [
            (&Switch::Taut, qos, true),
            (&Switch::TautAfXdp, qos, false),
            (&Switch::TautAfXdp, Part::Amplify { cables: 23 }, false),
            (&Switch::TautInKernel, Part::Amplify { cables: 23 }, true),
            (&Switch::TautInKernel, rules(Matching::Exact, 1), true),
            (&Switch::TautInKernel, rules(Matching::Exact, 1_000), false),
            (&Switch::TautInKernel, actions, false),
            (&Switch::OpenVSwitch, qos, false),
            (&Switch::OpenVSwitch, rules(Matching::Exact, 1), true),
            (&Switch::Bridge, Part::Hops { loops: 3 }, true),
            (&Switch::Bridge, Part::Amplify { cables: 3 }, true),
            (&Switch::Bridge, rules(Matching::Plain, 0), true),
            (&Switch::Bridge, rules(Matching::Exact, 1), false),
            (&Switch::Bridge, actions, false),
            (&network, qos, false),
            (&network, insertion, true),
            (&Switch::ByHand, insertion, false),
            (&Switch::ByHand, rules(Matching::Exact, 1), true),
            (&Switch::ByHand, rules(Matching::Exact, 1_000), false),
        ] {
            let why = switch.cannot(part, &wires);
            assert_eq!(why.is_none(), can, "{switch} {part:?}: {why:?}");
        }
        let file = topology(
            "cables = [[2, 3], [4, 5]]\n[generator]\nfirst = 1\nsecond = 6\nreturn_pps = 1e5\n",
        );
        let wires = Wires::new(file, None, &[]).unwrap();
        assert_eq!(network.cannot(qos, &wires), None);
        assert!(Lengths::of(Mode::Quick).parts(|_| true).contains(&qos));
    }

    #[test]
    fn what_does_not_go_together_is_said() {
        let network = Switch::OpenFlow("192.0.2.1:6653".to_string());
        let generator = "[generator]\nports = [\"null:\", \"tap:t\"]\n";
        let one = || topology(&format!("{generator}first = 1\nsecond = 4\n"));
        let two = |device: &str| {
            topology(&format!(
                "{generator}second = 4\n[amplifier]\n{device}first = 1\nlinks = [[2, 2]]\n"
            ))
        };
        for (file, amplifier, switch, want) in [
            (None, None, &network, "want --topology"),
            (one(), Some(Switch::ByHand), &network, "add [amplifier]"),
            (two(""), None, &network, "name it there"),
            (one(), None, &Switch::OpenVSwitch, "built in"),
            (None, Some(Switch::Taut), &Switch::Bridge, "cannot stand"),
            (two(""), Some(Switch::Taut), &network, "cannot stand"),
            (two(""), Some(network.clone()), &network, "another switch"),
            (
                two("device = \"openflow:192.0.2.1:6653\"\n"),
                None,
                &network,
                "another switch",
            ),
        ] {
            let said = Wires::new(file, amplifier, std::slice::from_ref(switch)).unwrap_err();
            assert!(said.contains(want), "{said}");
        }
        Wires::new(None, Some(Switch::Taut), &[Switch::Taut]).unwrap();
        Wires::new(two("device = \"by-hand\"\n"), None, &[network]).unwrap();
    }
}
