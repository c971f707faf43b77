//! Threads outside the data path, for files or for the control plane. The death of a thread is recorded and reported to
//! registered callbacks, because otherwise it would go unnoticed.

use crate::Error;
use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard};
use std::thread::JoinHandle;

/// The maximum number of recorded deaths. The first deaths are the most informative.
const MOST_DEAD: usize = 64;

/// A thread that ended with a panic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadThread {
    /// Name of the thread.
    pub name: String,
    /// Panic message, reduced to one line.
    pub message: String,
}

/// The registration of a callback for threads that die ([`at_death`]). Dropping this value removes the callback.
#[derive(Debug)]
#[must_use = "dropping it ends it"]
pub struct DeathWatch(u64);

impl Drop for DeathWatch {
    fn drop(&mut self) {
        deaths().told.retain(|(number, _)| *number != self.0);
    }
}

struct Deaths {
    threads: Vec<DeadThread>,
    /// Callbacks for the death of a thread, with the identifiers of their watches.
    told: Vec<(u64, Box<dyn Fn() + Send>)>,
    watches: u64,
}

static DEATHS: Mutex<Deaths> = Mutex::new(Deaths {
    threads: Vec::new(),
    told: Vec::new(),
    watches: 0,
});

/// Starts a thread on the cores that the process may use, not only on the core that the calling worker may be pinned
/// to. A panic of the thread is recorded ([`dead_threads`]).
///
/// # Errors
/// The system refuses to start another thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    let own = name.to_string();
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(move || {
            // The thread gets the main thread's cores. If these cannot be read, the thread keeps the caller's cores.
            if let Ok(cores) = sched_getaffinity(Some(getpid())) {
                let _ = sched_setaffinity(None, &cores);
            }
            // Unwind safety: the state that a dead thread leaves is used only by code that expects threads to die.
            if let Err(panic) = catch_unwind(AssertUnwindSafe(body)) {
                note(own, &*panic);
                resume_unwind(panic);
            }
        })
        .map_err(|e| Error::system(format!("starting thread {name}"), e))
}

/// Returns the threads of [`spawn`] that have died in this process, at most the first 64.
pub fn dead_threads() -> Vec<DeadThread> {
    deaths().threads.clone()
}

/// Registers `told`, which is called whenever a thread of [`spawn`] dies, on that thread, until the watch is dropped.
/// The callback must not wait, nor create or drop a watch.
pub fn at_death(told: impl Fn() + Send + 'static) -> DeathWatch {
    let mut deaths = deaths();
    let number = deaths.watches;
    deaths.watches += 1;
    deaths.told.push((number, Box::new(told)));
    DeathWatch(number)
}

fn deaths() -> MutexGuard<'static, Deaths> {
    DEATHS
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn note(name: String, panic: &(dyn Any + Send)) {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    // The message is reduced to one line.
    let message = text
        .unwrap_or("it printed nothing")
        .lines()
        .collect::<Vec<_>>();
    let mut deaths = deaths();
    if deaths.threads.len() < MOST_DEAD {
        deaths.threads.push(DeadThread {
            name,
            message: message.join("; "),
        });
    }
    for (_, told) in &deaths.told {
        told();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn only_a_panicked_thread_is_recorded_and_reported() {
        let told = Arc::new(AtomicU32::new(0));
        let telling = Arc::clone(&told);
        let watch = at_death(move || {
            telling.fetch_add(1, Ordering::SeqCst);
        });
        spawn("ends", || ()).unwrap().join().unwrap();
        let dies = spawn("dies", || panic!("of {}\nlines", 2)).unwrap();
        assert!(dies.join().is_err());
        let dead = dead_threads();
        let found = |name: &str| dead.iter().find(|it| it.name == name);
        assert_eq!(found("dies").unwrap().message, "of 2; lines");
        assert_eq!(found("ends"), None);
        assert_eq!(told.load(Ordering::SeqCst), 1);
        drop(watch);
        let dies = spawn("dies untold", || panic!("alone")).unwrap();
        assert!(dies.join().is_err());
        assert_eq!(told.load(Ordering::SeqCst), 1);
    }
}
