//! The settings of a router, as they are written and as they hold.

use super::text::{self, Asked};
use crate::SettingsError;
use serde::Deserialize;
use std::net::{IpAddr, Ipv6Addr};
use std::path::PathBuf;
use std::sync::Arc;
use taut_lpm::{PrefixV4, PrefixV6};
use taut_wire::Mac;

/// Interfaces there can be: ports of a chain.
const MOST_INTERFACES: usize = 64;
/// Addresses of one interface.
const MOST_ADDRESSES: usize = 64;
/// Shortest MTU: what IPv6 asks for (RFC 8200 section 5). The longest is that of an Ethernet jumbo frame.
const MTU: std::ops::RangeInclusive<u16> = 1280..=9000;
const USUAL_MTU: u16 = 1500;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Settings {
    #[serde(default)]
    interface: Vec<WrittenInterface>,
    routes: Option<PathBuf>,
    control: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenInterface {
    name: Option<String>,
    mac: String,
    addresses: Vec<String>,
    mtu: Option<u16>,
}

/// A prefix of either family.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Prefix {
    V4(PrefixV4),
    V6(PrefixV6),
}

impl Prefix {
    /// The prefix of so many bits that holds an address.
    pub fn of(address: IpAddr, length: u8) -> Self {
        match address {
            IpAddr::V4(address) => Self::V4(PrefixV4::of(address.into(), length)),
            IpAddr::V6(address) => Self::V6(PrefixV6::of(address.into(), length)),
        }
    }

    /// The prefix of one address.
    pub fn host(address: IpAddr) -> Self {
        Self::of(address, 128)
    }
}

impl std::fmt::Display for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::V4(prefix) => prefix.fmt(f),
            Self::V6(prefix) => prefix.fmt(f),
        }
    }
}

impl std::fmt::Debug for Prefix {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The router's end of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    /// Name in routes: the number of the port unless it is given one.
    pub name: String,
    pub mac: Mac,
    /// Addresses of the router's own, the link-local one of IPv6 among them.
    pub addresses: Arc<[IpAddr]>,
    /// Networks behind the port.
    pub networks: Vec<Prefix>,
    /// Longest IP packet that may leave, bytes.
    pub mtu: u16,
}

impl Interface {
    /// An own address for packets that go to an address, of its family: one of the same network, if there is one.
    pub fn address_towards(&self, to: IpAddr) -> Option<IpAddr> {
        let of_family = |address: &&IpAddr| address.is_ipv4() == to.is_ipv4();
        let own = self.addresses.iter().filter(of_family);
        let alike = |address: &&IpAddr| is_link_local(**address) == is_link_local(to);
        let mut alike_ones = own.clone().filter(alike);
        let network = |address: &&IpAddr| {
            self.networks
                .iter()
                .any(|network| holds(*network, **address) && holds(*network, to))
        };
        let near = alike_ones.clone().find(network);
        near.or(alike_ones.next()).or(own.clone().next()).copied()
    }
}

/// Whether an address means something on its link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

pub(super) fn holds(prefix: Prefix, address: IpAddr) -> bool {
    match (prefix, address) {
        (Prefix::V4(prefix), IpAddr::V4(address)) => prefix.holds(address.into()),
        (Prefix::V6(prefix), IpAddr::V6(address)) => prefix.holds(address.into()),
        _ => false,
    }
}

/// [`Settings`] that make sense.
#[derive(Debug, Clone)]
pub(super) struct Checked {
    pub interfaces: Arc<[Interface]>,
    /// Routes beside those of the interfaces.
    pub routes: Arc<[Asked]>,
    /// Path of the control socket.
    pub control: Option<PathBuf>,
}

