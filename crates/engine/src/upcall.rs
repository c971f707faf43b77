//! The worker beside programs in the kernel: has the same functions, and passes what the programs hand up.

use crate::chain::Making;
use crate::in_kernel::Upcall;
use crate::outcomes::Outcomes;
use crate::{Chain, ChainError, Counters, CountersView, Flush, Wait, Worker};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use taut_function::Count;
use taut_port::{PoolHandle, PortError, in_kernel};
use taut_sys::{Clock, spawn_background};

/// Longest time that what the programs hand up waits: it is rare, and a core that looks for it all the time would be
/// one that the kernel's own work lacks.
const SLEEP: Duration = Duration::from_micros(50);

/// Packets that there is memory for beside those that the programs hand up.
const COPIES: u32 = 256;

/// The thread of the worker. Dropping it ends it.
pub struct UpcallWorker {
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    outcomes: mpsc::Receiver<Outcomes>,
}

impl UpcallWorker {
    /// Starts the worker; its functions have made what the kernel is to have when this returns.
    ///
    /// # Errors
    /// Those of the functions and of the ports' interfaces.
    pub fn start(chain: &Chain, upcall: &Upcall, clock: &Clock) -> Result<Self, ChainError> {
        let stop = Arc::new(AtomicBool::new(false));
        let (tell_start, started) = mpsc::channel();
        let (tell_outcomes, outcomes) = mpsc::channel();
        let (chain, upcall, clock) = (chain.clone(), upcall.clone(), *clock);
        let stopped = Arc::clone(&stop);
        let thread = spawn_background("beside-programs", move || {
            match set_up(&chain, &upcall, &clock) {
                Ok(mut worker) => {
                    let _ = tell_start.send(Ok(worker.counters()));
                    worker.run(&stopped);
                    let _ = tell_outcomes.send(worker.outcomes());
                }
                Err(e) => {
                    let _ = tell_start.send(Err(e));
                }
            }
        })?;
        let died = |_| {
            let dead = std::io::Error::other("the thread died while it started");
            ChainError::Port(PortError::system("the worker beside the kernel", dead))
        };
        Ok(Self {
            counters: started.recv().map_err(died)??,
            stop,
            thread: Some(thread),
            outcomes,
        })
    }

    /// Returns what the worker has done; what it dropped on the way in was in no ring any more.
    pub fn counters(&self) -> CountersView {
        self.counters.read()
    }

    /// Returns what became of packets in its functions, those that the kernel passed among them.
    pub fn functions(&self) -> Vec<Count> {
        self.counters.outcomes()
    }

    /// Ends the worker: what it has done, and what became of all packets, those that the kernel passed among them.
    pub fn end(mut self) -> (CountersView, Outcomes) {
        self.join();
        (
            self.counters(),
            self.outcomes.try_recv().unwrap_or_default(),
        )
    }

    fn join(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for UpcallWorker {
    fn drop(&mut self) {
        self.join();
    }
}

fn set_up(chain: &Chain, upcall: &Upcall, clock: &Clock) -> Result<Worker, ChainError> {
    let ports = chain.ports.iter().enumerate();
    let ports = ports
        .map(|(number, spec)| in_kernel::handed_up(&*upcall.programs, number, spec))
        .collect::<Result<_, _>>()?;
    let functions = chain.build_functions_for(&Making {
        shared: &upcall.shared,
        ..Making::default()
    })?;
    let mut worker = Worker::new(ports, functions, Flush::default(), clock);
    let wait = Wait::Sleep { at_most: SLEEP };
    worker.set_wait(wait, clock);
    // For what the slow path has cut.
    worker.set_pool(PoolHandle::new(COPIES, false)?);
    worker.start_slow_path()?;
    worker.counters().have_names(&chain.functions);
    Ok(worker)
}
