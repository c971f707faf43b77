//! The slow path. It sends a reset to both endpoints of a connection that a rule rejects. It also buffers the frames of
//! fragments until the worker has reassembled and inspected their datagram.

use super::outcome::{Counters, Note};
use super::tunnel::{self, looked_into};
use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use taut_function::slow::ErrorLimit;
use taut_function::{Handler, Passage, Punted, slow};
use taut_port::{Pairs, Punt};
use taut_wire::{
    Headers, IcmpError, IpProtocol, Ipv4, Ipv4Repr, Ipv6, Ipv6Repr, Layer3, Tcp, TcpFlags, TcpRepr,
    icmp_error,
};

/// The ports that the chain may have: one or more pairs of ports.
const PAIR: Pairs = Pairs::of(usize::MAX);
/// The hop limit of the resets.
const HOPS: u8 = 64;
const MAC_BYTES: usize = 6;
const TCP_BYTES: usize = 20;

/// The bytes by which a waiting frame counts towards the limit in addition to its length.
const FRAME_BYTES: usize = 64;
/// The maximum time for which the frames of fragments wait. The next constant is the limit on their bytes.
const PATIENCE: Duration = Duration::from_secs(30);
const WAITING_BYTES: usize = 4 << 20;
/// The interval between checks for expired frames.
const EXPIRE: Duration = Duration::from_secs(1);

/// The identity of a datagram, also inside tunnels: addresses, identification, IPv4 protocol, and ingress port.
type Datagram = (u128, u128, u32, u8, usize);

/// The frames of the fragments of a datagram.
struct Waiting {
    since: Instant,
    frames: Vec<Vec<u8>>,
    bytes: usize,
}

pub(super) struct SlowPath {
    limit: ErrorLimit,
    inner: bool,
    /// The frames that wait until the worker has received the last fragment of their datagram.
    waiting: HashMap<Datagram, Waiting>,
    /// The datagrams in the order in which their first fragments arrived. Some of them are already released.
    order: VecDeque<(Instant, Datagram)>,
    bytes: usize,
    expired: Instant,
    counters: Arc<Counters>,
}

impl SlowPath {
    pub fn new(inner: bool, counters: &Arc<Counters>) -> Self {
        Self {
            limit: ErrorLimit::unused(),
            inner,
            waiting: HashMap::new(),
            order: VecDeque::new(),
            bytes: 0,
            expired: Instant::now(),
            counters: Arc::clone(counters),
        }
    }

    fn remove(&mut self, datagram: &Datagram) -> Vec<Vec<u8>> {
        let Some(gone) = self.waiting.remove(datagram) else {
            return Vec::new();
        };
        self.bytes -= gone.bytes;
        gone.frames
    }

    /// Drops the oldest datagrams: those that have expired, and others while too many bytes wait.
    fn make_room(&mut self) {
        while let Some(&(since, datagram)) = self.order.front() {
            let is_there = self
                .waiting
                .get(&datagram)
                .is_some_and(|it| it.since == since);
            if is_there && since.elapsed() < PATIENCE && self.bytes <= WAITING_BYTES {
                return;
            }
            self.order.pop_front();
            if is_there {
                let gone = self.remove(&datagram).len() as u64;
                self.counters.note_elsewhere(Note::FragmentsDropped, gone);
            }
        }
    }

    fn expire(&mut self) {
        if self.expired.elapsed() >= EXPIRE {
            self.expired = Instant::now();
            self.make_room();
        }
    }

    fn datagram(&self, punted: &Punted<'_>) -> Option<Datagram> {
        let (headers, inside) = looked_into(self.inner, &Headers::of(punted.frame), punted.frame);
        let (source, destination) = headers.addresses_in(inside);
        let packet = inside.get(headers.ip()..)?;
        let (identification, protocol) = match headers.layer3() {
            Layer3::Ipv4 => {
                let ip = Ipv4::new(packet).ok()?;
                (u32::from(ip.identification()), ip.protocol().0)
            }
            _ => (
                Ipv6::new(packet)
                    .ok()?
                    .transport()
                    .ok()?
                    .fragment?
                    .identification,
                0,
            ),
        };
        Some((
            source,
            destination,
            identification,
            protocol,
            punted.from_port,
        ))
    }

