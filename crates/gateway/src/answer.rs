//! The frames that the gateway creates. The slow path sends all of them. It creates the replies itself, and sends a
//! reply through the ingress port of the packet that caused it. The worker creates end markers and echo requests,
//! because it knows the path to their receivers. An end marker must follow the last packet of its path. The slow path
//! sends an end marker only after that packet has left.

use super::Path;
use super::parser::{Own, Seen, Tunnelled};
use super::rewrite::{outer_len, write_outer};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use taut_function::macs::Macs;
use taut_function::slow::{ErrorLimit, Handler, Passage, Punted, Send};
use taut_port::{Batch, Packet, PoolHandle, Punt};
use taut_wire::gtpu::{
    ErrorIndication, MessageType, emit_echo_request, emit_echo_response, emit_end_marker,
};
use taut_wire::{
    EtherType, Ethernet, EthernetRepr, Gtpu, Headers, IcmpError, Ipv4, Ipv6, Layer3, Mac, Vlan,
    gtpu, icmp_error, resolution,
};

/// The limit on end markers and echo requests that wait for a batch to the slow path.
const MOST_WAITING: usize = 128;
/// The length in bytes of the longest GTP-U message that the gateway creates: an error indication about an IPv6 peer.
const MESSAGE_BYTES: usize = 36;
const ETHERNET_BYTES: usize = 14;
/// The length in bytes of the shortest Ethernet frame, without the frame check sequence.
const SHORTEST_BYTES: usize = 60;
/// The length in bytes of the longest frame around a GTP-U message: one with an outer IPv6 header.
const TUNNEL_FRAME_BYTES: usize = ETHERNET_BYTES + 40 + 8 + MESSAGE_BYTES;
/// The length of the longest frame that the gateway creates, in bytes: that of an ICMP error.
const LONGEST_BYTES: usize = icmp_error::LONGEST_BYTES;

/// The gateway's slow-path handler.
pub(super) struct Answering {
    own: Own,
    /// The MAC addresses, by port, in replies to ARP requests for the port's own addresses.
    macs: Macs,
    errors: ErrorLimit,
    /// The number of replies that were lost because the ring was full, shared with the function.
    lost: Arc<AtomicU64>,
}

impl Answering {
    pub fn new(own: Own, macs: Macs, lost: Arc<AtomicU64>) -> Self {
        Self {
            own,
            macs,
            errors: ErrorLimit::unused(),
            lost,
        }
    }

    /// Writes the reply to a packet and returns the reply's length in bytes. Returns a length of 0 for a packet that
    /// needs no reply, and none for a packet that the gateway is not responsible for.
    fn answer(&mut self, punted: &Punted<'_>, reply: &mut [u8; LONGEST_BYTES]) -> Option<usize> {
        let frame = punted.frame;
        match punted.cause {
            Punt::Neighbour => {
                let mut short = [0; resolution::LONGEST_BYTES];
                let mac_of = |ip| self.own.has(ip).then(|| self.macs.of(punted.from_port))?;
                let length = resolution::answer(frame, mac_of, &mut short)?;
                reply[..length].copy_from_slice(&short[..length]);
                Some(length)
            }
            Punt::Local => match Seen::of(frame, &self.own) {
                Seen::Tunnelled(seen) if seen.message == MessageType::ECHO_REQUEST => {
                    echo(frame, &seen, reply)
                }
                _ => None,
            },
            Punt::Unknown => match Seen::of(frame, &self.own) {
                Seen::Tunnelled(seen) if self.errors.admits() => unknown_teid(frame, &seen, reply),
                Seen::Tunnelled(_) => Some(0),
                _ => None,
            },
            Punt::TooBig(fits) => {
                let from = match Headers::of(frame).layer3() {
                    Layer3::Ipv4 => self.own.v4().map(IpAddr::V4),
                    _ => self.own.v6().map(IpAddr::V6),
                };
                // RFC 1812 section 4.3.2.7 forbids errors to some kinds of senders; the result is then none.
                let length = icmp_error(frame, IcmpError::TooBig(fits), from?, reply);
                let length = length.filter(|_| self.errors.admits());
                Some(length.unwrap_or(0))
            }
            Punt::TimeExceeded
            | Punt::Unresolved
            | Punt::Unreachable
            | Punt::Prohibited
            | Punt::Rejected
            | Punt::Fragment
            | Punt::LastFragment
            | Punt::Made { .. } => None,
        }
    }
}

