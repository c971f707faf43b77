//! Packets that wait for those before them.

use super::outcome::Counts;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use taut_port::{Batch, Packet};

/// Turn of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    Later,
    /// Others went on without the packet, or it was there already.
    Past,
}

/// Lets packets out by their numbers. Of those that wait, the highest number is less than `span` above the lowest.
pub(super) struct InOrder {
    /// Packets that wait, by number modulo span.
    slots: Vec<Option<Packet>>,
    held: usize,
    /// Number whose turn it is; none before the first packet.
    next: Option<u64>,
    /// Packets whose turn has come, in order, until a batch has room.
    ready: VecDeque<Packet>,
    /// Time for which a missing packet is waited for, and since when.
    patience: Duration,
    since: Option<Instant>,
}

impl InOrder {
    pub(super) fn new(span: usize, patience: Duration) -> Self {
        Self {
            slots: (0..span).map(|_| None).collect(),
            held: 0,
            next: None,
            // What waits, and a batch of it that found no room.
            ready: VecDeque::with_capacity(2 * span),
            patience,
            since: None,
        }
    }

    /// Begins again with another stream: what waits is let go.
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

    /// Whoever's turn it was is on its way.
    pub(super) fn went(&mut self, number: u64) {
        self.next = Some(number + 1);
        self.let_go();
    }

    /// Keeps a packet whose turn is to come.
    pub(super) fn keep(&mut self, number: u64, packet: Packet) {
        self.next.get_or_insert(number);
        // Its place may be taken by one that can't wait any longer.
        self.advance_to((number + 1).saturating_sub(self.slots.len() as u64));
        let place = self.place(number);
        if self.slots[place].replace(packet).is_none() {
            self.held += 1;
        }
        self.let_go();
    }

    /// Numbers below cannot come any more; without a packet so far, the first one is this.
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

    /// Gives up what was waited for too long, and fills the batch up with those whose turn it is; called after each
    /// batch.
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

    /// The lowest number that waits.
    fn lowest(&self) -> Option<u64> {
        let next = self.next.filter(|_| self.held > 0)?;
        (next..next + self.slots.len() as u64)
            .find(|number| self.slots[self.place(*number)].is_some())
    }

    /// Moves on as far as nothing is missing.
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
