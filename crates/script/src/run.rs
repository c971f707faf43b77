//! Runs a script: starts its main state and tasks, and stops them.

use crate::api::State;
use crate::counts::Counted;
use crate::lock::lock;
use crate::script::{Reason, Script, Shared};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Timeout for the states of a script to reach an instruction at which they can be stopped. A state that exceeds it is
/// stuck in a call that does not return.
const OUT_OF_CALL: Duration = Duration::from_secs(2);
/// Interval at which stop requests and the time limit are checked.
const LOOK: Duration = Duration::from_millis(10);

/// Result of a script.
#[derive(Debug)]
pub struct Ended {
    /// Counters and histograms when the script ended.
    pub counted: Counted,
    /// Success if the script ended by itself, otherwise the reason.
    pub outcome: Result<(), ScriptError>,
    /// True if a state of the script is in a call that does not return. The caller must then exit the process soon,
    /// because only that ends the script's threads.
    pub is_stuck: bool,
}

/// Reason why a script failed.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The script cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Path of the file.
        path: PathBuf,
        /// Error that the operating system reported.
        source: std::io::Error,
    },
    /// The script failed; the text contains the position and the reason.
    #[error("{0}")]
    Failed(String),
    /// The script failed because the machine lacks something: a device, a permission, the peer of a link.
    #[error("{0}")]
    Missing(String),
    /// The script was stopped by the user or the time limit, and did not end in time by itself.
    #[error("{0}")]
    Interrupted(String),
}

impl Script {
    /// Runs the script to its end. `stop` becomes true when the user requests the end.
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

    /// Runs like [`Script::run`], with the script's text instead of its file.
    pub fn run_source(self, source: String, stop: &AtomicBool) -> Ended {
        let shared = Arc::new(Shared::new(self, source));
        let outcome = watched(&shared, stop);
        let is_stuck = outcome.is_none();
        if is_stuck {
            // The thread that would close these ports is stuck, so their socket files are deleted here.
            for socket in lock(&shared.sockets).drain(..) {
                let _ = std::fs::remove_file(socket);
            }
        }
        let counted = lock(&shared.counts).whole();
        Ended {
            counted,
            outcome: said(&shared, outcome),
            is_stuck,
        }
    }
}

/// Returns the outcome of a script as shown to the user. `outcome` is none if the script is stuck.
fn said(shared: &Shared, outcome: Option<Result<(), String>>) -> Result<(), ScriptError> {
    let path = shared.script.path.display();
    let stuck = || format!("{path}: stopped in a call that does not return");
    let outcome = outcome.unwrap_or_else(|| Err(stuck()));
    let outcome = outcome.map_err(|text| shared.first_failure().unwrap_or(text));
    if shared.was_stopped_for(Reason::Limit) {
        let seconds = shared.script.limit.unwrap_or_default().as_secs_f64();
        let place = outcome.err().unwrap_or_else(|| path.to_string());
        let place = place.replace(": stopped in", ": in");
        let place = place.replace(": stopped", ": here");
        let text = format!("{place}: stopped after --limit-seconds {seconds}");
        return Err(ScriptError::Failed(text));
    }
    match outcome {
        Err(text) if shared.was_stopped_for(Reason::User) => Err(ScriptError::Interrupted(text)),
        Err(text) if shared.lacking.load(Ordering::Relaxed) => Err(ScriptError::Missing(text)),
        Err(text) => Err(ScriptError::Failed(text)),
        Ok(()) => Ok(()),
    }
}

/// Runs main and tasks in their own threads. Passes stop requests to the script, and forces it to stop if it ignores
/// them. Returns none if a thread cannot be stopped: only the exit of the process ends it.
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
            // Sending fails if the caller has given this thread up: the receiver is closed then.
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
                // The call is repeated, because the script may have made new states since the last one.
                shared.end_states();
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
    use taut_port::PortSpec;
    use taut_sys::Clock;

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
    fn starting_a_task_outside_the_function_main_is_refused() {
        let text = failure_of("function f() end\ntaut.task(nil, 'f')\ntaut.sleep(10)");
        assert!(text.starts_with("x.lua:2: taut.task: "), "{text}");
        assert!(text.contains("move it into the function main"), "{text}");
        assert!(text.ends_with("(in task f)"), "{text}");
    }

    #[test]
    fn an_unknown_key_is_reported_with_all_valid_keys() {
        for (source, parts) in [
            (
                "taut.run { secnds = 0.1 }",
                [
                    "taut.run: unknown key `secnds`: expected one of `rate`, ",
                    "; did you mean `seconds`?",
                ],
            ),
            (
                "taut.send(taut.port(1), function() end, { secnds = 0.1 })",
                [
                    "taut.send: unknown key `secnds`: expected `seconds`, ",
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
                    "taut.receive: unknown key `secnds`: expected one of `seconds`, `wait`",
                    "`seconds`?",
                ],
            ),
            (
                "taut.stream { siz = 64 }",
                [
                    "taut.stream: unknown key `siz`: expected one of `name`",
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