    /// Stores the frame of a fragment.
    fn keep(&mut self, punted: &Punted<'_>) {
        let Some(datagram) = self.datagram(punted) else {
            return;
        };
        let order = &mut self.order;
        let waiting = self.waiting.entry(datagram).or_insert_with(|| {
            let since = Instant::now();
            order.push_back((since, datagram));
            Waiting {
                since,
                frames: Vec::new(),
                bytes: 0,
            }
        });
        waiting.frames.push(punted.frame.to_vec());
        let bytes = punted.frame.len() + FRAME_BYTES;
        waiting.bytes += bytes;
        self.bytes += bytes;
        if self.bytes > WAITING_BYTES {
            self.make_room();
        }
    }

    /// Sends the buffered frames of a datagram that passes, and its last fragment.
    fn release(&mut self, punted: &Punted<'_>, send: &mut slow::Send<'_>) {
        let mut frames = match self.datagram(punted) {
            Some(datagram) => self.remove(&datagram),
            None => Vec::new(),
        };
        frames.push(punted.frame.to_vec());
        for frame in &frames {
            let way = Passage::between(punted.from_port, PAIR.partner(punted.from_port));
            send(way, frame);
        }
        self.counters
            .note_elsewhere(Note::FragmentsPassed, frames.len() as u64);
    }

    fn reject(&mut self, punted: &Punted<'_>, send: &mut slow::Send<'_>) {
        if !self.limit.admits() {
            return;
        }
        let frame = punted.frame;
        let headers = Headers::of(frame);
        if self.inner && tunnel::inside(&headers, frame).is_some() {
            // No reset is sent, because sender and receiver are behind tunnels whose identifiers are unknown here.
            return;
        }
        if headers.protocol() == IpProtocol::TCP {
            // The reset for the sender leaves through the ingress port, the reset for the receiver through the other
            // port of the pair.
            if let Some(reset) = reset(&headers, frame, true) {
                send(Passage::of_own(punted.from_port), &reset);
            }
            if let Some(reset) = reset(&headers, frame, false) {
                send(Passage::of_own(PAIR.partner(punted.from_port)), &reset);
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
            send(Passage::of_own(punted.from_port), &reply[..length]);
        }
    }
}

impl Handler for SlowPath {
    fn handle(&mut self, punted: &Punted<'_>, send: &mut slow::Send<'_>) -> bool {
        self.expire();
        match punted.cause {
            Punt::Rejected => self.reject(punted, send),
            Punt::Fragment => self.keep(punted),
            Punt::LastFragment => self.release(punted, send),
            _ => return false,
        }
        true
    }

