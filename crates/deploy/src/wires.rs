//! Links of a chain: the outer ports of the chain, and the ports that join its segments.

use crate::error::DeployError;

/// The ports of a chain's segments, as specs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wires {
    /// Specs of the chain's outer ports, in the order of the chain file.
    pub ends: Vec<String>,
    /// The two connected ports, as specs, between each segment and the next.
    pub joints: Vec<[String; 2]>,
}

/// Checks that a chain over several workers has exactly two outer ports.
pub(crate) fn two_ends(ports: usize) -> Result<(), DeployError> {
    match ports {
        2 => Ok(()),
        _ => Err(DeployError::Chain(format!(
            "{ports} ports: a chain over several workers has two ends; give two ports, or placement = \"compact\""
        ))),
    }
}
