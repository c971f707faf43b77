//! A barrier for tasks whose trials begin and end together.

use crate::lock::lock;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Interval at which a waiting task checks whether all other tasks wait as well.
const LOOK: Duration = Duration::from_micros(100);

/// The barrier at which tasks wait for each other, once per trial.
#[derive(Default)]
pub struct Meeting {
    /// Number of tasks that wait at the barrier, and number of times that all tasks have met there.
    waiting: Mutex<(usize, u64)>,
    /// Number of tasks of the last meeting that have not sent all packets of their trials.
    sending: AtomicUsize,
}

impl Meeting {
    /// Waits until `tasks` tasks wait, or `halt` becomes true.
    pub fn wait_for(&self, tasks: usize, halt: &AtomicBool) {
        let met = {
            let mut waiting = lock(&self.waiting);
            waiting.0 += 1;
            if waiting.0 >= tasks {
                *waiting = (0, waiting.1 + 1);
                // Release, so that a task that sees its meeting also sees this number.
                self.sending.store(tasks.max(1), Ordering::Release);
                return;
            }
            waiting.1
        };
        while lock(&self.waiting).1 == met && !halt.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
        }
    }

    /// Records that a task has sent all packets of its trial.
    pub fn has_sent(&self) {
        let less = |sending: usize| sending.checked_sub(1);
        let _ = (self.sending).fetch_update(Ordering::AcqRel, Ordering::Acquire, less);
    }

    /// Returns true if all tasks that met last have sent all packets of their trials.
    pub fn all_have_sent(&self) -> bool {
        self.sending.load(Ordering::Acquire) == 0
    }
}
