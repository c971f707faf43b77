//! One endpoint of a connection.

use crate::key::{Keys, Master};
use crate::offset::Offset;
use crate::receiver::{Delivery, Received, Receiver};
use crate::sender::{Outgoing, Sender, Sent, feedback_wait_ns};
use crate::settings::{Settings, WrongSettings};
use crate::side::Side;
use crate::wire::{
    self, Accept, Body, FEEDBACK_BYTES, Feedback, Header, Hello, Kind, MOST_DATAGRAM_BYTES,
    TAG_BYTES, WireError,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Range of the interval between hellos, ns: the interval grows from the lower to the upper limit.
const HELLO_NS: std::ops::RangeInclusive<u64> = 20_000_000..=1_000_000_000;
/// The number of packet numbers, counted down from the highest received one, that are remembered to detect duplicates.
const REMEMBERED: u64 = 1024;
/// Longest time for which feedback is delayed until a message can carry it, ns.
const LONGEST_FEEDBACK_NS: u64 = 25_000_000;
/// Minimum number of reported messages after which the fraction in time is compared with the required fraction.
const JUDGED: u64 = 20;
/// Limit on the notices that wait for the application.
const MOST_NOTICES: usize = 16;
/// Number of packets at the start of a connection that are acknowledged one by one, so that both endpoints learn the
/// path and the peer's clock.
const ANSWERED_AT_FIRST: u64 = 8;

/// A notice for the application.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Notice {
    /// The peer has replied; the value is the round trip of its first reply, ns, or 0 if the round trip is unknown.
    Connected(u64),
    /// Fewer messages arrive in time than the application requires; the value is the fraction of the latest messages
    /// that arrived in time. It is 0 if the one-way delay alone exceeds the target delay.
    OutOfReach(f64),
    /// Enough messages arrive in time again; the value is the fraction of the latest messages that arrived in time.
    InReach(f64),
    /// The peer has sent a farewell.
    Left,
    /// No packet has arrived from the peer for longer than [`Settings::silence_ns`], although one was expected.
    Silent,
    /// The peer uses another version of the packets; the value is that version.
    Refused(u8),
}

/// Reason why a connection cannot be opened or accepted.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum EndpointError {
    /// A setting is invalid.
    #[error(transparent)]
    Settings(#[from] WrongSettings),
    /// The packet cannot be parsed.
    #[error(transparent)]
    Wire(#[from] WireError),
    /// The packet is not a hello.
    #[error("expected a hello packet, as there is no connection with this peer")]
    NoHello,
    /// The packet lacks a tag, or its tag is wrong.
    #[error(
        "the authentication tag of a hello packet is wrong: both ends need the same shared key"
    )]
    Forged,
}

/// Reason why a message is not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The message is longer than agreed.
    #[error("a message of {bytes} bytes is too long: the agreed maximum is {most}")]
    TooLong {
        /// Length of the message, bytes.
        bytes: usize,
        /// Agreed limit, bytes.
        most: usize,
    },
    /// The send buffer is full; the value is its number of messages.
    #[error("the send buffer is full: {0} messages are queued")]
    Full(usize),
    /// The connection has ended.
    #[error("the connection is closed")]
    Ended,
}

/// Counters of one endpoint of a connection.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Counts {
    /// Packets that this endpoint has sent.
    pub packets_sent: u64,
    /// Packets that arrived and were accepted.
    pub packets_received: u64,
    /// Bytes of sent packets, without headers below this transport.
    pub bytes_sent: u64,
    /// Bytes of received packets, without headers below this transport.
    pub bytes_received: u64,
    /// Packets that are duplicates, or too late to distinguish from duplicates.
    pub repeated: u64,
    /// Packets that could not be parsed, or had invalid fields.
    pub malformed: u64,
    /// Packets that have a wrong tag, lack a tag, or belong to another connection.
    pub forged: u64,
    /// Number of times that the clock of either endpoint was set.
    pub clock_jumps: u64,
    /// Outcomes of this endpoint's messages, counted by this endpoint.
    pub sent: Sent,
    /// Messages of this endpoint that the peer has reported as delivered.
    pub arrived_in_time: u64,
    /// Messages of this endpoint that the peer has reported as not delivered.
    pub arrived_not: u64,
    /// Outcomes of the messages that the peer has sent, counted by this endpoint.
    pub received: Received,
}

