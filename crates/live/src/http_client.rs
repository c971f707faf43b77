//! A small HTTP/1.1 client (RFC 9112) for services of taut, such as that of `taut lab serve`. It sends one request per
//! connection, and limits the time and the length of the reply. It speaks no TLS.

use std::fmt;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::str::FromStr;
use std::time::Duration;

/// Time limit for connecting to the service.
const CONNECT: Duration = Duration::from_secs(10);
/// Time limit for each part of the request and of the reply.
const PATIENCE: Duration = Duration::from_secs(30);
/// Maximum length of a line of a reply's head.
const LONGEST_LINE_BYTES: u64 = 8192;
/// Maximum number of lines of a reply's head.
const MOST_LINES: usize = 100;

/// Address of a service: `http://HOST:PORT/PATH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url {
    /// Name or address of the host, with the port if it is not 80.
    authority: String,
    host: String,
    port: u16,
    /// Path that precedes all paths of the service, without a slash at its end.
    prefix: String,
}

/// Reason why a service gave no usable reply.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The text is no address of a service.
    #[error(
        "{0:?}: expected the address of a service, such as http://127.0.0.1:9210; for one behind TLS, forward a port \
         with ssh -L"
    )]
    Url(String),
    /// The service cannot be reached, or the connection broke.
    #[error("{url}: {source}")]
    Connection {
        /// Address of the service.
        url: String,
        /// Error that the operating system reported.
        source: io::Error,
    },
    /// The reply does not follow the protocol.
    #[error("{url}: the reply is no HTTP: {reason}")]
    Reply {
        /// Address of the service.
        url: String,
        /// The part of the reply that violates the protocol.
        reason: &'static str,
    },
}

impl FromStr for Url {
    type Err = ClientError;

    fn from_str(text: &str) -> Result<Self, ClientError> {
        let wrong = || ClientError::Url(text.to_owned());
        let rest = text.strip_prefix("http://").ok_or_else(wrong)?;
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let plain = |it: &str| it.bytes().all(|byte| byte.is_ascii_graphic());
        if !plain(authority) || !plain(path) || authority.contains('@') || path.contains(['?', '#'])
        {
            return Err(wrong());
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.contains(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (authority, 80),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err(wrong());
        }
        let path = path.trim_end_matches('/');
        Ok(Self {
            authority: authority.to_owned(),
            host: host.to_owned(),
            port,
            prefix: match path {
                "" => String::new(),
                path => format!("/{path}"),
            },
        })
    }
}

impl fmt::Display for Url {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority, self.prefix)
    }
}

/// The reply of a service; its body is read as it arrives.
pub struct Response {
    /// Status code, such as 200.
    pub status: u16,
    body: Body<BufReader<TcpStream>>,
    url: String,
}

impl Url {
    /// Sends a request and returns the reply after its head has arrived. `fields` are further header fields.
    ///
    /// # Errors
    /// The service cannot be reached, or its reply is no HTTP.
    pub fn request(
        &self,
        method: &str,
        path: &str,
        fields: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response, ClientError> {
        let url = self.to_string();
        let broken = |source| ClientError::Connection {
            url: url.clone(),
            source,
        };
        let stream = self.connect().map_err(broken)?;
        let mut head = format!(
            "{method} {}{path} HTTP/1.1\r\nHost: {}\r\nContent-Length: {}\r\nConnection: close\r\n",
            self.prefix,
            self.authority,
            body.len()
        );
        for (name, value) in fields {
            head += &format!("{name}: {value}\r\n");
        }
        head += "\r\n";
        // A service that refuses a body replies before it has received all of it.
        let sent = (&stream)
            .write_all(head.as_bytes())
            .and_then(|()| (&stream).write_all(body));
        let read = Body::begin(BufReader::new(stream));
        match (read, sent) {
            (Ok((status, body)), _) => Ok(Response { status, body, url }),
            (Err(Broken::Connection(_)), Err(source))
            | (Err(Broken::Connection(source)), Ok(())) => Err(broken(source)),
            (Err(Broken::Reply(reason)), _) => Err(ClientError::Reply { url, reason }),
        }
    }

    fn connect(&self) -> io::Result<TcpStream> {
        let mut last = io::Error::other("the host has no address");
        for address in (self.host.as_str(), self.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(PATIENCE))?;
                    stream.set_write_timeout(Some(PATIENCE))?;
                    return Ok(stream);
                }
                Err(e) => last = e,
            }
        }
        Err(last)
    }
}

