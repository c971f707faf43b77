//! A small HTTP/1.1 server (RFC 9112) that runs next to a measurement. It serves a few clients at a time, with limits
//! on the length and the time of a request. The connection of a slow client, or of a long request, is closed.
//!
//! [`Server::start`] is for pages and metrics: it ignores bodies. [`Server::start_with`] also passes the bodies of
//! requests to the handler, within its [`Limits`], and sends replies of unknown length in chunks.

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Time limit for receiving a client's request, and for sending it the reply.
const PATIENCE: Duration = Duration::from_secs(1);
/// Limit on the bytes of a request.
const LONGEST_REQUEST_BYTES: usize = 8192;
/// Bytes of the reply that a client must receive within [`PATIENCE`].
const PATIENT_BYTES: usize = 1 << 20;
/// Limit on the concurrent clients; others wait in the kernel's backlog, which is short.
const CLIENTS: usize = 4;
/// Bytes of a chunk of a reply of unknown length.
const CHUNK_BYTES: usize = 64 << 10;

/// Reason why an HTTP server does not run.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is not an IP address with a port.
    #[error(
        "{what} address {text:?}: expected an IP address and a port, such as 127.0.0.1:9100 or [::1]:9100"
    )]
    Address {
        /// Name of the server that should listen at the address.
        what: &'static str,
        /// The text that is not an address.
        text: String,
    },
    /// Listening at the address fails.
    #[error("{what} address {address}: {source}; choose another port (0 selects a free one)")]
    Listen {
        /// Name of the listener.
        what: &'static str,
        /// The address at which listening fails.
        address: SocketAddr,
        /// Error that the operating system reported.
        source: io::Error,
    },
}

/// A client's request.
#[derive(Debug)]
pub struct Request<'a> {
    /// The method: `GET`, `HEAD`, `POST` or another one.
    pub method: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// True if the client is on this machine.
    pub is_from_here: bool,
    /// The body.
    pub body: &'a [u8],
    head: &'a str,
}

impl Request<'_> {
    /// Returns the value of the header field `name`; none if the request does not have exactly one such field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let fields = self
            .head
            .lines()
            .skip(1)
            .filter_map(|it| it.split_once(':'));
        let mut values = fields.filter(|(is, _)| is.eq_ignore_ascii_case(name));
        match (values.next(), values.next()) {
            (Some((_, value)), None) => Some(value.trim()),
            _ => None,
        }
    }
}

/// The reply to a request.
#[derive(Debug)]
pub struct Reply {
    /// Status code and reason, such as `200 OK`.
    pub status: &'static str,
    /// Media type of the body.
    pub kind: &'static str,
    /// Further header fields, each ending with `\r\n`.
    pub fields: Cow<'static, str>,
    /// The body of the reply.
    pub body: Vec<u8>,
}

impl Reply {
    /// Makes a reply with a line of text.
    pub fn text(status: &'static str, line: &str) -> Self {
        Self {
            status,
            kind: "text/plain; charset=utf-8",
            fields: Cow::Borrowed(""),
            body: format!("{line}\n").into_bytes(),
        }
    }
}

/// A function that writes the body of a reply.
pub type WriteBody = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()>>;

/// The answer to a request: a complete reply, or a reply whose body is written while it is sent.
pub enum Answer {
    /// The reply contains its complete body.
    Whole(Reply),
    /// The function writes the body. If the function fails, the client can detect that the body is incomplete.
    Stream(Reply, WriteBody),
}

impl From<Reply> for Answer {
    fn from(reply: Reply) -> Self {
        Self::Whole(reply)
    }
}

/// Limits that an HTTP server sets for its clients and their requests.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Maximum number of concurrent clients.
    pub clients: usize,
    /// Maximum length of a request's body, bytes.
    pub body_bytes: usize,
    /// Time limit for each MiB of a request and of a reply.
    pub patience: Duration,
    /// True if a client whose body is too long gets a reply with this reason, instead of a closed connection.
    pub explains: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            clients: CLIENTS,
            body_bytes: LONGEST_REQUEST_BYTES,
            patience: PATIENCE,
            explains: false,
        }
    }
}

