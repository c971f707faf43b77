//! Running a script: its state and those of its tasks, and what ends them.

use crate::api::State;
use crate::counts::{Counted, Counts};
use crate::task::Tasks;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taut_lua::{Ends, explain};
use taut_port::PortSpec;
use taut_sys::Clock;

/// Time that a script which was told to stop may take to say its last words.
pub const LAST_WORDS: Duration = Duration::from_secs(1);
/// Time that its states may take after that to reach an instruction at which they can be ended. One that does not is in
/// a call that does not come back.
const OUT_OF_CALL: Duration = Duration::from_secs(2);
/// Error of a state that has no memory left.
const NO_MEMORY: &str = "not enough memory; give more with --memory if the script needs it";
/// Time between two looks at the script.
const LOOK: Duration = Duration::from_millis(10);

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

/// Result of a script.
#[derive(Debug)]
pub struct Ended {
    /// Counts of the script by then.
    pub counted: Counted,
    /// Success if the script came to its end, or why not.
    pub outcome: Result<(), ScriptError>,
    /// Whether some of the script is in a call that does not come back: the process is to end soon, which takes its
    /// threads along.
    pub is_stuck: bool,
}

/// Reason why a script did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The script cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Answer of the system.
        source: std::io::Error,
    },
    /// The script failed; the line says where and why.
    #[error("{0}")]
    Failed(String),
    /// The script failed because the machine lacks something: a device, a permission, the other side of a link.
    #[error("{0}")]
    Missing(String),
    /// The script was told to stop from outside, and did not by itself.
    #[error("{0}")]
    Interrupted(String),
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
    states: Mutex<Vec<(u64, Ends)>>,
    made: AtomicU64,
    pub counts: Mutex<Counts>,
    /// Sockets of ports that are open, which their files outlive if nobody closes them.
    pub sockets: Mutex<Vec<PathBuf>>,
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

    /// Says that there is one more state that may have to be ended; returns its number.
    pub fn watch(&self, ends: Ends) -> u64 {
        let number = self.made.fetch_add(1, Ordering::Relaxed);
        lock(&self.states).push((number, ends));
        number
    }

    /// Says that a state has ended.
    pub fn forget(&self, number: u64) {
        lock(&self.states).retain(|(known, _)| *known != number);
        lock(&self.counts).close(number);
    }

    pub fn explain(&self, error: &mlua::Error) -> String {
        let path = self.script.path.display().to_string();
        explain(error, &self.chunk, &path, NO_MEMORY)
    }
}

impl Script {
    /// Runs the script to its end. `stop` is the user's.
    pub fn run(self, stop: &AtomicBool) -> Ended {
        match std::fs::read_to_string(&self.path) {
            Ok(source) => self.run_source(source, stop),
            Err(source) => Ended {
                counted: Counted::default(),
                outcome: Err(ScriptError::Unreadable {
                    path: self.path,
                    source,
                }),
                is_stuck: false,
            },
        }
    }

    /// Runs as [`Script::run`] does, with the script's text instead of that of its file.
    pub fn run_source(self, source: String, stop: &AtomicBool) -> Ended {
        // Lua cuts longer names.
        let chunk: String = self.path.file_name().map_or_else(
            || "script".to_string(),
            |name| name.to_string_lossy().chars().take(40).collect(),
        );
        let shared = Arc::new(Shared {
            script: self,
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
        });
        let outcome = watched(&shared, stop);
        let is_stuck = outcome.is_none();
        if is_stuck {
            // Whoever would close these ports is in the call that does not come back.
            for socket in lock(&shared.sockets).drain(..) {
                let _ = std::fs::remove_file(socket);
            }
        }
        let counted = lock(&shared.counts).whole();
        Ended {
            counted,
            outcome: shared.said(outcome),
            is_stuck,
        }
    }
}

impl Shared {
    /// The outcome of a script that ended by itself, or of one that is stuck, for the user.
    fn said(&self, outcome: Option<Result<(), String>>) -> Result<(), ScriptError> {
        let path = self.script.path.display();
        let stuck = || format!("{path}: stopped in a call that does not come back");
        let outcome = outcome.unwrap_or_else(|| Err(stuck()));
        let outcome = outcome.map_err(|text| lock(&self.failure).take().unwrap_or(text));
        if self.was_stopped_for(Reason::Limit) {
            let seconds = self.script.limit.unwrap_or_default().as_secs_f64();
            let place = outcome.err().unwrap_or_else(|| path.to_string());
            let place = place.replace(": stopped in", ": in");
            let place = place.replace(": stopped", ": here");
            let text = format!("{place}: stopped after --limit-seconds {seconds}");
            return Err(ScriptError::Failed(text));
        }
        match outcome {
            Err(text) if self.was_stopped_for(Reason::User) => Err(ScriptError::Interrupted(text)),
            Err(text) if self.lacking.load(Ordering::Relaxed) => Err(ScriptError::Missing(text)),
            Err(text) => Err(ScriptError::Failed(text)),
            Ok(()) => Ok(()),
        }
    }
}

