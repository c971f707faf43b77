//! State that the workers' data paths and whoever decides have together.

use super::held::HeldInAll;
use super::peers::Peers;
use super::policing::SharedMeters;

/// What the workers' data paths write and read together, and whoever decides.
#[derive(Debug, Clone)]
pub(super) struct Together {
    pub meters: SharedMeters,
    pub held: HeldInAll,
    pub peers: Peers,
}
