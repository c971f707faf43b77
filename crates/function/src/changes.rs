//! A ring of small changes for a worker. The control plane is the only writer. The worker is the only reader, and
//! applies a few changes between two batches. Neither waits for the other, except that the control plane may wait until
//! changes are in force.

use rtrb::{Consumer, Producer, RingBuffer};
use rustix::thread::set_current_timer_slack;
use std::collections::VecDeque;
use std::num::NonZeroU64;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use taut_port::PortError;
use taut_sys::{Alarm, Doorbell};

/// The capacity of the ring of changes to a worker, in changes.
pub const RING: usize = 4096;
/// The time without progress after which a worker counts as stuck.
pub const PATIENCE: Duration = Duration::from_secs(2);
/// The time in which a worker that polls on another core applies changes: the sender spins for this long. A worker that
/// takes longer sleeps or shares the core, and is checked at intervals of [`LOOK`].
const SOON: Duration = Duration::from_micros(5);
const LOOK: Duration = Duration::from_micros(20);

/// The control plane's end of the ring of changes to a worker.
#[derive(Debug)]
pub struct Sender<C> {
    ring: Producer<C>,
    /// The changes that did not fit into the ring in time. They are sent before later changes.
    unsent: VecDeque<C>,
    /// The time without progress after which the worker counts as stuck.
    pub patience: Duration,
    /// The doorbell, which rings when the ring has changes.
    doorbell: Arc<Doorbell>,
    sent: u64,
    made: Arc<AtomicU64>,
}

/// The worker's end of the ring of changes from the control plane.
#[derive(Debug)]
pub struct Receiver<C> {
    ring: Consumer<C>,
    doorbell: Arc<Doorbell>,
    taken: u64,
    made: Arc<AtomicU64>,
    most_per_batch: usize,
}

/// Creates both ends of a ring of changes. The worker applies at most `most_per_batch` changes at a time.
///
/// # Errors
/// Fails if the process has too many open files.
pub fn changes<C: Clone>(most_per_batch: usize) -> Result<(Sender<C>, Receiver<C>), PortError> {
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

/// The error that the worker applies no changes, because it has ended or hangs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stuck;

impl<C: Clone> Sender<C> {
    /// Returns true if the worker has ended, so that nobody applies changes.
    pub fn is_abandoned(&self) -> bool {
        self.ring.is_abandoned()
    }

    /// Sends changes, in order; waits while the ring is full. Changes that do not fit into the ring in time remain in a
    /// queue of the sender.
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

    /// Sends as many queued changes as fit into the ring at present.
    ///
    /// # Errors
    /// Returns `Stuck` if some changes still do not fit into the ring.
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

    /// Waits until the worker has applied all sent changes, so that they are in force.
    ///
    /// # Errors
    /// Returns `Stuck` on a timeout; sent changes are applied once the worker continues.
    pub fn settle(&mut self) -> Result<(), Stuck> {
        while let Some(change) = self.unsent.front().cloned() {
            self.push(change)?;
            self.unsent.pop_front();
            self.doorbell.ring();
        }
        self.wait_for(self.sent)
    }

    /// Waits until the worker has applied `count` changes in total.
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

/// Waits between two checks of a worker that has made no progress since `since`.
pub fn pause(since: Instant) {
    if cfg!(miri) {
        // Miri knows no timer slack, and runs another thread only when this one yields.
        return std::thread::yield_now();
    }
    if since.elapsed() < SOON {
        // Yielding is avoided: a worker on the same core would then occupy it for milliseconds.
        return std::hint::spin_loop();
    }
    // By default the kernel delays wakeups by some 50 µs.
    let _ = set_current_timer_slack(NonZeroU64::new(1));
    std::thread::sleep(LOOK);
    let _ = set_current_timer_slack(None);
}

impl<C> Receiver<C> {
    /// Arms `alarm` for changes from the control plane, as [`Function::arm`](crate::Function::arm) does.
    pub fn arm(&self, alarm: &mut Alarm) -> bool {
        // A change sent before the doorbell was armed is in the ring already, and does not ring again.
        self.doorbell.arm(alarm) && self.ring.is_empty()
    }

    /// Ends the preparation for sleep that [`Self::arm`] began.
    pub fn disarm(&self) {
        self.doorbell.disarm();
    }

    /// Passes the next changes to `make`, in the order in which they were sent, up to the limit per batch.
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
            // Release: a thread that reads the count also reads earlier writes, such as counters.
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
    fn table_changes_reach_the_worker_in_order() {
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
    fn a_pending_table_change_wakes_a_worker_and_prevents_sleeping() {
        let (mut sender, mut receiver) = changes::<u64>(FEW).unwrap();
        let mut alarm = Alarm::default();
        // With the first call, the sender learns that there is a worker to wake.
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
    fn a_worker_applies_limited_numbers_of_table_changes_per_batch() {
        let (mut sender, mut receiver) = changes::<u64>(FEW).unwrap();
        for key in 0..100 {
            sender.send(&[key]);
        }
        let mut taken = 0;
        receiver.take(|_| taken += 1);
        assert_eq!(taken, FEW);
    }
}
