//! An OpenFlow session with a controller, without the socket: bytes go in, bytes come out, and the rules change.
//! (OpenFlow 1.3.5, sections 6 and 7.)

use super::fields::{read_match, write_fields, write_match};
use super::lists;
use super::lists::{
    ACTIONS, INSTRUCTIONS, of_group, of_meter, of_rule, read_actions, read_buckets,
    read_instructions, reserved, write_buckets, write_instructions,
};
use super::wire::{Reader, Writer, Wrong};
use crate::action::{Action, ETHERNET_BYTES, Instructions, TAG_BYTES};
use crate::control::{Control, Kept, Rule, RuleId};
use crate::facts::Facts;
use crate::group::{Group, GroupKind, MOST_GROUPS};
use crate::key::{Field, Key};
use crate::meter::{Limit, MOST_METERS, Meter};
use crate::refusal::Refused;
use crate::scope::Of;
use crate::shape::{GroupState, MeterState};
use crate::table::TABLES;
use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

const VERSION: u8 = 4;
const HEADER: usize = 8;
const ALL_TABLES: u8 = 0xff;
const NO_BUFFER: u32 = 0xffff_ffff;
/// The threshold of pending output bytes at which a peer's input is no longer processed: the peer has to read the
/// replies to its requests first.
const HEARD_OUTPUT_BYTES: usize = 256 << 10;
/// The limit on pending output bytes for a peer, of all kinds: a constant, and some bytes for each possible rule. It
/// has space for a notification of each rule if all are removed together.
const MOST_OUTPUT_BYTES: usize = 1 << 20;
const RULE_OUTPUT_BYTES: usize = 256;
/// The upper bound of that limit.
const LARGEST_OUTPUT_BYTES: usize = 64 << 20;
/// The maximum length of a frame from a controller, so that it fits into the ring to the worker.
pub(super) const MOST_FRAME_BYTES: usize = 1984;
/// The longest message, and the size from which a reply continues in another part.
const PART_BYTES: usize = 60_000;
/// The number of rule visits at which the messages of a peer are suspended, so that other peers follow.
const MOST_LOOKED: u64 = 1 << 16;
/// A peer that was idle for this time gets an echo request.
const ASKED_AFTER: Duration = Duration::from_secs(5);
/// A peer is disconnected if it was idle, or has read none of its pending output, for this time.
const GIVEN_UP_AFTER: Duration = Duration::from_secs(15);
/// The time limit for a peer's hello.
const GREETING: Duration = Duration::from_secs(5);

mod kind {
    pub const HELLO: u8 = 0;
    pub const ERROR: u8 = 1;
    pub const ECHO_REQUEST: u8 = 2;
    pub const ECHO_REPLY: u8 = 3;
    pub const EXPERIMENTER: u8 = 4;
    pub const FEATURES_REQUEST: u8 = 5;
    pub const FEATURES_REPLY: u8 = 6;
    pub const GET_CONFIG: u8 = 7;
    pub const CONFIG: u8 = 8;
    pub const SET_CONFIG: u8 = 9;
    pub const PACKET_IN: u8 = 10;
    pub const FLOW_REMOVED: u8 = 11;
    pub const PORT_STATUS: u8 = 12;
    pub const PACKET_OUT: u8 = 13;
    pub const FLOW_MOD: u8 = 14;
    pub const GROUP_MOD: u8 = 15;
    pub const PORT_MOD: u8 = 16;
    pub const TABLE_MOD: u8 = 17;
    pub const MULTIPART_REQUEST: u8 = 18;
    pub const MULTIPART_REPLY: u8 = 19;
    pub const BARRIER_REQUEST: u8 = 20;
    pub const BARRIER_REPLY: u8 = 21;
    pub const ROLE_REQUEST: u8 = 24;
    pub const ROLE_REPLY: u8 = 25;
    pub const GET_ASYNC: u8 = 26;
    pub const ASYNC: u8 = 27;
    pub const SET_ASYNC: u8 = 28;
    pub const METER_MOD: u8 = 29;
}

/// The types of multipart messages. (Section 7.3.5.)
mod multipart {
    pub const DESC: u16 = 0;
    pub const FLOW: u16 = 1;
    pub const AGGREGATE: u16 = 2;
    pub const TABLE: u16 = 3;
    pub const PORT_STATS: u16 = 4;
    pub const QUEUE: u16 = 5;
    pub const GROUP: u16 = 6;
    pub const GROUP_DESC: u16 = 7;
    pub const GROUP_FEATURES: u16 = 8;
    pub const METER: u16 = 9;
    pub const METER_CONFIG: u16 = 10;
    pub const METER_FEATURES: u16 = 11;
    pub const TABLE_FEATURES: u16 = 12;
    pub const PORT_DESC: u16 = 13;
}

/// The row of each kind of notification in `Session::told`.
const PACKETS: usize = 0;
const PORTS: usize = 1;
const RULES: usize = 2;
/// The default notifications of a peer: all, but only ports for a slave. (Section 6.3.5.)
const TOLD: [[u32; 2]; 3] = [[0b111, 0], [0b111, 0b111], [0b1111, 0]];

/// The flags of rules.
const SEND_REMOVED: u16 = 1;
const CHECK_OVERLAP: u16 = 2;
const RESET_COUNTS: u16 = 4;

/// The reasons why a rule was removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Gone {
    Idle = 0,
    Hard = 1,
    Deleted = 2,
    WithGroup = 3,
}