impl Counts {
    /// Adds the counters of another connection.
    pub fn add(&mut self, other: &Self) {
        self.packets_sent += other.packets_sent;
        self.packets_received += other.packets_received;
        self.bytes_sent += other.bytes_sent;
        self.bytes_received += other.bytes_received;
        self.repeated += other.repeated;
        self.malformed += other.malformed;
        self.forged += other.forged;
        self.clock_jumps += other.clock_jumps;
        self.sent.add(&other.sent);
        self.arrived_in_time += other.arrived_in_time;
        self.arrived_not += other.arrived_not;
        self.received.add(&other.received);
    }
}

/// The state of the received packets, and of the feedback that is pending for them.
#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    /// Send time in the peer's latest packet, by the peer's clock, and arrival time of that packet, by the local clock,
    /// ns; none before the first packet.
    latest: Option<(u64, u64)>,
    largest: u64,
    packets: u32,
    /// Bitmap of the packet numbers received among the last `REMEMBERED` numbers up to `largest`.
    seen: [u64; (REMEMBERED / 64) as usize],
    /// Number of received packets for which feedback is pending (`unanswered`), and the arrival time of the first of
    /// them, ns (`first_ns`).
    unanswered: u32,
    first_ns: u64,
    /// True if feedback must be sent immediately.
    at_once: bool,
}

impl Heard {
    /// Returns feedback about all received packets; no feedback is pending afterwards. Returns none before the peer is
    /// known.
    fn feedback(&mut self, other: Option<&Other>) -> Option<Feedback> {
        let other = other?;
        (self.unanswered, self.at_once) = (0, false);
        Some(other.receiver.feedback(self.largest, self.packets))
    }
}

/// The settings that the peer has announced.
#[derive(Debug)]
struct Other {
    hello: Hello,
    receiver: Receiver,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum State {
    /// The opener sends hellos until it gets a reply.
    Opening {
        next_ns: u64,
        pause_ns: u64,
    },
    Open,
    Ended,
}

/// One endpoint of a connection. Times are ns of this endpoint's clock, which must never stop, go back or be 0.
pub struct Endpoint {
    side: Side,
    state: State,
    connection: u32,
    settings: Settings,
    master: Option<Master>,
    keys: Option<Keys>,
    own: Hello,
    offset: Offset,
    sender: Sender,
    other: Option<Other>,
    heard: Heard,
    next_packet: u64,
    /// True if a reply to the peer's hello is pending.
    owes_accept: bool,
    says_farewell: bool,
    last_heard_ns: u64,
    notices: VecDeque<Notice>,
    is_in_reach: bool,
    judged: [u64; 2],
    counts: Counts,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint")
            .field("side", &self.side)
            .field("state", &self.state)
            .field("connection", &self.connection)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Opens a connection: sends hellos until the peer replies. `random` must be unpredictable if there is a key.
    ///
    /// # Errors
    /// The settings are invalid.
    pub fn open(
        settings: Settings,
        master: Option<Master>,
        random: [u8; 16],
        now_ns: u64,
    ) -> Result<Self, EndpointError> {
        let connection = u32::from_be_bytes([random[0], random[5], random[10], random[15]]);
        let mut endpoint = Self::new(Side::Opener, settings, master, random, connection, now_ns)?;
        endpoint.state = State::Opening {
            next_ns: now_ns,
            pause_ns: *HELLO_NS.start(),
        };
        Ok(endpoint)
    }

    /// Accepts the connection that `packet` opens; the packet has just arrived.
    ///
    /// # Errors
    /// The settings are invalid, the packet opens no connection, or it lacks the correct tag.
    pub fn accept(
        settings: Settings,
        master: Option<Master>,
        random: [u8; 16],
        now_ns: u64,
        packet: &[u8],
    ) -> Result<Self, EndpointError> {
        let (header, body) = wire::parse(packet)?;
        let Body::Hello(hello) = body else {
            return Err(EndpointError::NoHello);
        };
        if header.is_tagged != master.is_some()
            || master.as_ref().is_some_and(|it| !it.is_right(packet))
        {
            return Err(EndpointError::Forged);
        }
        let connection = header.connection;
        let mut endpoint = Self::new(Side::Answerer, settings, master, random, connection, now_ns)?;
        endpoint.meet(hello, &hello.random, &random);
        endpoint.hear(now_ns, &header, packet.len());
        endpoint.owes_accept = true;
        Ok(endpoint)
    }

