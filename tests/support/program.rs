//! A program started by a test: its output is stored, and it always ends.

use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The timeout of any step of a test.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A running program, killed on drop.
pub struct Program {
    child: Child,
    input: Option<ChildStdin>,
    output: TempDir,
    command_line: String,
}

/// The output of a program that ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

impl Finished {
    /// Returns the exit code; `None` if a signal ended the program.
    pub fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    /// Returns the last line of standard output as JSON.
    pub fn last_json(&self) -> serde_json::Value {
        let line = self.stdout.lines().last().unwrap_or_default();
        serde_json::from_str(line)
            .unwrap_or_else(|e| panic!("not JSON ({e}): {line:?} of {self:?}"))
    }

    /// Returns the first stream's part of the summary that `taut generate --json` prints last.
    pub fn first_stream(&self) -> serde_json::Value {
        let stream = self.last_json()["streams"][0].clone();
        assert!(stream.is_object(), "no stream in the summary: {self:?}");
        stream
    }

    /// Checks that the program succeeded; returns its output.
    #[track_caller]
    pub fn success(self) -> Self {
        assert_eq!(self.code(), Some(0), "{self:?}");
        self
    }
}

impl Program {
    /// Starts `command`; its standard input stays open until [`Program::close_input`] or the end of the program.
    pub fn start(command: &mut Command) -> Self {
        let output = super::scratch();
        let file = |name: &str| File::create(output.path().join(name)).unwrap();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(file("stdout"))
            .stderr(file("stderr"))
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        Self {
            input: child.stdin.take(),
            child,
            output,
            command_line: format!("{command:?}"),
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn stdout(&self) -> String {
        self.read("stdout")
    }

    pub fn stderr(&self) -> String {
        self.read("stderr")
    }

    fn read(&self, name: &str) -> String {
        String::from_utf8_lossy(&fs::read(self.output.path().join(name)).unwrap()).into_owned()
    }

    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Writes a line to the program's standard input.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().unwrap();
        writeln!(input, "{line}")
            .and_then(|()| input.flush())
            .unwrap();
    }

    /// Writes bytes to the program's standard input, without a line end.
    pub fn type_bytes(&mut self, bytes: &[u8]) {
        let input = self.input.as_mut().unwrap();
        input.write_all(bytes).and_then(|()| input.flush()).unwrap();
    }

    pub fn close_input(&mut self) {
        self.input = None;
    }

    /// Waits until `seen` is true of the program's standard output and standard error.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut seen: impl FnMut(&str, &str) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !seen(&self.stdout(), &self.stderr()) {
            let running = self.is_running();
            if running && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            } else if !seen(&self.stdout(), &self.stderr()) {
                let state = if running { "still runs" } else { "has ended" };
                self.give_up(&format!("{state} and never came to: {what}"));
            }
        }
    }

    #[track_caller]
    pub fn wait_for_stdout(&mut self, text: &str) {
        self.wait_until(text, |stdout, _| stdout.contains(text));
    }

    #[track_caller]
    pub fn wait_for_stderr(&mut self, text: &str) {
        self.wait_until(text, |_, stderr| stderr.contains(text));
    }

    /// Waits until a program listens on a TCP port of the program's network. A server's files do not show whether it
    /// listens.
    #[track_caller]
    pub fn wait_for_listener(&mut self, port: u16) {
        const LISTENS: &str = "0A";
        let port = format!(":{port:04X}");
        let tables = ["tcp", "tcp6"].map(|it| format!("/proc/{}/net/{it}", self.id()));
        self.wait_until(&format!("listen on TCP port 0x{}", &port[1..]), |_, _| {
            tables.iter().any(|table| {
                let sockets = fs::read_to_string(table).unwrap_or_default();
                sockets.lines().any(|socket| {
                    let mut words = socket.split_whitespace().skip(1);
                    words.next().is_some_and(|local| local.ends_with(&port))
                        && words.nth(1) == Some(LISTENS)
                })
            })
        });
    }

    #[track_caller]
    fn give_up(&self, why: &str) -> ! {
        panic!(
            "{} {why}\nstdout:\n{}\nstderr:\n{}",
            self.command_line,
            self.stdout(),
            self.stderr()
        )
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the program's end.
    #[track_caller]
    pub fn finish(self) -> Finished {
        self.finish_within(PATIENCE)
    }

    /// Waits for the program's end like [`Program::finish`], with another timeout.
    #[track_caller]
    pub fn finish_within(mut self, patience: Duration) -> Finished {
        let deadline = Instant::now() + patience;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                let finished = Finished {
                    status,
                    stdout: self.stdout(),
                    stderr: self.stderr(),
                };
                super::undisturbed::note_send_delay(&finished);
                return finished;
            }
            if Instant::now() >= deadline {
                self.give_up("did not end");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// Sends SIGINT, and waits for the program's end.
    #[track_caller]
    pub fn interrupt(self) -> Finished {
        self.signal(Signal::INT);
        self.finish()
    }

    /// Sends SIGKILL, and waits for the program's end.
    #[track_caller]
    pub fn kill(self) -> Finished {
        self.signal(Signal::KILL);
        self.finish()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // This output may also explain a failure that another program's output shows.
        if thread::panicking() {
            let (stdout, stderr) = (self.stdout(), self.stderr());
            let last: Vec<_> = stdout.lines().rev().take(3).collect();
            eprintln!(
                "a program that ran meanwhile said last: {last:?}, and on standard error: {stderr:?}"
            );
        }
    }
}

/// Runs `command` to its end.
#[track_caller]
pub fn run(command: &mut Command) -> Finished {
    let mut program = Program::start(command);
    program.close_input();
    program.finish()
}
