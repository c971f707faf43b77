//! The parts of the measurement of a framework: each varies one quantity.

use serde::{Deserialize, Serialize};

/// What is varied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Cycles burnt per packet.
    Load,
    /// Packets taken from a port at a time.
    Batch,
    /// The size of a list that packets walk through.
    Walk,
}

impl Part {
    /// Its name in files and on the progress bar.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Batch => "batch",
            Self::Walk => "walk",
        }
    }
}
