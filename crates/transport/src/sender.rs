//! The sender of an endpoint stores messages until they have arrived or can no longer arrive in time, and sends repairs
//! and retransmissions.

use crate::pace::{Departed, Pace};
use crate::settings::{Coding, Settings, WrongSettings};
use crate::wire::{
    Body, Data, FEEDBACK_BYTES, Feedback, MOST_DATAGRAM_BYTES, Repair, SYMBOL_BYTES,
    data_packet_bytes,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use taut_code::{Encoder, Scheme};

/// Number of sent packets that are remembered until they are acknowledged, a power of 2.
const RECORDS: usize = 4096;
/// A packet counts as lost when this number of later packets has arrived (RFC 9002, section 6.1.1).
const REORDERED: u64 = 3;
/// Longest interval between messages, ns, for which feedback waits for the next message to carry it.
const LONGEST_EXPECTED_NS: u64 = 20_000_000;
/// Number of the latest messages among which the sender searches for a message of unknown outcome.
const LOOKED_BACK: usize = 64;
/// Longest time that the peer delays feedback, ns.
const LONGEST_WAIT_NS: u64 = 5_000_000;
/// Time without feedback, in target delays, after which unacknowledged messages are no longer retransmitted: the peer
/// is assumed to be gone.
const DOUBTED_FOR: u64 = 4;
/// Time without a sent message after which a message is sent although the path seems too slow for it, ns. Its
/// acknowledgement shows whether the path has become faster; nothing else would.
const TRIED_AGAIN_NS: u64 = 50_000_000;
/// Loss ratio below which no repairs are sent in advance.
const NO_LOSS: f64 = 0.002;

/// Returns the time that a receiver delays feedback on messages with target delay `target_ns`, ns.
pub(crate) fn feedback_wait_ns(target_ns: u64) -> u64 {
    (target_ns / 4).min(LONGEST_WAIT_NS)
}

/// Outcomes of messages, counted at their sender.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Sent {
    /// Messages from the application.
    pub messages: u64,
    /// Messages that were rejected because the buffer was full.
    pub refused: u64,
    /// Messages that were never sent, because they would have arrived too late.
    pub not_sent: u64,
    /// Sent packets that carry a message, including retransmissions.
    pub data: u64,
    /// Messages that were retransmitted because they counted as lost.
    pub again: u64,
    /// Messages that were retransmitted because no feedback reported their outcome.
    pub asked: u64,
    /// Sent repair packets.
    pub repairs: u64,
}

impl Sent {
    pub(crate) fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.refused += other.refused;
        self.not_sent += other.not_sent;
        self.data += other.data;
        self.again += other.again;
        self.asked += other.asked;
        self.repairs += other.repairs;
    }
}

/// A buffered message.
#[derive(Debug, Clone, Copy, Default)]
struct Source {
    deadline_ns: u64,
    gap_ns: u32,
    length: u16,
    /// Number of the last packet that carried the message; none before the first transmission.
    packet: Option<u64>,
    /// Send time of the last packet that carried the message, ns.
    left_ns: u64,
    is_known: bool,
    is_lost: bool,
    /// True if the message has been retransmitted.
    is_again: bool,
}

/// A packet that may be in flight.
#[derive(Debug, Clone, Copy, Default)]
struct Record {
    packet: Option<u64>,
    /// State of the path when the packet was sent; none for a packet that needs no acknowledgement.
    departed: Option<Departed>,
}

/// The content of the next packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outgoing {
    /// The message with the given number.
    Data(u64),
    /// A repair: a combination of messages.
    Repair,
}

