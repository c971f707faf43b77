//! The thread that takes rules out when their time is over.

use super::control::Control;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use taut_port::PortError;
use taut_sys::{Clock, spawn_background, ticks};

/// Looks are this far apart: timeouts are whole seconds.
const LOOK: Duration = Duration::from_millis(100);

/// Dropping it ends the thread.
pub(super) struct Keeper {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Keeper {
    pub fn start(control: &Arc<Mutex<Control>>, clock: &Clock) -> Result<Self, PortError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, control) = (Arc::clone(&stop), Arc::clone(control));
        let ticks_per_s = clock.to_ticks(1e9) as u64;
        let thread = spawn_background("switch", move || {
            // Relaxed: it says only that it is time to go.
            while !stopped.load(Ordering::Relaxed) {
                std::thread::park_timeout(LOOK);
                let mut control = control.lock().unwrap_or_else(PoisonError::into_inner);
                control.expired(Instant::now(), ticks(), ticks_per_s);
            }
        })?;
        Ok(Self {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}