    fn poll(&mut self, _: &mut slow::Send<'_>) -> bool {
        self.expire();
        false
    }
}

/// Returns a frame with a reset that ends the connection at one endpoint (RFC 9293 section 3.5.2). If `to_sender`, that
/// endpoint is the sender of the segment in `frame`, otherwise the receiver. The reset seems to come from the opposite
/// endpoint. Returns none if `frame` is a reset or not TCP.
fn reset(headers: &Headers, frame: &[u8], to_sender: bool) -> Option<Vec<u8>> {
    let link = frame.get(..headers.ip())?;
    let segment = Tcp::new(headers.transport_in(frame)).ok()?;
    let repr = reset_of(&segment, to_sender)?;
    let mut reply = link.to_vec();
    if to_sender {
        let (receiver, sender) = reply.get_mut(..2 * MAC_BYTES)?.split_at_mut(MAC_BYTES);
        receiver.swap_with_slice(sender);
    }
    let packet = frame.get(headers.ip()..)?;
    match headers.layer3() {
        Layer3::Ipv4 => push_over_ipv4(&mut reply, &Ipv4::new(packet).ok()?, &repr, to_sender)?,
        Layer3::Ipv6 => push_over_ipv6(&mut reply, &Ipv6::new(packet).ok()?, &repr, to_sender)?,
        Layer3::Other => return None,
    }
    reply.resize(reply.len().max(SHORTEST_BYTES), 0);
    Some(reply)
}

/// Returns source and destination in this order, or, if `to_sender`, swapped.
fn directed<T>((source, destination): (T, T), to_sender: bool) -> (T, T) {
    match to_sender {
        true => (destination, source),
        false => (source, destination),
    }
}

/// Returns the reset that replies to a segment, or that follows it; none if the segment is a reset.
fn reset_of(segment: &Tcp<&[u8]>, to_sender: bool) -> Option<TcpRepr<'static>> {
    let flags = segment.flags();
    if flags.contains(TcpFlags::RST) {
        return None;
    }
    let len = segment.payload().len() as u32
        + u32::from(flags.contains(TcpFlags::SYN))
        + u32::from(flags.contains(TcpFlags::FIN));
    let behind = segment.sequence().wrapping_add(len);
    let ports = (segment.source_port(), segment.destination_port());
    let (source_port, destination_port) = directed(ports, to_sender);
    let answer = TcpFlags::RST.union(TcpFlags::ACK);
    let (sequence, acknowledgement, flags) = match (to_sender, flags.contains(TcpFlags::ACK)) {
        (true, true) => (segment.acknowledgement(), behind, answer),
        (true, false) => (0, behind, answer),
        (false, _) => (segment.sequence(), 0, TcpFlags::RST),
    };
    Some(TcpRepr {
        source_port,
        destination_port,
        sequence,
        acknowledgement,
        flags,
        window: 0,
        urgent: 0,
        options: &[],
    })
}

/// Appends an IPv4 packet with this segment to a link header. The packet comes from the sender of `ip`, or, if
/// `to_sender`, from the receiver of `ip`.
fn push_over_ipv4(
    reply: &mut Vec<u8>,
    ip: &Ipv4<&[u8]>,
    segment: &TcpRepr<'_>,
    to_sender: bool,
) -> Option<()> {
    let (source, destination) = directed((ip.source(), ip.destination()), to_sender);
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
    let at = reply.len();
    reply.resize(at + 20 + TCP_BYTES, 0);
    let mut ip = header.emit(&mut reply[at..]).ok()?;
    ip.fill_checksum();
    let sum = ip.pseudo_header(TCP_BYTES as u16);
    segment.emit(ip.payload_mut()).ok()?.fill_checksum(sum);
    Some(())
}

/// Appends an IPv6 packet like [`push_over_ipv4`].
fn push_over_ipv6(
    reply: &mut Vec<u8>,
    ip: &Ipv6<&[u8]>,
    segment: &TcpRepr<'_>,
    to_sender: bool,
) -> Option<()> {
    let (source, destination) = directed((ip.source(), ip.destination()), to_sender);
    let header = Ipv6Repr {
        traffic_class: ip.traffic_class(),
        flow_label: 0,
        next_header: IpProtocol::TCP,
        hop_limit: HOPS,
        source,
        destination,
        payload_len_bytes: TCP_BYTES,
    };
    let at = reply.len();
    reply.resize(at + 40 + TCP_BYTES, 0);
    let mut ip = header.emit(&mut reply[at..]).ok()?;
    let sum = ip.pseudo_header(IpProtocol::TCP, TCP_BYTES as u32);
    segment.emit(ip.payload_mut()).ok()?.fill_checksum(sum);
    Some(())
}

/// The length of the shortest frame without its check sequence.
const SHORTEST_BYTES: usize = 60;