/// A running server; dropping it stops it.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Server {
    /// Listens at `address`, and sends the result of `answer` for each request. `what` names the server in errors.
    ///
    /// # Errors
    /// The address is invalid or in use.
    pub fn start(
        what: &'static str,
        address: &str,
        answer: impl Fn(&Request<'_>) -> Reply + Send + Sync + 'static,
    ) -> Result<Self, EndpointError> {
        Self::start_with(what, address, Limits::default(), move |request| {
            answer(request).into()
        })
    }

    /// Starts a server with these limits, whose handler gets the bodies of requests and may stream its answers.
    ///
    /// # Errors
    /// The address is invalid or in use.
    pub fn start_with(
        what: &'static str,
        address: &str,
        limits: Limits,
        answer: impl Fn(&Request<'_>) -> Answer + Send + Sync + 'static,
    ) -> Result<Self, EndpointError> {
        let address: SocketAddr = address.parse().map_err(|_| EndpointError::Address {
            what,
            text: address.to_string(),
        })?;
        let failed = |source| EndpointError::Listen {
            what,
            address,
            source,
        };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let answer = Arc::new(answer);
        let mut server = Self {
            address: listener.local_addr().map_err(failed)?,
            stop: Arc::default(),
            threads: Vec::new(),
        };
        for _ in 0..limits.clients {
            let listener = listener.try_clone().map_err(failed)?;
            let (stopped, answer) = (Arc::clone(&server.stop), Arc::clone(&answer));
            let thread = std::thread::Builder::new().name(what.to_string());
            let thread = thread.spawn(move || {
                for client in listener.incoming() {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    // A client that disconnects is no error; a lack of file descriptors is temporary.
                    match client {
                        // If `answer` panics, only this client gets no reply: the panic is printed, and the thread
                        // continues.
                        Ok(client) => {
                            let served = AssertUnwindSafe(|| serve(client, &limits, &*answer));
                            drop(catch_unwind(served));
                        }
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            });
            server.threads.push(thread.map_err(failed)?);
        }
        Ok(server)
    }

    /// Returns the address at which the server listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Each thread ends after its next client. 0.0.0.0 and :: also accept connections to this machine.
        let wake = |_: &JoinHandle<()>| TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        let woken = self.threads.iter().filter(|it| wake(it)).count();
        if woken == self.threads.len() {
            self.threads.drain(..).for_each(|it| drop(it.join()));
        }
    }
}

/// Returns true if `host`, with or without a port, is an IP address or `localhost`.
pub fn is_no_name(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|it| it.is_ascii_digit()) => name,
        _ => host,
    };
    let bare = name.strip_prefix('[').and_then(|it| it.strip_suffix(']'));
    name.eq_ignore_ascii_case("localhost") || bare.unwrap_or(name).parse::<IpAddr>().is_ok()
}

