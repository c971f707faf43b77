//! Values that rules compare with the headers of a packet, as settings contain them: prefixes, protocols and ports.

use crate::SettingsError;
use crate::tuple::mapped;
use serde::Deserialize;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use taut_wire::IpProtocol;
use taut_xdp::functions::KernelFields;

/// A range of IP addresses, given by a prefix. IPv4 addresses are mapped into IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prefix {
    /// The leading bits that all addresses of the range have; the other bits are 0.
    pub bits: u128,
    /// The mask of the leading bits that addresses of the range share.
    pub mask: u128,
}

impl Prefix {
    /// Parses an address, or a prefix whose other bits are 0, such as `10.1.0.0/16`. None if the text is neither.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        // The first 96 bits of a mapped address are the same for all IPv4 addresses.
        let (whole, before) = if address.is_ipv4() {
            (32, 96)
        } else {
            (128, 0)
        };
        let length = length.unwrap_or(whole);
        if length > whole {
            return None;
        }
        let mask = u128::MAX.checked_shl(128 - before - length).unwrap_or(0);
        let bits = mapped(address);
        (bits & !mask == 0).then_some(Self { bits, mask })
    }

    /// Returns true if the address is in the range.
    #[inline]
    pub fn has(&self, address: u128) -> bool {
        address & self.mask == self.bits
    }
}

/// An IP protocol by name or number, as settings contain it.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected \"tcp\", \"udp\", \"icmp\", \"icmpv6\" or a number from 0 to 255"
)]
pub enum ProtocolText {
    /// The protocol number.
    Number(u8),
    /// The protocol's name, such as `udp`.
    Name(String),
}

/// A TCP, UDP or SCTP port or a range of ports, as settings contain it.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a port, such as 53, or a range, such as \"1024-65535\""
)]
pub enum PortText {
    /// One port.
    One(u16),
    /// A range of ports, such as `1024-65535`.
    Range(String),
}

/// Parses the prefix that is the value of the key `key`.
///
/// # Errors
/// Fails if the text is no prefix, or an address has bits other than 0 after the prefix.
pub fn prefix(key: &str, text: Option<String>) -> Result<Option<Prefix>, SettingsError> {
    let parsed = text.map(|text| {
        Prefix::parse(&text).ok_or_else(|| {
            SettingsError(format!(
                "{key} = \"{text}\": expected an address, or a network whose other bits are 0, such as \"10.1.0.0/16\""
            ))
        })
    });
    parsed.transpose()
}

/// Parses the ports that are the value of the key `key`.
///
/// # Errors
/// Fails if the text is no range of ports.
pub fn ports(
    key: &str,
    text: Option<PortText>,
) -> Result<Option<RangeInclusive<u16>>, SettingsError> {
    let parsed = text.map(|text| match text {
        PortText::One(port) => Ok(port..=port),
        PortText::Range(text) => port_range(&text).ok_or_else(|| {
            SettingsError(format!(
                "{key} = \"{text}\": expected a port, such as 53, or a range, such as \"1024-65535\""
            ))
        }),
    });
    parsed.transpose()
}

/// Returns the protocol with this name or number.
///
/// # Errors
/// Fails if the name is unknown.
pub fn protocol(text: ProtocolText) -> Result<IpProtocol, SettingsError> {
    let name = match text {
        ProtocolText::Number(number) => return Ok(IpProtocol(number)),
        ProtocolText::Name(name) => name,
    };
    let known = [
        ("tcp", IpProtocol::TCP),
        ("udp", IpProtocol::UDP),
        ("icmp", IpProtocol(1)),
        ("icmpv6", IpProtocol(58)),
        ("sctp", IpProtocol::SCTP),
    ];
    known
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, protocol)| *protocol)
        .ok_or_else(|| {
            SettingsError(format!(
                "protocol = \"{name}\": expected {}, or a number from 0 to 255",
                known.map(|(name, _)| name).join(", ")
            ))
        })
}

fn port_range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let range = first.trim().parse().ok()?..=last.trim().parse().ok()?;
    (!range.is_empty()).then_some(range)
}

/// Returns the fields that a rule compares in the form of the kernel's programs. `prefixes` and `ports` are those of the
/// source, then of the destination.
pub fn in_kernel(
    protocol: Option<IpProtocol>,
    prefixes: [Option<Prefix>; 2],
    ports: [&Option<RangeInclusive<u16>>; 2],
) -> KernelFields {
    let [source, destination] = prefixes.map(|it| it.map_or((0, 0), |it| (it.bits, it.mask)));
    let [source_ports, destination_ports] =
        ports.map(|it| it.as_ref().map(|it| (*it.start(), *it.end())));
    KernelFields {
        protocol: protocol.map(|it| it.0),
        source,
        destination,
        source_ports,
        destination_ports,
    }
}
