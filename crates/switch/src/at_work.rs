//! The counter by which the worker shows whether it processes a batch. From the counter, the control plane derives when
//! a change is in force, and which memory no worker reads any more. The worker does not have to reply.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};
use taut_function::changes::pause;

/// The control plane's handle of a worker's batch counter.
#[derive(Debug, Default)]
pub(super) struct AtWork(Arc<AtomicU64>);

/// The worker's handle of its batch counter. The counter is odd during a batch, and differs for each batch.
#[derive(Debug)]
pub(super) struct Worker(Arc<AtomicU64>);

impl AtWork {
    pub fn worker(&self) -> Worker {
        Worker(Arc::clone(&self.0))
    }

    /// Waits until any batch that the worker began before this call is over. Returns false on a timeout.
    pub fn settle(&self, patience: Duration) -> bool {
        // This fence pairs with the worker's fence. If the beginning of a batch is not visible here, that batch reads
        // all earlier writes of this thread.
        fence(Ordering::SeqCst);
        // Acquire: the worker's reads until the end of its last batch precede all writes from here on.
        let seen = self.0.load(Ordering::Acquire);
        if seen.is_multiple_of(2) {
            return true;
        }
        let since = Instant::now();
        while self.0.load(Ordering::Acquire) == seen {
            // A worker that has ended in the middle of a batch no longer reads tables.
            if Arc::strong_count(&self.0) == 1 {
                return true;
            }
            if since.elapsed() >= patience {
                return false;
            }
            pause(since);
        }
        true
    }
}

impl Worker {
    /// Runs `work`, the processing of a batch; the counter is odd during this time.
    #[inline(always)]
    pub fn in_batch<T>(&self, work: impl FnOnce() -> T) -> T {
        // Relaxed: there is one worker, and the fence orders it before all that follows.
        let number = self.0.load(Ordering::Relaxed);
        self.0.store(number | 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let done = work();
        // Release: a thread that reads the number overwrites memory only after this worker has read it.
        self.0
            .store((number | 1).wrapping_add(1), Ordering::Release);
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn the_control_plane_waits_only_for_batches_already_started() {
        let at_work = AtWork::default();
        assert!(at_work.settle(Duration::ZERO));
        let worker = at_work.worker();
        assert!(at_work.settle(Duration::ZERO));
        worker.in_batch(|| assert!(!at_work.settle(Duration::ZERO)));
        assert!(at_work.settle(Duration::ZERO));
        let (begun, ends) = (Barrier::new(2), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                worker.in_batch(|| {
                    begun.wait();
                    while !ends.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            });
            begun.wait();
            let has_settled = at_work.settle(Duration::ZERO);
            // A failed assertion before this would leave the thread running.
            ends.store(true, Ordering::Relaxed);
            assert!(!has_settled);
            assert!(at_work.settle(Duration::from_secs(60)));
        });
    }

    #[test]
    fn the_control_plane_does_not_wait_for_a_terminated_worker() {
        let at_work = AtWork::default();
        let worker = at_work.worker();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            worker.in_batch(|| std::panic::resume_unwind(Box::new(())));
        }));
        assert!(panicked.is_err());
        assert!(!at_work.settle(Duration::ZERO));
        drop(worker);
        assert!(at_work.settle(Duration::ZERO));
    }
}
