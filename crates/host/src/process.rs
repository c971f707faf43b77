//! A device under test that runs as a child process on its own CPU and is stopped with certainty.

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

/// How often a deadline looks again.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Lines of standard error quoted in a message.
const LAST_LINES: usize = 10;

/// The id of the first thread of a process whose name contains `part`; none if there is no such thread, or
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

/// Reason why a device under test did not start, answer or stay alive.
#[derive(Debug, thiserror::Error)]
pub enum DeviceError {
    /// The program could not be run.
    #[error("cannot start {name} (`{command}`): {source}")]
    NotStarted {
        /// The device's name.
        name: String,
        /// Command line of the device.
        command: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The device could not be given its CPU.
    #[error("cannot start {name}: {source}")]
    NotPinned {
        /// The device's name.
        name: String,
        /// The reason.
        source: AffinityError,
    },
    /// The device's output file could not be written or read.
    #[error("cannot use {path} for the output of {name}: {source}")]
    Output {
        /// The device's name.
        name: String,
        /// Path of the file.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The device ended by itself.
    #[error("{name} died unexpectedly ({status}); its last words:\n{last_lines}")]
    Died {
        /// The device's name.
        name: String,
        /// Exit status of the device.
        status: ExitStatus,
        /// The end of its standard error, or of its standard output when that is empty.
        last_lines: String,
    },
    /// The device lives and did not say what was waited for.
    #[error(
        "{name} said nothing of what was expected within {waited:?}; its last words:\n{last_lines}"
    )]
    Silent {
        /// The device's name.
        name: String,
        /// Time that it was given.
        waited: Duration,
        /// The end of its standard error, or of its standard output when that is empty.
        last_lines: String,
    },
    /// The device could not be signalled or waited for.
    #[error("cannot stop {name} (process {pid}): {source}")]
    NotStopped {
        /// The device's name.
        name: String,
        /// Process number of the device.
        pid: u32,
        /// The system's reason.
        source: io::Error,
    },
}

/// A running device under test. Dropping it stops it.
///
/// It runs in its own process group, so a Ctrl-C at the terminal reaches it only through
/// [`DeviceProcess::stop`]. Its standard input is a pipe that closes when this process ends, however
/// that happens: a device that watches for the end of its input outlives nobody.
#[derive(Debug)]
pub struct DeviceProcess {
    name: String,
    child: Child,
    pid: Pid,
    stdout: PathBuf,
    stderr: PathBuf,
    /// Bytes of standard output already seen by [`DeviceProcess::wait_for_line`].
    read_bytes: u64,
    ended: Option<ExitStatus>,
}

impl DeviceProcess {
    /// Starts `command` pinned to `cpu`, its output going to `<name>.stdout` and `<name>.stderr` in
    /// `folder`, which must exist. Threads that it makes inherit the pin.
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
        // A child inherits the affinity of the thread that starts it, so a pinned thread starts it.
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

    /// The process number.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// File that its standard output goes to.
    #[must_use]
    pub fn stdout(&self) -> &Path {
        &self.stdout
    }

