//! A watch over a script that a worker calls: ends a call that takes too long.
//!
//! Instructions are not counted: LuaJIT leaves compiled code for that. A thread looks a few times a second whether one
//! call still lasts; a call costs two stores.

use crate::Ends;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
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
    /// The thread ends with this.
    _thread: Sender<()>,
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
        let (thread, end) = channel();
        {
            let (shared, ends) = (Arc::clone(&shared), ends.clone());
            spawn_background("lua-watch", move || shared.watch(&ends, &end, limit))?;
        }
        Ok(Self {
            shared,
            number: 0,
            ends,
            _thread: thread,
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
