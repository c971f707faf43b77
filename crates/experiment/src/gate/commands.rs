//! Runs the commands of a gate with a shell, each in its own process group, so that nothing outlives a run.

use super::{GateError, Metric, Runner, Settings, Which};
use crate::metrics;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant, SystemTime};

/// Number of bytes at the end of an output that are searched for metrics.
const READ_BYTES: u64 = 16 << 20;
/// Interval between two checks for a stop request.
const TICK: Duration = Duration::from_millis(50);
/// Maximum distance by which the time of a new file may precede the start of the run that wrote it. File systems store
/// times in steps of the kernel's clock tick.
const FILE_TIME_STEP: Duration = Duration::from_millis(20);

/// Runs the commands of a gate with `sh -c`. The gate's folder contains the output of the last run of each command:
/// `base.out`, `base.err`, `head.out`, `head.err`.
pub struct Commands<'a> {
    settings: &'a Settings,
    folder: &'a Path,
    /// Maximum duration of a run; longer runs are killed.
    patience: Duration,
    stop: &'a AtomicBool,
    began: Instant,
    runs: [u64; 2],
}

/// The cause of the end of a run: exit, timeout or stop request.
enum End {
    Exited,
    TimedOut,
    Stopped,
}

impl<'a> Commands<'a> {
    /// Prepares runs whose output goes to `folder`, which exists. A run that takes longer than `patience` is killed, as
    /// is the current run once `stop` is set.
    pub fn new(
        settings: &'a Settings,
        folder: &'a Path,
        patience: Duration,
        stop: &'a AtomicBool,
    ) -> Self {
        Self {
            settings,
            folder,
            patience,
            stop,
            began: Instant::now(),
            runs: [0; 2],
        }
    }

    fn failed(&self, which: Which, reason: impl Into<String>) -> GateError {
        GateError::Failed {
            which,
            run: self.runs[which.index()],
            reason: reason.into(),
        }
    }

    fn output(&self, which: Which, kind: &str) -> PathBuf {
        self.folder.join(format!("{which}.{kind}"))
    }

    /// Runs a command, and returns its time in seconds.
    fn timed(&self, which: Which) -> Result<f64, GateError> {
        let create = |kind: &str| {
            let path = self.output(which, kind);
            File::create(&path).map_err(|source| GateError::Io { path, source })
        };
        let (out, err) = (create("out")?, create("err")?);
        let mut command = Command::new("sh");
        command
            .args(["-c", &self.settings.commands[which.index()]])
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .process_group(0);
        let begin = Instant::now();
        let mut child = command
            .spawn()
            .map_err(|e| self.failed(which, format!("cannot run sh: {e}")))?;
        let group = Pid::from_child(&child);
        let (seconds, end) = self.end_of_run(group, begin);
        // What the run left running; the process itself is a zombie, so the number is still that of its group.
        let _ = kill_process_group(group, Signal::KILL);
        let status = child
            .wait()
            .map_err(|e| self.failed(which, format!("cannot wait for it: {e}")))?;
        match end {
            End::Stopped => Err(GateError::Stopped),
            End::TimedOut => Err(self.failed(
                which,
                format!("killed after {} s (--timeout)", self.patience.as_secs_f64()),
            )),
            // Ctrl-C reaches this process only, but a terminal that closes ends all.
            End::Exited if !status.success() && self.stop.load(Ordering::Relaxed) => {
                Err(GateError::Stopped)
            }
            End::Exited if !status.success() => {
                let last = self.last_line(which);
                Err(self.failed(which, format!("{status}{last}")))
            }
            End::Exited => Ok(seconds),
        }
    }

