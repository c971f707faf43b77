//! A page that shows a running capture and can fire triggers.
//!
//! Pages of other sites may make the user's browser send requests, so a trigger fires only for requests with the token
//! that the page contains. Requests by host name are refused, as another site's name may resolve to this address.

use super::run::json;
use super::watch::Watched;
use crate::exit::Failure;
use crate::terminal::print;
use crate::terminal::secrets::Secrets;
use std::borrow::Cow;
use std::sync::Arc;
use taut_live::http::{Reply, Request, Server, is_no_name};

const PAGE: &str = include_str!("page.html");
/// The placeholder in the page for the token that trigger requests need.
const TOKEN: &str = "{{token}}";
const NONCE: &str = "{{nonce}}";

/// Starts serving the page, if an address is given.
pub fn serve(address: Option<&str>, watched: &Arc<Watched>) -> Result<Option<Server>, Failure> {
    let Some(address) = address else {
        return Ok(None);
    };
    let address = match address.parse::<u16>() {
        Ok(port) => format!("127.0.0.1:{port}"),
        Err(_) => address.to_string(),
    };
    let secrets = Secrets::draw()
        .map_err(|e| Failure::Missing(format!("cannot generate a secret for the page: {e}")))?;
    let watched = Arc::clone(watched);
    let server = Server::start("page", &address, move |request| {
        answer(request, &secrets, &*watched)
    })?;
    let address = server.address();
    print::note(format_args!("page at http://{address}/"));
    if !address.ip().is_loopback() {
        print::note("anyone who can reach that address sees the capture and can fire its triggers");
    }
    Ok(Some(server))
}

/// The source of the page's data, and the receiver of its trigger requests.
trait Shows {
    /// Returns the state of the capture as JSON.
    fn state(&self) -> Result<String, Failure>;
    /// Fires a trigger.
    fn fire(&self, trigger: &str) -> Result<(), Failure>;
}

impl Shows for Watched {
    fn state(&self) -> Result<String, Failure> {
        let (status, ports) = self.look()?;
        json(&status, &ports)
    }

    fn fire(&self, trigger: &str) -> Result<(), Failure> {
        self.asking.fire(trigger, "fired on the page")
    }
}

fn answer(request: &Request<'_>, secrets: &Secrets, shows: &impl Shows) -> Reply {
    if !request.field("Host").is_some_and(is_no_name) {
        let text = "this page is served under its IP address and localhost only";
        return Reply::text("421 Misdirected Request", text);
    }
    let reply = match (request.method, request.path) {
        ("GET" | "HEAD", "/") => Reply {
            status: "200 OK",
            kind: "text/html; charset=utf-8",
            fields: Cow::Borrowed(""),
            body: PAGE
                .replace(TOKEN, &secrets.token)
                .replace(NONCE, &secrets.nonce)
                .into_bytes(),
        },
        ("GET" | "HEAD", "/status") => match shows.state() {
            Ok(state) => of_json(state),
            Err(e) => Reply::text("503 Service Unavailable", &e.into_text()),
        },
        ("POST", path) => match path.strip_prefix("/trigger/") {
            None => Reply::text("404 Not Found", "POST is supported for /trigger/NAME only"),
            Some(_) if !has_token(request, secrets) => {
                let text =
                    "only the page itself can fire triggers: the X-Taut-Token is missing or wrong";
                Reply::text("403 Forbidden", text)
            }
            Some(name) => match shows.fire(name) {
                Ok(()) => of_json("{\"ok\":true}".to_string()),
                Err(e) => Reply::text("404 Not Found", &e.into_text()),
            },
        },
        ("GET" | "HEAD", _) => Reply::text("404 Not Found", "only / and /status exist"),
        _ => Reply {
            fields: Cow::Borrowed("Allow: GET, HEAD, POST\r\n"),
            ..Reply::text(
                "405 Method Not Allowed",
                "only GET, HEAD and POST are supported",
            )
        },
    };
    let fields = format!(
        "{}Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n\
         Content-Security-Policy: default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; \
         connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n",
        reply.fields,
        nonce = secrets.nonce
    );
    Reply {
        fields: Cow::Owned(fields),
        ..reply
    }
}

