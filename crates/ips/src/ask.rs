//! The steps for messages and rules: finds messages in new bytes, and evaluates the rules for packets and for messages.

use super::event::{Ends, Event, What};
use super::events::Events;
use super::flow::Flow;
use super::lend::{HELLO_BYTES, Messages, NO_MORE};
use super::normalise::{DNS, UDP};
use super::outcome::{Counters, Note, Outcome, Refused};
use super::rules::InForce;
use taut_inspect::anomaly::Anomaly;
use taut_inspect::buffer::{Application, Buffer, BufferSet};
use taut_inspect::certificate::Certificate;
use taut_inspect::compile::{Inspector, Verdict};
use taut_inspect::dns::DnsFault;
use taut_inspect::evaluate::{BodyPart, Message, Packet, Parts, Tls};
use taut_inspect::fingerprint::{Fingerprint, server_name};
use taut_inspect::flight::{Flight, Kind};
use taut_inspect::http::{Http, Pushed};
use taut_inspect::protocols::{Counts, Rest};
use taut_inspect::recognise::{Answer, of_datagram};
use taut_inspect::record::Record;
use taut_inspect::stream::Piece;
use taut_inspect::tcp::{FIN, SegmentHead};
use taut_inspect::tls::{Hellos, Next};
use taut_inspect::{dns, tls};

/// The limit on consecutive calls in which an HTTP parser consumes no bytes.
const MOST_EMPTY: u32 = 16;
/// The maximum number of certificates per server for which rules are evaluated.
const MOST_CERTIFICATES: usize = 16;
/// The maximum number of matched rules that are remembered while the certificates of a packet are evaluated, so that
/// each rule is recorded only once.
pub(super) const MOST_TOLD: usize = 64;

/// The state of the evaluation for one packet: the rules, the packet, its flow's slot, and the verdict of the rules
/// evaluated up to now.
pub(super) struct Ask<'a, 'p> {
    pub in_force: &'a InForce,
    pub inspector: &'a mut Inspector,
    pub counters: &'a Counters,
    pub events: Option<&'a mut Events>,
    pub packet: &'a mut Packet<'p>,
    /// The index of the flow's slot in the flow table.
    pub place: usize,
    pub verdict: Verdict,
    pub is_asked: bool,
    /// True if the packet completes a message that rules need and that cannot be parsed.
    pub is_unread: bool,
    /// The rules that were already recorded for the certificates of this packet.
    pub told: &'a mut Vec<u32>,
    pub now_s: u32,
    pub now_ticks: u64,
    pub port: u8,
    pub alert_only: bool,
}

