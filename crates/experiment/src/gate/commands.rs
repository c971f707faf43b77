//! Runs the commands of a gate with a shell, each in its own process group, so that nothing outlives a run.

use super::{Metric, RunError, Runner, Settings, Which};
use crate::error::ExperimentError;
use crate::metrics;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::ops::RangeInclusive;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
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
/// Number of lines of a failed command's output that the gate repeats.
const LAST_LINES: usize = 5;
/// Maximum length of a repeated line, characters.
const LONGEST_LINE: usize = 300;
/// The exit codes with which shells report the signals 1 to 64.
const SIGNAL_CODES: RangeInclusive<i32> = 129..=192;

/// Runs the commands of a gate with `sh -c`. The gate's folder contains the output of the last run of each command:
/// `base.out`, `base.err`, `head.out`, `head.err`.
pub struct Commands<'a> {
    settings: &'a Settings,
    folder: &'a Path,
    /// Maximum duration of a run; longer runs are killed.
    patience: Duration,
    stop: &'a AtomicBool,
    began: Instant,
    /// For the base and then for the head: true if some run of the command printed all metrics.
    has_metrics: [bool; 2],
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
            has_metrics: [false; 2],
        }
    }

    fn failed(&self, which: Which, reason: impl Into<String>) -> RunError {
        RunError::Failed {
            reason: reason.into(),
            printed: self.last_lines(which),
        }
    }

    fn output(&self, which: Which, kind: &str) -> PathBuf {
        self.folder.join(format!("{which}.{kind}"))
    }

    /// Runs a command, and returns its time in seconds.
    fn timed(&self, which: Which) -> Result<f64, RunError> {
        let create = |kind: &str| {
            let path = self.output(which, kind);
            File::create(&path).map_err(|e| RunError::File(ExperimentError::io(path)(e)))
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
        // Kills the processes that the run left. The first process is a zombie, so no other group has its identifier
        // yet.
        let _ = kill_process_group(group, Signal::KILL);
        let status = child
            .wait()
            .map_err(|e| self.failed(which, format!("cannot wait for it: {e}")))?;
        match end {
            End::Stopped => Err(RunError::Stopped),
            End::TimedOut => Err(self.failed(
                which,
                format!(
                    "killed after the --timeout of {} s",
                    self.patience.as_secs_f64()
                ),
            )),
            // Ctrl-C reaches only this process, but a terminal that closes ends the command as well.
            End::Exited if !status.success() && self.stop.load(Ordering::Relaxed) => {
                Err(RunError::Stopped)
            }
            End::Exited if !status.success() => Err(self.failed(which, end_in_words(status))),
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
            // Sending fails if the guard has killed the group, because the receiver is closed then.
            let _ = ended.send(());
            (seconds, guard.join().unwrap_or(End::Stopped))
        })
    }

    /// Returns the last lines that a command wrote to standard error, or else to standard output.
    fn last_lines(&self, which: Which) -> Vec<String> {
        let lines = ["err", "out"].map(|kind| {
            let text = end_of(&self.output(which, kind)).unwrap_or_default();
            let all: Vec<&str> = text
                .lines()
                .filter(|line| !line.trim().is_empty())
                .collect();
            let last = all.iter().skip(all.len().saturating_sub(LAST_LINES));
            last.map(|line| printable(line)).collect::<Vec<_>>()
        });
        let [errors, output] = lines;
        if errors.is_empty() { output } else { errors }
    }

    /// Returns the metrics of the run that has just ended, from its time, its output, or the files that it wrote.
    fn metrics(&self, which: Which, seconds: f64, begin: SystemTime) -> Result<Vec<f64>, RunError> {
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
                        return Err(self.failed(which, self.without_object(which)));
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

    /// Returns the error text for a command that printed no JSON object.
    fn without_object(&self, which: Which) -> String {
        let is_empty = |kind: &str| {
            let file = fs::metadata(self.output(which, kind));
            file.is_ok_and(|it| it.len() == 0)
        };
        let found = match (is_empty("out"), is_empty("err")) {
            (true, true) => "no output",
            (true, false) => "no output on standard output",
            (false, _) => "no JSON object in its output",
        };
        format!("{found}{}", self.unlike_the_other(which))
    }

    /// Returns a remark that the other command of the gate did print its metrics; empty if none of its runs had all
    /// metrics.
    fn unlike_the_other(&self, which: Which) -> String {
        let other = which.other();
        if self.has_metrics[other.index()] {
            format!(", while {other} has what --metric names")
        } else {
            String::new()
        }
    }

    fn text(&self, which: Which, path: &Path) -> Result<String, RunError> {
        let text = end_of(path);
        text.map_err(|e| self.failed(which, format!("cannot read {}: {e}", path.display())))
    }

    fn value(
        &self,
        which: Which,
        path: &str,
        values: &BTreeMap<String, f64>,
    ) -> Result<f64, RunError> {
        metrics::find(values, path).ok_or_else(|| {
            let near = taut_settings::suggestion(path, values.keys().map(String::as_str));
            let unlike = self.unlike_the_other(which);
            self.failed(
                which,
                format!("no number `{path}` in its JSON{unlike}{near}"),
            )
        })
    }
}

impl Runner for Commands<'_> {
    fn run(&mut self, which: Which) -> Result<Vec<f64>, RunError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped);
        }
        let begin = SystemTime::now();
        let seconds = self.timed(which)?;
        let found = self.metrics(which, seconds, begin)?;
        self.has_metrics[which.index()] = true;
        Ok(found)
    }

    fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Describes the exit of a command that failed: `exit code 3`, `killed by signal 9`.
