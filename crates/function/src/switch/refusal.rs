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
        "a bucket only sends packets, in a group of all; none leads to another table, a meter or a bridge"
    )]
    BadBucket,
    #[error("a bucket leads to no other group")]
    Chained,
    #[error("an indirect group has one bucket")]
    NotOneBucket,
    #[error("a weight is 1 or more in a group that selects")]
    NoWeight,
    #[error("a bucket of fast failover watches a port")]
    WatchesNothing,
    #[error("a rate is 1 or more")]
    NoRate,
    #[error("the worker does not go on")]
    Stuck,
}

impl From<Full> for Refused {
    fn from(_: Full) -> Self {
        Self::TableFull
    }
}
