//! A command of a run on a node, from its start to its end.

use super::exchange::kill_group;
use crate::error::ExperimentError;
use crate::secrets::Secrets;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// Command for a node to run.
pub(crate) struct Step<'a> {
    pub(crate) name: &'a str,
    /// Text for the shell there.
    pub(crate) script: &'a str,
    /// Time limit, after which the node ends the command.
    pub(crate) limit: Duration,
    /// True if no core may halt during it.
    pub(crate) awake: bool,
    pub(crate) secrets: &'a Secrets,
    /// Files for its output and its errors.
    pub(crate) logs: [File; 2],
}

/// Command that a node is running.
pub(crate) trait StepUnderWay {
    /// Waits for its end for up to `at_most`. Returns its exit code, once.
    fn wait(&mut self, at_most: Duration) -> Option<i32>;

    /// Closes its input, which asks it to end.
    fn close(&mut self);

    /// Kills it, if it did not end by itself.
    fn kill(&mut self);
}

impl Step<'_> {
    /// Starts the step on the node of this role through a local process. `agent` makes the command that runs `taut node
    /// step` with the given arguments on the node.
    pub(super) fn start_by(
        self,
        role: &str,
        agent: impl FnOnce(&[&str]) -> Command,
    ) -> Result<Box<dyn StepUnderWay>, ExperimentError> {
        let seconds = self.limit.as_secs_f64().to_string();
        let mut words = vec!["--name", self.name, "--limit", &seconds];
        words.extend((!self.secrets.is_empty()).then_some("--secrets"));
        words.extend(self.awake.then_some("--awake"));
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
            // If the process has already ended, its exit code reports that.
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

/// Writes the output of a command to its log, without secrets.
fn scrub(secrets: &Secrets, from: impl Read + Send + 'static, log: File) -> JoinHandle<()> {
    let secrets = secrets.clone();
    std::thread::spawn(move || {
        let _ = secrets.copy(from, log);
    })
}

/// Local process that ends when the command does, whether local or remote.
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
