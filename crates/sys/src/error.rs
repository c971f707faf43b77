//! What can go wrong with a system call, said so that a person knows what to do.

use std::io;

/// Why the system did not do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks something that this needs.
    #[error("{what}: needs {needs}")]
    Missing {
        /// What was tried.
        what: String,
        /// What is lacking, and how to get it.
        needs: String,
    },
    /// An operating-system call failed.
    #[error("{what}: {source}")]
    System {
        /// What was being done, to what.
        what: String,
        /// What the kernel answered.
        source: io::Error,
    },
}

impl Error {
    /// Something the machine lacks.
    pub fn missing(what: impl Into<String>, needs: impl Into<String>) -> Self {
        Self::Missing {
            what: what.into(),
            needs: needs.into(),
        }
    }

    /// A failed system call.
    pub fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// True where the machine lacks something (exit code 3) rather than the input being wrong (2).
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Missing { .. } => true,
            Self::System { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
        }
    }
}