/// Reads the complete handshake messages of one TLS endpoint. Calls `ask` for each message, with the parts that rules
/// need. Returns the number of messages that cannot be parsed, plus the number of certificates beyond
/// [`MOST_CERTIFICATES`].
fn read_messages(
    flight: &mut Flight,
    to_server: bool,
    fingerprint: &mut Fingerprint,
    certificate: &mut Certificate,
    mut ask: impl FnMut(Tls<'_>, &[Buffer]),
) -> (u64, u64) {
    let (mut faults, mut left_out) = (0, 0);
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
                // The ServerHello may have arrived in an earlier segment, with other handshake messages after it.
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
    (faults, left_out)
}

/// A packet as in [`Ask`], with the state that inspectors need to find messages in it.
pub(super) struct Asking<'a, 'p> {
    pub ask: Ask<'a, 'p>,
    pub messages: &'a mut Messages,
    pub joined: &'a mut Vec<u8>,
}

impl Asking<'_, '_> {
    /// Evaluates the rules for a single packet: UDP or ICMP, or a segment without new bytes.
    pub fn whole(&mut self, flow: &mut Flow, payload: &[u8]) {
        let Self { ask, messages, .. } = self;
        let is_udp = ask.packet.protocol == UDP;
        let ports = [ask.packet.source_port, ask.packet.destination_port];
        if is_udp && let Some(application) = of_datagram(ask.packet.to_server, ports, payload) {
            flow.application = Some(application);
            return ask.datagram(messages, flow, payload, application);
        }
        let mut message = Message::None;
        let mut ready = BufferSet::default();
        if ask.packet.protocol == UDP && ask.is_port(DNS) {
            flow.application = Some(Application::Dns);
            match dns::query(payload, &mut messages.name) {
                Ok(question) => {
                    (message, ready) = with_dns(&messages.name, question.is_response);
                }
                Err(_) => ask.counters.note(Note::Faults, 1),
            }
        }
        ask.about(
            flow,
            &Parts {
                payload,
                message,
                ..Parts::default()
            },
            true,
            ready,
        );
    }

    /// Evaluates the rules for bytes of a direction's stream, in order.
    pub fn piece(&mut self, flow: &mut Flow, direction: usize, piece: &Piece<'_>) {
        if piece.gap {
            self.gap(flow);
        }
        self.ask.packet.stream_bytes[direction] = piece.taken;
        self.ask.packet.is_in_stream = true;
        if self.ask.inspector.is_over_time() {
            self.ask.is_asked = true;
            return self.miss(flow);
        }
        // The buffer is moved out while rules are evaluated.
        let mut joined = std::mem::take(self.joined);
        joined.clear();
        let whole = match piece.before {
            [] => piece.data,
            before => {
                joined.extend_from_slice(before);
                joined.extend_from_slice(piece.data);
                &joined[..]
            }
        };
        let is_all = piece.taken as usize == whole.len() + 1;
        self.recognise(flow, direction, whole, is_all);
        // The first bytes may have arrived before the protocol was detected.
        let is_first = !std::mem::replace(&mut flow.is_fed[direction], flow.application.is_some());
        let new = if is_first && is_all {
            whole
        } else {
            piece.data
        };
        let parts = Parts {
            payload: whole,
            new_from: piece.before.len(),
            ..Parts::default()
        };
        let Self { ask, messages, .. } = self;
        match flow.application {
            Some(Application::Http) => ask.http(messages, flow, &parts, new),
            Some(Application::Tls) => ask.tls(messages, flow, &parts, new, is_first),
            Some(Application::Dns) => {
                ask.dns_over_tcp(messages, flow, &parts, whole.len() - new.len())
            }
            Some(other) => ask.records(messages, flow, &parts, new, other, true),
            None => ask.about(flow, &parts, true, BufferSet::default()),
        }
        *self.joined = joined;
    }

    /// Returns the reason to refuse a segment that ends a request in the middle of its header; none for other segments.
    /// Some servers accept such a partial request, but the rules need complete headers.
    pub fn unfinished(&mut self, flow: &Flow, head: &SegmentHead) -> Option<Refused> {
        let to_server = self.ask.packet.to_server;
        let end = head.sequence.wrapping_add(head.len as u32);
        let stream = &flow.streams[usize::from(!to_server)];
        let ends = head.flags & FIN != 0 && stream.is_started() && stream.next() == end;
        if !ends || !to_server || flow.application != Some(Application::Http) {
            return None;
        }
        let parser = self.messages.http.get(flow.parser)?;
        parser.is_cut_request().then_some((
            Outcome::DroppedUnfinished,
            "a request that ends within its head",
        ))
    }

    /// Handles the end of a direction's stream once the receiver has received that end, which may complete a message.
    pub fn end_of_direction(&mut self, flow: &mut Flow) {
        self.ask.end_of_http(self.messages, flow);
    }

    /// Handles permanently missing bytes of a stream.
    fn gap(&mut self, flow: &mut Flow) {
        self.ask.counters.note(Note::Gaps, 1);
        self.ask.packet.anomalies |= Anomaly::Gap.bit();
        self.miss(flow);
    }

    /// Informs the flow's parser that some bytes of the stream are missing.
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
            Some(other) => {
                let Some(lent) = self.messages.parsers(other) else {
                    return;
                };
                match lent.get(flow.parser).and_then(Option::as_mut) {
                    Some(parser) => parser.gap(to_server),
                    // A new parser would begin in the middle of a message.
                    None => flow.parser = NO_MORE,
                }
            }
            None => {}
        }
    }

    /// Detects the protocol of a flow from the first bytes of a direction. `is_all` is true if `first` contains all
    /// received bytes of that direction.
    fn recognise(&mut self, flow: &mut Flow, direction: usize, first: &[u8], is_all: bool) {
        let to_server = direction == 0;
        if flow.application.is_some() || !is_all || !flow.recognition.needs(to_server) {
            return;
        }
        let answer = flow.recognition.push(to_server, first);
        self.ask
            .counters
            .note(Note::Unrecognised, u64::from(answer == Answer::No));
        let Answer::Yes(application) = answer else {
            return;
        };
        flow.application = Some(application);
        if application == Application::Tls {
            let hellos = &mut self.messages.hellos;
            flow.parser = hellos.take(self.ask.place).unwrap_or(0);
            match hellos.get(flow.parser) {
                Some(hello) => (hello.len, hello.place) = (0, Hellos::default()),
                None => self.ask.counters.note(Note::NoParser, 1),
            }
        }
    }
}

