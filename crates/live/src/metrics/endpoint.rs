//! A small HTTP/1.1 server (RFC 9112) that answers `GET /metrics` with what it is told to, one connection at
//! a time, beside everything that matters.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long one client may take for its request and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Bytes of a request that are read.
const LONGEST_REQUEST_BYTES: usize = 8192;

/// What OpenMetrics 1.0 is called.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The text is no address.
    #[error(
        "metrics address {0:?}: want an IP address and a port, such as 127.0.0.1:9100 or [::1]:9100"
    )]
    Address(String),
    /// Nothing can listen there.
    #[error("metrics address {address}: {source}; choose another port (0 takes one that is free)")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
}

/// A listening endpoint; gone when dropped.
#[derive(Debug)]
pub struct Endpoint {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Endpoint {
    /// Listens at `address` and answers with what `render` gives at that moment.
    ///
    /// # Errors
    /// When the address is none or taken.
    pub fn serve(
        address: &str,
        render: impl Fn() -> String + Send + 'static,
    ) -> Result<Self, EndpointError> {
        let address: SocketAddr = address
            .parse()
            .map_err(|_| EndpointError::Address(address.to_string()))?;
        let failed = |source| EndpointError::Listen { address, source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let stop = Arc::<AtomicBool>::default();
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name("metrics".to_string())
            .spawn(move || {
                for client in listener.incoming() {
                    if stopped.load(Ordering::Relaxed) {
                        return;
                    }
                    // A client that goes away is its own business; running out of files passes.
                    match client {
                        Ok(client) => drop(answer(client, &render)),
                        Err(_) => std::thread::sleep(Duration::from_millis(100)),
                    }
                }
            })
            .map_err(failed)?;
        Ok(Self {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // Wakes the thread. 0.0.0.0 and :: stand for this machine as well.
        let woken = TcpStream::connect_timeout(&self.address, PATIENCE).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

fn answer(mut client: TcpStream, render: &impl Fn() -> String) -> io::Result<()> {
    client.set_write_timeout(Some(PATIENCE))?;
    let request = read_request(&mut client)?;
    let mut words = request.split_ascii_whitespace();
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        (Some("GET" | "HEAD"), "/metrics") => ("200 OK", CONTENT_TYPE, render()),
        (Some("GET" | "HEAD"), _) => (
            "404 Not Found",
            "text/plain; charset=utf-8",
            "the metrics are at /metrics\n".to_string(),
        ),
        _ => (
            "405 Method Not Allowed",
            "text/plain; charset=utf-8",
            "GET /metrics is all there is\n".to_string(),
        ),
    };
    let allow = if status.starts_with("405") {
        "Allow: GET, HEAD\r\n"
    } else {
        ""
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Connection: close\r\n\r\n",
        body.len()
    );
    client.write_all(head.as_bytes())?;
    if method != Some("HEAD") {
        client.write_all(body.as_bytes())?;
    }
    client.flush()
}

/// The request up to the empty line that ends its header.
fn read_request(client: &mut TcpStream) -> io::Result<String> {
    let deadline = Instant::now() + PATIENCE;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || request.len() > LONGEST_REQUEST_BYTES {
            return Err(io::ErrorKind::TimedOut.into());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => request.extend_from_slice(&part[..n]),
        }
    }
    Ok(String::from_utf8_lossy(&request).into_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn ask(endpoint: &Endpoint, request: &str) -> String {
        let mut client = TcpStream::connect(endpoint.address()).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut text = String::new();
        client.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn metrics_are_given_out_and_other_requests_told_where_they_are() {
        let endpoint = Endpoint::serve("127.0.0.1:0", || "x 1\n# EOF\n".to_string()).unwrap();
        let found = ask(&endpoint, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
        assert!(found.starts_with("HTTP/1.1 200 OK\r\n"), "{found}");
        assert!(found.contains("openmetrics-text; version=1.0.0"), "{found}");
        assert!(found.contains("Content-Length: 10\r\n"), "{found}");
        assert!(found.ends_with("\r\n\r\nx 1\n# EOF\n"), "{found}");
        let head = ask(&endpoint, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(&endpoint, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&endpoint, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        // A client that says nothing and goes does no harm.
        drop(TcpStream::connect(endpoint.address()).unwrap());
        assert!(ask(&endpoint, "GET /metrics?a=b HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn a_port_in_use_and_a_bad_address_are_said_so() {
        let first = Endpoint::serve("127.0.0.1:0", String::new).unwrap();
        let taken = first.address().to_string();
        let error = Endpoint::serve(&taken, String::new)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains(&taken) && error.contains("in use"),
            "{error}"
        );
        let error = Endpoint::serve("here", String::new)
            .unwrap_err()
            .to_string();
        assert!(error.contains("127.0.0.1:9100"), "{error}");
        drop(first);
        Endpoint::serve(&taken, String::new).unwrap();
    }
}
