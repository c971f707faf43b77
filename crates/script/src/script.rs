//! A script, and what all of its states share.

use crate::counts::{Counts, StateNumber};
use crate::lock::lock;
use crate::tasks::Tasks;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;
use taut_lua::{Ends, explain};
use taut_port::PortSpec;
use taut_sys::Clock;

/// Time that a script which was told to stop may take to say its last words.
pub const LAST_WORDS: Duration = Duration::from_secs(1);
/// Error of a state that has no memory left.
const NO_MEMORY: &str = "not enough memory; give more with --memory if the script needs it";

/// A script and what it may use.
#[derive(Debug, Clone)]
pub struct Script {
    /// Path of the script's file.
    pub path: PathBuf,
    /// Ports it may open, in order.
    pub ports: Vec<PortSpec>,
    /// Arguments that the script finds in `taut.args`.
    pub arguments: Vec<String>,
    /// Whether it may reach files, programs and memory.
    pub trusted: bool,
    /// Time after which the script is told to stop.
    pub limit: Option<Duration>,
    /// Time that the script may go on when it was told to stop: [`LAST_WORDS`].
    pub last_words: Duration,
    /// Bytes that each of its states may hold.
    pub memory_bytes: usize,
    /// Time to wait for the other side of a port.
    pub wait: Duration,
    /// Core of the main state.
    pub core: Option<usize>,
    /// The clock of all stamps.
    pub clock: Clock,
}

/// Reason why a script is to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// The script is not to stop.
    None = 0,
    /// The user said so.
    User = 1,
    /// The script took too long.
    Limit = 2,
    /// One of the script's tasks failed.
    Failure = 3,
}

/// State that all states of one script share.
pub struct Shared {
    pub script: Script,
    pub source: String,
    /// Name of the script in Lua's messages.
    pub chunk: String,
    /// Flag that is set once traffic is to stop.
    pub halt: AtomicBool,
    reason: AtomicU8,
    /// Flag that is set when a port could not be had that another machine may have.
    pub lacking: AtomicBool,
    /// Failure of the state that failed first: what others say is that they were stopped.
    failure: Mutex<Option<String>>,
    states: Mutex<Vec<(StateNumber, Ends)>>,
    made: AtomicU64,
    pub counts: Mutex<Counts>,
    /// Sockets of ports that are open, which their files outlive if nobody closes them.
    pub sockets: Mutex<Vec<PathBuf>>,
    pub tasks: Tasks,
}

impl Shared {
    /// What the states of a script with this text share.
    pub fn new(script: Script, source: String) -> Self {
        // Lua cuts longer names.
        let chunk: String = script.path.file_name().map_or_else(
            || "script".to_string(),
            |name| name.to_string_lossy().chars().take(40).collect(),
        );
        Self {
            script,
            // A first line that says who runs it.
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
        }
    }

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

    pub fn was_stopped_for(&self, reason: Reason) -> bool {
        self.reason.load(Ordering::Relaxed) == reason as u8
    }

    /// Returns the failure of the state that failed first.
    pub fn first_failure(&self) -> Option<String> {
        lock(&self.failure).take()
    }

    /// Says that there is one more state that may have to be ended; returns its number.
    pub fn watch(&self, ends: Ends) -> StateNumber {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        lock(&self.states).push((number, ends));
        number
    }

    /// Ends all states that there are now.
    pub fn end_states(&self) {
        lock(&self.states).iter().for_each(|(_, ends)| ends.end());
    }

    /// Says that a state has ended.
    pub fn forget(&self, number: StateNumber) {
        lock(&self.states).retain(|(known, _)| *known != number);
        lock(&self.counts).close(number);
    }

    pub fn explain(&self, error: &mlua::Error) -> String {
        let path = self.script.path.display().to_string();
        explain(error, &self.chunk, &path, NO_MEMORY)
    }
}
