//! Addresses, protocol and ports of a frame: the five things that tell flows apart.

use std::net::IpAddr;
use taut_wire::{EtherType, Ethernet, IpProtocol, Ipv4, Ipv6};

pub(crate) const SCTP: IpProtocol = IpProtocol(132);
pub(crate) const PROTOCOLS_WITH_PORTS: [IpProtocol; 3] = [IpProtocol::TCP, IpProtocol::UDP, SCTP];

/// What tells flows apart.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tuple {
    pub(crate) protocol: IpProtocol,
    pub(crate) source: u128,
    pub(crate) destination: u128,
    /// Of source and destination; none for other protocols than TCP, UDP and SCTP, and for later fragments.
    pub(crate) ports: Option<(u16, u16)>,
    /// Part of a packet, the first among them.
    pub(crate) is_fragment: bool,
}

/// What a frame is to a function that looks at addresses and ports.
pub(crate) enum Seen {
    Tuple(Tuple),
    NoIp,
    Malformed,
}

impl Seen {
    /// Reads a frame.
    #[inline]
    pub(crate) fn of(frame: &[u8]) -> Self {
        let Ok(ethernet) = Ethernet::new(frame) else {
            return Self::Malformed;
        };
        match ethernet.ethertype() {
            EtherType::IPV4 => {
                let Ok(ip) = Ipv4::new(ethernet.payload()) else {
                    return Self::Malformed;
                };
                let is_first = ip.fragment_offset_bytes() == 0;
                Self::of_transport(
                    [ip.source().into(), ip.destination().into()],
                    ip.protocol(),
                    is_first.then_some(ip.payload()),
                    ip.is_fragment(),
                )
            }
            EtherType::IPV6 => {
                let Ok(ip) = Ipv6::new(ethernet.payload()) else {
                    return Self::Malformed;
                };
                let Ok(transport) = ip.transport() else {
                    return Self::Malformed;
                };
                let is_first = transport.fragment.is_none_or(|it| it.offset_bytes == 0);
                Self::of_transport(
                    [ip.source().into(), ip.destination().into()],
                    transport.protocol,
                    is_first.then_some(transport.payload),
                    transport.fragment.is_some(),
                )
            }
            _ => Self::NoIp,
        }
    }

    #[inline]
    fn of_transport(
        addresses: [IpAddr; 2],
        protocol: IpProtocol,
        header: Option<&[u8]>,
        is_fragment: bool,
    ) -> Self {
        let ports = match header {
            Some(header) if PROTOCOLS_WITH_PORTS.contains(&protocol) => match header {
                [a, b, c, d, ..] => {
                    Some((u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d])))
                }
                // Cut short in front of its ports: to let it pass would be to let it around the rules.
                _ => return Self::Malformed,
            },
            _ => None,
        };
        Self::Tuple(Tuple {
            protocol,
            source: mapped(addresses[0]),
            destination: mapped(addresses[1]),
            ports,
            is_fragment,
        })
    }
}

/// IPv4 addresses stand among those of IPv6.
pub(crate) fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}
