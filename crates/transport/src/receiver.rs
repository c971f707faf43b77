//! The receiver of an endpoint delivers messages that have arrived in time to the application, in order, and discards
//! all others.

use crate::offset::Offset;
use crate::settings::Settings;
use crate::slot_bitmap::Present;
use crate::wire::{Data, Feedback, Hello, Repair, SYMBOL_BYTES};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use taut_code::{Combination, Decoder};

/// Minimum time before its own deadline at which an arrived message stops waiting for missing earlier messages, ns.
const GUARD_NS: u64 = 50_000;

/// Outcomes of messages, counted at their receiver. Each message that the receiver knows of is finally counted either
/// in `in_time` or in `missed`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Received {
    /// Messages that were delivered in time.
    pub in_time: u64,
    /// Messages that were not delivered, because they were late or lost.
    pub missed: u64,
    /// Missed messages that arrived too late; also counted in `missed`.
    pub late: u64,
    /// Messages that were recovered from repairs.
    pub repaired: u64,
    /// Duplicates: packets with a message that had already arrived and is still buffered.
    pub copies: u64,
    /// Packets with a message that had already been discarded or delivered.
    pub behind: u64,
}

impl Received {
    pub(crate) fn add(&mut self, other: &Self) {
        self.in_time += other.in_time;
        self.missed += other.missed;
        self.late += other.late;
        self.repaired += other.repaired;
        self.copies += other.copies;
        self.behind += other.behind;
    }
}

/// A delivered message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery<'a> {
    /// Number of the message.
    pub number: u64,
    /// Lower bound of the time until the message's deadline, ns.
    pub left_ns: u64,
    /// Payload of the message.
    pub payload: &'a [u8],
}

#[derive(Debug, Clone, Copy, Default)]
struct Slot {
    /// Number of the message in the slot, if one has arrived.
    number: Option<u64>,
    /// Deadline of the message by the sender's clock (`deadline_ns`), and the latest local time at which the deadline
    /// can be (`latest_ns`), ns.
    deadline_ns: u64,
    latest_ns: u64,
    gap_ns: u32,
    length: u16,
}

#[derive(Debug)]
pub(crate) struct Receiver {
    window_ns: u64,
    payload_bytes: usize,
    /// Limit on buffered messages. The number of slots is a power of 2, so that a message's number gives its slot.
    kept: u64,
    slots: Vec<Slot>,
    /// Slots of messages that have arrived and are not delivered.
    present: Present,
    bytes: Vec<u8>,
    /// Number of the next message to deliver (`next`), and the highest known message number plus one (`end`).
    next: u64,
    end: u64,
    /// The sender sends no messages below this number any more.
    floor: u64,
    decoder: Option<Decoder>,
    symbol: Vec<u8>,
    recovered: Vec<(u64, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    pub received: Received,
}

impl Receiver {
    /// Makes a receiver for a peer with the given hello.
    pub(crate) fn new(settings: &Settings, other: &Hello) -> Self {
        let payload_bytes = usize::from(other.payload_bytes);
        let size = payload_bytes + SYMBOL_BYTES;
        let symbols = usize::from(other.symbols);
        // The span covers reordered packets, and a block that is repaired while the next one arrives.
        let span = (4 * symbols).max(16);
        let slots = settings.kept.next_power_of_two();
        Self {
            window_ns: settings.window_ns,
            payload_bytes,
            kept: settings.kept as u64,
            slots: vec![Slot::default(); slots],
            present: Present::new(slots),
            bytes: vec![0; slots * payload_bytes],
            next: 0,
            end: 0,
            floor: 0,
            decoder: (symbols > 0).then(|| Decoder::new(size, span)),
            symbol: vec![0; size],
            recovered: Vec::with_capacity(span),
            spare: (0..span).map(|_| Vec::with_capacity(size)).collect(),
            received: Received::default(),
        }
    }

    fn place(&self, number: u64) -> usize {
        number as usize & (self.slots.len() - 1)
    }

    fn has(&self, number: u64) -> bool {
        self.slots[self.place(number)].number == Some(number)
    }

