//! Running a script: its state and those of its tasks, and what ends them.

use crate::api::State;
use crate::explain;
use crate::task::Tasks;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taut_measure::LatencyHistogram;
use taut_port::lua::Ends;
use taut_port::{Clock, PortSpec};

/// How long a script that is told to stop may take to say its last words.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A script and what it may use.
#[derive(Debug, Clone)]
pub struct Script {
    /// Its file.
    pub path: PathBuf,
    /// Ports it may open, in order.
    pub ports: Vec<PortSpec>,
    /// What it finds in `taut.args`.
    pub arguments: Vec<String>,
    /// Whether it may reach files, programs and memory.
    pub trusted: bool,
    /// After how long it is ended.
    pub limit: Option<Duration>,
    /// Bytes that each of its states may hold.
    pub memory_bytes: usize,
    /// How long to wait for the other side of a port.
    pub wait: Duration,
    /// Core of the main state.
    pub core: Option<usize>,
    /// The clock of all stamps.
    pub clock: Clock,
}

/// What a script that came to its end counted.
#[derive(Debug, Default)]
pub struct Ended {
    /// By name, over all tasks.
    pub counters: BTreeMap<String, f64>,
    /// By name, over all tasks.
    pub histograms: BTreeMap<String, LatencyHistogram>,
}

/// Why a script did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It failed; the line says where and why.
    #[error("{0}")]
    Failed(String),
    /// It failed because the machine lacks something: a device, a permission, the other side of a link.
    #[error("{0}")]
    Missing(String),
    /// It was told to stop from outside, and did not by itself.
    #[error("{0}")]
    Interrupted(String),
}

/// Why a script is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// It is not.
    None = 0,
    /// The user said so.
    User = 1,
    /// It took too long.
    Limit = 2,
    /// One of its tasks failed.
    Failure = 3,
}

/// What all states of one script share.
pub struct Shared {
    pub script: Script,
    pub source: String,
    /// Its name in Lua's messages.
    pub chunk: String,
    /// Set once traffic is to stop.
    pub halt: AtomicBool,
    reason: AtomicU8,
    /// Set when a port could not be had that another machine may have.
    pub lacking: AtomicBool,
    /// Of the state that failed first: what others say is that they were stopped.
    failure: Mutex<Option<String>>,
    states: Mutex<Vec<Ends>>,
    pub ended: Mutex<Ended>,
    pub tasks: Tasks,
}

/// Locks, also after another thread died with the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    /// Tells all states to stop; the first reason counts.
    pub fn stop_for(&self, reason: Reason) {
        let _ = self.reason.compare_exchange(
            Reason::None as u8,
            reason as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        self.halt.store(true, Ordering::Relaxed);
    }

    /// Stops all states because one failed with `text`.
    pub fn fail(&self, text: &str) {
        lock(&self.failure).get_or_insert_with(|| text.to_string());
        self.stop_for(Reason::Failure);
    }

    fn was_stopped_for(&self, reason: Reason) -> bool {
        self.reason.load(Ordering::Relaxed) == reason as u8
    }

    /// Says that there is one more state that may have to be ended.
    pub fn watch(&self, ends: Ends) {
        lock(&self.states).push(ends);
    }

    pub fn explain(&self, error: &mlua::Error) -> String {
        explain(error, &self.chunk, &self.script.path.display().to_string())
    }
}

impl Script {
    /// Runs the script to its end. `stop` is the user's.
    ///
    /// # Errors
    /// What is wrong with it, on one line.
    pub fn run(self, stop: &AtomicBool) -> Result<Ended, ScriptError> {
        let source =
            std::fs::read_to_string(&self.path).map_err(|source| ScriptError::Unreadable {
                path: self.path.clone(),
                source,
            })?;
        // Lua cuts longer names.
        let chunk: String = self.path.file_name().map_or_else(
            || "script".to_string(),
            |name| name.to_string_lossy().chars().take(40).collect(),
        );
        let path = self.path.display().to_string();
        let (limit, core) = (self.limit, self.core);
        let shared = Arc::new(Shared {
            script: self,
            // A first line that says who runs it.
            source: source
                .strip_prefix("#!")
                .map_or(source.clone(), |rest| format!("--{rest}")),
            chunk,
            halt: AtomicBool::new(false),
            reason: AtomicU8::new(Reason::None as u8),
            lacking: AtomicBool::new(false),
            failure: Mutex::default(),
            states: Mutex::default(),
            ended: Mutex::default(),
            tasks: Tasks::default(),
        });
        let done = AtomicBool::new(false);
        let outcome = std::thread::scope(|scope| {
            scope.spawn(|| watch(&shared, stop, limit, &done));
            // In a thread of its own, so that its core is not everybody's.
            let main = scope.spawn(|| run_main(&shared, core));
            let outcome = main
                .join()
                .unwrap_or_else(|_| Err("the script's thread died".to_string()));
            if let Err(text) = &outcome {
                shared.fail(text);
            }
            let tasks = shared.tasks.join_all();
            done.store(true, Ordering::Relaxed);
            outcome.and(tasks)
        });
        let outcome = outcome.map_err(|text| lock(&shared.failure).take().unwrap_or(text));
        if shared.was_stopped_for(Reason::Limit) {
            let seconds = limit.unwrap_or_default().as_secs_f64();
            let place = outcome.err().unwrap_or_default();
            let place = place.replace(": stopped", ": here");
            return Err(ScriptError::Failed(if place.is_empty() {
                format!("{path}: stopped after --limit-seconds {seconds}")
            } else {
                format!("{place}: stopped after --limit-seconds {seconds}")
            }));
        }
        match outcome {
            Ok(()) => Ok(std::mem::take(&mut *lock(&shared.ended))),
            Err(text) if shared.was_stopped_for(Reason::User) => {
                Err(ScriptError::Interrupted(text))
            }
            Err(text) if shared.lacking.load(Ordering::Relaxed) => Err(ScriptError::Missing(text)),
            Err(text) => Err(ScriptError::Failed(text)),
        }
    }
}

fn run_main(shared: &Arc<Shared>, core: Option<usize>) -> Result<(), String> {
    if let Some(core) = core {
        taut_host::pin_current_thread(core).map_err(|e| e.to_string())?;
    }
    let run = || -> mlua::Result<()> {
        let state = State::new(shared)?;
        state.load()?;
        let main: Option<mlua::Function> = state.lua().globals().get("main")?;
        if let Some(main) = main {
            main.call::<()>(())?;
        }
        state.finish()
    };
    run().map_err(|e| shared.explain(&e))
}

/// Passes on that the script is to stop, and makes it stop if it does not.
fn watch(shared: &Shared, stop: &AtomicBool, limit: Option<Duration>, done: &AtomicBool) {
    let begun = Instant::now();
    let mut told: Option<Instant> = None;
    while !done.load(Ordering::Relaxed) {
        if stop.load(Ordering::Relaxed) {
            shared.stop_for(Reason::User);
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            shared.stop_for(Reason::Limit);
        }
        if shared.halt.load(Ordering::Relaxed) {
            let since = *told.get_or_insert_with(Instant::now);
            if since.elapsed() >= LAST_WORDS {
                // Again and again: states may be made meanwhile.
                lock(&shared.states).iter().for_each(Ends::end);
            }
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
