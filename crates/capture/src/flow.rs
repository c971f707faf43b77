//! Flows: packets between the same two endpoints, in both directions.

use crate::record::Record;
use etherparse::{LaxNetSlice, LaxSlicedPacket, TransportSlice};
use taut_wire::{Headers, IpProtocol, Layer3};

/// Offset of the flags in a TCP header (RFC 9293, section 3.1).
const TCP_FLAGS_AT: usize = 13;

/// The two endpoints of a flow, in an order that is the same for both directions, and the IP protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    /// Addresses of the two endpoints; IPv4 addresses are mapped into IPv6.
    pub addresses: (u128, u128),
    /// TCP, UDP or SCTP ports of the two endpoints; 0 if there are none.
    pub ports: (u16, u16),
    /// IP protocol.
    pub protocol: u8,
}

impl Flow {
    /// Returns the flow of a packet; none if it is no IP packet. The headers of a truncated packet are enough.
    #[inline]
    pub fn of(record: &Record<'_>) -> Option<Self> {
        Self::with_tcp_flags(record).map(|it| it.0)
    }

    /// Returns the flow, the flags of the TCP header (0 if there is none), and the index in the flow (0 or 1) of the
    /// endpoint that sent the packet.
    #[inline]
    pub fn with_tcp_flags(record: &Record<'_>) -> Option<(Self, u8, u8)> {
        let headers = Headers::of(record.frame);
        if headers.fault().is_some() {
            let is_cut = record.frame.len() < record.facts.wire_bytes as usize;
            return is_cut.then(|| Self::of_cut(record.frame)).flatten();
        }
        if headers.layer3() == Layer3::Other {
            return None;
        }
        let ports = headers.ports().unwrap_or((0, 0));
        let addresses = headers.addresses_in(record.frame);
        let protocol = headers.protocol();
        // A later fragment has no ports, and no flags.
        let tcp_flags = match protocol == IpProtocol::TCP && headers.ports().is_some() {
            true => headers.transport_in(record.frame).get(TCP_FLAGS_AT),
            false => None,
        };
        let (flow, sender) = Self::between(addresses, ports, protocol.0);
        Some((flow, tcp_flags.copied().unwrap_or(0), sender))
    }

    fn between(addresses: (u128, u128), ports: (u16, u16), protocol: u8) -> (Self, u8) {
        let ((source, from), (destination, to)) = ((addresses.0, ports.0), (addresses.1, ports.1));
        let is_in_order = (source, from) <= (destination, to);
        let (addresses, ports) = if is_in_order {
            (addresses, ports)
        } else {
            ((destination, source), (to, from))
        };
        let flow = Self {
            addresses,
            ports,
            protocol,
        };
        (flow, u8::from(!is_in_order))
    }

    #[cold]
    fn of_cut(frame: &[u8]) -> Option<(Self, u8, u8)> {
        let packet = LaxSlicedPacket::from_ethernet(frame).ok()?;
        let (addresses, protocol) = match packet.net? {
            LaxNetSlice::Ipv4(ip) => {
                let header = ip.header();
                let mapped = |it: std::net::Ipv4Addr| it.to_ipv6_mapped().to_bits();
                let ends = (header.source_addr(), header.destination_addr());
                ((mapped(ends.0), mapped(ends.1)), ip.payload().ip_number.0)
            }
            LaxNetSlice::Ipv6(ip) => {
                let header = ip.header();
                let ends = (header.source_addr(), header.destination_addr());
                (
                    (ends.0.to_bits(), ends.1.to_bits()),
                    ip.payload().ip_number.0,
                )
            }
            LaxNetSlice::Arp(_) => return None,
        };
        let (ports, tcp_flags) = match packet.transport {
            Some(TransportSlice::Udp(udp)) => ((udp.source_port(), udp.destination_port()), 0),
            Some(TransportSlice::Tcp(tcp)) => (
                (tcp.source_port(), tcp.destination_port()),
                tcp.slice()[TCP_FLAGS_AT],
            ),
            _ => ((0, 0), 0),
        };
        let (flow, sender) = Self::between(addresses, ports, protocol);
        Some((flow, tcp_flags, sender))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::record::Facts;
    use etherparse::PacketBuilder;

    #[test]
    fn both_directions_and_truncated_packets_belong_to_the_same_flow() {
        let frame = |there: bool| {
            let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
            let (source, destination) = if there { (a, b) } else { (b, a) };
            let (from, to) = if there { (1000, 53) } else { (53, 1000) };
            let builder = PacketBuilder::ethernet2([1; 6], [2; 6])
                .ipv4(source, destination, 64)
                .udp(from, to);
            let mut frame = Vec::new();
            builder.write(&mut frame, &[7; 400]).unwrap();
            frame
        };
        let flow = |frame: &[u8], wire_bytes: usize| {
            let facts = Facts {
                wire_bytes: wire_bytes as u32,
                ..Facts::default()
            };
            Flow::of(&Record { facts, frame })
        };
        let (there, back) = (frame(true), frame(false));
        let whole = flow(&there, there.len()).unwrap();
        assert_eq!(flow(&back, back.len()).unwrap(), whole);
        let sender = |frame: &[u8]| {
            let facts = Facts {
                wire_bytes: there.len() as u32,
                ..Facts::default()
            };
            Flow::with_tcp_flags(&Record { facts, frame }).unwrap().2
        };
        assert_eq!(
            [&there[..], &back, &there[..64], &back[..64]].map(sender),
            [0, 1, 0, 1]
        );
        assert_eq!(flow(&there[..64], there.len()).unwrap(), whole);
        assert_eq!(flow(&there[..20], there.len()), None);
        // The length in the header is wrong, so there is no flow.
        assert_eq!(flow(&there[..64], 64), None);
    }
}