fn end_in_words(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) if SIGNAL_CODES.contains(&code) => {
            let signal = code - 128;
            format!("exit code {code}, with which a shell reports signal {signal}")
        }
        (Some(code), _) => format!("exit code {code}"),
        (None, Some(signal)) => format!("killed by signal {signal}"),
        (None, None) => status.to_string(),
    }
}

/// Returns a line without control characters, truncated to [`LONGEST_LINE`].
fn printable(line: &str) -> String {
    let plain = line.replace(|c: char| c.is_control(), " ");
    plain.trim().chars().take(LONGEST_LINE).collect()
}

/// Reads the last [`READ_BYTES`] bytes of a file as text.
fn end_of(path: &Path) -> io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(READ_BYTES)))?;
    let mut bytes = Vec::new();
    file.take(READ_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Outcome, Stopped, Verdict, run, write};
    use super::*;

    /// Runs a gate in a folder of its own, and writes its files there. The base prints a number `rate`.
    fn gate(folder: &Path, head: &str, metric: &str, seconds: u64, stop: &AtomicBool) -> Outcome {
        let head = head.replace("DIR", &folder.display().to_string());
        let settings = Settings {
            commands: ["echo '{\"rate\": 2}'".to_owned(), head],
            metrics: vec![metric.parse().unwrap()],
            limit: "50%".parse().unwrap(),
            level: 0.01,
            time: Duration::from_secs(60),
            pairs: 4,
            seed: 1,
        };
        let patience = Duration::from_secs(seconds);
        let mut runner = Commands::new(&settings, folder, patience, stop);
        let outcome = run(&settings, &mut runner, stop, |_, _| {}).unwrap();
        write(&outcome, folder).unwrap();
        outcome
    }

    /// Returns the end of a gate whose head fails, after a check of its files.
    fn end_of_gate(head: &str, metric: &str, seconds: u64) -> (Outcome, Stopped) {
        let folder = tempfile::tempdir().unwrap();
        let never = AtomicBool::new(false);
        let outcome = gate(folder.path(), head, metric, seconds, &never);
        assert_eq!(outcome.verdict, Verdict::Stopped);
        for file in ["gate.json", "junit.xml", "summary.md"] {
            let text = fs::read_to_string(folder.path().join(file)).unwrap();
            assert!(text.contains("stopped: head failed in"), "{file}: {text}");
        }
        let pairs = fs::read_to_string(folder.path().join("pairs.csv")).unwrap();
        assert_eq!(pairs.lines().count(), 1 + outcome.pairs.len());
        let stopped = outcome.stopped.clone().unwrap();
        (outcome, stopped)
    }

    #[test]
    fn pairs_measured_before_a_command_fails_are_stored() {
        let head =
            "echo >> DIR/runs; [ $(wc -l < DIR/runs) -lt 4 ] || { echo no; echo bad >&2; exit 3; }";
        let (outcome, stopped) = end_of_gate(head, "time", 30);
        // The warm-up is the first run of the command, so its fourth run belongs to the third pair.
        assert_eq!(outcome.pairs.len(), 2);
        assert_eq!(stopped.text, "stopped: head failed in pair 3 (exit code 3)");
        assert_eq!(stopped.printed, ["bad"]);
        assert!(!outcome.interrupted && outcome.metrics[0].verdict == Verdict::CannotTell);
    }

    #[test]
    fn the_reason_why_a_gate_command_failed_is_reported() {
        let cases = [
            ("exit 7", "exit code 7"),
            ("kill -9 $$", "killed by signal 9"),
            (
                "exit 137",
                "exit code 137, with which a shell reports signal 9",
            ),
            ("true", "no output, while base has what --metric names"),
            (
                "echo '{\"rates\": 2}'",
                "no number `rate` in its JSON, while base has what --metric names; did you mean `rates`?",
            ),
            (
                "echo '{\"rate\": 0}'",
                "rate is 0: only values above zero have a ratio",
            ),
        ];
        for (head, reason) in cases {
            let (outcome, stopped) = end_of_gate(head, "rate", 30);
            assert_eq!(stopped.reason, reason, "{head}");
            assert_eq!((stopped.command, stopped.pair), (Some(Which::Head), 0));
            assert!(outcome.pairs.is_empty() && outcome.metrics.is_empty());
        }
    }

    #[test]
    fn a_run_beyond_the_timeout_is_killed() {
        let (_, stopped) = end_of_gate("sleep 30", "time", 2);
        assert_eq!(stopped.reason, "killed after the --timeout of 2 s");
    }

    #[test]
    fn an_interrupted_gate_writes_its_files() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(true);
        let outcome = gate(folder.path(), "true", "time", 30, &stop);
        let stopped = outcome.stopped.unwrap();
        assert_eq!(stopped.text, "stopped: interrupted in the warm-up");
        assert!(outcome.interrupted && stopped.command.is_none());
        let summary = fs::read_to_string(folder.path().join("summary.md")).unwrap();
        assert!(summary.contains(&stopped.text), "{summary}");
    }

    #[test]
    fn the_last_lines_of_standard_error_are_repeated() {
        let head = "seq 9 >&2; printf '\\033[1mred\\n' >&2; exit 1";
        let (_, stopped) = end_of_gate(head, "time", 30);
        assert_eq!(stopped.printed, ["6", "7", "8", "9", "[1mred"]);
    }
}
