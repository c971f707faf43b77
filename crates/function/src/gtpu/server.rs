//! The control socket: a Unix socket on which a line of JSON asks and a line of JSON answers.

use super::bearer::{BearerText, Match, read_csv};
use super::control::{Control, Refused, Wish};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use taut_port::PortError;
use taut_sys::{listen_privately, spawn_background};

/// Time after which a thread sees at the latest that it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// A request is no longer than this; files come behind theirs.
const MOST_LINE_BYTES: u64 = 1 << 20;
/// A file is no longer than this, nor are those that are being loaded at one time together: four million lines of the
/// longest kind.
pub const MOST_FILE_BYTES: u64 = 1 << 30;
/// Clients at a time.
const MOST_CLIENTS: usize = 64;

/// Request: `{"op": "add", ...}`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// New bearers, all or none.
    Add {
        /// Bearers to add.
        bearers: Vec<BearerText>,
        /// Whether a bearer that is there already is changed instead of refused.
        #[serde(default)]
        replace: bool,
    },
    /// Bearers go, all or none.
    Remove {
        /// Matches of the bearers.
        matches: Vec<String>,
    },
    /// New bearers from as many bytes of CSV behind this line, all or none.
    Load {
        /// Number of bytes.
        bytes: u64,
        /// Whether a bearer that is there already is changed, as in `add`.
        #[serde(default)]
        replace: bool,
    },
    /// List of every bearer: as many lines as the answer says, one JSON object each.
    List {},
    /// State: how full the table is, and what became of packets.
    Status {},
}

/// Answer to a request.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the request was granted.
    pub ok: bool,
    /// Reason why it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// The line of the file that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// Bearers added, changed, removed or listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bearers: Option<usize>,
    /// Bearers there can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room: Option<usize>,
    /// Packets by what became of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<BTreeMap<String, u64>>,
    /// Counts of what became of PFCP messages, and how many sessions there are, where PFCP is spoken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pfcp: Option<BTreeMap<String, u64>>,
}

impl Answer {
    fn done(bearers: usize) -> Self {
        Self {
            ok: true,
            bearers: Some(bearers),
            ..Self::default()
        }
    }

    fn wrong(error: impl Into<String>) -> Self {
        Self {
            error: Some(error.into()),
            ..Self::default()
        }
    }
}

/// Bytes of files that clients send at the moment, all together.
#[derive(Default)]
struct Loading(AtomicU64);

/// A file's part of them, until it is dropped.
struct Room<'a> {
    loading: &'a Loading,
    bytes: u64,
}

