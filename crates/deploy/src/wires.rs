//! Links: the ports of a chain's segments, at the chain's ends and at the joints between segments.

use crate::error::DeployError;

/// The ports of a chain's segments, as specs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wires {
    /// The chain's own ends, in the order of its file.
    pub ends: Vec<String>,
    /// Joints between each segment and the next: the ports on both sides.
    pub joints: Vec<[String; 2]>,
}

/// Checks that a chain over several workers has two ends.
pub(crate) fn two_ends(ports: usize) -> Result<(), DeployError> {
    match ports {
        2 => Ok(()),
        _ => Err(DeployError::Chain(format!(
            "{ports} ports: a chain over several workers has two ends; give two ports, or placement = \"compact\""
        ))),
    }
}
