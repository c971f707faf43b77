//! A script, and the data that all of its states share.

use crate::counts::{Counts, StateNumber};
use crate::lock::lock;
use crate::meeting::Meeting;
use crate::tasks::Tasks;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use taut_lua::{Ends, explain};
use taut_port::PortSpec;
use taut_sys::Clock;

/// Time that a script may use after a stop request, for its final output.
pub const LAST_WORDS: Duration = Duration::from_secs(1);
/// Error of a state that has no memory left.
const NO_MEMORY: &str = "not enough memory; give more with --memory if the script needs it";

/// A script and its resources.
#[derive(Debug, Clone)]
pub struct Script {
    /// Path of the script's file.
    pub path: PathBuf,
    /// Ports that the script may open, in order.
    pub ports: Vec<PortSpec>,
    /// Arguments of the script, in Lua `taut.args`.
    pub arguments: Vec<String>,
    /// True if the script may access files, programs and memory.
    pub trusted: bool,
    /// Time limit, after which the script gets a stop request; none for no limit.
    pub limit: Option<Duration>,
    /// Time that the script may use after a stop request, normally [`LAST_WORDS`].
    pub last_words: Duration,
    /// Memory limit of each Lua state, bytes.
    pub memory_bytes: usize,
    /// Longest time to wait until the peer of a port connects.
    pub wait: Duration,
    /// CPU core on which the main state runs; none for any core.
    pub core: Option<usize>,
    /// The clock of all timestamps.
    pub clock: Clock,
}

/// Reason of a stop request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// There is no stop request.
    None = 0,
    /// The user stops the script.
    User = 1,
    /// The script exceeded its time limit.
    Limit = 2,
    /// One of the script's tasks failed.
    Failure = 3,
}

/// Data that all states of one script share.
pub struct Shared {
    pub script: Script,
    pub source: String,
    /// Name of the script in Lua's messages.
    pub chunk: String,
    /// Flag that stops running trials when it becomes true.
    pub halt: AtomicBool,
    reason: AtomicU8,
    /// True if the last failed trial lacked something on this machine: a port, a link or a gateway. Another machine may
    /// have it.
    pub lacking: AtomicBool,
    /// Failure of the first state that failed; other states only report that they were stopped.
    failure: Mutex<Option<String>>,
    states: Mutex<Vec<(StateNumber, Ends)>>,
    made: AtomicU64,
    pub counts: Mutex<Counts>,
    /// Socket files of open ports, which must be deleted if the ports are not closed.
    pub sockets: Mutex<Vec<PathBuf>>,
    pub tasks: Tasks,
    pub meeting: Meeting,
}

impl Shared {
    /// Makes the shared data for a script with this text.
    pub fn new(script: Script, source: String) -> Self {
        // Lua truncates longer names.
        let chunk: String = script.path.file_name().map_or_else(
            || "script".to_string(),
            |name| name.to_string_lossy().chars().take(40).collect(),
        );
        Self {
            script,
            // The first line may name the interpreter.
            source: match source.strip_prefix("#!") {
                Some(rest) => format!("--{rest}"),
                None => source,
            },
            chunk,
            halt: AtomicBool::new(false),
            reason: AtomicU8::new(Reason::None as u8),
            lacking: AtomicBool::new(false),
            failure: Mutex::default(),
            states: Mutex::default(),
            made: AtomicU64::new(0),
            counts: Mutex::default(),
            sockets: Mutex::default(),
            tasks: Tasks::default(),
            meeting: Meeting::default(),
        }
    }

    /// Requests all Lua states of the script to stop for a reason; only the first reason is stored.
    pub fn stop_for(&self, reason: Reason) {
        let _ = self.reason.compare_exchange(
            Reason::None as u8,
            reason as u8,
            Ordering::Relaxed,
            Ordering::Relaxed,
        );
        self.halt.store(true, Ordering::Relaxed);
    }

    /// Requests all Lua states of the script to stop, because one failed with the error `text`.
    pub fn fail(&self, text: &str) {
        lock(&self.failure).get_or_insert_with(|| text.to_string());
        self.stop_for(Reason::Failure);
    }

    pub fn was_stopped_for(&self, reason: Reason) -> bool {
        self.reason.load(Ordering::Relaxed) == reason as u8
    }

    /// Removes and returns the failure of the first Lua state that failed; none if no state failed.
    pub fn first_failure(&self) -> Option<String> {
        lock(&self.failure).take()
    }

    /// Registers a Lua state that may have to be stopped; returns the state's identifier.
    pub fn watch(&self, ends: Ends) -> StateNumber {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        lock(&self.states).push((number, ends));
        number
    }

    /// Stops all Lua states of the script that have not ended.
    pub fn end_states(&self) {
        lock(&self.states).iter().for_each(|(_, ends)| ends.end());
    }

    /// Removes a Lua state that has ended, and adds its counts to the totals.
    pub fn forget(&self, number: StateNumber) {
        lock(&self.states).retain(|(known, _)| *known != number);
        lock(&self.counts).close(number);
    }

    pub fn explain(&self, error: &mlua::Error) -> String {
        let path = self.script.path.display().to_string();
        explain(error, &self.chunk, &path, NO_MEMORY)
    }
}
