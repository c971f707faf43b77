//! The state that the workers' data planes share with the control plane.

use super::buffer::HeldInAll;
use super::peers::Peers;
use super::policing::SharedMeters;

/// The state that the workers' data planes share with the control plane.
#[derive(Debug, Clone)]
pub(super) struct Together {
    pub meters: SharedMeters,
    pub held: HeldInAll,
    pub peers: Peers,
}