impl Handler for Answering {
    fn handle(&mut self, punted: &Punted<'_>, send: &mut Send<'_>) -> bool {
        if let Punt::Made { port } = punted.cause {
            // A function of the chain that sets MAC addresses takes precedence over the addresses learned here.
            let way = Passage {
                lacks_addresses: true,
                ..Passage::of_own(port.into())
            };
            if !send(way, punted.frame) {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
            return true;
        }
        let mut reply = [0; LONGEST_BYTES];
        let Some(length) = self.answer(punted, &mut reply) else {
            return false;
        };
        if length > 0 && !send(Passage::of_own(punted.from_port), &reply[..length]) {
            self.lost.fetch_add(1, Ordering::Relaxed);
        }
        true
    }

    fn is_over(&self) -> bool {
        Arc::strong_count(&self.lost) == 1
    }
}

/// Writes the reply to an echo request (TS 29.281 section 7.2.2) and returns its frame's length in bytes; none if the
/// request cannot be parsed.
fn echo(frame: &[u8], seen: &Tunnelled, reply: &mut [u8; LONGEST_BYTES]) -> Option<usize> {
    let request = Gtpu::new(frame.get(usize::from(seen.gtpu)..)?).ok();
    let sequence = request.and_then(|gtpu| gtpu.sequence()).unwrap_or(0);
    let mut message = [0; MESSAGE_BYTES];
    let length = emit_echo_response(sequence, &mut message).ok()?;
    // The reply goes to the source port (section 4.4.2.3).
    let at = usize::from(seen.udp);
    let port_of_peer = u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]);
    back(frame, seen, &message[..length], port_of_peer, reply)
}

/// Writes the error indication about an unknown tunnel to the peer that used it (TS 29.281 section 7.3.1). Returns the
/// frame's length in bytes; none if the packet cannot be parsed.
fn unknown_teid(frame: &[u8], seen: &Tunnelled, reply: &mut [u8; LONGEST_BYTES]) -> Option<usize> {
    let (_, destination) = ends(frame, seen)?;
    let indication = ErrorIndication {
        teid: seen.teid,
        peer: destination,
    };
    let mut message = [0; MESSAGE_BYTES];
    let length = indication.emit(&mut message).ok()?;
    back(frame, seen, &message[..length], gtpu::UDP_PORT, reply)
}

/// The egress port and MAC addresses of a message that the worker creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Way {
    /// The egress port of the message.
    pub port: u8,
    pub path: Path,
    /// The source and destination addresses. Both are zero if no frame of the receiver has arrived: a later function
    /// that knows the next hop has to set them. Without such a function, no host accepts the frame; a broadcast address
    /// would be accepted by all.
    pub macs: (Mac, Mac),
}

/// The messages that the worker has created and that wait for a batch to the slow path.
pub(super) struct Messages {
    waiting: VecDeque<(u8, Packet)>,
}

impl Messages {
    pub fn new() -> Self {
        Self {
            waiting: VecDeque::with_capacity(MOST_WAITING),
        }
    }