fn serve(
    mut client: TcpStream,
    limits: &Limits,
    answer: &impl Fn(&Request<'_>) -> Answer,
) -> io::Result<()> {
    let Some((head, body)) = read_request(&mut client, limits)? else {
        return refuse_body(&mut client, limits);
    };
    let head = String::from_utf8_lossy(&head);
    let line = head.lines().next().unwrap_or_default();
    let mut words = line.split_ascii_whitespace();
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let request = Request {
        method: method.unwrap_or_default(),
        path: target.split('?').next().unwrap_or_default(),
        is_from_here: client.peer_addr()?.ip().to_canonical().is_loopback(),
        body: &body,
        head: &head,
    };
    // A request that makes `answer` panic must not cost a thread.
    let answer = catch_unwind(AssertUnwindSafe(|| answer(&request))).unwrap_or_else(|_| {
        Reply::text("500 Internal Server Error", "this cannot be answered").into()
    });
    let with_body = request.method != "HEAD";
    match answer {
        Answer::Whole(reply) => {
            let length = format!("Content-Length: {}\r\n", reply.body.len());
            let head = head_of(&reply, &length);
            write(&mut client, limits.patience, head.as_bytes())?;
            match with_body {
                true => write(&mut client, limits.patience, &reply.body),
                false => Ok(()),
            }
        }
        Answer::Stream(reply, body) => {
            let head = head_of(&reply, "Transfer-Encoding: chunked\r\n");
            write(&mut client, limits.patience, head.as_bytes())?;
            if !with_body {
                return Ok(());
            }
            let mut chunks = Chunks {
                client: &mut client,
                patience: limits.patience,
                chunk: Vec::with_capacity(CHUNK_BYTES),
            };
            body(&mut chunks)?;
            chunks.flush()?;
            write(&mut client, limits.patience, b"0\r\n\r\n")
        }
    }
}

/// Returns the head of a reply, with the header field for the length of its body.
fn head_of(reply: &Reply, length: &str) -> String {
    format!(
        "HTTP/1.1 {}\r\nContent-Type: {}\r\n{length}{}Connection: close\r\n\r\n",
        reply.status, reply.kind, reply.fields,
    )
}

/// Replies that the body is too long. The beginning of the body is read and discarded, so that closing the connection
/// does not discard the reply.
fn refuse_body(client: &mut TcpStream, limits: &Limits) -> io::Result<()> {
    if !limits.explains {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let line = format!(
        "the body is longer than {} MiB",
        limits.body_bytes.div_ceil(1 << 20)
    );
    let reply = Reply::text("413 Content Too Large", &line);
    let head = head_of(&reply, &format!("Content-Length: {}\r\n", reply.body.len()));
    write(client, limits.patience, head.as_bytes())?;
    write(client, limits.patience, &reply.body)?;
    client.shutdown(Shutdown::Write)?;
    let deadline = Instant::now() + PATIENCE;
    let mut part = [0; 16 << 10];
    loop {
        client.set_read_timeout(Some(left_until(deadline)?))?;
        if client.read(&mut part)? == 0 {
            return Ok(());
        }
    }
}

/// Writer of the body of a reply of unknown length (RFC 9112, section 7.1).
struct Chunks<'a> {
    client: &'a mut TcpStream,
    patience: Duration,
    chunk: Vec<u8>,
}

impl Write for Chunks<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(CHUNK_BYTES - self.chunk.len());
        self.chunk.extend_from_slice(&bytes[..taken]);
        if self.chunk.len() == CHUNK_BYTES {
            self.flush()?;
        }
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        // An empty chunk would end the body.
        if self.chunk.is_empty() {
            return Ok(());
        }
        let head = format!("{:x}\r\n", self.chunk.len());
        self.chunk.extend_from_slice(b"\r\n");
        write(self.client, self.patience, head.as_bytes())?;
        let written = write(self.client, self.patience, &self.chunk);
        self.chunk.clear();
        written
    }
}

/// Writes the complete text. Returns an error if the client exceeds the time limit, which restarts after each
/// [`PATIENT_BYTES`].
fn write(client: &mut TcpStream, patience: Duration, mut text: &[u8]) -> io::Result<()> {
    let mut deadline = Instant::now() + patience;
    let mut left = text.len();
    while !text.is_empty() {
        if left - text.len() >= PATIENT_BYTES {
            (left, deadline) = (text.len(), Instant::now() + patience);
        }
        client.set_write_timeout(Some(left_until(deadline)?))?;
        match client.write(text)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            n => text = &text[n..],
        }
    }
    client.flush()
}

fn left_until(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    match left.is_zero() {
        true => Err(io::ErrorKind::TimedOut.into()),
        false => Ok(left),
    }
}

/// Reads a request: its head up to the empty line that ends it, and its body. Returns `None` if the body is longer than
/// the limit.
fn read_request(client: &mut TcpStream, limits: &Limits) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut deadline = Instant::now() + limits.patience;
    let mut request = Vec::new();
    let mut part = [0; 16 << 10];
    let mut head = None;
    let mut patient_until = PATIENT_BYTES;
    loop {
        if head.is_none()
            && let Some(end) = request.windows(4).position(|end| end == b"\r\n\r\n")
        {
            let (body, waits) = body_of(&request[..end])?;
            if end + 4 > LONGEST_REQUEST_BYTES {
                return Err(io::ErrorKind::InvalidData.into());
            }
            if body > limits.body_bytes {
                return Ok(None);
            }
            if waits && request.len() == end + 4 {
                write(client, limits.patience, b"HTTP/1.1 100 Continue\r\n\r\n")?;
            }
            head = Some((end + 4, end + 4 + body));
        }
        if let Some((end, all)) = head
            && request.len() >= all
        {
            request.truncate(all);
            let body = request.split_off(end);
            return Ok(Some((request, body)));
        }
        if head.is_none() && request.len() > LONGEST_REQUEST_BYTES {
            return Err(io::ErrorKind::InvalidData.into());
        }
        if request.len() >= patient_until {
            patient_until = request.len() + PATIENT_BYTES;
            deadline = Instant::now() + limits.patience;
        }
        client.set_read_timeout(Some(left_until(deadline)?))?;
        match client.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => request.extend_from_slice(&part[..n]),
        }
    }
}

