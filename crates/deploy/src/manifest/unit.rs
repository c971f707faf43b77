//! Units of a manifest: each runs one function of the chain.

/// The interfaces of each unit.
pub(super) const INTERFACES: [&str; 2] = ["west", "east"];
/// Path of the chain file in a unit.
pub(super) const CHAIN_FILE: &str = "/etc/taut/chain.toml";

/// The units of a manifest.
pub(super) struct Units {
    /// The chain's name in the format of both systems.
    pub chain: String,
    /// Units, west first.
    pub all: Vec<Unit>,
}

/// A function in a pod or server of its own.
pub(super) struct Unit {
    /// Name that is unique among chains with different names.
    pub name: String,
    /// Indices of the networks to which its west and its east interface are attached.
    pub networks: [usize; 2],
    /// Text of the unit's chain file.
    pub chain: String,
    /// Absolute paths of other files that the function reads.
    pub files: Vec<String>,
    /// Environment variables that the function reads.
    pub variables: Vec<String>,
}

impl Units {
    /// Returns the number of networks.
    pub fn networks(&self) -> usize {
        self.all.len() + 1
    }
}
