//! Requests to a service, repeated where that is safe: before a request that creates something is repeated, a search
//! checks whether the service has created it.

use super::curl::{HttpReply, RequestBody, ServiceUrl, Token, send};
use super::error::DepositError;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::time::Duration;

/// Maximum number of attempts at a request.
pub(super) const ATTEMPTS: u32 = 5;
/// Maximum time to wait for a busy service, s.
const MOST_BUSY_S: u64 = 600;
/// Maximum length of the reason in a service's reply, characters.
const MOST_LETTERS: usize = 300;

/// Receiver of messages for the user, and source of the waits between attempts.
pub trait Observer {
    /// Reports to the user which step begins, or what the deposit waits for.
    fn note(&mut self, text: &str);
    /// Waits for the given time.
    fn wait(&mut self, time: Duration);
}

/// A request to a service: its purpose, method, path or address, and body.
#[derive(Clone, Copy)]
pub(super) struct Request<'a> {
    /// Purpose of the request, for messages to the user.
    pub(super) what: &'static str,
    pub(super) method: &'static str,
    /// Path of the request at the service, or the complete address of an upload.
    pub(super) path: &'a str,
    pub(super) body: RequestBody<'a>,
    /// Status codes other than 2xx that count as a reply and not as an error.
    pub(super) accepted: &'static [u16],
}

impl<'a> Request<'a> {
    pub(super) fn new(what: &'static str, method: &'static str, path: &'a str) -> Self {
        Self {
            what,
            method,
            path,
            body: RequestBody::None,
            accepted: &[],
        }
    }

    pub(super) fn json(self, value: &'a Value) -> Self {
        Self {
            body: RequestBody::Json(value),
            ..self
        }
    }
}

/// The outcome of a request that the service did not refuse.
pub(super) enum Outcome {
    Reply(HttpReply),
    /// The service failed, or the connection broke: the request may have been carried out.
    Unknown(String),
}

/// A service at which the user deposits, with the user's token.
pub(super) struct Service<'a> {
    pub(super) url: &'a ServiceUrl,
    pub(super) token: &'a Token,
    /// Page on which users create tokens, and the permission that a token needs.
    pub(super) token_page: String,
    pub(super) scope: &'static str,
    pub(super) observer: &'a mut dyn Observer,
}

