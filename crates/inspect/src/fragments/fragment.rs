//! A parsed fragment: the identity of its datagram, its offset in the datagram, and its bytes.

use super::fault::{FragmentFault, MOST_BYTES, MOST_HEADER_BYTES};
use std::net::{IpAddr, Ipv4Addr};
use taut_sys::HashKey;
use taut_wire::{IpProtocol, Ipv4, Ipv6};

pub(super) const IPV6_HEADER_BYTES: usize = 40;
const FRAGMENT_HEADER_BYTES: usize = 8;
/// Number of bytes of a TCP header up to its flags and window, which the first fragment has to contain (RFC 1858
/// section 3).
const TCP_START_BYTES: usize = 16;

/// The fields that all fragments of a datagram share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Key {
    source: IpAddr,
    destination: IpAddr,
    identification: u32,
    /// Protocol number, for IPv4 only: in IPv6 it may differ between the fragments of a datagram (RFC 8200 section
    /// 4.5).
    protocol: u8,
    tag: u32,
}

impl Key {
    /// The key of an unused entry.
    pub const NONE: Self = Self {
        source: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        destination: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        identification: 0,
        protocol: 0,
        tag: 0,
    };

    /// Returns a hash of all fields of the key.
    pub fn hash(&self, key: &HashKey) -> u64 {
        let numbers = u64::from(self.identification) << 32 | u64::from(self.tag);
        key.hash([
            halves(self.source),
            halves(self.destination),
            (numbers, self.protocol.into()),
        ])
    }

    /// Returns a hash of the source: of its address, or for IPv6 of its 64-bit network, because a host may use all
    /// addresses of that network.
    pub fn hash_of_source(&self, key: &HashKey) -> u64 {
        let (network, host) = halves(self.source);
        key.hash([(network, if self.source.is_ipv4() { host } else { 0 })])
    }
}

fn halves(address: IpAddr) -> (u64, u64) {
    let bits = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    ((bits >> 64) as u64, bits as u64)
}

