//! The gateway's parser of frames, before any lookup.

use super::Match;
use super::outcome::Outcome;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taut_wire::gtpu::{Extension, MessageType, PDU_SESSION_CONTAINER, UDP_PORT};
use taut_wire::{Error, EtherType, Fault, Gtpu, Headers, IpProtocol, Layer3, Sum, Udp};

/// The extension headers that a tunnel endpoint knows: PDU session container, and the PDCP numbers (short and long),
/// which belong to base stations and have no meaning for a gateway (TS 29.281 section 5.2.1, figure 5.2.1-3).
const KNOWN_EXTENSIONS: [u8; 3] = [PDU_SESSION_CONTAINER, 0xc0, 0x82];
/// The bits of an extension header type that mark a header which every node on the path, not only the tunnel endpoint,
/// has to understand.
const FOR_EVERY_NODE: u8 = 0xc0;

/// The gateway's own addresses.
#[derive(Debug, Clone, Default)]
pub(super) struct Own {
    v4: Vec<Ipv4Addr>,
    v6: Vec<Ipv6Addr>,
}

impl Own {
    pub fn new(addresses: &[IpAddr]) -> Self {
        let mut own = Self::default();
        for address in addresses {
            match address {
                IpAddr::V4(address) => own.v4.push(*address),
                IpAddr::V6(address) => own.v6.push(*address),
            }
        }
        own
    }

    #[inline]
    pub fn has(&self, address: IpAddr) -> bool {
        match address {
            IpAddr::V4(address) => self.v4.contains(&address),
            IpAddr::V6(address) => self.v6.contains(&address),
        }
    }

    pub fn v4(&self) -> Option<Ipv4Addr> {
        self.v4.first().copied()
    }

    pub fn v6(&self) -> Option<Ipv6Addr> {
        self.v6.first().copied()
    }
}

/// A parsed frame. Offsets are in bytes from the frame's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// A GTP-U packet to the gateway.
    Tunnelled(Tunnelled),
    /// An IP packet to another address, which may be a user's.
    Plain {
        /// The offset of the IP header.
        ip: u16,
        key: u64,
    },
    /// A frame whose [`Outcome`] is known without a lookup in the bearer table.
    Settled(Outcome),
    /// A frame that an earlier function has dropped or punted.
    Gone,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tunnelled {
    pub message: MessageType,
    pub teid: u32,
    /// The offset of the outer IP header.
    pub ip: u16,
    pub udp: u16,
    pub gtpu: u16,
    /// The offset of the user packet, behind the GTP-U header.
    pub payload: u16,
    /// The offset of the first byte after the GTP-U packet.
    pub end: u16,
    pub is_v4: bool,
    /// True if the packet has an unknown extension header that the tunnel endpoint, or every node on the path, has to
    /// understand.
    pub puzzles_end: bool,
    pub puzzles_all: bool,
}

impl Seen {
    /// Parses a frame.
    #[inline(always)]
    pub fn of(frame: &[u8], own: &Own) -> Self {
        Self::usual(frame, own).unwrap_or_else(|| Self::any(frame, own))
    }

    /// Parses an untagged IPv4 frame without options or fragments and with consistent lengths: a packet to a user, or
    /// GTP-U without optional fields. Returns none for every other frame; [`Self::any`] parses those.
    #[inline(always)]
    fn usual(frame: &[u8], own: &Own) -> Option<Self> {
        const IP_AT: usize = 14;
        const UDP_AT: usize = IP_AT + 20;
        const GTPU_AT: usize = UDP_AT + 8;
        const PAYLOAD_AT: usize = GTPU_AT + 8;
        const NO_FRAGMENT_MASK: u16 = 0x3fff;
        const VERSION_1_AND_NO_OPTIONS: u8 = 0x30;
        let head = frame.first_chunk::<PAYLOAD_AT>()?;
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let word =
            |at: usize| u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        let is_ipv4 = EtherType(half(IP_AT - 2)) == EtherType::IPV4 && head[IP_AT] == 0x45;
        let total_len = usize::from(half(IP_AT + 2));
        if !is_ipv4
            || total_len < 20
            || IP_AT + total_len > frame.len()
            || !Sum::of(&head[IP_AT..UDP_AT]).is_valid()
        {
            return None;
        }
        let destination = Ipv4Addr::from_bits(word(IP_AT + 16));
        if !own.v4.contains(&destination) {
            return Some(Self::Plain {
                ip: IP_AT as u16,
                key: Match::User(destination.into()).key(),
            });
        }
        let udp_len = usize::from(half(UDP_AT + 4));
        let length = usize::from(half(GTPU_AT + 2));
        let is_usual = IpProtocol(head[IP_AT + 9]) == IpProtocol::UDP
            && half(IP_AT + 6) & NO_FRAGMENT_MASK == 0
            && half(UDP_AT + 2) == UDP_PORT
            && head[GTPU_AT] == VERSION_1_AND_NO_OPTIONS
            && 20 + udp_len <= total_len
            && 16 + length <= udp_len;
        is_usual.then(|| {
            Self::Tunnelled(Tunnelled {
                message: MessageType(head[GTPU_AT + 1]),
                teid: word(GTPU_AT + 4),
                ip: IP_AT as u16,
                udp: UDP_AT as u16,
                gtpu: GTPU_AT as u16,
                payload: PAYLOAD_AT as u16,
                end: (PAYLOAD_AT + length) as u16,
                is_v4: true,
                puzzles_end: false,
                puzzles_all: false,
            })
        })
    }