impl Response {
    /// Reads a body of at most `most` bytes.
    ///
    /// # Errors
    /// The connection broke, or the body is longer than `most` bytes.
    pub fn bytes(mut self, most: u64) -> Result<Vec<u8>, ClientError> {
        let mut bytes = Vec::new();
        let read = (&mut self.body).take(most + 1).read_to_end(&mut bytes);
        read.map_err(|source| ClientError::Connection {
            url: self.url.clone(),
            source,
        })?;
        match bytes.len() as u64 > most {
            true => Err(ClientError::Reply {
                url: self.url,
                reason: "it is too long",
            }),
            false => Ok(bytes),
        }
    }
}

impl Read for Response {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.body.read(into)
    }
}

/// Reason why a reply cannot be read.
#[derive(Debug)]
enum Broken {
    Connection(io::Error),
    Reply(&'static str),
}

impl From<io::Error> for Broken {
    fn from(e: io::Error) -> Self {
        // A socket reports a timeout as `WouldBlock`.
        Self::Connection(match e.kind() {
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => e,
        })
    }
}

/// Number of bytes of a body that are still to be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    /// The body ends after this number of bytes.
    Bytes(u64),
    /// The current chunk ends after this number of bytes, and other chunks follow.
    Chunk(u64),
    /// The body ends when the service closes the connection.
    Unknown,
}

/// The body of a reply.
#[derive(Debug)]
struct Body<R> {
    from: R,
    left: Left,
}

impl<R: BufRead> Body<R> {
    /// Reads the head of a reply, and returns its status code and its body.
    fn begin(mut from: R) -> Result<(u16, Self), Broken> {
        loop {
            let first = line(&mut from)?;
            let mut words = first.split(' ');
            let is_http = words.next().is_some_and(|it| it.starts_with("HTTP/1."));
            let status = words.next().and_then(|it| it.parse::<u16>().ok());
            let Some(status) = status.filter(|_| is_http) else {
                return Err(Broken::Reply("its first line is wrong"));
            };
            let left = length(&mut from)?;
            // Replies with a status of 1xx precede the actual reply.
            if status >= 200 {
                return Ok((status, Self { from, left }));
            }
        }
    }

    /// Reads the line before the next chunk.
    fn next_chunk(&mut self) -> io::Result<u64> {
        let broken = |_| io::Error::from(io::ErrorKind::InvalidData);
        let line = line(&mut self.from).map_err(|e| match e {
            Broken::Connection(e) => e,
            Broken::Reply(_) => io::ErrorKind::InvalidData.into(),
        })?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        u64::from_str_radix(digits, 16).map_err(broken)
    }
}

impl<R: BufRead> Read for Body<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.left == Left::Chunk(0) {
            self.left = match self.next_chunk()? {
                0 => Left::Bytes(0),
                bytes => Left::Chunk(bytes),
            };
        }
        let most = match self.left {
            Left::Bytes(0) => return Ok(0),
            Left::Bytes(left) | Left::Chunk(left) => left.min(into.len() as u64) as usize,
            Left::Unknown => into.len(),
        };
        let read = self.from.read(&mut into[..most])?;
        if read == 0 && self.left != Left::Unknown {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        match &mut self.left {
            Left::Bytes(left) => *left -= read as u64,
            Left::Chunk(left) => {
                *left -= read as u64;
                if *left == 0 {
                    let mut end = [0; 2];
                    self.from.read_exact(&mut end)?;
                    if &end != b"\r\n" {
                        return Err(io::ErrorKind::InvalidData.into());
                    }
                }
            }
            Left::Unknown => {}
        }
        Ok(read)
    }
}

