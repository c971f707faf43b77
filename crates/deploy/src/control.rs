//! The control socket of a chain: JSON lines, a request and its reply.

use crate::{DeployError, Status, run_folder};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use taut_host::net::{sweep_stale, sweep_stale_wires};
use taut_sys::listen_privately;

/// Timeout for a supervisor's reply: the supervisor may first have to replace functions or stop a chain.
const PATIENCE: Duration = Duration::from_secs(30);
/// Timeout for the exit of a supervisor that was stopped, which first ends its processes.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// Longest request, bytes; the longest requests contain a chain file.
const LONGEST: u64 = 1 << 20;

/// Request to a supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Requests the state of the chain.
    Status,
    /// Stops the chain.
    Down,
    /// Replaces the chain's functions, while packets pass.
    Update {
        /// Path of the new chain file.
        file: String,
        /// Text of the new chain file.
        text: String,
    },
}

/// Reply of a supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Reason why the request failed; none if it succeeded.
    pub error: Option<String>,
    /// Current state of the chain, or its last state if the chain has been stopped.
    pub status: Option<Status>,
}

/// A request, with the channel for its reply.
#[derive(Debug)]
pub(crate) struct Asked {
    pub request: Request,
    pub reply: Reply,
}

/// The channel for a reply to a peer.
#[derive(Debug)]
pub(crate) struct Reply {
    answer: Sender<Answer>,
    /// A channel that the writing thread closes when it has written the reply, or cannot write it.
    written: Receiver<()>,
}

impl Reply {
    /// Sends a reply; another thread writes it.
    pub fn send(self, answer: Answer) {
        // Sending fails only if the peer has disconnected.
        let _ = self.answer.send(answer);
    }

    /// Sends a reply, and waits until it has been written, as this process may exit immediately afterwards.
    pub fn send_and_wait(self, answer: Answer) {
        let written = self.answer.send(answer).is_ok();
        if written {
            let _ = self.written.recv_timeout(PATIENCE);
        }
    }
}

/// Listens at `socket` for as long as the process lives; requests are sent to `asked`.
pub(crate) fn listen<E: From<Asked> + Send + 'static>(
    socket: &Path,
    asked: Sender<E>,
) -> Result<(), DeployError> {
    let listener = listen_privately(socket)
        .map_err(|e| DeployError::system(format!("cannot listen at {}", socket.display()), e))?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let asked = asked.clone();
            thread::spawn(move || serve(&stream, &asked));
        }
    });
    Ok(())
}

/// Serves one peer until it disconnects, or the supervisor no longer receives requests.
fn serve<E: From<Asked>>(stream: &UnixStream, asked: &Sender<E>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let read = reader.by_ref().take(LONGEST).read_line(&mut line);
        if !read.is_ok_and(|bytes| bytes > 0) {
            return;
        }
        // This sender is dropped after the reply is written, which ends the wait of `Reply::send_and_wait`.
        let mut writing: Option<Sender<()>> = None;
        let answer = match serde_json::from_str(&line) {
            Ok(request) => {
                let (answer, answered): (_, Receiver<Answer>) = channel();
                let (until, written) = channel();
                writing = Some(until);
                let reply = Reply { answer, written };
                let sent = asked.send(Asked { request, reply }.into());
                match sent.ok().and_then(|()| answered.recv().ok()) {
                    Some(answer) => answer,
                    None => return,
                }
            }
            Err(e) => Answer {
                error: Some(format!("not a request: {e}")),
                status: None,
            },
        };
        let text = serde_json::to_string(&answer).unwrap_or_default();
        let mut stream = stream;
        if writeln!(stream, "{text}").is_err() {
            return;
        }
        drop(writing);
    }
}

/// Sends a request to the supervisor of a chain.
///
/// # Errors
/// [`DeployError::Unknown`] if no chain of that name is running, [`DeployError::Died`] if its supervisor has died;
/// [`DeployError::Chain`] if the supervisor rejects the request, [`DeployError::System`] if the supervisor cannot be
/// reached or does not reply.
pub fn ask(name: &str, request: &Request) -> Result<Status, DeployError> {
    let Some(folder) = run_folder::of_running(name)? else {
        return Err(not_up(name)?);
    };
    match exchange(&folder.join("control.sock"), request) {
        Ok(Answer {
            error: None,
            status: Some(status),
        }) => Ok(status),
        Ok(Answer { error, .. }) => Err(DeployError::Chain(error.unwrap_or_default())),
        Err(e) => {
            let what = match e.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "does not reply",
                // A supervisor that is still starting its chain does not listen yet.
                ErrorKind::NotFound if run_folder::of_running(name)?.is_some() => {
                    "cannot be reached"
                }
                // The connection may have failed because the supervisor is ending. The supervisor ends its processes
                // first, so this branch waits for the supervisor's exit.
                _ if has_ended(name, END_PATIENCE)? => return Err(not_up(name)?),
                _ => "cannot be reached",
            };
            let what = format!("the supervisor of chain \"{name}\" {what}");
            Err(DeployError::system(what, e))
        }
    }
}

/// Sends a request to a supervisor, and waits for its reply.
fn exchange(socket: &Path, request: &Request) -> std::io::Result<Answer> {
    let stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut line = serde_json::to_string(request)?;
    line.push('\n');
    (&stream).write_all(line.as_bytes())?;
    let mut answer = String::new();
    BufReader::new(&stream).read_line(&mut answer)?;
    if answer.is_empty() {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(serde_json::from_str(&answer)?)
}

/// Waits until no supervisor runs the chain; returns false if a supervisor still runs it after the timeout.
fn has_ended(name: &str, patience: Duration) -> Result<bool, DeployError> {
    let deadline = Instant::now() + patience;
    while run_folder::of_running(name)?.is_some() {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// Stops a chain, even if its supervisor is dead; returns its last state, if it is known.
///
/// # Errors
/// [`DeployError::Unknown`], and the errors of [`ask`].
pub fn down(name: &str) -> Result<Option<Status>, DeployError> {
    let last = if run_folder::of_running(name)?.is_some() {
        Some(ask(name, &Request::Down)?)
    } else if run_folder::is_left(name)? {
        // The remaining folder is removed, because the returned value is dropped here.
        run_folder::RunFolder::take(name)?;
        sweep();
        None
    } else {
        return Err(not_up(name)?);
    };
    has_ended(name, PATIENCE)?;
    Ok(last)
}

/// Removes the namespaces and links of dead processes that this user may remove.
pub fn sweep() {
    // An error is ignored: only root can remove what remains.
    let _ = sweep_stale();
    sweep_stale_wires();
}

/// Returns the error for a chain without a running supervisor: [`DeployError::Died`] if the supervisor has died,
/// otherwise [`DeployError::Unknown`].
fn not_up(name: &str) -> Result<DeployError, DeployError> {
    if run_folder::is_left(name)? {
        return Ok(DeployError::Died {
            name: name.to_string(),
            log: match run_folder::log(name)? {
                Some(log) => format!(" (log: {})", log.display()),
                None => String::new(),
            },
        });
    }
    let mut up = Vec::new();
    for known in run_folder::names()? {
        if run_folder::of_running(&known)?.is_some() {
            up.push(known);
        }
    }
    let known = match up[..] {
        [] => "none is".to_string(),
        _ => {
            let up: Vec<_> = up.iter().map(|n| format!("\"{n}\"")).collect();
            format!("these are: {}", up.join(", "))
        }
    };
    Ok(DeployError::Unknown {
        name: name.to_string(),
        known,
    })
}
