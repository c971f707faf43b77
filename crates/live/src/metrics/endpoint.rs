//! An endpoint that answers `GET /metrics` with what it is told to.

use crate::http::{EndpointError, Reply, Server};
use std::borrow::Cow;
use std::net::SocketAddr;

/// What OpenMetrics 1.0 is called.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// A listening endpoint; gone when dropped.
#[derive(Debug)]
pub struct Endpoint(Server);

impl Endpoint {
    /// Listens at `address` and answers with what `render` gives at that moment.
    ///
    /// # Errors
    /// When the address is none or taken.
    pub fn serve(
        address: &str,
        render: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, EndpointError> {
        let server = Server::start("metrics", address, move |request| {
            match (request.method, request.path) {
                ("GET" | "HEAD", "/metrics") => Reply {
                    status: "200 OK",
                    kind: CONTENT_TYPE,
                    fields: Cow::Borrowed(""),
                    body: render().into_bytes(),
                },
                ("GET" | "HEAD", _) => Reply::text("404 Not Found", "the metrics are at /metrics"),
                _ => Reply {
                    fields: Cow::Borrowed("Allow: GET, HEAD\r\n"),
                    ..Reply::text("405 Method Not Allowed", "GET /metrics is all there is")
                },
            }
        })?;
        Ok(Self(server))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

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