    /// Whether the device still runs.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.reap(), Ok(None))
    }

    /// Fine while it runs.
    ///
    /// # Errors
    /// [`DeviceError::Died`] once it does not, with its exit status and last lines.
    pub fn check(&mut self) -> Result<(), DeviceError> {
        match self.reap()? {
            None => Ok(()),
            Some(status) => Err(self.died(status)),
        }
    }

    /// Waits for a whole line of its standard output that `matches` and returns it without the line
    /// end. Each line is shown to `matches` once, also across calls.
    ///
    /// # Errors
    /// [`DeviceError::Died`] when it ends first, [`DeviceError::Silent`] after `timeout`.
    pub fn wait_for_line(
        &mut self,
        mut matches: impl FnMut(&str) -> bool,
        timeout: Duration,
    ) -> Result<String, DeviceError> {
        let deadline = Instant::now() + timeout;
        loop {
            // Asked before reading: what a dead process wrote is then all there.
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

    /// Stops it and everything in its process group from running, until it is ended.
    ///
    /// # Errors
    /// [`DeviceError::NotStopped`].
    pub fn pause(&self) -> Result<(), DeviceError> {
        kill_process_group(self.pid, Signal::STOP).map_err(|errno| self.not_stopped(errno.into()))
    }

    /// Ends it and everything in its process group: SIGINT, after 2 s (0.2 s where this process
    /// ignores SIGINT, which programs inherit) SIGTERM, after 1 s more SIGKILL. Returns how it ended.
    ///
    /// # Errors
    /// [`DeviceError::Died`] when it had ended by itself before, unless with success;
    /// [`DeviceError::NotStopped`] when even SIGKILL did not work.
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

    /// The end of its standard error, or of its standard output when that is empty.
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

    /// Returns how the device ended, if it has. What is left of its process group is killed before its number is given
    /// back to the system, since after that the number may belong to others.
    fn reap(&mut self) -> Result<Option<ExitStatus>, DeviceError> {
        if self.ended.is_none() {
            let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
            let dead = waitid(WaitId::Pid(self.pid), peek)
                .map_err(|errno| self.not_stopped(errno.into()))?
                .is_some();
            if dead {
                // Nothing left in the group is the good case, not an error.
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

    /// The next whole line of standard output not yet seen, if there is one.
    ///
    /// # Errors
    /// [`DeviceError::Output`].
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
            // There is nobody left to tell.
            let _ = self.end();
        }
    }
}

/// A command for [`DeviceProcess::start`] that runs `line` and kills it when this process ends,
/// however that happens: for programs that do not watch their standard input, which is empty to them.
/// (The shell becomes the program; what watches is a child of it, in the same process group.)
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

/// Signals that end a process, ever harder, and the time that each has to work. Programs without a handler of their own
/// ignore SIGINT where this process was started to ignore it, as jobs in the background of a script are: there it is
/// for those with one.
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

/// Whether a process of this `/proc/PID/status` ignores SIGINT, and what it starts with it. (A handler is not handed on.)
fn ignores_interrupts(status: &str) -> bool {
    mask_after("SigIgn:", status)
        .is_some_and(|ignored| ignored & 1 << (Signal::INT.as_raw() - 1) != 0)
}

/// Signals a process group, ever harder, until `gone` says that it has ended or the signals are used up, after 8 s.
pub fn end_group(group: Pid, mut gone: impl FnMut() -> bool) {
    for (signal, patience) in signals() {
        // A group that is not there any more is the good case.
        let _ = kill_process_group(group, signal);
        // A paused one would not take the signal.
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

/// Takes over, from now on, children whose parents end, so that [`end_descendants`] finds them.
///
/// # Errors
/// What the system says.
pub fn adopt_descendants() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Ends all children of this process, those among them that it has adopted.
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

/// Removes what processes that were killed have left: namespaces, and folders for temporary files. What cannot be removed
/// (another user's) stays.
pub fn sweep_left_behind() {
    // Without the right to look for namespaces nothing of ours can have been left there.
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

    /// Long enough for a machine under load; nothing waits this long when all is well.
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
    fn a_device_that_heeds_signals_ends_in_its_own_way() {
        let (mut device, _folder) =
            shell("trap 'exit 0' INT TERM; echo ready; while :; do sleep 0.01; done");
        device
            .wait_for_line(|line| line == "ready", PATIENCE)
            .unwrap();
        assert!(device.is_alive());
        assert!(device.stop().unwrap().success());
    }

    #[test]
    fn who_ignores_interrupts_is_known_by_a_bit() {
        let status = "Name:\ttaut\nSigBlk:\t0000000000000002\nSigIgn:\t0000000000001006\n";
        assert!(ignores_interrupts(status));
        assert!(!ignores_interrupts("SigIgn:\t0000000000001004\n"));
        assert!(!ignores_interrupts("SigIgn:\tlots\n") && !ignores_interrupts(""));
    }

    #[test]
    fn a_device_that_ignores_everything_is_killed() {
        let (mut device, _folder) =
            shell("trap '' INT TERM; echo ready; while :; do sleep 0.01; done");
        device
            .wait_for_line(|line| line == "ready", PATIENCE)
            .unwrap();
        assert_eq!(device.stop().unwrap().signal(), Some(9));
    }

    #[test]
    fn unexpected_death_tells_the_status_and_the_last_lines() {
        let (mut device, _folder) =
            shell("echo started; for i in $(seq 20); do echo trouble $i >&2; done; exit 7");
        wait_until_dead(&mut device);
        let message = device.check().unwrap_err().to_string();
        assert!(message.starts_with("shell died unexpectedly (exit status: 7)"));
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
    fn silence_is_told_apart_from_death() {
        let (mut device, _folder) = shell("printf 'half a line'; sleep 1000");
        let error = device
            .wait_for_line(|_| true, Duration::from_millis(20))
            .unwrap_err();
        assert!(matches!(error, DeviceError::Silent { .. }), "{error}");
        device.check().unwrap();
    }

    #[test]
    fn its_input_stays_open_and_closes_with_the_owner() {
        // `cat` ends at the end of its input, as a device that watches its owner does.
        let (mut device, _folder) = shell("cat; echo owner gone");
        drop(device.child.stdin.take());
        device
            .wait_for_line(|line| line == "owner gone", PATIENCE)
            .unwrap();
    }

    #[test]
    fn a_deaf_program_is_killed_when_its_owner_is_gone() {
        let line = [
            "sh",
            "-c",
            "trap '' INT TERM; echo $$; cat; while :; do sleep 0.01; done",
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
    fn it_runs_on_its_cpu_alone() {
        let (mut device, _folder) = shell("grep Cpus_allowed_list /proc/self/status; sleep 1000");
        let line = device.wait_for_line(|_| true, PATIENCE).unwrap();
        let cpu = crate::choose_cores().device.to_string();
        assert_eq!(line.split_whitespace().nth(1), Some(cpu.as_str()));
    }

    #[test]
    fn dropping_it_ends_its_whole_process_group() {
        let (mut device, _folder) = shell("sleep 1000 & echo $!; wait");
        let grandchild = device.wait_for_line(|_| true, PATIENCE).unwrap();
        drop(device);
        let status = PathBuf::from(format!("/proc/{grandchild}/status"));
        let deadline = Instant::now() + PATIENCE;
        // Whoever adopts it reaps it in its own time; a zombie is dead enough.
        while fs::read_to_string(&status).is_ok_and(|status| !status.contains("State:\tZ")) {
            assert!(Instant::now() < deadline, "grandchild still runs");
            thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn an_absent_program_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let command = Command::new("/no/such/device");
        let cpu = crate::choose_cores().device;
        let error = DeviceProcess::start("bridge", command, cpu, folder.path()).unwrap_err();
        let message = error.to_string();
        assert!(message.starts_with("cannot start bridge (`/no/such/device`)"));
    }

    #[test]
    fn a_folder_that_does_not_exist_is_named() {
        let command = Command::new("true");
        let error = DeviceProcess::start("x", command, 0, Path::new("/no/such/run")).unwrap_err();
        assert!(
            error.to_string().contains("/no/such/run/x.stdout"),
            "{error}"
        );
    }
}
