//! Keys: the properties, such as addresses and ports, by which packets are found on disk. Each frame has several keys,
//! and a query requests some of them.
//!
//! A frame is parsed as leniently as by the filters of libpcap. Each field that a filter would read is read, even if
//! the rest of the frame is truncated or wrong. `taut_wire::Headers` would reject frames of which only the beginning is
//! stored.

use std::net::IpAddr;
use taut_wire::EtherType;

/// A property of packets in the index. A frame that matches a filter of libpcap has the keys named here, unless the
/// filter shifts its offsets (`mpls`, `pppoes`, `geneve`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Key {
    /// Address that the filter `host` matches: source or destination of IP, sender or target of ARP and RARP.
    Address(IpAddr),
    /// Port that the filter `port` matches: source or destination of TCP, UDP and SCTP. Later fragments have none.
    Port {
        /// Protocol number.
        protocol: u8,
        /// Port number.
        port: u16,
    },
    /// Protocol in an IPv4, IPv6 or extension header, which the filters `ip proto`, `ip6 proto`, `tcp`, `udp` and
    /// `icmp` match.
    Protocol(u8),
    /// Protocol in an Ethernet header or in one of up to four VLAN tags, which the filters `ether proto`, `ip`, `ip6`
    /// and `arp` match.
    EtherType(u16),
    /// VLAN identifier, which the filter `vlan` matches.
    Vlan(u16),
    /// Flow: both endpoints, in any order, and the protocol. The ports are 0 if a packet has none.
    Flow {
        /// Address and port of one endpoint.
        one: (IpAddr, u16),
        /// Address and port of the other endpoint.
        other: (IpAddr, u16),
        /// Protocol number.
        protocol: u8,
    },
}

/// Kinds of keys: the upper 8 bits of their codes. If not all keys of a block fit, the kinds with the lowest numbers
/// are dropped first.
pub(super) const FLOW: u8 = 0;
pub(super) const PORT: u8 = 1;
pub(super) const IPV6: u8 = 2;
pub(super) const IPV4: u8 = 3;
pub(super) const VLAN: u8 = 4;
pub(super) const ETHERTYPE: u8 = 5;
pub(super) const PROTOCOL: u8 = 6;
pub(super) const KINDS: u8 = 7;

const KIND_AT: u32 = 56;
const VALUE: u64 = (1 << KIND_AT) - 1;

/// Maximum number of VLAN tags that are skipped to find the IP header of a frame.
const MOST_TAGS: usize = 4;
/// Maximum number of IPv6 extension headers that are skipped to find the transport header of a frame.
const MOST_EXTENSIONS: usize = 8;

/// Returns the kind of the key with the given code.
#[inline]
pub(super) fn kind(code: u64) -> u8 {
    (code >> KIND_AT) as u8
}

impl Key {
    /// Returns the code of the key: its number in the index. The number is exact, except that for IPv6 addresses and
    /// flows it is a hash.
    pub(super) fn code(self) -> u64 {
        match self {
            Self::Address(IpAddr::V4(address)) => ipv4(address.to_bits()),
            Self::Address(IpAddr::V6(address)) => ipv6(address.to_bits()),
            Self::Port { protocol, port } => port_code(protocol, port),
            Self::Protocol(protocol) => code(PROTOCOL, protocol.into()),
            Self::EtherType(ethertype) => code(ETHERTYPE, ethertype.into()),
            Self::Vlan(vlan) => code(VLAN, vlan.into()),
            Self::Flow {
                one,
                other,
                protocol,
            } => flow((mapped(one.0), one.1), (mapped(other.0), other.1), protocol),
        }
    }
}

fn mapped(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => mapped_bits(address.to_bits()),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[inline]
fn mapped_bits(address: u32) -> u128 {
    0xffff << 32 | u128::from(address)
}

#[inline]
fn code(kind: u8, value: u64) -> u64 {
    u64::from(kind) << KIND_AT | value & VALUE
}

#[inline]
fn ipv4(address: u32) -> u64 {
    code(IPV4, address.into())
}

#[inline]
fn ipv6(address: u128) -> u64 {
    code(IPV6, mix((address >> 64) as u64, address as u64))
}

#[inline]
fn port_code(protocol: u8, port: u16) -> u64 {
    code(PORT, u64::from(protocol) << 16 | u64::from(port))
}

#[inline]
fn flow(one: (u128, u16), other: (u128, u16), protocol: u8) -> u64 {
    let (low, high) = if one <= other {
        (one, other)
    } else {
        (other, one)
    };
    let rest = u64::from(low.1) << 24 | u64::from(high.1) << 8 | u64::from(protocol);
    let low = mix(low.0 as u64 ^ rest, (low.0 >> 64) as u64);
    let high = mix(high.0 as u64, (high.0 >> 64) as u64);
    code(FLOW, mix(low, high.rotate_left(32)))
}

/// Mixes two numbers into one: both halves of their product, with the constants of `wyhash`. The result is stored in
/// files, so the function never changes.
#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a ^ 0xa076_1d64_78bd_642f) * u128::from(b ^ 0xe703_7ed1_a0b4_28db);
    (product >> 64) as u64 ^ product as u64
}

