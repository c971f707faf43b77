//! A table that is swapped as a whole. The control plane builds the next table while workers use the current one. Each
//! worker switches to the new table between two batches. A worker reads one counter per batch; it counts no
//! references, never waits and never frees a table.

use crate::changes::pause;
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Arc, Mutex, MutexGuard};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The control plane's handle of a table that is swapped as a whole.
#[derive(Debug)]
pub struct Swapped<T> {
    present: Arc<T>,
    slots: Vec<Arc<Slot<T>>>,
}

/// A worker's handle of a table that is swapped as a whole.
#[derive(Debug)]
pub struct InUse<T> {
    now: Arc<T>,
    seen: u64,
    slot: Arc<Slot<T>>,
}

/// The slot through which the control plane and one worker exchange tables. The lock is held only to move a pointer. A
/// worker that finds it locked uses its old table for one more batch.
#[derive(Debug)]
struct Slot<T> {
    /// The number of tables that were stored in this slot since its creation. It changes only while the lock is held.
    put: AtomicU64,
    tables: Mutex<Tables<T>>,
}

#[derive(Debug)]
struct Tables<T> {
    next: Option<Arc<T>>,
    /// The worker's earlier table, which the control plane frees; none if it is freed already. There is at most one,
    /// because storing the next table removes it.
    old: Option<Arc<T>>,
}

impl<T> Slot<T> {
    fn lock(&self) -> MutexGuard<'_, Tables<T>> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Swapped<T> {
    /// Creates the control plane's handle with `first` as the first table.
    pub fn new(first: T) -> Self {
        Self {
            present: Arc::new(first),
            slots: Vec::new(),
        }
    }

    /// Returns the newest table.
    pub fn present(&self) -> &T {
        &self.present
    }

    /// Creates a handle of the table for one more worker.
    pub fn worker(&mut self) -> InUse<T> {
        let slot = Arc::new(Slot {
            put: AtomicU64::new(0),
            tables: Mutex::new(Tables {
                next: None,
                old: None,
            }),
        });
        self.slots.push(Arc::clone(&slot));
        InUse {
            now: Arc::clone(&self.present),
            seen: 0,
            slot,
        }
    }

    /// Replaces the table by `next` for all workers, each at its next batch.
    pub fn swap(&mut self, next: T) {
        self.leave_out_the_dead();
        let next = Arc::new(next);
        for slot in &self.slots {
            let mut tables = slot.lock();
            let left = (tables.next.replace(Arc::clone(&next)), tables.old.take());
            let put = slot.put.load(Ordering::Relaxed);
            slot.put.store(put + 1, Ordering::Release);
            drop(tables);
            // Freeing a large table takes time, so the lock is released before.
            drop(left);
        }
        self.present = next;
    }

    /// Waits until all workers use the newest table, and frees the earlier ones. Returns false on a timeout: a worker
    /// has ended, or gets no packets and is not called.
    pub fn settle(&mut self, patience: Duration) -> bool {
        self.leave_out_the_dead();
        let since = Instant::now();
        // After a timeout at one slot, the later slots are still checked.
        self.slots.iter().fold(true, |all, slot| {
            loop {
                let mut tables = slot.lock();
                let (is_taken, old) = (tables.next.is_none(), tables.old.take());
                drop(tables);
                drop(old);
                if is_taken || since.elapsed() >= patience {
                    return all && is_taken;
                }
                pause(since);
            }
        })
    }

    fn leave_out_the_dead(&mut self) {
        self.slots.retain(|slot| Arc::strong_count(slot) > 1);
    }
}

impl<T> InUse<T> {
    /// Returns the table for the current batch: the newest table, or the old one while the slot is locked.
    #[inline(always)]
    pub fn get(&mut self) -> &T {
        if self.slot.put.load(Ordering::Acquire) != self.seen {
            self.move_on();
        }
        &self.now
    }

    /// Returns the table that [`Self::get`] returned last, even if there is a newer one.
    #[inline(always)]
    pub fn held(&self) -> &T {
        &self.now
    }

    #[cold]
    fn move_on(&mut self) {
        let Ok(mut tables) = self.slot.tables.try_lock() else {
            return;
        };
        self.seen = self.slot.put.load(Ordering::Relaxed);
        if let Some(next) = tables.next.take() {
            tables.old = Some(std::mem::replace(&mut self.now, next));
        }
    }
}