    /// Appends the waiting messages to `batch`, marked for the slow path.
    #[inline]
    pub fn release(&mut self, batch: &mut Batch) {
        while !self.waiting.is_empty() && batch.room() > 0 {
            if let Some((port, packet)) = self.waiting.pop_front() {
                let index = batch.len();
                batch.push(packet);
                batch.mark_punted(index, Punt::Made { port });
            }
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Adds an end marker for a tunnel (TS 29.281 section 7.3.2); returns false if there is no space for another
    /// message.
    #[cold]
    pub fn add_end_marker(&mut self, pool: &PoolHandle, way: &Way, teid: u32) -> bool {
        let mut message = [0; MESSAGE_BYTES];
        let length = emit_end_marker(teid, &mut message).ok();
        length.is_some_and(|length| self.add(pool, way, &message[..length]))
    }

    /// Adds an echo request for a path (TS 29.281 section 7.2.1); returns false if there is no space for another
    /// message.
    #[cold]
    pub fn add_echo(&mut self, pool: &PoolHandle, way: &Way, sequence: u16) -> bool {
        let mut message = [0; MESSAGE_BYTES];
        let length = emit_echo_request(sequence, &mut message).ok();
        length.is_some_and(|length| self.add(pool, way, &message[..length]))
    }

    fn add(&mut self, pool: &PoolHandle, way: &Way, message: &[u8]) -> bool {
        let mut frame = [0; TUNNEL_FRAME_BYTES];
        let packet = tunnel_frame(way.macs, &way.path, message, &mut frame).and_then(|length| {
            let mut packet = pool.take(length as u16)?;
            packet.bytes_mut().copy_from_slice(&frame[..length]);
            Some(packet)
        });
        match packet.filter(|_| self.waiting.len() < MOST_WAITING) {
            Some(packet) => {
                self.waiting.push_back((way.port, packet));
                true
            }
            None => false,
        }
    }
}

/// Returns the outer source and destination address of a GTP-U frame; none if its outer IP header is invalid.
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

/// Returns the source and destination MAC address of a reply to `frame`; none if the frame is too short.
fn swapped(frame: &[u8]) -> Option<(Mac, Mac)> {
    let ethernet = Ethernet::new(frame).ok()?;
    Some((ethernet.destination(), ethernet.source()))
}

/// Writes a frame with the GTP-U message `message` to the sender of `frame`, at UDP port `port`; returns the new
/// frame's length in bytes.
fn back(
    frame: &[u8],
    seen: &Tunnelled,
    message: &[u8],
    port: u16,
    reply: &mut [u8; LONGEST_BYTES],
) -> Option<usize> {
    let (remote, local) = ends(frame, seen)?;
    let path = Path { local, remote };
    let bytes = reply.first_chunk_mut()?;
    let length = tunnel_frame(swapped(frame)?, &path, message, bytes)?;
    let udp_at = ETHERNET_BYTES + outer_len(&path) - 8;
    let old = u16::from_be_bytes([bytes[udp_at + 2], bytes[udp_at + 3]]);
    let checksum = u16::from_be_bytes([bytes[udp_at + 6], bytes[udp_at + 7]]);
    bytes[udp_at + 2..udp_at + 4].copy_from_slice(&port.to_be_bytes());
    if checksum != 0 {
        let updated = taut_wire::checksum::update_u16(checksum, old, port);
        let updated = taut_wire::udp::nonzero(updated);
        bytes[udp_at + 6..udp_at + 8].copy_from_slice(&updated.to_be_bytes());
    }
    Some(length)
}

/// Writes an untagged frame around a GTP-U message, with the given source and destination MAC addresses; returns its
/// length in bytes.
fn tunnel_frame(
    (source, destination): (Mac, Mac),
    path: &Path,
    message: &[u8],
    frame: &mut [u8; TUNNEL_FRAME_BYTES],
) -> Option<usize> {
    let repr = EthernetRepr {
        destination,
        source,
        vlan: Vlan::Untagged,
        ethertype: match path.local.is_ipv4() {
            true => EtherType::IPV4,
            false => EtherType::IPV6,
        },
    };
    frame.fill(0);
    let outer = outer_len(path);
    let length = outer + message.len();
    let mut ethernet = repr.emit(&mut frame[..]).ok()?;
    let packet = ethernet.payload_mut().get_mut(..length)?;
    packet[outer..].copy_from_slice(message);
    write_outer(packet, path, 0)?;
    Some((ETHERNET_BYTES + length).max(SHORTEST_BYTES))
}
