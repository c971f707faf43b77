//! A watch over a script that a worker calls: ends a call that takes too long.
//!
//! Instructions are not counted: LuaJIT leaves compiled code for that. A thread looks a few times a second whether one
//! call still lasts; a call costs two stores.

use crate::Ends;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_sys::spawn_background;

/// Time between two looks.
const LOOK: Duration = Duration::from_millis(100);

/// A watch over the calls of one state.
pub(crate) struct Watch {
    shared: Arc<Watched>,
    /// Number of the call.
    number: u64,
    ends: Ends,
    /// The thread, and what tells it to end by being dropped.
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

struct Watched {
    /// Number of the call that lasts; 0 for none.
    lasts: AtomicU64,
    /// Whether the thread has ended a call, or is about to.
    is_told: AtomicBool,
}

impl Watch {
    /// Watches calls that may last for `limit` each.
    pub(crate) fn start(ends: Ends, limit: Duration) -> Result<Self, taut_sys::Error> {
        let shared = Arc::new(Watched {
            lasts: AtomicU64::new(0),
            is_told: AtomicBool::new(false),
        });
        let (sender, end) = channel();
        let thread = {
            let (shared, ends) = (Arc::clone(&shared), ends.clone());
            spawn_background("lua-watch", move || shared.watch(&ends, &end, limit))?
        };
        Ok(Self {
            shared,
            number: 0,
            ends,
            thread: Some((sender, thread)),
        })
    }

    /// A call begins.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.number += 1;
        // Relaxed: the thread sees it some time.
        self.shared.lasts.store(self.number, Ordering::Relaxed);
    }

    /// The call is over. True if it was ended.
    #[inline]
    pub(crate) fn end(&mut self) -> bool {
        // In one order with what the thread does: either it sees that this call is over, or this sees that it was told.
        self.shared.lasts.store(0, Ordering::SeqCst);
        self.shared.is_told.load(Ordering::SeqCst) && self.undo()
    }

    #[cold]
    fn undo(&self) -> bool {
        self.shared.is_told.store(false, Ordering::SeqCst);
        // Waits for a thread that has seen the call last.
        self.ends.undo()
    }
}

impl Drop for Watch {
    /// Waits for the thread, which looks up at once, so that nothing of it is there any more when its state goes.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // If it has panicked, that is noted already.
            let _ = thread.join();
        }
    }
}

impl Watched {
    fn watch(&self, ends: &Ends, end: &Receiver<()>, limit: Duration) {
        let (mut seen, mut since) = (0, Instant::now());
        while end.recv_timeout(LOOK.min(limit)) == Err(RecvTimeoutError::Timeout) {
            let lasts = self.lasts.load(Ordering::Relaxed);
            if lasts != seen {
                (seen, since) = (lasts, Instant::now());
            } else if lasts != 0 && since.elapsed() >= limit {
                ends.end_if(|| {
                    self.is_told.store(true, Ordering::SeqCst);
                    self.lasts.load(Ordering::SeqCst) == seen
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::LuaState;

    #[test]
    fn a_call_that_lasts_is_ended_and_the_next_one_is_not() {
        let state = LuaState::new(false).unwrap();
        let mut watch = Watch::start(state.ends(), Duration::from_millis(5)).unwrap();
        for _ in 0..3 {
            watch.begin();
            let short = state
                .lua()
                .load("local n = 0 for i = 1, 9 do n = n + i end");
            short.exec().unwrap();
            assert!(!watch.end());
            watch.begin();
            let looped = state.lua().load("while true do pcall(error) end").exec();
            assert!(watch.end());
            assert!(looped.unwrap_err().to_string().contains("stopped"));
        }
    }
}
