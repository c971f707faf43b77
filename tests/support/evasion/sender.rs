//! A TCP sender over a packet socket. The kernel on the sender's side neither replies to nor resets anything.

use super::attacks::{Attack, Target};
use super::moves::{Broken, Case, Cut, Order};
use super::plan::{ACK, FIN, Opening, PSH, Plan, RST, SYN, Segment, Step, URG, others};
use crate::support::between::send;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};
use taut_port::{Batch, Port, PortSpec, Resources};
use taut_wire::{EtherType, Headers, IpProtocol, Mac, Sum, Tcp, TcpFlags, checksum};

/// The sender's MAC address.
pub const MAC: Mac = Mac([2, 0, 0, 0, 7, 9]);
/// The offset that moves a segment out of the receive window.
const FAR: u32 = 1 << 24;
/// Time that a SYN waits for its reply. The next constant is the maximum number of times that a SYN is sent.
const SYN_WAIT: Duration = Duration::from_millis(150);
const SYNS: u32 = 4;
/// Time that segments wait for their acknowledgement before the stream is sent again. The next constant is the maximum
/// number of times that it is sent.
const WAIT: Duration = Duration::from_millis(25);
const AGAIN: u32 = 2;
/// Maximum number of retransmissions of a harmless stream.
const AGAIN_HONEST: u32 = 60;
const SEGMENT_BYTES: usize = 1200;

/// The packet socket, and the MAC address of the peer on its link.
pub struct Wire {
    port: Box<dyn Port>,
    resources: Resources,
    router: Mac,
}

impl Wire {
    /// Opens an interface of the namespace that the thread is in.
    pub fn open(interface: &str, router: Mac) -> Self {
        let spec = PortSpec::parse(&format!("af_packet:{interface}")).unwrap();
        let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
        let port = spec.open(&mut resources).unwrap();
        Self {
            port,
            resources,
            router,
        }
    }

    /// Sends packets in the given order.
    pub fn send(&mut self, packets: &[Vec<u8>]) {
        let frame = |packet: &Vec<u8>| {
            let is_v6 = packet[0] >> 4 == 6;
            let kind = if is_v6 {
                EtherType::IPV6
            } else {
                EtherType::IPV4
            };
            [&self.router.0[..], &MAC.0, &kind.0.to_be_bytes(), packet].concat()
        };
        let frames: Vec<_> = packets.iter().map(frame).collect();
        send(&mut *self.port, &self.resources.pool(), &frames);
    }

    /// Calls `take` for each segment that has arrived.
    pub fn receive(&mut self, mut take: impl FnMut(&Tcp<&[u8]>)) {
        loop {
            let mut batch = Batch::new();
            self.port.rx(&mut batch);
            if batch.is_empty() {
                return;
            }
            for packet in batch.packets() {
                let headers = Headers::of(packet.bytes());
                if headers.protocol() == IpProtocol::TCP
                    && let Ok(tcp) = Tcp::new(headers.transport_in(packet.bytes()))
                {
                    take(&tcp);
                }
            }
        }
    }
}

/// Addresses and ports of a connection: the sender's, then the receiver's.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    pub own: (IpAddr, u16),
    pub other: (IpAddr, u16),
}

/// The header fields that do not depend on the evasion in a segment.
struct Header {
    sequence: u32,
    acknowledgement: u32,
    window: u16,
    options: Vec<u8>,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Opening,
    Sending,
    Again,
    Done,
}

/// The sender's side of a connection.
pub struct Connection {
    plan: Plan,
    ends: Ends,
    is_benign: bool,
    awaits_response: bool,
    awaits_request: bool,
    /// True if the peer opens the connection.
    is_server: bool,
    phase: Phase,
    /// Initial sequence numbers of the sender and the peer.
    first: u32,
    first_of_other: u32,
    /// Number of bytes that the peer has acknowledged.
    acknowledged: usize,
    /// The next sequence number expected from the peer, and the peer's last timestamp.
    next: u32,
    stamp: u32,
    /// The bytes received in order from the peer.
    pub received: Vec<u8>,
    pub has_ended: bool,
    step: usize,
    tries: u32,
    due: Instant,
    begun: Instant,
    is_repeated: bool,
}

