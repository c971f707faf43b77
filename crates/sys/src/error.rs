//! Errors of system calls, with a text that says how to fix them.

use std::io;

/// The reason why a request to the system failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks something that the operation needs.
    #[error("{what}: needs {needs}")]
    Missing {
        /// Attempted operation.
        what: String,
        /// Missing item, and how to get it.
        needs: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Attempted operation and its object.
        what: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl Error {
    /// Returns an error about something that the machine lacks.
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

    /// Returns true if the machine lacks something (exit code 3), false if the input is wrong (2).
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::System { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
        }
    }
}
