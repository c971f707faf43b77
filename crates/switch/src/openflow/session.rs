//! An OpenFlow session with a controller, without the socket: it takes the peer's bytes, returns bytes for the peer,
//! and changes the rules. (OpenFlow 1.3.5, sections 6 and 7.) The session's state and its notifications are here;
//! `session/answer.rs` responds to messages.

mod answer;
mod reply;

use super::asked::Listing;
use super::entries::write_port;
use super::fields::write_match;
use super::kinds::{HEADER, NO_BUFFER, VERSION, kind};
use super::plant::{Gone, Shown};
use super::wire::Writer;
use crate::control::Kept;
use crate::key::{Field, Key};
use std::time::{Duration, Instant};

/// The threshold of pending output, in bytes. Above it, the peer's input is not processed until the peer has read
/// replies.
const HEARD_OUTPUT_BYTES: usize = 256 << 10;
/// The limit on the pending output for a peer is this number of bytes, plus `RULE_OUTPUT_BYTES` for each possible rule.
/// The limit thus has space for notifications of all rules, if they are removed together.
const MOST_OUTPUT_BYTES: usize = 1 << 20;
const RULE_OUTPUT_BYTES: usize = 256;
/// The upper bound of the limit on pending output, in bytes.
const LARGEST_OUTPUT_BYTES: usize = 64 << 20;
/// The idle time after which a peer gets an echo request.
const ASKED_AFTER: Duration = Duration::from_secs(5);
/// The time after which a peer is disconnected: a peer that was idle, or that has read none of its pending output.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(15);
/// The time limit for the hello message of a peer that has connected.
const GREETING: Duration = Duration::from_secs(5);

/// The row of each kind of notification in `Session::told`: packets, ports, removed rules.
const PACKETS: usize = 0;
const PORTS: usize = 1;
const RULES: usize = 2;
/// The default notifications of a peer: all kinds, but only port changes if the peer is a slave. (OpenFlow 1.3.5,
/// section 6.3.5.)
const TOLD: [[u32; 2]; 3] = [[0b111, 0], [0b111, 0b111], [0b1111, 0]];

/// The flag of rules whose removal is notified.
const SEND_REMOVED: u16 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Equal = 1,
    Master = 2,
    Slave = 3,
}

/// The reason why the connection has to be closed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Over(pub &'static str);

#[derive(Debug)]
pub(in super::super) struct Session {
    /// The unprocessed input from the peer: at most an incomplete message, and the bytes of one further read call.
    input: Vec<u8>,
    output: Writer,
    /// The limit on the bytes in `output`.
    most_output: usize,
    /// True if output was lost because the peer does not read: the connection has to be closed.
    is_behind: bool,
    has_greeted: bool,
    role: Role,
    /// The reasons for which the peer is notified, as bits. The rows are packets, ports and removed rules; the columns
    /// are the roles master (or equal) and slave.
    told: [[u32; 2]; 3],
    /// The number of bytes of each packet without a matching rule that the peer has requested.
    most_shown: u16,
    /// A reply with parts that are still to be written; none if no such reply is pending.
    listing: Option<Listing>,
    begun: Instant,
    /// The time at which the peer last sent something.
    heard: Instant,
    /// True if an echo request has been sent since the peer last sent something.
    is_asked: bool,
    /// The time at which the peer last read something, or had nothing to read.
    has_read: Instant,
}

impl Session {
    /// Creates a session with the switch's hello message as output. `rules` is the maximum number of rules whose
    /// removal may be reported together.
    pub fn new(rules: usize, now: Instant) -> Self {
        let most_output = MOST_OUTPUT_BYTES + rules.saturating_mul(RULE_OUTPUT_BYTES);
        let mut session = Self {
            input: Vec::new(),
            output: Writer::default(),
            most_output: most_output.min(LARGEST_OUTPUT_BYTES),
            is_behind: false,
            has_greeted: false,
            role: Role::Equal,
            told: TOLD,
            most_shown: u16::MAX,
            listing: None,
            begun: now,
            heard: now,
            is_asked: false,
            has_read: now,
        };
        let start = session.begin(kind::HELLO, 0);
        // The supported versions, as bits.
        session.output.u16(1).u16(8).u32(1 << VERSION);
        session.end(start);
        session
    }

    /// Returns the pending output for the peer.
    pub fn output(&self) -> &[u8] {
        &self.output.0
    }

    /// Removes the first `many` bytes of the output, which have been sent to the peer.
    pub fn was_sent(&mut self, many: usize, now: Instant) {
        self.output.0.drain(..many.min(self.output.0.len()));
        self.has_read = now;
    }

    /// Returns true if output was lost because the peer does not read: the connection has to be closed.
    pub fn is_behind(&self) -> bool {
        self.is_behind
    }

    pub fn depose(&mut self) {
        if self.role == Role::Master {
            self.role = Role::Slave;
        }
    }

    /// Returns true if the session accepts more bytes, because earlier input is processed and the peer reads its
    /// replies.
    pub fn listens(&self) -> bool {
        !self.has_more() && !self.is_full()
    }

    /// Returns true if a complete message of the peer is unprocessed, or a reply is unfinished.
    pub fn has_more(&self) -> bool {
        self.listing.is_some() || self.next_length().is_some_and(|it| it <= self.input.len())
    }

    /// Returns true if a call of [`Session::take`] without bytes would continue the work: some input or a reply is
    /// unfinished, and the output is not full.
    pub fn goes_on(&self) -> bool {
        self.has_more() && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.output.0.len() >= HEARD_OUTPUT_BYTES
    }

