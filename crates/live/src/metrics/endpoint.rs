//! An endpoint that replies to `GET /metrics` with a given text.

use super::exposition::plain;
use crate::http::{EndpointError, Reply, Server, is_no_name};
use std::borrow::Cow;
use std::net::SocketAddr;

/// Media type of OpenMetrics, without a version.
const OPENMETRICS: &str = "application/openmetrics-text";
/// Media type of OpenMetrics 1.0, with its parameters.
const OPENMETRICS_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Type of the text format of Prometheus.
const PLAIN_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Returns true if a client accepts OpenMetrics: its field `Accept` (RFC 9110 section 12.5.1) must name the media type.
fn takes_openmetrics(accept: &str) -> bool {
    accept.split(',').any(|one| {
        let mut parts = one.split(';').map(str::trim);
        let is_it = parts
            .next()
            .is_some_and(|it| it.eq_ignore_ascii_case(OPENMETRICS));
        let weight = parts.find_map(|it| it.strip_prefix("q=")?.parse::<f64>().ok());
        is_it && weight.is_none_or(|weight| weight > 0.0)
    })
}

/// A listening endpoint; dropping it closes it.
#[derive(Debug)]
pub struct Endpoint(Server);

impl Endpoint {
    /// Listens at `address`, and replies to each request with the current result of `render`. The format is
    /// OpenMetrics, or the text format of Prometheus if the field `Accept` does not name OpenMetrics.
    ///
    /// # Errors
    /// The address is invalid or in use.
    pub fn serve(
        address: &str,
        render: impl Fn() -> String + Send + Sync + 'static,
    ) -> Result<Self, EndpointError> {
        let server = Server::start("metrics", address, move |request| {
            // DNS rebinding: a web page of another site can reach this server under that site's name, if the name
            // resolves to this machine. Remote scrapers may use names.
            let is_name = |host| !is_no_name(host);
            if request.is_from_here && request.field("Host").is_some_and(is_name) {
                let text = "from this machine use the address or localhost: a name could belong to another site";
                return Reply::text("421 Misdirected Request", text);
            }
            match (request.method, request.path) {
                ("GET" | "HEAD", "/metrics") => {
                    let text = render();
                    let (kind, text) = match request.field("Accept") {
                        Some(accept) if takes_openmetrics(accept) => (OPENMETRICS_TYPE, text),
                        _ => (PLAIN_TYPE, plain(&text)),
                    };
                    Reply {
                        status: "200 OK",
                        kind,
                        fields: Cow::Borrowed("Vary: Accept\r\n"),
                        body: text.into_bytes(),
                    }
                }
                ("GET" | "HEAD", _) => Reply::text("404 Not Found", "the metrics are at /metrics"),
                _ => Reply {
                    fields: Cow::Borrowed("Allow: GET, HEAD\r\n"),
                    ..Reply::text("405 Method Not Allowed", "GET /metrics is all there is")
                },
            }
        })?;
        Ok(Self(server))
    }

    /// Returns the address at which the endpoint listens.
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
    fn metrics_are_served_and_other_requests_are_refused() {
        let endpoint = Endpoint::serve("127.0.0.1:0", || "x 1\n# EOF\n".to_string()).unwrap();
        // Prometheus names both, and prefers OpenMetrics.
        for accept in [
            "application/openmetrics-text",
            "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
        ] {
            let found = ask(
                &endpoint,
                &format!("GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n"),
            );
            assert!(found.starts_with("HTTP/1.1 200 OK\r\n"), "{found}");
            assert!(found.contains("openmetrics-text; version=1.0.0"), "{found}");
            assert!(found.contains("Content-Length: 10\r\n"), "{found}");
            assert!(found.ends_with("\r\n\r\nx 1\n# EOF\n"), "{found}");
        }
        for accept in [
            "",
            "Accept: */*\r\n",
            "Accept: text/plain;version=0.0.4\r\n",
            "Accept: application/openmetrics-text;q=0, text/plain\r\n",
        ] {
            let found = ask(&endpoint, &format!("GET /metrics HTTP/1.1\r\n{accept}\r\n"));
            assert!(found.contains("text/plain; version=0.0.4"), "{found}");
            assert!(found.ends_with("\r\n\r\nx 1\n"), "{found}");
        }
        let head = ask(&endpoint, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(&endpoint, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(ask(&endpoint, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        let rebound = "GET /metrics HTTP/1.1\r\nHost: example.org:9100\r\n\r\n";
        let refused = ask(&endpoint, rebound);
        assert!(refused.starts_with("HTTP/1.1 421 "), "{refused}");
        assert!(!refused.contains("x 1"), "{refused}");
        // A client that sends nothing and disconnects does no harm.
        drop(TcpStream::connect(endpoint.address()).unwrap());
        assert!(ask(&endpoint, "GET /metrics?a=b HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200"));
    }

    #[test]
    fn tcp_ports_in_use_and_invalid_addresses_are_reported() {
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
