//! A worker's part of the inspection: its flows, streams and messages, and the rules that it asks.

use super::events::{Ends, Event, Events, What};
use super::flow::{Flow, Flows, Key, Settled};
use super::outcome::{Counters, Note, Outcome};
use super::rules::{InForce, Rules};
use super::settings::{Checked, Fragments, OverTime, Overload};
use super::tunnel::looked_into;
use crate::mix::mix;
use crate::swapped::InUse;
use crate::{Context, Member};
use std::sync::Arc;
use taut_inspect::arena::Arena;
use taut_inspect::buffer::{Application, Buffer, BufferSet};
use taut_inspect::certificate::Certificate;
use taut_inspect::compile::{Inspector, Verdict};
use taut_inspect::evaluate::{Message, Packet, Parts, Tls};
use taut_inspect::fingerprint::{Fingerprint, server_name};
use taut_inspect::flight::{Flight, Kind};
use taut_inspect::http::Http;
use taut_inspect::stream::{Segment, StreamLimits};
use taut_inspect::tls::{Hellos, Next};
use taut_inspect::{dns, tls};
use taut_port::{BATCH_CAPACITY, Batch, PortError, Punt};
use taut_sys::Clock;
use taut_wire::{Headers, Layer3};

/// Messages of HTTP that are read at a time.
const PARSERS: usize = 1024;
/// Hellos of TLS that are put together at a time, and the longest one.
const HELLOS: usize = 64;
const HELLO_BYTES: usize = 16 * 1024;
/// First messages of TLS that are put together at a time where rules ask for certificates or fingerprints.
const FLIGHTS: usize = 128;
/// Certificates of a server that rules are asked about, and rules that are known to have been written down for one of them.
const MOST_CERTIFICATES: usize = 16;
const MOST_TOLD: usize = 64;
/// Places of the table of flows that are looked at in each batch for flows that are over.
const SWEPT: usize = 4;
/// Segments of a stream are limited so.
const LIMITS: StreamLimits = StreamLimits {
    window: 256,
    out_of_order: 64 * 1024,
};

/// Hash of a flow, the same in both directions, for the choice of a worker.
pub(super) fn hash_of(frame: &[u8], inner: bool) -> Option<u32> {
    let (headers, frame) = looked_into(inner, &Headers::of(frame), frame);
    if headers.layer3() == Layer3::Other || headers.fault().is_some() {
        return None;
    }
    let (source, destination) = headers.addresses_in(frame);
    let fold = |it: u128| mix((it ^ (it >> 64)) as u64, 0);
    // All fragments of a datagram, of which but the first have no ports, go one way.
    let ports = headers
        .ports()
        .filter(|_| !headers.is_fragment())
        .unwrap_or_default();
    let ends = fold(source).wrapping_add(fold(destination));
    let both = u64::from(ports.0.min(ports.1)) << 16 | u64::from(ports.0.max(ports.1));
    Some((mix(ends ^ both, 0) >> 32) as u32)
}

/// Numbers of things that are lent to flows, from 1.
struct Lent<T> {
    things: Box<[T]>,
    free: Vec<u32>,
}

impl<T> Lent<T> {
    fn new(most: usize, mut make: impl FnMut() -> T) -> Self {
        Self {
            things: (0..most).map(|_| make()).collect(),
            free: (1..=most as u32).rev().collect(),
        }
    }

    fn take(&mut self) -> Option<u32> {
        self.free.pop()
    }

    fn give_back(&mut self, number: u32) {
        if number > 0 && self.free.len() < self.things.len() {
            self.free.push(number);
        }
    }

    fn get(&mut self, number: u32) -> Option<&mut T> {
        self.things.get_mut((number as usize).checked_sub(1)?)
    }
}

/// First bytes of a TLS connection.
struct Hello {
    bytes: Box<[u8; HELLO_BYTES]>,
    len: usize,
    /// Place of the hello that is read next.
    place: Hellos,
    message: tls::ClientHello,
}

/// Things that flows borrow while a message is read.
struct Messages {
    http: Lent<Http>,
    hellos: Lent<Hello>,
    flights: Lent<Flight>,
    name: dns::Name,
    certificate: Certificate,
    fingerprint: Fingerprint,
}

impl Messages {
    fn end(&mut self, flow: &mut Flow) {
        self.end_parser(flow);
        for flight in &mut flow.flights {
            self.flights.give_back(std::mem::take(flight));
        }
    }

    fn end_parser(&mut self, flow: &mut Flow) {
        match flow.application {
            Some(Application::Http) => self.http.give_back(flow.parser),
            Some(Application::Tls) => self.hellos.give_back(flow.parser),
            _ => {}
        }
        flow.parser = 0;
    }
}