    fn new(
        side: Side,
        settings: Settings,
        master: Option<Master>,
        random: [u8; 16],
        connection: u32,
        now_ns: u64,
    ) -> Result<Self, WrongSettings> {
        settings.check(master.is_some())?;
        let seed = u64::from(connection);
        Ok(Self {
            side,
            state: State::Open,
            connection,
            own: settings.hello(random),
            offset: Offset::new(settings.clocks, settings.drift_ppm),
            sender: Sender::new(&settings, seed)?,
            settings,
            master,
            keys: None,
            other: None,
            heard: Heard::default(),
            next_packet: 0,
            owes_accept: false,
            says_farewell: false,
            last_heard_ns: now_ns,
            notices: VecDeque::with_capacity(MOST_NOTICES),
            is_in_reach: true,
            judged: [0; 2],
            counts: Counts::default(),
        })
    }

    /// Returns the identifier of the connection, which each packet contains.
    pub fn connection(&self) -> u32 {
        self.connection
    }

    /// Returns true if the connection is open: this endpoint has received the hello or accept of the peer.
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Returns true if the connection is closed: no more packets are sent or accepted. Messages that have arrived in
    /// time can still be delivered.
    pub fn has_ended(&self) -> bool {
        self.state == State::Ended && !self.says_farewell
    }

    fn meet(&mut self, hello: Hello, opener: &[u8; 16], answerer: &[u8; 16]) {
        if let Some(master) = &self.master {
            self.keys = Some(Keys::new(master, self.side, opener, answerer));
        }
        self.other = Some(Other {
            receiver: Receiver::new(&self.settings, &hello),
            hello,
        });
    }

    fn tell(&mut self, notice: Notice) {
        // The newest notices are the most useful.
        if self.notices.len() == MOST_NOTICES {
            self.notices.pop_front();
        }
        self.notices.push_back(notice);
    }

    /// Accepts a message for delivery within the target delay from now. Returns the message's number.
    ///
    /// # Errors
    /// The send buffer is full, the message is too long, or the connection is closed.
    pub fn send(&mut self, now_ns: u64, payload: &[u8]) -> Result<u64, SendError> {
        if self.state == State::Ended || self.says_farewell {
            return Err(SendError::Ended);
        }
        let most = self.settings.payload_bytes;
        if payload.len() > most {
            return Err(SendError::TooLong {
                bytes: payload.len(),
                most,
            });
        }
        let full = SendError::Full(self.settings.kept);
        self.sender.push(now_ns, payload).ok_or(full)
    }

    /// Ends the connection: no more messages are sent, and the next call of [`Endpoint::transmit`] sends a farewell if
    /// the connection was open.
    pub fn leave(&mut self) {
        if self.state == State::Open {
            self.says_farewell = true;
        }
        self.state = State::Ended;
    }

    /// Sets the target delay of the messages that are sent from now on, ns. The peer learns it with each message. The
    /// deadline of a message is never before that of an earlier message. Notices compare the outcomes of later feedback
    /// alone.
    ///
    /// # Errors
    /// The target delay is out of range; the target is then unchanged.
    pub fn set_target(&mut self, target_ns: u64) -> Result<(), WrongSettings> {
        let settings = Settings {
            target_ns,
            ..self.settings
        };
        settings.check(self.master.is_some())?;
        self.settings = settings;
        self.sender.set_target(target_ns);
        self.judged = [0; 2];
        Ok(())
    }

