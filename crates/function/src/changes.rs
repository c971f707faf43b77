//! Small changes on their way to a worker: a ring of one writer, the side that decides, and one reader, the worker, which takes a few
//! between two batches. Neither waits for the other, but for who asks whether they are in force.

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::thread::set_current_timer_slack;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_port::PortError;
use taut_sys::{Alarm, Doorbell};

/// Changes that may be on their way.
pub(crate) const RING: usize = 4096;
/// How long the worker may take none before it is given up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(2);
/// A worker that polls on another core makes changes within so long, and is looked at again and again. One that sleeps, or has the same
/// core, is looked at from time to time.
const SOON: Duration = Duration::from_micros(5);
const LOOK: Duration = Duration::from_micros(20);

/// The end of whoever decides.
#[derive(Debug)]
pub(crate) struct Sender<C> {
    ring: Producer<C>,
    /// Changes that the ring had no room for in time: they go in before anything else.
    unsent: VecDeque<C>,
    /// How long the worker may take none before it is given up.
    pub patience: Duration,
    /// Rung when there is something in the ring.
    doorbell: Arc<Doorbell>,
    sent: u64,
    made: Arc<AtomicU64>,
}

/// The worker's end.
#[derive(Debug)]
pub(crate) struct Receiver<C> {
    ring: Consumer<C>,
    doorbell: Arc<Doorbell>,
    taken: u64,
    made: Arc<AtomicU64>,
    most_per_batch: usize,
}

/// Makes both ends. The worker takes `most_per_batch` at a time.
///
/// # Errors
/// When there are too many files.
pub(crate) fn changes<C: Clone>(
    most_per_batch: usize,
) -> Result<(Sender<C>, Receiver<C>), PortError> {
    let (producer, consumer) = RingBuffer::new(RING);
    let doorbell = Arc::new(Doorbell::new()?);
    let made = Arc::default();
    let sender = Sender {
        ring: producer,
        unsent: VecDeque::new(),
        patience: PATIENCE,
        doorbell: Arc::clone(&doorbell),
        sent: 0,
        made: Arc::clone(&made),
    };
    let receiver = Receiver {
        ring: consumer,
        doorbell,
        taken: 0,
        made,
        most_per_batch,
    };
    Ok((sender, receiver))
}

/// The worker takes no changes: it has ended, or hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stuck;

impl<C: Clone> Sender<C> {
    /// Whether the worker has ended.
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Sends changes, in order; waits while the ring is full. What it has no room for in time waits here.
    pub fn send(&mut self, changes: &[C]) {
        let mut rest = changes.iter();
        if self.unsent.is_empty() {
            for change in &mut rest {
                if self.push(change.clone()).is_err() {
                    self.unsent.push_back(change.clone());
                    break;
                }
            }
        }
        self.unsent.extend(rest.cloned());
        self.doorbell.ring();
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
            if self.ring.push(change.clone()).is_err() {
                break;
            }
            self.sent += 1;
            self.unsent.pop_front();
        }
        self.doorbell.ring();
        if self.unsent.is_empty() {
            Ok(())
        } else {
            Err(Stuck)
        }
    }

    fn push(&mut self, mut change: C) -> Result<(), Stuck> {
        while let Err(rtrb::PushError::Full(back)) = self.ring.push(change) {
            change = back;
            self.doorbell.ring();
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
        while let Some(change) = self.unsent.front().cloned() {
            self.push(change)?;
            self.unsent.pop_front();
            self.doorbell.ring();
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
            pause(since);
        }
    }
}

/// Waits between two looks at a worker that has made no progress since then.
pub(crate) fn pause(since: Instant) {
    if since.elapsed() < SOON {
        // Not to give the core away: a worker on the same one keeps it for milliseconds, and gives it back to who sleeps.
        return std::hint::spin_loop();
    }
    // Unless told otherwise the kernel lets sleepers wait for some 50 µs more.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    std::thread::sleep(LOOK);
    let _ = set_current_timer_slack(None);
}

impl<C> Receiver<C> {
    /// Arms `alarm` as [`Function::arm`](crate::Function::arm) does.
    pub fn arm(&self, alarm: &mut Alarm) -> bool {
        // What was sent before the doorbell was asked is there now, and rings no more.
        self.doorbell.arm(alarm) && self.ring.is_empty()
    }

    pub fn disarm(&self) {
        self.doorbell.disarm();
    }

    /// Hands a few changes to `make`, in order.
    #[inline(always)]
    pub fn take(&mut self, make: impl FnMut(C)) {
        if !self.ring.is_empty() {
            self.take_some(make);
        }
    }

    #[cold]
    fn take_some(&mut self, make: impl FnMut(C)) {
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

    const FEW: usize = 8;

    #[test]
    fn changes_arrive_in_order_and_settle_when_they_are_made() {
        let (mut sender, mut receiver) = changes::<u64>(FEW).unwrap();
        let count = 3 * RING as u64;
        let reader = std::thread::spawn(move || {
            let mut next = 1;
            while next <= count {
                receiver.take(|change| {
                    assert_eq!(change, next);
                    next += 1;
                });
            }
            receiver
        });
        for key in 1..=count {
            sender.send(&[key]);
        }
        sender.settle().unwrap();
        drop(reader.join().unwrap());
        sender.send(&[1]);
        assert_eq!(sender.settle(), Err(Stuck));
    }

    #[test]
    fn a_change_wakes_a_worker_that_sleeps_and_is_not_slept_on() {
        let (mut sender, mut receiver) = changes::<u64>(FEW).unwrap();
        let mut alarm = Alarm::default();
        // The first time the sender has to learn that there is somebody to wake.
        assert!(!receiver.arm(&mut alarm));
        receiver.disarm();
        sender.send(&[1]);
        assert!(!receiver.arm(&mut alarm), "a change waits");
        receiver.disarm();
        receiver.take(drop);
        alarm.clear();
        assert!(receiver.arm(&mut alarm));
        let begun = Instant::now();
        let waker = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(20));
            sender.send(&[2]);
            sender
        });
        alarm.wait(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(30));
        receiver.disarm();
        let mut taken = Vec::new();
        receiver.take(|change| taken.push(change));
        assert_eq!(taken, [2]);
        waker.join().unwrap().settle().unwrap();
    }

    #[test]
    fn a_batch_is_never_held_up_by_more_than_a_few_changes() {
        let (mut sender, mut receiver) = changes::<u64>(FEW).unwrap();
        for key in 0..100 {
            sender.send(&[key]);
        }
        let mut taken = 0;
        receiver.take(|_| taken += 1);
        assert_eq!(taken, FEW);
    }
}