/// The switch as a session sees it, and the effects of messages in addition to changed rules.
pub(in super::super) struct Plant<'a> {
    pub control: &'a mut Control,
    /// The number of ports of the chain.
    pub ports: usize,
    /// The links and counters of the ports.
    pub facts: &'a Facts,
    pub datapath: u64,
    /// The largest generation number of a controller that became master.
    pub generation: &'a mut Option<u64>,
    /// The packets that the controller sends.
    pub sent: &'a mut Vec<PacketOut>,
    /// The removed rules that need a notification.
    pub removed: &'a mut Vec<(RuleId, Kept, Gone)>,
    /// True if another controller has become the master.
    pub deposed: &'a mut bool,
}

/// A packet that a controller sends.
#[derive(Debug, PartialEq)]
pub(in super::super) struct PacketOut {
    /// The port that counts as its ingress port, if any.
    pub in_port: Option<u8>,
    pub actions: Vec<Action>,
    pub through_tables: bool,
    pub frame: Vec<u8>,
}

/// The reasons why a controller gets a packet. (Section 7.4.1.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) enum Why {
    /// Only the table-miss rule matches.
    NoMatch = 0,
    /// A rule's action sends it.
    Action = 1,
}

/// The metadata of a packet that is sent to a controller.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Shown {
    /// The ingress port, if any.
    pub in_port: Option<u8>,
    pub table: u8,
    pub why: Why,
    /// The cookie of the rule.
    pub cookie: u64,
    /// True if a rule or a message has sent it.
    pub has_rule: bool,
}

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
    /// The unprocessed input: less than one read, and one message.
    input: Vec<u8>,
    output: Writer,
    /// The limit on the bytes in `output`.
    most_output: usize,
    /// True if a notification was lost because `output` was full.
    is_behind: bool,
    has_greeted: bool,
    role: Role,
    /// The reasons for notifications, as bits: of packets, ports, removed rules; each for a slave as well.
    told: [[u32; 2]; 3],
    /// The number of bytes that the peer requests of packets without a matching rule.
    most_shown: u16,
    /// A reply with parts that are still to be written.
    listing: Option<Listing>,
    begun: Instant,
    /// The time at which the peer last sent something.
    heard: Instant,
    /// True if an echo request has been sent since then.
    is_asked: bool,
    /// The time at which the peer last read something, or had nothing to read.
    has_read: Instant,
}

impl Session {
    /// Creates a session with the switch's hello as output. `rules` is the maximum number of rules whose removal may be
    /// reported together.
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

    /// Returns the bytes for the peer.
    pub fn output(&self) -> &[u8] {
        &self.output.0
    }

    /// Removes `many` bytes of the output, which have been sent.
    pub fn was_sent(&mut self, many: usize, now: Instant) {
        self.output.0.drain(..many.min(self.output.0.len()));
        self.has_read = now;
    }

    pub fn depose(&mut self) {
        if self.role == Role::Master {
            self.role = Role::Slave;
        }
    }

    /// Returns true if the session accepts more bytes: the input is processed, and the peer reads its replies.
    pub fn listens(&self) -> bool {
        !self.has_more() && !self.is_full()
    }

    /// Returns true if a message or a reply can be continued without more bytes from the peer.
    pub fn has_more(&self) -> bool {
        self.listing.is_some() || self.next_length().is_some_and(|it| it <= self.input.len())
    }

    /// Returns true if [`Session::take`] without bytes would continue the work: some is left, and the output is not
    /// full.
    pub fn goes_on(&self) -> bool {
        self.has_more() && !self.is_full()
    }

    fn is_full(&self) -> bool {
        self.output.0.len() >= HEARD_OUTPUT_BYTES
    }

    /// Returns the length of the message at the start of the input. An invalid message has the length of a header.
    fn next_length(&self) -> Option<usize> {
        let head = self.input.first_chunk::<HEADER>()?;
        let is_heard = self.has_greeted || head[1] == kind::HELLO;
        let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
        Some(if is_heard { length.max(HEADER) } else { HEADER })
    }

    /// Sends an echo request to an idle peer. Called a few times a second.
    ///
    /// # Errors
    /// Fails if the peer has exceeded its time limit.
    pub fn tick(&mut self, now: Instant) -> Result<(), Over> {
        if self.is_behind {
            return Err(Over("it does not read what it is told"));
        }
        if !self.has_greeted {
            let is_late = now.saturating_duration_since(self.begun) >= GREETING;
            return match is_late {
                true => Err(Over("it does not greet")),
                false => Ok(()),
            };
        }
        if self.output.0.is_empty() {
            self.has_read = now;
        } else if now.saturating_duration_since(self.has_read) >= GIVEN_UP_AFTER {
            return Err(Over("it does not read what it has asked for"));
        }
        let silent = now.saturating_duration_since(self.heard);
        // A peer whose input is suspended until it reads is not idle.
        if self.is_full() {
            self.heard = now;
        } else if silent >= GIVEN_UP_AFTER {
            return Err(Over("it is not there any more"));
        } else if silent >= ASKED_AFTER && !self.is_asked {
            self.is_asked = true;
            let start = self.begin(kind::ECHO_REQUEST, 0);
            self.end(start);
        }
        Ok(())
    }