fn of_json(body: String) -> Reply {
    Reply {
        status: "200 OK",
        kind: "application/json",
        fields: Cow::Borrowed(""),
        body: body.into_bytes(),
    }
}

/// Reports whether the request has the token, and therefore comes from the page itself.
fn has_token(request: &Request<'_>, secrets: &Secrets) -> bool {
    secrets.is_token(request.field("X-Taut-Token").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Shown(Mutex<Vec<String>>);

    impl Shows for Arc<Shown> {
        fn state(&self) -> Result<String, Failure> {
            Err(Failure::Missing("not yet".to_string()))
        }

        fn fire(&self, trigger: &str) -> Result<(), Failure> {
            if trigger != "a" {
                return Err(Failure::Input(format!("there is no trigger {trigger}")));
            }
            self.0.lock().unwrap().push(trigger.to_string());
            Ok(())
        }
    }

    #[test]
    fn only_requests_with_the_pages_token_fire_triggers() {
        let shown = Arc::new(Shown::default());
        let secrets = Secrets::draw().unwrap();
        let (token, shows) = (secrets.token.clone(), Arc::clone(&shown));
        let server = Server::start("page", "127.0.0.1:0", move |request| {
            answer(request, &secrets, &shows)
        })
        .unwrap();
        let said = |request: &str| {
            let mut client = TcpStream::connect(server.address()).unwrap();
            client.write_all(request.as_bytes()).unwrap();
            let mut text = String::new();
            client.read_to_string(&mut text).unwrap();
            text
        };
        let ask = |line: &str, fields: &str| {
            said(&format!(
                "{line} HTTP/1.1\r\nHost: 127.0.0.1:80\r\n{fields}\r\n"
            ))
        };
        let page = ask("GET /", "");
        assert!(page.contains(&token) && !page.contains("{{"), "{page}");
        assert!(page.contains("frame-ancestors 'none'") && page.contains("no-store"));
        assert!(
            !page.contains("http://") || page.contains("http://www.w3.org/"),
            "{page}"
        );
        let with = |token: &str| format!("X-Taut-Token: {token}\r\n");
        for (line, fields, status) in [
            ("POST /trigger/a", String::new(), 403),
            ("POST /trigger/a", with(""), 403),
            ("POST /trigger/a", with(&token[1..]), 403),
            (
                "POST /trigger/a",
                with(&token.replace(['0', '1', '2', '3', 'a', 'b'], "f")),
                403,
            ),
            ("POST /trigger/a", with(&token) + &with(&token), 403),
            ("GET /trigger/a", with(&token), 404),
            ("POST /", with(&token), 404),
            ("POST /trigger/b", with(&token), 404),
            ("OPTIONS /trigger/a", with(&token), 405),
            ("GET /status", String::new(), 503),
            ("GET /../etc/passwd", String::new(), 404),
        ] {
            let text = ask(line, &fields);
            assert!(
                text.starts_with(&format!("HTTP/1.1 {status} ")),
                "{line}: {text}"
            );
            assert!(!text.contains("Access-Control"), "{text}");
        }
        assert!(shown.0.lock().unwrap().is_empty());
        assert!(ask("POST /trigger/a", &with(&token)).starts_with("HTTP/1.1 200 "));
        assert_eq!(*shown.0.lock().unwrap(), ["a"]);
        // Another site may give this address a name of its own, so requests by host name are refused.
        let elsewhere = "GET / HTTP/1.1\r\nHost: example.org\r\n\r\n";
        assert!(said(elsewhere).starts_with("HTTP/1.1 421 "));
        assert!(said("GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 421 "));
    }
}