    /// Returns the oldest notice that was not returned before; none if there is none.
    pub fn notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Processes a packet that has just arrived. Returns false for an invalid packet and for a packet of another
    /// connection; such a packet is counted and otherwise ignored.
    pub fn receive(&mut self, now_ns: u64, packet: &[u8]) -> bool {
        let (header, body) = match wire::parse(packet) {
            Ok(it) => it,
            Err(_) => {
                self.counts.malformed += 1;
                return false;
            }
        };
        if header.connection != self.connection || self.state == State::Ended {
            self.counts.forged += 1;
            return false;
        }
        if let Body::Refusal(version) = body {
            // Anyone on the path could forge a refusal, so a refusal only ends a connection that has not begun.
            if matches!(self.state, State::Opening { .. }) {
                self.state = State::Ended;
                self.tell(Notice::Refused(version));
            }
            return true;
        }
        if let Body::Accept(accept) = body
            && matches!(self.state, State::Opening { .. })
        {
            return self.is_accepted(now_ns, &header, &accept, packet);
        }
        let is_right = match (&self.keys, &self.master, &body) {
            (_, Some(master), Body::Hello(_)) => header.is_tagged && master.is_right(packet),
            (Some(keys), _, _) => header.is_tagged && keys.is_right(packet),
            (None, Some(_), _) => false,
            (None, None, _) => !header.is_tagged,
        };
        if !is_right || self.other.is_none() {
            self.counts.forged += 1;
            return false;
        }
        if let Body::Hello(hello) = body {
            // The peer has retransmitted its hello, because our reply was lost or is slow.
            let is_same = self.side == Side::Answerer
                && self.other.as_ref().is_some_and(|it| it.hello == hello);
            if is_same {
                self.owes_accept = true;
            } else {
                self.counts.forged += 1;
            }
            return is_same;
        }
        if !self.is_new(header.packet) {
            self.counts.repeated += 1;
            return false;
        }
        if let Some(feedback) = &header.feedback {
            let mut told = [0; 2];
            if !self
                .sender
                .feedback(now_ns, feedback, self.next_packet, &mut told)
            {
                self.counts.malformed += 1;
                return false;
            }
            self.counts.arrived_in_time += told[0];
            self.counts.arrived_not += told[1];
            self.judge(told);
        }
        self.hear(now_ns, &header, packet.len());
        let Some(other) = &mut self.other else {
            return false;
        };
        let is_sound = match body {
            Body::Data(data) => other.receiver.data(now_ns, header.sent_ns, &data),
            Body::Repair(repair) => other.receiver.repair(&repair),
            Body::Farewell => {
                self.state = State::Ended;
                self.tell(Notice::Left);
                true
            }
            Body::Feedback | Body::Accept(_) | Body::Hello(_) | Body::Refusal(_) => true,
        };
        self.counts.malformed += u64::from(!is_sound);
        is_sound
    }

    fn is_accepted(
        &mut self,
        now_ns: u64,
        header: &Header,
        accept: &Accept,
        packet: &[u8],
    ) -> bool {
        let mut is_right = accept.answers == self.own.random;
        is_right &= header.is_tagged == self.master.is_some();
        if let (true, Some(master)) = (is_right, &self.master) {
            let keys = Keys::new(master, self.side, &self.own.random, &accept.own.random);
            is_right = keys.is_right(packet);
        }
        if !is_right {
            self.counts.forged += 1;
            return false;
        }
        let own = self.own.random;
        self.meet(accept.own, &own, &accept.own.random);
        self.state = State::Open;
        let rtt_ns = self.hear(now_ns, header, packet.len());
        // Immediate feedback lets the peer estimate the offset of this side's clock.
        self.heard.at_once = true;
        self.tell(Notice::Connected(rtt_ns.unwrap_or(0)));
        if rtt_ns.is_some_and(|ns| ns / 2 > self.settings.target_ns) {
            self.is_in_reach = false;
            self.tell(Notice::OutOfReach(0.0));
        }
        true
    }

    /// Returns true if a packet with the given number has not arrived before, and marks it as received.
    fn is_new(&mut self, packet: u64) -> bool {
        let heard = &mut self.heard;
        let place = |number: u64| {
            let slot = number % REMEMBERED;
            (slot as usize / 64, 1_u64 << (slot % 64))
        };
        if packet > heard.largest {
            if packet - heard.largest >= REMEMBERED {
                heard.seen = [0; (REMEMBERED / 64) as usize];
            } else {
                for number in heard.largest + 1..packet {
                    let (word, bit) = place(number);
                    heard.seen[word] &= !bit;
                }
            }
        } else if heard.largest - packet >= REMEMBERED {
            return false;
        }
        let (word, bit) = place(packet);
        let is_known = packet <= heard.largest && heard.seen[word] & bit != 0;
        heard.seen[word] |= bit;
        !is_known
    }