    /// Processes the peer's bytes, in arbitrary pieces, and continues with earlier messages until a limit is reached.
    pub fn take(&mut self, bytes: &[u8], now: Instant, plant: &mut Plant<'_>) -> Result<(), Over> {
        if !bytes.is_empty() {
            (self.heard, self.is_asked) = (now, false);
            self.input.extend_from_slice(bytes);
        }
        let input = std::mem::take(&mut self.input);
        let mut left = &input[..];
        let heard = self.hear(&mut left, plant);
        let many = input.len() - left.len();
        self.input = input;
        self.input.drain(..many);
        // Changes that arrived together come into force together.
        plant.control.tell();
        heard
    }

    fn hear(&mut self, left: &mut &[u8], plant: &mut Plant<'_>) -> Result<(), Over> {
        let begun = plant.control.looked();
        loop {
            self.list(plant);
            let is_enough = plant.control.looked() - begun >= MOST_LOOKED;
            if is_enough || self.is_full() || self.listing.is_some() {
                return Ok(());
            }
            let Some(head) = left.first_chunk::<HEADER>() else {
                return Ok(());
            };
            let length = usize::from(u16::from_be_bytes([head[2], head[3]]));
            if length < HEADER {
                return Err(Over("a message is shorter than its header"));
            }
            if !self.has_greeted && head[1] != kind::HELLO {
                // A complete message is not needed for an error.
                let whole = left.get(..length).unwrap_or(left);
                let xid = u32::from_be_bytes([head[4], head[5], head[6], head[7]]);
                self.refuse(Wrong::BAD_VERSION, xid, whole);
                return Err(Over("it does not begin with a greeting"));
            }
            let Some((message, rest)) = left.split_at_checked(length) else {
                return Ok(());
            };
            *left = rest;
            self.message(message, plant)?;
        }
    }

