//! A connection to a gRPC server: HTTP/2 without TLS, one call after another beside a stream that stays open. A thread
//! receives, so that pings of the server are answered while the caller does something else.

use super::error::{P4Error, Status};
use super::frames::{
    DATA, END_HEADERS, END_STREAM, Event, Frame, HEADERS, PREFIX_BYTES, Receiver, SETTINGS,
    WINDOW_UPDATE,
};
use loona_hpack::Encoder;
use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver as Queue, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use taut_sys::spawn_background;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Initial window of HTTP/2, bytes.
const WINDOW: u32 = 65_535;
/// Maximum number of received events that wait to be read.
const MOST_HEARD: usize = 64;
/// Interval at which a waiting caller looks for a stop request.
const LOOK: Duration = Duration::from_millis(100);
/// Longest frame that is sent, bytes, even if the server accepts longer ones.
const MOST_FRAME: usize = 16_384;

/// Bytes that may be sent.
#[derive(Debug)]
struct Windows {
    connection: i64,
    /// The window of a new stream.
    initial: i64,
    streams: BTreeMap<u32, i64>,
    /// True if the connection has ended.
    is_over: bool,
}

/// The parts of a connection that both threads use.
struct Shared {
    /// The mutex stays locked until a complete frame is written.
    line: Mutex<TcpStream>,
    windows: Mutex<Windows>,
    changed: Condvar,
    receiver: Mutex<Receiver>,
}

/// A connection to a gRPC server.
pub(super) struct Connection {
    shared: Arc<Shared>,
    heard: Queue<Result<Event, P4Error>>,
    encoder: Encoder<'static>,
    authority: String,
    /// The next stream that the client opens.
    next: u32,
    /// Limits of waiting for the server.
    pub wait: Wait,
}

/// Limits of waiting for the server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wait {
    /// Timeout for a reply.
    pub patience: Duration,
    /// A flag that ends all waiting; none if only the timeout does.
    pub stop: Option<&'static AtomicBool>,
}

impl Wait {
    /// Returns how long to wait before the next look at the flag.
    fn slice(&self, begun: Instant) -> Result<Duration, P4Error> {
        if self.stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
            return Err(P4Error::Stopped);
        }
        match self.patience.checked_sub(begun.elapsed()) {
            Some(left) => Ok(left.min(LOOK)),
            None => Err(P4Error::Late(self.patience.as_secs())),
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // This ends the receiving thread.
        let _ = locked(&self.shared.line).shutdown(Shutdown::Both);
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn broken(error: &std::io::Error) -> P4Error {
    P4Error::Connection(error.to_string())
}

impl Connection {
    /// Connects to a server.
    ///
    /// # Errors
    /// Nothing listens at the address.
    pub fn open(address: SocketAddr, connect: Duration, wait: Wait) -> Result<Self, P4Error> {
        let open = || {
            let line = TcpStream::connect_timeout(&address, connect)?;
            line.set_nodelay(true)?;
            line.set_write_timeout(Some(wait.patience))?;
            let ears = line.try_clone()?;
            Ok((line, ears))
        };
        let (mut line, mut ears) = open().map_err(|e| broken(&e))?;
        line.write_all(&greeting()).map_err(|e| broken(&e))?;
        let shared = Arc::new(Shared {
            line: Mutex::new(line),
            windows: Mutex::new(Windows {
                connection: i64::from(WINDOW),
                initial: i64::from(WINDOW),
                streams: BTreeMap::new(),
                is_over: false,
            }),
            changed: Condvar::new(),
            receiver: Mutex::default(),
        });
        let (tell, heard) = sync_channel(MOST_HEARD);
        let with = Arc::clone(&shared);
        spawn_background("p4runtime-ears", move || with.hear(&mut ears, &tell))
            .map_err(|e| P4Error::Connection(e.to_string()))?;
        Ok(Self {
            shared,
            heard,
            encoder: Encoder::new(),
            authority: address.to_string(),
            next: 1,
            wait,
        })
    }

    /// Begins a call, and returns its stream.
    pub fn begin(&mut self, method: &str) -> Result<u32, P4Error> {
        let stream = self.next;
        self.next += 2;
        locked(&self.shared.receiver).open(stream);
        let mut windows = locked(&self.shared.windows);
        let initial = windows.initial;
        windows.streams.insert(stream, initial);
        drop(windows);
        let path = format!("/p4.v1.P4Runtime/{method}");
        let headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path.as_str()),
            (":authority", &self.authority),
            ("te", "trailers"),
            ("content-type", "application/grpc"),
            ("user-agent", concat!("taut/", env!("CARGO_PKG_VERSION"))),
        ];
        let headers = headers.iter();
        let bytes = headers.map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        let block = self.encoder.encode(bytes);
        self.shared
            .write(&Frame::bytes(HEADERS, END_HEADERS, stream, &block))?;
        Ok(stream)
    }

    /// Sends a message on a stream; with `is_last`, the last one.
    pub fn send(&mut self, stream: u32, message: &[u8], is_last: bool) -> Result<(), P4Error> {
        let mut framed = Vec::with_capacity(PREFIX_BYTES + message.len());
        framed.push(0);
        framed.extend((message.len() as u32).to_be_bytes());
        framed.extend(message);
        let mut left = &framed[..];
        while !left.is_empty() {
            let most = self.shared.grant(stream, left.len(), self.wait)?;
            // The server may have ended the call already, and then accepts no more bytes.
            let Some(most) = most else {
                return Ok(());
            };
            let (piece, rest) = left.split_at(most);
            let flags = if is_last && rest.is_empty() {
                END_STREAM
            } else {
                0
            };
            self.shared
                .write(&Frame::bytes(DATA, flags, stream, piece))?;
            left = rest;
        }
        Ok(())
    }

