//! The control socket of a chain: JSON lines, a request and its answer.

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

/// Time that a supervisor may take to answer: it may be changing functions, or taking a chain down.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time within which a supervisor that dies is gone: it ends its processes first.
const END_PATIENCE: Duration = Duration::from_secs(10);
/// Longest request, in bytes: a chain file.
const LONGEST: u64 = 1 << 20;

/// Request to a supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// Asks how the chain is.
    Status,
    /// Takes the chain down.
    Down,
    /// Gives the chain other functions, while packets pass.
    Update {
        /// The file that says which.
        file: String,
        /// Text of that file.
        text: String,
    },
}

/// Answer of a supervisor.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Answer {
    /// Reason why the request was not granted, if so.
    pub error: Option<String>,
    /// State of the chain now; as it was last, if it has been taken down.
    pub status: Option<Status>,
}

/// A request, and where its answer goes.
#[derive(Debug)]
pub(crate) struct Asked {
    pub request: Request,
    pub reply: Reply,
}

/// Way back to a peer.
#[derive(Debug)]
pub(crate) struct Reply {
    answer: Sender<Answer>,
    /// Ends when the answer has been written, or cannot be.
    written: Receiver<()>,
}

impl Reply {
    /// Answers; another thread writes it.
    pub fn send(self, answer: Answer) {
        // Nobody is there any more where this fails.
        let _ = self.answer.send(answer);
    }

    /// Answers, and waits until it has been written: this process may be gone in the next moment.
    pub fn send_and_wait(self, answer: Answer) {
        let written = self.answer.send(answer).is_ok();
        if written {
            let _ = self.written.recv_timeout(PATIENCE);
        }
    }
}

/// Listens at `socket` for as long as the process lives; requests come to `asked`.
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

/// Answers one peer until it goes, or nobody is there any more to ask.
fn serve<E: From<Asked>>(stream: &UnixStream, asked: &Sender<E>) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let read = reader.by_ref().take(LONGEST).read_line(&mut line);
        if !read.is_ok_and(|bytes| bytes > 0) {
            return;
        }
        // Dropped when the answer is written.
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

/// Asks the supervisor of a chain.
///
/// # Errors
/// [`DeployError::Unknown`] where none is up, [`DeployError::Died`] where there was one; [`DeployError::Chain`] for what it
/// refuses.
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
                ErrorKind::WouldBlock | ErrorKind::TimedOut => "does not answer",
                // One that still puts its chain up listens nowhere yet.
                ErrorKind::NotFound if run_folder::of_running(name)?.is_some() => "cannot be asked",
                // One that dies ends its processes before it is gone.
                _ if has_ended(name, END_PATIENCE)? => return Err(not_up(name)?),
                _ => "cannot be asked",
            };
            let what = format!("the supervisor of chain \"{name}\" {what}");
            Err(DeployError::system(what, e))
        }
    }
}

/// Sends a request to a supervisor, and waits for its answer.
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

/// Waits until nobody keeps the chain up; false if somebody still does after that time.
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

/// Takes a chain down, also one whose supervisor is dead; returns how it was last, if somebody could say.
///
/// # Errors
/// [`DeployError::Unknown`], and as [`ask`].
pub fn down(name: &str) -> Result<Option<Status>, DeployError> {
    let last = if run_folder::of_running(name)?.is_some() {
        Some(ask(name, &Request::Down)?)
    } else if run_folder::is_left(name)? {
        // Removed as it goes out of scope.
        run_folder::RunFolder::take(name)?;
        sweep();
        None
    } else {
        return Err(not_up(name)?);
    };
    has_ended(name, PATIENCE)?;
    Ok(last)
}

/// Removes the namespaces and wires of processes that are dead, as far as this user may.
pub fn sweep() {
    // What stays, stays for root.
    let _ = sweep_stale();
    sweep_stale_wires();
}

/// Says why there is nobody to ask: no such chain is up, or its supervisor has died.
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
