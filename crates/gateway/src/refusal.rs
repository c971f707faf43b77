//! The reasons for which a change of bearers is refused.

use super::bearer::{MOST_PATHS, Match};
use super::policing::METERS_PER_BEARER;
use taut_function::changes::Stuck;

/// The reason why a change of bearers is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// A bearer with the given match exists already.
    #[error("match {0} has a bearer already; change it with --replace, or remove it first")]
    Duplicate(Match),
    /// No bearer has this match.
    #[error("match {0} has no bearer")]
    Unknown(Match),
    /// The table is full; the number is its capacity in bearers.
    #[error("the table is full: the maximum is {0} bearers (setting `bearers`)")]
    Full(usize),
    /// There are too many paths: pairs of a local and a remote outer address.
    #[error("too many tunnel paths (pairs of local and peer address): the maximum is {MOST_PATHS}")]
    TooManyPaths,
    /// The classifier does not exist, or there is no free number for another one.
    #[error("no packet classifier is free: delete sessions with packet filters first")]
    TooManyClassifiers,
    /// The change needs more meters than there are for rate limits.
    #[error(
        "too many rate limits: the maximum is {0}, {METERS_PER_BEARER} for each bearer that the table can hold (setting `bearers`)"
    )]
    TooManyMeters(usize),
    /// The worker has not applied earlier changes for too long.
    #[error("the data plane does not accept changes: it exited or hangs")]
    Stuck,
    /// The XDP programs in the kernel accept no changes.
    #[error("the kernel does not accept changes: {0}")]
    Kernel(String),
}

impl From<Stuck> for Refused {
    fn from(Stuck: Stuck) -> Self {
        Self::Stuck
    }
}
