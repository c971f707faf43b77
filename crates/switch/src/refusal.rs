//! The reasons why a change is refused.

use super::action::ActionsError;
use super::table::{Full, MOST_TUPLES, TABLES};

/// The reasons why a change is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("there is no room for more rules")]
    TableFull,
    #[error("rules ask in more than {MOST_TUPLES} ways")]
    TooManyMasks,
    #[error("another rule of this priority asks for the same")]
    Duplicate,
    #[error("there are tables 0 to {}", TABLES - 1)]
    NoSuchTable,
    #[error(transparent)]
    Actions(#[from] ActionsError),
    #[error("there is no group of that number")]
    NoSuchGroup,
    #[error("there is no meter of that number")]
    NoSuchMeter,
    #[error("it is there already")]
    Exists,
    #[error("there is no room for more of them")]
    TooMany,
    #[error(
        "buckets of an all group may only send packets; no bucket may lead to another table, a meter or a bridge"
    )]
    BadBucket,
    #[error("a bucket must not lead to another group")]
    Chained,
    #[error("an indirect group must have exactly one bucket")]
    NotOneBucket,
    #[error("weights of a select group must be 1 or more")]
    NoWeight,
    #[error("a bucket of a fast-failover group must watch a port")]
    WatchesNothing,
    #[error("a rate must be 1 or more")]
    NoRate,
    #[error("the worker does not respond")]
    Stuck,
}

impl From<Full> for Refused {
    fn from(_: Full) -> Self {
        Self::TableFull
    }
}