impl Connection {
    pub fn new(case: &Case, ends: Ends) -> Self {
        let now = Instant::now();
        Self {
            plan: Plan::new(case),
            ends,
            is_benign: case.benign,
            awaits_response: matches!(case.attack, Attack::Response(_)),
            awaits_request: case.attack == Attack::Answer,
            is_server: case.target == Target::Client,
            phase: Phase::Opening,
            first: case.seed as u32 ^ 0x7fff_0000,
            first_of_other: 0,
            acknowledged: 0,
            next: 0,
            stamp: 0,
            received: Vec::new(),
            has_ended: false,
            step: 0,
            tries: 0,
            due: now,
            begun: now,
            is_repeated: false,
        }
    }

    pub fn is_done(&self) -> bool {
        self.phase == Phase::Done
    }

    /// Sends the segments that are due.
    pub fn advance(&mut self, now: Instant, wire: &mut Vec<Vec<u8>>) {
        if now < self.due {
            return;
        }
        match self.phase {
            Phase::Opening if self.tries == SYNS => self.phase = Phase::Done,
            Phase::Opening if self.is_server => {
                (self.tries, self.due) = (self.tries + 1, now + SYN_WAIT)
            }
            Phase::Opening => {
                if self.tries == 0 {
                    self.before_opening(wire);
                }
                self.tries += 1;
                self.due = now + SYN_WAIT;
                let syn = Segment::new(-1, SYN, &self.plan.in_syn);
                self.emit(&syn, wire);
            }
            Phase::Sending => self.send_steps(now, wire),
            Phase::Again => self.send_again(now, wire),
            Phase::Done => {}
        }
    }

    /// Sends the packets that precede the SYN.
    fn before_opening(&mut self, wire: &mut Vec<Vec<u8>>) {
        let first = self.first;
        for (number, opening) in self.plan.openings.clone().into_iter().enumerate() {
            self.first = first.wrapping_sub(0x0100_0000 * (number as u32 + 1));
            let (flags, broken) = match opening {
                Opening::Decoy(broken) if self.is_server => (SYN | ACK, Some(broken)),
                // Only a client sends these packets.
                _ if self.is_server => continue,
                Opening::Decoy(broken) => (SYN, Some(broken)),
                Opening::OpenedAndReset => (SYN, None),
                Opening::SynAck => (SYN | ACK, None),
            };
            self.emit(
                &Segment {
                    broken,
                    ..Segment::new(-1, flags, &[])
                },
                wire,
            );
            if opening == Opening::OpenedAndReset {
                self.emit(&Segment::new(0, RST, &[]), wire);
            }
        }
        self.first = first;
    }

    fn send_steps(&mut self, now: Instant, wire: &mut Vec<Vec<u8>>) {
        while let Some(step) = self.plan.steps.get(self.step).cloned() {
            self.step += 1;
            match step {
                Step::Send(segment) => self.emit(&segment, wire),
                Step::Wait(time) => {
                    self.due = now + time;
                    return;
                }
            }
        }
        (self.phase, self.tries, self.due) = (Phase::Again, 0, now + WAIT);
    }

    /// Sends unacknowledged bytes again, without any evasion.
    fn send_again(&mut self, now: Instant, wire: &mut Vec<Vec<u8>>) {
        let most = if self.is_benign { AGAIN_HONEST } else { AGAIN };
        let is_whole = self.acknowledged >= self.plan.payload.len()
            && (self.has_ended || !self.awaits_response);
        if self.tries < most && !is_whole {
            self.tries += 1;
            self.due = now + WAIT * self.tries.min(4);
            let rest = self.plan.payload[self.acknowledged..].to_vec();
            for (number, bytes) in rest.chunks(SEGMENT_BYTES).enumerate() {
                let at = (self.acknowledged + number * SEGMENT_BYTES) as i64;
                self.emit(&Segment::new(at, PSH | ACK, bytes), wire);
            }
        } else if self.plan.twice && !self.is_repeated && !self.has_ended && !self.is_server {
            self.emit(
                &Segment::new(self.acknowledged as i64, RST | ACK, &[]),
                wire,
            );
            self.is_repeated = true;
            self.received.clear();
            self.first = self.first.wrapping_add(0x0200_0000);
            (self.phase, self.tries, self.step, self.acknowledged) = (Phase::Opening, 0, 0, 0);
        } else {
            self.phase = Phase::Done;
        }
    }

