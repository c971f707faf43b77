//! The counters of a function that other threads read while it runs: those for metrics, and the supervisor of a chain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One counter of a function, in the form in which other threads read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Count {
    /// The name of the function.
    pub function: String,
    /// The kind of the count.
    pub kind: CountKind,
    /// The name of the count: an outcome (what happened to the packets), an event, or a rule.
    pub name: String,
    /// A description of the count for people, which may be empty.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub about: String,
    /// The count since the function began or its rules were last read, whichever is later.
    pub count: u64,
}

/// The kind of a count.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum CountKind {
    /// Packets by outcome (what the function did with them): each packet is counted once, as an outcome or as a drop.
    Outcome,
    /// Dropped packets by cause.
    Drop,
    /// Events that are not an outcome of a packet.
    Event,
    /// Packets by their matching rule.
    Rule,
}

impl CountKind {
    /// Returns the kind of count for an outcome: a drop if packets with the outcome are dropped.
    pub fn of_outcome(is_drop: bool) -> Self {
        if is_drop { Self::Drop } else { Self::Outcome }
    }
}

/// Returns true if the name of an outcome begins with "dropped". Most outcomes of dropped packets have such names.
pub fn says_dropped(outcome: &str) -> bool {
    outcome.starts_with("dropped")
}

/// The counters of a function that other threads may read at any time.
pub trait Counted: Send + Sync {
    /// Returns the current counts.
    fn counts(&self) -> Vec<Count>;
}