    /// Returns the length of the message at the start of the input; none if the header is incomplete. For an invalid
    /// message, returns the length of a header.
    fn next_length(&self) -> Option<usize> {
        let head = self.input.first_chunk::<HEADER>()?;
        let is_heard = self.has_greeted || head[1] == kind::HELLO;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        Some(if is_heard { length.max(HEADER) } else { HEADER })
    }

    /// Sends an echo request to an idle peer. Called a few times a second.
    ///
    /// # Errors
    /// Fails if the peer has exceeded a time limit, so that the connection has to be closed.
    pub fn tick(&mut self, now: Instant) -> Result<(), Over> {
        if !self.has_greeted {
            let is_late = now.saturating_duration_since(self.begun) >= GREETING;
            return match is_late {
                true => Err(Over("it does not send HELLO")),
                false => Ok(()),
            };
        }
        if self.output.0.is_empty() {
            self.has_read = now;
        } else if now.saturating_duration_since(self.has_read) >= GIVEN_UP_AFTER {
            return Err(Over("it does not read replies"));
        }
        let silent = now.saturating_duration_since(self.heard);
        // The input of a peer is suspended until the peer reads; such a peer is not idle.
        if self.is_full() {
            self.heard = now;
        } else if silent >= GIVEN_UP_AFTER {
            return Err(Over("it does not respond"));
        } else if silent >= ASKED_AFTER && !self.is_asked {
            self.is_asked = true;
            let start = self.begin(kind::ECHO_REQUEST, 0);
            self.end(start);
        }
        Ok(())
    }

    fn begin(&mut self, kind: u8, xid: u32) -> usize {
        let start = self.output.0.len();
        self.output.u8(VERSION).u8(kind).u16(0).u32(xid);
        start
    }

    fn end(&mut self, start: usize) {
        self.output.length_at(start, start + 2);
    }

    /// Returns true if the peer gets notifications of the kind `row` for the given reason.
    fn is_told(&self, row: usize, reason: u8) -> bool {
        let reasons = self.told[row][usize::from(self.role == Role::Slave)];
        self.has_greeted && !self.is_behind && reasons >> reason & 1 == 1
    }

    /// Notifies the peer of a link that went up or down.
    pub fn port_status(&mut self, port: u8, is_up: bool) {
        const MODIFIED: u8 = 2;
        if !self.is_told(PORTS, MODIFIED) {
            return;
        }
        if self.output.0.len() >= self.most_output {
            self.is_behind = true;
            return;
        }
        let start = self.begin(kind::PORT_STATUS, 0);
        self.output.u8(MODIFIED).zeros(7);
        write_port(&mut self.output, port, is_up);
        self.end(start);
    }

    /// Sends a packet to the peer, a controller. Returns false if the packet is lost because the peer does not read.
    pub fn packet_in(&mut self, shown: Shown, frame: &[u8]) -> bool {
        if !self.is_told(PACKETS, shown.why as u8) {
            return true;
        }
        if self.output.0.len() > MOST_OUTPUT_BYTES {
            return false;
        }
        let start = self.begin(kind::PACKET_IN, 0);
        self.output.u32(NO_BUFFER).u16(frame.len() as u16);
        // The packet of a rule is not buffered for a later request, so it is sent completely. (Sections 7.3.2 and
        // 7.4.1.)
        let frame = match shown.has_rule {
            true => frame,
            false => &frame[..frame.len().min(usize::from(self.most_shown))],
        };
        self.output
            .u8(shown.why as u8)
            .u8(shown.table)
            .u64(shown.cookie);
        let (mut value, mut mask) = (Key::default(), Key::default());
        if let Some(in_port) = shown.in_port {
            value.set(Field::InPort, u128::from(in_port));
            mask.set(Field::InPort, Field::InPort.whole());
        }
        write_match(&mut self.output, &value, &mask);
        self.output.zeros(2).0.extend(frame);
        self.end(start);
        true
    }

    /// Notifies the peer of a removed rule, if the rule's flags request it.
    pub fn flow_removed(&mut self, kept: &Kept, count: (u64, u64), why: Gone) {
        let rule = &kept.rule;
        if rule.flags & SEND_REMOVED == 0 || !self.is_told(RULES, why as u8) {
            return;
        }
        if self.output.0.len() >= self.most_output {
            self.is_behind = true;
            return;
        }
        let start = self.begin(kind::FLOW_REMOVED, 0);
        let age = kept.made.elapsed();
        self.output
            .u64(rule.cookie)
            .u16(rule.priority)
            .u8(why as u8)
            .u8(rule.table);
        self.output
            .u32(age.as_secs() as u32)
            .u32(age.subsec_nanos());
        self.output
            .u16(rule.idle_s)
            .u16(rule.hard_s)
            .u64(count.0)
            .u64(count.1);
        write_match(&mut self.output, &rule.value, &rule.mask);
        self.end(start);
    }
}

/// Drops the output of the sessions with the most pending output while all sessions together have more than `most`
/// bytes. The sessions that lost output are marked, so that they are closed.
pub(in super::super) fn limit_output<'a>(
    most: usize,
    sessions: impl Iterator<Item = &'a mut Session>,
) {
    let mut sessions: Vec<&mut Session> = sessions.collect();
    let mut all: usize = sessions.iter().map(|it| it.output().len()).sum();
    if all <= most {
        return;
    }
    sessions.sort_by_key(|it| it.output().len());
    while all > most
        && let Some(longest) = sessions.pop()
    {
        all -= longest.output().len();
        longest.is_behind = true;
        longest.output = Writer::default();
    }
}