    /// Processes the fields that every packet has. Returns the round trip, if it is known.
    fn hear(&mut self, now_ns: u64, header: &Header, bytes: usize) -> Option<u64> {
        self.last_heard_ns = now_ns;
        self.counts.packets_received += 1;
        self.counts.bytes_received += bytes as u64;
        let jumps = self.offset.jumps();
        let rtt_ns = self.offset.heard(now_ns, header.sent_ns, header.echo);
        if self.offset.jumps() != jumps {
            // The peer must detect the set clock as well, so it gets feedback immediately.
            self.heard.at_once = true;
        }
        if let Some(rtt_ns) = rtt_ns {
            self.sender.pace.round_trip(now_ns, rtt_ns);
        }
        let is_expected = self.expected().is_some();
        let heard = &mut self.heard;
        let is_latest = heard.latest.is_none() || header.packet >= heard.largest;
        if is_latest {
            heard.latest = Some((header.sent_ns, now_ns));
        }
        let overtakes = header.packet > heard.largest + 1;
        heard.largest = heard.largest.max(header.packet);
        if header.packet == 0 {
            heard.seen[0] |= 1;
        }
        heard.packets = heard.packets.wrapping_add(1);
        if matches!(header.kind, Kind::Data | Kind::Repair) {
            if heard.unanswered == 0 {
                heard.first_ns = now_ns;
            }
            heard.unanswered += 1;
            let at_first = self.counts.packets_received <= ANSWERED_AT_FIRST;
            heard.at_once |= (overtakes || at_first) && !is_expected;
        }
        rtt_ns
    }

    /// Compares the fraction of messages that arrive in time with the fraction that the application requires.
    fn judge(&mut self, [in_time, missed]: [u64; 2]) {
        self.judged[0] += in_time;
        self.judged[1] += missed;
        let all: u64 = self.judged.iter().sum();
        // The best fraction that the latest `JUDGED` messages can still reach. If it is too low, the application
        // learns so now, as a control loop cannot wait for the rest.
        let best = 1.0 - self.judged[1] as f64 / JUDGED as f64;
        let is_decided = self.is_in_reach && best < self.settings.in_time;
        if all < JUDGED && !is_decided {
            return;
        }
        let share = if all < JUDGED {
            best
        } else {
            self.judged[0] as f64 / all as f64
        };
        self.judged = [0; 2];
        let is_in_reach = share >= self.settings.in_time;
        if is_in_reach != self.is_in_reach {
            self.is_in_reach = is_in_reach;
            self.tell(if is_in_reach {
                Notice::InReach(share)
            } else {
                Notice::OutOfReach(share)
            });
        }
    }

    /// Returns the time at which feedback has to leave, unless another packet carries it before; none if no feedback is
    /// pending.
    fn feedback_ns(&self) -> Option<u64> {
        let heard = &self.heard;
        if heard.at_once {
            return Some(heard.first_ns);
        }
        if heard.unanswered == 0 {
            return None;
        }
        let target_ns = self.other.as_ref()?.hello.target_ns;
        let is_enough = heard.unanswered >= self.settings.feedback_every;
        // A packet that carries only feedback may cost a shared medium as much as a message does.
        Some(match self.expected() {
            // Enough packets are unacknowledged, so feedback leaves now, as `feedback_every` requests.
            None | Some((_, true)) if is_enough => heard.first_ns,
            Some((_, false)) if self.settings.feedback_every == 1 => heard.first_ns,
            None => heard.first_ns + feedback_wait_ns(target_ns),
            // The next message carries the feedback, or one soon after it.
            Some((next_ns, true)) => next_ns
                .max(heard.first_ns + feedback_wait_ns(target_ns))
                .min(heard.first_ns + LONGEST_FEEDBACK_NS),
            // No message can carry the feedback, so as few packets as possible are sent.
            Some((_, false)) => heard.first_ns + LONGEST_FEEDBACK_NS,
        })
    }

