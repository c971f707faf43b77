//! Threads of wiretaps, with ports that stay on the thread that opened them.

use super::error::InlineError;
use std::sync::mpsc;
use std::thread::JoinHandle;
use taut_host::affinity::pin_current_thread;
use taut_port::{Port, PortError, PortSpec, Resources};

/// Starts a thread that creates its state by `open` and then runs `work` on it. Returns when the state exists.
///
/// # Errors
/// `open` fails; the thread has then ended.
pub(super) fn start<T, R: Send + 'static>(
    name: &str,
    open: impl FnOnce() -> Result<T, InlineError> + Send + 'static,
    work: impl FnOnce(T) -> R + Send + 'static,
) -> Result<JoinHandle<Option<R>>, InlineError> {
    let (started, has_started) = mpsc::channel();
    let run = move || match open() {
        Ok(ready) => {
            let _ = started.send(Ok(()));
            Some(work(ready))
        }
        Err(problem) => {
            let _ = started.send(Err(problem));
            None
        }
    };
    let thread = std::thread::Builder::new().name(name.to_string());
    let thread = thread
        .spawn(run)
        .map_err(|e| PortError::system("cannot start the thread of the tap", e))?;
    has_started.recv().map_err(|_| {
        PortError::missing("the tap's thread", "to run: it exited while starting")
    })??;
    Ok(thread)
}

/// Opens ports on the calling thread, which is pinned to `core` if one is given. `why` is the error text for a port
/// that is a file.
///
/// # Errors
/// A port cannot be opened or is a file, or the core is unavailable.
pub(super) fn open_links(
    specs: &[PortSpec],
    core: Option<usize>,
    why: &str,
) -> Result<Vec<Box<dyn Port>>, InlineError> {
    if let Some(core) = core {
        pin_current_thread(core)?;
    }
    let mut resources = Resources::for_ports(specs)?;
    let open = |spec: &PortSpec| {
        let port = spec.open(&mut resources)?;
        match port.waits() {
            true => Err(spec.error(why)),
            false => Ok(port),
        }
    };
    let ports = specs.iter().map(open).collect::<Result<_, PortError>>();
    Ok(ports?)
}
