//! The end of a command: a line that says what to do, and an exit code.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use taut_deploy::DeployError;
use taut_engine::ChainError;
use taut_live::http::EndpointError;
use taut_port::{Breakdown, PortError};
use taut_results::ResultsError;
use taut_tap::InlineError;
use taut_traffic::TrialError;

/// The reason why a command failed.
#[derive(Debug)]
pub enum Failure {
    /// A measured value violates the limit that the user set: exit code 1.
    Limit(String),
    /// The user's input is wrong: exit code 2.
    Input(String),
    /// The machine lacks a requirement of the command: exit code 3.
    Missing(String),
    /// The measurements do not suffice for a verdict: exit code 4.
    Undecided(String),
    /// The command was stopped by Ctrl-C or another signal before it was complete: exit code 130, as in shells.
    Interrupted(String),
}

impl Failure {
    /// Classifies an error about a file. A missing file and a file of the wrong type are input errors; other errors are
    /// errors of the machine.
    pub fn of_file(error: &std::io::Error, text: String) -> Self {
        use std::io::ErrorKind;
        match error.kind() {
            ErrorKind::NotFound
            | ErrorKind::IsADirectory
            | ErrorKind::NotADirectory
            | ErrorKind::InvalidData => Self::Input(text),
            _ => Self::Missing(text),
        }
    }

    /// Describes the error `breakdown` of the port called `port`.
    pub fn of_port(port: &impl std::fmt::Display, breakdown: &Breakdown) -> Self {
        let text = format!("{port}: {}", breakdown.why);
        if breakdown.is_machines {
            Self::Missing(text)
        } else {
            Self::Input(text)
        }
    }

    /// Returns a failure that names the helper threads (threads other than workers) that have died in this process;
    /// `None` if none has died.
    pub fn of_dead_threads() -> Option<Self> {
        let dead = taut_sys::dead_threads();
        let first = dead.first()?;
        Some(Self::Missing(format!(
            "the thread \"{}\" died and its work stopped: {}; this is a bug in taut, please report it with the output above",
            first.name, first.message
        )))
    }

    /// Returns the line that describes the failure.
    pub fn into_text(self) -> String {
        match self {
            Self::Limit(text)
            | Self::Input(text)
            | Self::Missing(text)
            | Self::Undecided(text)
            | Self::Interrupted(text) => text,
        }
    }

    /// Prints the line that describes the failure, and returns the exit code.
    pub fn report(self) -> ExitCode {
        let (text, code) = match self {
            Self::Limit(text) => (text, 1),
            Self::Input(text) => (text, 2),
            Self::Missing(text) => (text, 3),
            Self::Undecided(text) => (text, 4),
            Self::Interrupted(text) => (text, 130),
        };
        crate::terminal::print::note(text);
        ExitCode::from(code)
    }
}

/// Returns the flag that Ctrl-C and similar signals set.
pub fn stop_flag() -> Result<&'static AtomicBool, Failure> {
    taut_host::stop_flag().map_err(|e| Failure::Missing(format!("cannot watch for Ctrl-C: {e}")))
}

/// Returns the path of this program, which also runs as the device under test.
pub fn own_program() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|e| Failure::Missing(format!("cannot find this program's own file: {e}")))
}

impl From<PortError> for Failure {
    fn from(e: PortError) -> Self {
        if e.is_missing() {
            Self::Missing(e.to_string())
        } else {
            Self::Input(e.to_string())
        }
    }
}

impl From<taut_sys::Error> for Failure {
    fn from(e: taut_sys::Error) -> Self {
        PortError::from(e).into()
    }
}

impl From<InlineError> for Failure {
    fn from(e: InlineError) -> Self {
        match e {
            InlineError::Port(e) => e.into(),
            other => Self::Input(other.to_string()),
        }
    }
}

impl From<ChainError> for Failure {
    fn from(e: ChainError) -> Self {
        match e {
            ChainError::Port(e) => e.into(),
            other => Self::Input(other.to_string()),
        }
    }
}

impl From<DeployError> for Failure {
    fn from(e: DeployError) -> Self {
        match e {
            DeployError::Stopped => Self::Interrupted(e.to_string()),
            e if e.is_missing() => Self::Missing(e.to_string()),
            e => Self::Input(e.to_string()),
        }
    }
}

impl From<ResultsError> for Failure {
    fn from(e: ResultsError) -> Self {
        match e {
            ResultsError::Io { ref source, .. } => Self::of_file(source, e.to_string()),
            ResultsError::Histogram { .. } => Self::Missing(e.to_string()),
            other => Self::Input(other.to_string()),
        }
    }
}

impl From<EndpointError> for Failure {
    fn from(e: EndpointError) -> Self {
        Self::Input(e.to_string())
    }
}

impl From<TrialError> for Failure {
    fn from(e: TrialError) -> Self {
        match e {
            TrialError::Port(e) => e.into(),
            TrialError::NoLink { .. } | TrialError::NoGateway { .. } => {
                Self::Missing(e.to_string())
            }
            TrialError::Stopped => {
                Self::Interrupted("stopped before anything was sent".to_string())
            }
        }
    }
}
