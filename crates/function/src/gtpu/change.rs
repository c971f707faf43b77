//! How changes of the bearer table get from the one thread that decides on them to the worker: through a ring
//! of one writer and one reader, a few between any two batches. Neither waits for the other.

use super::Path;
use super::fate::Published;
use super::in_kernel::Kernel;
use super::policing::{Meters, SharedMeters};
use super::table::Slot;
use rtrb::{Consumer, Producer, RingBuffer};
use std::collections::VecDeque;
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_port::{Alarm, Bell, PortError};

/// Changes that may be on their way.
const RING: usize = 4096;
/// Changes that the worker makes per batch at most: what it costs is less than a packet's wait for its batch.
pub(super) const MOST_PER_BATCH: usize = 8;
/// How long the worker may take none before it is given up.
const PATIENCE: Duration = Duration::from_secs(2);
/// Looks at the worker's progress are this far apart.
const LOOK: Duration = Duration::from_micros(20);

/// One change, in order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Change {
    /// Puts an entry in, or in the place of one of its key.
    Set(Slot),
    /// Takes the entry of this key out.
    Remove(u64),
    /// Gives a path its number, before any entry uses it.
    Path(u16, Path),
    /// Begins a meter anew: of this number, at which a byte costs so much. Workers are not told: they share it.
    Meter { number: u32, cost: u64 },
    /// Gives the bearer of this key its meters, or takes them away.
    Police { key: u64, meters: Meters },
    /// Ends the stream of packets of a tunnel.
    EndMarker { path: u16, teid: u32 },
}

/// A copy of the table beside the worker's, which has every change at once: that of the programs in the kernel.
pub(super) trait Mirror: Debug + Send {
    /// Makes a change there.
    fn make(&self, change: &Change) -> io::Result<()>;
}

/// The end of whoever decides.
#[derive(Debug)]
pub(super) struct Sender {
    mirror: Option<Box<dyn Mirror>>,
    ring: Producer<Change>,
    /// What the ring had no room for in time: goes in before anything else.
    unsent: VecDeque<Change>,
    /// How long the worker may take none before it is given up.
    pub patience: Duration,
    /// Rung when there is something in the ring.
    bell: Arc<Bell>,
    sent: u64,
    made: Arc<AtomicU64>,
    pub fates: Arc<Published>,
}

/// The ways to all workers, each of which has a copy of the table.
#[derive(Debug)]
pub(super) struct Senders {
    /// To the one that does what is to be done once: it sends end markers.
    pub first: Sender,
    others: Vec<Sender>,
    pub meters: SharedMeters,
    /// Of workers that have ended, too.
    fates: Vec<Arc<Published>>,
}

impl Senders {
    pub fn new(first: Sender, meters: SharedMeters) -> Self {
        Self {
            fates: vec![Arc::clone(&first.fates)],
            first,
            others: Vec::new(),
            meters,
        }
    }

    /// Has another worker hear of changes from now on.
    pub fn add(&mut self, sender: Sender) {
        self.fates.push(Arc::clone(&sender.fates));
        self.others.push(sender);
    }

    /// As [`Sender::mirror`].
    pub fn mirror(&self, changes: &[Change]) -> io::Result<()> {
        self.first.mirror(changes)
    }

    /// Workers that have ended are waited for no more, as long as there is one that has not.
    fn leave_out_the_dead(&mut self) {
        self.others.retain(|sender| !sender.ring.is_abandoned());
        if self.first.ring.is_abandoned()
            && let Some(next) = self.others.pop()
        {
            self.first = next;
        }
    }

    /// As [`Sender::send`], to all of them. An end marker follows the last packet that any of them sends on the old path.
    pub fn send(&mut self, changes: &[Change]) {
        let is_marker = |it: &Change| matches!(it, Change::EndMarker { .. });
        let mut told = Vec::with_capacity(changes.len());
        for change in changes {
            match *change {
                Change::Meter { number, cost } => self.meters.begin(number, cost),
                other => told.push(other),
            }
        }
        if !self.others.is_empty() {
            self.leave_out_the_dead();
            let for_all: Vec<_> = told.iter().filter(|it| !is_marker(it)).copied().collect();
            for sender in &mut self.others {
                sender.send(&for_all);
            }
            if told.iter().any(is_marker) {
                for sender in &mut self.others {
                    // One that is stuck is told of when it is to take more.
                    let _ = sender.settle();
                }
            }
        }
        self.first.send(&told);
    }

