//! A command of a run on a node, from start to exit.

use super::exchange::kill_group;
use crate::counters::Counter;
use crate::error::ExperimentError;
use crate::secrets::Secrets;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// A command to be run on a node.
pub(crate) struct Step<'a> {
    pub(crate) name: &'a str,
    /// Shell script of the command.
    pub(crate) script: &'a str,
    /// Time limit, after which the node ends the command.
    pub(crate) limit: Duration,
    /// True if no core of the node may enter an idle state while the command runs.
    pub(crate) awake: bool,
    /// Quantities that are counted while the command runs.
    pub(crate) counters: &'a [Counter],
    pub(crate) secrets: &'a Secrets,
    /// Path of the program that the script runs as `taut`; `None` if it is this program.
    pub(crate) program: Option<&'a str>,
    /// Log files of the command: first standard output, then standard error.
    pub(crate) logs: [File; 2],
}

/// A command that is running on a node.
pub(crate) trait StepUnderWay {
    /// Waits up to `at_most` for the command to exit. Returns the exit code at the first call after the exit, otherwise
    /// `None`.
    fn wait(&mut self, at_most: Duration) -> Option<i32>;

    /// Closes the command's input, which requests it to exit.
    fn close(&mut self);

    /// Kills the command, if it has not exited.
    fn kill(&mut self);
}

impl Step<'_> {
    /// Starts the step on the node of this role through a local process. `agent` makes the local command that runs
    /// `taut node step` on the node.
    pub(super) fn start_by(
        self,
        role: &str,
        agent: impl FnOnce(&[&str]) -> Command,
    ) -> Result<Box<dyn StepUnderWay>, ExperimentError> {
        let seconds = self.limit.as_secs_f64().to_string();
        let mut words = vec!["--name", self.name, "--limit", &seconds];
        words.extend((!self.secrets.is_empty()).then_some("--secrets"));
        words.extend(self.awake.then_some("--awake"));
        words.extend(self.program.iter().flat_map(|path| ["--program", path]));
        words.extend(self.counters.iter().flat_map(|it| ["--counter", it.name()]));
        words.extend(["--", self.script]);
        let mut command = agent(&words);
        let mut scrubbed = None;
        let [out, err] = if self.secrets.is_empty() {
            self.logs.map(Stdio::from)
        } else {
            scrubbed = Some(self.logs);
            [Stdio::piped(), Stdio::piped()]
        };
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(out)
            .stderr(err)
            .process_group(0)
            .spawn()
            .map_err(|e| {
                ExperimentError::node(role, format!("cannot start a command there: {e}"))
            })?;
        let mut stdin = child.stdin.take();
        if let Some(stdin) = stdin.as_mut().filter(|_| !self.secrets.is_empty()) {
            // An error is ignored: if the process has already exited, its exit code reports the failure.
            let _ = stdin.write_all(&self.secrets.line());
        }
        let pid = child.id();
        let mut copies = Vec::new();
        if let Some([out, err]) = scrubbed {
            let (said, complained) = (child.stdout.take(), child.stderr.take());
            copies.extend(said.map(|from| scrub(self.secrets, from, out)));
            copies.extend(complained.map(|from| scrub(self.secrets, from, err)));
        }
        let (ended, end) = channel();
        std::thread::spawn(move || {
            let code = child.wait().map_or(1, |status| {
                status.code().unwrap_or(128 + status.signal().unwrap_or(0))
            });
            // The logs are complete before the command counts as ended.
            for copy in copies {
                let _ = copy.join();
            }
            let _ = ended.send(code);
        });
        Ok(Box::new(Process { pid, stdin, end }))
    }
}

/// Copies the output of a command to a log file, without secrets.
fn scrub(secrets: &Secrets, from: impl Read + Send + 'static, log: File) -> JoinHandle<()> {
    let secrets = secrets.clone();
    std::thread::spawn(move || {
        let _ = secrets.copy(from, log);
    })
}

/// A local process that exits when the local or remote command exits.
struct Process {
    pid: u32,
    stdin: Option<ChildStdin>,
    end: Receiver<i32>,
}

impl StepUnderWay for Process {
    fn wait(&mut self, at_most: Duration) -> Option<i32> {
        self.end.recv_timeout(at_most).ok()
    }

    fn close(&mut self) {
        drop(self.stdin.take());
    }

    fn kill(&mut self) {
        kill_group(self.pid);
    }
}
