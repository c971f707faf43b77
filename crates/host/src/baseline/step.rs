//! Steps that start a baseline: commands in order, some of which end and some of which keep running.

use crate::ssh::quote_if_needed;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use crate::command::{CommandError, run};
use crate::process::{DeviceError, DeviceProcess, killed_with_owner};

/// Timeout for a program to become ready. DPDK programs take one second on an idle machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// Interval between attempts to connect to a socket.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// A command line, one element per word; it is not read by a shell.
pub(crate) type Line = Vec<String>;

/// A step in starting a baseline.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Step {
    /// Writes a file; its content is compiled into taut.
    Write(PathBuf, &'static str),
    /// Runs a command that must exit with success.
    Run(Line),
    /// Runs a command that must exit with success and print exactly this text, ignoring surrounding white space.
    Expect(Line, &'static str),
    /// Starts a program that runs until the baseline is stopped.
    Keep {
        /// The name of the program's output files, also used in messages.
        name: &'static str,
        line: Line,
        ready: Ready,
        owner: Owner,
    },
}

/// Condition under which a program that keeps running is ready for the next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Ready {
    /// The program counts as ready immediately after its start, because the next step itself waits for the program.
    AtOnce,
    /// The program listens on a socket; the value is the socket's path. (The socket's file exists a moment earlier.)
    Socket(PathBuf),
    /// A line of the program's output begins with the given text.
    LineStart(&'static str),
}

/// The mechanism that ends a program when taut has ended, for any reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The program ends by itself at the end of its standard input.
    WatchesInput,
    /// The program does not watch its standard input and would keep running, so a watcher kills it.
    NeedsWatcher,
}

/// The reason why a baseline did not start, or stopped.
#[derive(Debug, thiserror::Error)]
pub enum BaselineError {
    /// A set-up command failed.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// A file of the baseline cannot be written.
    #[error("writing {0}: {1}")]
    File(PathBuf, std::io::Error),
    /// A program of the baseline did not start, or exited.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A set-up command succeeded with unexpected output.
    #[error("`{command}` reports: {said}")]
    Unexpected {
        /// The command line whose output is unexpected.
        command: String,
        /// The unexpected output of the command.
        said: String,
    },
    /// A program runs but does not listen on its socket.
    #[error("{name} did not listen on {path} within {waited:?}; last output:\n{last_lines}")]
    NoSocket {
        /// The name of the program that does not listen on its socket.
        name: &'static str,
        /// The path of the socket on which the program should listen.
        path: PathBuf,
        /// The time spent waiting for the socket.
        waited: Duration,
        /// The last lines of the program's output.
        last_lines: String,
    },
}

/// The programs of a device under test, in the order in which they were started; a device inside the kernel has none.
/// Dropping this stops them, the last one first.
#[derive(Debug, Default)]
pub struct Running {
    processes: Vec<DeviceProcess>,
}

impl Running {
    /// Returns an error if one of the programs has exited.
    ///
    /// # Errors
    /// [`DeviceError::Died`] of the first program that has exited.
    pub fn check(&mut self) -> Result<(), DeviceError> {
        self.processes.iter_mut().try_for_each(DeviceProcess::check)
    }

    /// Stops all programs, the last one first.
    ///
    /// # Errors
    /// Stops all programs of the device, the last one first.
    pub fn stop(mut self) -> Result<(), DeviceError> {
        let mut done = Ok(());
        while let Some(process) = self.processes.pop() {
            let stopped = process.stop();
            done = done.and(stopped.map(drop));
        }
        done
    }

    /// Returns the process numbers of the device's programs.
    #[must_use]
    pub fn ids(&self) -> Vec<u32> {
        self.processes.iter().map(DeviceProcess::id).collect()
    }
}

