//! Sends HTTP requests by the program curl, which has TLS, the system's certificates and proxies. Addresses and tokens
//! go to its standard input, so no list of processes shows them.

use super::error::DepositError;
use std::fmt;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::str::FromStr;

/// Maximum length of a reply, bytes.
const MOST_BYTES: u64 = 16 << 20;
/// Time limit for connecting to the service, s.
const CONNECT_S: u32 = 15;
/// Maximum time without a byte in either direction, s; services check large files before they reply.
const IDLE_S: u32 = 120;
/// Exit codes of curl that mean that the service was not reached: no address, refused, no TLS, a wrong certificate.
const UNREACHED: [i32; 5] = [5, 6, 7, 35, 60];

/// Address of a service, `https://HOST/PATH`; `http` is allowed only for services on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceUrl {
    text: String,
    host: String,
}

impl ServiceUrl {
    /// Returns the name or address of the host, without the port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns true if the host of this address is `host`, whatever the path.
    pub(super) fn is_at(&self, host: &str) -> bool {
        self.host.eq_ignore_ascii_case(host)
    }
}

impl FromStr for ServiceUrl {
    type Err = DepositError;

    fn from_str(text: &str) -> Result<Self, DepositError> {
        let wrong = || DepositError::Url(text.escape_debug().to_string());
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let authority = rest.split('/').next().unwrap_or_default();
        let host = match authority.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => authority.split(':').next().unwrap_or_default(),
        };
        let is_plain = rest.bytes().all(|byte| byte.is_ascii_graphic());
        let is_here = matches!(host, "localhost" | "127.0.0.1" | "::1");
        let is_private = scheme == "https" || (scheme == "http" && is_here);
        if host.is_empty() || !is_plain || !is_private || rest.contains(['@', '?', '#', '"', '\\'])
        {
            return Err(wrong());
        }
        Ok(Self {
            text: text.trim_end_matches('/').to_owned(),
            host: host.to_owned(),
        })
    }
}

impl fmt::Display for ServiceUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A user's access token for a service.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    pub(super) fn is_in(&self, text: &str) -> bool {
        text.contains(&self.0)
    }
}

impl FromStr for Token {
    type Err = DepositError;

    fn from_str(text: &str) -> Result<Self, DepositError> {
        let text = text.trim();
        let is_word = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\\');
        match text.len() >= 8 && text.bytes().all(is_word) {
            true => Ok(Self(text.to_owned())),
            false => Err(DepositError::TokenText),
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[token]")
    }
}

/// Body of a request.
#[derive(Debug, Clone, Copy)]
pub(super) enum RequestBody<'a> {
    None,
    Json(&'a serde_json::Value),
    /// The body is a file; the second value is its media type.
    File(&'a Path, &'a str),
}

/// The HTTP reply of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HttpReply {
    /// Status code, such as 200.
    pub status: u16,
    /// Time after which the service accepts the request, s (`Retry-After`); `None` if the reply does not state it.
    pub retry_after_s: Option<u64>,
    /// True if the service limits the number of requests, and the limit is reached.
    pub is_exhausted: bool,
    /// The body of the reply.
    pub body: Vec<u8>,
}

/// Reason why a request has no reply.
pub(super) struct NoReply {
    /// True if the service did not get the request; false if the service may have carried it out.
    pub(super) is_unsent: bool,
    pub(super) reason: String,
}

