//! A device under test that runs as a child process on a separate CPU, and is stopped at the latest when it is dropped.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group,
    set_child_subreaper, wait, waitid,
};

use crate::affinity::{AffinityError, pin_current_thread};
use crate::permissions::mask_after;

/// The interval between checks while waiting for a device's exit or output.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The number of lines of standard error that a message quotes.
const LAST_LINES: usize = 10;

/// Returns the id of the first thread of a process with `part` in its name; `None` if there is no such thread or
/// process.
pub fn thread_named(process: u32, part: &str) -> Option<u32> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).ok()?;
    let mut threads: Vec<(u32, PathBuf)> = threads
        .flatten()
        .filter_map(|entry| {
            let id = entry.file_name().to_str()?.parse().ok()?;
            Some((id, entry.path().join("comm")))
        })
        .collect();
    threads.sort_unstable();
    let named =
        |(_, file): &(u32, PathBuf)| fs::read_to_string(file).is_ok_and(|name| name.contains(part));
    threads.into_iter().find(named).map(|(id, _)| id)
}

/// The reason why a device under test did not start, print a line or continue to run.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The program could not be started.
    #[error("cannot start {name} (`{command}`): {source}")]
    NotStarted {
        /// The device's name.
        name: String,
        /// The command line that starts the device.
        command: String,
        /// The error that the operating system reported.
        source: io::Error,
    },
    /// The device could not be pinned to its CPU.
    #[error("cannot start {name}: {source}")]
    NotPinned {
        /// The device's name.
        name: String,
        /// The reason why the device could not be pinned.
        source: AffinityError,
    },
    /// The device's output file could not be written or read.
    #[error("cannot use {path} for the output of {name}: {source}")]
    Output {
        /// The device's name.
        name: String,
        /// The path of the file.
        path: PathBuf,
        /// The error that the operating system reported.
        source: io::Error,
    },
    /// The device exited by itself.
    #[error("{name} exited unexpectedly ({status}); last output:\n{last_lines}")]
    Died {
        /// The device's name.
        name: String,
        /// The exit status of the device.
        status: ExitStatus,
        /// The end of the device's standard error, or of its standard output if the standard error is empty.
        last_lines: String,
    },
    /// The device runs but did not print the expected line.
    #[error(
        "{name} did not print the expected output within {waited:?}; last output:\n{last_lines}"
    )]
    Silent {
        /// The device's name.
        name: String,
        /// The time spent waiting for the line of output.
        waited: Duration,
        /// The end of the device's standard error, or of its standard output if the standard error is empty.
        last_lines: String,
    },
    /// A signal could not be sent to the device, or waiting for the device's exit failed.
    #[error("cannot stop {name} (process {pid}): {source}")]
    NotStopped {
        /// The device's name.
        name: String,
        /// The device's process ID.
        pid: u32,
        /// The error of the operating system when the signal was sent or the exit was awaited.
        source: io::Error,
    },
}

/// A running device under test. Dropping this value stops the device.
///
/// The device runs in its own process group, so a Ctrl-C at the terminal reaches it only through
/// [`DeviceProcess::stop`]. Its standard input is a pipe that closes when this process ends, for any reason: a device
/// that watches for the end of its input then ends too.
#[derive(Debug)]
pub struct DeviceProcess {
    name: String,
    child: Child,
    pid: Pid,
    stdout: PathBuf,
    stderr: PathBuf,
    /// The number of bytes of standard output that [`DeviceProcess::wait_for_line`] has read.
    read_bytes: u64,
    ended: Option<ExitStatus>,
}