impl From<DeviceProcess> for Running {
    fn from(process: DeviceProcess) -> Self {
        Self {
            processes: vec![process],
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        while self.processes.pop().is_some() {}
    }
}

/// Runs `steps` inside `namespace`, if one is given. Programs that keep running are pinned to `cpu` and write their
/// output into `folder`.
pub(crate) fn start(
    steps: Vec<Step>,
    namespace: Option<&str>,
    cpu: usize,
    folder: &Path,
) -> Result<Running, BaselineError> {
    let inside = |line: Line| -> Line {
        let enter = namespace.map(|name| words(&["ip", "netns", "exec", name]));
        enter.into_iter().flatten().chain(line).collect()
    };
    let mut running = Running::default();
    for step in steps {
        match step {
            Step::Write(path, source) => write(&path, source)?,
            Step::Run(line) => {
                run_line(&inside(line), &mut running)?;
            }
            Step::Expect(line, expected) => {
                let line = inside(line);
                let said = run_line(&line, &mut running)?;
                if said.trim() != expected {
                    return Err(BaselineError::Unexpected {
                        command: line.join(" "),
                        said: said.trim().to_owned(),
                    });
                }
            }
            Step::Keep {
                name,
                line,
                ready,
                owner,
            } => {
                let line = inside(line);
                let command = match owner {
                    Owner::WatchesInput => {
                        let mut command = std::process::Command::new(&line[0]);
                        command.args(&line[1..]);
                        command
                    }
                    Owner::NeedsWatcher => killed_with_owner(&line),
                };
                let mut process = DeviceProcess::start(name, command, cpu, folder)?;
                wait(&mut process, name, ready)?;
                running.processes.push(process);
            }
        }
    }
    Ok(running)
}

fn write(path: &Path, source: &str) -> Result<(), BaselineError> {
    let written = std::fs::write(path, source);
    written.map_err(|error| BaselineError::File(path.to_owned(), error))
}

fn run_line(line: &Line, running: &mut Running) -> Result<String, BaselineError> {
    let arguments: Vec<&str> = line[1..].iter().map(String::as_str).collect();
    let done = run(&line[0], &arguments);
    if done.is_err() {
        // The error of an exited program is more useful than the error of a step that waited for that program.
        running.check()?;
    }
    Ok(done?)
}

fn wait(
    process: &mut DeviceProcess,
    name: &'static str,
    ready: Ready,
) -> Result<(), BaselineError> {
    match ready {
        Ready::AtOnce => Ok(()),
        Ready::LineStart(start) => {
            process.wait_for_line(|line| line.starts_with(start), PATIENCE)?;
            Ok(())
        }
        Ready::Socket(path) => {
            let deadline = Instant::now() + PATIENCE;
            while UnixStream::connect(&path).is_err() {
                process.check()?;
                if Instant::now() >= deadline {
                    return Err(BaselineError::NoSocket {
                        name,
                        path,
                        waited: PATIENCE,
                        last_lines: process.last_lines(),
                    });
                }
                thread::sleep(POLL_INTERVAL);
            }
            Ok(())
        }
    }
}

/// Returns the words of a command line.
pub(crate) fn words(words: &[&str]) -> Line {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// Returns a step's command line for a shell; it ends in `&` if the program keeps running.
pub(crate) fn text(step: &Step) -> String {
    let (line, end) = match step {
        Step::Write(path, _) => {
            let name = path.file_stem().unwrap_or_default().display();
            let (from, to) = (format!("benches/peers/{name}/{name}.c"), path.display());
            return format!("cp {from} {to}");
        }
        Step::Run(line) | Step::Expect(line, _) => (line, ""),
        Step::Keep { line, .. } => (line, " &"),
    };
    let words: Vec<String> = line.iter().map(|word| quote_if_needed(word)).collect();
    words.join(" ") + end
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    fn start_here(steps: Vec<Step>) -> (Result<Running, BaselineError>, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let cpu = crate::choose_cores().device;
        (start(steps, None, cpu, folder.path()), folder)
    }

    fn keep(script: &str, ready: Ready) -> Step {
        Step::Keep {
            name: "keep",
            line: words(&["sh", "-c", script]),
            ready,
            owner: Owner::NeedsWatcher,
        }
    }

    #[test]
    fn a_failing_step_stops_all_programs_started_earlier() {
        let pid = tempfile::NamedTempFile::new().unwrap();
        let script = format!(
            "echo $$ > {}; echo up; exec sleep 1000",
            pid.path().display()
        );
        let (failed, _folder) = start_here(vec![
            keep(&script, Ready::LineStart("up")),
            Step::Run(words(&["false"])),
        ]);
        let message = failed.unwrap_err().to_string();
        assert!(message.contains("`false` failed"), "{message}");
        let pid = std::fs::read_to_string(pid.path()).unwrap();
        assert!(!Path::new("/proc").join(pid.trim()).exists());
    }

    #[test]
    fn a_failed_step_quotes_the_stderr_of_the_dead_program() {
        let pid = tempfile::NamedTempFile::new().unwrap();
        let path = pid.path().display();
        let dies = format!("echo $$ > {path}; echo up; echo no memory >&2; exit 3");
        let waits = format!(
            "while grep -qs 'State:.[^Z]' /proc/$(cat {path})/status; do sleep 0.01; done; exit 1"
        );
        let (failed, _folder) = start_here(vec![
            keep(&dies, Ready::LineStart("up")),
            Step::Run(words(&["sh", "-c", &waits])),
        ]);
        let message = failed.unwrap_err().to_string();
        assert!(message.ends_with("no memory"), "{message}");
    }

    #[test]
    fn unexpected_output_of_a_step_is_quoted_in_the_error() {
        let (failed, _folder) = start_here(vec![Step::Expect(words(&["echo", "wrong"]), "[]")]);
        assert_eq!(
            failed.unwrap_err().to_string(),
            "`echo wrong` reports: wrong",
            "what it says is the explanation"
        );
        let (fine, _folder) = start_here(vec![Step::Expect(words(&["echo", "[]"]), "[]")]);
        fine.unwrap().stop().unwrap();
    }

    #[test]
    fn waiting_ends_when_a_program_exits_before_its_socket_exists() {
        let socket = Ready::Socket("/no/such/socket".into());
        let (failed, _folder) = start_here(vec![keep("echo no memory >&2; exit 3", socket)]);
        let message = failed.unwrap_err().to_string();
        assert!(message.contains("exit status: 3"), "{message}");
        assert!(message.ends_with("no memory"), "{message}");
    }

    #[test]
    fn waiting_continues_until_a_socket_has_a_listener() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        // The file that the dropped listener leaves refuses connections, like a socket between `bind` and `listen`.
        drop(UnixListener::bind(&path).unwrap());
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(100));
                std::fs::remove_file(&path).unwrap();
                let listener = UnixListener::bind(&path).unwrap();
                listener.accept().unwrap();
            });
            let (running, _folder) =
                start_here(vec![keep("exec sleep 1000", Ready::Socket(path.clone()))]);
            running.unwrap().stop().unwrap();
        });
    }

    #[test]
    fn the_program_started_last_is_stopped_first() {
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("log");
        let script = |name: &str| {
            format!(
                "trap 'echo {name} >> {}; exit 0' INT TERM; echo up; while :; do sleep 0.01; done",
                log.display()
            )
        };
        let (running, _folder) = start_here(vec![
            keep(&script("first"), Ready::LineStart("up")),
            keep(&script("second"), Ready::LineStart("up")),
        ]);
        let mut running = running.unwrap();
        running.check().unwrap();
        assert_eq!(running.ids().len(), 2);
        running.stop().unwrap();
        assert_eq!(std::fs::read_to_string(log).unwrap(), "second\nfirst\n");
    }

    #[test]
    fn printed_command_lines_are_quoted_for_a_shell() {
        let step = Step::Keep {
            name: "click",
            line: words(&["click", "-e", "A -> B('x');", "", "--lcores=0@1"]),
            ready: Ready::AtOnce,
            owner: Owner::NeedsWatcher,
        };
        assert_eq!(
            text(&step),
            r"click -e 'A -> B('\''x'\'');' '' --lcores=0@1 &"
        );
        assert_eq!(text(&Step::Run(words(&["ip", "link"]))), "ip link");
    }
}
