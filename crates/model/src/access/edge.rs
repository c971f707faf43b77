//! The edge of a memory level, and the share of accesses that the levels up to it answer.

use serde::{Deserialize, Serialize};

/// The upper edge of a memory level: the number of bytes up to which the level is used.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Bytes that the levels up to this edge hold; infinite for memory, which holds all.
    pub bytes: f64,
    /// Steepness of the step at this edge: 1 for independent accesses.
    pub steepness: f64,
}

impl Edge {
    /// The edge before the first level.
    pub const NOTHING: Self = Self::new(0.0);
    /// The edge after memory.
    pub const ALL: Self = Self::new(f64::INFINITY);

    /// Returns an edge for independent accesses.
    pub const fn new(bytes: f64) -> Self {
        let steepness = 1.0;
        Self { bytes, steepness }
    }

    /// Returns the share of accesses to a structure of `structure_bytes` (`S`) that the levels up to this edge (`C`
    /// bytes, steepness `k`) answer: `min(1, C / S)^k`.
    pub fn within(&self, structure_bytes: f64) -> f64 {
        (self.bytes / structure_bytes).min(1.0).powf(self.steepness)
    }
}