/// Returns the parts of a packet, with the message in `record` added.
fn with_record<'a>(parts: &Parts<'a>, record: &'a Record) -> Parts<'a> {
    Parts {
        message: Message::Record(record),
        body: BodyPart {
            is_whole: true,
            ..BodyPart::default()
        },
        ..*parts
    }
}

/// Returns a DNS message whose question has the name `name`, and the buffers that the message fills.
fn with_dns(name: &[u8], is_response: bool) -> (Message<'_>, BufferSet) {
    let buffer = match is_response {
        true => Buffer::DnsQuestion,
        false => Buffer::DnsQuery,
    };
    let ready = [buffer].into_iter().collect();
    (Message::Dns { name, is_response }, ready)
}

/// The buffers of the first certificate of a TLS server.
const OF_FIRST: [Buffer; 4] = [
    Buffer::TlsCertificates,
    Buffer::TlsSubject,
    Buffer::TlsIssuer,
    Buffer::TlsSerial,
];

/// Returns the buffers that rules can test only if the first messages of a TLS client (`to_server`) or of a TLS server
/// are reassembled.
fn of_flight(to_server: bool) -> BufferSet {
    match to_server {
        true => [Buffer::Ja3Hash, Buffer::Ja3String].into_iter().collect(),
        false => {
            let hello = [Buffer::Ja3sHash, Buffer::Ja3sString];
            OF_FIRST.into_iter().chain(hello).collect()
        }
    }
}

impl Ask<'_, '_> {
    fn is_port(&self, port: u16) -> bool {
        self.packet.source_port == port || self.packet.destination_port == port
    }

    fn http(&mut self, messages: &mut Messages, flow: &mut Flow, parts: &Parts<'_>, data: &[u8]) {
        let to_server = self.packet.to_server;
        self.lend_http(messages, flow);
        let Some(parser) = messages.http.get(flow.parser) else {
            return self.about(flow, parts, true, BufferSet::default());
        };
        let (mut rest, mut is_first, mut empty) = (data, true, 0);
        while !rest.is_empty() {
            if self.inspector.is_over_time() {
                parser.gap(to_server);
                break;
            }
            let pushed = parser.push(to_server, rest);
            empty = match pushed.consumed + pushed.from_held {
                0 => empty + 1,
                _ => 0,
            };
            if empty == MOST_EMPTY {
                // Reporting a gap to the parser prevents an endless loop on bytes that the parser does not consume.
                parser.gap(to_server);
                self.is_unread = true;
                break;
            }
            self.about_http(flow, parts, parser, &pushed, is_first);
            self.note_halves(parser);
            is_first = false;
            rest = rest.get(pushed.consumed..).unwrap_or_default();
            if parser.speaks_http2() {
                messages.end_parser(flow);
                flow.application = Some(Application::Http2);
                return self.records(messages, flow, parts, rest, Application::Http2, false);
            }
        }
        self.is_unread |= parser.is_ahead() && self.in_force.set.asks(Application::Http);
        if parser.is_between_messages() {
            messages.end_parser(flow);
        }
    }

    /// Finds the messages of a protocol whose messages are records, and evaluates the rules for them. `with_packet` is
    /// true if the rules for the packet are evaluated as well.
    fn records(
        &mut self,
        messages: &mut Messages,
        flow: &mut Flow,
        parts: &Parts<'_>,
        data: &[u8],
        application: Application,
        with_packet: bool,
    ) {
        let Some(lent) = messages.parsers(application) else {
            return self.about(flow, parts, with_packet, BufferSet::default());
        };
        if flow.parser == 0 && !self.in_force.set.asks(application) {
            flow.parser = NO_MORE;
        }
        if flow.parser == 0 {
            flow.parser = lent.take(self.place).unwrap_or(0);
            match lent.get(flow.parser).and_then(Option::as_mut) {
                Some(parser) => parser.reset(),
                None => self.counters.note(Note::NoParser, 1),
            }
        }
        // The rules for the packet are evaluated once, together with its first message.
        let mut is_first = with_packet;
        let mut rest = Rest::Within;
        if let Some(parser) = lent.get(flow.parser).and_then(Option::as_mut) {
            let counts = parser.push(self.packet.to_server, data, |record, ready| {
                self.about(flow, &with_record(parts, record), is_first, ready);
                is_first = false;
            });
            self.note_records(counts);
            rest = parser.rest();
        }
        if rest != Rest::Within {
            messages.end_parser(flow);
        }
        if rest == Rest::Over {
            flow.parser = NO_MORE;
        }
        if is_first {
            self.about(flow, parts, true, BufferSet::default());
        }
    }

