//! What a function counts, for others to read while it runs: metrics, and who supervises a chain.

use serde::{Deserialize, Serialize};

/// Counter of a function that others read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// Name of the function.
    pub function: String,
    /// Kind of thing that is counted.
    pub kind: CountKind,
    /// Name of what is counted: an outcome, an event, or a rule.
    pub name: String,
    /// Text for people about it, which may be none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// Count since the function began, or since its rules were read.
    pub count: u64,
}

/// Kind of thing that a function counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountKind {
    /// Packets by what became of them: each is counted once, here or as one that was dropped.
    Outcome,
    /// Packets that went no further, by cause.
    Drop,
    /// Things worth knowing that are no outcome of a packet.
    Event,
    /// Packets by the rule that fitted them.
    Rule,
}

impl CountKind {
    /// Kind of an outcome.
    pub fn of_outcome(is_drop: bool) -> Self {
        if is_drop { Self::Drop } else { Self::Outcome }
    }
}

/// Whether the name of an outcome says that packets went no further, as most such names do.
pub fn says_dropped(outcome: &str) -> bool {
    outcome.starts_with("dropped")
}

/// Counters of a function that others may read at any time, on their own threads.
pub trait Counted: Send + Sync {
    /// Returns what they say at this moment.
    fn counts(&self) -> Vec<Count>;
}
