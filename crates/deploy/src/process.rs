//! A process of a chain: a monitored `taut forward`, which ends when its [`Process`] is dropped.

use crate::DeployError;
use crate::lines::next_line;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::OpenOptions;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use taut_engine::Order;

/// A message of a process, or the report that the process has ended.
#[derive(Debug)]
pub(crate) struct Word {
    /// Index of the process in its chain.
    pub process: usize,
    /// Number of earlier starts of the process. It identifies late messages of an earlier start.
    pub start: u32,
    /// Content of the message.
    pub what: Said,
}

#[derive(Debug)]
pub(crate) enum Said {
    /// A line of the process's standard output: JSON.
    Event(String),
    /// A line of the process's standard error, for people.
    Told(String),
    /// The process has ended.
    Ended,
}

/// The command that starts a process.
#[derive(Debug, Clone)]
pub(crate) struct Launch {
    /// Path of the executable of taut.
    pub program: PathBuf,
    /// Network namespace of the process; none if the process runs in the supervisor's namespace.
    pub namespace: Option<String>,
    /// Chain files of the process, one for each worker.
    pub files: Vec<PathBuf>,
    /// Sockets of the virtual machine's NICs; empty if the process runs no virtual machine.
    pub cards: Vec<PathBuf>,
    /// Log file for the process's standard error.
    pub log: PathBuf,
}

impl Launch {
    fn command(&self) -> Command {
        let mut command = match &self.namespace {
            // `ip` executes the program in its own process, so that the process number stays the same.
            Some(namespace) => {
                let mut command = Command::new("ip");
                command
                    .args(["netns", "exec", namespace])
                    .arg(&self.program);
                command
            }
            None => Command::new(&self.program),
        };
        command.arg(if self.cards.is_empty() {
            "forward"
        } else {
            "vm"
        });
        for card in &self.cards {
            command.arg("--card").arg(card);
        }
        command
            .args(&self.files)
            .args(["--json", "--until-stdin-closes", "--control"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The process has its own group, so that only its owner handles a Ctrl-C at the terminal.
            .process_group(0);
        command
    }
}

#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    input: Option<ChildStdin>,
}

impl Process {
    /// Starts the process; its messages are sent to `words`.
    pub(crate) fn start<E: From<Word> + Send + 'static>(
        launch: &Launch,
        process: usize,
        start: u32,
        words: &Sender<E>,
    ) -> Result<Self, DeployError> {
        let mut command = launch.command();
        let failed = |e: std::io::Error| {
            DeployError::system(format!("cannot run {}", launch.program.display()), e)
        };
        let log = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&launch.log);
        let mut log = log.map_err(|e| {
            DeployError::system(format!("cannot write {}", launch.log.display()), e)
        })?;
        let mut child = command.spawn().map_err(failed)?;
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let say = {
            let words = words.clone();
            move |what| {
                let word = Word {
                    process,
                    start,
                    what,
                };
                words.send(word.into()).is_ok()
            }
        };
        let tell = say.clone();
        let told = thread::spawn(move || {
            for line in lines(stderr) {
                let _ = writeln!(log, "{line}");
                tell(Said::Told(line));
            }
        });
        thread::spawn(move || {
            for line in lines(stdout) {
                say(Said::Event(line));
            }
            // The last lines of standard error are reported before the end of the process.
            let _ = told.join();
            say(Said::Ended);
        });
        Ok(Self {
            input: child.stdin.take(),
            child,
        })
    }

    /// Returns the process identifier.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Writes a command as a line to the process's standard input.
    pub(crate) fn order(&mut self, order: &Order) -> std::io::Result<()> {
        let line = serde_json::to_string(order)?;
        let input = self.input.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(input, "{line}").and_then(|()| input.flush())
    }

    /// Requests the end of the process by closing its standard input.
    pub(crate) fn tell_to_end(&mut self) {
        self.input = None;
    }

    /// Kills the process if it still runs, and returns its exit status.
    pub(crate) fn end(&mut self) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        // An error is ignored: it only means that the process group is already empty.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        self.child.wait().ok()
    }

    /// Waits for the exit of a process that has closed its output, and returns its exit status.
    pub(crate) fn status(&mut self) -> Option<ExitStatus> {
        self.child.wait().ok()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

fn lines(stream: Option<impl Read>) -> impl Iterator<Item = String> {
    let mut reader = stream.map(BufReader::new);
    std::iter::from_fn(move || next_line(reader.as_mut()?))
}