/// The codes of the keys of a frame, with possible duplicates.
pub(super) struct Codes {
    codes: [u64; 32],
    len: usize,
}

impl Codes {
    /// Parses a frame into the codes of its keys.
    #[inline]
    pub(super) fn of(frame: &[u8]) -> Self {
        let mut codes = Self {
            codes: [0; 32],
            len: 0,
        };
        // The result is ignored, because truncated headers have no keys.
        let _ = codes.ethernet(frame);
        codes
    }

    #[inline]
    pub(super) fn as_slice(&self) -> &[u64] {
        &self.codes[..self.len]
    }

    /// Returns a hash of all codes as a fingerprint; frames with different keys hardly ever have the same fingerprint.
    #[inline]
    pub(super) fn fingerprint(&self) -> u64 {
        let mut sum = 1_u64;
        for code in self.as_slice() {
            sum = (sum.rotate_left(23) ^ code).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        sum ^ sum >> 32
    }

    #[inline]
    fn push(&mut self, code: u64) {
        if let Some(place) = self.codes.get_mut(self.len) {
            *place = code;
            self.len += 1;
        }
    }

    #[inline]
    fn ethernet(&mut self, frame: &[u8]) -> Option<()> {
        let mut at = 12;
        let mut ethertype = half(frame, at)?;
        self.push(code(ETHERTYPE, ethertype.into()));
        for _ in 0..MOST_TAGS {
            if !matches!(ethertype, 0x8100 | 0x88a8 | 0x9100) {
                break;
            }
            let tag = half(frame, at + 2)?;
            self.push(code(VLAN, u64::from(tag & 0xfff)));
            at += 4;
            ethertype = half(frame, at)?;
            self.push(code(ETHERTYPE, ethertype.into()));
        }
        let payload = frame.get(at + 2..)?;
        match EtherType(ethertype) {
            EtherType::IPV4 => self.ipv4(payload),
            EtherType::IPV6 => self.ipv6(payload),
            // ARP and RARP.
            EtherType(0x0806 | 0x8035) => {
                self.push(ipv4(whole(payload, 14)?));
                self.push(ipv4(whole(payload, 24)?));
                Some(())
            }
            _ => None,
        }
    }

    #[inline]
    fn ipv4(&mut self, packet: &[u8]) -> Option<()> {
        let protocol = *packet.get(9)?;
        self.push(code(PROTOCOL, protocol.into()));
        let source = whole(packet, 12)?;
        self.push(ipv4(source));
        let destination = whole(packet, 16)?;
        self.push(ipv4(destination));
        let is_later = half(packet, 6)? & 0x1fff != 0;
        let transport = packet.get(usize::from(packet[0] & 0xf) * 4..);
        let transport = transport.filter(|_| !is_later).unwrap_or_default();
        self.transport(
            mapped_bits(source),
            mapped_bits(destination),
            protocol,
            transport,
        );
        Some(())
    }

    fn ipv6(&mut self, packet: &[u8]) -> Option<()> {
        let mut protocol = *packet.get(6)?;
        self.push(code(PROTOCOL, protocol.into()));
        let source = u128::from_be_bytes(*packet.get(8..)?.first_chunk()?);
        self.push(ipv6(source));
        let destination = u128::from_be_bytes(*packet.get(24..)?.first_chunk()?);
        self.push(ipv6(destination));
        let mut rest = packet.get(40..).unwrap_or_default();
        for _ in 0..MOST_EXTENSIONS {
            let &[next, len, a, b, ..] = rest else { break };
            let bytes = match protocol {
                // Hop by hop, routing, destination, mobility, host identity, shim: their lengths count units of 8
                // bytes, except the first.
                0 | 43 | 60 | 135 | 139 | 140 => 8 + usize::from(len) * 8,
                // Authentication: its length counts units of 4 bytes, except the first two.
                51 => 8 + usize::from(len) * 4,
                44 => 8,
                _ => break,
            };
            let is_later = protocol == 44 && u16::from_be_bytes([a, b]) >> 3 != 0;
            protocol = next;
            self.push(code(PROTOCOL, protocol.into()));
            rest = rest.get(bytes..).filter(|_| !is_later).unwrap_or_default();
        }
        self.transport(source, destination, protocol, rest);
        Some(())
    }

    #[inline]
    fn transport(&mut self, source: u128, destination: u128, protocol: u8, transport: &[u8]) {
        // TCP, UDP, SCTP.
        let has_ports = matches!(protocol, 6 | 17 | 132);
        let (mut from, mut to) = (0, 0);
        if has_ports && let Some(port) = half(transport, 0) {
            from = port;
            self.push(port_code(protocol, from));
        }
        if has_ports && let Some(port) = half(transport, 2) {
            to = port;
            self.push(port_code(protocol, to));
        }
        self.push(flow((source, from), (destination, to), protocol));
    }
}

#[inline]
fn half(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[inline]
fn whole(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use etherparse::PacketBuilder;

    fn has(frame: &[u8], key: Key) -> bool {
        Codes::of(frame).as_slice().contains(&key.code())
    }

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn udp() -> Vec<u8> {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .single_vlan(7.try_into().unwrap())
            .ipv4([10, 1, 2, 3], [10, 1, 2, 4], 64)
            .udp(1000, 53);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[9; 600]).unwrap();
        frame
    }

    fn flow_of(protocol: u8) -> Key {
        Key::Flow {
            one: (address("10.1.2.4"), 53),
            other: (address("10.1.2.3"), 1000),
            protocol,
        }
    }

    #[test]
    fn a_frame_is_indexed_by_addresses_ports_protocols_and_vlan() {
        let frame = udp();
        for key in [
            Key::Address(address("10.1.2.3")),
            Key::Address(address("10.1.2.4")),
            Key::Port {
                protocol: 17,
                port: 53,
            },
            Key::Port {
                protocol: 17,
                port: 1000,
            },
            Key::Protocol(17),
            Key::EtherType(0x8100),
            Key::EtherType(0x0800),
            Key::Vlan(7),
            flow_of(17),
        ] {
            assert!(has(&frame, key), "{key:?}");
        }
        for key in [
            Key::Address(address("10.1.2.5")),
            Key::Port {
                protocol: 6,
                port: 53,
            },
            Key::Vlan(8),
            flow_of(6),
        ] {
            assert!(!has(&frame, key), "{key:?}");
        }
    }

    #[test]
    fn a_truncated_frame_is_indexed_by_its_remaining_bytes() {
        let frame = udp();
        assert_eq!(
            Codes::of(&frame[..42]).as_slice(),
            Codes::of(&frame).as_slice()
        );
        for len in 0..frame.len() {
            Codes::of(&frame[..len]);
        }
        assert!(has(&frame[..34], Key::Address(address("10.1.2.3"))));
        assert!(!has(&frame[..34], Key::Address(address("10.1.2.4"))));
    }

    #[test]
    fn later_fragments_are_indexed_by_addresses_and_not_by_ports() {
        let mut frame = udp();
        frame[14 + 4 + 7] = 1;
        let port = Key::Port {
            protocol: 17,
            port: 53,
        };
        assert!(!has(&frame, port));
        assert!(has(&frame, Key::Address(address("10.1.2.4"))));
        let without_ports = Key::Flow {
            one: (address("10.1.2.4"), 0),
            other: (address("10.1.2.3"), 0),
            protocol: 17,
        };
        assert!(has(&frame, without_ports));
    }

    #[test]
    fn arp_packets_have_sender_and_target_addresses_as_index_keys() {
        let mut frame = vec![0; 60];
        frame[12..14].copy_from_slice(&[8, 6]);
        frame[28..32].copy_from_slice(&[192, 0, 2, 1]);
        frame[38..42].copy_from_slice(&[192, 0, 2, 2]);
        for text in ["192.0.2.1", "192.0.2.2"] {
            assert!(has(&frame, Key::Address(address(text))));
        }
    }

    #[test]
    fn ports_of_ipv6_are_found_behind_extension_headers() {
        let builder = PacketBuilder::ethernet2([2; 6], [4; 6])
            .ipv6([1; 16], [2; 16], 64)
            .tcp(1, 443, 0, 0);
        let mut frame = Vec::new();
        builder.write(&mut frame, &[]).unwrap();
        let port = Key::Port {
            protocol: 6,
            port: 443,
        };
        let source = Key::Address(IpAddr::from([1_u8; 16]));
        assert!(has(&frame, port) && has(&frame, source));
        // Destination options of 16 bytes.
        frame[20] = 60;
        let mut options = [0; 16];
        (options[0], options[1]) = (6, 1);
        frame.splice(54..54, options);
        assert!(
            has(&frame, port) && has(&frame, Key::Protocol(60)) && has(&frame, Key::Protocol(6))
        );
    }
}
