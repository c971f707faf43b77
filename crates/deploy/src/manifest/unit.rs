//! Units of a manifest: each runs one function of the chain.

/// Names of the two network interfaces of each unit (a pod or server).
pub(super) const INTERFACES: [&str; 2] = ["west", "east"];
/// Path of the chain file in a unit (a pod or server).
pub(super) const CHAIN_FILE: &str = "/etc/taut/chain.toml";

/// The units of a manifest: one pod or server for each function of the chain.
pub(super) struct Units {
    /// Name of the chain, in a format that Kubernetes and OpenStack accept.
    pub chain: String,
    /// The units (pods or servers), from the first function of the chain to the last.
    pub all: Vec<Unit>,
}

/// A unit: one function of the chain, in a separate pod or server.
pub(super) struct Unit {
    /// Name of the unit, which contains the name of the chain and is therefore unique among chains.
    pub name: String,
    /// Indices of the networks to which the unit's interfaces are attached: west, east.
    pub networks: [usize; 2],
    /// Text of the unit's chain file.
    pub chain: String,
    /// Absolute paths of the files, other than the chain file, that the function reads.
    pub files: Vec<String>,
    /// Environment variables that the function reads.
    pub variables: Vec<String>,
}

impl Units {
    /// Returns the number of networks that connect the units: one more than there are units.
    pub fn networks(&self) -> usize {
        self.all.len() + 1
    }
}