impl Service<'_> {
    /// Sends a request that may be carried out more than once, until there is a reply.
    pub(super) fn repeat(&mut self, request: &Request<'_>) -> Result<HttpReply, DepositError> {
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.pause(request.what, attempt, &last);
            }
            match self.once(request)? {
                Outcome::Reply(reply) => return Ok(reply),
                Outcome::Unknown(reason) => last = reason,
            }
        }
        Err(self.unreachable(request.what, last))
    }

    /// Sends a request that creates something. If it is unknown whether that succeeded, `find` searches for it before
    /// the request is repeated.
    pub(super) fn make<T: DeserializeOwned>(
        &mut self,
        request: &Request<'_>,
        mut find: impl FnMut(&mut Self) -> Result<Option<T>, DepositError>,
    ) -> Result<T, DepositError> {
        let mut last = String::new();
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                self.pause(request.what, attempt, &last);
                if let Some(found) = find(self)? {
                    return Ok(found);
                }
            }
            match self.once(request)? {
                Outcome::Reply(reply) => return self.parse(request.what, &reply),
                Outcome::Unknown(reason) => last = reason,
            }
        }
        Err(self.unreachable(request.what, last))
    }

    /// Sends a request; repeats it while the service reports that it is busy.
    pub(super) fn once(&mut self, request: &Request<'_>) -> Result<Outcome, DepositError> {
        let address = match request.path.starts_with('/') {
            true => format!("{}{}", self.url, request.path),
            false => request.path.to_owned(),
        };
        let mut left_s = MOST_BUSY_S;
        loop {
            let sent = send(request.method, &address, self.token, request.body)?;
            let reply = match sent {
                Ok(reply) => reply,
                Err(none) if none.is_unsent => {
                    return Ok(Outcome::Unknown(format!(
                        "cannot be reached: {}",
                        none.reason
                    )));
                }
                Err(none) => return Ok(Outcome::Unknown(none.reason)),
            };
            if let Some(seconds) = busy_s(&reply) {
                if seconds > left_s {
                    return Err(DepositError::Busy {
                        service: self.name(),
                        seconds,
                    });
                }
                left_s -= seconds;
                let note = format!("{} is busy: waiting {seconds} s", self.url.host());
                self.observer.note(&note);
                self.observer.wait(Duration::from_secs(seconds));
                continue;
            }
            return match reply.status {
                200..300 => Ok(Outcome::Reply(reply)),
                status if request.accepted.contains(&status) => Ok(Outcome::Reply(reply)),
                500.. => Ok(Outcome::Unknown(format!(
                    "status {}: {}",
                    reply.status,
                    self.reason(&reply.body)
                ))),
                _ => Err(self.refused(request, &reply)),
            };
        }
    }

    /// Parses the body of a reply.
    pub(super) fn parse<T: DeserializeOwned>(
        &self,
        what: &'static str,
        reply: &HttpReply,
    ) -> Result<T, DepositError> {
        serde_json::from_slice(&reply.body).map_err(|e| self.unexpected(what, e.to_string()))
    }

    pub(super) fn unexpected(&self, what: &'static str, reason: impl Into<String>) -> DepositError {
        DepositError::Reply {
            service: self.name(),
            what,
            reason: reason.into(),
        }
    }

    pub(super) fn name(&self) -> String {
        self.url.host().to_owned()
    }

    /// Waits before the next attempt at a request: 1 s, 2 s, 4 s, ...
    pub(super) fn pause(&mut self, what: &str, attempt: u32, reason: &str) {
        let seconds = 1 << (attempt - 1);
        let note = format!(
            "{}: {what} failed ({reason}): attempt {} of {ATTEMPTS} in {seconds} s",
            self.url.host(),
            attempt + 1
        );
        self.observer.note(&note);
        self.observer.wait(Duration::from_secs(seconds));
    }

    pub(super) fn unreachable(&self, what: &'static str, reason: String) -> DepositError {
        DepositError::Unreachable {
            service: self.name(),
            what,
            attempts: ATTEMPTS,
            reason,
        }
    }

    fn refused(&self, request: &Request<'_>, reply: &HttpReply) -> DepositError {
        let service = self.name();
        let reason = self.reason(&reply.body);
        match (reply.status, request.body) {
            (401, _) => DepositError::Unauthorized {
                service,
                page: self.token_page.clone(),
            },
            (403, _) => DepositError::Forbidden {
                service,
                reason,
                scope: self.scope,
            },
            (413, RequestBody::File(path, _)) => DepositError::TooLarge {
                service,
                file: path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned(),
                bytes: path.metadata().map_or(0, |it| it.len()),
            },
            (status, _) => DepositError::Refused {
                service,
                what: request.what,
                status,
                reason,
            },
        }
    }

    /// Returns the error in a reply's body on one line, without the token.
    fn reason(&self, body: &[u8]) -> String {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut parts = Vec::new();
        parts.extend(value["message"].as_str().map(ToOwned::to_owned));
        for error in value["errors"].as_array().into_iter().flatten() {
            // InvenioRDM names a field and its problems, GitHub a field and a code.
            let problems = error["messages"].as_array().into_iter().flatten();
            let mut problems: Vec<&str> = problems.filter_map(Value::as_str).collect();
            problems.extend(
                ["message", "code"]
                    .iter()
                    .filter_map(|it| error[*it].as_str())
                    .take(1),
            );
            let field = error["field"].as_str().unwrap_or_default();
            parts.push(format!("{field} {}", problems.join(" ")).trim().to_owned());
        }
        if parts.is_empty() {
            let text = String::from_utf8_lossy(body);
            parts.push(text.lines().next().unwrap_or_default().to_owned());
        }
        let line: String = parts.join("; ").chars().take(MOST_LETTERS).collect();
        match self.token.is_in(&line) {
            true => "[a reply with the token]".to_owned(),
            false if line.is_empty() => "no reason given".to_owned(),
            false => line
                .escape_debug()
                .to_string()
                .replace("\\\"", "\"")
                .replace("\\'", "'"),
        }
    }
}

/// Returns the time for which a busy service accepts no request, s; `None` if the service is not busy. GitHub reports
/// its limit on requests with status 403.
fn busy_s(reply: &HttpReply) -> Option<u64> {
    match reply.status {
        429 => Some(reply.retry_after_s.unwrap_or(60)),
        403 if reply.is_exhausted => Some(reply.retry_after_s.unwrap_or(3600)),
        403 | 503 => reply.retry_after_s,
        _ => None,
    }
    .map(|seconds| seconds.max(1))
}
