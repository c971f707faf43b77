//! Errors of starting, changing and stopping chains, with advice.

use std::io;
use taut_engine::ChainError;
use taut_host::{CommandError, Missing, TestbedError};
use taut_model::estimate::WrongValue;
use taut_port::PortError;

/// Reason why a chain cannot be started, changed or stopped.
#[derive(Debug, thiserror::Error)]
pub enum DeployError {
    /// The chain's file has an invalid value.
    #[error("{0}")]
    Chain(String),
    /// The chain's file cannot be read, or a function cannot be made.
    #[error(transparent)]
    File(#[from] ChainError),
    /// A function cannot run in the requested place.
    #[error("function \"{function}\": {reason}")]
    Function {
        /// Name of the function.
        function: String,
        /// Reason why the function cannot run in the requested place, and the alternatives.
        reason: String,
    },
    /// A port is invalid, or cannot be used here.
    #[error(transparent)]
    Port(#[from] PortError),
    /// A chain of this name is running already.
    #[error(
        "chain \"{0}\" is up already: `taut chain down {0}` first, or give the file another `name`"
    )]
    NameTaken(String),
    /// No running chain has the requested name.
    #[error("no chain \"{name}\" is up; {known}")]
    Unknown {
        /// The requested name of a chain.
        name: String,
        /// Names of the running chains.
        known: String,
    },
    /// The supervisor of a chain has died, and the run folder of the chain still exists.
    #[error(
        "the supervisor of chain \"{name}\" has died{log}: `taut chain down {name}` cleans up after it"
    )]
    Died {
        /// The chain's name.
        name: String,
        /// Path of the supervisor's log, in brackets; empty if there is no log.
        log: String,
    },
    /// The machine lacks a requirement, such as a program or a privilege.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A link could not be created.
    #[error("cannot make a wire: {0}")]
    Wire(#[from] CommandError),
    /// A namespace cannot be created.
    #[error(transparent)]
    Namespace(#[from] TestbedError),
    /// A segment did not start.
    #[error("segment {segment}: {reason}")]
    Segment {
        /// Name of the segment.
        segment: String,
        /// Last output of the segment's process.
        reason: String,
    },
    /// The system reported an error.
    #[error("{what}: {source}")]
    System {
        /// The action that failed.
        what: String,
        /// The error that the operating system reported.
        source: io::Error,
    },
    /// A cost has an invalid value.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// The program was stopped before the chain was running.
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

    /// Returns true if the machine lacks a requirement (exit code 3), false if the input is wrong (exit code 2).
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

/// Returns the message of another program in one line.
pub(crate) fn in_one_line(error: &dyn std::error::Error) -> String {
    let text = error.to_string();
    text.lines().map(str::trim).collect::<Vec<_>>().join("; ")
}