    /// Processes a segment from the peer.
    pub fn take(&mut self, tcp: &Tcp<&[u8]>, wire: &mut Vec<Vec<u8>>) {
        let flags = flags_of(tcp);
        if let Some(stamp) = stamp_of(tcp.options()) {
            self.stamp = stamp;
        }
        let acknowledged = tcp
            .acknowledgement()
            .wrapping_sub(self.first.wrapping_add(1)) as usize;
        if self.is_server && self.phase == Phase::Opening {
            self.take_opening(tcp, flags, acknowledged, wire);
            return;
        }
        if flags & SYN != 0 {
            if self.phase == Phase::Opening
                && acknowledged <= self.plan.in_syn.len()
                && self.tries > 0
            {
                self.first_of_other = tcp.sequence();
                self.next = tcp.sequence().wrapping_add(1);
                self.acknowledged = acknowledged.min(self.plan.payload.len());
                self.phase = Phase::Sending;
                self.due = Instant::now();
                let at = self.acknowledged as i64;
                self.emit(&Segment::new(at, ACK, &[]), wire);
            }
            return;
        }
        if self.phase == Phase::Opening || flags & RST != 0 {
            return;
        }
        if acknowledged <= self.plan.payload.len() {
            self.acknowledged = self.acknowledged.max(acknowledged);
        }
        let has_number = tcp.payload().len() + usize::from(flags & FIN) > 0;
        if has_number && tcp.sequence() == self.next && !self.has_ended {
            self.received.extend(tcp.payload());
            self.has_ended = flags & FIN != 0;
            self.next = self
                .next
                .wrapping_add(tcp.payload().len() as u32 + u32::from(flags & FIN));
        }
        if has_number {
            let at = self.acknowledged as i64;
            self.emit(&Segment::new(at, ACK, &[]), wire);
        }
    }

    /// Processes the segment by which a client opens a connection.
    fn take_opening(
        &mut self,
        tcp: &Tcp<&[u8]>,
        flags: u8,
        acknowledged: usize,
        wire: &mut Vec<Vec<u8>>,
    ) {
        if flags & SYN != 0 {
            self.ends.other.1 = tcp.source_port();
            self.first_of_other = tcp.sequence();
            self.next = tcp.sequence().wrapping_add(1);
            self.before_opening(wire);
            self.emit(&Segment::new(-1, SYN | ACK, &self.plan.in_syn), wire);
        } else if flags & RST == 0
            && acknowledged <= self.plan.in_syn.len()
            && !(self.awaits_request && tcp.payload().is_empty())
        {
            self.next = self.next.wrapping_add(tcp.payload().len() as u32);
            (self.phase, self.due) = (Phase::Sending, Instant::now());
        }
    }

    /// Sends a reset, upon which the peer discards the connection.
    pub fn reset(&self, wire: &mut Vec<Vec<u8>>) {
        self.emit(
            &Segment::new(self.acknowledged as i64, RST | ACK, &[]),
            wire,
        );
    }

    fn emit(&self, segment: &Segment, wire: &mut Vec<Vec<u8>>) {
        let (mut sequence, mut acknowledgement) = (
            self.first.wrapping_add(1).wrapping_add(segment.at as u32),
            self.next,
        );
        let mut segment = segment.clone();
        let is_syn = segment.flags & SYN != 0;
        let is_first = self.phase == Phase::Opening;
        if segment.flags & ACK == 0 || is_first && !self.is_server {
            acknowledgement = 0;
        }
        if segment.is_of_other {
            acknowledgement = sequence;
            sequence = if segment.flags & SYN != 0 {
                self.first_of_other
            } else {
                self.next
            };
        }
        match segment.broken {
            Some(Broken::OldNumber) => sequence = sequence.wrapping_sub(FAR),
            Some(Broken::FarNumber) => sequence = sequence.wrapping_add(FAR),
            Some(Broken::NearNumber) => sequence = sequence.wrapping_add(3),
            Some(Broken::FarAcknowledgement) => acknowledgement = acknowledgement.wrapping_add(FAR),
            Some(Broken::NoAcknowledgement) => segment.flags &= !ACK,
            _ => {}
        }
        let options = self.options(is_syn, segment.broken);
        let header = Header {
            sequence,
            acknowledgement,
            window: self.plan.window,
            options,
        };
        wire.extend(packets(&self.ends, &header, &segment));
    }

