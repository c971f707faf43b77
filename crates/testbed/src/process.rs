//! The processes of running experiments. They outlive the service: a restarted service finds them by a lock that each
//! process holds, and adopts them.
//!
//! ```text
//! DIR/experiments/7/input/      the files of the submission
//! DIR/experiments/7/lock        locked as long as the process exists: it is the process's standard input
//! DIR/experiments/7/pid         number of the process
//! DIR/experiments/7/log         output of the process
//! DIR/experiments/7/results/    results folder
//! ```

use crate::api::Progress;
use crate::error::LabError;
use crate::store::{Changed, make_folder};
use crate::time::{now, text};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::collections::{BTreeMap, HashMap};
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::time::UNIX_EPOCH;
use taut_experiment::folder::Folder;
use taut_results::{Completion, InsidePath, write_whole};

/// Maximum number of bytes that are read from the end of a log.
const LOG_BYTES: u64 = 64 << 10;
/// Beginning of the line in an experiment's log that precedes the output of each new process.
const START: &str = "--- started ";
/// A shell script that writes its own process number to a file, then becomes the command that follows. The file
/// therefore has the number as long as the process exists.
const WRAPPER: &str = "echo $$ >\"$1.new\" && mv \"$1.new\" \"$1\" && shift && exec \"$@\"";

/// The result of an experiment's process, after the process has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// All runs are complete.
    Finished,
    /// Runs are missing, for the stated reason; a restart would fail in the same way.
    Failed(String),
    /// The process ended on request; the experiment's complete runs remain.
    Interrupted,
    /// The process was killed, or the machine was switched off or failed.
    Died,
    /// The process was never started.
    NotStarted,
}

/// The folders of all experiments, and the processes that this service has started.
pub(crate) struct Processes {
    dir: PathBuf,
    /// Path of the `taut` program, which runs the experiments.
    program: PathBuf,
    /// Processes that this service has started and must wait for, by the number of the experiment.
    children: Mutex<HashMap<u64, Child>>,
}

impl Processes {
    pub(crate) fn new(folder: &Path, program: &Path) -> Self {
        Self {
            dir: folder.join("experiments"),
            program: program.to_owned(),
            children: Mutex::default(),
        }
    }

    fn folder(&self, id: u64) -> PathBuf {
        self.dir.join(id.to_string())
    }

    /// Returns the results folder of an experiment, which may not exist yet.
    pub(crate) fn results(&self, id: u64) -> PathBuf {
        self.folder(id).join("results")
    }