    /// Processes a message that was sent at `sent_ns` by the sender's clock and has just arrived. Returns false if a
    /// field is invalid.
    pub(crate) fn data(&mut self, now_ns: u64, sent_ns: u64, data: &Data<'_>) -> bool {
        if data.payload.len() > self.payload_bytes {
            return false;
        }
        self.floor = self.floor.max(data.source - u64::from(data.open));
        let deadline_ns = sent_ns.saturating_add(u64::from(data.left_ns));
        // The message was sent no later than it arrived, so this is the latest local time of its deadline.
        let latest_ns = now_ns.saturating_add(u64::from(data.left_ns));
        self.keep(
            data.source,
            deadline_ns,
            latest_ns,
            data.gap_ns,
            data.payload,
        );
        let Some(decoder) = &mut self.decoder else {
            return true;
        };
        let length = data.payload.len();
        self.symbol[..2].copy_from_slice(&(length as u16).to_be_bytes());
        self.symbol[2..10].copy_from_slice(&deadline_ns.to_be_bytes());
        self.symbol[10..SYMBOL_BYTES].copy_from_slice(&data.gap_ns.to_be_bytes());
        self.symbol[SYMBOL_BYTES..][..length].copy_from_slice(data.payload);
        let (recovered, spare) = (&mut self.recovered, &mut self.spare);
        let symbol = &self.symbol[..SYMBOL_BYTES + length];
        let mut told = |number: u64, bytes: &[u8]| keep_symbol(recovered, spare, number, bytes);
        if decoder.source(data.source, symbol, &mut told) == Err(taut_code::Refused::TooFarAhead) {
            // The number is too far ahead for the decoder. The packet has passed the checks of the connection, so the
            // number is right, and the decoder restarts at this message.
            decoder.begin_again();
            let _ = decoder.source(data.source, symbol, &mut told);
        }
        self.keep_recovered();
        true
    }

    /// Processes a repair. Returns false if a field is invalid.
    pub(crate) fn repair(&mut self, repair: &Repair<'_>) -> bool {
        let Some(decoder) = &mut self.decoder else {
            return false;
        };
        let combination = Combination {
            first: repair.first,
            coefficients: repair.coefficients,
            sum: repair.sum,
        };
        if repair.sum.len() > self.symbol.len() {
            return false;
        }
        let (recovered, spare) = (&mut self.recovered, &mut self.spare);
        // A repair that is too late, or far ahead of all messages, is useless.
        let _ = decoder.combination(&combination, |number, bytes| {
            keep_symbol(recovered, spare, number, bytes);
        });
        self.keep_recovered();
        true
    }

    fn keep_recovered(&mut self) {
        while let Some((number, mut symbol)) = self.recovered.pop() {
            // Trailing zeros are not transmitted.
            symbol.resize(self.payload_bytes + SYMBOL_BYTES, 0);
            let length = usize::from(u16::from_be_bytes([symbol[0], symbol[1]]));
            let mut deadline = [0; 8];
            deadline.copy_from_slice(&symbol[2..10]);
            let mut gap = [0; 4];
            gap.copy_from_slice(&symbol[10..SYMBOL_BYTES]);
            if length <= self.payload_bytes {
                let payload = &symbol[SYMBOL_BYTES..][..length];
                let is_new = self.keep(
                    number,
                    u64::from_be_bytes(deadline),
                    u64::MAX,
                    u32::from_be_bytes(gap),
                    payload,
                );
                self.received.repaired += u64::from(is_new);
            }
            symbol.clear();
            self.spare.push(symbol);
        }
    }

    /// Buffers a message until it is delivered. Returns true if it is new.
    fn keep(
        &mut self,
        number: u64,
        deadline_ns: u64,
        latest_ns: u64,
        gap_ns: u32,
        payload: &[u8],
    ) -> bool {
        if number < self.next {
            self.received.behind += 1;
            return false;
        }
        if number - self.next >= self.kept {
            // The buffer is full, so the oldest missing messages are given up.
            self.pass_over(number + 1 - self.kept);
        }
        if self.has(number) {
            self.received.copies += 1;
            return false;
        }
        self.end = self.end.max(number + 1);
        let place = self.place(number);
        self.present.set(place);
        self.slots[place] = Slot {
            number: Some(number),
            deadline_ns,
            latest_ns,
            gap_ns,
            length: payload.len() as u16,
        };
        self.bytes[place * self.payload_bytes..][..payload.len()].copy_from_slice(payload);
        true
    }

    /// Discards all messages with numbers below `until`. The cost depends on how many of these messages have arrived,
    /// and not on how many are missing.
    fn pass_over(&mut self, until: u64) {
        while let Some(number) = self.earliest()
            && number < until
        {
            self.received.late += 1;
            self.present.clear(self.place(number));
            self.received.missed += number + 1 - self.next;
            self.next = number + 1;
        }
        self.received.missed += until - self.next;
        self.next = until;
    }

