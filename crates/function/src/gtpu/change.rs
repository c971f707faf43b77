//! Changes of the bearer table, and their ways there: a ring to each worker's copy of it, and what the programs in the
//! kernel have beside them.

use super::Path;
use super::event::{self, Event};
use super::kernel::Kernel;
use super::outcome::Published;
use super::policing::{Meters, SharedMeters};
use super::slot::Slot;
use super::sorting::Sorting;
use crate::changes::{self, RING, Stuck};
use rtrb::{Consumer, Producer, RingBuffer};
use std::fmt::Debug;
use std::io;
use std::sync::Arc;
use taut_port::PortError;

/// Changes that the worker makes per batch at most: what it costs is less than a packet's wait for its batch.
const MOST_PER_BATCH: usize = 8;

/// Change of the table; changes are made in order.
#[derive(Debug, Clone, PartialEq)]
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
    /// Asks the other end of a path whether it is there.
    Echo { path: u16, sequence: u16 },
    /// Gives a sorting its number, or takes it away: before any entry names it, or after.
    Sorting {
        number: u32,
        sorting: Option<Arc<Sorting>>,
    },
    /// Drops the packets that are kept for the bearer of this key.
    Forget(u64),
}

/// A copy of the table beside the worker's, which has every change at once: that of the programs in the kernel.
pub(super) trait Mirror: Debug + Send {
    /// Makes a change there.
    fn make(&self, change: &Change) -> io::Result<()>;
}

/// The end of whoever decides.
#[derive(Debug)]
pub(super) struct Sender {
    pub ring: changes::Sender<Change>,
    mirror: Option<Box<dyn Mirror>>,
    events: Consumer<Event>,
    outcomes: Arc<Published>,
}

/// The worker's end.
#[derive(Debug)]
pub(super) struct Receiver {
    pub ring: changes::Receiver<Change>,
    pub events: Producer<Event>,
    pub outcomes: Arc<Published>,
}

/// Makes both ends; packets pass in the kernel if there is one, and then do not wait for the worker.
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
    /// Brings another copy up to date as well.
    #[cfg(test)]
    pub fn with_mirror(mut self, mirror: impl Mirror + 'static) -> Self {
        self.mirror = Some(Box::new(mirror));
        self
    }
}

/// The ways to all workers, each of which has a copy of the table.
#[derive(Debug)]
pub(super) struct Senders {
    /// Way to the worker that does what is to be done once: it sends end markers.
    pub first: changes::Sender<Change>,
    others: Vec<changes::Sender<Change>>,
    /// A copy beside the workers', if there is one.
    mirror: Option<Box<dyn Mirror>>,
    pub meters: SharedMeters,
    events: Vec<Consumer<Event>>,
    /// Outcomes of all workers, also of those that have ended.
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

    /// Lets another worker hear of changes from now on.
    pub fn add(&mut self, sender: Sender) {
        self.outcomes.push(sender.outcomes);
        self.events.push(sender.events);
        self.others.push(sender.ring);
    }

    /// Gives a worker up at once that takes no changes, where nobody but the caller makes it do so.
    pub fn never_wait(&mut self) {
        self.first.patience = std::time::Duration::ZERO;
    }

    /// Returns the next thing that a worker has to tell, if there is one.
    pub fn event(&mut self) -> Option<Event> {
        self.events.iter_mut().find_map(|ring| ring.pop().ok())
    }

    /// Makes changes in the copy beside the workers', before a worker hears of any: an end marker, which the worker
    /// sends, is to follow the last packet on the old path. Where it fails, some of them are made.
    pub fn mirror(&self, changes: &[Change]) -> io::Result<()> {
        let Some(mirror) = &self.mirror else {
            return Ok(());
        };
        changes.iter().try_for_each(|change| mirror.make(change))
    }

    /// Workers that have ended are waited for no more, as long as there is one that has not.
    fn leave_out_the_dead(&mut self) {
        self.others.retain(|sender| !sender.is_abandoned());
        if self.first.is_abandoned()
            && let Some(next) = self.others.pop()
        {
            self.first = next;
        }
    }

    /// Sends changes as [`changes::Sender::send`] does, to all of them. An end marker follows the last packet that any
    /// of them sends on the old path.
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
                    // One that is stuck is told of when it is to take more.
                    let _ = sender.settle();
                }
            }
        }
        self.first.send(&told);
    }

    /// Catches up as [`changes::Sender::catch_up`] does.
    pub fn catch_up(&mut self) -> Result<(), Stuck> {
        self.leave_out_the_dead();
        let others = self.others.iter_mut().map(changes::Sender::catch_up);
        let others = others.fold(Ok(()), Result::and);
        self.first.catch_up().and(others)
    }

    /// Settles as [`changes::Sender::settle`] does.
    pub fn settle(&mut self) -> Result<(), Stuck> {
        self.leave_out_the_dead();
        self.first.settle()?;
        self.others.iter_mut().try_for_each(changes::Sender::settle)
    }

    /// Returns what became of packets at all workers.
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