pub(super) struct Plane {
    in_use: InUse<InForce>,
    version: u64,
    inspector: Inspector,
    flows: Flows,
    swept: usize,
    arena: Arena,
    messages: Messages,
    /// Bytes of a stream in front of a segment and those of the segment.
    joined: Vec<u8>,
    /// Rules that certificates of a packet have fitted.
    told: Vec<u32>,
    counters: Arc<Counters>,
    events: Option<Events>,
    alert_only: bool,
    fragments: Fragments,
    overload: Overload,
    bound_ticks: u64,
    /// Ticks that rules are asked about a packet for at most.
    max_ticks: Option<u64>,
    over_time: OverTime,
    inner: bool,
    /// Time at which packets began to come without a pause.
    busy_since: Option<u64>,
    ticks_per_s: f64,
}

/// What is done with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Pass,
    Drop,
    Reject,
    /// It waits for the other fragments of its datagram.
    Wait,
}

impl Plane {
    pub fn new(
        checked: &Checked,
        member: Member,
        rules: &Rules,
        counters: Arc<Counters>,
        events: Option<Events>,
        clock: &Clock,
    ) -> Result<Self, PortError> {
        let (mut in_use, inspector) = rules.worker();
        let version = in_use.get().version;
        Ok(Self {
            version,
            inspector,
            in_use,
            flows: Flows::new(checked.flows, (member.number as u64) << 48 | 1),
            swept: 0,
            arena: Arena::new(checked.memory_bytes),
            messages: Messages {
                http: Lent::new(PARSERS, Http::default),
                hellos: Lent::new(HELLOS, || Hello {
                    bytes: Box::new([0; HELLO_BYTES]),
                    len: 0,
                    place: Hellos::default(),
                    message: tls::ClientHello::default(),
                }),
                flights: Lent::new(FLIGHTS, Flight::default),
                name: dns::Name::default(),
                certificate: Certificate::default(),
                fingerprint: Fingerprint::default(),
            },
            joined: Vec::with_capacity(1 << 17),
            told: Vec::with_capacity(MOST_TOLD),
            counters,
            events,
            alert_only: checked.alert_only,
            fragments: checked.fragments,
            overload: checked.overload,
            bound_ticks: clock.to_ticks(checked.bound.as_nanos() as f64) as u64,
            max_ticks: checked
                .max_time
                .map(|it| clock.to_ticks(it.as_nanos() as f64) as u64),
            over_time: checked.over_time,
            inner: checked.inner,
            busy_since: None,
            ticks_per_s: clock.to_ticks(1e9),
        })
    }

    pub fn process(&mut self, batch: &mut Batch, context: &Context) {
        self.go_by_newest();
        let now_s = self.seconds(context.now_ticks);
        let is_too_much = self.is_too_much(batch.len(), context.now_ticks);
        for i in 0..batch.len() {
            if !batch.is_kept(i) {
                continue;
            }
            let headers = batch.headers(i);
            let frame = batch.packets()[i].bytes();
            let (outcome, fate) = self.packet(&headers, frame, context, now_s, is_too_much);
            self.counters.count(outcome);
            match fate {
                Fate::Pass => {}
                Fate::Drop | Fate::Reject if self.alert_only => {}
                Fate::Drop => batch.mark_dropped(i),
                Fate::Reject => batch.mark_punted(i, Punt::Rejected),
                Fate::Wait => batch.mark_punted(i, Punt::Fragment),
            }
        }
        self.sweep(context.now_ticks, now_s);
        self.counters
            .set(Note::FlowsForcedOut, self.flows.forced_out);
        self.counters.set(Note::GivenUp, self.inspector.given_up());
        self.counters.set(Note::BitsFull, self.inspector.bits_full);
    }

    /// Goes by the newest rules.
    pub fn go_by_newest(&mut self) {
        let in_force = self.in_use.get();
        if in_force.version != self.version {
            self.version = in_force.version;
            in_force.change(&mut self.inspector);
        }
    }

    fn seconds(&self, now_ticks: u64) -> u32 {
        (now_ticks as f64 / self.ticks_per_s) as u32
    }

    /// Says what is to be done with a frame that was put together of fragments.
    pub fn whole(&mut self, frame: &[u8], context: &Context) -> Fate {
        self.go_by_newest();
        let now_s = self.seconds(context.now_ticks);
        let (_, fate) = self.packet(&Headers::of(frame), frame, context, now_s, false);
        self.sweep(context.now_ticks, now_s);
        match fate {
            Fate::Drop | Fate::Reject if self.alert_only => Fate::Pass,
            fate => fate,
        }
    }

    /// Whether packets have come in full batches, without a pause, for longer than they may wait.
    fn is_too_much(&mut self, len: usize, now_ticks: u64) -> bool {
        if self.overload == Overload::Queue {
            return false;
        }
        if len < BATCH_CAPACITY / 2 {
            self.busy_since = None;
            return false;
        }
        let since = *self.busy_since.get_or_insert(now_ticks);
        now_ticks.saturating_sub(since) > self.bound_ticks
    }