    /// Waits until the first process of a group exits, or kills the group after the timeout or at a stop request.
    /// Returns the time since `begin` in seconds, and the cause of the end. The process remains a zombie, so no other
    /// group gets the same identifier.
    fn end_of_run(&self, group: Pid, begin: Instant) -> (f64, End) {
        let (patience, stop) = (self.patience, self.stop);
        let (ended, end) = channel::<()>();
        std::thread::scope(|scope| {
            let guard = scope.spawn(move || {
                loop {
                    match end.recv_timeout(TICK) {
                        Err(RecvTimeoutError::Timeout) => {}
                        _ => return End::Exited,
                    }
                    let how = if stop.load(Ordering::Relaxed) {
                        End::Stopped
                    } else if begin.elapsed() > patience {
                        End::TimedOut
                    } else {
                        continue;
                    };
                    // The group may have ended in between; the kill then fails, which does no harm.
                    let _ = kill_process_group(group, Signal::KILL);
                    return how;
                }
            });
            let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            while matches!(waitid(WaitId::Pid(group), options), Err(Errno::INTR)) {}
            let seconds = begin.elapsed().as_secs_f64();
            // The receiver is gone if the guard has killed the group.
            let _ = ended.send(());
            (seconds, guard.join().unwrap_or(End::Stopped))
        })
    }

    /// Returns a colon and the last line that a command wrote to standard error, or else to standard output; an empty
    /// text if the command wrote neither.
    fn last_line(&self, which: Which) -> String {
        let lines = ["err", "out"].map(|kind| {
            let text = end_of(&self.output(which, kind)).unwrap_or_default();
            let last = text.lines().rev().find(|line| !line.trim().is_empty());
            last.map(|line| line.trim().chars().take(300).collect::<String>())
        });
        let last = lines.into_iter().flatten().next();
        last.map_or_else(String::new, |line| format!(": {line}"))
    }

    /// Returns the metrics of the run that has just ended.
    fn metrics(
        &self,
        which: Which,
        seconds: f64,
        begin: SystemTime,
    ) -> Result<Vec<f64>, GateError> {
        let mut printed = None;
        let metrics = &self.settings.metrics;
        let found = metrics.iter().map(|metric| {
            let value = match metric {
                Metric::Time => seconds,
                Metric::Printed(path) => {
                    if printed.is_none() {
                        let text = self.text(which, &self.output(which, "out"))?;
                        printed = metrics::of_json(&text);
                    }
                    let Some(printed) = &printed else {
                        return Err(self.failed(which, "no JSON object in its output"));
                    };
                    self.value(which, path, printed)?
                }
                Metric::InFile { file, path } => {
                    let changed = fs::metadata(file).and_then(|it| it.modified());
                    let changed = changed.map_err(|e| {
                        self.failed(which, format!("cannot read {}: {e}", file.display()))
                    })?;
                    if changed + FILE_TIME_STEP < begin {
                        let text = format!("it has not written {}", file.display());
                        return Err(self.failed(which, text));
                    }
                    let text = self.text(which, file)?;
                    let Some(values) = metrics::of_json(&text) else {
                        let text = format!("no JSON object in {}", file.display());
                        return Err(self.failed(which, text));
                    };
                    self.value(which, path, &values)?
                }
            };
            if value > 0.0 && value.is_finite() {
                return Ok(value);
            }
            let text = format!("{metric} is {value}: only values above zero have a ratio");
            Err(self.failed(which, text))
        });
        found.collect()
    }

    fn text(&self, which: Which, path: &Path) -> Result<String, GateError> {
        let text = end_of(path);
        text.map_err(|e| self.failed(which, format!("cannot read {}: {e}", path.display())))
    }

    fn value(
        &self,
        which: Which,
        path: &str,
        values: &BTreeMap<String, f64>,
    ) -> Result<f64, GateError> {
        metrics::find(values, path).ok_or_else(|| {
            let near = taut_settings::suggestion(path, values.keys().map(String::as_str));
            self.failed(which, format!("no number `{path}` in its JSON{near}"))
        })
    }
}

impl Runner for Commands<'_> {
    fn run(&mut self, which: Which) -> Result<Vec<f64>, GateError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(GateError::Stopped);
        }
        self.runs[which.index()] += 1;
        let begin = SystemTime::now();
        let seconds = self.timed(which)?;
        self.metrics(which, seconds, begin)
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Reads the last [`READ_BYTES`] of a file as text.
fn end_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