    /// Returns the next message on a stream, or the status with which the stream ended.
    pub fn next(&mut self, stream: u32) -> Result<Result<Vec<u8>, Status>, P4Error> {
        let begun = Instant::now();
        loop {
            match self.heard.recv_timeout(self.wait.slice(begun)?) {
                Ok(Ok(Event::Message(of, message))) if of == stream => return Ok(Ok(message)),
                Ok(Ok(Event::Ended(of, status))) if of == stream => return Ok(Err(status)),
                Ok(Ok(_)) | Err(RecvTimeoutError::Timeout) => {}
                Ok(Err(error)) => return Err(error),
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(P4Error::Closed(String::new()));
                }
            }
        }
    }

    /// Makes a call with one message, and passes each message of the reply to `each`.
    pub fn call(
        &mut self,
        method: &'static str,
        message: &[u8],
        mut each: impl FnMut(&[u8]) -> Result<(), P4Error>,
    ) -> Result<(), P4Error> {
        let stream = self.begin(method)?;
        self.send(stream, message, true)?;
        loop {
            match self.next(stream)? {
                Ok(message) => each(&message)?,
                Err(status) if status.code == 0 => return Ok(()),
                Err(status) => {
                    return Err(P4Error::Refused {
                        call: method,
                        status,
                    });
                }
            }
        }
    }
}

/// Returns the first bytes of a client: no pushes, and no limit on what the server sends on one stream.
fn greeting() -> Vec<u8> {
    const MOST_WINDOW: u32 = 0x7fff_ffff;
    let mut settings = Vec::new();
    for (setting, number) in [(2_u16, 0_u32), (4, MOST_WINDOW)] {
        settings.extend(setting.to_be_bytes());
        settings.extend(number.to_be_bytes());
    }
    let mut bytes = PREFACE.to_vec();
    bytes.extend(Frame::bytes(SETTINGS, 0, 0, &settings));
    let more = (MOST_WINDOW - WINDOW).to_be_bytes();
    bytes.extend(Frame::bytes(WINDOW_UPDATE, 0, 0, &more));
    bytes
}

impl Shared {
    fn write(&self, bytes: &[u8]) -> Result<(), P4Error> {
        let written = locked(&self.line).write_all(bytes);
        written.map_err(|e| P4Error::Closed(format!(": {e}")))
    }

    /// Waits until bytes may be sent on a stream, and returns how many, `wanted` at most; none if the stream ended.
    fn grant(&self, stream: u32, wanted: usize, wait: Wait) -> Result<Option<usize>, P4Error> {
        let is_full = |windows: &Windows| {
            let of_stream = windows.streams.get(&stream);
            !windows.is_over && of_stream.is_some_and(|it| (*it).min(windows.connection) <= 0)
        };
        let begun = Instant::now();
        let mut windows = locked(&self.windows);
        while is_full(&windows) {
            let waited = self.changed.wait_timeout(windows, wait.slice(begun)?);
            windows = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let connection = windows.connection;
        let Some(of_stream) = windows.streams.get_mut(&stream) else {
            return Ok(None);
        };
        let open = (*of_stream).min(connection).max(0);
        let most = wanted.min(open as usize).min(MOST_FRAME);
        if most == 0 {
            // The connection has ended, and the reason is the next event.
            return Ok(None);
        }
        *of_stream -= most as i64;
        windows.connection -= most as i64;
        Ok(Some(most))
    }

    /// Receives until the connection ends.
    fn hear(&self, ears: &mut TcpStream, tell: &SyncSender<Result<Event, P4Error>>) {
        let error = loop {
            let frame = match Frame::read(ears) {
                Ok(frame) => frame,
                Err(e) if e.kind() == std::io::ErrorKind::InvalidData => {
                    break P4Error::Damaged("a frame");
                }
                Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => {
                    break P4Error::Closed(String::new());
                }
                Err(e) => break P4Error::Closed(format!(": {e}")),
            };
            let events = locked(&self.receiver).take(&frame);
            let taken = events.and_then(|events| {
                events
                    .into_iter()
                    .try_for_each(|event| self.pass(event, tell))
            });
            if let Err(error) = taken {
                break error;
            }
        };
        locked(&self.windows).is_over = true;
        self.changed.notify_all();
        let _ = tell.send(Err(error));
    }

    /// Processes an event, or passes it to the caller.
    fn pass(&self, event: Event, tell: &SyncSender<Result<Event, P4Error>>) -> Result<(), P4Error> {
        match event {
            Event::Reply(bytes) => return self.write(&bytes),
            Event::Limit(window) => {
                let mut windows = locked(&self.windows);
                let more = i64::from(window) - windows.initial;
                windows.initial = i64::from(window);
                windows.streams.values_mut().for_each(|it| *it += more);
                self.changed.notify_all();
            }
            Event::Window(stream, more) => {
                let mut windows = locked(&self.windows);
                let of_stream = match stream {
                    0 => Some(&mut windows.connection),
                    _ => windows.streams.get_mut(&stream),
                };
                if let Some(window) = of_stream {
                    *window = window.saturating_add(i64::from(more));
                }
                self.changed.notify_all();
            }
            // Packets and notices on the first stream, which stays open, may come while no one reads.
            Event::Message(1, _) => {
                let _ = tell.try_send(Ok(event));
            }
            Event::Message(..) => {
                let _ = tell.send(Ok(event));
            }
            Event::Ended(stream, _) => {
                locked(&self.windows).streams.remove(&stream);
                self.changed.notify_all();
                let _ = tell.send(Ok(event));
            }
        }
        Ok(())
    }
}