/// Returns the length of the body after a head, and whether the client waits for permission to send it.
fn body_of(head: &[u8]) -> io::Result<(usize, bool)> {
    let head = String::from_utf8_lossy(head);
    let request = Request {
        method: "",
        path: "",
        is_from_here: false,
        body: &[],
        head: &head,
    };
    let said = request.field("Content-Length").unwrap_or("0");
    let waits = request.field("Expect") == Some("100-continue");
    match said.parse() {
        Ok(bytes) => Ok((bytes, waits)),
        Err(_) => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::AtomicUsize;

    fn said(server: &Server, request: &[u8]) -> String {
        let mut client = TcpStream::connect(server.address()).unwrap();
        // A client whose connection the server closes may not receive the whole reply, and may fail to send its
        // request.
        let _ = client.write_all(request);
        let mut text = Vec::new();
        let _ = client.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }

    fn echo() -> Server {
        Server::start("echo", "127.0.0.1:0", |request| {
            let field = request.field("X-Field").unwrap_or("none");
            let line = format!("{} {} {field}", request.method, request.path);
            Reply::text("200 OK", &line)
        })
        .unwrap()
    }

    #[test]
    fn request_lines_and_header_fields_are_parsed_and_bodies_ignored() {
        let server = echo();
        for (request, reply) in [
            ("GET /a?b=c HTTP/1.1\r\n\r\n", "GET /a none\n"),
            (
                "POST /a HTTP/1.1\r\nx-field:  one \r\ncontent-length: 3\r\n\r\nabc",
                "POST /a one\n",
            ),
            (
                "GET / HTTP/1.1\r\nX-Field: 1\r\nX-Field: 2\r\n\r\n",
                "GET / none\n",
            ),
            ("GET\r\n\r\n", "GET  none\n"),
            ("\r\n\r\n", "  none\n"),
        ] {
            let said = said(&server, request.as_bytes());
            assert!(
                said.ends_with(&format!("\r\n\r\n{reply}")),
                "{request:?}: {said:?}"
            );
            assert!(
                said.contains(&format!("Content-Length: {}\r\n", reply.len())),
                "{said}"
            );
        }
        assert!(said(&server, b"HEAD /a HTTP/1.1\r\n\r\n").ends_with("close\r\n\r\n"));
    }

    fn service() -> Server {
        let limits = Limits {
            body_bytes: 100_000,
            explains: true,
            ..Limits::default()
        };
        Server::start_with("service", "127.0.0.1:0", limits, |request| {
            let body = request.body.to_vec();
            match request.path {
                "/stream" => Answer::Stream(
                    Reply::text("200 OK", ""),
                    Box::new(move |out| {
                        out.write_all(&body)?;
                        match body.is_empty() {
                            true => Err(io::ErrorKind::Other.into()),
                            false => Ok(()),
                        }
                    }),
                ),
                _ => Reply::text("200 OK", &format!("{} bytes", body.len())).into(),
            }
        })
        .unwrap()
    }

    fn posted(path: &str, bytes: usize) -> Vec<u8> {
        let mut request =
            format!("POST {path} HTTP/1.1\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
        request.extend(std::iter::repeat_n(b'x', bytes));
        request
    }

    #[test]
    fn bodies_reach_the_handler_and_longer_ones_are_refused() {
        let server = service();
        for bytes in [0, 1, 9000, 100_000] {
            let said = said(&server, &posted("/", bytes));
            assert!(
                said.ends_with(&format!("\r\n\r\n{bytes} bytes\n")),
                "{said}"
            );
        }
        let said = said(&server, &posted("/", 100_001));
        assert!(said.starts_with("HTTP/1.1 413 "), "{said}");
        assert!(said.ends_with("the body is longer than 1 MiB\n"), "{said}");
    }

    #[test]
    fn only_complete_streams_end_with_an_empty_chunk() {
        let server = service();
        let whole = said(&server, &posted("/stream", 70_000));
        let chunks = whole.split_once("\r\n\r\n").unwrap().1;
        assert!(chunks.starts_with("10000\r\nxxx"), "{}", &chunks[..20]);
        assert!(chunks.ends_with("x\r\n0\r\n\r\n"));
        assert!(chunks.contains("x\r\n1170\r\nx"));
        let broken = said(&server, &posted("/stream", 0));
        assert!(broken.ends_with("Connection: close\r\n\r\n"), "{broken}");
    }

    #[test]
    fn a_client_that_waits_is_told_to_send_its_body() {
        let server = service();
        let mut client = TcpStream::connect(server.address()).unwrap();
        client
            .write_all(b"POST / HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n")
            .unwrap();
        let mut line = [0; 25];
        client.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"HTTP/1.1 100 Continue\r\n\r\n");
        client.write_all(b"abc").unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("3 bytes\n"), "{text}");
    }

    #[test]
    fn ip_addresses_and_localhost_are_distinguished_from_dns_names() {
        for host in [
            "127.0.0.1",
            "127.0.0.1:80",
            "[::1]:80",
            "[::1]",
            "localhost:9101",
            "LOCALHOST",
        ] {
            assert!(is_no_name(host), "{host}");
        }
        for host in [
            "",
            "example.org",
            "localhost.example.org:80",
            "127.0.0.1.example.org",
            ":80",
            "a:b",
        ] {
            assert!(!is_no_name(host), "{host}");
        }
    }

    #[test]
    fn a_handler_that_panics_leaves_the_server_running() {
        let server = Server::start("test", "127.0.0.1:0", |request| {
            assert_ne!(request.path, "/panic");
            Reply::text("200 OK", "well")
        })
        .unwrap();
        for _ in 0..2 * CLIENTS {
            let text = said(&server, b"GET /panic HTTP/1.1\r\n\r\n");
            assert!(text.starts_with("HTTP/1.1 500 "), "{text}");
        }
        assert!(said(&server, b"GET / HTTP/1.1\r\n\r\n").ends_with("well\n"));
    }

    #[test]
    fn only_malformed_or_oversized_requests_get_no_reply() {
        let server = echo();
        let mut random = 1_u64;
        let mut garbage = vec![0; 110_000];
        for round in 0..50_usize {
            for byte in &mut garbage {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                *byte = (random >> 56) as u8;
            }
            let text = said(&server, &garbage[..round * 2000 + 8193]);
            assert_eq!(text, "");
        }
        for request in [
            "POST / HTTP/1.1\r\nContent-Length: 100000\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        ] {
            assert_eq!(said(&server, request.as_bytes()), "", "{request}");
        }
        assert!(said(&server, b"GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn slow_clients_are_disconnected_and_delay_no_other_clients() {
        let threads = Arc::new(AtomicUsize::new(0));
        let most = Arc::new(AtomicUsize::new(0));
        let (now, seen) = (Arc::clone(&threads), Arc::clone(&most));
        let server = Server::start("test", "127.0.0.1:0", move |_| {
            seen.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            let reply = Reply::text("200 OK", &"x".repeat(1 << 20));
            now.fetch_sub(1, Ordering::Relaxed);
            reply
        })
        .unwrap();
        // The clients send nothing, never finish their request, or receive no reply. All connect at the same time, and
        // there are more of them than the server serves at a time.
        let begun = Instant::now();
        let clients: Vec<_> = (0..12)
            .map(|number| {
                let mut client = TcpStream::connect(server.address()).unwrap();
                match number % 3 {
                    0 => {}
                    1 => client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n").unwrap(),
                    _ => client.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap(),
                }
                client
            })
            .collect();
        let text = said(&server, b"GET / HTTP/1.1\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200"));
        // The limit covers three rounds of four clients, each of which uses the whole time limit, and a busy machine.
        assert!(begun.elapsed() < 20 * PATIENCE);
        assert!(most.load(Ordering::Relaxed) <= CLIENTS);
        drop(clients);
        drop(server);
        assert_eq!(threads.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn the_server_stops_while_clients_are_connected() {
        let server = echo();
        let address = server.address();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| TcpStream::connect(address).unwrap())
            .collect();
        drop(server);
        assert!(TcpStream::connect(address).is_err());
        drop(clients);
    }
}
