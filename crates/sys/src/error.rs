//! Errors of system calls, with a text that says how to fix them.

use std::io;

/// The reason why a request to the system failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks a requirement of the operation.
    #[error("{what}: needs {needs}")]
    Missing {
        /// Operation that failed.
        what: String,
        /// Missing requirement, and how to get it.
        needs: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Attempted operation, and the file or interface that it was about.
        what: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl Error {
    /// Returns an error about a requirement that the machine lacks.
    pub fn missing(what: impl Into<String>, needs: impl Into<String>) -> Self {
        Self::Missing {
            what: what.into(),
            needs: needs.into(),
        }
    }

    /// Returns an error of a failed system call.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// Returns true if the machine lacks a requirement (exit code 3), false if the input is wrong (exit code 2).
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::System { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
        }
    }
}
