//! What is done on the slow path: both ends of a connection that a rule rejects are told that it is over, and fragments wait until
//! their datagram is whole, which is then inspected as any other packet.

use super::outcome::{Counters, Note};
use super::plane::{Fate, Plane};
use super::tunnel::{self, looked_into};
use crate::slow::ErrorLimit;
use crate::{Context, Handler, Punted, slow};
use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taut_inspect::fragments::{FragmentLimits, Fragments, Outcome};
use taut_port::{Pairs, Punt};
use taut_wire::{
    EtherType, Headers, IcmpError, IpProtocol, Ipv4, Ipv4Repr, Ipv6, Ipv6Repr, Layer3, Tcp,
    TcpFlags, TcpRepr, icmp_error,
};

/// The chain has two ports, or pairs of them.
const PAIR: Pairs = Pairs::of(usize::MAX);
/// Hops that a reset may make.
const HOPS: u8 = 64;
const MAC_BYTES: usize = 6;
const TCP_BYTES: usize = 20;

/// Fragments of a datagram keep their frames for so long at most.
const EXPIRE: Duration = Duration::from_secs(1);

pub(super) struct SlowPath {
    limit: ErrorLimit,
    /// An inspection of its own, for datagrams that were put together.
    plane: Option<Plane>,
    inner: bool,
    fragments: Fragments,
    /// Frames of fragments by their tokens, and where they came in.
    frames: HashMap<u64, (usize, Vec<u8>)>,
    next: u64,
    begun: Instant,
    expired: Instant,
    counters: Arc<Counters>,
}

impl SlowPath {
    pub fn new(plane: Option<Plane>, inner: bool, counters: &Arc<Counters>) -> Self {
        Self {
            limit: ErrorLimit::new(),
            plane,
            inner,
            fragments: Fragments::new(FragmentLimits::default()),
            frames: HashMap::new(),
            next: 0,
            begun: Instant::now(),
            expired: Instant::now(),
            counters: Arc::clone(counters),
        }
    }

    fn drop_frames(&mut self, tokens: &[u64]) {
        for token in tokens {
            self.frames.remove(token);
        }
        self.counters
            .note_elsewhere(Note::FragmentsDropped, tokens.len() as u64);
    }

    fn expire(&mut self) {
        if self.expired.elapsed() < EXPIRE {
            return;
        }
        self.expired = Instant::now();
        let mut gone = Vec::new();
        self.fragments
            .expire(self.begun.elapsed().as_nanos() as u64, &mut |token| {
                gone.push(token)
            });
        self.drop_frames(&gone);
    }

    fn fragment(&mut self, punted: &Punted<'_>, send: &mut slow::Send<'_>) {
        let frame = punted.frame;
        let outer = Headers::of(frame);
        let (headers, inside) = looked_into(self.inner, &outer, frame);
        let (token, now_ns) = (self.next, self.begun.elapsed().as_nanos() as u64);
        self.next += 1;
        self.frames
            .insert(token, (punted.from_port, frame.to_vec()));
        let packet = inside.get(headers.ip()..).unwrap_or_default();
        match self.fragments.push(now_ns, packet, token) {
            Outcome::Kept => {}
            Outcome::Dropped { tokens, .. } => self.drop_frames(&tokens),
            Outcome::Whole { packet, tokens } => {
                let whole = frame_around(&frame[..outer.ip()], &headers, &packet);
                let context = Context {
                    now_ticks: taut_sys::ticks(),
                    from_port: punted.from_port,
                    to_port: PAIR.partner(punted.from_port),
                    ports: 2,
                };
                let fate = self
                    .plane
                    .as_mut()
                    .map(|plane| plane.whole(&whole, &context));
                if fate.is_some_and(|fate| fate != Fate::Pass) {
                    return self.drop_frames(&tokens);
                }
                for token in tokens {
                    if let Some((from_port, frame)) = self.frames.remove(&token) {
                        send(PAIR.partner(from_port), &frame);
                        self.counters.note_elsewhere(Note::FragmentsPassed, 1);
                    }
                }
            }
        }
    }

    fn reject(&mut self, punted: &Punted<'_>, send: &mut slow::Send<'_>) {
        if !self.limit.admits() {
            return;
        }
        let frame = punted.frame;
        let headers = Headers::of(frame);
        if self.inner && tunnel::inside(&headers, frame).is_some() {
            // Who sends and receives is at the other ends of tunnels, whose numbers nobody here knows.
            return;
        }
        if headers.protocol() == IpProtocol::TCP {
            // The sender is told by the port that it came in through, the receiver by the partner of that.
            if let Some(reset) = reset(&headers, frame, true) {
                send(punted.from_port, &reset);
            }
            if let Some(reset) = reset(&headers, frame, false) {
                send(PAIR.partner(punted.from_port), &reset);
            }
            return;
        }
        let (_, destination) = headers.addresses_in(frame);
        let destination = Ipv6Addr::from(destination);
        let from = destination
            .to_ipv4_mapped()
            .map_or(IpAddr::V6(destination), IpAddr::V4);
        let mut reply = [0; icmp_error::LONGEST_BYTES];
        if let Some(length) = icmp_error(frame, IcmpError::NoPort, from, &mut reply) {
            send(punted.from_port, &reply[..length]);
        }
    }
}

