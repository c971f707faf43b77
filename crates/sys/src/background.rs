//! Threads that work beside the data path: on files, or on what a control plane says.

use crate::Error;
use rustix::process::getpid;
use rustix::thread::{sched_getaffinity, sched_setaffinity};
use std::thread::JoinHandle;

/// Starts a thread on the cores that the process may use, not on the one core that the calling worker may
/// be pinned to.
///
/// # Errors
/// When the machine lets nobody have another thread.
pub fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>, Error> {
    std::thread::Builder::new()
        .name(name.to_string())
        .spawn(move || {
            // The main thread's cores; where that cannot be asked, the caller's will do.
            if let Ok(cores) = sched_getaffinity(Some(getpid())) {
                let _ = sched_setaffinity(None, &cores);
            }
            body();
        })
        .map_err(|e| Error::system(format!("starting thread {name}"), e))
}