#[derive(Debug)]
pub(crate) struct Sender {
    target_ns: u64,
    payload_bytes: usize,
    coding: Coding,
    /// Limit on buffered messages. The number of slots is a power of 2, so that a message's number gives its slot.
    kept: u64,
    sources: Vec<Source>,
    bytes: Vec<u8>,
    /// Numbers of the oldest buffered message (`base`), of the first message that was never sent (`fresh`), and of the
    /// application's next message (`next`).
    base: u64,
    fresh: u64,
    next: u64,
    lost: VecDeque<u64>,
    /// Number of the first message without feedback that has not been retransmitted.
    doubted: u64,
    /// The longest recent time from sending a message to its acknowledgement, ns; this maximum decays with each
    /// feedback.
    answered_ns: u64,
    /// Time of the last feedback on messages, ns; 0 before the first feedback.
    heard_ns: u64,
    encoder: Option<Encoder>,
    symbol: Vec<u8>,
    /// Accumulated fraction of the next repair, to which each sent message adds. At 1, a repair becomes due.
    credit: f64,
    /// True if a repair has to be sent, provided that there are messages to combine.
    repair_due: bool,
    /// Send time of the first message of the open block, ns; none if no block is open.
    block_ns: Option<u64>,
    in_block: usize,
    records: Vec<Record>,
    /// Number of the first packet that is neither acknowledged nor followed by an acknowledged packet.
    open_packet: u64,
    in_flight: u64,
    last_feedback: Option<Feedback>,
    loss: f64,
    last_deadline_ns: Option<u64>,
    /// Smoothed interval between the application's messages, ns (`interval_ns`), and the time at which the latest
    /// message was accepted, ns (`pushed_ns`).
    interval_ns: f64,
    pushed_ns: u64,
    /// Time at which a message was last sent, ns (`data_ns`), and the number of feedback requests without a reply since
    /// then (`unanswered`).
    data_ns: u64,
    unanswered: u32,
    pub pace: Pace,
    pub sent: Sent,
}

impl Sender {
    pub(crate) fn new(settings: &Settings, seed: u64) -> Result<Self, WrongSettings> {
        let size = settings.payload_bytes + SYMBOL_BYTES;
        let scheme = match settings.coding {
            Coding::Off => None,
            Coding::Block {
                symbols,
                redundancy,
            } => Some(Scheme::Block {
                symbols,
                redundancy,
            }),
            // The scheme makes one repair per message; only the needed ones are sent.
            Coding::Window { symbols, .. } => Some(Scheme::Window {
                symbols,
                redundancy: 1.0,
            }),
        };
        let encoder = scheme.map(|scheme| Encoder::new(scheme, size, 1.0, seed));
        let places = settings.kept.next_power_of_two();
        Ok(Self {
            target_ns: settings.target_ns,
            payload_bytes: settings.payload_bytes,
            coding: settings.coding,
            kept: settings.kept as u64,
            sources: vec![Source::default(); places],
            bytes: vec![0; places * settings.payload_bytes],
            base: 0,
            fresh: 0,
            next: 0,
            lost: VecDeque::with_capacity(settings.kept),
            doubted: 0,
            answered_ns: 0,
            heard_ns: 0,
            encoder: encoder.transpose()?,
            symbol: vec![0; size],
            credit: 0.0,
            repair_due: false,
            block_ns: None,
            in_block: 0,
            records: vec![Record::default(); RECORDS],
            open_packet: 0,
            in_flight: 0,
            last_feedback: None,
            loss: 0.0,
            last_deadline_ns: None,
            interval_ns: 0.0,
            pushed_ns: 0,
            data_ns: 0,
            unanswered: 0,
            pace: Pace::new(settings.target_ns),
            sent: Sent::default(),
        })
    }

    /// Sets the target delay of later messages, ns.
    pub(crate) fn set_target(&mut self, target_ns: u64) {
        self.target_ns = target_ns;
        self.pace.set_target(target_ns);
    }

    fn place(&self, number: u64) -> usize {
        number as usize & (self.sources.len() - 1)
    }

    fn payload(&self, number: u64) -> &[u8] {
        let place = self.place(number);
        &self.bytes[place * self.payload_bytes..][..usize::from(self.sources[place].length)]
    }

