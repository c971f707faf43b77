//! The worker of a chain in the kernel: it has the same functions as the XDP programs, and processes the frames that
//! they pass to it.

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

/// The longest time that a frame from the XDP programs waits. Such frames are rare, and constant polling would take a
/// core that the kernel needs for its own work.
const SLEEP: Duration = Duration::from_micros(50);

/// The number of buffers for copies, in addition to the buffers for frames from the XDP programs.
const COPIES: u32 = 256;

/// The running worker thread of a chain in the kernel. Dropping this value ends the thread.
pub struct UpcallWorker {
    counters: Arc<Counters>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    outcomes: mpsc::Receiver<Outcomes>,
}

impl UpcallWorker {
    /// Starts the worker. When this returns, its functions have filled the maps of the kernel programs.
    ///
    /// # Errors
    /// Returns the errors of the functions and of the ports' interfaces.
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
            let dead = std::io::Error::other("the thread exited while starting");
            ChainError::Port(PortError::system("the worker for punted packets", dead))
        };
        Ok(Self {
            counters: started.recv().map_err(died)??,
            stop,
            thread: Some(thread),
            outcomes,
        })
    }

    /// Returns the worker's counters, which include packets that it received from the XDP programs and then dropped.
    pub fn counters(&self) -> CountersView {
        self.counters.read()
    }

    /// Returns the counts of packets by function and outcome, including packets that the kernel forwarded.
    pub fn functions(&self) -> Vec<Count> {
        self.counters.outcomes()
    }

    /// Ends the worker. Returns its counters, and the numbers of packets by outcome, including packets that the kernel
    /// forwarded.
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
    // The pool is for fragments of packets from the slow path.
    worker.set_pool(PoolHandle::new(COPIES, false)?);
    worker.start_slow_path()?;
    worker.counters().have_names(&chain.functions);
    Ok(worker)
}
