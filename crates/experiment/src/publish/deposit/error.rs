//! Errors of deposits at archives and forges: what is wrong, where, and what to do.

use crate::error::ExperimentError;
use std::io;
use std::path::PathBuf;

/// Reason why a publication was not deposited.
#[derive(Debug, thiserror::Error)]
pub enum DepositError {
    /// The text is no address of a service.
    #[error(
        "\"{0}\": expected zenodo, zenodo-sandbox, github:OWNER/NAME or the address of an InvenioRDM, https://HOST"
    )]
    Url(String),
    /// The token has an invalid form.
    #[error("the token is no single word of at least 8 letters; its value is not shown here")]
    TokenText,
    /// The author has an invalid form.
    #[error(
        "author {0:?}: expected 'Family, Given', 'Family, Given (ORCID)' or the name of an organisation"
    )]
    Author(String),
    /// curl cannot be started.
    #[error("curl: {0}; it sends requests to archives: install it")]
    Curl(#[source] io::Error),
    /// The service rejects the token.
    #[error("{service}: the token is not valid: make another one at {page}")]
    Unauthorized {
        /// Host of the service.
        service: String,
        /// Page where users make tokens.
        page: String,
    },
    /// The token does not allow the request.
    #[error("{service}: the token does not allow this ({reason}): it needs {scope}")]
    Forbidden {
        /// Host of the service.
        service: String,
        /// Reason that the service gives.
        reason: String,
        /// Permission that the token needs.
        scope: &'static str,
    },
    /// A file exceeds the limit of the service.
    #[error(
        "{service}: {file} is larger than the service accepts ({bytes} bytes): ask it for more space, or publish less"
    )]
    TooLarge {
        /// Host of the service.
        service: String,
        /// Name of the file.
        file: String,
        /// Length of the file.
        bytes: u64,
    },
    /// The service refuses a request.
    #[error("{service}: {what} is refused (status {status}): {reason}")]
    Refused {
        /// Host of the service.
        service: String,
        /// The refused step.
        what: &'static str,
        /// Status code of the reply.
        status: u16,
        /// Reason that the service gives.
        reason: String,
    },
    /// The service is overloaded for longer than is waited.
    #[error(
        "{service}: it accepts no request for {seconds} s: repeat the command then; it continues the same deposit"
    )]
    Busy {
        /// Host of the service.
        service: String,
        /// Time until the service accepts requests again.
        seconds: u64,
    },
    /// The service cannot be reached, or fails.
    #[error(
        "{service}: {what} failed {attempts} times: {reason}; repeat the command later: it continues the same deposit"
    )]
    Unreachable {
        /// Host of the service.
        service: String,
        /// The failed step.
        what: &'static str,
        /// Number of attempts.
        attempts: u32,
        /// Error of the last attempt.
        reason: String,
    },
    /// The reply has an unexpected form.
    #[error("{service}: {what}: the reply is not that of such a service: {reason}")]
    Reply {
        /// Host of the service.
        service: String,
        /// The step.
        what: &'static str,
        /// The unexpected part.
        reason: String,
    },
    /// The received file differs from the sent one.
    #[error("{service}: {file} arrived damaged: repeat the command")]
    Damaged {
        /// Host of the service.
        service: String,
        /// Name of the file.
        file: String,
    },
    /// The deposit or release cannot take the files.
    #[error("{0}")]
    Conflict(String),
    /// A local file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The published folder is damaged.
    #[error(transparent)]
    Results(#[from] ExperimentError),
}

impl DepositError {
    /// Returns true if nothing on this side is wrong: the service or a program is missing.
    pub fn is_missing(&self) -> bool {
        matches!(
            self,
            Self::Curl(_) | Self::Busy { .. } | Self::Unreachable { .. } | Self::Reply { .. }
        )
    }

    pub(super) fn io(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }
}