    /// Starts an experiment, or continues it if it has results.
    pub(crate) fn start(
        &self,
        id: u64,
        name: &str,
        files: &BTreeMap<String, String>,
        changes: &Changed,
    ) -> Result<(), LabError> {
        let folder = self.folder(id);
        make_folder(&folder)?;
        let results = folder.join("results");
        let mut command = Command::new("sh");
        command.args(["-c", WRAPPER, "sh"]).arg(folder.join("pid"));
        command.arg(&self.program).arg("experiment");
        let state = results.join("state.json");
        if state.is_file() {
            command.arg("resume").arg(&results);
            // This old time marks the state of an earlier process; the new process replaces the file.
            let marked = File::options().write(true).open(&state);
            marked
                .and_then(|it| it.set_modified(UNIX_EPOCH))
                .map_err(LabError::io(state))?;
        } else {
            // An earlier process may have died before it had written the state.
            remove(&results)?;
            let input = folder.join("input");
            write_input(&input, files)?;
            let file = input.join(format!("{name}.toml"));
            command.arg("run").arg(file).arg("--out").arg(&results);
            for (variable, value) in &changes.set {
                command.arg(format!("--set={variable}={value}"));
            }
            if let Some(repetitions) = changes.repetitions {
                command.arg(format!("--repetitions={repetitions}"));
            }
        }
        self.forget(id);
        let lock = self.lock(id)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|e| LabError::io(folder.join("lock"))(e.into()))?;
        let path = folder.join("log");
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(LabError::io(&path))?;
        let again = log.try_clone().map_err(LabError::io(&path))?;
        writeln!(&log, "{START}{}", text(now())).map_err(LabError::io(&path))?;
        command.stdin(lock).stdout(log).stderr(again);
        // A Ctrl-C at the terminal of the service must not end its experiments.
        command.process_group(0);
        let child = command.spawn().map_err(LabError::io(&self.program))?;
        self.children().insert(id, child);
        Ok(())
    }

    /// Returns true if the process of an experiment exists.
    pub(crate) fn is_alive(&self, id: u64) -> Result<bool, LabError> {
        if let Some(child) = self.children().get_mut(&id) {
            // Until its exit code is read, an exited process remains in the kernel's process table.
            let _ = child.try_wait();
        }
        if !self.folder(id).join("lock").exists() {
            return Ok(false);
        }
        let lock = self.lock(id)?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                self.children().remove(&id);
                Ok(false)
            }
            Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
            Err(e) => Err(LabError::io(self.folder(id).join("lock"))(e.into())),
        }
    }

    /// Sends a signal to the process of an experiment, if it exists.
    pub(crate) fn signal(&self, id: u64, signal: Signal) {
        let folder = self.folder(id);
        let number = fs::read_to_string(folder.join("pid")).unwrap_or_default();
        let Some(pid) = number.trim().parse().ok().and_then(Pid::from_raw) else {
            return;
        };
        let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else {
            return;
        };
        // The number may belong to another process by now, which would have another standard input.
        let input = fs::read_link(format!("/proc/{}/fd/0", pid.as_raw_nonzero()));
        let lock = fs::canonicalize(folder.join("lock"));
        if input.ok().is_some_and(|input| lock.ok() == Some(input)) {
            // A process that has ended needs no signal.
            let _ = pidfd_send_signal(process, signal);
        }
    }

    /// Returns the outcome of an experiment whose process does not exist any more.
    pub(crate) fn outcome(&self, id: u64) -> Outcome {
        let results = self.results(id);
        let folder = self.folder(id);
        if !folder.join("pid").exists() {
            return Outcome::NotStarted;
        }
        let modified = fs::metadata(results.join("state.json")).and_then(|it| it.modified());
        if modified.map_or(true, |it| it == UNIX_EPOCH) {
            // The reason that prevents the first run is in the last line of the log.
            return match self.last_line(id) {
                Some(line) => Outcome::Failed(line),
                None => Outcome::Died,
            };
        }
        match Folder::open(&results).and_then(|it| it.state()) {
            Ok(state) => match state.completion {
                Completion::Finished => Outcome::Finished,
                Completion::Interrupted => Outcome::Interrupted,
                Completion::Running => Outcome::Died,
                Completion::Incomplete => {
                    Outcome::Failed(self.last_line(id).unwrap_or_else(|| {
                        let missing = state.planned.saturating_sub(state.done);
                        format!("{missing} of {} runs are missing", state.planned)
                    }))
                }
            },
            Err(e) => Outcome::Failed(e.to_string()),
        }
    }

    /// Removes the file with the process number of an experiment whose process has ended. The folder then looks as if
    /// the experiment was not started again.
    pub(crate) fn forget(&self, id: u64) {
        let _ = fs::remove_file(self.folder(id).join("pid"));
    }

    /// Returns the progress of an experiment; `None` before its first start.
    pub(crate) fn progress(&self, id: u64) -> Option<Progress> {
        let results = self.results(id);
        let state = Folder::open(&results).and_then(|it| it.state()).ok()?;
        let names = fs::read_dir(results.join("runs")).into_iter().flatten();
        let names = names.filter_map(|it| it.ok()?.file_name().into_string().ok());
        let making = names.filter_map(|name| Some(name.strip_suffix(".partial")?.to_owned()));
        let mut making: Vec<String> = making.collect();
        making.sort();
        Some(Progress {
            done: state.done as u64,
            planned: state.planned as u64,
            failed: state.failed as u64,
            making,
        })
    }

    /// Returns the last part of the output of an experiment's processes.
    pub(crate) fn log(&self, id: u64) -> Result<String, LabError> {
        let path = self.folder(id).join("log");
        let mut file = match File::open(&path) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(String::new()),
            opened => opened.map_err(LabError::io(&path))?,
        };
        let mut bytes = Vec::new();
        let read = file.metadata().and_then(|about| {
            let from = about.len().saturating_sub(LOG_BYTES);
            file.seek(SeekFrom::Start(from))?;
            (&mut file).take(LOG_BYTES).read_to_end(&mut bytes)
        });
        read.map_err(LabError::io(&path))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the last line that the latest process of an experiment has printed, without the program's name.
    fn last_line(&self, id: u64) -> Option<String> {
        let log = self.log(id).ok()?;
        let line = log.lines().rev().find(|line| !line.trim().is_empty())?;
        if line.starts_with(START) {
            return None;
        }
        let line = line.strip_prefix("taut: ").unwrap_or(line);
        Some(line.chars().filter(|c| !c.is_control()).take(500).collect())
    }

    fn lock(&self, id: u64) -> Result<File, LabError> {
        let path = self.folder(id).join("lock");
        let opened = File::options()
            .create(true)
            .truncate(false)
            .read(true)
            .write(true)
            .open(&path);
        opened.map_err(LabError::io(path))
    }

    fn children(&self) -> std::sync::MutexGuard<'_, HashMap<u64, Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remove(folder: &Path) -> Result<(), LabError> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(LabError::io(folder)(e)),
        _ => Ok(()),
    }
}

/// Writes the files of a submitted experiment into a new folder.
pub(crate) fn write_input(folder: &Path, files: &BTreeMap<String, String>) -> Result<(), LabError> {
    remove(folder)?;
    make_folder(folder)?;
    for (name, text) in files {
        let name = InsidePath::new(name).map_err(|e| LabError::Request(e.to_string()))?;
        let path = name.in_folder(folder);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(LabError::io(parent))?;
        }
        write_whole(&path, text.as_bytes()).map_err(|e| match e {
            taut_results::ResultsError::Io { source, path } => LabError::io(path)(source),
            other => LabError::Request(other.to_string()),
        })?;
    }
    Ok(())
}
