//! Where a level of memory ends, and the share of accesses that the levels up to there answer.

use serde::{Deserialize, Serialize};

/// Where a level of memory ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Edge {
    /// Bytes that the levels up to there hold; infinite for memory, which holds all.
    pub bytes: f64,
    /// How steep the step there is: 1 for independent accesses.
    pub steepness: f64,
}

impl Edge {
    /// The edge before the first level.
    pub const NOTHING: Self = Self::new(0.0);
    /// The edge behind memory.
    pub const ALL: Self = Self::new(f64::INFINITY);

    /// Returns an edge as of independent accesses.
    pub const fn new(bytes: f64) -> Self {
        let steepness = 1.0;
        Self { bytes, steepness }
    }

    /// Returns the share of accesses to a structure of so many bytes that the levels up to there answer:
    /// `min(1, C / S)^k`.
    pub fn within(&self, structure_bytes: f64) -> f64 {
        (self.bytes / structure_bytes).min(1.0).powf(self.steepness)
    }
}