    /// Accepts a message. Returns none if the buffer is full.
    pub(crate) fn push(&mut self, now_ns: u64, payload: &[u8]) -> Option<u64> {
        self.forget(now_ns);
        if self.next - self.base >= self.kept {
            self.sent.refused += 1;
            return None;
        }
        let number = self.next;
        // Messages are delivered in order, so a shorter target delay cannot make a message due before the one before
        // it.
        let deadline_ns = now_ns.saturating_add(self.target_ns);
        let deadline_ns = deadline_ns.max(self.last_deadline_ns.unwrap_or(0));
        let gap_ns = self
            .last_deadline_ns
            .and_then(|last| u32::try_from(deadline_ns.saturating_sub(last)).ok());
        let place = self.place(number);
        self.sources[place] = Source {
            deadline_ns,
            gap_ns: gap_ns.unwrap_or(u32::MAX),
            length: payload.len() as u16,
            ..Source::default()
        };
        self.bytes[place * self.payload_bytes..][..payload.len()].copy_from_slice(payload);
        if self.last_deadline_ns.is_some() {
            let passed = now_ns.saturating_sub(self.pushed_ns) as f64;
            self.interval_ns += (passed - self.interval_ns) * 0.25;
        }
        self.pushed_ns = now_ns;
        self.last_deadline_ns = Some(deadline_ns);
        self.next += 1;
        self.sent.messages += 1;
        Some(number)
    }

    /// Returns the estimated minimum one-way delay, ns: half of the shortest round trip.
    fn shortest_way_ns(&self) -> u64 {
        self.pace.lowest_rtt_ns().unwrap_or(0) / 2
    }

    fn can_still_come(&self, number: u64, now_ns: u64) -> bool {
        let source = &self.sources[self.place(number)];
        let is_tried = now_ns.saturating_sub(self.data_ns) >= TRIED_AGAIN_NS;
        let way_ns = if is_tried { 0 } else { self.shortest_way_ns() };
        now_ns.saturating_add(way_ns) < source.deadline_ns
    }

    /// Frees messages that have arrived or can no longer arrive in time, and packets that are too old for feedback.
    fn forget(&mut self, now_ns: u64) {
        while self.base < self.next
            && (self.sources[self.place(self.base)].is_known
                || !self.can_still_come(self.base, now_ns))
        {
            if self.base == self.fresh {
                self.sent.not_sent += 1;
                self.encode(self.base, now_ns);
                self.fresh += 1;
            }
            self.base += 1;
        }
        self.settle();
        let memory_ns = self.memory_ns();
        loop {
            let record = &mut self.records[(self.open_packet % RECORDS as u64) as usize];
            if record.packet != Some(self.open_packet) {
                break;
            }
            if let Some(departed) = record.departed {
                if now_ns.saturating_sub(departed.sent_ns) < memory_ns {
                    break;
                }
                record.departed = None;
                self.in_flight -= u64::from(departed.bytes);
            }
            self.open_packet += 1;
        }
    }

    /// Advances `doubted` past messages that are not retransmitted for lack of feedback, because they have arrived, are
    /// queued as lost, or have been retransmitted.
    fn settle(&mut self) {
        self.doubted = self.doubted.max(self.base);
        while self.doubted < self.fresh {
            let source = &self.sources[self.place(self.doubted)];
            if !(source.is_known || source.is_lost || source.is_again) {
                break;
            }
            self.doubted += 1;
        }
    }

    /// Returns the time, ns, at which the message `doubted` is retransmitted although no feedback reports its loss.
    /// Waiting longer could miss its deadline, because consecutive losses may hide the loss, or drop the feedback. The
    /// time is never before feedback usually arrives. Returns none if there is no such message, or if the time is more
    /// than [`DOUBTED_FOR`] target delays after the last feedback.
    fn doubt_ns(&self) -> Option<u64> {
        if self.doubted >= self.fresh {
            return None;
        }
        let usual_ns = self.answered_ns + self.answered_ns / 2;
        let patience_ns = self.patience_ns().max(self.target_ns / 2).max(usual_ns);
        let source = &self.sources[self.place(self.doubted)];
        let due_ns = source.left_ns + patience_ns;
        (due_ns <= self.heard_ns + DOUBTED_FOR * self.target_ns).then_some(due_ns)
    }

