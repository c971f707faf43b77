//! Errors of deposits at archives and at release pages such as GitHub's: what is wrong, where, and what to do.

use crate::error::ExperimentError;
use std::io;
use std::path::PathBuf;

/// Reason why a publication was not deposited.
#[derive(Debug, thiserror::Error)]
pub enum DepositError {
    /// The text is not the address of a service.
    #[error(
        "\"{0}\": expected zenodo, zenodo-sandbox, github:OWNER/NAME or the address of an InvenioRDM, https://HOST"
    )]
    Url(String),
    /// The user's token has an invalid form.
    #[error("the token must be one word of at least 8 letters (it is not shown here)")]
    TokenText,
    /// The text that names an author has an invalid form.
    #[error(
        "author {0:?}: expected 'Family, Given', 'Family, Given (ORCID)' or the name of an organisation"
    )]
    Author(String),
    /// curl cannot be started.
    #[error("curl: {0}; it sends requests to archives: install it")]
    Curl(#[source] io::Error),
    /// The service rejects the user's token.
    #[error("{service}: the token is not valid: make another one at {page}")]
    Unauthorized {
        /// Host of the service.
        service: String,
        /// Page on which users create tokens.
        page: String,
    },
    /// The user's token does not permit the request.
    #[error("{service}: the token does not allow this ({reason}): it needs {scope}")]
    Forbidden {
        /// Host of the service.
        service: String,
        /// Reason that the service gives for the refusal.
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
        /// Name of the file that is too large.
        file: String,
        /// Length of the file, bytes.
        bytes: u64,
    },
    /// The service refuses a request.
    #[error("{service}: {what} is refused (status {status}): {reason}")]
    Refused {
        /// Host of the service.
        service: String,
        /// The step of the deposit that was refused.
        what: &'static str,
        /// HTTP status code of the reply.
        status: u16,
        /// Reason that the service gives for the refusal.
        reason: String,
    },
    /// The service is busy for longer than the maximum waiting time.
    #[error(
        "{service}: it accepts no request for {seconds} s: repeat the command then; it continues the same deposit"
    )]
    Busy {
        /// Host of the service.
        service: String,
        /// Time until the service accepts requests again, s.
        seconds: u64,
    },
    /// The service cannot be reached, or fails repeatedly.
    #[error(
        "{service}: {what} failed {attempts} times: {reason}; repeat the command later: it continues the same deposit"
    )]
    Unreachable {
        /// Host of the service.
        service: String,
        /// The step of the deposit that failed.
        what: &'static str,
        /// Number of attempts at the step.
        attempts: u32,
        /// Error of the last attempt.
        reason: String,
    },
    /// The reply of the service has an unexpected form.
    #[error("{service}: {what}: the reply is not that of such a service: {reason}")]
    Reply {
        /// Host of the service.
        service: String,
        /// The step of the deposit to which the service replied.
        what: &'static str,
        /// The unexpected part of the reply.
        reason: String,
    },
    /// The file that the service received differs from the file that was sent.
    #[error("{service}: {file} arrived damaged: repeat the command")]
    Damaged {
        /// Host of the service.
        service: String,
        /// Name of the damaged file.
        file: String,
    },
    /// The existing deposit or release does not accept the files.
    #[error("{0}")]
    Conflict(String),
    /// A local file cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file on which the operation failed.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The published folder is damaged.
    #[error(transparent)]
    Results(#[from] ExperimentError),
}

impl DepositError {
    /// Returns true if the service is busy, unreachable or replies unexpectedly, or if curl cannot be started.
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