    /// Returns the number of the first message that has arrived and is not delivered, or none. Such numbers exceed
    /// `next` by less than the number of slots, so that a slot determines its number.
    fn earliest(&self) -> Option<u64> {
        let next = self.place(self.next);
        let place = self.present.first_from(next)?;
        Some(self.next + (place.wrapping_sub(next) & (self.slots.len() - 1)) as u64)
    }

    /// Returns the number of the first message that has arrived and is not delivered, its deadline by our clock, and
    /// the time at which it may be delivered, ns. None if there is no such message, or its deadline is unknown.
    fn first(&self, offset: &Offset, now_ns: u64) -> Option<(u64, u64, u64)> {
        let number = self.earliest()?;
        let slot = &self.slots[self.place(number)];
        let deadline_ns = offset
            .earliest(slot.deadline_ns, now_ns)?
            .min(slot.latest_ns);
        let mut due_ns = deadline_ns.saturating_sub(self.window_ns);
        if number > self.next && self.floor < number {
            // The missing earlier messages may still arrive until the deadline of the message before this one, as
            // deadlines increase.
            let before = u64::from(slot.gap_ns).max(GUARD_NS);
            due_ns = due_ns.max(deadline_ns.saturating_sub(before));
        }
        Some((number, deadline_ns, due_ns))
    }

    /// Returns the next message that is due for delivery; none if no message is due. Messages past their deadline are
    /// counted as missed, and skipped.
    pub(crate) fn deliver(&mut self, offset: &Offset, now_ns: u64) -> Option<Delivery<'_>> {
        loop {
            let (number, deadline_ns, due_ns) = self.first(offset, now_ns)?;
            let is_late = deadline_ns <= now_ns;
            if !is_late && due_ns > now_ns {
                return None;
            }
            self.received.missed += number - self.next;
            self.next = number + 1;
            self.present.clear(self.place(number));
            if is_late {
                self.received.missed += 1;
                self.received.late += 1;
                continue;
            }
            self.received.in_time += 1;
            let place = self.place(number);
            let length = usize::from(self.slots[place].length);
            return Some(Delivery {
                number,
                left_ns: deadline_ns - now_ns,
                payload: &self.bytes[place * self.payload_bytes..][..length],
            });
        }
    }

    /// Returns the time at which [`Receiver::deliver`] next returns a message if nothing arrives; none if no message is
    /// buffered.
    pub(crate) fn wake_ns(&self, offset: &Offset, now_ns: u64) -> Option<u64> {
        self.first(offset, now_ns).map(|(_, _, due_ns)| due_ns)
    }

    /// Returns the feedback for the sender.
    pub(crate) fn feedback(&self, largest: u64, packets: u32) -> Feedback {
        let ahead = self.end.saturating_sub(self.next).min(64);
        let come = (0..ahead)
            .filter(|at| self.has(self.next + at))
            .fold(0, |come, at| come | 1 << at);
        Feedback {
            largest,
            packets,
            settled: self.next,
            come,
            in_time: self.received.in_time as u32,
            missed: self.received.missed as u32,
        }
    }
}

