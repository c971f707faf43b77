//! Errors of putting up, changing and taking down chains, said so that a person knows what to do.

use std::io;
use taut_engine::ChainError;
use taut_host::{CommandError, Missing, TestbedError};
use taut_model::estimate::WrongValue;
use taut_port::PortError;

/// Reason why a chain cannot be put up, changed or taken down.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The chain's file says something that cannot be.
    #[error("{0}")]
    Chain(String),
    /// The chain's file cannot be read, or a function cannot be made.
    #[error(transparent)]
    File(#[from] ChainError),
    /// A function cannot be where it is to be.
    #[error("function \"{function}\": {reason}")]
    Function {
        /// Name of the function.
        function: String,
        /// Reason, and what would do.
        reason: String,
    },
    /// A port is wrong, or cannot be here.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A chain of that name is up.
    #[error(
        "chain \"{0}\" is up already: `taut chain down {0}` first, or give the file another `name`"
    )]
    NameTaken(String),
    /// There is no chain of that name.
    #[error("no chain \"{name}\" is up; {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// Names of the chains that there are.
        known: String,
    },
    /// The supervisor of a chain has died, and its run folder is still there.
    #[error(
        "the supervisor of chain \"{name}\" has died{log}: `taut chain down {name}` clears up what it has left"
    )]
    Died {
        /// The chain's name.
        name: String,
        /// Where its log is, in brackets; empty if it has none.
        log: String,
    },
    /// The machine lacks something.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A wire could not be made.
    #[error("cannot make a wire: {0}")]
    Wire(#[from] CommandError),
    /// Namespaces are not possible.
    #[error(transparent)]
    Namespace(#[from] TestbedError),
    /// A segment did not start.
    #[error("segment {segment}: {reason}")]
    Segment {
        /// Name of the segment.
        segment: String,
        /// Last words of the segment.
        reason: String,
    },
    /// The system refused.
    #[error("{what}: {source}")]
    System {
        /// Action that the system refused.
        what: String,
        /// The system's reason.
        source: io::Error,
    },
    /// A figure that no cost can have.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// The program was told to stop before the chain was up.
    #[error("stopped before the chain was up")]
    Stopped,
}

impl DeployError {
    pub(crate) fn system(what: impl Into<String>, source: impl Into<io::Error>) -> Self {
        Self::System {
            what: what.into(),
            source: source.into(),
        }
    }

    /// True where the machine lacks something (exit code 3) rather than the input being wrong (2).
    pub fn is_missing(&self) -> bool {
        match self {
            Self::Port(e) | Self::File(ChainError::Port(e)) => e.is_missing(),
            Self::Missing(_) | Self::Namespace(_) | Self::System { .. } => true,
            Self::Wire(e) => matches!(
                e,
                CommandError::NotInstalled { .. } | CommandError::NotPermitted { .. }
            ),
            _ => false,
        }
    }
}

/// Returns in one line what a program that others wrote had to say.
pub(crate) fn in_one_line(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
