//! Wires: the ports that a chain's segments have, at the chain's ends and at the joints between them.

use crate::error::DeployError;

/// The ports that a chain's segments have, as specs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wires {
    /// The chain's own ends, in the order of its file.
    pub ends: Vec<String>,
    /// Joints between each segment and the next: the port of the one, and that of the other.
    pub joints: Vec<[String; 2]>,
}

/// Checks that a chain over several workers has as many ports as it has ends.
pub(crate) fn two_ends(ports: usize) -> Result<(), DeployError> {
    match ports {
        2 => Ok(()),
        _ => Err(DeployError::Chain(format!(
            "{ports} ports: a chain over several workers has two ends; give two ports, or placement = \"compact\""
        ))),
    }
}