    /// Returns the expected time of the next message, ns, and whether a datagram with such a message has space for
    /// feedback, in addition to `tag_bytes` bytes. Returns none if messages are not evenly spaced.
    pub(crate) fn expected(&self, tag_bytes: usize) -> Option<(u64, bool)> {
        let interval_ns = self.interval_ns as u64;
        let is_steady = (1..=LONGEST_EXPECTED_NS).contains(&interval_ns);
        let length = usize::from(self.sources[self.place(self.next.saturating_sub(1))].length);
        let bytes = data_packet_bytes(length) + FEEDBACK_BYTES + tag_bytes;
        is_steady.then(|| {
            let next_ns = self.pushed_ns + interval_ns + interval_ns / 4;
            (next_ns, bytes <= MOST_DATAGRAM_BYTES)
        })
    }

    fn patience_ns(&self) -> u64 {
        let wait_ns = feedback_wait_ns(self.target_ns);
        self.pace.patience_ns().unwrap_or(1_000_000) + wait_ns
    }

    /// Returns the time after which a packet without feedback is forgotten, ns.
    fn memory_ns(&self) -> u64 {
        3 * self.patience_ns().max(10_000_000)
    }

    /// Returns the time at which feedback is overdue, so that a message is sent again to request it; none if the
    /// outcomes of the latest messages are known.
    fn ask_ns(&self) -> Option<u64> {
        let is_open = self.open_source().is_some();
        is_open.then(|| self.data_ns + (self.patience_ns() << self.unanswered.min(6)))
    }

    /// Returns the latest sent message of which the outcome is unknown; none if there is none among the latest
    /// [`LOOKED_BACK`] messages.
    fn open_source(&self) -> Option<u64> {
        let mut latest = (self.base..self.fresh).rev().take(LOOKED_BACK);
        latest.find(|number| !self.sources[self.place(*number)].is_known)
    }

    /// Returns the content to send now; none if nothing is due or may be sent. A caller that sends the content then
    /// calls [`Sender::departed`].
    pub(crate) fn next(&mut self, now_ns: u64) -> Option<Outgoing> {
        self.forget(now_ns);
        let has_nothing = self.lost.is_empty() && !self.repair_due && self.fresh == self.next;
        if has_nothing {
            self.pace.is_idle(self.in_flight);
        }
        if now_ns < self.pace.next_ns() {
            return None;
        }
        if self.ask_ns().is_some_and(|ns| now_ns >= ns)
            && let Some(number) = self.open_source()
            && self.can_still_come(number, now_ns)
        {
            self.sent.asked += 1;
            self.unanswered += 1;
            return Some(Outgoing::Data(number));
        }
        if !self.pace.has_room(self.in_flight, self.payload_bytes) {
            return None;
        }
        while let Some(number) = self.lost.pop_front() {
            let place = self.place(number);
            let is_lost = number >= self.base && self.sources[place].is_lost;
            if is_lost && self.can_still_come(number, now_ns) {
                self.sources[place].is_lost = false;
                self.sent.again += 1;
                return Some(Outgoing::Data(number));
            }
        }
        if self.doubt_ns().is_some_and(|ns| now_ns >= ns)
            && self.can_still_come(self.doubted, now_ns)
        {
            self.sent.asked += 1;
            return Some(Outgoing::Data(self.doubted));
        }
        let overdue = self
            .block_ns
            .is_some_and(|ns| now_ns.saturating_sub(ns) >= self.target_ns / 3);
        if overdue && let Some(encoder) = &mut self.encoder {
            encoder.flush();
            (self.block_ns, self.in_block, self.repair_due) = (None, 0, true);
        }
        if self.repair_due {
            return Some(Outgoing::Repair);
        }
        if self.fresh < self.next {
            return Some(Outgoing::Data(self.fresh));
        }
        None
    }

    /// Returns the time at which [`Sender::next`] next returns something to send if nothing arrives; none if there is
    /// nothing to wait for.
    pub(crate) fn wake_ns(&self) -> Option<u64> {
        let has_work = !self.lost.is_empty() || self.repair_due || self.fresh < self.next;
        let may_send = self.pace.has_room(self.in_flight, self.payload_bytes);
        let paced_ns = self.pace.next_ns();
        let paced = (has_work && may_send).then_some(paced_ns);
        let block_ns = self.block_ns.map(|ns| ns + self.target_ns / 3);
        let timed = block_ns.into_iter().chain(self.doubt_ns()).min();
        let timed = timed.filter(|_| may_send).map(|ns| ns.max(paced_ns));
        let asked = self.ask_ns().map(|ns| ns.max(paced_ns));
        // A packet that waits for the window can only leave after feedback, or when older packets are forgotten.
        let blocked = (has_work && !may_send).then(|| {
            let oldest = &self.records[(self.open_packet % RECORDS as u64) as usize];
            let sent_ns = oldest.departed.map_or(self.data_ns, |it| it.sent_ns);
            sent_ns + self.memory_ns()
        });
        [paced, timed, asked, blocked].into_iter().flatten().min()
    }

