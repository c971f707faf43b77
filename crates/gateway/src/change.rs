//! The changes of the bearer table and of its paths. A ring carries them to each worker's copy of the table; the
//! changes are also applied to the copy that the kernel programs use.

use super::classifier::Classifier;
use super::event::{self, Event};
use super::kernel::Kernel;
use super::outcome::Published;
use super::policing::{Meters, SharedMeters};
use super::slot::Slot;
use super::{Path, Sources};
use rtrb::{Consumer, Producer, RingBuffer};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use taut_function::changes::{self, RING, Stuck};
use taut_port::PortError;

/// The limit on changes that a worker applies per batch, so that they take less time than a packet waits for its batch.
const MOST_PER_BATCH: usize = 8;

/// A change of the bearer table or its paths; changes are applied in order.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Change {
    /// Adds an entry to the bearer table, or replaces the entry with the same key.
    Set(Slot),
    /// Removes the entry with the given key from the bearer table.
    Remove(u64),
    /// Assigns a number to a path, before any entry of the table uses it.
    Path(u16, Path),
    /// Assigns a number to the source addresses of a user, before any entry of the table uses it.
    Sources(u32, Sources),
    /// Restarts the meter of this number with a new cost per byte (the inverse of its rate). Workers are not notified,
    /// because they share the meter.
    Meter { number: u32, cost: u64 },
    /// Assigns meters to the bearer with the given key, or removes the meters.
    Police { key: u64, meters: Meters },
    /// Sends an end marker for a tunnel.
    EndMarker { path: u16, teid: u32 },
    /// Sends an echo request on a path.
    Echo { path: u16, sequence: u16 },
    /// Stores a classifier under a number before any entry refers to it, or removes the classifier when no entry refers
    /// to it.
    Classifier {
        number: u32,
        classifier: Option<Arc<Classifier>>,
    },
    /// Drops the packets that are buffered for the bearer with the given key.
    Forget(u64),
}

/// A copy of the table in addition to the workers' copies: that of the kernel programs. It applies every change
/// immediately.
pub(super) trait Mirror: Debug + Send {
    /// Applies a change to this copy of the table.
    fn make(&self, change: &Change) -> io::Result<()>;
}

/// The control plane's end of the ring that passes changes to a worker.
#[derive(Debug)]
pub(super) struct Sender {
    pub ring: changes::Sender<Change>,
    mirror: Option<Box<dyn Mirror>>,
    events: Consumer<Event>,
    outcomes: Arc<Published>,
}

/// The worker's end of the ring that passes changes from the control plane.
#[derive(Debug)]
pub(super) struct Receiver {
    pub ring: changes::Receiver<Change>,
    pub events: Producer<Event>,
    pub outcomes: Arc<Published>,
}

/// Creates both ends of a ring of changes. If packets pass in the kernel, the sender does not wait for the worker.
pub(super) fn changes(kernel: Kernel) -> Result<(Sender, Receiver), PortError> {
    let outcomes = Arc::new(Published::beside(kernel.clone()));
    let most_per_batch = match kernel {
        Some(_) => RING,
        None => MOST_PER_BATCH,
    };
    let (sender, receiver) = changes::changes(most_per_batch)?;
    let mirror = kernel.map(|kernel| Box::new(kernel) as Box<dyn Mirror>);
    let (producer, consumer) = RingBuffer::new(event::RING);
    let sender = Sender {
        ring: sender,
        mirror,
        events: consumer,
        outcomes: Arc::clone(&outcomes),
    };
    let receiver = Receiver {
        ring: receiver,
        events: producer,
        outcomes,
    };
    Ok((sender, receiver))
}

impl Sender {
    /// Adds another copy of the table, to which every change is applied in addition to the workers' copies.
    #[cfg(test)]
    pub fn with_mirror(mut self, mirror: impl Mirror + 'static) -> Self {
        self.mirror = Some(Box::new(mirror));
        self
    }
}