    fn message(&mut self, message: &[u8], plant: &mut Plant<'_>) -> Result<(), Over> {
        let mut reader = Reader(message);
        let head = |reader: &mut Reader<'_>| {
            Ok::<_, Wrong>((reader.u8()?, reader.u8()?, reader.u16()?, reader.u32()?))
        };
        let Ok((version, kind, _, xid)) = head(&mut reader) else {
            return Err(Over("a message is shorter than its header"));
        };
        if kind == kind::HELLO {
            return self.greet(version, xid, reader);
        }
        if version != VERSION {
            self.refuse(Wrong::BAD_VERSION, xid, message);
            return Ok(());
        }
        if let Err(wrong) = self.answer(kind, xid, reader, plant) {
            self.refuse(wrong, xid, message);
        }
        Ok(())
    }

    fn greet(&mut self, version: u8, xid: u32, mut reader: Reader<'_>) -> Result<(), Over> {
        // Without a list, the version is the highest one, and all lower ones are supported as well.
        let mut speaks = version >= VERSION;
        if let (Ok(1), Ok(length), Ok(bits)) = (reader.u16(), reader.u16(), reader.u32()) {
            speaks = length >= 8 && bits >> VERSION & 1 == 1;
        }
        if !speaks {
            let start = self.begin(kind::ERROR, xid);
            self.output.u16(0).u16(0);
            self.output.0.extend(b"this switch speaks OpenFlow 1.3");
            self.end(start);
            return Err(Over("it does not speak OpenFlow 1.3"));
        }
        self.has_greeted = true;
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

    fn refuse(&mut self, Wrong(kind, code): Wrong, xid: u32, message: &[u8]) {
        let start = self.begin(kind::ERROR, xid);
        self.output.u16(kind).u16(code);
        self.output.0.extend(&message[..message.len().min(64)]);
        self.end(start);
    }

    fn answer(
        &mut self,
        kind: u8,
        xid: u32,
        mut reader: Reader<'_>,
        plant: &mut Plant<'_>,
    ) -> Result<(), Wrong> {
        let changes = matches!(
            kind,
            kind::FLOW_MOD
                | kind::GROUP_MOD
                | kind::METER_MOD
                | kind::PACKET_OUT
                | kind::PORT_MOD
                | kind::TABLE_MOD
        );
        if changes && self.role == Role::Slave {
            return Err(Wrong::IS_SLAVE);
        }
        match kind {
            kind::ERROR | kind::ECHO_REPLY | kind::TABLE_MOD => Ok(()),
            kind::ECHO_REQUEST => {
                let start = self.begin(kind::ECHO_REPLY, xid);
                self.output.0.extend(reader.0);
                self.end(start);
                Ok(())
            }
            kind::FEATURES_REQUEST => {
                // The bits are statistics of flows, tables, ports and groups.
                const CAPABILITIES: u32 = 1 | 2 | 4 | 8;
                let start = self.begin(kind::FEATURES_REPLY, xid);
                self.output
                    .u64(plant.datapath)
                    .u32(0)
                    .u8(TABLES)
                    .u8(0)
                    .zeros(2);
                self.output.u32(CAPABILITIES).u32(0);
                self.end(start);
                Ok(())
            }
            kind::GET_CONFIG => {
                let start = self.begin(kind::CONFIG, xid);
                self.output.u16(0).u16(self.most_shown);
                self.end(start);
                Ok(())
            }
            kind::SET_CONFIG => {
                let (flags, most_shown) = (reader.u16()?, reader.u16()?);
                // Fragments are neither dropped nor reassembled.
                if flags != 0 {
                    return Err(Wrong::BAD_CONFIG_FLAGS);
                }
                self.most_shown = most_shown;
                Ok(())
            }
            kind::GET_ASYNC => {
                let start = self.begin(kind::ASYNC, xid);
                for reasons in self.told.as_flattened() {
                    self.output.u32(*reasons);
                }
                self.end(start);
                Ok(())
            }
            kind::SET_ASYNC => {
                let mut told = TOLD;
                for reasons in told.as_flattened_mut() {
                    *reasons = reader.u32()?;
                }
                self.told = told;
                Ok(())
            }
            kind::BARRIER_REQUEST => {
                plant.control.settle().map_err(of_rule)?;
                let start = self.begin(kind::BARRIER_REPLY, xid);
                self.end(start);
                Ok(())
            }
            kind::ROLE_REQUEST => self.role(xid, reader, plant),
            kind::FLOW_MOD => flow_mod(&mut reader, plant),
            kind::GROUP_MOD => group_mod(&mut reader, plant),
            kind::METER_MOD => meter_mod(&mut reader, plant),
            kind::PACKET_OUT => packet_out(&mut reader, plant),
            kind::PORT_MOD => Err(Wrong::PORT_MOD_FORBIDDEN),
            kind::MULTIPART_REQUEST => self.multipart(xid, reader, plant),
            kind::EXPERIMENTER => Err(Wrong::BAD_EXPERIMENTER),
            _ => Err(Wrong::BAD_TYPE),
        }
    }

    fn role(
        &mut self,
        xid: u32,
        mut reader: Reader<'_>,
        plant: &mut Plant<'_>,
    ) -> Result<(), Wrong> {
        let role = reader.u32()?;
        reader.skip(4)?;
        let generation = reader.u64()?;
        if matches!(role, 2 | 3) {
            // Generation numbers wrap around. (Section 6.3.5.)
            let is_stale = |known: u64| (generation.wrapping_sub(known) as i64) < 0;
            if plant.generation.is_some_and(is_stale) {
                return Err(Wrong::STALE_ROLE);
            }
            *plant.generation = Some(generation);
        }
        self.role = match role {
            0 => self.role,
            1 => Role::Equal,
            2 => {
                *plant.deposed = true;
                Role::Master
            }
            3 => Role::Slave,
            _ => return Err(Wrong::BAD_ROLE),
        };
        let start = self.begin(kind::ROLE_REPLY, xid);
        let generation = plant.generation.unwrap_or(u64::MAX);
        self.output.u32(self.role as u32).zeros(4).u64(generation);
        self.end(start);
        Ok(())
    }

    /// Returns true if the peer gets notifications for that reason.
    fn is_told(&self, row: usize, reason: u8) -> bool {
        let reasons = self.told[row][usize::from(self.role == Role::Slave)];
        self.has_greeted && reasons >> reason & 1 == 1
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

    /// Sends a packet to the peer. Returns false if the peer does not read.
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

    /// Replies to a multipart message. Short replies are written immediately, long ones in parts as the peer reads.
    fn multipart(
        &mut self,
        xid: u32,
        mut reader: Reader<'_>,
        plant: &mut Plant<'_>,
    ) -> Result<(), Wrong> {
        let (kind, flags) = (reader.u16()?, reader.u16()?);
        reader.skip(4)?;
        // A request of several parts would set table features, which is unsupported.
        if flags != 0 {
            return Err(Wrong::BAD_MULTIPART);
        }
        if let Some(what) = Subject::of(kind, &mut reader, plant)? {
            self.listing = Some(Listing {
                xid,
                kind,
                what,
                next: 0,
            });
            return Ok(());
        }
        let mut reply = Reply::new(self, xid, kind);
        match kind {
            multipart::DESC => reply.description(),
            multipart::AGGREGATE => reply.sum_of_rules(&Asked::read(&mut reader)?, plant),
            multipart::TABLE => reply.rules_of_tables(plant),
            multipart::PORT_STATS => {
                reply.counts_of_ports(wanted_ports(reader.u32()?, plant.ports)?, plant);
            }
            // The chain counts queues itself.
            multipart::QUEUE => {}
            multipart::GROUP_FEATURES => reply.abilities_of_groups(),
            multipart::METER_FEATURES => reply.abilities_of_meters(),
            // Table features cannot be set, only listed.
            multipart::TABLE_FEATURES if !reader.is_empty() => return Err(Wrong::BAD_MULTIPART),
            multipart::TABLE_FEATURES => reply.abilities_of_tables(plant),
            multipart::PORT_DESC => {
                reply.links_of_ports(wanted_ports(reserved::ANY, plant.ports)?, plant);
            }
            _ => return Err(Wrong::BAD_MULTIPART),
        }
        reply.finish();
        Ok(())
    }
}

/// A reply of several parts, each of which is a message. Parts are written as the peer reads, so that pending output
/// stays short, however many rules there are.
#[derive(Debug)]
struct Listing {
    xid: u32,
    kind: u16,
    what: Subject,
    /// The number of the rule, group or meter that is next.
    next: u32,
}

/// The items that a reply lists.
#[derive(Debug)]
enum Subject {
    Rules(Asked),
    /// All groups, or one, and the number of rules that use each.
    Groups(Option<u32>, HashMap<u32, u32>),
    Meters(Option<u32>, HashMap<u32, u32>),
}

impl Subject {
    /// Returns the subject of a long reply; none for short replies.
    fn of(kind: u16, reader: &mut Reader<'_>, plant: &Plant<'_>) -> Result<Option<Self>, Wrong> {
        let one = |asked: u32, all: u32| (asked != all).then_some(asked);
        Ok(Some(match kind {
            multipart::FLOW => Self::Rules(Asked::read(reader)?),
            multipart::GROUP | multipart::GROUP_DESC => {
                let asked = match kind {
                    multipart::GROUP => reader.u32()?,
                    _ => reserved::ALL_GROUPS,
                };
                let uses = uses(plant.control, |action| match action {
                    Action::Group(id) => Some(*id),
                    _ => None,
                });
                Self::Groups(one(asked, reserved::ALL_GROUPS), uses)
            }
            multipart::METER | multipart::METER_CONFIG => {
                let asked = reader.u32()?;
                let uses = uses(plant.control, |action| match action {
                    Action::Meter(id) => Some(*id),
                    _ => None,
                });
                Self::Meters(one(asked, reserved::ANY), uses)
            }
            _ => return Ok(None),
        }))
    }
}

impl Session {
    /// Continues a reply, up to the limits on output and on visited rules.
    fn list(&mut self, plant: &Plant<'_>) {
        let Some(mut listing) = self.listing.take() else {
            return;
        };
        let kind = listing.kind;
        let begun = plant.control.looked();
        let mut reply = Reply::new(self, listing.xid, kind);
        let is_whole = loop {
            if reply.session.is_full() || plant.control.looked() - begun >= MOST_LOOKED {
                break false;
            }
            let next = &mut listing.next;
            let has_more = match &listing.what {
                Subject::Rules(asked) => plant.control.next_rules(next, |id, kept| {
                    if asked.fits(&kept.rule) {
                        let count = plant.control.count(id);
                        reply.entry(|writer| write_flow(writer, kept, count));
                    }
                }),
                Subject::Groups(one, uses) => match plant.control.next_group(*next) {
                    Some((group, state)) => {
                        if one.is_none_or(|id| id == group.id) {
                            let used = uses.get(&group.id).copied().unwrap_or(0);
                            reply.entry(|writer| write_group(writer, kind, group, state, used));
                        }
                        let behind = group.id.checked_add(1);
                        *next = behind.unwrap_or_default();
                        behind.is_some()
                    }
                    None => false,
                },
                Subject::Meters(one, uses) => match plant.control.next_meter(*next) {
                    Some((meter, state)) => {
                        if one.is_none_or(|id| id == meter.id) {
                            let used = uses.get(&meter.id).copied().unwrap_or(0);
                            reply.entry(|writer| write_meter(writer, kind, meter, state, used));
                        }
                        let behind = meter.id.checked_add(1);
                        *next = behind.unwrap_or_default();
                        behind.is_some()
                    }
                    None => false,
                },
            };
            if !has_more {
                break true;
            }
        };
        if is_whole {
            reply.finish();
        } else {
            reply.pause();
            self.listing = Some(listing);
        }
    }
}

/// A reply that is being written.
struct Reply<'a> {
    session: &'a mut Session,
    xid: u32,
    kind: u16,
    /// The offset of the part that is being written.
    start: Option<usize>,
    /// The entry that is being written.
    entry: Writer,
}