    /// Returns the body of the packet to send; none if there is nothing to send after all.
    pub(crate) fn body(&mut self, outgoing: Outgoing, now_ns: u64) -> Option<Body<'_>> {
        match outgoing {
            Outgoing::Data(number) => {
                let source = self.sources[self.place(number)];
                let left_ns = source.deadline_ns.saturating_sub(now_ns);
                Some(Body::Data(Data {
                    source: number,
                    left_ns: u32::try_from(left_ns).unwrap_or(u32::MAX),
                    gap_ns: source.gap_ns,
                    open: u16::try_from(number - self.base).unwrap_or(u16::MAX),
                    payload: self.payload(number),
                }))
            }
            Outgoing::Repair => {
                let is_window = matches!(self.coding, Coding::Window { .. });
                self.repair_due = !is_window;
                // Messages that have arrived, or are too late, would only make a repair harder to decode.
                let open = self.fresh.saturating_sub(self.base);
                if is_window && open == 0 {
                    return None;
                }
                let encoder = self.encoder.as_mut()?;
                encoder.narrow(open as usize);
                let combination = encoder.next_repair();
                self.repair_due &= combination.is_some();
                let combination = combination?;
                self.sent.repairs += 1;
                Some(Body::Repair(Repair {
                    first: combination.first,
                    coefficients: combination.coefficients,
                    sum: combination.sum,
                }))
            }
        }
    }

    /// Records that a packet was sent. `outgoing` describes the contents that the peer acknowledges; none if the packet
    /// has no such contents.
    pub(crate) fn departed(
        &mut self,
        now_ns: u64,
        packet: u64,
        bytes: usize,
        outgoing: Option<Outgoing>,
    ) {
        let slot = (packet % RECORDS as u64) as usize;
        if let Some(forgotten) = self.records[slot].departed.take() {
            self.in_flight -= u64::from(forgotten.bytes);
            let behind = self.records[slot].packet.map_or(0, |it| it + 1);
            self.open_packet = self.open_packet.max(behind);
        }
        let Some(outgoing) = outgoing else {
            self.records[slot].packet = Some(packet);
            return;
        };
        let departed = self.pace.departs(now_ns, bytes, self.in_flight == 0);
        self.in_flight += bytes as u64;
        self.records[slot] = Record {
            packet: Some(packet),
            departed: Some(departed),
        };
        let Outgoing::Data(number) = outgoing else {
            return;
        };
        self.sent.data += 1;
        self.data_ns = now_ns;
        let place = self.place(number);
        self.sources[place].packet = Some(packet);
        self.sources[place].left_ns = now_ns;
        self.sources[place].is_lost = false;
        if number == self.fresh {
            self.fresh += 1;
            self.encode(number, now_ns);
        } else {
            self.sources[place].is_again = true;
        }
        self.settle();
    }

    /// Passes a message to the encoder, which needs all messages in order.
    fn encode(&mut self, number: u64, now_ns: u64) {
        let place = self.place(number);
        let Some(encoder) = &mut self.encoder else {
            return;
        };
        let source = &self.sources[place];
        let length = usize::from(source.length);
        self.symbol[..2].copy_from_slice(&source.length.to_be_bytes());
        self.symbol[2..10].copy_from_slice(&source.deadline_ns.to_be_bytes());
        self.symbol[10..SYMBOL_BYTES].copy_from_slice(&source.gap_ns.to_be_bytes());
        self.symbol[SYMBOL_BYTES..][..length]
            .copy_from_slice(&self.bytes[place * self.payload_bytes..][..length]);
        encoder.push(&self.symbol[..SYMBOL_BYTES + length]);
        match self.coding {
            Coding::Off => {}
            Coding::Block { symbols, .. } => {
                self.in_block += 1;
                self.block_ns.get_or_insert(now_ns);
                self.repair_due = self.in_block == symbols;
                if self.repair_due {
                    (self.in_block, self.block_ns) = (0, None);
                }
            }
            Coding::Window { redundancy, .. } => {
                let for_loss = if self.loss > NO_LOSS {
                    2.0 * self.loss
                } else {
                    0.0
                };
                self.credit += redundancy.unwrap_or(for_loss).min(1.0);
                self.repair_due = self.credit >= 1.0;
                self.credit -= f64::from(u8::from(self.repair_due));
            }
        }
    }

    /// Processes the peer's feedback. Returns false if the feedback is impossible; then it is ignored. Otherwise adds
    /// to `told` the number of messages that arrived in time, and the number of missed ones, since the last feedback.
    pub(crate) fn feedback(
        &mut self,
        now_ns: u64,
        feedback: &Feedback,
        next_packet: u64,
        told: &mut [u64; 2],
    ) -> bool {
        if feedback.largest >= next_packet || feedback.settled > self.fresh {
            return false;
        }
        let last = self.last_feedback.unwrap_or_default();
        let grown = |now: u32, before: u32| {
            let by = now.wrapping_sub(before);
            (by <= u32::MAX / 2).then_some(by)
        };
        let (Some(packets), Some(in_time), Some(missed)) = (
            grown(feedback.packets, last.packets),
            grown(feedback.in_time, last.in_time),
            grown(feedback.missed, last.missed),
        ) else {
            // A later feedback, which has more information, has already arrived.
            return true;
        };
        if feedback.largest < last.largest {
            return true;
        }
        *told = [u64::from(in_time), u64::from(missed)];
        (self.unanswered, self.heard_ns) = (0, now_ns);
        let first = self.last_feedback.is_none();
        self.last_feedback = Some(*feedback);
        self.note(now_ns, feedback, last.settled);
        let sent = (feedback.largest + 1).saturating_sub(if first { 0 } else { last.largest + 1 });
        if sent > 0 {
            let lost = 1.0 - (f64::from(packets) / sent as f64).min(1.0);
            let weight = (sent as f64 / 256.0).min(0.5);
            self.loss += weight * (lost - self.loss);
        }
        self.acknowledge(now_ns, feedback.largest, packets, sent);
        true
    }

    /// Marks which messages have arrived and which are lost. The outcomes of all messages below `noted` are already
    /// known.
    fn note(&mut self, now_ns: u64, feedback: &Feedback, noted: u64) {
        self.answered_ns -= self.answered_ns / 16;
        for number in self.base.max(noted)..feedback.settled {
            self.arrived(now_ns, number);
        }
        let mut come = feedback.come;
        while come != 0 {
            let number = feedback.settled + u64::from(come.trailing_zeros());
            come &= come - 1;
            if (self.base..self.fresh).contains(&number) {
                self.arrived(now_ns, number);
            }
        }
        // A packet that left much earlier than one that has arrived is lost as well (RFC 9002, section 6.1.2): if
        // messages are rare, it takes long until three later packets arrive.
        let patience_ns = self.pace.patience_ns();
        let before_ns = self.left_ns(feedback.largest).zip(patience_ns);
        let before_ns = before_ns.map_or(0, |(left, patience)| left.saturating_sub(patience));
        for number in self.base.max(feedback.settled)..self.fresh {
            let place = self.place(number);
            let source = &mut self.sources[place];
            let overtaken = source
                .packet
                .is_some_and(|it| it + REORDERED <= feedback.largest || source.left_ns < before_ns);
            if overtaken && !source.is_known && !source.is_lost {
                source.is_lost = true;
                self.lost.push_back(number);
            }
            // Packets left in order, so all following messages left later and do not count as lost either.
            if !overtaken && !source.is_again {
                break;
            }
        }
        self.settle();
    }

    /// Records that a message has arrived.
    fn arrived(&mut self, now_ns: u64, number: u64) {
        let place = self.place(number);
        let source = &mut self.sources[place];
        // For a retransmitted message it is unknown whether the first or the second copy has arrived.
        if !source.is_known && !source.is_again {
            let passed_ns = now_ns.saturating_sub(source.left_ns);
            self.answered_ns = self.answered_ns.max(passed_ns.min(self.target_ns));
        }
        source.is_known = true;
    }

    /// Returns the send time of a packet that needs an acknowledgement, if the packet is remembered.
    fn left_ns(&self, packet: u64) -> Option<u64> {
        let record = &self.records[(packet % RECORDS as u64) as usize];
        let departed = record.departed.filter(|_| record.packet == Some(packet))?;
        Some(departed.sent_ns)
    }

    fn acknowledge(&mut self, now_ns: u64, largest: u64, packets: u32, sent: u64) {
        let (mut bytes, mut newest) = (0_u64, None);
        let from = self
            .open_packet
            .max(largest.saturating_sub(RECORDS as u64 - 1));
        for packet in from..=largest {
            let record = &mut self.records[(packet % RECORDS as u64) as usize];
            if record.packet == Some(packet)
                && let Some(departed) = record.departed.take()
            {
                bytes += u64::from(departed.bytes);
                newest = Some(departed);
            }
        }
        self.open_packet = self.open_packet.max(largest + 1);
        self.in_flight -= bytes.min(self.in_flight);
        if let Some(newest) = newest {
            let share = (f64::from(packets) / sent.max(1) as f64).min(1.0);
            let come = bytes as f64 * share;
            self.pace.acknowledged(now_ns, &newest, come);
        }
    }

    /// Returns the number of messages of unknown outcome that may still arrive in time.
    pub(crate) fn waiting(&self) -> u64 {
        self.next - self.base
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sender(coding: Coding) -> Sender {
        let settings = Settings {
            coding,
            kept: 16,
            payload_bytes: 100,
            ..Settings::default()
        };
        Sender::new(&settings, 1).unwrap()
    }

    /// Sends everything that may leave at `now_ns`, in packets with numbers from `packet` on; returns the packets'
    /// contents.
    fn leave(sender: &mut Sender, now_ns: u64, packet: &mut u64) -> Vec<Outgoing> {
        let mut left = Vec::new();
        while let Some(outgoing) = sender.next(now_ns) {
            if sender.body(outgoing, now_ns).is_none() {
                continue;
            }
            sender.departed(now_ns, *packet, 150, Some(outgoing));
            *packet += 1;
            left.push(outgoing);
        }
        left
    }

    fn feedback(largest: u64, packets: u32, settled: u64, come: u64) -> Feedback {
        Feedback {
            largest,
            packets,
            settled,
            come,
            in_time: settled as u32,
            missed: 0,
        }
    }

    #[test]
    fn a_lost_message_is_retransmitted_only_before_its_deadline() {
        let mut sender = sender(Coding::Off);
        let mut packet = 0;
        for number in 0..6 {
            let now = number * 200_000;
            assert_eq!(sender.push(now, &[1; 20]), Some(number));
            assert_eq!(
                leave(&mut sender, now, &mut packet),
                [Outgoing::Data(number)]
            );
        }
        // Message 1 has not arrived; message 5 has.
        let mut told = [0; 2];
        let said = feedback(5, 5, 1, 0b1_1110);
        assert!(sender.feedback(1_300_000, &said, packet, &mut told));
        assert_eq!(told, [1, 0]);
        assert_eq!(
            leave(&mut sender, 1_400_000, &mut packet),
            [Outgoing::Data(1)]
        );
        assert_eq!(sender.sent.again, 1);
        // The deadline of message 1 has passed, so it is not sent a third time.
        let said = feedback(6, 5, 1, 0b1_1110);
        assert!(sender.feedback(10_300_000, &said, packet, &mut told));
        assert_eq!(leave(&mut sender, 10_300_000, &mut packet), []);
    }

    #[test]
    fn feedback_for_a_much_later_message_signals_a_loss() {
        for (gap_ns, again) in [(2_000_000, &[Outgoing::Data(0)][..]), (20_000, &[])] {
            let mut sender = sender(Coding::Off);
            let mut packet = 0;
            sender.pace.round_trip(0, 100_000);
            for now_ns in [1_000_000, 1_000_000 + gap_ns] {
                sender.push(now_ns, &[1; 20]);
                assert_eq!(leave(&mut sender, now_ns, &mut packet).len(), 1);
            }
            // The first message has not arrived, the second has.
            let (now_ns, mut told) = (1_100_000 + gap_ns, [0; 2]);
            assert!(sender.feedback(now_ns, &feedback(1, 1, 0, 0b10), packet, &mut told));
            assert_eq!(leave(&mut sender, now_ns, &mut packet), again, "{gap_ns}");
        }
    }

    #[test]
    fn feedback_requests_to_an_idle_peer_become_rarer() {
        let mut sender = sender(Coding::Off);
        let mut packet = 0;
        sender.pace.round_trip(0, 1_000_000);
        sender.push(0, &[1; 20]);
        leave(&mut sender, 0, &mut packet);
        let mut asked = Vec::new();
        while let Some(wake_ns) = sender.wake_ns().filter(|ns| *ns < 10_000_000) {
            if !leave(&mut sender, wake_ns, &mut packet).is_empty() {
                asked.push(wake_ns);
            } else if sender.ask_ns().is_none() {
                break;
            }
            if asked.len() > 5 {
                break;
            }
        }
        assert!((1..=2).contains(&asked.len()), "{asked:?}");
    }

    #[test]
    fn late_messages_are_not_sent_and_the_buffer_is_limited() {
        let mut sender = sender(Coding::Off);
        let mut packet = 0;
        for _ in 0..16 {
            assert!(sender.push(0, &[1; 20]).is_some());
        }
        assert_eq!(sender.push(0, &[1; 20]), None);
        assert_eq!(sender.sent.refused, 1);
        assert_eq!(leave(&mut sender, 20_000_000, &mut packet), []);
        assert_eq!(sender.sent.not_sent, 16);
        assert_eq!(sender.push(20_000_000, &[1; 20]), Some(16));
    }

    #[test]
    fn feedback_for_messages_never_sent_is_refused() {
        let mut sender = sender(Coding::Off);
        let mut packet = 0;
        sender.push(0, &[1; 20]);
        leave(&mut sender, 0, &mut packet);
        let mut told = [0; 2];
        for wrong in [
            feedback(1, 1, 1, 0),
            feedback(u64::MAX, 1, 1, 0),
            feedback(0, 1, 2, 0),
        ] {
            assert!(!sender.feedback(1, &wrong, packet, &mut told), "{wrong:?}");
        }
        assert!(sender.feedback(1, &feedback(0, 1, 1, 0), packet, &mut told));
        assert_eq!(sender.in_flight, 0);
    }

    #[test]
    fn repair_packets_follow_blocks_and_windows_at_the_configured_redundancy() {
        let mut packet = 0;
        let block = Coding::Block {
            symbols: 4,
            redundancy: 0.5,
        };
        let mut of_block = sender(block);
        for number in 0..4_u64 {
            of_block.push(number, &[1; 20]);
        }
        let left = leave(&mut of_block, 4, &mut packet);
        assert_eq!(left.len(), 6, "{left:?}");
        assert_eq!(left[4..], [Outgoing::Repair; 2]);
        // A timer closes an open block.
        of_block.push(10, &[1; 20]);
        assert_eq!(leave(&mut of_block, 10, &mut packet), [Outgoing::Data(4)]);
        let later = leave(&mut of_block, 3_400_000, &mut packet);
        assert!(later.contains(&Outgoing::Repair), "{later:?}");
        let window = Coding::Window {
            symbols: 4,
            redundancy: Some(0.5),
        };
        let mut of_window = sender(window);
        let mut packet = 0;
        for number in 0..8_u64 {
            of_window.push(number, &[1; 20]);
        }
        let left = leave(&mut of_window, 8, &mut packet);
        let repairs = left.iter().filter(|it| **it == Outgoing::Repair).count();
        assert_eq!((left.len(), repairs), (12, 4), "{left:?}");
    }
}