    fn sweep(&mut self, now_ticks: u64, now_s: u32) {
        let Self {
            flows,
            arena,
            messages,
            events,
            ..
        } = self;
        self.swept = flows.sweep(self.swept, SWEPT, now_s, |flow| {
            end(flow, arena, messages, events.as_mut(), now_ticks, "timeout");
        });
    }

    fn packet(
        &mut self,
        headers: &Headers,
        frame: &[u8],
        context: &Context,
        now_s: u32,
        is_too_much: bool,
    ) -> (Outcome, Fate) {
        let (headers, inside) = &looked_into(self.inner, headers, frame);
        if headers.layer3() == Layer3::Other {
            return (Outcome::NotIp, Fate::Pass);
        }
        if headers.fault().is_some() {
            return (Outcome::Malformed, Fate::Pass);
        }
        if headers.is_fragment() {
            return match self.fragments {
                Fragments::Pass => (Outcome::Fragment, Fate::Pass),
                Fragments::Inspect => (Outcome::Fragment, Fate::Wait),
            };
        }
        let Some((mut packet, payload)) = facts(headers, inside) else {
            return (Outcome::Malformed, Fate::Pass);
        };
        let source = (packet.source, packet.source_port);
        let destination = (packet.destination, packet.destination_port);
        let (key, from_low) = Key::of(source, destination, packet.protocol);
        let now_ticks = context.now_ticks;
        let Self {
            flows,
            arena,
            messages,
            events,
            ..
        } = self;
        let (place, is_new) = flows.find(&key, now_s, |flow| {
            end(flow, arena, messages, events.as_mut(), now_ticks, "forced");
        });
        let flow = self.flows.at(place);

        let is_tcp = packet.protocol == TCP;
        let flags = packet.tcp_flags;
        let has = |flag: u8| is_tcp && flags & flag != 0;
        if is_new {
            // Who answers a handshake is the server.
            let is_answer = has(SYN) && has(ACK);
            flow.client_is_low = from_low != is_answer;
            self.counters.note(Note::Flows, 1);
        } else if flow.is_over && has(SYN) && !has(ACK) {
            // Another connection between the same ports, in both directions.
            for stream in &mut flow.streams {
                stream.close(&mut self.arena);
            }
            self.messages.end(flow);
            flow.reconnect(from_low);
        }
        let to_server = from_low == flow.client_is_low;
        let direction = usize::from(!to_server);
        flow.seen_s = now_s;
        flow.packets[direction] = flow.packets[direction].saturating_add(1);
        flow.bytes[direction] += frame.len() as u64;
        flow.is_answered |= !to_server;
        flow.is_done[direction] |= has(FIN);
        flow.is_over |= has(RST) || flow.is_done == [true, true];
        match flow.settled {
            Settled::Drops => return (Outcome::DroppedWithFlow, Fate::Drop),
            Settled::Passes => return (Outcome::PassedWithFlow, Fate::Pass),
            Settled::No => {}
        }
        if is_too_much {
            // Flows that have brought much bring most of what is too much: they pass for good.
            return match self.overload {
                Overload::Drop => (Outcome::DroppedOverload, Fate::Drop),
                _ => {
                    if flow.bytes[0] + flow.bytes[1] > ELEPHANT_BYTES {
                        flow.settled = Settled::Passes;
                    }
                    (Outcome::Bypassed, Fate::Pass)
                }
            };
        }
        let (is_syn, is_reset) = (has(SYN), has(RST));
        packet.to_server = to_server;
        packet.established = flow.is_answered && !is_syn;
        packet.stream_bytes = [0, 1].map(|at| flow.streams[at].taken());
        let Self {
            in_use,
            inspector,
            messages,
            joined,
            told,
            counters,
            events,
            arena,
            ..
        } = self;
        // Those of the inspector, also where there are newer ones by now.
        let in_force = in_use.held();
        let end = |max| taut_sys::ticks().saturating_add(max);
        inspector.begin(self.max_ticks.map_or(u64::MAX, end));
        let mut asking = Asking {
            ask: Ask {
                in_force,
                inspector,
                counters,
                events: events.as_mut(),
                packet,
                verdict: Verdict::None,
                is_asked: false,
                told,
                now_s,
                now_ticks,
                port: context.from_port as u8,
                alert_only: self.alert_only,
            },
            messages,
            joined,
        };
        let mut is_overlap = false;
        if is_tcp && (!payload.is_empty() || is_syn) {
            // The stream is lent out of the flow while its bytes are looked at.
            let mut stream = std::mem::take(&mut flow.streams[direction]);
            // A SYN within a connection is refused by its receiver (RFC 5961 section 4), and moves nothing here.
            if is_syn && !stream.is_started() {
                stream.start(packet.tcp_sequence.wrapping_add(1));
            } else if !is_syn {
                if !stream.is_started() {
                    stream.start(packet.tcp_sequence);
                }
                let segment =
                    stream.push(arena, packet.tcp_sequence, payload, &LIMITS, &mut |piece| {
                        if piece.gap {
                            asking.gap(flow);
                        }
                        asking.ask.packet.stream_bytes[direction] = piece.taken;
                        asking.bytes(flow, piece.before, piece.data);
                    });
                match segment {
                    Segment::OutOfOrder(_) => counters.note(Note::OutOfOrder, 1),
                    Segment::Overlap { differs: true } => is_overlap = true,
                    Segment::NoMemory => counters.note(Note::NoMemory, 1),
                    Segment::TooFar => counters.note(Note::TooFar, 1),
                    Segment::InOrder | Segment::Old | Segment::Overlap { differs: false } => {}
                }
            }
            asking.ask.packet.stream_bytes[direction] = stream.taken();
            flow.streams[direction] = stream;
        }
        if !asking.ask.is_asked {
            asking.whole(flow, payload);
        }
        let verdict = asking.ask.verdict;
        let is_over_time = inspector.is_over_time();
        if is_reset {
            for stream in &mut flow.streams {
                stream.close(arena);
            }
            messages.end(flow);
        }
        let (id, application) = (flow.id, flow.application);
        let event = |what| Event {
            at_ticks: now_ticks,
            flow: id,
            ends: Ends {
                source,
                destination,
                protocol: packet.protocol,
            },
            application,
            port: context.from_port as u8,
            what,
        };
        if let Some(events) = events.as_mut() {
            events.end_of_packet(event, frame);
        }
        let mut dropped = |reason| {
            if let Some(events) = events.as_mut() {
                events.push(event(What::Drop { reason }));
            }
        };
        match verdict {
            Verdict::Pass => {
                flow.settled = Settled::Passes;
                (Outcome::PassedWithFlow, Fate::Pass)
            }
            Verdict::Drop | Verdict::Reject => {
                if !self.alert_only {
                    flow.settled = Settled::Drops;
                }
                if verdict == Verdict::Drop {
                    (Outcome::DroppedByRule, Fate::Drop)
                } else {
                    (Outcome::Rejected, Fate::Reject)
                }
            }
            Verdict::None if is_overlap => {
                dropped("stream overlap with other bytes");
                (Outcome::DroppedOverlap, Fate::Drop)
            }
            Verdict::None if is_over_time => match self.over_time {
                OverTime::Pass => (Outcome::PassedOverTime, Fate::Pass),
                OverTime::Drop => {
                    dropped("no more time");
                    (Outcome::DroppedOverTime, Fate::Drop)
                }
            },
            Verdict::None => (Outcome::Passed, Fate::Pass),
        }
    }
}