impl<'a> Reply<'a> {
    fn new(session: &'a mut Session, xid: u32, kind: u16) -> Self {
        Self {
            session,
            xid,
            kind,
            start: None,
            entry: Writer::default(),
        }
    }

    /// Adds an entry, which is shorter than [`PART_BYTES`], to the current part, or to a new one if it does not fit.
    fn entry(&mut self, write: impl FnOnce(&mut Writer)) {
        self.entry.0.clear();
        write(&mut self.entry);
        let length = |start| self.session.output.0.len() - start + self.entry.0.len();
        if self.start.is_some_and(|start| length(start) > PART_BYTES) {
            self.pause();
        }
        self.begin();
        self.session.output.0.extend_from_slice(&self.entry.0);
    }

    fn begin(&mut self) {
        if self.start.is_none() {
            let start = self.session.begin(kind::MULTIPART_REPLY, self.xid);
            self.session.output.u16(self.kind).u16(0).zeros(4);
            self.start = Some(start);
        }
    }

    /// Ends the current part: more follow.
    fn pause(&mut self) {
        if let Some(start) = self.start.take() {
            self.session.output.0[start + HEADER + 3] = 1;
            self.session.end(start);
        }
    }

    /// Ends the reply.
    fn finish(mut self) {
        self.begin();
        if let Some(start) = self.start {
            self.session.end(start);
        }
    }
}

