//! Errors of a laboratory's file, and of its service.

use std::path::PathBuf;

/// Maximum length of the name of a node or user, bytes.
pub(crate) const LONGEST_NAME: usize = 63;

/// An invalid value in a laboratory's file.
#[derive(Debug, thiserror::Error)]
pub enum ValueError {
    /// The text is not a valid name.
    #[error("{0:?}: expected a name of at most {LONGEST_NAME} letters, digits, `-`, `_` and `.`")]
    Name(String),
    /// The text is not a valid time.
    #[error("{0:?}: expected a time such as \"24h\" or \"30days\"")]
    Time(String),
    /// The text is not a valid location of a node.
    #[error("{0:?}: expected `local` or `ssh://user@host:port`")]
    Location(String),
    /// The text is not a valid hash of a token.
    #[error("expected the SHA-256 of a token, 64 hexadecimal digits: taut lab token makes one")]
    Token,
}

/// Reason why the service cannot carry out a request of a user or a step of the schedule.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The request has no valid token.
    #[error(
        "wrong or missing token: send `Authorization: Bearer TOKEN`; the laboratory's operator gives you one"
    )]
    Token,
    /// The request is invalid.
    #[error("{0}")]
    Request(String),
    /// The user may not change this reservation or experiment.
    #[error("{0}")]
    Forbidden(String),
    /// The requested item, such as a node or a reservation, does not exist.
    #[error("{0}")]
    Missing(String),
    /// The present state of the laboratory does not allow the request, for example because another user has a node.
    #[error("{0}")]
    Conflict(String),
    /// There are too many reservations or experiments.
    #[error("{0}")]
    TooMany(String),
    /// The disk with the laboratory's folder is full.
    #[error("{}: no space left; nothing was changed: free some space and repeat the request", folder.display())]
    Full {
        /// Folder of the laboratory.
        folder: PathBuf,
    },
    /// The database returned an error.
    #[error("{}: {source}; nothing was changed", path.display())]
    Database {
        /// Path of the database.
        path: PathBuf,
        /// The error of SQLite.
        source: rusqlite::Error,
    },
    /// The laboratory's database was written by another version of taut, or is damaged.
    #[error("{}: {reason}", path.display())]
    Unreadable {
        /// Path of the database.
        path: PathBuf,
        /// The reason why the database is unreadable, and the remedy.
        reason: String,
    },
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder on which the operation failed.
        path: PathBuf,
        /// Error of the operating system.
        source: std::io::Error,
    },
    /// A command of Slurm fails, or does not end in time.
    #[error("{0}")]
    Slurm(String),
}

impl LabError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| match source.kind() {
            std::io::ErrorKind::StorageFull => Self::Full { folder: path },
            _ => Self::Io { path, source },
        }
    }
}