impl Handler for SlowPath {
    fn handle(&mut self, punted: &Punted<'_>, send: &mut slow::Send<'_>) -> bool {
        self.expire();
        match punted.cause {
            Punt::Rejected => self.reject(punted, send),
            Punt::Fragment => self.fragment(punted, send),
            _ => return false,
        }
        true
    }

    /// Goes by the newest rules also while there are no fragments, so that those before are freed.
    fn poll(&mut self, _: &mut slow::Send<'_>) -> bool {
        if let Some(plane) = &mut self.plane {
            plane.go_by_newest();
        }
        self.expire();
        false
    }
}

/// The frame that ends the connection for one of its ends (RFC 9293 section 3.5.2): for who sent this segment, as if by who was to get
/// it, or for who was to get it, as if by who sent it.
fn reset(headers: &Headers, frame: &[u8], to_sender: bool) -> Option<Vec<u8>> {
    let link = frame.get(..headers.ip())?;
    let segment = Tcp::new(headers.transport_in(frame)).ok()?;
    let is_reset = segment.flags().contains(TcpFlags::RST);
    if is_reset {
        return None;
    }
    let opens = segment.flags().contains(TcpFlags::SYN);
    let len = segment.payload().len() as u32
        + u32::from(opens)
        + u32::from(segment.flags().contains(TcpFlags::FIN));
    let ports = (segment.source_port(), segment.destination_port());
    let (source_port, destination_port) = if to_sender { (ports.1, ports.0) } else { ports };
    let has_ack = segment.flags().contains(TcpFlags::ACK);
    let (sequence, acknowledgement, flags) = match (to_sender, has_ack) {
        (true, true) => (
            segment.acknowledgement(),
            segment.sequence().wrapping_add(len),
            TcpFlags::RST.union(TcpFlags::ACK),
        ),
        (true, false) => (
            0,
            segment.sequence().wrapping_add(len),
            TcpFlags::RST.union(TcpFlags::ACK),
        ),
        (false, _) => (segment.sequence(), 0, TcpFlags::RST),
    };
    let repr = TcpRepr {
        source_port,
        destination_port,
        sequence,
        acknowledgement,
        flags,
        window: 0,
        urgent: 0,
        options: &[],
    };
    let mut reply = link.to_vec();
    if to_sender {
        let (receiver, sender) = reply.get_mut(..2 * MAC_BYTES)?.split_at_mut(MAC_BYTES);
        receiver.swap_with_slice(sender);
    }
    let packet = frame.get(headers.ip()..)?;
    match headers.layer3() {
        Layer3::Ipv4 => {
            let ip = Ipv4::new(packet).ok()?;
            let ends = (ip.source(), ip.destination());
            let (source, destination) = if to_sender { (ends.1, ends.0) } else { ends };
            let header = Ipv4Repr {
                traffic_class: ip.traffic_class(),
                identification: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset_bytes: 0,
                ttl: HOPS,
                protocol: IpProtocol::TCP,
                source,
                destination,
                options: &[],
                payload_len_bytes: TCP_BYTES,
            };
            reply.resize(link.len() + 20 + TCP_BYTES, 0);
            let mut ip = header.emit(&mut reply[link.len()..]).ok()?;
            ip.fill_checksum();
            let sum = ip.pseudo_header(TCP_BYTES as u16);
            let mut tcp = repr.emit(ip.payload_mut()).ok()?;
            tcp.fill_checksum(sum);
        }
        Layer3::Ipv6 => {
            let ip = Ipv6::new(packet).ok()?;
            let ends = (ip.source(), ip.destination());
            let (source, destination) = if to_sender { (ends.1, ends.0) } else { ends };
            let header = Ipv6Repr {
                traffic_class: ip.traffic_class(),
                flow_label: 0,
                next_header: IpProtocol::TCP,
                hop_limit: HOPS,
                source,
                destination,
                payload_len_bytes: TCP_BYTES,
            };
            reply.resize(link.len() + 40 + TCP_BYTES, 0);
            let mut ip = header.emit(&mut reply[link.len()..]).ok()?;
            let sum = ip.pseudo_header(IpProtocol::TCP, TCP_BYTES as u32);
            let mut tcp = repr.emit(ip.payload_mut()).ok()?;
            tcp.fill_checksum(sum);
        }
        Layer3::Other => return None,
    }
    reply.resize(reply.len().max(SHORTEST_BYTES), 0);
    Some(reply)
}

/// The frame of a datagram that was put together, of fragments with that link header: one within a tunnel may be of
/// the other version.
fn frame_around(link: &[u8], headers: &Headers, packet: &[u8]) -> Vec<u8> {
    let mut frame = [link, packet].concat();
    let kind = match headers.layer3() {
        Layer3::Ipv6 => EtherType::IPV6,
        _ => EtherType::IPV4,
    };
    if let Some(place) = link.len().checked_sub(2) {
        frame[place..place + 2].copy_from_slice(&kind.0.to_be_bytes());
    }
    frame
}

/// Shortest frame without its check sequence.
const SHORTEST_BYTES: usize = 60;