/// Short replies.
impl Reply<'_> {
    /// Describes the switch.
    fn description(&mut self) {
        self.entry(|writer| {
            writer.text("taut", 256).text(std::env::consts::ARCH, 256);
            writer.text(concat!("taut ", env!("CARGO_PKG_VERSION")), 256);
            writer.text("none", 32).text("switch", 256);
        });
    }

    /// Adds up the counts of the requested rules.
    fn sum_of_rules(&mut self, asked: &Asked, plant: &Plant<'_>) {
        let rules = plant
            .control
            .rules()
            .filter(|(_, kept)| asked.fits(&kept.rule));
        let (mut packets, mut bytes, mut many) = (0_u64, 0_u64, 0);
        for (id, _) in rules {
            let count = plant.control.count(id);
            packets = packets.saturating_add(count.0);
            bytes = bytes.saturating_add(count.1);
            many += 1;
        }
        self.entry(|writer| {
            writer.u64(packets).u64(bytes).u32(many).zeros(4);
        });
    }

    /// Reports the number of rules of each table.
    fn rules_of_tables(&mut self, plant: &Plant<'_>) {
        let mut active = [0_u32; TABLES as usize];
        for (_, kept) in plant.control.rules() {
            if let Some(many) = active.get_mut(usize::from(kept.rule.table)) {
                *many += 1;
            }
        }
        for (table, many) in (0..).zip(active) {
            // Lookups are not counted.
            self.entry(|writer| {
                writer
                    .u8(table)
                    .zeros(3)
                    .u32(many)
                    .u64(u64::MAX)
                    .u64(u64::MAX);
            });
        }
    }

    /// Reports the counters of these ports.
    fn counts_of_ports(&mut self, ports: Range<u8>, plant: &Plant<'_>) {
        for port in ports {
            let [received, sent] = plant.facts.port_counts(port);
            let age = plant.facts.begun.elapsed();
            self.entry(|writer| {
                writer.u32(u32::from(port) + 1).zeros(4);
                writer
                    .u64(received.0)
                    .u64(sent.0)
                    .u64(received.1)
                    .u64(sent.1);
                // The chain counts losses on the link: none of the other eight counters is known here.
                (0..8).for_each(|_| {
                    writer.u64(u64::MAX);
                });
                write_age(writer, age);
            });
        }
    }

    /// Reports the features of groups.
    fn abilities_of_groups(&mut self) {
        self.entry(|writer| {
            // All four types are supported; so are weights and the liveness of ports. Actions are bits by number.
            writer.u32(0b1111).u32(0b0011);
            (0..4).for_each(|_| {
                writer.u32(MOST_GROUPS as u32);
            });
            let actions = 1 | 1 << 17 | 1 << 18 | 1 << 21 | 1 << 23 | 1 << 24 | 1 << 25;
            for actions in [1 | 1 << 21, actions, actions, actions] {
                writer.u32(actions);
            }
        });
    }

    /// Reports the features of meters.
    fn abilities_of_meters(&mut self) {
        self.entry(|writer| {
            // Meters have drop bands; rates in kbit/s and packets, with bursts and statistics; one band.
            writer
                .u32(MOST_METERS as u32)
                .u32(1 << 1)
                .u32(0b1111)
                .u8(1)
                .u8(0)
                .zeros(2);
        });
    }

    /// Reports the features of each table.
    fn abilities_of_tables(&mut self, plant: &Plant<'_>) {
        let room = u32::try_from(plant.control.room()).unwrap_or(u32::MAX);
        for table in 0..TABLES {
            self.entry(|writer| {
                let start = writer.0.len();
                writer
                    .u16(0)
                    .u8(table)
                    .zeros(5)
                    .text(&format!("table{table}"), 32);
                writer.u64(0).u64(0).u32(0).u32(room);
                write_abilities(writer, table);
                writer.length_at(start, start);
            });
        }
    }

    /// Reports the descriptions of these ports and the state of their links.
    fn links_of_ports(&mut self, ports: Range<u8>, plant: &Plant<'_>) {
        for port in ports {
            let is_up = plant.facts.is_up(port);
            self.entry(|writer| write_port(writer, port, is_up));
        }
    }
}

fn write_group(writer: &mut Writer, kind: u16, group: &Group, state: &GroupState, used: u32) {
    let start = writer.0.len();
    if kind == multipart::GROUP_DESC {
        writer
            .u16(0)
            .u8(group_type(group.kind))
            .zeros(1)
            .u32(group.id);
        write_buckets(writer, &group.buckets);
    } else {
        let (packets, bytes) = state.count.read();
        writer.u16(0).zeros(2).u32(group.id).u32(used).zeros(4);
        writer.u64(packets).u64(bytes);
        write_age(writer, state.made.elapsed());
        for bucket in &state.buckets {
            let (packets, bytes) = bucket.count.read();
            writer.u64(packets).u64(bytes);
        }
    }
    writer.length_at(start, start);
}

fn write_meter(writer: &mut Writer, kind: u16, meter: &Meter, state: &MeterState, used: u32) {
    let start = writer.0.len();
    if kind == multipart::METER_CONFIG {
        let (rate, flag) = match meter.rate {
            Limit::Kbps(rate) => (rate, 1),
            Limit::Pps(rate) => (rate, 2),
        };
        let burst = if meter.burst.is_some() { 4 } else { 0 };
        writer.u16(0).u16(flag | burst).u32(meter.id);
        writer.u16(1).u16(16).u32(rate);
        writer.u32(meter.burst.unwrap_or(0)).zeros(4);
        writer.length_at(start, start);
    } else {
        let (came, dropped) = (state.came.read(), state.dropped.read());
        writer.u32(meter.id).u16(0).zeros(6).u32(used);
        writer.u64(came.0).u64(came.1);
        write_age(writer, state.made.elapsed());
        writer.u64(dropped.0).u64(dropped.1);
        writer.length_at(start, start + 4);
    }
}

fn wanted_ports(asked: u32, ports: usize) -> Result<Range<u8>, Wrong> {
    match asked {
        reserved::ANY => Ok(0..ports.min(255) as u8),
        number => {
            let port = lists::port(number, ports).ok_or(Wrong(1, 11))?;
            Ok(port..port + 1)
        }
    }
}

fn write_flow(writer: &mut Writer, kept: &Kept, count: (u64, u64)) {
    let (start, rule) = (writer.0.len(), &kept.rule);
    let age = kept.made.elapsed();
    writer
        .u16(0)
        .u8(rule.table)
        .zeros(1)
        .u32(age.as_secs() as u32)
        .u32(age.subsec_nanos());
    writer
        .u16(rule.priority)
        .u16(rule.idle_s)
        .u16(rule.hard_s)
        .u16(rule.flags)
        .zeros(4);
    writer.u64(rule.cookie).u64(count.0).u64(count.1);
    write_match(writer, &rule.value, &rule.mask);
    write_instructions(writer, &rule.does);
    writer.length_at(start, start);
}

