//! The order of decoded packets: packets wait here until earlier ones have arrived.

use super::outcome::Counts;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use taut_port::{Batch, Packet};

/// The relation of a packet's number to the number that is due next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    Later,
    /// The packet is too late: later packets have left, or it is a duplicate.
    Past,
}

/// The buffer that releases packets in order of their numbers. The highest waiting number is less than `span` above the
/// lowest.
pub(super) struct InOrder {
    /// The waiting packets, each at the index of its number modulo the span.
    slots: Vec<Option<Packet>>,
    held: usize,
    /// The number that is due next; none before the first packet.
    next: Option<u64>,
    /// The released packets, in order, until a batch has space.
    ready: VecDeque<Packet>,
    /// The timeout for a missing packet; `since` is the time since which a packet is missing, none if no packet is.
    patience: Duration,
    since: Option<Instant>,
}

impl InOrder {
    pub(super) fn new(span: usize, patience: Duration) -> Self {
        Self {
            slots: (0..span).map(|_| None).collect(),
            held: 0,
            next: None,
            // The capacity covers all waiting packets, and as many released packets that did not fit into a batch.
            ready: VecDeque::with_capacity(2 * span),
            patience,
            since: None,
        }
    }

    /// Restarts for another stream, and releases the waiting packets.
    pub(super) fn begin_again(&mut self) {
        while let Some(lowest) = self.lowest() {
            self.advance_to(lowest);
        }
        self.next = None;
        self.since = None;
    }

    pub(super) fn turn(&self, number: u64) -> Turn {
        match self.next {
            Some(next) if number < next => Turn::Past,
            Some(next) if number == next && self.ready.is_empty() => Turn::Now,
            _ if self.slots[self.place(number)].is_some() => Turn::Past,
            _ => Turn::Later,
        }
    }

    /// Records that the packet with the number `number` leaves.
    pub(super) fn went(&mut self, number: u64) {
        self.next = Some(number + 1);
        self.let_go();
    }

    /// Stores a packet that arrived before a packet with a lower number.
    pub(super) fn keep(&mut self, number: u64, packet: Packet) {
        self.next.get_or_insert(number);
        // The slot of this number may still contain an earlier packet, which then cannot wait any longer.
        self.advance_to((number + 1).saturating_sub(self.slots.len() as u64));
        let place = self.place(number);
        if self.slots[place].replace(packet).is_none() {
            self.held += 1;
        }
        self.let_go();
    }

    /// Skips all numbers below `number`. Before the first packet, this sets the first number.
    pub(super) fn advance_to(&mut self, number: u64) {
        let mut next = *self.next.get_or_insert(number);
        while next < number && self.held > 0 {
            if let Some(packet) = self.take(next) {
                self.ready.push_back(packet);
            }
            next += 1;
            self.since = None;
        }
        self.next = Some(next.max(number));
        self.let_go();
    }

    /// Skips missing packets after their timeout, and adds the due packets to the batch; called after each batch.
    pub(super) fn release(&mut self, batch: &mut Batch, counts: &mut Counts) {
        if self.held == 0 {
            self.since = None;
        } else if self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
            && let (Some(next), Some(lowest)) = (self.next, self.lowest())
        {
            counts.overdue += lowest - next;
            self.advance_to(lowest);
        }
        let fits = batch.room().min(self.ready.len());
        for packet in self.ready.drain(..fits) {
            batch.push(packet);
        }
    }

    /// Returns the lowest number of the waiting packets; none if no packet waits.
    fn lowest(&self) -> Option<u64> {
        let next = self.next.filter(|_| self.held > 0)?;
        (next..next + self.slots.len() as u64)
            .find(|number| self.slots[self.place(*number)].is_some())
    }

    /// Releases packets up to the next missing one.
    fn let_go(&mut self) {
        while let Some(next) = self.next
            && let Some(packet) = self.take(next)
        {
            self.ready.push_back(packet);
            self.next = Some(next + 1);
            self.since = None;
        }
    }

    fn take(&mut self, number: u64) -> Option<Packet> {
        let place = self.place(number);
        let packet = self.slots[place].take()?;
        self.held -= 1;
        Some(packet)
    }

    fn place(&self, number: u64) -> usize {
        (number % self.slots.len() as u64) as usize
    }
}