impl DeviceProcess {
    /// Starts `command` pinned to `cpu`, with its output in `<name>.stdout` and `<name>.stderr` of `folder`, which must
    /// exist. Threads that the program creates run on `cpu` too.
    ///
    /// # Errors
    /// [`DeviceError::NotStarted`], [`DeviceError::NotPinned`], [`DeviceError::Output`].
    pub fn start(
        name: &str,
        mut command: Command,
        cpu: usize,
        folder: &Path,
    ) -> Result<Self, DeviceError> {
        let create = |stream: &str| {
            let path = folder.join(format!("{name}.{stream}"));
            match File::create(&path) {
                Ok(file) => Ok((path, file)),
                Err(source) => Err(DeviceError::Output {
                    name: name.to_owned(),
                    path,
                    source,
                }),
            }
        };
        let (stdout, stdout_file) = create("stdout")?;
        let (stderr, stderr_file) = create("stderr")?;
        command
            .stdin(Stdio::piped())
            .stdout(stdout_file)
            .stderr(stderr_file)
            .process_group(0);
        // A child inherits the affinity of the thread that starts it, so a pinned thread starts the child.
        let started = thread::scope(|scope| {
            scope
                .spawn(|| {
                    pin_current_thread(cpu).map_err(|source| DeviceError::NotPinned {
                        name: name.to_owned(),
                        source,
                    })?;
                    command.spawn().map_err(|source| DeviceError::NotStarted {
                        name: name.to_owned(),
                        command: command_line(&command),
                        source,
                    })
                })
                .join()
        });
        let child = match started {
            Ok(started) => started?,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        Ok(Self {
            name: name.to_owned(),
            pid: Pid::from_child(&child),
            child,
            stdout,
            stderr,
            read_bytes: 0,
            ended: None,
        })
    }

    /// Returns the process number of the device.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the path of the file with the device's standard output.
    #[must_use]
    pub fn stdout(&self) -> &Path {
        &self.stdout
    }

    /// Returns true if the device still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.reap(), Ok(None))
    }

    /// Returns an error if the device has exited.
    ///
    /// # Errors
    /// [`DeviceError::Died`] with the exit status and last lines.
    pub fn check(&mut self) -> Result<(), DeviceError> {
        match self.reap()? {
            None => Ok(()),
            Some(status) => Err(self.died(status)),
        }
    }

    /// Waits for a complete line of standard output that `matches`, and returns it without the line end. Each line is
    /// passed to `matches` once, also across calls.
    ///
    /// # Errors
    /// [`DeviceError::Died`] if the device exits first, [`DeviceError::Silent`] after `timeout`.
    pub fn wait_for_line(
        &mut self,
        mut matches: impl FnMut(&str) -> bool,
        timeout: Duration,
    ) -> Result<String, DeviceError> {
        let deadline = Instant::now() + timeout;
        loop {
            // The exit is checked before reading, so that the complete output of an exited process is read.
            let ended = self.reap()?;
            while let Some(line) = self.next_line()? {
                if matches(&line) {
                    return Ok(line);
                }
            }
            if let Some(status) = ended {
                return Err(self.died(status));
            }
            if Instant::now() >= deadline {
                return Err(DeviceError::Silent {
                    name: self.name.clone(),
                    waited: timeout,
                    last_lines: self.last_lines(),
                });
            }
            thread::sleep(POLL_INTERVAL);
        }
    }

    /// Pauses the device and everything in its process group, until the device is stopped.
    ///
    /// # Errors
    /// [`DeviceError::NotStopped`] if the signal cannot be sent.
    pub fn pause(&self) -> Result<(), DeviceError> {
        kill_process_group(self.pid, Signal::STOP).map_err(|errno| self.not_stopped(errno.into()))
    }

    /// Ends the device and everything in its process group: SIGINT, after 2 s (0.2 s if this process ignores SIGINT,
    /// which programs inherit) SIGTERM, after 1 s more SIGKILL. Returns the exit status.
    ///
    /// # Errors
    /// [`DeviceError::Died`] if the device had exited by itself before, unless with success;
    /// [`DeviceError::NotStopped`] if even SIGKILL failed.
    pub fn stop(mut self) -> Result<ExitStatus, DeviceError> {
        if let Some(status) = self.reap()? {
            return if status.success() {
                Ok(status)
            } else {
                Err(self.died(status))
            };
        }
        self.end()
    }

    /// Returns the end of the device's standard error, or of its standard output if the standard error is empty.
    #[must_use]
    pub fn last_lines(&self) -> String {
        [&self.stderr, &self.stdout]
            .into_iter()
            .map(|path| last_lines_of(path))
            .find(|lines| !lines.is_empty())
            .unwrap_or_else(|| "(nothing)".to_owned())
    }