/// Writes the description of a port.
fn write_port(writer: &mut Writer, port: u8, is_up: bool) {
    writer.u32(u32::from(port) + 1).zeros(4);
    writer.0.extend([2, 0, 0, 0, 0, port]);
    writer.zeros(2).text(&format!("port{port}"), 16);
    // The state is "link down" or "live".
    writer.u32(0).u32(if is_up { 4 } else { 1 });
    writer.zeros(24);
}

/// Writes a time as seconds and the remaining nanoseconds.
fn write_age(writer: &mut Writer, age: Duration) {
    writer.u32(age.as_secs() as u32).u32(age.subsec_nanos());
}

/// Returns the number of rules that use each of the groups or meters that `of` finds.
fn uses(control: &Control, of: impl Fn(&Action) -> Option<u32>) -> HashMap<u32, u32> {
    let mut uses = HashMap::new();
    for (_, kept) in control.rules() {
        for id in kept.rule.does.all().filter_map(&of) {
            *uses.entry(id).or_default() += 1;
        }
    }
    uses
}

/// Writes the features of a table, which are the same for all.
fn write_abilities(writer: &mut Writer, table: u8) {
    let mut property = |kind: u16, write: &dyn Fn(&mut Writer)| {
        let start = writer.0.len();
        writer.u16(kind).u16(0);
        write(writer);
        writer.length_at(start, start + 2);
        writer.pad(start);
    };
    let kinds = |kinds: &'static [u16]| {
        move |writer: &mut Writer| {
            for kind in kinds {
                writer.u16(*kind).u16(4);
            }
        }
    };
    property(0, &kinds(&INSTRUCTIONS));
    property(2, &|writer| {
        writer.0.extend(table + 1..TABLES);
    });
    property(4, &kinds(&ACTIONS));
    property(6, &kinds(&ACTIONS));
    for kind in [8, 10] {
        property(kind, &|writer| write_fields(writer, |_| true));
    }
    for kind in [12, 14] {
        let can_be_set = |field| crate::action::steps(&[Action::Set(field, Of::Any, 0)], 0).is_ok();
        property(kind, &|writer| write_fields(writer, can_be_set));
    }
}

fn group_type(kind: GroupKind) -> u8 {
    match kind {
        GroupKind::All => 0,
        GroupKind::Select => 1,
        GroupKind::Indirect => 2,
        GroupKind::FastFailover => 3,
    }
}

/// The rules that a message selects.
#[derive(Debug)]
struct Asked {
    table: Option<u8>,
    out_port: Option<u32>,
    out_group: Option<u32>,
    cookie: u64,
    cookie_mask: u64,
    value: Key,
    mask: Key,
}

impl Asked {
    /// Reads the selection of a statistics request.
    fn read(reader: &mut Reader<'_>) -> Result<Self, Wrong> {
        let table = reader.u8()?;
        reader.skip(3)?;
        let (out_port, out_group) = (reader.u32()?, reader.u32()?);
        reader.skip(4)?;
        let (cookie, cookie_mask) = (reader.u64()?, reader.u64()?);
        let (value, mask) = read_match(reader)?;
        Ok(Self {
            table: (table != ALL_TABLES).then_some(table),
            out_port: (out_port != reserved::ANY).then_some(out_port),
            out_group: (out_group != reserved::ANY).then_some(out_group),
            cookie,
            cookie_mask,
            value,
            mask,
        })
    }

    /// Returns true if a rule has this match or a narrower one, and the requested output.
    fn fits(&self, rule: &Rule) -> bool {
        let leads_to = |port: u32| {
            rule.does.all().any(|action| match action {
                Action::Output(to, _) => lists::number_of(*to) == port,
                _ => false,
            })
        };
        self.table.is_none_or(|table| table == rule.table)
            && rule.mask.and(&self.mask) == self.mask
            && rule.value.and(&self.mask) == self.value
            && (rule.cookie ^ self.cookie) & self.cookie_mask == 0
            && self.out_port.is_none_or(leads_to)
            && self
                .out_group
                .is_none_or(|id| rule.does.all().any(|it| *it == Action::Group(id)))
    }
}

