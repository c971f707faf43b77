//! Reason why a wiretap on ports cannot be started.

use taut_host::affinity::AffinityError;
use taut_port::PortError;

/// Reason why an inline wiretap could not be started.
#[derive(Debug, thiserror::Error)]
pub enum InlineError {
    /// A port cannot be opened.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The requested core is unavailable.
    #[error("--core: {0}")]
    Core(#[from] AffinityError),
    /// The number of ports is neither two nor four.
    #[error(
        "give two or four ports, not {0}: the generator's and the device's on one side, then those on the other side"
    )]
    Ports(usize),
}