impl Loading {
    /// Room for a file; why there is none.
    fn room(&self, bytes: u64) -> Result<Room<'_>, String> {
        if bytes > MOST_FILE_BYTES {
            return Err(format!("a file has {MOST_FILE_BYTES} bytes at most"));
        }
        let more = |taken: u64| Some(taken + bytes).filter(|taken| *taken <= MOST_FILE_BYTES);
        // Relaxed: only the number is shared.
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        match taken {
            Ok(_) => Ok(Room {
                loading: self,
                bytes,
            }),
            Err(taken) => Err(format!(
                "{taken} bytes are being loaded by others, and together it may be {MOST_FILE_BYTES}: wait for them"
            )),
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.loading.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The thread that listens. Dropping it ends it and its clients, and takes the socket away.
pub(super) struct Server {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub fn start(path: &Path, control: &Arc<Mutex<Control>>) -> Result<Self, PortError> {
        let what = || format!("function \"gtpu\": control socket {}", path.display());
        if UnixStream::connect(path).is_ok() {
            let other = std::io::Error::other("another gateway listens there: choose another path");
            return Err(PortError::system(what(), other));
        }
        // What is left of one that was killed; anything else that lies there is not touched.
        let is_socket = |m: std::fs::Metadata| {
            use std::os::unix::fs::FileTypeExt;
            m.file_type().is_socket()
        };
        if std::fs::symlink_metadata(path).is_ok_and(is_socket) {
            let _ = std::fs::remove_file(path);
        }
        let listen = || {
            let listener = listen_privately(path)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = listen().map_err(|e: std::io::Error| PortError::system(what(), e))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, control) = (Arc::clone(&stop), Arc::clone(control));
        let thread = spawn_background("gtpu-control", move || {
            accept(&listener, &control, &stopped)
        })?;
        Ok(Self {
            path: path.to_path_buf(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, control: &Arc<Mutex<Control>>, stop: &Arc<AtomicBool>) {
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    let loading = Arc::new(Loading::default());
    let timeout = Timespec {
        tv_sec: 0,
        tv_nsec: LOOK.subsec_nanos().into(),
    };
    while !stop.load(Ordering::Relaxed) {
        let mut watched = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
        let _ = poll(&mut watched, Some(&timeout));
        clients.retain(|client| !client.is_finished());
        if clients.len() >= MOST_CLIENTS {
            std::thread::sleep(LOOK);
            continue;
        }
        if let Ok((stream, _)) = listener.accept() {
            let (control, stop) = (Arc::clone(control), Arc::clone(stop));
            let loading = Arc::clone(&loading);
            let serve = move || {
                // A client that goes away is no trouble.
                let _ = serve(&stream, &control, &loading, &stop);
            };
            clients.extend(spawn_background("gtpu-client", serve));
        }
    }
    for client in clients {
        let _ = client.join();
    }
}

/// A stream whose reads end when the server does.
struct Interruptible<'a> {
    stream: &'a UnixStream,
    stop: &'a AtomicBool,
}

impl Read for Interruptible<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match (&mut &*self.stream).read(into) {
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    if self.stop.load(Ordering::Relaxed) {
                        return Ok(0);
                    }
                }
                done => return done,
            }
        }
    }
}

fn serve(
    stream: &UnixStream,
    control: &Mutex<Control>,
    loading: &Loading,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LOOK))?;
    // A client that asks and does not read must not keep the server from ending.
    stream.set_write_timeout(Some(Duration::from_secs(5)))?;
    let mut input = BufReader::with_capacity(1 << 16, Interruptible { stream, stop });
    let mut output = BufWriter::with_capacity(1 << 16, stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = (&mut input)
            .take(MOST_LINE_BYTES)
            .read_until(b'\n', &mut line)?;
        if read == 0 {
            return output.flush();
        }
        if line.last() != Some(&b'\n') && read as u64 == MOST_LINE_BYTES {
            let text = format!("a request has {MOST_LINE_BYTES} bytes at most: use load");
            write(&mut output, &Answer::wrong(text))?;
            return output.flush();
        }
        answer(&line, &mut input, &mut output, control, loading)?;
        // The worker may share this core, and many requests may have come together.
        std::thread::yield_now();
        // Requests that have arrived together are put into force together: each alone would wait for the worker.
        if !input.buffer().contains(&b'\n') {
            let settled = lock(control).settle();
            if let Err(stuck) = settled {
                // None of the answers that wait is true yet.
                let (mut stream, _) = output.into_parts();
                let text = format!("{stuck}; what was asked is made once it takes some again");
                return write(&mut stream, &Answer::wrong(text));
            }
            output.flush()?;
        }
    }
}

fn lock(control: &Mutex<Control>) -> std::sync::MutexGuard<'_, Control> {
    control.lock().unwrap_or_else(PoisonError::into_inner)
}

fn write(output: &mut impl Write, answer: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *output, answer)?;
    output.write_all(b"\n")
}