/// Runs main and tasks in threads of their own. Passes on that the script is to stop, and makes it stop if it does not; none
/// if it cannot be made to. Such threads stay behind: nothing in a process can end them but its own end.
fn watched(shared: &Arc<Shared>, stop: &AtomicBool) -> Option<Result<(), String>> {
    let (ended, end) = channel();
    let main = {
        let shared = Arc::clone(shared);
        move || {
            let outcome = run_main(&shared);
            if let Err(text) = &outcome {
                shared.fail(text);
            }
            let tasks = shared.tasks.join_all();
            // Nobody listens any more to one that was given up.
            let _ = ended.send(outcome.and(tasks));
        }
    };
    if let Err(e) = std::thread::Builder::new().spawn(main) {
        return Some(Err(format!("cannot start the script's thread: {e}")));
    }
    let begun = Instant::now();
    let mut told: Option<Instant> = None;
    loop {
        match end.recv_timeout(LOOK) {
            Ok(outcome) => return Some(outcome),
            Err(RecvTimeoutError::Disconnected) => {
                return Some(Err("the script's thread died".to_string()));
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stop.load(Ordering::Relaxed) {
            shared.stop_for(Reason::User);
        }
        if (shared.script.limit).is_some_and(|limit| begun.elapsed() >= limit) {
            shared.stop_for(Reason::Limit);
        }
        if shared.halt.load(Ordering::Relaxed) {
            let waited = told.get_or_insert_with(Instant::now).elapsed();
            if waited >= shared.script.last_words {
                // Again and again: states may be made meanwhile.
                lock(&shared.states).iter().for_each(|(_, ends)| ends.end());
            }
            if waited >= shared.script.last_words + OUT_OF_CALL {
                return None;
            }
        }
    }
}

fn run_main(shared: &Arc<Shared>) -> Result<(), String> {
    if let Some(core) = shared.script.core {
        taut_host::pin_current_thread(core).map_err(|e| e.to_string())?;
    }
    let run = || -> mlua::Result<()> {
        let state = State::new(shared)?;
        state.load()?;
        let main: Option<mlua::Function> = state.lua().globals().get("main")?;
        if let Some(main) = main {
            main.call::<()>(())?;
        }
        Ok(())
    };
    run().map_err(|e| shared.explain(&e))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn failure_of(source: &str) -> String {
        let script = Script {
            path: "x.lua".into(),
            ports: vec![PortSpec::parse("null:").unwrap()],
            arguments: Vec::new(),
            trusted: false,
            limit: Some(Duration::from_secs(20)),
            last_words: Duration::ZERO,
            memory_bytes: 64 << 20,
            wait: Duration::from_secs(1),
            core: None,
            clock: Clock::calibrate(Duration::from_millis(1)),
        };
        let ended = script.run_source(source.to_string(), &AtomicBool::new(false));
        ended.outcome.unwrap_err().to_string()
    }

    #[test]
    fn a_task_that_would_start_itself_again_is_refused() {
        let text = failure_of("function f() end\ntaut.task(nil, 'f')\ntaut.sleep(10)");
        assert!(text.starts_with("x.lua:2: taut.task: "), "{text}");
        assert!(text.contains("move it into the function main"), "{text}");
        assert!(text.ends_with("(in task f)"), "{text}");
    }

    #[test]
    fn a_wrong_key_is_told_with_all_that_were_possible() {
        for (source, parts) in [
            (
                "taut.run { secnds = 0.1 }",
                [
                    "taut.run: unknown key `secnds`: want one of `rate`, ",
                    "; did you mean `seconds`?",
                ],
            ),
            (
                "taut.send(taut.port(1), function() end, { secnds = 0.1 })",
                [
                    "taut.send: unknown key `secnds`: want `seconds`, ",
                    "; did you mean `seconds`?",
                ],
            ),
            (
                "taut.send(taut.port(1), function() end, { siz = 64 })",
                [
                    "or, of the stream, `name`, `rate`",
                    "; did you mean `size`?",
                ],
            ),
            (
                "taut.receive(taut.port(1), function() end, { secnds = 0.1 })",
                [
                    "taut.receive: unknown key `secnds`: want one of `seconds`, `wait`",
                    "`seconds`?",
                ],
            ),
            (
                "taut.stream { siz = 64 }",
                [
                    "taut.stream: unknown key `siz`: want one of `name`",
                    "; did you mean `size`?",
                ],
            ),
        ] {
            let text = failure_of(source);
            assert!(text.starts_with("x.lua:1: "), "{text}");
            for part in parts {
                assert!(text.contains(part), "{source}: {text}");
            }
        }
    }
}