    /// Finds the message in a datagram of a protocol whose messages are records.
    fn datagram(
        &mut self,
        messages: &mut Messages,
        flow: &mut Flow,
        payload: &[u8],
        application: Application,
    ) {
        let parts = Parts {
            payload,
            ..Parts::default()
        };
        let to_server = self.packet.to_server;
        let mut is_first = true;
        let parsers = &mut messages.datagrams;
        let counts = parsers.read(application, to_server, payload, |record, ready| {
            self.about(flow, &with_record(&parts, record), is_first, ready);
            is_first = false;
        });
        self.note_records(counts);
        if is_first {
            self.about(flow, &parts, true, BufferSet::default());
        }
    }

    fn note_records(&self, counts: Counts) {
        self.counters.note(Note::Faults, counts.faults);
        self.counters.note(Note::MessagesLeftOut, counts.left_out);
    }

    /// Handles a closed direction: evaluates the rules for bytes that were buffered until their meaning was known, and
    /// for a body that ends with the direction.
    pub fn end_of_http(&mut self, messages: &mut Messages, flow: &mut Flow) {
        let to_server = self.packet.to_server;
        if flow.application != Some(Application::Http) {
            return;
        }
        if let Some(parser) = messages.http.get(flow.parser) {
            let pushed = parser.close(to_server);
            self.about_http(flow, &Parts::default(), parser, &pushed, false);
            self.note_halves(parser);
        }
    }

    /// Stores the halves of rules with `=>` that have matched the current message, with the HTTP transaction of that
    /// message.
    fn note_halves(&mut self, parser: &mut Http) {
        let halves = self.inspector.take_halves();
        self.inspector.bits_full += u64::from(!parser.note_halves(self.packet.to_server, halves));
    }

    /// Assigns a parser to an HTTP flow for the duration of a message.
    fn lend_http(&mut self, messages: &mut Messages, flow: &mut Flow) {
        if flow.parser > 0 {
            return;
        }
        flow.parser = messages.http.take(self.place).unwrap_or(0);
        match messages.http.get(flow.parser) {
            Some(http) => http.reset(),
            None => self.counters.note(Note::NoParser, 1),
        }
    }

    /// Evaluates the rules for the results of one call of the HTTP parser.
    fn about_http(
        &mut self,
        flow: &mut Flow,
        parts: &Parts<'_>,
        parser: &Http,
        pushed: &Pushed,
        with_packet: bool,
    ) {
        self.counters
            .note(Note::Faults, u64::from(pushed.fault.is_some()));
        self.counters
            .note(Note::LimitsReached, u64::from(pushed.limit.is_some()));
        if !with_packet && pushed.ready.is_empty() {
            return;
        }
        let parts = Parts {
            message: Message::Http {
                http: parser,
                is_request: self.packet.to_server,
            },
            body: BodyPart {
                new_from: pushed.body_from,
                is_whole: pushed.body_is_whole,
                is_before: false,
            },
            ..*parts
        };
        self.about(flow, &parts, with_packet, pushed.ready);
    }

    fn tls(
        &mut self,
        messages: &mut Messages,
        flow: &mut Flow,
        parts: &Parts<'_>,
        data: &[u8],
        is_first: bool,
    ) {
        let records = tls::records(data);
        (self.packet.tls, self.packet.tls_version) = (records.states, records.version);
        let to_server = self.packet.to_server;
        let asked = self.in_force.set.asked();
        let direction = usize::from(!to_server);
        if is_first && asked.intersects(of_flight(to_server)) {
            messages.flights.give_back(flow.flights[direction]);
            flow.flights[direction] = messages.flights.take(self.place).unwrap_or(0);
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

    /// Evaluates the rules for the parsed first messages of a TLS endpoint.
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

    /// Searches the ClientHellos of a flow for server names. Returns true if the rules for the packet were evaluated
    /// together with a ClientHello.
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
                // Once one ClientHello was parsed, the function does not wait for the rest of a later message.
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

    /// Reads names, certificates and fingerprints from the first messages of a TLS endpoint. Returns true if the rules
    /// for the packet were evaluated together with these messages.
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
        // The memory for first messages belongs to this flow alone until the flow releases it.
        let Some(flight) = flights.get(*number) else {
            return false;
        };
        let number = std::mem::take(number);
        let mut is_first = true;
        let fault = u64::from(flight.push(data).is_err());
        self.told.clear();
        let ask = |tls: Tls<'_>, ready: &[Buffer]| {
            self.about_tls(flow, parts, &tls, is_first, ready);
            // A rule that matches several certificates is recorded once.
            let room = MOST_TOLD - self.told.len();
            self.told.extend(self.inspector.matches().iter().take(room));
            is_first = false;
        };
        let (faults, left_out) = read_messages(flight, to_server, fingerprint, certificate, ask);
        let is_over = flight.is_over();
        match is_over {
            true => flights.give_back(number),
            false => flow.flights[usize::from(!to_server)] = number,
        }
        // The server name was read from this flight.
        if is_over && to_server {
            messages.end_parser(flow);
        }
        self.told.clear();
        self.counters.note(Note::Faults, fault + faults);
        self.counters.note(Note::MessagesLeftOut, left_out);
        !is_first
    }