    fn expected(&self) -> Option<(u64, bool)> {
        self.sender.expected(self.tag_bytes())
    }

    /// Writes the next packet that is due, and returns its length; none if no packet is due. The caller repeats the
    /// call until it returns none.
    pub fn transmit(
        &mut self,
        now_ns: u64,
        bytes: &mut [u8; MOST_DATAGRAM_BYTES],
    ) -> Option<usize> {
        if self.says_farewell {
            self.says_farewell = false;
            return Some(self.emit_plain(now_ns, Kind::Farewell, &Body::Farewell, bytes));
        }
        match self.state {
            State::Ended => return None,
            State::Opening { next_ns, pause_ns } => {
                if self.is_silent(now_ns) || now_ns < next_ns {
                    return None;
                }
                self.state = State::Opening {
                    next_ns: now_ns + pause_ns,
                    pause_ns: (2 * pause_ns).min(*HELLO_NS.end()),
                };
                let hello = Body::Hello(self.own);
                return Some(self.emit_plain(now_ns, Kind::Hello, &hello, bytes));
            }
            State::Open => {}
        }
        if self.is_silent(now_ns) {
            return None;
        }
        if self.owes_accept {
            self.owes_accept = false;
            let answers = self.other.as_ref()?.hello.random;
            let accept = Body::Accept(Accept {
                own: self.own,
                answers,
            });
            return Some(self.emit_plain(now_ns, Kind::Accept, &accept, bytes));
        }
        // An answerer may send messages immediately after its accept, as any of its later packets confirms the accept.
        while let Some(outgoing) = self.sender.next(now_ns) {
            let mut header = self.header(now_ns, Kind::Data);
            let room = MOST_DATAGRAM_BYTES - self.tag_bytes();
            let Some(body) = self.sender.body(outgoing, now_ns) else {
                continue;
            };
            let length = match &body {
                Body::Repair(repair) => {
                    header.kind = Kind::Repair;
                    wire::repair_packet_bytes(repair.coefficients.len(), 0) - wire::SYMBOL_BYTES
                        + repair.sum.len()
                }
                Body::Data(data) => wire::data_packet_bytes(data.payload.len()),
                _ => MOST_DATAGRAM_BYTES,
            };
            let answers = self.heard.unanswered > 0 || self.heard.at_once;
            if answers && length + FEEDBACK_BYTES <= room {
                header.feedback = self.heard.feedback(self.other.as_ref());
            }
            let length = wire::emit(&header, &body, bytes);
            if let Some(keys) = &self.keys {
                keys.seal(&mut bytes[..length]);
            }
            return Some(self.left(now_ns, length, Some(outgoing)));
        }
        if self.feedback_ns().is_some_and(|ns| now_ns >= ns) {
            return Some(self.emit_plain(now_ns, Kind::Feedback, &Body::Feedback, bytes));
        }
        None
    }

    /// Ends the connection and returns true if a packet is awaited and nothing has arrived for too long.
    fn is_silent(&mut self, now_ns: u64) -> bool {
        // An idle peer need not send anything: silence only counts while a packet is awaited.
        let waits = matches!(self.state, State::Opening { .. }) || self.sender.waiting() > 0;
        let is_silent = waits && self.silent_ns(now_ns) > self.settings.silence_ns;
        if is_silent {
            self.state = State::Ended;
            self.tell(Notice::Silent);
        }
        is_silent
    }

    fn header(&self, now_ns: u64, kind: Kind) -> Header {
        Header {
            kind,
            is_tagged: self.master.is_some(),
            connection: self.connection,
            packet: self.next_packet,
            sent_ns: now_ns,
            echo: self.heard.latest.and_then(|(sent_ns, at_ns)| {
                let held_ns = u32::try_from(now_ns.saturating_sub(at_ns)).ok()?;
                (held_ns < u32::MAX).then_some((sent_ns, held_ns))
            }),
            feedback: None,
        }
    }

