//! Frames that the gateway makes itself: answers, which leave through the port that their cause came in by,
//! and end markers.

use super::Path;
use super::rewrite::{outer_len, write_outer};
use super::seen::{Own, Tunnelled};
use std::collections::VecDeque;
use std::net::IpAddr;
use taut_port::{Batch, Packet, PoolHandle};
use taut_wire::gtpu::{ErrorIndication, emit_echo_response, emit_end_marker};
use taut_wire::{
    EtherType, Ethernet, EthernetRepr, Gtpu, Headers, IcmpError, Ipv4, Ipv6, Layer3, Mac,
    icmp_error, resolution,
};

/// Frames that may wait to be sent.
const MOST_WAITING: usize = 128;
/// Longest GTP-U message that is made: an error indication about an IPv6 peer.
const MESSAGE_BYTES: usize = 36;

/// Frames of the gateway's own, until a batch for their port comes by.
pub(super) struct Answers {
    waiting: VecDeque<(usize, Packet)>,
}

impl Answers {
    pub fn new() -> Self {
        Self {
            waiting: VecDeque::with_capacity(MOST_WAITING),
        }
    }

    /// Appends to `batch`, which leaves through `port`, what is to leave there.
    #[inline]
    pub fn release(&mut self, batch: &mut Batch, port: usize) {
        // The queue is short, and a batch for the port of its head comes in every round.
        while batch.room() > 0 && self.waiting.front().is_some_and(|(to, _)| *to == port) {
            if let Some((_, packet)) = self.waiting.pop_front() {
                batch.push(packet);
            }
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    fn queue(&mut self, port: usize, packet: Option<Packet>) -> bool {
        let Some(packet) = packet.filter(|_| self.waiting.len() < MOST_WAITING) else {
            return false;
        };
        self.waiting.push_back((port, packet));
        true
    }

    /// Answers an echo request (TS 29.281 section 7.2.2); false if there is no room.
    #[cold]
    pub fn echo(&mut self, pool: &PoolHandle, port: usize, frame: &[u8], seen: &Tunnelled) -> bool {
        let request = Gtpu::new(&frame[usize::from(seen.gtpu)..]).ok();
        let sequence = request.and_then(|gtpu| gtpu.sequence()).unwrap_or(0);
        let mut message = [0; MESSAGE_BYTES];
        let Ok(length) = emit_echo_response(sequence, &mut message) else {
            return false;
        };
        // Sent to the port that it came from (section 4.4.2.3).
        let at = usize::from(seen.udp);
        let port_of_peer = [frame[at], frame[at + 1]];
        self.queue(
            port,
            back(pool, frame, seen, &message[..length], port_of_peer),
        )
    }

    /// Tells a peer that nobody made the tunnel it sends through (section 7.3.1).
    #[cold]
    pub fn unknown_teid(
        &mut self,
        pool: &PoolHandle,
        port: usize,
        frame: &[u8],
        seen: &Tunnelled,
    ) -> bool {
        let Some((_, destination)) = ends(frame, seen) else {
            return false;
        };
        let indication = ErrorIndication {
            teid: seen.teid,
            peer: destination,
        };
        let mut message = [0; MESSAGE_BYTES];
        let Ok(length) = indication.emit(&mut message) else {
            return false;
        };
        let gtpu_port = taut_wire::gtpu::UDP_PORT.to_be_bytes();
        self.queue(port, back(pool, frame, seen, &message[..length], gtpu_port))
    }

    /// Answers who asks for the MAC address of one of the gateway's own addresses (RFC 826, RFC 4861); false for any other
    /// frame, and if there is no room.
    #[cold]
    pub fn neighbour(
        &mut self,
        pool: &PoolHandle,
        port: usize,
        frame: &[u8],
        mac: Mac,
        own: &Own,
    ) -> bool {
        let mut reply = [0; resolution::LONGEST_BYTES];
        let mac_of = |address| own.has(address).then_some(mac);
        let Some(length) = resolution::answer(frame, mac_of, &mut reply) else {
            return false;
        };
        self.queue(port, copied(pool, &reply[..length]))
    }

    /// Ends the stream of packets of a tunnel (section 7.3.2). The MAC addresses are zero: those of the next
    /// device are for a function behind this one to set.
    #[cold]
    pub fn end_marker(&mut self, pool: &PoolHandle, port: usize, path: &Path, teid: u32) -> bool {
        let mut message = [0; MESSAGE_BYTES];
        let Ok(length) = emit_end_marker(teid, &mut message) else {
            return false;
        };
        let macs = (Mac([0; 6]), Mac([0; 6]));
        self.queue(port, tunnel_frame(pool, macs, path, &message[..length]))
    }

    /// Tells a sender what fits (RFC 1191, RFC 8201); false if there is no need or no way.
    #[cold]
    pub fn too_big(
        &mut self,
        pool: &PoolHandle,
        port: usize,
        frame: &[u8],
        fits: usize,
        own: &Own,
    ) -> bool {
        let from = match Headers::of(frame).layer3() {
            Layer3::Ipv4 => own.v4().map(IpAddr::V4),
            _ => own.v6().map(IpAddr::V6),
        };
        let mut reply = [0; icmp_error::LONGEST_BYTES];
        let error = IcmpError::TooBig(fits as u16);
        let length = from.and_then(|from| icmp_error(frame, error, from, &mut reply));
        let packet = length.and_then(|length| copied(pool, &reply[..length]));
        self.queue(port, packet)
    }
}

fn copied(pool: &PoolHandle, frame: &[u8]) -> Option<Packet> {
    let mut packet = pool.take(frame.len() as u16)?;
    packet.bytes_mut().copy_from_slice(frame);
    Some(packet)
}

/// Outer source and destination address.
pub(super) fn ends(frame: &[u8], seen: &Tunnelled) -> Option<(IpAddr, IpAddr)> {
    let packet = frame.get(usize::from(seen.ip)..)?;
    Some(if seen.is_v4 {
        let ip = Ipv4::new(packet).ok()?;
        (ip.source().into(), ip.destination().into())
    } else {
        let ip = Ipv6::new(packet).ok()?;
        (ip.source().into(), ip.destination().into())
    })
}

/// Source and destination of an answer to `frame`.
fn swapped(frame: &[u8]) -> Option<(Mac, Mac)> {
    let ethernet = Ethernet::new(frame).ok()?;
    Some((ethernet.destination(), ethernet.source()))
}

/// A message back to where `frame` came from, to that UDP port.
fn back(
    pool: &PoolHandle,
    frame: &[u8],
    seen: &Tunnelled,
    message: &[u8],
    port: [u8; 2],
) -> Option<Packet> {
    let (remote, local) = ends(frame, seen)?;
    let path = Path { local, remote };
    let mut packet = tunnel_frame(pool, swapped(frame)?, &path, message)?;
    let udp_at = 14 + outer_len(&path) - 8;
    let bytes = packet.bytes_mut();
    let old = u16::from_be_bytes([bytes[udp_at + 2], bytes[udp_at + 3]]);
    let checksum = u16::from_be_bytes([bytes[udp_at + 6], bytes[udp_at + 7]]);
    bytes[udp_at + 2..udp_at + 4].copy_from_slice(&port);
    if checksum != 0 {
        let updated = taut_wire::checksum::update_u16(checksum, old, u16::from_be_bytes(port));
        let updated = taut_wire::udp::nonzero(updated);
        bytes[udp_at + 6..udp_at + 8].copy_from_slice(&updated.to_be_bytes());
    }
    Some(packet)
}

/// A frame around a GTP-U message.
fn tunnel_frame(
    pool: &PoolHandle,
    macs: (Mac, Mac),
    path: &Path,
    message: &[u8],
) -> Option<Packet> {
    let kind = if path.local.is_ipv4() {
        EtherType::IPV4
    } else {
        EtherType::IPV6
    };
    let outer = outer_len(path);
    framed(pool, macs, kind, outer + message.len(), |bytes| {
        bytes[outer..].copy_from_slice(message);
        write_outer(bytes, path, 0)
    })
}

/// An untagged frame between those MAC addresses (source, destination) whose payload of `len` bytes `fill` writes.
fn framed(
    pool: &PoolHandle,
    (source, destination): (Mac, Mac),
    ethertype: EtherType,
    len: usize,
    fill: impl FnOnce(&mut [u8]) -> Option<()>,
) -> Option<Packet> {
    // Frames have 60 bytes at least, filled up with zeros.
    let mut packet = pool.take((14 + len).max(60) as u16)?;
    let bytes = packet.bytes_mut();
    bytes.fill(0);
    let repr = EthernetRepr {
        destination,
        source,
        vlan: taut_wire::Vlan::Untagged,
        ethertype,
    };
    let mut ethernet = repr.emit(bytes).ok()?;
    fill(&mut ethernet.payload_mut()[..len])?;
    Some(packet)
}