impl Settings {
    pub fn check(self) -> Result<Checked, SettingsError> {
        let count = self.interface.len();
        if !(1..=MOST_INTERFACES).contains(&count) {
            return Err(SettingsError(format!(
                "interface: want one [[function.interface]] for each port of the chain, 1 to {MOST_INTERFACES}, not {count}"
            )));
        }
        let mut interfaces: Vec<Interface> = Vec::with_capacity(count);
        for (number, written) in self.interface.into_iter().enumerate() {
            let made = interface(number, written, &interfaces);
            let wrong = |reason: String| SettingsError(format!("interface {number}: {reason}"));
            interfaces.push(made.map_err(wrong)?);
        }
        let routes = match &self.routes {
            None => Vec::new(),
            Some(path) => {
                let wrong =
                    |reason: String| SettingsError(format!("routes: {}: {reason}", path.display()));
                let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
                text::parse(&text, &interfaces).map_err(|(line, reason)| {
                    SettingsError(format!("routes: {}:{line}: {reason}", path.display()))
                })?
            }
        };
        Ok(Checked {
            interfaces: interfaces.into(),
            routes: routes.into(),
            control: self.control,
        })
    }
}

fn interface(
    number: usize,
    written: WrittenInterface,
    before: &[Interface],
) -> Result<Interface, String> {
    let name = written.name.unwrap_or_else(|| number.to_string());
    if name.is_empty() || name.contains(char::is_whitespace) {
        return Err(format!("name: want a word, not \"{name}\""));
    }
    if before.iter().any(|other| other.name == name) {
        return Err(format!("name: \"{name}\" is there twice"));
    }
    let text = &written.mac;
    let mac: Mac = text
        .parse()
        .map_err(|_| format!("mac: want an address such as 02:00:00:00:00:01, not \"{text}\""))?;
    if mac.is_multicast() || mac == Mac::default() {
        return Err(format!("mac: {mac} is no address of one station"));
    }
    let count = written.addresses.len();
    if !(1..=MOST_ADDRESSES).contains(&count) {
        return Err(format!(
            "addresses: want 1 to {MOST_ADDRESSES}, not {count}"
        ));
    }
    let mut own = Vec::new();
    let mut networks = Vec::new();
    for text in &written.addresses {
        let (address, length) = text::address_and_length(text)
            .ok_or_else(|| format!("addresses: want one such as 192.0.2.1/24, not \"{text}\""))?;
        if address.is_multicast() || address.is_unspecified() || address.is_loopback() {
            return Err(format!("addresses: {address} is no address of one station"));
        }
        let is_there = |other: &IpAddr| *other == address;
        if own.iter().any(is_there) || before.iter().any(|it| it.addresses.iter().any(is_there)) {
            return Err(format!("addresses: {address} is there twice"));
        }
        let network = Prefix::of(address, length);
        if let Some(other) = before.iter().find(|it| it.networks.contains(&network)) {
            return Err(format!(
                "addresses: {network} is behind interface {} already",
                other.name
            ));
        }
        own.push(address);
        if !networks.contains(&network) {
            networks.push(network);
        }
    }
    if own.iter().any(IpAddr::is_ipv6) {
        let link_local = IpAddr::V6(link_local(mac));
        if !own.contains(&link_local) {
            own.push(link_local);
        }
    }
    let mtu = written.mtu.unwrap_or(USUAL_MTU);
    if !MTU.contains(&mtu) {
        let (least, most) = (MTU.start(), MTU.end());
        return Err(format!("mtu = {mtu}: want {least} to {most} bytes"));
    }
    Ok(Interface {
        name,
        mac,
        addresses: own.into(),
        networks,
        mtu,
    })
}

/// The address that a station of IPv6 makes itself of its MAC address (RFC 4291 appendix A, RFC 2464 section 5).
fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let mut octets = [
        0xfe,
        0x80,
        0,
        0,
        0,
        0,
        0,
        0,
        a ^ 2,
        b,
        c,
        0xff,
        0xfe,
        d,
        e,
        f,
    ];
    octets[8] = a ^ 2;
    octets.into()
}
