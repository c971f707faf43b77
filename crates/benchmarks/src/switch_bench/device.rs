//! Switches that can be measured.

use super::openflow::{Address, Controller};
use super::p4runtime;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::fmt::{self, Display};
use std::net::{SocketAddr, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;
use taut_bench::benchmark::Failed;
use taut_host::Missing;
use taut_host::baseline::probe_cabled;
use taut_host::permissions::{can_load_xdp, can_make_namespaces, can_open_packet_sockets};
use taut_results::LeftOut;

/// Timeout for the greeting of a switch on the network.
const GREETING: Duration = Duration::from_secs(3);

/// A switch to measure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(into = "String", try_from = "String")]
pub enum Switch {
    /// The function `switch` of `taut forward` between memif links. The cables that connect pairs of its own ports are
    /// `pair` ports.
    Taut,
    /// The function `switch` of `taut forward` on AF_XDP sockets of veth interfaces. The cables that connect pairs of
    /// its own ports are veth pairs.
    TautAfXdp,
    /// The function `switch` in the kernel, between veth interfaces, with rules from a file. The cables that connect
    /// pairs of its own ports are veth pairs.
    TautInKernel,
    /// Open vSwitch with its user-space datapath and DPDK.
    OpenVSwitch,
    /// The kernel's bridge with veth interfaces as ports. A veth pair takes the place of each cable from port to port.
    Bridge,
    /// A switch on the network that listens for controllers at this `HOST:PORT`.
    OpenFlow(String),
    /// A switch on the network that has a P4Runtime server at this `HOST:PORT`.
    P4Runtime(String),
    /// A switch into which a person enters the rules by hand.
    ByHand,
}

/// Makes a switch on the network from its `HOST:PORT`.
type Make = fn(String) -> Switch;

/// The switches that are known by a name, without a network address.
const NAMED: [Switch; 6] = [
    Switch::Taut,
    Switch::TautAfXdp,
    Switch::TautInKernel,
    Switch::OpenVSwitch,
    Switch::Bridge,
    Switch::ByHand,
];

impl Switch {
    /// Returns the name of the switch for the command line and files.
    pub fn id(&self) -> &str {
        match self {
            Self::Taut => "taut",
            Self::TautAfXdp => "taut-af-xdp",
            Self::TautInKernel => "taut-in-kernel",
            Self::OpenVSwitch => "openvswitch",
            Self::Bridge => "bridge",
            Self::OpenFlow(_) => "openflow",
            Self::P4Runtime(_) => "p4runtime",
            Self::ByHand => "by-hand",
        }
    }

    /// Returns the name of the switch in tables.
    pub fn label(&self) -> String {
        match self {
            Self::Taut => "taut".to_string(),
            Self::TautAfXdp => "taut, AF_XDP".to_string(),
            Self::TautInKernel => "taut, in the kernel".to_string(),
            Self::OpenVSwitch => "Open vSwitch".to_string(),
            Self::Bridge => "Linux bridge".to_string(),
            Self::OpenFlow(_) | Self::P4Runtime(_) => self.to_string(),
            Self::ByHand => "by hand".to_string(),
        }
    }

    /// Returns the name of the switch as part of a file name.
    pub(super) fn file_name(&self) -> String {
        let name = self.to_string();
        name.replace(|c: char| !c.is_ascii_alphanumeric() && c != '.', "-")
    }

    /// Returns true if this machine sets up and removes the switch; false for a switch that runs elsewhere.
    pub(super) fn is_set_up(&self) -> bool {
        !matches!(self, Self::OpenFlow(_) | Self::P4Runtime(_) | Self::ByHand)
    }

    /// Returns the version of the switch on this machine, or the missing requirement.
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
                how: "check that it listens for controllers there and supports OpenFlow 1.3"
                    .to_string(),
            }),
            Self::P4Runtime(_) => self.api_version().map_err(|why| LeftOut {
                what: self.label(),
                why,
                how: "check that its P4Runtime server listens there, without TLS".to_string(),
            }),
            Self::ByHand => Ok("as a person says".to_string()),
        }
    }

    /// Returns the address at which a switch on the network listens for controllers.
    pub(super) fn address(&self) -> Result<Address, String> {
        match self {
            Self::OpenFlow(text) => Ok(Address::Tcp(resolved(text)?)),
            _ => Err(format!("{self} has no address")),
        }
    }

    /// Returns the address of a P4Runtime server; none if the switch has none.
    pub(super) fn p4runtime_address(&self) -> Option<Result<SocketAddr, String>> {
        match self {
            Self::P4Runtime(text) => Some(resolved(text)),
            _ => None,
        }
    }

    fn api_version(&self) -> Result<String, String> {
        let address = self.p4runtime_address();
        let address = address.ok_or_else(|| format!("{self} has no address"))??;
        p4runtime::version(address, GREETING).map_err(|error| error.to_string())
    }

    /// Returns the description that a switch on the network sends over OpenFlow.
    fn describe(&self) -> Result<String, String> {
        let controller = Controller::connect(&self.address()?, &[], GREETING);
        let described = controller.and_then(|mut it| it.description());
        described.map_err(|failed| match failed {
            Failed::Broken(why) => why,
            Failed::Stopped => "stopped".to_string(),
        })
    }

    /// Returns the maximum time that the switch needs for the first packet of each flow.
    pub(super) fn first_packet(&self) -> Duration {
        match self {
            // These switches may create a flow entry for each address.
            Self::OpenVSwitch | Self::OpenFlow(_) | Self::P4Runtime(_) => Duration::from_micros(20),
            _ => Duration::from_micros(1),
        }
    }

    /// Returns the interval at which the switch updates its counters.
    pub(super) fn counts_every(&self) -> Duration {
        Duration::from_millis(match self {
            // Open vSwitch updates its counters about twice a second; the interval of other switches is unknown.
            Self::OpenVSwitch | Self::OpenFlow(_) | Self::P4Runtime(_) => 1_100,
            _ => 5,
        })
    }

    /// Returns the approximate time that starting the switch takes.
    pub(super) fn starts_within(&self) -> Duration {
        Duration::from_millis(match self {
            Self::Taut => 350,
            Self::TautAfXdp | Self::TautInKernel | Self::Bridge => 1_500,
            Self::OpenVSwitch => 3_000,
            Self::OpenFlow(_) | Self::P4Runtime(_) => 100,
            Self::ByHand => 60_000,
        })
    }
}