/// Bytes from which on a flow is one of those that pass first when there is too much.
const ELEPHANT_BYTES: u64 = 1 << 20;

/// Gives back what a flow has borrowed, and writes down what became of it.
fn end(
    flow: &mut Flow,
    arena: &mut Arena,
    messages: &mut Messages,
    events: Option<&mut Events>,
    now_ticks: u64,
    reason: &'static str,
) {
    for stream in &mut flow.streams {
        stream.close(arena);
    }
    messages.end(flow);
    if let Some(events) = events {
        let (source, destination, protocol) = flow.ends();
        events.push(Event {
            at_ticks: now_ticks,
            flow: flow.id,
            ends: Ends {
                source,
                destination,
                protocol,
            },
            application: flow.application,
            port: 0,
            what: What::Flow {
                packets: flow.packets,
                bytes: flow.bytes,
                alerts: flow.alerts,
                reason: if flow.is_over { "closed" } else { reason },
            },
        });
    }
}

/// A packet about which rules are asked, and what they say.
struct Ask<'a> {
    in_force: &'a InForce,
    inspector: &'a mut Inspector,
    counters: &'a Counters,
    events: Option<&'a mut Events>,
    packet: Packet<'a>,
    verdict: Verdict,
    is_asked: bool,
    /// Rules that are not written down again.
    told: &'a mut Vec<u32>,
    now_s: u32,
    now_ticks: u64,
    port: u8,
    alert_only: bool,
}

/// The same, with what inspectors need to find messages in it.
struct Asking<'a> {
    ask: Ask<'a>,
    messages: &'a mut Messages,
    joined: &'a mut Vec<u8>,
}