    fn options(&self, is_syn: bool, broken: Option<Broken>) -> Vec<u8> {
        let mut options = Vec::new();
        if is_syn {
            options.extend([2, 4, 0x05, 0x78]);
        }
        if is_syn && self.plan.fast_open {
            options.extend([1, 1, 34, 2]);
        }
        if self.plan.has_timestamps {
            let mut own = self.begun.elapsed().as_millis() as u32 + 1_000_000;
            if broken == Some(Broken::OldTimestamp) {
                own -= 500_000;
            }
            options.extend([1, 1, 8, 10]);
            options.extend(own.to_be_bytes());
            options.extend(self.stamp.to_be_bytes());
        }
        if broken == Some(Broken::Signed) && options.len() <= 20 {
            options.extend([1, 1, 19, 18]);
            options.extend([7; 16]);
        }
        options
    }
}

fn flags_of(tcp: &Tcp<&[u8]>) -> u8 {
    [
        (TcpFlags::FIN, FIN),
        (TcpFlags::SYN, SYN),
        (TcpFlags::RST, RST),
        (TcpFlags::ACK, ACK),
    ]
    .into_iter()
    .map(|(flag, bit)| if tcp.flags().contains(flag) { bit } else { 0 })
    .sum()
}

/// Returns the timestamp value (RFC 7323) in the TCP options of a segment from the peer; `None` if they contain none.
fn stamp_of(options: &[u8]) -> Option<u32> {
    let mut rest = options;
    while let [kind, tail @ ..] = rest {
        rest = match (kind, tail) {
            (0, _) => return None,
            (1, tail) => tail,
            (8, [10, a, b, c, d, ..]) => return Some(u32::from_be_bytes([*a, *b, *c, *d])),
            (_, [length, ..]) if (2..=rest.len()).contains(&usize::from(*length)) => {
                &rest[usize::from(*length)..]
            }
            _ => return None,
        };
    }
    None
}

/// Returns the packets that carry a segment: one, or several fragments.
fn packets(ends: &Ends, header: &Header, segment: &Segment) -> Vec<Vec<u8>> {
    let (from, to) = match segment.is_of_other {
        true => (ends.other, ends.own),
        false => (ends.own, ends.other),
    };
    let mut words = (5 + header.options.len() / 4) as u16;
    if segment.broken == Some(Broken::ShortHeader) {
        words = 4;
    }
    let mut tcp = Vec::new();
    tcp.extend(from.1.to_be_bytes());
    tcp.extend(to.1.to_be_bytes());
    tcp.extend(header.sequence.to_be_bytes());
    tcp.extend(header.acknowledgement.to_be_bytes());
    tcp.extend((words << 12 | u16::from(segment.flags)).to_be_bytes());
    tcp.extend(header.window.to_be_bytes());
    tcp.extend([0, 0]);
    let urgent = if segment.flags & URG != 0 {
        segment.urgent
    } else {
        0
    };
    tcp.extend(urgent.to_be_bytes());
    tcp.extend(&header.options);
    tcp.extend(&segment.bytes);
    let length = tcp.len() as u16;
    let pseudo_header = match (from.0, to.0) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            checksum::pseudo_header_v4(from, to, IpProtocol::TCP, length)
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            checksum::pseudo_header_v6(from, to, IpProtocol::TCP, length.into())
        }
        _ => unreachable!("both ends have addresses of one kind"),
    };
    let mut sum = pseudo_header.combine(Sum::of(&tcp)).checksum();
    let has_sum_in_ip = from.0.is_ipv4() && segment.broken == Some(Broken::IpChecksum);
    let is_wrong = matches!(
        segment.broken,
        Some(Broken::TcpChecksum | Broken::IpChecksum)
    );
    if is_wrong && !has_sum_in_ip {
        sum ^= 0x5555;
    }
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    let hops = if segment.broken == Some(Broken::TimeToLive) {
        1
    } else {
        64
    };
    let identification = header.sequence ^ u32::from(from.1) ^ (segment.bytes.len() as u32) << 8;
    let piece = |at: usize, bytes: &[u8], more: Option<bool>| {
        let piece = Piece {
            at,
            bytes,
            more,
            hops,
            identification,
            is_sum_wrong: has_sum_in_ip,
        };
        piece.packet(from.0, to.0)
    };
    match segment.cut {
        None => vec![piece(0, &tcp, None)],
        Some(cut) => pieces(&tcp, cut, piece),
    }
}