/// The senders to all workers, each of which has a copy of the table.
#[derive(Debug)]
pub(super) struct Senders {
    /// The sender to the first worker, the only worker that sends end markers and echo requests.
    pub first: changes::Sender<Change>,
    others: Vec<changes::Sender<Change>>,
    /// The copy of the bearer table in the kernel, if there is one.
    mirror: Option<Box<dyn Mirror>>,
    pub meters: SharedMeters,
    events: Vec<Consumer<Event>>,
    /// The packet counts by `Outcome` of all workers, including workers that have ended.
    outcomes: Vec<Arc<Published>>,
}

impl Senders {
    pub fn new(first: Sender, meters: SharedMeters) -> Self {
        Self {
            outcomes: vec![first.outcomes],
            events: vec![first.events],
            first: first.ring,
            others: Vec::new(),
            mirror: first.mirror,
            meters,
        }
    }

    /// Adds another worker, which gets all changes from now on.
    pub fn add(&mut self, sender: Sender) {
        self.outcomes.push(sender.outcomes);
        self.events.push(sender.events);
        self.others.push(sender.ring);
    }

    /// Disables waiting for workers that apply no changes, for a caller that itself makes the worker apply changes.
    pub fn never_wait(&mut self) {
        self.first.patience = std::time::Duration::ZERO;
    }

    /// Returns the next event of a worker, if there is one.
    pub fn event(&mut self) -> Option<Event> {
        self.events.iter_mut().find_map(|ring| ring.pop().ok())
    }

    /// Applies changes to the copy in the kernel before any worker gets them: an end marker, which a worker sends, must
    /// follow the last packet on the old path. After an error, some of the changes are applied in the kernel.
    pub fn mirror(&self, changes: &[Change]) -> io::Result<()> {
        let Some(mirror) = &self.mirror else {
            return Ok(());
        };
        changes.iter().try_for_each(|change| mirror.make(change))
    }

    /// Removes ended workers, as long as another worker runs.
    fn leave_out_the_dead(&mut self) {
        self.others.retain(|sender| !sender.is_abandoned());
        if self.first.is_abandoned()
            && let Some(next) = self.others.pop()
        {
            self.first = next;
        }
    }

    /// Sends changes as [`changes::Sender::send`] does, to all workers. An end marker follows the last packet that any
    /// worker sends on the old path.
    pub fn send(&mut self, changes: &[Change]) {
        let is_marker = |it: &Change| matches!(it, Change::EndMarker { .. } | Change::Echo { .. });
        let mut told = Vec::with_capacity(changes.len());
        for change in changes {
            match change {
                Change::Meter { number, cost } => self.meters.begin(*number, *cost),
                other => told.push(other.clone()),
            }
        }
        if !self.others.is_empty() {
            self.leave_out_the_dead();
            let for_all: Vec<_> = told.iter().filter(|it| !is_marker(it)).cloned().collect();
            for sender in &mut self.others {
                sender.send(&for_all);
            }
            if told.iter().any(is_marker) {
                for sender in &mut self.others {
                    // A stuck worker is reported with the next change.
                    let _ = sender.settle();
                }
            }
        }
        self.first.send(&told);
    }

    /// Sends queued changes to all workers, as [`changes::Sender::catch_up`] does for one worker.
    pub fn catch_up(&mut self) -> Result<(), Stuck> {
        self.leave_out_the_dead();
        let others = self.others.iter_mut().map(changes::Sender::catch_up);
        let others = others.fold(Ok(()), Result::and);
        self.first.catch_up().and(others)
    }

    /// Waits until changes are in force at all workers, as [`changes::Sender::settle`] does for one worker.
    pub fn settle(&mut self) -> Result<(), Stuck> {
        self.leave_out_the_dead();
        self.first.settle()?;
        self.others.iter_mut().try_for_each(changes::Sender::settle)
    }

    /// Returns the packet counts of all workers together, with the name of the `Outcome` for each.
    pub fn outcomes(&self) -> Vec<(&'static str, u64)> {
        let mut each = self.outcomes.iter().map(|it| it.read());
        let mut sums = each.next().unwrap_or_default();
        for more in each {
            for (sum, (_, count)) in sums.iter_mut().zip(more) {
                sum.1 += count;
            }
        }
        sums
    }
}
