//! Errors of ports, said so that a person knows what to do.

use std::io;

/// Reason why a port could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The spec's text is wrong: the user's to correct.
    #[error("port \"{spec}\": {reason}")]
    BadSpec {
        /// The spec as written.
        spec: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
    /// The machine lacks something this port needs.
    #[error("{what}: needs {needs}")]
    Missing {
        /// Action that was tried.
        what: String,
        /// What is lacking, and how to get it.
        needs: String,
    },
    /// An operating-system call failed.
    #[error("{what}: {source}")]
    System {
        /// Action that failed, and what it was about.
        what: String,
        /// Answer of the kernel.
        source: io::Error,
    },
}

impl PortError {
    /// A wrong spec.
    pub fn bad_spec(spec: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::BadSpec {
            spec: spec.into(),
            reason: reason.into(),
        }
    }

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
            Self::BadSpec { .. } => false,
        }
    }
}

impl From<taut_sys::Error> for PortError {
    fn from(error: taut_sys::Error) -> Self {
        match error {
            taut_sys::Error::Missing { what, needs } => Self::Missing { what, needs },
            taut_sys::Error::System { what, source } => Self::System { what, source },
        }
    }
}