impl Asking<'_> {
    /// Asks about a packet by itself: one of UDP or ICMP, or a segment without new bytes.
    fn whole(&mut self, flow: &mut Flow, payload: &[u8]) {
        let Self { ask, messages, .. } = self;
        let mut dns_query = None;
        if ask.packet.protocol == UDP && ask.is_port(DNS) {
            flow.application = Some(Application::Dns);
            match dns::query(payload, &mut messages.name) {
                Ok(question) if !question.is_response => dns_query = Some(&messages.name[..]),
                Ok(_) => {}
                Err(_) => ask.counters.note(Note::Faults, 1),
            }
        }
        let ready = dns_query.map(|_| Buffer::DnsQuery).into_iter().collect();
        ask.about(
            flow,
            &Parts {
                payload,
                message: dns_query.map_or(Message::None, Message::DnsQuery),
                ..Parts::default()
            },
            true,
            ready,
        );
    }

    /// Asks about bytes of a stream in their order, with some that came before.
    fn bytes(&mut self, flow: &mut Flow, before: &[u8], data: &[u8]) {
        if self.ask.inspector.is_over_time() {
            self.ask.is_asked = true;
            return self.miss(flow);
        }
        self.recognise(flow, before.is_empty(), data);
        let Self {
            ask,
            messages,
            joined,
        } = self;
        let whole: &[u8] = if before.is_empty() {
            data
        } else {
            joined.clear();
            joined.extend_from_slice(before);
            joined.extend_from_slice(data);
            joined
        };
        let parts = Parts {
            payload: whole,
            new_from: before.len(),
            ..Parts::default()
        };
        match flow.application {
            Some(Application::Http) => ask.http(messages, flow, &parts, data),
            Some(Application::Tls) => ask.tls(messages, flow, &parts, data),
            Some(Application::Dns) => ask.dns_over_tcp(messages, flow, &parts),
            _ => ask.about(flow, &parts, true, BufferSet::default()),
        }
    }

    /// Bytes of a stream are missing for good.
    fn gap(&mut self, flow: &mut Flow) {
        self.ask.counters.note(Note::Gaps, 1);
        self.miss(flow);
    }

    /// Tells the inspector that it does not see all bytes.
    fn miss(&mut self, flow: &mut Flow) {
        let to_server = self.ask.packet.to_server;
        match flow.application {
            Some(Application::Http) => {
                if let Some(http) = self.messages.http.get(flow.parser) {
                    http.gap(to_server);
                }
            }
            Some(Application::Dns) => flow.dns[usize::from(!to_server)].lose(),
            Some(Application::Tls) => {
                let flight = std::mem::take(&mut flow.flights[usize::from(!to_server)]);
                self.messages.flights.give_back(flight);
                if to_server {
                    self.messages.end_parser(flow);
                }
            }
            _ => {}
        }
    }

    /// Finds out which protocol a stream is of, by its first bytes.
    fn recognise(&mut self, flow: &mut Flow, is_first: bool, data: &[u8]) {
        if flow.application.is_some() || flow.is_opaque || data.is_empty() {
            return;
        }
        let is_dns = self.ask.is_port(DNS);
        let to_server = self.ask.packet.to_server;
        if !is_first {
            // More of a greeting tells no more.
            flow.is_opaque = !flow.is_greeted || to_server;
        } else if data.len() >= 3 && data[0] == 22 && data[1] == 3 {
            flow.application = Some(Application::Tls);
            if let Some(number) = self.messages.hellos.take() {
                flow.parser = number;
                if let Some(hello) = self.messages.hellos.get(number) {
                    (hello.len, hello.place) = (0, Hellos::default());
                }
            }
        } else if let Some(application) = by_first_bytes(data, to_server) {
            flow.application = Some(application);
        } else if !to_server && data.starts_with(b"220") {
            flow.is_greeted = true;
        } else if is_http(data) {
            match self.messages.http.take() {
                Some(number) => {
                    flow.application = Some(Application::Http);
                    flow.parser = number;
                    if let Some(http) = self.messages.http.get(number) {
                        http.reset();
                    }
                }
                None => {
                    flow.is_opaque = true;
                    self.ask.counters.note(Note::NoParser, 1);
                }
            }
        } else if is_dns {
            flow.application = Some(Application::Dns);
        } else {
            flow.is_opaque = true;
        }
    }
}

/// Whether a stream that begins so is one of HTTP.
fn is_http(data: &[u8]) -> bool {
    let word = data
        .iter()
        .take(16)
        .position(|byte| !byte.is_ascii_uppercase());
    data.starts_with(b"HTTP/1.") || word.is_some_and(|end| end >= 3 && data[end] == b' ')
}