/// Returns the first address of a `HOST:PORT`.
fn resolved(text: &str) -> Result<SocketAddr, String> {
    let mut found = text.to_socket_addrs().map_err(|e| format!("{text}: {e}"))?;
    found.next().ok_or_else(|| format!("{text}: no address"))
}

impl Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OpenFlow(address) | Self::P4Runtime(address) => {
                write!(f, "{}:{address}", self.id())
            }
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
        let of_network: [(&str, u16, Make); 2] = [
            ("openflow:", 6653, Self::OpenFlow),
            ("p4runtime:", 9559, Self::P4Runtime),
        ];
        let named = of_network.into_iter().find_map(|(prefix, port, make)| {
            let address = text.strip_prefix(prefix)?;
            Some((prefix, port, make, address))
        });
        let Some((prefix, port, make, address)) = named else {
            return Err(
                "there are taut, taut-af-xdp, taut-in-kernel, openvswitch, bridge, openflow:HOST:PORT, \
                 p4runtime:HOST:PORT and by-hand"
                    .to_string(),
            );
        };
        let parts = address.rsplit_once(':');
        let is_address = parts.is_some_and(|(host, port)| {
            !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port != 0)
        });
        match is_address {
            true => Ok(make(address.to_string())),
            false => Err(format!(
                "expected {prefix}HOST:PORT, such as {prefix}192.0.2.1:{port}"
            )),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn switch_names_are_parsed_and_printed_unchanged() {
        for text in [
            "taut",
            "taut-af-xdp",
            "taut-in-kernel",
            "openvswitch",
            "bridge",
            "by-hand",
            "openflow:[2001:db8::1]:6653",
            "openflow:switch.example:6653",
            "p4runtime:switch.example:9559",
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
            "p4runtime:host",
        ] {
            text.parse::<Switch>().unwrap_err();
        }
    }
}