fn keep_symbol(
    recovered: &mut Vec<(u64, Vec<u8>)>,
    spare: &mut Vec<Vec<u8>>,
    number: u64,
    bytes: &[u8],
) {
    let mut symbol = spare.pop().unwrap_or_default();
    symbol.extend_from_slice(bytes);
    recovered.push((number, symbol));
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Clocks;

    const MS: u64 = 1_000_000;

    fn receiver(window_ns: u64) -> (Receiver, Offset) {
        let settings = Settings {
            window_ns,
            kept: 16,
            ..Settings::default()
        };
        let other = Hello {
            random: [0; 16],
            payload_bytes: 100,
            symbols: 0,
            target_ns: 10 * MS,
        };
        let offset = Offset::new(Clocks::Shared(0), 0);
        (Receiver::new(&settings, &other), offset)
    }

    /// Returns message `number` of a stream with a message every ms and a target delay of 10 ms; `open` messages before
    /// it may still arrive.
    fn data(number: u64, sent_ns: u64, open: u16) -> Data<'static> {
        Data {
            source: number,
            left_ns: (number * MS + 10 * MS - sent_ns) as u32,
            gap_ns: MS as u32,
            open,
            payload: b"message",
        }
    }

    fn numbers(receiver: &mut Receiver, offset: &Offset, now_ns: u64) -> Vec<u64> {
        std::iter::from_fn(|| receiver.deliver(offset, now_ns).map(|it| it.number)).collect()
    }

    #[test]
    fn a_message_waits_for_missing_predecessors_until_their_deadline() {
        let (mut receiver, offset) = receiver(10 * MS);
        receiver.data(MS, 0, &data(0, 0, 0));
        assert_eq!(numbers(&mut receiver, &offset, MS), [0]);
        receiver.data(3 * MS, 2 * MS, &data(2, 2 * MS, 2));
        assert!(numbers(&mut receiver, &offset, 3 * MS).is_empty());
        // Message 1 may arrive until 11 ms.
        assert_eq!(receiver.wake_ns(&offset, 3 * MS), Some(11 * MS));
        assert_eq!(numbers(&mut receiver, &offset, 11 * MS), [2]);
        assert_eq!(receiver.received.missed, 1);
        // Message 1 arrives late, and is not delivered after its successor.
        receiver.data(11 * MS, MS, &data(1, MS, 0));
        assert!(numbers(&mut receiver, &offset, 11 * MS).is_empty());
        assert_eq!(receiver.received.behind, 1);
    }

    #[test]
    fn the_receiver_does_not_wait_for_messages_the_sender_discarded() {
        let (mut receiver, offset) = receiver(10 * MS);
        receiver.data(3 * MS, 2 * MS, &data(2, 2 * MS, 0));
        assert_eq!(numbers(&mut receiver, &offset, 3 * MS), [2]);
        assert_eq!(receiver.received.missed, 2);
    }

    #[test]
    fn a_short_window_delays_delivery_until_just_before_the_deadline() {
        let (mut receiver, offset) = receiver(MS);
        receiver.data(MS, 0, &data(0, 0, 0));
        assert!(numbers(&mut receiver, &offset, 9 * MS - 1).is_empty());
        assert_eq!(receiver.wake_ns(&offset, MS), Some(9 * MS));
        assert_eq!(receiver.deliver(&offset, 9 * MS).unwrap().left_ns, MS);
        receiver.data(2 * MS, MS, &data(1, MS, 0));
        assert!(numbers(&mut receiver, &offset, 11 * MS).is_empty());
        assert_eq!((receiver.received.missed, receiver.received.late), (1, 1));
    }

    #[test]
    fn messages_skipped_by_a_sequence_jump_count_as_lost_immediately() {
        let (mut receiver, offset) = receiver(10 * MS);
        receiver.data(0, 0, &data(0, 0, 0));
        let far = Data {
            source: u64::MAX - 1,
            left_ns: MS as u32,
            ..data(1, 0, 0)
        };
        assert!(receiver.data(0, 0, &far));
        assert_eq!(numbers(&mut receiver, &offset, 0), [u64::MAX - 1]);
        assert_eq!(receiver.received.missed, u64::MAX - 2 + 1);
        let too_long = Data {
            payload: &[0; 101],
            ..data(0, 0, 0)
        };
        assert!(!receiver.data(0, 0, &too_long));
        assert!(!receiver.repair(&Repair {
            first: 0,
            coefficients: &[1],
            sum: &[1]
        }));
    }

    #[test]
    fn messages_beyond_a_long_gap_are_delivered_and_losses_counted() {
        let (mut receiver, offset) = receiver(10 * MS);
        let far = |number| Data {
            source: number,
            open: number.min(16) as _,
            ..data(0, 0, 0)
        };
        // Each message is 15 numbers after the previous one, so the full buffer gives up the oldest missing messages.
        // Afterwards the messages after `first` arrive one by one.
        for round in 1..1_000 {
            let number = round * 15;
            assert!(receiver.data(0, 0, &far(number)));
            assert_eq!(
                receiver.earliest(),
                Some(if round == 1 { 15 } else { number - 15 })
            );
        }
        let known = receiver.received;
        assert_eq!((known.in_time, known.late), (0, 997));
        let first = receiver.next;
        assert_eq!(first + 16, receiver.end);
        assert_eq!(numbers(&mut receiver, &offset, 8 * MS), [first]);
        for number in first + 1..first + 14 {
            assert!(receiver.data(0, 0, &far(number)));
            assert_eq!(numbers(&mut receiver, &offset, 8 * MS), [number]);
        }
        assert_eq!(receiver.received.missed, first);
    }

    #[test]
    fn feedback_lists_received_and_missed_messages() {
        let (mut receiver, offset) = receiver(10 * MS);
        for number in [0, 2, 3] {
            receiver.data(
                3 * MS,
                3 * MS,
                &Data {
                    left_ns: 9,
                    ..data(number, 0, 0)
                },
            );
        }
        numbers(&mut receiver, &offset, 3 * MS);
        let said = receiver.feedback(9, 3);
        assert_eq!((said.settled, said.come & 15), (4, 0));
        assert_eq!((said.in_time, said.missed), (3, 1));
    }
}