    /// Writes a packet that needs no acknowledgement.
    fn emit_plain(
        &mut self,
        now_ns: u64,
        kind: Kind,
        body: &Body<'_>,
        bytes: &mut [u8; MOST_DATAGRAM_BYTES],
    ) -> usize {
        let mut header = self.header(now_ns, kind);
        if !matches!(kind, Kind::Hello | Kind::Accept) {
            header.feedback = self.heard.feedback(self.other.as_ref());
        }
        let length = wire::emit(&header, body, bytes);
        match (kind, &self.keys, &self.master) {
            (Kind::Hello, _, Some(master)) => master.seal(&mut bytes[..length]),
            (_, Some(keys), _) => keys.seal(&mut bytes[..length]),
            _ => {}
        }
        self.left(now_ns, length, None)
    }

    /// Records that a packet of `length` bytes leaves, and returns `length`; `outgoing` is the part of the packet that
    /// needs an acknowledgement.
    fn left(&mut self, now_ns: u64, length: usize, outgoing: Option<Outgoing>) -> usize {
        self.sender
            .departed(now_ns, self.next_packet, length, outgoing);
        self.next_packet += 1;
        self.counts.packets_sent += 1;
        self.counts.bytes_sent += length as u64;
        length
    }

    fn tag_bytes(&self) -> usize {
        if self.master.is_some() { TAG_BYTES } else { 0 }
    }

    /// Returns the next message that is due for delivery, in time and in order. The caller repeats the call until it
    /// returns none.
    pub fn deliver(&mut self, now_ns: u64) -> Option<Delivery<'_>> {
        let other = self.other.as_mut()?;
        other.receiver.deliver(&self.offset, now_ns)
    }

    /// Returns true if [`Endpoint::deliver`] has a message now.
    pub fn has_delivery(&self, now_ns: u64) -> bool {
        self.delivery_ns(now_ns).is_some_and(|ns| ns <= now_ns)
    }

    fn delivery_ns(&self, now_ns: u64) -> Option<u64> {
        let other = self.other.as_ref()?;
        other.receiver.wake_ns(&self.offset, now_ns)
    }

    /// Returns the time at which the caller must call again if no packet arrives before; none if nothing will be due.
    pub fn wake_ns(&self, now_ns: u64) -> Option<u64> {
        let silence_ns = self.last_heard_ns + self.settings.silence_ns + 1;
        match self.state {
            State::Ended => return self.says_farewell.then_some(now_ns),
            State::Opening { next_ns, .. } => return Some(next_ns.min(silence_ns)),
            State::Open => {}
        }
        if self.owes_accept {
            return Some(now_ns);
        }
        let delivers = self.delivery_ns(now_ns);
        let silent = (self.sender.waiting() > 0).then_some(silence_ns);
        let due = [self.sender.wake_ns(), self.feedback_ns(), delivers, silent];
        due.into_iter().flatten().min()
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        Counts {
            sent: self.sender.sent,
            received: self
                .other
                .as_ref()
                .map_or_else(Received::default, |it| it.receiver.received),
            clock_jumps: self.offset.jumps(),
            ..self.counts
        }
    }

    /// Returns the time since the last packet of the peer, ns.
    pub fn silent_ns(&self, now_ns: u64) -> u64 {
        now_ns.saturating_sub(self.last_heard_ns)
    }

    /// Returns true if the peer has proven that it receives packets from this endpoint, and always at the opener. A
    /// peer that has only sent a hello may have used a forged address.
    pub fn is_confirmed(&self) -> bool {
        self.side == Side::Opener || self.counts.packets_received > 1
    }
}

/// Writes a refusal, the reply to a hello of another version, and returns its length. The refusal contains the version
/// of this endpoint. Returns none if `hello` is too short or not a packet of this transport.
pub fn refuse(hello: &[u8], now_ns: u64, bytes: &mut [u8; MOST_DATAGRAM_BYTES]) -> Option<usize> {
    let header = Header {
        kind: Kind::Refusal,
        is_tagged: false,
        connection: wire::connection_of(hello)?,
        packet: 0,
        sent_ns: now_ns,
        echo: None,
        feedback: None,
    };
    Some(wire::emit(&header, &Body::Refusal(wire::VERSION), bytes))
}