/// Tests that run every interleaving of a few steps: `./run miri`.
#[cfg(all(test, loom))]
mod interleavings {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use loom::thread;

    /// A table that only the control plane may free.
    struct Table(u32, thread::ThreadId);

    impl Drop for Table {
        fn drop(&mut self) {
            assert_eq!(thread::current().id(), self.1);
        }
    }

    fn model(workers: usize, swaps: u32) {
        let mut all = loom::model::Builder::new();
        all.preemption_bound = Some(3);
        all.check(move || {
            let table = |number| Table(number, thread::current().id());
            let mut swapped = Swapped::new(table(0));
            let begin = |mut in_use: InUse<Table>| {
                thread::spawn(move || {
                    let first = in_use.get().0;
                    assert!(first <= in_use.get().0);
                    in_use
                })
            };
            let workers: Vec<_> = (0..workers).map(|_| begin(swapped.worker())).collect();
            for number in 1..=swaps {
                swapped.swap(table(number));
            }
            let moved_on = swapped.settle(Duration::ZERO);
            let mut ended: Vec<_> = workers.into_iter().map(|it| it.join().unwrap()).collect();
            if moved_on {
                assert!(ended.iter().all(|it| it.now.0 == swaps));
            }
            assert!(ended.iter_mut().all(|it| it.get().0 == swaps));
            assert!(swapped.settle(Duration::ZERO));
        });
    }

    #[test]
    fn one_worker_reaches_the_latest_table_in_every_interleaving() {
        model(1, 2);
    }

    #[test]
    fn two_workers_reach_the_new_table_in_every_interleaving() {
        model(2, 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::thread::ThreadId;

    /// A table of equal entries that records which thread frees it.
    struct Table {
        entries: Vec<u32>,
        freed: Arc<Mutex<Vec<ThreadId>>>,
    }

    impl Drop for Table {
        fn drop(&mut self) {
            let mut freed = self.freed.lock().unwrap_or_else(PoisonError::into_inner);
            freed.push(std::thread::current().id());
        }
    }

    #[test]
    fn workers_read_complete_tables_in_order_and_free_no_table() {
        let rounds = if cfg!(miri) { 20 } else { 2000 };
        let freed: Arc<Mutex<Vec<ThreadId>>> = Arc::default();
        let table = |number: u32| Table {
            entries: vec![number; 64],
            freed: Arc::clone(&freed),
        };
        let mut swapped = Swapped::new(table(0));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                let (mut in_use, stop) = (swapped.worker(), &stop);
                scope.spawn(move || {
                    let mut last = 0;
                    while !stop.load(Ordering::Relaxed) {
                        let entries = &in_use.get().entries;
                        assert!(entries.iter().all(|entry| *entry == entries[0]));
                        assert!(entries[0] >= last);
                        last = entries[0];
                    }
                    assert_eq!(in_use.get().entries[0], rounds);
                });
            }
            let mut has_settled = true;
            for number in 1..=rounds {
                swapped.swap(table(number));
                // A table that is replaced before a worker reads it is skipped.
                if number % 7 == 0 {
                    has_settled &= swapped.settle(Duration::from_secs(60));
                }
            }
            has_settled &= swapped.settle(Duration::from_secs(60));
            let count = freed.lock().map_or(0, |it| it.len());
            // A failed assertion before this would leave the threads running.
            stop.store(true, Ordering::Relaxed);
            assert!(has_settled);
            assert_eq!(count, rounds as usize, "all but the last");
        });
        drop(swapped);
        let own = std::thread::current().id();
        let all = freed.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(all.iter().all(|by| *by == own));
        assert_eq!(all.len(), rounds as usize + 1);
    }

    #[test]
    fn an_ended_or_sleeping_worker_does_not_block_table_swaps() {
        let mut swapped = Swapped::new(1);
        let (ended, mut sleeps) = (swapped.worker(), swapped.worker());
        drop(ended);
        swapped.swap(2);
        assert!(!swapped.settle(Duration::from_millis(1)));
        swapped.swap(3);
        assert_eq!(*sleeps.get(), 3);
        assert!(swapped.settle(Duration::ZERO));
        assert_eq!(*swapped.present(), 3);
        assert_eq!(*swapped.worker().get(), 3);
    }
}