    /// Parses any frame.
    #[inline(never)]
    fn any(frame: &[u8], own: &Own) -> Self {
        let headers = Headers::of(frame);
        let ip_at = headers.ip();
        let is_v4 = match (headers.layer3(), headers.fault()) {
            (_, Some(Fault::Ethernet | Fault::Ip)) => return Self::Settled(Outcome::Malformed),
            (Layer3::Other, _) => return Self::Settled(Outcome::Other),
            (layer3, _) => layer3 == Layer3::Ipv4,
        };
        let header = &frame[ip_at..headers.transport().max(ip_at)];
        if is_v4 && !Sum::of(header).is_valid() {
            return Self::Settled(Outcome::BadChecksum);
        }
        let destination = headers.addresses_in(frame).1;
        let destination = Ipv6Addr::from_bits(destination);
        let (is_own, key) = match is_v4.then(|| destination.to_ipv4_mapped()).flatten() {
            Some(address) => (own.v4.contains(&address), Match::User(address.into()).key()),
            None => (
                own.v6.contains(&destination),
                Match::User(destination.into()).key(),
            ),
        };
        if !is_own {
            let ip = ip_at as u16;
            return Self::Plain { ip, key };
        }
        if headers.fault() == Some(Fault::Extension) {
            return Self::Settled(Outcome::Malformed);
        }
        if headers.protocol() != IpProtocol::UDP {
            return Self::Settled(Outcome::Other);
        }
        if headers.is_fragment() {
            return Self::Settled(Outcome::Fragment);
        }
        Self::in_udp(
            headers.transport_in(frame),
            ip_at,
            headers.transport(),
            is_v4,
        )
    }

    #[inline(always)]
    fn in_udp(datagram: &[u8], ip_at: usize, udp_at: usize, is_v4: bool) -> Self {
        let Ok(udp) = Udp::new(datagram) else {
            return Self::Settled(Outcome::Malformed);
        };
        if udp.destination_port() != UDP_PORT {
            return Self::Settled(Outcome::Other);
        }
        let gtpu = match Gtpu::new(udp.payload()) {
            Ok(gtpu) => gtpu,
            Err(Error::BadVersion { .. } | Error::BadValue { .. }) => {
                return Self::Settled(Outcome::BadVersion);
            }
            Err(_) => return Self::Settled(Outcome::Malformed),
        };
        let unknown =
            |e: &Extension<'_>| e.must_be_understood() && !KNOWN_EXTENSIONS.contains(&e.kind);
        let (mut puzzles_end, mut puzzles_all) = (false, false);
        if let Some(extensions) = gtpu.extensions() {
            for extension in extensions.filter(unknown) {
                puzzles_end = true;
                puzzles_all |= extension.kind & FOR_EVERY_NODE == FOR_EVERY_NODE;
            }
        }
        let gtpu_at = udp_at + 8;
        let payload_at = gtpu_at + gtpu.header_len_bytes();
        Self::Tunnelled(Tunnelled {
            message: gtpu.message_type(),
            teid: gtpu.teid(),
            ip: ip_at as u16,
            udp: udp_at as u16,
            gtpu: gtpu_at as u16,
            payload: payload_at as u16,
            end: (payload_at + gtpu.payload().len()) as u16,
            is_v4,
            puzzles_end,
            puzzles_all,
        })
    }

    /// Returns the key for the lookup in the bearer table; 0 if there is nothing to look up.
    #[inline(always)]
    pub fn key(&self) -> u64 {
        match self {
            Self::Tunnelled(Tunnelled {
                message: MessageType::G_PDU | MessageType::END_MARKER,
                teid,
                ..
            }) => Match::Teid(*teid).key(),
            Self::Plain { key, .. } => *key,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use taut_wire::{Protocol, Tunnel, UdpFlow};

    fn own() -> Own {
        Own::new(&["192.0.2.1".parse().unwrap()])
    }

    fn frame(to: &str, tunnelled: bool) -> Vec<u8> {
        let tunnel = Tunnel {
            teid: 7,
            src_ip: "192.0.2.7".parse().unwrap(),
            dst_ip: to.parse().unwrap(),
        };
        let flow = UdpFlow {
            dst_ip: to.parse().unwrap(),
            ..UdpFlow::default()
        };
        flow.frame_as(Protocol::Udp, tunnelled.then_some(&tunnel), 110)
            .unwrap()
    }

    #[test]
    fn the_most_common_frames_take_the_fast_path() {
        for (frame, expected) in [
            (frame("192.0.2.1", true), true),
            (frame("198.51.100.1", false), true),
            (frame("192.0.2.1", false), false),
        ] {
            let seen = Seen::usual(&frame, &own());
            assert_eq!(seen.is_some(), expected);
        }
    }

    proptest! {
        /// For every frame, including changed, truncated and extended ones, the fast parser returns none or the result
        /// of the complete parser.
        #[test]
        fn the_fast_parser_agrees_with_the_complete_parser(
            to_gateway: bool, tunnelled: bool, len in 0usize..130,
            changes in proptest::collection::vec((12usize..60, any::<u8>()), 0..4), repaired: bool,
        ) {
            let mut frame = frame(if to_gateway { "192.0.2.1" } else { "198.51.100.1" }, tunnelled);
            for (at, byte) in changes {
                frame[at] = byte;
            }
            if repaired {
                frame[24..26].fill(0);
                let checksum = Sum::of(&frame[14..34]).checksum();
                frame[24..26].copy_from_slice(&checksum.to_be_bytes());
            }
            frame.resize(len, 0);
            if let Some(seen) = Seen::usual(&frame, &own()) {
                prop_assert_eq!(seen, Seen::any(&frame, &own()));
            }
        }
    }
}
