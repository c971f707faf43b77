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

/// Command that a node is to carry out.
pub(crate) struct Step<'a> {
    pub(crate) name: &'a str,
    /// Text for the shell there.
    pub(crate) script: &'a str,
    /// Time after which the node ends it.
    pub(crate) limit: Duration,
    /// Whether no core is to halt meanwhile.
    pub(crate) awake: bool,
    pub(crate) secrets: &'a Secrets,
    /// Files for what it prints: its output, and its errors.
    pub(crate) logs: [File; 2],
}

/// Command that a node carries out.
pub(crate) trait StepUnderWay {
    /// Waits for its end, so long at most. Returns its exit code, once.
    fn wait(&mut self, at_most: Duration) -> Option<i32>;

    /// Closes its input, which tells it to end.
    fn close(&mut self);

    /// Kills it, as it did not end by itself.
    fn kill(&mut self);
}

impl Step<'_> {
    /// Starts it on the node of this role by a process of this machine: `agent` makes the command that runs `taut node step`
    /// there with these arguments.
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
            // What has ended already says so by its exit code.
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
            // Logs are whole before the command counts as ended.
            for copy in copies {
                let _ = copy.join();
            }
            let _ = ended.send(code);
        });
        Ok(Box::new(Process { pid, stdin, end }))
    }
}

/// Writes what a command prints to its log, without secrets.
fn scrub(secrets: &Secrets, from: impl Read + Send + 'static, log: File) -> JoinHandle<()> {
    let secrets = secrets.clone();
    std::thread::spawn(move || {
        let _ = secrets.copy(from, log);
    })
}

/// Process of this machine that ends when the command does, here or far.
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