    fn died(&self, status: ExitStatus) -> DeviceError {
        DeviceError::Died {
            name: self.name.clone(),
            status,
            last_lines: self.last_lines(),
        }
    }

    fn not_stopped(&self, source: io::Error) -> DeviceError {
        DeviceError::NotStopped {
            name: self.name.clone(),
            pid: self.id(),
            source,
        }
    }

    fn output_error(&self, source: io::Error) -> DeviceError {
        DeviceError::Output {
            name: self.name.clone(),
            path: self.stdout.clone(),
            source,
        }
    }

    /// Returns the exit status of the device if it has exited. The rest of its process group is killed before the
    /// process number is returned to the system, because another process may get that number afterwards.
    fn reap(&mut self) -> Result<Option<ExitStatus>, DeviceError> {
        if self.ended.is_none() {
            let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let dead = waitid(WaitId::Pid(self.pid), peek)
                .map_err(|errno| self.not_stopped(errno.into()))?
                .is_some();
            if dead {
                // An error means that the group is empty, which is the normal case.
                let _ = kill_process_group(self.pid, Signal::KILL);
                let status = self
                    .child
                    .wait()
                    .map_err(|source| self.not_stopped(source))?;
                self.ended = Some(status);
            }
        }
        Ok(self.ended)
    }

    fn end(&mut self) -> Result<ExitStatus, DeviceError> {
        let mut ended = None;
        end_group(self.pid, || {
            ended = self.reap().transpose();
            ended.is_some()
        });
        ended.unwrap_or_else(|| Err(self.not_stopped(io::ErrorKind::TimedOut.into())))
    }

    /// Returns the next unread complete line of the device's standard output, if there is one.
    ///
    /// # Errors
    /// [`DeviceError::Output`] if the file with the device's output cannot be read.
    pub fn next_line(&mut self) -> Result<Option<String>, DeviceError> {
        let unread = || -> io::Result<Vec<u8>> {
            let mut file = File::open(&self.stdout)?;
            file.seek(SeekFrom::Start(self.read_bytes))?;
            let mut unread = Vec::new();
            file.read_to_end(&mut unread)?;
            Ok(unread)
        };
        let unread = unread().map_err(|source| self.output_error(source))?;
        let Some(end) = unread.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        self.read_bytes += end as u64 + 1;
        Ok(Some(String::from_utf8_lossy(&unread[..end]).into_owned()))
    }
}

impl Drop for DeviceProcess {
    fn drop(&mut self) {
        if self.is_alive() {
            // A destructor cannot report an error.
            let _ = self.end();
        }
    }
}

/// Makes a command for [`DeviceProcess::start`] that runs `line`, and kills that program when this process ends for any
/// reason. The command is for programs that do not watch their standard input, which is empty for them. (The shell
/// becomes the program; the watcher is a child of the program, in the same process group.)
#[must_use]
pub(crate) fn killed_with_owner(line: &[String]) -> Command {
    const WATCH: &str = r#"exec 3<&0; (read -r _ <&3; kill -KILL 0) & exec "$@" </dev/null 3<&-"#;
    let mut command = Command::new("sh");
    command.args(["-c", WATCH, "sh"]).args(line);
    command
}