/// Sends a request to `url`, once.
///
/// # Errors
/// curl is missing, or cannot be started.
pub(super) fn send(
    method: &str,
    url: &str,
    token: &Token,
    body: RequestBody<'_>,
) -> Result<Result<HttpReply, NoReply>, DepositError> {
    // `--disable` keeps curl from reading ~/.curlrc, which could follow redirects with the token.
    let child = Command::new("curl")
        .args(["--disable", "--config", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(DepositError::Curl)?;
    if let Some(mut stdin) = child.stdin.take() {
        // If curl has exited, its exit code says why.
        let _ = stdin.write_all(config(method, url, token, body).as_bytes());
    }
    let mut output = Vec::new();
    let mut errors = String::new();
    if let Some(stdout) = child.stdout.take() {
        let _ = stdout.take(MOST_BYTES).read_to_end(&mut output);
    }
    if let Some(stderr) = child.stderr.take() {
        let _ = stderr.take(1 << 16).read_to_string(&mut errors);
    }
    let status = child.wait().map_err(DepositError::Curl)?;
    // curl exits with an error if a service replies before it has all of a body, and closes the connection.
    let reply = parse_reply(&output).filter(|it| status.success() || it.status >= 400);
    Ok(reply.ok_or_else(|| {
        let line = errors.lines().next().unwrap_or_default();
        let line = line.split_once(") ").map_or(line, |(_, reason)| reason);
        NoReply {
            is_unsent: status.code().is_some_and(|code| UNREACHED.contains(&code)),
            reason: match line {
                "" => "the reply is no HTTP".to_owned(),
                line => line.to_owned(),
            },
        }
    }))
}

/// Returns the configuration of curl for a request.
fn config(method: &str, url: &str, token: &Token, body: RequestBody<'_>) -> String {
    let mut lines = vec![
        "silent\nshow-error\ninclude\ngloboff\nsuppress-connect-headers".to_owned(),
        format!("connect-timeout = {CONNECT_S}\nspeed-limit = 1\nspeed-time = {IDLE_S}"),
        format!("request = {}\nurl = {}", quoted(method), quoted(url)),
        format!(
            "header = {}",
            quoted(&format!("Authorization: Bearer {}", token.0))
        ),
        format!(
            "user-agent = {}",
            quoted(&format!("taut/{}", env!("CARGO_PKG_VERSION")))
        ),
        "header = \"Accept: application/json\"".to_owned(),
    ];
    match body {
        RequestBody::None => {}
        RequestBody::Json(value) => {
            lines.push("header = \"Content-Type: application/json\"".to_owned());
            lines.push(format!("data-raw = {}", quoted(&value.to_string())));
        }
        RequestBody::File(path, kind) => {
            lines.push(format!(
                "header = {}",
                quoted(&format!("Content-Type: {kind}"))
            ));
            lines.push(format!("upload-file = {}", quoted(&path.to_string_lossy())));
        }
    }
    lines.join("\n") + "\n"
}

/// Quotes a text for a configuration file of curl.
fn quoted(text: &str) -> String {
    let mut line = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => line.extend(['\\', c]),
            '\n' => line += "\\n",
            '\r' => line += "\\r",
            '\t' => line += "\\t",
            c => line.push(c),
        }
    }
    line + "\""
}

/// Parses the output of curl with the option `include`: headers of provisional replies, headers of the reply, and its
/// body.
pub fn parse_reply(mut bytes: &[u8]) -> Option<HttpReply> {
    loop {
        let end = bytes.windows(4).position(|it| it == b"\r\n\r\n")?;
        let head = String::from_utf8_lossy(bytes.get(..end)?).into_owned();
        bytes = bytes.get(end + 4..)?;
        let mut lines = head.split("\r\n");
        let mut words = lines.next()?.strip_prefix("HTTP/")?.split(' ');
        let status: u16 = words.nth(1)?.parse().ok()?;
        if status < 200 {
            continue;
        }
        let field = |wanted: &str| {
            let mut fields = lines.clone().filter_map(|line| line.split_once(':'));
            let value = fields
                .find(|(name, _)| name.eq_ignore_ascii_case(wanted))?
                .1;
            value.trim().parse::<u64>().ok()
        };
        return Some(HttpReply {
            status,
            retry_after_s: field("Retry-After"),
            is_exhausted: field("X-RateLimit-Remaining") == Some(0),
            body: bytes.to_vec(),
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn services_are_addressed_with_tls_except_on_this_machine() {
        for (good, host) in [
            ("https://zenodo.org", "zenodo.org"),
            ("https://ghe.example:8443/api/v3/", "ghe.example"),
            ("http://127.0.0.1:80", "127.0.0.1"),
            ("http://[::1]:80/x", "::1"),
        ] {
            assert_eq!(good.parse::<ServiceUrl>().unwrap().host(), host);
        }
        for wrong in [
            "",
            "zenodo.org",
            "http://zenodo.org",
            "https://",
            "https://a b",
            "https://u@a",
            "https://a?x",
            "https://a\"",
            "file:///etc/passwd",
            "http://127.0.0.1.example.org",
        ] {
            assert!(wrong.parse::<ServiceUrl>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn tokens_are_one_word_and_never_printed() {
        let token: Token = " abcdef123456\n".parse().unwrap();
        assert_eq!(format!("{token:?}"), "[token]");
        for wrong in ["", "short", "two words", "with\"quote", "line\nbreak12"] {
            let error = wrong.parse::<Token>().unwrap_err().to_string();
            assert!(wrong.is_empty() || !error.contains(wrong), "{error}");
        }
    }

    #[test]
    fn replies_are_read_after_provisional_ones() {
        let reply = parse_reply(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/2 429 \r\nRetry-After: 7\r\nx-ratelimit-remaining: 0\r\n\r\n{}",
        );
        let expected = HttpReply {
            status: 429,
            retry_after_s: Some(7),
            is_exhausted: true,
            body: b"{}".to_vec(),
        };
        assert_eq!(reply, Some(expected));
        for wrong in [
            "",
            "HTTP/1.1 200 OK\r\n",
            "HTTP/1.1 x\r\n\r\n",
            "{}\r\n\r\n",
            "HTTP/1.1 100 C\r\n\r\n",
        ] {
            assert_eq!(parse_reply(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn configuration_values_are_quoted() {
        assert_eq!(quoted("a\"b\\c\nurl = \"x"), r#""a\"b\\c\nurl = \"x""#);
    }
}