/// A fragment of a datagram.
pub(super) struct Fragment<'a> {
    pub key: Key,
    /// Headers before the fragmented part, including options, without the fragment header.
    headers: &'a [u8],
    /// Offset in `headers` of the field with the protocol number of the fragmented part.
    protocol_at: usize,
    pub protocol: u8,
    pub offset: usize,
    pub has_more: bool,
    pub payload: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Parses a packet, which begins with its layer-3 header.
    pub fn read(packet: &'a [u8], tag: u32) -> Result<Self, FragmentFault> {
        match packet.first().map(|first| first >> 4) {
            Some(4) => Self::read_v4(packet, tag),
            Some(6) => Self::read_v6(packet, tag),
            _ => Err(FragmentFault::Header),
        }
    }

    fn read_v4(packet: &'a [u8], tag: u32) -> Result<Self, FragmentFault> {
        let ip = Ipv4::new(packet).map_err(|_| FragmentFault::Header)?;
        ip.verify_checksum().map_err(|_| FragmentFault::Header)?;
        if !ip.is_fragment() {
            return Err(FragmentFault::NotAFragment);
        }
        let (headers, rest) = packet.split_at(ip.header_len_bytes());
        Ok(Self {
            key: Key {
                source: ip.source().into(),
                destination: ip.destination().into(),
                identification: ip.identification().into(),
                protocol: ip.protocol().0,
                tag,
            },
            headers,
            protocol_at: 9,
            protocol: ip.protocol().0,
            offset: ip.fragment_offset_bytes(),
            has_more: ip.more_fragments(),
            // Bytes after the IP packet, such as Ethernet padding, are excluded.
            payload: &rest[..ip.payload().len()],
        })
    }

    fn read_v6(packet: &'a [u8], tag: u32) -> Result<Self, FragmentFault> {
        let ip = Ipv6::new(packet).map_err(|_| FragmentFault::Header)?;
        let packet = &packet[..IPV6_HEADER_BYTES + ip.payload().len()];
        // Only headers that every router may inspect may precede the fragment header (RFC 8200 section 4.5).
        let (mut at, mut protocol_at, mut protocol) = (IPV6_HEADER_BYTES, 6, ip.next_header());
        while protocol != IpProtocol::FRAGMENT {
            if !matches!(
                protocol,
                IpProtocol::HOP_BY_HOP | IpProtocol::ROUTING | IpProtocol::DESTINATION
            ) {
                return Err(FragmentFault::NotAFragment);
            }
            let &[next, units] = first_bytes(packet, at)?;
            (protocol_at, protocol) = (at, IpProtocol(next));
            at += 8 + usize::from(units) * 8;
            if at > MOST_HEADER_BYTES {
                return Err(FragmentFault::Header);
            }
        }
        let header = first_bytes::<FRAGMENT_HEADER_BYTES>(packet, at)?;
        let place = u16::from_be_bytes([header[2], header[3]]);
        Ok(Self {
            key: Key {
                source: ip.source().into(),
                destination: ip.destination().into(),
                identification: u32::from_be_bytes([header[4], header[5], header[6], header[7]]),
                protocol: 0,
                tag,
            },
            headers: &packet[..at],
            protocol_at,
            protocol: header[0],
            offset: usize::from(place & 0xfff8),
            has_more: place & 1 == 1,
            payload: &packet[at + FRAGMENT_HEADER_BYTES..],
        })
    }

    /// Returns true if the packet has a fragment header but is not fragmented: an atomic fragment, as translators send
    /// it (RFC 6946).
    pub fn is_atomic(&self) -> bool {
        self.offset == 0 && !self.has_more
    }

    /// Returns the offset in the datagram after the fragment's payload.
    pub fn end(&self) -> usize {
        self.offset + self.payload.len()
    }

    /// Returns the length of the headers of the complete packet in bytes.
    pub fn header_bytes(&self) -> usize {
        self.headers.len()
    }

    /// Returns the number of header bytes that count towards the length of a packet: an IPv6 payload begins after the
    /// fixed header.
    pub fn counted_bytes(&self) -> usize {
        match self.key.source {
            IpAddr::V4(_) => self.headers.len(),
            IpAddr::V6(_) => self.headers.len() - IPV6_HEADER_BYTES,
        }
    }

    /// Checks the fragment on its own, without comparison with other fragments.
    pub fn check(&self) -> Result<(), FragmentFault> {
        let len = self.payload.len();
        if len == 0 || self.has_more && !len.is_multiple_of(8) {
            return Err(FragmentFault::Length);
        }
        if self.counted_bytes() + self.end() > MOST_BYTES {
            return Err(FragmentFault::TooLong);
        }
        let is_tcp = self.protocol == IpProtocol::TCP.0;
        if self.offset == 0 && is_tcp && len < TCP_START_BYTES {
            return Err(FragmentFault::TinyFirst);
        }
        Ok(())
    }

    /// Writes the headers to the front of `to`, in the form for an unfragmented packet.
    pub fn write_headers(&self, to: &mut [u8]) {
        let to = &mut to[..self.headers.len()];
        to.copy_from_slice(self.headers);
        to[self.protocol_at] = self.protocol;
        if self.key.source.is_ipv4() {
            // Only "do not fragment" and the reserved bit stay set; the other flag and the offset are cleared.
            to[6] &= 0xc0;
            to[7] = 0;
        }
    }

    /// Writes the packet in an atomic fragment to the front of `to`, and returns its number of bytes.
    pub fn write_whole(&self, to: &mut [u8]) -> usize {
        self.write_headers(to);
        let len = self.headers.len() + self.payload.len();
        to[self.headers.len()..len].copy_from_slice(self.payload);
        write_lengths(&mut to[..len]);
        len
    }
}

fn first_bytes<const BYTES: usize>(
    packet: &[u8],
    at: usize,
) -> Result<&[u8; BYTES], FragmentFault> {
    packet
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .ok_or(FragmentFault::Header)
}

/// Writes the length fields of a complete packet, and the checksum of an IPv4 header. The packet must not exceed the
/// maximum length.
pub(super) fn write_lengths(packet: &mut [u8]) {
    if packet[0] >> 4 == 6 {
        let len = (packet.len() - IPV6_HEADER_BYTES) as u16;
        packet[4..6].copy_from_slice(&len.to_be_bytes());
        return;
    }
    let len = packet.len() as u16;
    packet[2..4].copy_from_slice(&len.to_be_bytes());
    if let Ok(mut view) = Ipv4::new(packet) {
        view.fill_checksum();
    }
}