/// Protocols that are known by the first bytes of one end: commands of clients, what servers of FTP greet with, and first lines and
/// messages of either end.
fn by_first_bytes(data: &[u8], to_server: bool) -> Option<Application> {
    const SMTP: [&[u8]; 2] = [b"EHLO", b"HELO"];
    const FTP: [&[u8]; 5] = [b"USER ", b"PASS ", b"PORT ", b"FEAT", b"AUTH TLS"];
    let begins = |word: &&[u8]| {
        let first = data.get(..word.len());
        first.is_some_and(|first| first.eq_ignore_ascii_case(word))
    };
    let is_smb = || {
        let head = data.get(4..8);
        data[0] == 0 && head.is_some_and(|it| it == b"\xffSMB" || it == b"\xfeSMB")
    };
    match to_server {
        _ if data.starts_with(b"SSH-") => Some(Application::Ssh),
        _ if is_smb() => Some(Application::Smb),
        true if SMTP.iter().any(begins) => Some(Application::Smtp),
        true if FTP.iter().any(begins) => Some(Application::Ftp),
        false if data.starts_with(b"220 (") => Some(Application::Ftp),
        _ => None,
    }
}

/// Buffers of the first certificate of a server of TLS.
const OF_FIRST: [Buffer; 4] = [
    Buffer::TlsCertificates,
    Buffer::TlsSubject,
    Buffer::TlsIssuer,
    Buffer::TlsSerial,
];

/// Buffers for which the first messages of a client of TLS, or of a server, are put together.
fn of_flight(to_server: bool) -> BufferSet {
    match to_server {
        true => [Buffer::Ja3Hash, Buffer::Ja3String].into_iter().collect(),
        false => {
            let hello = [Buffer::Ja3sHash, Buffer::Ja3sString];
            OF_FIRST.into_iter().chain(hello).collect()
        }
    }
}

