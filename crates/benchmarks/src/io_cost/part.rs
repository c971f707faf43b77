//! The parts of the measurement of a framework: each varies one quantity.

use serde::{Deserialize, Serialize};

/// A part of a framework's measurement, named by the quantity that it varies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// The cycles burnt per packet vary.
    Load,
    /// The number of packets per receive call varies.
    Batch,
    /// The size of a list that packets walk through varies.
    Walk,
}

impl Part {
    /// Returns the name of the part for files and the progress bar.
    pub fn name(self) -> &'static str {
        match self {
            Self::Load => "load",
            Self::Batch => "batch",
            Self::Walk => "walk",
        }
    }
}