fn flow_mod(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (cookie, cookie_mask) = (reader.u64()?, reader.u64()?);
    let (table, command) = (reader.u8()?, reader.u8()?);
    let (idle_s, hard_s, priority) = (reader.u16()?, reader.u16()?, reader.u16()?);
    let (buffer, out_port, out_group, flags) =
        (reader.u32()?, reader.u32()?, reader.u32()?, reader.u16()?);
    reader.skip(2)?;
    let (value, mask) = read_match(reader)?;
    let is_deletion = matches!(command, 3 | 4);
    let does = match is_deletion {
        // A delete command ignores the instructions.
        true => Instructions::default(),
        false => read_instructions(*reader, plant.ports, (value, mask))?,
    };
    if buffer != NO_BUFFER && !is_deletion {
        return Err(Wrong::BUFFER_UNKNOWN);
    }
    if table >= TABLES && !(is_deletion && table == ALL_TABLES) {
        return Err(Wrong::BAD_TABLE);
    }
    let asked = Asked {
        table: (table != ALL_TABLES).then_some(table),
        out_port: (is_deletion && out_port != reserved::ANY).then_some(out_port),
        out_group: (is_deletion && out_group != reserved::ANY).then_some(out_group),
        cookie,
        cookie_mask,
        value,
        mask,
    };
    let control = &mut *plant.control;
    // The message selects exactly this match at this priority, or all matches that are not wider.
    let is_strict = matches!(command, 2 | 4);
    let about = |control: &Control| -> Vec<RuleId> {
        if is_strict && table != ALL_TABLES {
            let same = control.same(table, priority, &value, &mask);
            let fits = |id: &RuleId| control.rule(*id).is_some_and(|kept| asked.fits(&kept.rule));
            return same.into_iter().filter(fits).collect();
        }
        let rules = control.rules().filter(|(_, kept)| {
            let rule = &kept.rule;
            let is_same = (rule.priority, rule.value, rule.mask) == (priority, value, mask);
            asked.fits(rule) && (!is_strict || is_same)
        });
        rules.map(|(id, _)| id).collect()
    };
    match command {
        0 => {
            let rule = Rule {
                table,
                priority,
                value,
                mask,
                does,
                cookie,
                flags,
                idle_s,
                hard_s,
            };
            if flags & CHECK_OVERLAP != 0 && control.overlaps(&rule) {
                return Err(Wrong::OVERLAP);
            }
            control
                .replace(rule, flags & RESET_COUNTS == 0)
                .map_err(of_rule)
        }
        1 | 2 => {
            for id in about(control) {
                control.change(id, does.clone()).map_err(of_rule)?;
                if flags & RESET_COUNTS != 0 {
                    control.clear_count(id);
                }
            }
            Ok(())
        }
        3 | 4 => {
            for id in about(control) {
                if let Some(kept) = control.remove(id) {
                    plant.removed.push((id, kept, Gone::Deleted));
                }
            }
            Ok(())
        }
        _ => Err(Wrong::BAD_FLOW_COMMAND),
    }
}

fn group_mod(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (command, kind) = (reader.u16()?, reader.u8()?);
    reader.skip(1)?;
    let id = reader.u32()?;
    if command == 2 {
        let gone = plant
            .control
            .remove_groups(|it| id == reserved::ALL_GROUPS || it == id);
        let gone = gone
            .into_iter()
            .map(|(id, kept)| (id, kept, Gone::WithGroup));
        plant.removed.extend(gone);
        return Ok(());
    }
    if id >= 0xffff_ff00 {
        return Err(Wrong::INVALID_GROUP);
    }
    let kind = match kind {
        0 => GroupKind::All,
        1 => GroupKind::Select,
        2 => GroupKind::Indirect,
        3 => GroupKind::FastFailover,
        _ => return Err(Wrong::BAD_GROUP_TYPE),
    };
    let group = Group {
        id,
        kind,
        buckets: read_buckets(*reader, plant.ports)?,
    };
    match command {
        0 => plant.control.add_group(group).map_err(of_group),
        1 => plant.control.change_group(group).map_err(of_group),
        _ => Err(Wrong::BAD_GROUP_COMMAND),
    }
}

fn meter_mod(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (command, flags, id) = (reader.u16()?, reader.u16()?, reader.u32()?);
    if command == 2 {
        let gone = plant
            .control
            .remove_meters(|it| id == reserved::ANY || it == id);
        let gone = gone.into_iter().map(|(id, kept)| (id, kept, Gone::Deleted));
        plant.removed.extend(gone);
        return Ok(());
    }
    if id == 0 || id > 0xffff_0000 {
        return Err(Wrong::INVALID_METER);
    }
    let (kind, length) = (reader.u16()?, reader.u16()?);
    let (rate, burst) = (reader.u32()?, reader.u32()?);
    if kind != 1 || length != 16 {
        return Err(Wrong::BAD_BAND);
    }
    reader.skip(4)?;
    if !reader.is_empty() {
        return Err(Wrong::OUT_OF_BANDS);
    }
    let rate = match flags & 3 {
        0 | 1 => Limit::Kbps(rate),
        2 => Limit::Pps(rate),
        _ => return Err(Wrong::BAD_METER_FLAGS),
    };
    let meter = Meter {
        id,
        rate,
        burst: (flags & 4 != 0).then_some(burst),
    };
    match command {
        0 => plant.control.add_meter(meter).map_err(of_meter),
        1 => plant.control.change_meter(meter).map_err(of_meter),
        _ => Err(Wrong::BAD_METER_COMMAND),
    }
}

fn packet_out(reader: &mut Reader<'_>, plant: &mut Plant<'_>) -> Result<(), Wrong> {
    let (buffer, in_port, length) = (reader.u32()?, reader.u32()?, reader.u16()?);
    reader.skip(6)?;
    if buffer != NO_BUFFER {
        return Err(Wrong::BUFFER_UNKNOWN);
    }
    let actions = Reader(reader.bytes(usize::from(length), Wrong::BAD_LENGTH)?);
    let lists::Listed {
        actions,
        through_tables,
    } = read_actions(actions, plant.ports)?;
    crate::action::steps(&actions, 0).map_err(|why| of_rule(Refused::Actions(why)))?;
    let is_push = |action: &&Action| matches!(action, Action::PushVlan(_));
    let longest = reader.0.len() + TAG_BYTES * actions.iter().filter(is_push).count();
    if reader.0.len() < ETHERNET_BYTES || longest > MOST_FRAME_BYTES {
        return Err(Wrong::BAD_PACKET);
    }
    plant.sent.push(PacketOut {
        in_port: lists::port(in_port, plant.ports),
        actions,
        through_tables,
        frame: reader.0.to_vec(),
    });
    Ok(())
}