    /// As [`Sender::catch_up`].
    pub fn catch_up(&mut self) -> Result<(), Stuck> {
        self.leave_out_the_dead();
        let others = self.others.iter_mut().map(Sender::catch_up);
        let others = others.fold(Ok(()), Result::and);
        self.first.catch_up().and(others)
    }

    /// As [`Sender::settle`].
    pub fn settle(&mut self) -> Result<(), Stuck> {
        self.leave_out_the_dead();
        self.first.settle()?;
        self.others.iter_mut().try_for_each(Sender::settle)
    }

    /// What became of packets at all workers.
    pub fn fates(&self) -> Vec<(&'static str, u64)> {
        let mut each = self.fates.iter().map(|it| it.read());
        let mut sums = each.next().unwrap_or_default();
        for more in each {
            for (sum, (_, count)) in sums.iter_mut().zip(more) {
                sum.1 += count;
            }
        }
        sums
    }
}

/// The worker's end.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Consumer<Change>,
    bell: Arc<Bell>,
    taken: u64,
    made: Arc<AtomicU64>,
    most_per_batch: usize,
    pub fates: Arc<Published>,
}

/// Both ends; packets pass in the kernel if there is one, and then do not wait for the worker.
pub(super) fn changes(kernel: Kernel) -> Result<(Sender, Receiver), PortError> {
    let (producer, consumer) = RingBuffer::new(RING);
    let bell = Arc::new(Bell::new()?);
    let made = Arc::default();
    let fates = Arc::new(Published::beside(kernel.clone()));
    let most_per_batch = if kernel.is_some() {
        RING
    } else {
        MOST_PER_BATCH
    };
    let mirror = kernel.map(|kernel| Box::new(kernel) as Box<dyn Mirror>);
    let sender = Sender {
        mirror,
        ring: producer,
        unsent: VecDeque::new(),
        patience: PATIENCE,
        bell: Arc::clone(&bell),
        sent: 0,
        made: Arc::clone(&made),
        fates: Arc::clone(&fates),
    };
    let receiver = Receiver {
        ring: consumer,
        bell,
        taken: 0,
        made,
        most_per_batch,
        fates,
    };
    Ok((sender, receiver))
}

/// The worker takes no changes: it has ended, or hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stuck;

impl Sender {
    /// Has another copy brought up to date as well.
    #[cfg(test)]
    pub fn with_mirror(mut self, mirror: impl Mirror + 'static) -> Self {
        self.mirror = Some(Box::new(mirror));
        self
    }

    /// Makes changes in the copy beside the worker's, before the worker hears of any: an end marker, which the worker
    /// sends, is to follow the last packet on the old path. Where it fails, some of them are made.
    pub fn mirror(&self, changes: &[Change]) -> io::Result<()> {
        let Some(mirror) = &self.mirror else {
            return Ok(());
        };
        changes.iter().try_for_each(|change| mirror.make(change))
    }

    /// Sends changes, in order; waits while the ring is full. What it has no room for in time waits here.
    pub fn send(&mut self, changes: &[Change]) {
        let mut rest = changes.iter();
        if self.unsent.is_empty() {
            for change in &mut rest {
                if self.push(*change).is_err() {
                    self.unsent.push_back(*change);
                    break;
                }
            }
        }
        self.unsent.extend(rest);
        self.bell.ring();
    }

    /// Sends what still waits here, as far as there is room at once.
    ///
    /// # Errors
    /// `Stuck` if something goes on waiting.
    pub fn catch_up(&mut self) -> Result<(), Stuck> {
        if self.unsent.is_empty() {
            return Ok(());
        }
        while let Some(change) = self.unsent.front() {
            if self.ring.push(*change).is_err() {
                break;
            }
            self.sent += 1;
            self.unsent.pop_front();
        }
        self.bell.ring();
        if self.unsent.is_empty() {
            Ok(())
        } else {
            Err(Stuck)
        }
    }