impl Ask<'_> {
    fn is_port(&self, port: u16) -> bool {
        self.packet.source_port == port || self.packet.destination_port == port
    }

    fn http(&mut self, messages: &mut Messages, flow: &mut Flow, parts: &Parts<'_>, data: &[u8]) {
        let to_server = self.packet.to_server;
        let Some(parser) = messages.http.get(flow.parser) else {
            return self.about(flow, parts, true, BufferSet::default());
        };
        let (mut rest, mut is_first) = (data, true);
        while !rest.is_empty() {
            if self.inspector.is_over_time() {
                parser.gap(to_server);
                break;
            }
            let pushed = parser.push(to_server, rest);
            self.counters
                .note(Note::Faults, u64::from(pushed.fault.is_some()));
            if is_first || !pushed.ready.is_empty() {
                let parts = Parts {
                    message: Message::Http {
                        http: parser,
                        is_request: to_server,
                    },
                    ..*parts
                };
                self.about(flow, &parts, is_first, pushed.ready);
            }
            is_first = false;
            rest = rest.get(pushed.consumed.max(1)..).unwrap_or_default();
        }
    }

    fn tls(&mut self, messages: &mut Messages, flow: &mut Flow, parts: &Parts<'_>, data: &[u8]) {
        let records = tls::records(data);
        (self.packet.tls, self.packet.tls_version) = (records.states, records.version);
        let to_server = self.packet.to_server;
        let asked = self.in_force.set.asked();
        let direction = usize::from(!to_server);
        if parts.new_from == 0 && asked.intersects(of_flight(to_server)) {
            messages.flights.give_back(flow.flights[direction]);
            flow.flights[direction] = messages.flights.take().unwrap_or(0);
            match messages.flights.get(flow.flights[direction]) {
                Some(flight) => flight.begin(),
                None => self.counters.note(Note::NoParser, 1),
            }
        }
        let is_asked = if flow.flights[direction] != 0 {
            self.flight(messages, flow, parts, data)
        } else if to_server {
            self.hellos(messages, flow, parts, data)
        } else {
            false
        };
        if !is_asked {
            self.about(flow, parts, true, BufferSet::default());
        }
    }

    /// Asks the rules with what is known of an end's first messages.
    fn about_tls(
        &mut self,
        flow: &mut Flow,
        parts: &Parts<'_>,
        tls: &Tls<'_>,
        with_packet: bool,
        ready: &[Buffer],
    ) {
        let message = Message::Tls(tls);
        let parts = Parts { message, ..*parts };
        self.about(flow, &parts, with_packet, ready.iter().copied().collect());
    }

    /// Looks for names of servers in a client's hellos; whether the rules about the packet have been asked with them.
    fn hellos(
        &mut self,
        messages: &mut Messages,
        flow: &mut Flow,
        parts: &Parts<'_>,
        data: &[u8],
    ) -> bool {
        let Some(hello) = messages.hellos.get(flow.parser) else {
            return false;
        };
        let mut is_first = true;
        let taken = data.len().min(HELLO_BYTES - hello.len);
        hello.bytes[hello.len..][..taken].copy_from_slice(&data[..taken]);
        hello.len += taken;
        let is_done = loop {
            let bytes = &hello.bytes[..hello.len];
            match hello.place.next(bytes, &mut hello.message) {
                Ok(Next::Hello) => {
                    let tls = Tls {
                        server_name: Some(&hello.message.sni),
                        ..Tls::default()
                    };
                    self.about_tls(flow, parts, &tls, is_first, &[Buffer::TlsSni]);
                    is_first = false;
                }
                // Where one was read, what is behind the segment is not waited for.
                Ok(Next::More(_)) => break !is_first || hello.len == HELLO_BYTES,
                Ok(Next::Over) => {
                    self.counters.note(Note::MessagesLeftOut, 1);
                    break true;
                }
                Err(_) => {
                    self.counters.note(Note::Faults, 1);
                    break true;
                }
            }
        };
        if is_done {
            messages.end_parser(flow);
        }
        !is_first
    }

    /// Reads names, certificates and fingerprints from the first messages of an end; whether the rules about the packet have been
    /// asked with them.
    fn flight(
        &mut self,
        messages: &mut Messages,
        flow: &mut Flow,
        parts: &Parts<'_>,
        data: &[u8],
    ) -> bool {
        let to_server = self.packet.to_server;
        let number = &mut flow.flights[usize::from(!to_server)];
        let Messages {
            flights,
            certificate,
            fingerprint,
            ..
        } = messages;
        // It is lent to nobody else.
        let Some(flight) = flights.get(*number) else {
            return false;
        };
        let number = std::mem::take(number);
        let mut is_first = true;
        let mut faults = u64::from(flight.push(data).is_err());
        let mut left_out = 0;
        self.told.clear();
        let mut ask = |tls: Tls<'_>, ready: &[Buffer]| {
            self.about_tls(flow, parts, &tls, is_first, ready);
            // A rule that several certificates fit is written down for one of them.
            let room = MOST_TOLD - self.told.len();
            self.told.extend(self.inspector.matches().iter().take(room));
            is_first = false;
        };
        while let Some(kind) = flight.go_on() {
            match kind {
                Kind::ClientHello if to_server => {
                    let hello = flight.message();
                    let client = fingerprint.of_client(hello).is_ok();
                    faults += u64::from(!client);
                    let tls = Tls {
                        server_name: server_name(hello),
                        client: client.then_some(&*fingerprint),
                        ..Tls::default()
                    };
                    ask(tls, &[Buffer::TlsSni, Buffer::Ja3Hash, Buffer::Ja3String]);
                }
                Kind::ServerHello if !to_server => {
                    let server = fingerprint.of_server(flight.message()).is_ok();
                    faults += u64::from(!server);
                    let tls = Tls {
                        server: server.then_some(&*fingerprint),
                        ..Tls::default()
                    };
                    ask(tls, &[Buffer::Ja3sHash, Buffer::Ja3sString]);
                }
                Kind::Certificates if !to_server => {
                    // It may have come with an earlier segment, and other hellos since.
                    let hello = flight.server_hello();
                    let server = hello.is_some_and(|it| fingerprint.of_server(it).is_ok());
                    let mut all = flight.certificates().enumerate();
                    for (number, der) in all.by_ref().take(MOST_CERTIFICATES) {
                        let says = number == 0 && certificate.read(der).is_ok();
                        faults += u64::from(number == 0 && !says);
                        let tls = Tls {
                            server: server.then_some(&*fingerprint),
                            certificate: Some(der),
                            says: says.then_some(&*certificate),
                            ..Tls::default()
                        };
                        let ready: &[Buffer] = match number {
                            0 => &OF_FIRST,
                            _ => &[Buffer::TlsCertificates],
                        };
                        ask(tls, ready);
                    }
                    left_out += all.count() as u64;
                }
                _ => {}
            }
        }
        let is_over = flight.is_over();
        match is_over {
            true => flights.give_back(number),
            false => flow.flights[usize::from(!to_server)] = number,
        }
        // Its name was read here.
        if is_over && to_server {
            messages.end_parser(flow);
        }
        self.told.clear();
        self.counters.note(Note::Faults, faults);
        self.counters.note(Note::MessagesLeftOut, left_out);
        !is_first
    }

    fn dns_over_tcp(&mut self, messages: &mut Messages, flow: &mut Flow, parts: &Parts<'_>) {
        let direction = usize::from(!self.packet.to_server);
        // The place in the stream is lent out of the flow while rules are asked.
        let mut framing = flow.dns[direction];
        let mut is_first = true;
        let name = &mut messages.name;
        let left_out =
            framing.push(
                parts.payload,
                parts.new_from,
                name,
                |question, name| match question {
                    Ok(question) if !question.is_response => {
                        let parts = Parts {
                            message: Message::DnsQuery(name),
                            ..*parts
                        };
                        let ready = [Buffer::DnsQuery].into_iter().collect();
                        self.about(flow, &parts, is_first, ready);
                        is_first = false;
                    }
                    Ok(_) => {}
                    Err(_) => self.counters.note(Note::Faults, 1),
                },
            );
        flow.dns[direction] = framing;
        self.counters.note(Note::MessagesLeftOut, left_out as u64);
        if is_first {
            self.about(flow, parts, true, BufferSet::default());
        }
    }

    /// Asks the rules: those about packets, if `with_packet`, and those about messages of which there is something new.
    fn about(&mut self, flow: &mut Flow, parts: &Parts<'_>, with_packet: bool, ready: BufferSet) {
        self.is_asked = true;
        if self.verdict == Verdict::Pass || self.inspector.is_over_time() {
            return;
        }
        self.packet.application = flow.application;
        let set = &self.in_force.set;
        let verdict = self.inspector.inspect(
            set,
            &self.packet,
            parts,
            with_packet,
            ready,
            &mut flow.bits,
            self.now_s,
        );
        for &rule in self.inspector.matches() {
            if self.told.contains(&rule) {
                continue;
            }
            self.counters.note(Note::Alerts, 1);
            flow.alerts = flow.alerts.saturating_add(1);
            if let Some(events) = &mut self.events {
                let is_blocked =
                    !self.alert_only && matches!(verdict, Verdict::Drop | Verdict::Reject);
                events.push(Event {
                    at_ticks: self.now_ticks,
                    flow: flow.id,
                    ends: Ends {
                        source: (self.packet.source, self.packet.source_port),
                        destination: (self.packet.destination, self.packet.destination_port),
                        protocol: self.packet.protocol,
                    },
                    application: flow.application,
                    port: self.port,
                    what: What::Alert {
                        version: self.in_force.version,
                        rule,
                        is_blocked,
                        packet: events.packet(),
                    },
                });
            }
        }
        self.verdict = match (self.verdict, verdict) {
            (Verdict::None, new) => new,
            (Verdict::Drop, Verdict::Reject) => Verdict::Reject,
            (old, _) => old,
        };
    }
}

