//! Reasons why a P4Runtime server does not do what it is asked to.

use taut_bench::benchmark::Failed;
use thiserror::Error;

/// Names of the codes of gRPC, from 0.
const CODES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// Maximum length of a server's text in a message, characters.
const MOST_CHARACTERS: usize = 300;

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(in super::super) enum P4Error {
    #[error("the P4Runtime server sends {0} that is damaged or too long")]
    Damaged(&'static str),
    #[error("no gRPC server there: it replies with HTTP status {0}")]
    Http(String),
    #[error("the P4Runtime server closes the connection{0}")]
    Closed(String),
    #[error("the P4Runtime server does not reply within {0} s")]
    Late(u64),
    #[error("the P4Runtime server refuses {call}: {status}")]
    Refused { call: &'static str, status: Status },
    #[error(
        "another controller (election id {0}) is primary for device {1}: stop it, or wait until it leaves"
    )]
    NotPrimary(u128, u64),
    #[error("no P4Runtime server there: {0}")]
    Connection(String),
    #[error("stopped")]
    Stopped,
    #[error("[[p4.table]] has no table for the rule: {0}")]
    NoTable(String),
}

impl From<P4Error> for Failed {
    fn from(error: P4Error) -> Self {
        match error {
            P4Error::Stopped => Self::Stopped,
            error => Self::Broken(error.to_string()),
        }
    }
}

/// The status with which a call ends: the code of gRPC and the server's text.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Status {
    pub code: u64,
    pub text: String,
    /// Encoded `google.rpc.Status`, with the errors of single updates.
    pub details: Vec<u8>,
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(code_name(self.code))?;
        let text = self.text.trim();
        match text.is_empty() {
            true => Ok(()),
            false => write!(f, ": {}", printable(text)),
        }
    }
}

/// Returns the name of a code of gRPC.
pub(super) fn code_name(code: u64) -> &'static str {
    let at = usize::try_from(code).unwrap_or(usize::MAX);
    CODES.get(at).copied().unwrap_or("an unknown code")
}

/// Returns a server's text on one line, without control characters.
pub(super) fn printable(text: &str) -> String {
    let characters = text.chars().take(MOST_CHARACTERS);
    characters
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}
