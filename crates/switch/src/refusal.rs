//! The reasons why a change of rules, groups or meters is refused.

use super::action::ActionsError;
use super::table::{Full, MOST_TUPLES, TABLES};

/// The reason why a change of rules, groups or meters is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("the rule table is full")]
    TableFull,
    #[error("the rules use more than {MOST_TUPLES} different masks")]
    TooManyMasks,
    #[error("another rule has this match and priority")]
    Duplicate,
    #[error("tables are numbered 0 to {}", TABLES - 1)]
    NoSuchTable,
    #[error(transparent)]
    Actions(#[from] ActionsError),
    #[error("no group has this number")]
    NoSuchGroup,
    #[error("no meter has this number")]
    NoSuchMeter,
    #[error("a group or meter with this number exists already")]
    Exists,
    #[error("there are too many groups, buckets or meters")]
    TooMany,
    #[error(
        "buckets of a group of type \"all\" may only output packets; no bucket of any group may go to a table, a \
        meter or a bridge"
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
    #[error("the rate of a meter must be 1 or more")]
    NoRate,
    #[error(
        "the worker has not adopted the change in time: check that its process runs and its core is free"
    )]
    Stuck,
}

impl From<Full> for Refused {
    fn from(_: Full) -> Self {
        Self::TableFull
    }
}