fn command_line(command: &Command) -> String {
    std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

fn last_lines_of(path: &Path) -> String {
    let bytes = fs::read(path).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
}

/// Returns the signals that end a process, in increasing order of force, with a timeout for each. SIGINT is for
/// programs with a handler. Programs without a handler ignore it if this process was started with SIGINT ignored, like
/// background jobs of a script; the timeout of SIGINT is then short.
fn signals() -> [(Signal, Duration); 3] {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let patience = match ignores_interrupts(&status) {
        true => Duration::from_millis(200),
        false => Duration::from_secs(2),
    };
    [
        (Signal::INT, patience),
        (Signal::TERM, Duration::from_secs(1)),
        (Signal::KILL, Duration::from_secs(5)),
    ]
}

/// Returns true if a process with this text of `/proc/PID/status` ignores SIGINT, and thus its children too. (Children
/// do not inherit a handler.)
fn ignores_interrupts(status: &str) -> bool {
    mask_after("SigIgn:", status)
        .is_some_and(|ignored| ignored & 1 << (Signal::INT.as_raw() - 1) != 0)
}

/// Sends a process group signals of increasing force, until `gone` returns true or the last signal's timeout expires,
/// after 8 s in all (6.2 s if this process ignores SIGINT).
pub fn end_group(group: Pid, mut gone: impl FnMut() -> bool) {
    for (signal, patience) in signals() {
        // An error means that the group has ended, which is the normal case.
        let _ = kill_process_group(group, signal);
        // A paused process would not handle the signal.
        let _ = kill_process_group(group, Signal::CONT);
        let deadline = Instant::now() + patience;
        while Instant::now() < deadline {
            if gone() {
                return;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Adopts, from now on, orphaned descendants of this process, so that [`end_descendants`] finds them.
///
/// # Errors
/// The system reports an error.
pub fn adopt_descendants() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Ends all children of this process, including adopted ones.
pub fn end_descendants() {
    for (signal, patience) in signals() {
        let deadline = Instant::now() + patience;
        let mut signalled = Vec::new();
        loop {
            let left = children();
            if left.is_empty() {
                return;
            }
            for child in left {
                if !signalled.contains(&child) {
                    let _ = kill_process(child, signal);
                    signalled.push(child);
                }
            }
            while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
            if Instant::now() >= deadline {
                break;
            }
            thread::sleep(POLL_INTERVAL);
        }
    }
}

/// Removes the remains of killed processes: namespaces, and folders for temporary files. The files of other users
/// remain.
pub fn sweep_left_behind() {
    // The error is ignored: a user who cannot list namespaces cannot have created any.
    let _ = crate::net::sweep_stale();
    crate::private::sweep(&std::env::temp_dir());
}

fn children() -> Vec<Pid> {
    let threads = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    threads
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<i32>>()
        })
        .filter_map(Pid::from_raw)
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use tempfile::TempDir;

    /// Timeout for a machine under load; a passing test does not wait this long.
    const PATIENCE: Duration = Duration::from_secs(30);

    fn shell(script: &str) -> (DeviceProcess, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let cpu = crate::choose_cores().device;
        let device = DeviceProcess::start("shell", command, cpu, folder.path()).unwrap();
        (device, folder)
    }

    fn wait_until_dead(device: &mut DeviceProcess) {
        let deadline = Instant::now() + PATIENCE;
        while device.is_alive() {
            assert!(Instant::now() < deadline, "still alive");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn a_device_that_handles_signals_exits_with_success() {
        let (mut device, _folder) =
            shell("trap 'exit 0' INT TERM; echo ready; while :; do sleep 0.01; done");
        device
            .wait_for_line(|line| line == "ready", PATIENCE)
            .unwrap();
        assert!(device.is_alive());
        assert!(device.stop().unwrap().success());
    }

    #[test]
    fn ignored_interrupts_are_detected_in_the_process_status() {
        let status = "Name:\ttaut\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001006\n";
        assert!(ignores_interrupts(status));
        assert!(!ignores_interrupts("SigIgn:\t0000000000001004\n"));
        assert!(!ignores_interrupts("SigIgn:\tlots\n") && !ignores_interrupts(""));
    }

    #[test]
    fn a_device_that_ignores_sigint_and_sigterm_is_killed() {
        let (mut device, _folder) = shell("trap '' INT TERM; echo ready; exec sleep 1000");
        device
            .wait_for_line(|line| line == "ready", PATIENCE)
            .unwrap();
        assert_eq!(device.stop().unwrap().signal(), Some(9));
    }

    #[test]
    fn an_unexpected_exit_is_reported_with_status_and_last_lines() {
        let (mut device, _folder) =
            shell("echo started; for i in $(seq 20); do echo trouble $i >&2; done; exit 7");
        wait_until_dead(&mut device);
        let message = device.check().unwrap_err().to_string();
        assert!(message.starts_with("shell exited unexpectedly (exit status: 7)"));
        assert!(
            message.ends_with("trouble 19\ntrouble 20"),
            "the end is quoted: {message}"
        );
        assert!(
            !message.contains("trouble 10\n"),
            "not all is quoted: {message}"
        );
        assert!(matches!(device.stop(), Err(DeviceError::Died { .. })));
    }

    #[test]
    fn waiting_ends_when_the_device_dies() {
        let (mut device, _folder) = shell("echo one; echo two; exit 0");
        assert_eq!(device.wait_for_line(|_| true, PATIENCE).unwrap(), "one");
        let error = device.wait_for_line(|line| line == "one", PATIENCE);
        assert!(matches!(error, Err(DeviceError::Died { .. })), "{error:?}");
        assert!(device.stop().unwrap().success());
    }

    #[test]
    fn a_silent_device_is_distinguished_from_a_dead_device() {
        let (mut device, _folder) = shell("printf 'half a line'; sleep 1000");
        let error = device
            .wait_for_line(|_| true, Duration::from_millis(20))
            .unwrap_err();
        assert!(matches!(error, DeviceError::Silent { .. }), "{error}");
        device.check().unwrap();
    }

    #[test]
    fn the_device_input_stays_open_until_its_owner_exits() {
        // `cat` exits at the end of its input, like a device that watches its owner.
        let (mut device, _folder) = shell("cat; echo owner gone");
        drop(device.child.stdin.take());
        device
            .wait_for_line(|line| line == "owner gone", PATIENCE)
            .unwrap();
    }

    #[test]
    fn a_program_ignoring_signals_is_killed_when_its_owner_exits() {
        let line = [
            "sh",
            "-c",
            "trap '' INT TERM; echo $$; cat; exec sleep 1000",
        ];
        let folder = tempfile::tempdir().unwrap();
        let cpu = crate::choose_cores().device;
        let command = killed_with_owner(&line.map(str::to_owned));
        let mut device = DeviceProcess::start("deaf", command, cpu, folder.path()).unwrap();
        let own = device.wait_for_line(|_| true, PATIENCE).unwrap();
        assert_eq!(own, device.id().to_string(), "the program, not its watcher");
        drop(device.child.stdin.take());
        wait_until_dead(&mut device);
        let error = device.stop().unwrap_err().to_string();
        assert!(error.contains("signal: 9"), "{error}");
    }

    #[test]
    fn a_device_process_runs_only_on_its_cpu() {
        let (mut device, _folder) = shell("grep Cpus_allowed_list /proc/self/status; sleep 1000");
        let line = device.wait_for_line(|_| true, PATIENCE).unwrap();
        let cpu = crate::choose_cores().device.to_string();
        assert_eq!(line.split_whitespace().nth(1), Some(cpu.as_str()));
    }

    #[test]
    fn dropping_a_device_ends_its_whole_process_group() {
        let (mut device, _folder) = shell("sleep 1000 & echo $!; wait");
        let grandchild = device.wait_for_line(|_| true, PATIENCE).unwrap();
        drop(device);
        let status = PathBuf::from(format!("/proc/{grandchild}/status"));
        let deadline = Instant::now() + PATIENCE;
        // The process that adopts the grandchild may reap it later, so a zombie (state Z) counts as ended.
        while fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ")) {
            assert!(Instant::now() < deadline, "grandchild still runs");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn the_error_for_an_absent_device_program_names_the_program() {
        let folder = tempfile::tempdir().unwrap();
        let command = Command::new("/no/such/device");
        let cpu = crate::choose_cores().device;
        let error = DeviceProcess::start("bridge", command, cpu, folder.path()).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("cannot start bridge (`/no/such/device`)"));
    }

    #[test]
    fn the_error_names_the_missing_output_folder() {
        let command = Command::new("true");
        let error = DeviceProcess::start("x", command, 0, Path::new("/no/such/run")).unwrap_err();
        assert!(
            error.to_string().contains("/no/such/run/x.stdout"),
            "{error}"
        );
    }
}