fn pieces(
    whole: &[u8],
    cut: Cut,
    piece: impl Fn(usize, &[u8], Option<bool>) -> Vec<u8>,
) -> Vec<Vec<u8>> {
    // The size limits the number of fragments, as each packet takes time.
    let size = (usize::from(cut.eights.max(1)) * 8).max(whole.len() / 64 / 8 * 8);
    let count = whole.len().div_ceil(size);
    let mut places: Vec<usize> = (0..count).collect();
    match cut.order {
        Order::Forward => {}
        Order::Backward => places.reverse(),
        Order::LastFirst => places.rotate_right(1),
    }
    let mut all = Vec::new();
    for place in places {
        let (from, to) = (place * size, ((place + 1) * size).min(whole.len()));
        let made = piece(from, &whole[from..to], Some(to < whole.len()));
        if let (Some(is_other), true) = (cut.overlap, from >= 8) {
            let length = to - from + 8;
            let bytes = if is_other {
                others(length)
            } else {
                whole[from - 8..to].to_vec()
            };
            all.push(piece(from - 8, &bytes, Some(to < whole.len())));
        }
        if cut.twice {
            all.push(made.clone());
        }
        all.push(made);
    }
    all
}

/// A datagram, or a fragment of one.
struct Piece<'a> {
    at: usize,
    bytes: &'a [u8],
    /// True if more fragments follow; `None` if the datagram is not fragmented.
    more: Option<bool>,
    hops: u8,
    identification: u32,
    is_sum_wrong: bool,
}

impl Piece<'_> {
    fn packet(&self, from: IpAddr, to: IpAddr) -> Vec<u8> {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) => self.of_four(from, to),
            (IpAddr::V6(from), IpAddr::V6(to)) => self.of_six(from, to),
            _ => unreachable!("both ends have addresses of one kind"),
        }
    }

    fn of_four(&self, from: Ipv4Addr, to: Ipv4Addr) -> Vec<u8> {
        let place = (self.at / 8) as u16 | if self.more == Some(true) { 0x2000 } else { 0 };
        let mut packet = vec![0x45, 0];
        packet.extend((20 + self.bytes.len() as u16).to_be_bytes());
        packet.extend((self.identification as u16).to_be_bytes());
        packet.extend(place.to_be_bytes());
        packet.extend([self.hops, IpProtocol::TCP.0, 0, 0]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        let sum = Sum::of(&packet).checksum() ^ if self.is_sum_wrong { 0x5555 } else { 0 };
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet.extend(self.bytes);
        packet
    }

    fn of_six(&self, from: Ipv6Addr, to: Ipv6Addr) -> Vec<u8> {
        let fragment = self.more.map(|more| {
            let place = self.at as u16 | u16::from(more);
            [
                &[IpProtocol::TCP.0, 0][..],
                &place.to_be_bytes(),
                &self.identification.to_be_bytes(),
            ]
            .concat()
        });
        let next = if fragment.is_some() {
            IpProtocol::FRAGMENT
        } else {
            IpProtocol::TCP
        };
        let fragment = fragment.unwrap_or_default();
        let mut packet = vec![0x60, 0, 0, 0];
        packet.extend((fragment.len() as u16 + self.bytes.len() as u16).to_be_bytes());
        packet.extend([next.0, self.hops]);
        packet.extend(from.octets());
        packet.extend(to.octets());
        packet.extend(fragment);
        packet.extend(self.bytes);
        packet
    }
}
