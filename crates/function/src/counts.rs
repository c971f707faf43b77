//! The counters of a function, for other threads to read while it runs: metrics, and the supervisor of a chain.

use serde::{Deserialize, Serialize};

/// One counter of a function, in the form in which other threads read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Count {
    /// The name of the function.
    pub function: String,
    /// The kind of the count.
    pub kind: CountKind,
    /// The name of the count: an outcome, an event, or a rule.
    pub name: String,
    /// A description for people, which may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The count since the function began, or since its rules were read.
    pub count: u64,
}

/// The kind of a count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CountKind {
    /// Packets by outcome: each is counted once, here or as a drop.
    Outcome,
    /// Packets that went no further, by cause.
    Drop,
    /// Events that are not an outcome of a packet.
    Event,
    /// Packets by their matching rule.
    Rule,
}

impl CountKind {
    /// Returns the kind of an outcome.
    pub fn of_outcome(is_drop: bool) -> Self {
        if is_drop { Self::Drop } else { Self::Outcome }
    }
}

/// Returns true if the name of an outcome says that packets went no further, as most such names do.
pub fn says_dropped(outcome: &str) -> bool {
    outcome.starts_with("dropped")
}

/// The counters of a function that others may read at any time, on their own threads.
pub trait Counted: Send + Sync {
    /// Returns the current counts.
    fn counts(&self) -> Vec<Count>;
}
