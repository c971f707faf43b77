//! Reason why a tap on ports cannot be started.

use taut_host::affinity::AffinityError;
use taut_port::PortError;

/// Why a tap in line could not be started.
#[derive(Debug, thiserror::Error)]
pub enum InlineError {
    /// A port.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The core that was asked for.
    #[error("--core: {0}")]
    Core(#[from] AffinityError),
    /// Neither two ports nor four.
    #[error(
        "want two ports or four, not {0}: the generator's and the device's of one side, then of the other"
    )]
    Ports(usize),
}
