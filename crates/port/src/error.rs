//! Errors of ports, with a text that says what to do.

use std::io;

/// The reason why a port could not be made or used.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// The spec is wrong; the user has to correct it.
    #[error("port \"{spec}\": {reason}")]
    BadSpec {
        /// Port spec as written.
        spec: String,
        /// Text that says what is wrong, and what would be valid.
        reason: String,
    },
    /// The machine lacks something that this port needs.
    #[error("{what}: needs {needs}")]
    Missing {
        /// Operation that failed because of the missing requirement.
        what: String,
        /// Missing requirement, and how to get it.
        needs: String,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    System {
        /// Failed operation and the object that it was applied to.
        what: String,
        /// Error of the kernel.
        source: io::Error,
    },
}

impl PortError {
    /// Returns an error about a wrong spec.
    pub fn bad_spec(spec: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::BadSpec {
            spec: spec.into(),
            reason: reason.into(),
        }
    }

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

    /// Returns true if the machine lacks something (exit code 3), false if the input is wrong (exit code 2).
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