fn answer(
    line: &[u8],
    input: &mut impl Read,
    output: &mut impl Write,
    control: &Mutex<Control>,
    loading: &Loading,
) -> std::io::Result<()> {
    let request: Request = match serde_json::from_slice(line) {
        Ok(request) => request,
        Err(e) => return write(output, &Answer::wrong(format!("not a request: {e}"))),
    };
    let answer = match request {
        Request::Add { bearers, replace } => add(&bearers, replace, &mut lock(control)),
        Request::Remove { matches } => remove(&matches, &mut lock(control)),
        Request::Load { bytes, replace } => {
            let _room = match loading.room(bytes) {
                Ok(room) => room,
                Err(text) => {
                    write(output, &Answer::wrong(text))?;
                    // The file follows, and nobody reads it.
                    return Err(ErrorKind::InvalidData.into());
                }
            };
            let mut file = Vec::new();
            input.take(bytes).read_to_end(&mut file)?;
            if (file.len() as u64) < bytes {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            match String::from_utf8(file) {
                Ok(text) => load(&text, replace, &mut lock(control)),
                Err(_) => Answer::wrong("it is not text"),
            }
        }
        Request::List {} => {
            let bearers: Vec<_> = lock(control).bearers().collect();
            write(output, &Answer::done(bearers.len()))?;
            for bearer in bearers {
                write(output, &BearerText::from(bearer))?;
            }
            return Ok(());
        }
        Request::Status {} => {
            let control = lock(control);
            let (bearers, room) = control.occupancy();
            let named = |counts: Vec<(&str, u64)>| {
                let named = counts.into_iter().map(|(name, n)| (name.to_string(), n));
                named.collect()
            };
            Answer {
                room: Some(room),
                packets: Some(named(control.outcomes())),
                pfcp: control
                    .signalling
                    .as_ref()
                    .map(|counts| named(counts.read())),
                ..Answer::done(bearers)
            }
        }
    };
    write(output, &answer)
}

fn wish(bearer: super::Bearer, replace: bool) -> Wish {
    if replace {
        Wish::Put(bearer)
    } else {
        Wish::Add(bearer)
    }
}

fn granted(wishes: &[Wish], control: &mut Control) -> Result<Answer, (usize, Refused)> {
    control.grant(wishes).map(|()| Answer::done(wishes.len()))
}

fn add(bearers: &[BearerText], replace: bool, control: &mut Control) -> Answer {
    let checked: Result<Vec<_>, _> = bearers
        .iter()
        .map(|text| {
            let checked = text.check(control.own());
            let line = text.to_string();
            let wrong = |e| format!("{}: {e}", line.trim_end_matches(','));
            checked.map(|bearer| wish(bearer, replace)).map_err(wrong)
        })
        .collect();
    match checked {
        Ok(wishes) => {
            granted(&wishes, control).unwrap_or_else(|(_, e)| Answer::wrong(e.to_string()))
        }
        Err(e) => Answer::wrong(e),
    }
}

fn remove(matches: &[String], control: &mut Control) -> Answer {
    let matches: Result<Vec<Match>, _> = matches.iter().map(|text| text.parse()).collect();
    match matches {
        Ok(matches) => {
            let wishes: Vec<_> = matches.into_iter().map(Wish::Remove).collect();
            granted(&wishes, control).unwrap_or_else(|(_, e)| Answer::wrong(e.to_string()))
        }
        Err(e) => Answer::wrong(e),
    }
}

fn load(text: &str, replace: bool, control: &mut Control) -> Answer {
    let at = |line: usize, error: String| Answer {
        line: Some(line),
        ..Answer::wrong(error)
    };
    let bearers = match read_csv(text, control.own()) {
        Ok(bearers) => bearers,
        Err((line, error)) => return at(line, error),
    };
    if bearers.is_empty() {
        return Answer::wrong("there is no bearer in it");
    }
    let wishes: Vec<_> = bearers.iter().map(|(_, b)| wish(*b, replace)).collect();
    granted(&wishes, control)
        .unwrap_or_else(|(number, e)| at(bearers.get(number).map_or(0, |b| b.0), e.to_string()))
}