    fn dns_over_tcp(
        &mut self,
        messages: &mut Messages,
        flow: &mut Flow,
        parts: &Parts<'_>,
        new_from: usize,
    ) {
        let direction = usize::from(!self.packet.to_server);
        // The framing is moved out of the flow while rules are evaluated.
        let mut framing = flow.dns[direction];
        let mut is_first = true;
        let name = &mut messages.name;
        let left_out = framing.push(
            parts.payload,
            new_from,
            name,
            |question, name| match question {
                Ok(question) => {
                    let (message, ready) = with_dns(name, question.is_response);
                    let parts = Parts { message, ..*parts };
                    self.about(flow, &parts, is_first, ready);
                    is_first = false;
                }
                Err(fault) => {
                    self.counters.note(Note::Faults, 1);
                    self.is_unread |=
                        fault == DnsFault::Cut && self.in_force.set.asks(Application::Dns);
                }
            },
        );
        flow.dns[direction] = framing;
        self.counters.note(Note::MessagesLeftOut, left_out as u64);
        if is_first {
            self.about(flow, parts, true, BufferSet::default());
        }
    }

    /// Evaluates the rules for messages with the new buffers `ready`, and, if `with_packet` is true, the rules for the
    /// packet.
    fn about(&mut self, flow: &mut Flow, parts: &Parts<'_>, with_packet: bool, ready: BufferSet) {
        self.is_asked = true;
        if self.verdict.lets_pass() || self.inspector.is_over_time() {
            return;
        }
        self.packet.application = flow.application;
        self.packet.is_unrecognised = flow.recognition.has_failed();
        let set = &self.in_force.set;
        let verdict = self.inspector.inspect(
            set,
            self.packet,
            parts,
            with_packet,
            ready,
            &mut flow.bits,
            self.now_s,
        );
        if with_packet {
            // The rules for anomalies are evaluated once per packet.
            self.packet.anomalies = 0;
        }
        self.write_down(flow, parts, verdict);
    }

    /// Evaluates only the rules for the anomalies of the packet.
    pub fn about_odd(&mut self, flow: &mut Flow, payload: &[u8]) {
        if self.verdict.lets_pass() {
            return;
        }
        let parts = Parts {
            payload,
            ..Parts::default()
        };
        self.packet.application = flow.application;
        self.packet.is_unrecognised = flow.recognition.has_failed();
        let set = &self.in_force.set;
        let (bits, now_s) = (&mut flow.bits, self.now_s);
        let verdict = self
            .inspector
            .inspect_odd(set, self.packet, &parts, bits, now_s);
        self.write_down(flow, &parts, verdict);
    }

    /// Records the matching rules and combines their verdict with the packet's verdict.
    fn write_down(&mut self, flow: &mut Flow, parts: &Parts<'_>, verdict: Verdict) {
        for &rule in self.inspector.matches() {
            if self.told.contains(&rule) {
                continue;
            }
            self.counters.note(Note::Alerts, 1);
            flow.alerts = flow.alerts.saturating_add(1);
            if let Some(events) = &mut self.events {
                let is_blocked =
                    !self.alert_only && matches!(verdict, Verdict::Drop | Verdict::Reject);
                let event = Event {
                    at_ticks: self.now_ticks,
                    flow: flow.id,
                    ends: Ends::of(self.packet),
                    application: flow.application,
                    port: self.port,
                    what: What::Alert {
                        version: self.in_force.version,
                        rule,
                        is_blocked,
                        packet: events.packet(),
                    },
                };
                events.alert(event, parts);
            }
        }
        self.verdict = match (self.verdict, verdict) {
            (Verdict::None, new) => new,
            (Verdict::Drop, Verdict::Reject) => Verdict::Reject,
            (old, _) => old,
        };
    }
}
