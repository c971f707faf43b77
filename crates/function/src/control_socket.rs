//! Control sockets of functions: Unix sockets with a line of JSON for each request and each reply. The bytes of a file
//! follow the request that loads it.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, BufWriter, ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use taut_port::PortError;
use taut_sys::{listen_privately, spawn_background};

/// The longest time until a thread of the control socket detects that it has to end.
const LOOK: Duration = Duration::from_millis(50);
/// The limit on the length of a request line, bytes. A file after the line does not count.
const MOST_LINE_BYTES: u64 = 1 << 20;
/// The limit in bytes on the size of one file, and on the total size of the files that are being loaded.
pub const MOST_FILE_BYTES: u64 = 1 << 30;
/// The limit on clients that are connected to a control socket at the same time.
const MOST_CLIENTS: usize = 64;

/// The part of a function's control plane that a control socket calls for each request.
pub trait Decides: Send + Sync + 'static {
    /// Replies to the request in `line`; data after the line is read from `input`.
    ///
    /// # Errors
    /// Fails if the client has disconnected or sends invalid data: the connection then ends.
    fn answer(
        &self,
        line: &[u8],
        input: &mut dyn Read,
        output: &mut dyn Write,
        loading: &Loading,
    ) -> std::io::Result<()>;

    /// Waits until the changes that the last request made are in force.
    ///
    /// # Errors
    /// Returns the reason why the changes of the last request are not in force.
    fn settle(&self) -> Result<(), String>;
}

/// The reply to a refused request.
#[derive(Serialize)]
struct Refusal {
    ok: bool,
    error: String,
}

/// The number of bytes of files that all clients of a control socket are sending at the moment.
#[derive(Default)]
pub struct Loading(AtomicU64);

/// Space that is reserved for one file, and released when this value is dropped.
pub struct Room<'a> {
    loading: &'a Loading,
    bytes: u64,
}

impl Loading {
    /// Reserves space for a file of `bytes` bytes. Fails with the reason if this would exceed a limit.
    pub fn room(&self, bytes: u64) -> Result<Room<'_>, String> {
        if bytes > MOST_FILE_BYTES {
            return Err(format!(
                "the file is too large: the maximum is {MOST_FILE_BYTES} bytes"
            ));
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
                "other clients are loading {taken} bytes, and the maximum in total is {MOST_FILE_BYTES}: wait for them"
            )),
        }
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.loading.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The thread that listens on a control socket. Dropping this value ends the thread and its connections, and removes
/// the socket.
pub struct ControlSocket {
    path: PathBuf,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ControlSocket {
    /// Listens at `path` for requests to the function called `function`. Returns None if `path` is none.
    ///
    /// # Errors
    /// Fails as [`ControlSocket::start`] does.
    pub fn start_at(
        function: &str,
        path: Option<&PathBuf>,
        control: &Arc<impl Decides>,
    ) -> Result<Option<Self>, PortError> {
        let start = |path: &PathBuf| Self::start(function, path, control);
        path.map(start).transpose()
    }

    /// Listens at `path` for requests to the function called `function`.
    ///
    /// # Errors
    /// Fails if another process listens at `path`, or if the path cannot be used.
    pub fn start(
        function: &str,
        path: &Path,
        control: &Arc<impl Decides>,
    ) -> Result<Self, PortError> {
        let what = || format!("function \"{function}\": control socket {}", path.display());
        if UnixStream::connect(path).is_ok() {
            let other =
                std::io::Error::other("another taut listens on this path: choose another one");
            return Err(PortError::system(what(), other));
        }
        // A socket that a killed process has left is removed; any other file is not touched.
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
        let thread = spawn_background("control", move || accept(&listener, &control, &stopped))?;
        Ok(Self {
            path: path.to_path_buf(),
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = std::fs::remove_file(&self.path);
    }
}

fn accept(listener: &UnixListener, control: &Arc<impl Decides>, stop: &Arc<AtomicBool>) {
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
                // A client that disconnects is no error.
                let _ = serve(&stream, &*control, &loading, &stop);
            };
            clients.extend(spawn_background("control-client", serve));
        }
    }
    for client in clients {
        let _ = client.join();
    }
}

/// A connection to a client. When the server has to end, reads report the end of the input.
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
    control: &impl Decides,
    loading: &Loading,
    stop: &AtomicBool,
) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(LOOK))?;
    // A client that does not read its replies must not keep the server from ending.
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
            let text = format!(
                "the request is too long: the maximum is {MOST_LINE_BYTES} bytes: use load"
            );
            refuse(&mut output, text)?;
            return output.flush();
        }
        control.answer(&line, &mut input, &mut output, loading)?;
        // The worker may share this core, and many requests may have arrived together.
        std::thread::yield_now();
        // The worker has to confirm changes. Requests that arrive together are confirmed together, because each
        // separate confirmation would wait for the worker.
        if !input.buffer().contains(&b'\n') {
            if let Err(stuck) = control.settle() {
                // The replies in the buffer report success, but their changes are not in force, so they are discarded.
                let (mut stream, _) = output.into_parts();
                let text = format!("{stuck}; the change is made once it accepts changes again");
                return refuse(&mut stream, text);
            }
            output.flush()?;
        }
    }
}

/// Writes one line of JSON: a reply, or one line of a longer reply.
pub fn write(output: &mut dyn Write, answer: &impl Serialize) -> std::io::Result<()> {
    serde_json::to_writer(&mut *output, answer)?;
    output.write_all(b"\n")
}

/// Writes a reply that the request is refused; `error` is the reason.
pub fn refuse(output: &mut dyn Write, error: String) -> std::io::Result<()> {
    write(output, &Refusal { ok: false, error })
}

/// Reads a request from `line`, and writes the reply or the refusal.
///
/// # Errors
/// Fails if the client has disconnected.
pub fn answer<R: DeserializeOwned, A: Serialize>(
    line: &[u8],
    output: &mut dyn Write,
    grant: impl FnOnce(R) -> Result<A, String>,
) -> std::io::Result<()> {
    let request = serde_json::from_slice(line).map_err(|e| format!("not a request: {e}"));
    match request.and_then(grant) {
        Ok(answer) => write(output, &answer),
        Err(why) => refuse(output, why),
    }
}

/// Reads a file of `bytes` bytes, which follow the request that has announced the file. Returns the text of the file,
/// or the reason for a refusal.
///
/// # Errors
/// Fails if the client stops sending. Also fails after a refusal for lack of space: the file's bytes stay unread, so
/// the connection cannot continue.
pub fn read_file(
    bytes: u64,
    input: &mut dyn Read,
    output: &mut dyn Write,
    loading: &Loading,
) -> std::io::Result<Result<String, String>> {
    let _room = match loading.room(bytes) {
        Ok(room) => room,
        Err(text) => {
            refuse(output, text)?;
            // The bytes of the file follow and stay unread, so the connection cannot continue.
            return Err(ErrorKind::InvalidData.into());
        }
    };
    let mut file = Vec::new();
    input.take(bytes).read_to_end(&mut file)?;
    if (file.len() as u64) < bytes {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8(file).map_err(|_| "it is not text".to_string()))
}
