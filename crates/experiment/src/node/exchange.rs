//! Commands that communicate with another machine: for a single request, or as long-running processes. Both have
//! timeouts.

use std::io::{self, BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Timeout for a command to exit after its input has been closed.
const END_PATIENCE: Duration = Duration::from_secs(20);
/// Interval between two checks for a stop request.
const TICK: Duration = Duration::from_millis(50);

/// Runs a command: `send` writes the command's input, `receive` reads its output. On failure, the error is the last
/// line that the command printed.
pub(crate) fn exchange<T: Send + 'static>(
    mut command: Command,
    send: impl FnOnce(ChildStdin) -> io::Result<()> + Send + 'static,
    receive: impl FnOnce(ChildStdout) -> io::Result<T> + Send + 'static,
    patience: Duration,
    stop: Option<&AtomicBool>,
) -> Result<T, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("cannot run {program}: {e}"))?;
    let (Some(input), Some(output), Some(errors)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(format!("cannot talk to {program}"));
    };
    let sent = std::thread::spawn(move || send(input));
    let received = std::thread::spawn(move || receive(output));
    let said = std::thread::spawn(move || read_all(errors));
    let status = wait_for_exit(&mut child, patience, stop);
    if status.is_err() {
        kill(&mut child);
    }
    let sent = sent
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("no input")));
    let received = received
        .join()
        .unwrap_or_else(|_| Err(io::Error::other("no output")));
    let said = said.join().ok().and_then(Result::ok).unwrap_or_default();
    let said = String::from_utf8_lossy(&said).trim().to_owned();
    let last = said.lines().last().unwrap_or("").trim();
    let status = status?;
    match received {
        _ if !status.success() && !last.is_empty() => Err(last.to_owned()),
        _ if !status.success() => Err(format!("it ended with {status}")),
        // A command may exit without having read all of its input, so a broken pipe is not an error.
        Ok(received) => match sent {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e.to_string()),
            _ => Ok(received),
        },
        Err(e) => Err(e.to_string()),
    }
}

/// Waits until a command exits, the timeout expires, or `stop` is set.
fn wait_for_exit(
    child: &mut Child,
    patience: Duration,
    stop: Option<&AtomicBool>,
) -> Result<ExitStatus, String> {
    let deadline = Instant::now() + patience;
    let mut pause = Duration::from_millis(1);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Err(e) => return Err(e.to_string()),
            Ok(None) if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) => {
                return Err("stopped".to_owned());
            }
            Ok(None) if Instant::now() > deadline => {
                return Err(format!("no reply within {} s", patience.as_secs()));
            }
            Ok(None) => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(TICK);
            }
        }
    }
}

/// Reads a stream to its end.
pub(crate) fn read_all(mut from: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    from.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A long-running command whose input stays open. Dropping the value closes the input, which ends the command.
pub(crate) struct Kept {
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    /// Standard error of the command, which is set when the command has exited.
    ended: Arc<OnceLock<String>>,
    pid: u32,
}

impl Kept {
    pub(crate) fn start(mut command: Command) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let pid = child.id();
        // Only the first lines are needed. Later output is read and dropped, so that the command does not block.
        let (say, lines) = sync_channel(64);
        std::thread::spawn(move || {
            let lines = output
                .map(BufReader::new)
                .into_iter()
                .flat_map(BufRead::lines);
            for line in lines.map_while(Result::ok) {
                let _ = say.try_send(line);
            }
        });
        let ended = Arc::new(OnceLock::new());
        let end = Arc::clone(&ended);
        std::thread::spawn(move || {
            let said = errors
                .and_then(|errors| read_all(errors).ok())
                .unwrap_or_default();
            let _ = child.wait();
            let _ = end.set(String::from_utf8_lossy(&said).trim().to_owned());
        });
        Ok(Self {
            input,
            lines,
            ended,
            pid,
        })
    }

    /// Returns the rest of the first line of output that begins with `mark`. If the command exits first, the error is
    /// its standard error; otherwise it states that `stop` was set or that the timeout has expired.
    pub(crate) fn line(
        &mut self,
        mark: &str,
        patience: Duration,
        stop: &AtomicBool,
    ) -> Result<String, String> {
        let deadline = Instant::now() + patience;
        loop {
            match self.lines.recv_timeout(TICK) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(mark) {
                        return Ok(rest.to_owned());
                    }
                }
                Err(RecvTimeoutError::Disconnected) => {
                    let deadline = Instant::now() + END_PATIENCE;
                    while Instant::now() < deadline && self.ended.get().is_none() {
                        std::thread::sleep(TICK);
                    }
                    return Err(self.ended.get().cloned().unwrap_or_default());
                }
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                    return Err("stopped".to_owned());
                }
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    return Err(format!("no reply within {} s", patience.as_secs()));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Returns the standard error of the command; `None` while the command is running.
    pub(crate) fn ended(&self) -> Option<String> {
        self.ended.get().cloned()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.input = None;
        let deadline = Instant::now() + END_PATIENCE;
        while self.ended.get().is_none() {
            if Instant::now() > deadline {
                kill_group(self.pid);
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn kill(child: &mut Child) {
    kill_group(child.id());
    let _ = child.wait();
}

pub(crate) fn kill_group(pid: u32) {
    let group = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;

    fn sh(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_command_receives_its_input_and_returns_its_output() {
        let long = vec![b'x'; 1 << 20];
        let send = {
            let long = long.clone();
            move |mut input: ChildStdin| input.write_all(&long)
        };
        let got = exchange(sh("cat"), send, read_all, Duration::from_secs(20), None);
        assert_eq!(got.unwrap(), long);
    }

    #[test]
    fn the_last_line_of_stderr_is_the_error() {
        let ask = |script: &str, patience| {
            exchange(sh(script), |_| Ok(()), read_all, patience, None).unwrap_err()
        };
        let long = Duration::from_secs(20);
        assert_eq!(ask("echo one >&2; echo two >&2; exit 3", long), "two");
        assert!(ask("exit 3", long).contains("3"));
        let begun = Instant::now();
        assert!(ask("sleep 60", Duration::from_millis(100)).contains("no reply"));
        assert!(begun.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_background_command_ends_when_its_input_closes() {
        let stop = AtomicBool::new(false);
        let folder = tempfile::tempdir().unwrap();
        let script = format!("echo here; cat; touch {}/ended", folder.path().display());
        let mut kept = Kept::start(sh(&script)).unwrap();
        assert_eq!(
            kept.line("he", Duration::from_secs(20), &stop),
            Ok("re".into())
        );
        assert_eq!(kept.ended(), None);
        drop(kept);
        assert!(folder.path().join("ended").exists());
        let mut failing = Kept::start(sh("echo no >&2; exit 1")).unwrap();
        let said = failing.line("he", Duration::from_secs(20), &stop);
        assert_eq!(said, Err("no".into()));
    }
}