    fn push(&mut self, mut change: Change) -> Result<(), Stuck> {
        while let Err(rtrb::PushError::Full(back)) = self.ring.push(change) {
            change = back;
            self.bell.ring();
            let made = self.made.load(Ordering::Relaxed);
            self.wait_for(made + 1)?;
        }
        self.sent += 1;
        Ok(())
    }

    /// Waits until everything sent is in force.
    ///
    /// # Errors
    /// `Stuck`; what was sent is made once the worker takes changes again.
    pub fn settle(&mut self) -> Result<(), Stuck> {
        while let Some(change) = self.unsent.front().copied() {
            self.push(change)?;
            self.unsent.pop_front();
            self.bell.ring();
        }
        self.wait_for(self.sent)
    }

    /// Waits until the worker has made `count` changes.
    fn wait_for(&self, count: u64) -> Result<(), Stuck> {
        let mut seen = 0;
        let mut since = Instant::now();
        loop {
            let made = self.made.load(Ordering::Acquire);
            if made >= count {
                return Ok(());
            }
            if made != seen {
                (seen, since) = (made, Instant::now());
            } else if since.elapsed() > self.patience || self.ring.is_abandoned() {
                return Err(Stuck);
            }
            std::thread::sleep(LOOK);
        }
    }
}

impl Receiver {
    /// As [`Function::arm`](crate::Function::arm).
    pub fn arm(&self, alarm: &mut Alarm) -> bool {
        // What was sent before the bell was asked is there now, and rings no more.
        self.bell.ask(alarm) && self.ring.is_empty()
    }

    pub fn disarm(&self) {
        self.bell.quiet();
    }

    /// Hands a few changes to `make`, in order.
    #[inline(always)]
    pub fn take(&mut self, make: impl FnMut(Change)) {
        if !self.ring.is_empty() {
            self.take_some(make);
        }
    }

    #[cold]
    fn take_some(&mut self, make: impl FnMut(Change)) {
        let many = self.ring.slots().min(self.most_per_batch);
        if let Ok(chunk) = self.ring.read_chunk(many) {
            chunk.into_iter().for_each(make);
            self.taken += many as u64;
            // Release: who sees the count also sees what else was written before, such as counters.
            self.made.store(self.taken, Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn changes_arrive_in_order_and_settle_when_they_are_made() {
        let (mut sender, mut receiver) = changes(None).unwrap();
        let count = 3 * RING as u64;
        let reader = std::thread::spawn(move || {
            let mut next = 1;
            while next <= count {
                receiver.take(|change| {
                    assert_eq!(change, Change::Remove(next));
                    next += 1;
                });
            }
            receiver
        });
        for key in 1..=count {
            sender.send(&[Change::Remove(key)]);
        }
        sender.settle().unwrap();
        drop(reader.join().unwrap());
        sender.send(&[Change::Remove(1)]);
        assert_eq!(sender.settle(), Err(Stuck));
    }

    #[test]
    fn a_change_wakes_a_worker_that_sleeps_and_is_not_slept_on() {
        let (mut sender, mut receiver) = changes(None).unwrap();
        let mut alarm = Alarm::default();
        // The first time the sender has to learn that there is somebody to wake.
        assert!(!receiver.arm(&mut alarm));
        receiver.disarm();
        sender.send(&[Change::Remove(1)]);
        assert!(!receiver.arm(&mut alarm), "a change waits");
        receiver.disarm();
        receiver.take(drop);
        alarm.clear();
        assert!(receiver.arm(&mut alarm));
        let begun = Instant::now();
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            sender.send(&[Change::Remove(2)]);
            sender
        });
        alarm.wait(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(30));
        receiver.disarm();
        let mut taken = Vec::new();
        receiver.take(|change| taken.push(change));
        assert_eq!(taken, [Change::Remove(2)]);
        waker.join().unwrap().settle().unwrap();
    }

    #[test]
    fn a_batch_is_never_held_up_by_more_than_a_few_changes() {
        let (mut sender, mut receiver) = changes(None).unwrap();
        for key in 0..100 {
            sender.send(&[Change::Remove(key)]);
        }
        let mut taken = 0;
        receiver.take(|_| taken += 1);
        assert_eq!(taken, MOST_PER_BATCH);
    }
}