/// Reads the header fields of a reply, and returns the length of its body.
fn length(from: &mut impl BufRead) -> Result<Left, Broken> {
    let mut left = Left::Unknown;
    for _ in 0..MOST_LINES {
        let line = line(from)?;
        if line.is_empty() {
            return Ok(left);
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(Broken::Reply("a header field is wrong"));
        };
        if name.eq_ignore_ascii_case("Transfer-Encoding") {
            match value.trim().eq_ignore_ascii_case("chunked") {
                true => left = Left::Chunk(0),
                false => return Err(Broken::Reply("its encoding is unknown")),
            }
        } else if name.eq_ignore_ascii_case("Content-Length") && left == Left::Unknown {
            let bytes = value.trim().parse();
            left = Left::Bytes(bytes.map_err(|_| Broken::Reply("its length is wrong"))?);
        }
    }
    Err(Broken::Reply("it has too many header fields"))
}

/// Reads a line without its end.
fn line(from: &mut impl BufRead) -> Result<String, Broken> {
    let mut line = Vec::new();
    from.take(LONGEST_LINE_BYTES).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => {}
        None => return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into()),
        Some(_) => return Err(Broken::Reply("a line does not end")),
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    String::from_utf8(line).map_err(|_| Broken::Reply("its head is no text"))
}

/// Parses bytes as the reply of a service. Returns its status code and its body, if both are complete.
#[doc(hidden)]
pub fn parse(bytes: &[u8]) -> Option<(u16, Vec<u8>)> {
    let (status, mut body) = Body::begin(bytes).ok()?;
    let mut read = Vec::new();
    body.read_to_end(&mut read).ok()?;
    Some((status, read))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::http::{Answer, Limits, Reply, Server};

    #[test]
    fn addresses_of_services_are_parsed_and_others_refused() {
        for (text, host, port, prefix) in [
            ("http://127.0.0.1:9210", "127.0.0.1", 9210, ""),
            ("http://lab.example/", "lab.example", 80, ""),
            ("http://[::1]:1/a/b/", "::1", 1, "/a/b"),
        ] {
            let url: Url = text.parse().unwrap();
            let parts = (url.host.as_str(), url.port, url.prefix.as_str());
            assert_eq!(parts, (host, port, prefix), "{text}");
        }
        for wrong in [
            "",
            "127.0.0.1:1",
            "https://a",
            "http://",
            "http://:1",
            "http://a:x",
            "http://a b",
            "http://u@a",
            "http://a/\r\nx",
        ] {
            assert!(wrong.parse::<Url>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn replies_with_a_length_and_in_chunks_are_read() {
        let limits = Limits {
            body_bytes: 1 << 20,
            ..Limits::default()
        };
        let server = Server::start_with("service", "127.0.0.1:0", limits, |request| {
            let body = [
                request.field("X-Field").unwrap_or("").as_bytes(),
                request.body,
            ]
            .concat();
            let reply = Reply::text("202 Accepted", "");
            match request.path {
                "/a/stream" => Answer::Stream(reply, Box::new(move |out| out.write_all(&body))),
                _ => Reply { body, ..reply }.into(),
            }
        })
        .unwrap();
        let url: Url = format!("http://{}/a", server.address()).parse().unwrap();
        for path in ["/whole", "/stream"] {
            let body = vec![b'x'; 200_000];
            let reply = url
                .request("POST", path, &[("X-Field", "yes")], &body)
                .unwrap();
            assert_eq!(reply.status, 202);
            let read = reply.bytes(1 << 20).unwrap();
            assert!(read.len() == 200_003 && read.starts_with(b"yesx"), "{path}");
            let reply = url.request("POST", path, &[], &body).unwrap();
            let error = reply.bytes(1000).unwrap_err().to_string();
            assert!(error.ends_with("it is too long"), "{error}");
        }
        drop(server);
        assert!(url.request("GET", "/", &[], &[]).is_err());
    }

    #[test]
    fn broken_replies_and_truncated_bodies_are_errors() {
        let good = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n";
        assert_eq!(parse(good), Some((200, b"abc".to_vec())));
        assert_eq!(
            parse(b"HTTP/1.0 404 x\n\nend"),
            Some((404, b"end".to_vec()))
        );
        let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\n\r\n", "y".repeat(9000));
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(200));
        for wrong in [
            "",
            "SSH-2.0-x\r\n",
            "HTTP/1.1 OK\r\n\r\n",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc",
            "HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n",
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
            long.as_str(),
            many.as_str(),
        ] {
            assert_eq!(parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
