//! What the gateway reads of a frame, before it looks anything up.

use super::Match;
use super::fate::Fate;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use taut_wire::gtpu::{Extension, MessageType, PDU_SESSION_CONTAINER, UDP_PORT};
use taut_wire::{Error, EtherType, Ethernet, Gtpu, IpProtocol, Ipv4, Ipv6, Udp};

/// Extension headers that the end of a tunnel knows: PDU session container, and the PDCP numbers (short and
/// long), which are of base stations and of no meaning here (TS 29.281 section 5.2.1, figure 5.2.1-3).
const KNOWN_EXTENSIONS: [u8; 3] = [PDU_SESSION_CONTAINER, 0xc0, 0x82];
/// Bits of a type that every node on the way has to understand, not only the end of the tunnel.
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

/// A frame as far as it was read. Offsets in bytes from the frame's start.
#[derive(Debug, Clone, Copy)]
pub(super) enum Seen {
    /// GTP-U to the gateway.
    Tunnelled(Tunnelled),
    /// IP to somebody else: perhaps a user.
    Plain {
        /// Of the IP header.
        ip: u16,
        key: u64,
    },
    /// Settled already.
    Settled(Fate),
    /// Marked by a function before.
    Gone,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Tunnelled {
    pub message: MessageType,
    pub teid: u32,
    /// Of the outer IP header.
    pub ip: u16,
    pub udp: u16,
    pub gtpu: u16,
    /// Of the user packet.
    pub payload: u16,
    /// Of what lies behind the GTP-U packet.
    pub end: u16,
    pub is_v4: bool,
    /// An extension header is not known that the end of the tunnel, or every node, has to know.
    pub puzzles_end: bool,
    pub puzzles_all: bool,
}

impl Seen {
    /// Reads a frame.
    #[inline]
    pub fn of(frame: &[u8], own: &Own) -> Self {
        let Ok(ethernet) = Ethernet::new(frame) else {
            return Self::Settled(Fate::Malformed);
        };
        let ip_at = ethernet.header_len_bytes();
        match ethernet.ethertype() {
            EtherType::IPV4 => {
                let Ok(ip) = Ipv4::new(&frame[ip_at..]) else {
                    return Self::Settled(Fate::Malformed);
                };
                if ip.verify_checksum().is_err() {
                    return Self::Settled(Fate::BadChecksum);
                }
                let destination = ip.destination();
                if !own.v4.contains(&destination) {
                    let key = Match::User(destination.into()).key();
                    let ip = ip_at as u16;
                    return Self::Plain { ip, key };
                }
                if ip.protocol() != IpProtocol::UDP {
                    return Self::Settled(Fate::Other);
                }
                if ip.is_fragment() {
                    return Self::Settled(Fate::Fragment);
                }
                let udp_at = ip_at + ip.header_len_bytes();
                Self::in_udp(ip.payload(), ip_at, udp_at, true)
            }
            EtherType::IPV6 => {
                let Ok(ip) = Ipv6::new(&frame[ip_at..]) else {
                    return Self::Settled(Fate::Malformed);
                };
                let destination = ip.destination();
                if !own.v6.contains(&destination) {
                    let key = Match::User(destination.into()).key();
                    let ip = ip_at as u16;
                    return Self::Plain { ip, key };
                }
                let Ok(transport) = ip.transport() else {
                    return Self::Settled(Fate::Malformed);
                };
                if transport.protocol != IpProtocol::UDP {
                    return Self::Settled(Fate::Other);
                }
                if transport.fragment.is_some() {
                    return Self::Settled(Fate::Fragment);
                }
                let udp_at = ip_at + 40 + transport.extensions_len_bytes;
                Self::in_udp(transport.payload, ip_at, udp_at, false)
            }
            _ => Self::Settled(Fate::Other),
        }
    }

    #[inline(always)]
    fn in_udp(datagram: &[u8], ip_at: usize, udp_at: usize, is_v4: bool) -> Self {
        let Ok(udp) = Udp::new(datagram) else {
            return Self::Settled(Fate::Malformed);
        };
        if udp.destination_port() != UDP_PORT {
            return Self::Settled(Fate::Other);
        }
        let gtpu = match Gtpu::new(udp.payload()) {
            Ok(gtpu) => gtpu,
            Err(Error::BadVersion { .. } | Error::BadValue { .. }) => {
                return Self::Settled(Fate::BadVersion);
            }
            Err(_) => return Self::Settled(Fate::Malformed),
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

    /// What the table is to be searched for; 0 for nothing.
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
