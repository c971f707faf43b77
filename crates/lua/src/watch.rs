//! A watchdog for a script in a worker: it ends a call of the script that takes too long.
//!
//! Instructions are not counted, because LuaJIT would have to leave compiled code to count them. Instead, a thread
//! checks a few times a second whether the same call still runs; the check costs two stores per call.

use crate::Ends;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_sys::spawn_background;

/// Interval of the checks.
const LOOK: Duration = Duration::from_millis(100);

/// A watchdog for the calls of one state.
pub(crate) struct Watch {
    shared: Arc<Watched>,
    /// Number of the last call that was begun.
    number: u64,
    ends: Ends,
    /// The watchdog thread, and the channel that ends the thread when the channel is closed; none only while the
    /// watchdog is dropped.
    thread: Option<(Sender<()>, JoinHandle<()>)>,
}

struct Watched {
    /// Number of the running call; 0 for none.
    lasts: AtomicU64,
    /// True if the watchdog thread has ended a call, or is about to end one.
    is_told: AtomicBool,
}

impl Watch {
    /// Watches calls with a time limit of `limit` each.
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

    /// Begins a call.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.number += 1;
        // Relaxed suffices, because the thread only has to see the number eventually.
        self.shared.lasts.store(self.number, Ordering::Relaxed);
    }

    /// Ends a call. Returns true if the watchdog ended it.
    #[inline]
    pub(crate) fn end(&mut self) -> bool {
        // Both sides use sequentially consistent accesses: either the watchdog thread sees that the call is over, or
        // this function sees that the thread ended the call.
        self.shared.lasts.store(0, Ordering::SeqCst);
        self.shared.is_told.load(Ordering::SeqCst) && self.undo()
    }

    #[cold]
    fn undo(&self) -> bool {
        self.shared.is_told.store(false, Ordering::SeqCst);
        // `undo` waits for the watchdog thread if that thread is just ending the call.
        self.ends.undo()
    }
}

impl Drop for Watch {
    /// Waits until the thread has ended, so that it does not outlive its Lua state. Closing the channel wakes the
    /// thread immediately.
    fn drop(&mut self) {
        if let Some((sender, thread)) = self.thread.take() {
            drop(sender);
            // A panic of the thread was already reported.
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
    fn a_long_call_is_stopped_and_the_next_call_runs() {
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
