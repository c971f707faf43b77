//! The edge of a memory level, and the share of accesses that hit in this level or a faster one.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The upper edge of a memory level: the largest structure that fits completely into this level and all faster ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Number of bytes that this level and all faster ones hold together; infinite for memory.
    pub bytes: f64,
    /// Steepness of the rise in cycles beyond this edge: 1 for independent accesses.
    pub steepness: f64,
}

impl Edge {
    /// The lower edge of the first level: no level holds anything.
    pub const NOTHING: Self = Self::new(0.0);
    /// The edge of memory, which holds everything.
    pub const ALL: Self = Self::new(f64::INFINITY);

    /// Returns an edge for independent accesses.
    pub const fn new(bytes: f64) -> Self {
        let steepness = 1.0;
        Self { bytes, steepness }
    }

    /// Returns the share of accesses that hit in the levels up to this edge: `min(1, C / S)^k`, where `S` is
    /// `structure_bytes`, `C` the bytes of the edge and `k` its steepness.
    pub fn within(&self, structure_bytes: f64) -> f64 {
        (self.bytes / structure_bytes).min(1.0).powf(self.steepness)
    }
}