const TCP: u8 = 6;
const UDP: u8 = 17;
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;
const DNS: u16 = 53;

/// What rules can ask of the headers, and the payload behind them.
fn facts<'a>(headers: &Headers, frame: &'a [u8]) -> Option<(Packet<'a>, &'a [u8])> {
    let (source, destination) = headers.addresses_in(frame);
    let (source_port, destination_port) = headers.ports().unwrap_or_default();
    let mut packet = Packet {
        protocol: headers.protocol().0,
        source,
        destination,
        source_port,
        destination_port,
        ..Packet::default()
    };
    match headers.layer3() {
        Layer3::Ipv4 => {
            let ip = frame.get(headers.ip()..headers.transport())?;
            let fixed = ip.first_chunk::<20>()?;
            packet.tos = fixed[1];
            packet.ip_id = u16::from_be_bytes([fixed[4], fixed[5]]);
            let fragment = u16::from_be_bytes([fixed[6], fixed[7]]);
            // In the order of Snort's letters: more, do not fragment, reserved.
            packet.fragment_bits =
                (fragment >> 13 & 1 | (fragment >> 14 & 1) << 1 | (fragment >> 15) << 2) as u8;
            packet.fragment_offset = fragment & 0x1fff;
            packet.ttl = fixed[8];
            packet.ip_options = &ip[20..];
        }
        _ => {
            let fixed = frame.get(headers.ip()..)?.first_chunk::<40>()?;
            packet.tos = fixed[0] << 4 | fixed[1] >> 4;
            packet.ttl = fixed[7];
        }
    }
    let transport = headers.transport_in(frame);
    let payload = match packet.protocol {
        TCP => {
            let tcp = transport.first_chunk::<20>()?;
            packet.tcp_sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
            packet.tcp_acknowledgement = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
            packet.tcp_flags = tcp[13];
            packet.tcp_window = u16::from_be_bytes([tcp[14], tcp[15]]);
            transport
                .get(usize::from(tcp[12] >> 4) * 4..)
                .filter(|_| tcp[12] >= 0x50)?
        }
        UDP => {
            let udp = transport.first_chunk::<8>()?;
            let len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
            transport.get(8..len)?
        }
        1 | 58 => {
            let icmp = transport.first_chunk::<4>()?;
            packet.icmp = (icmp[0], icmp[1]);
            let is_echo = matches!((packet.protocol, icmp[0]), (1, 0 | 8) | (58, 128 | 129));
            packet.icmp_echo = transport.get(4..8).filter(|_| is_echo).map(|it| {
                (
                    u16::from_be_bytes([it[0], it[1]]),
                    u16::from_be_bytes([it[2], it[3]]),
                )
            });
            transport.get(8..).or_else(|| transport.get(4..))?
        }
        _ => transport,
    };
    packet.payload_len = payload.len();
    Some((packet, payload))
}
