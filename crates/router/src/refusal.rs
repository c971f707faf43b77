//! The reasons why a route is refused.

use taut_lpm::{v4, v6};

/// The reason why a change of routes is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum Refused {
    #[error("all {0} next hops are in use")]
    TooManyHops(usize),
    #[error("all {0} groups of next hops are in use")]
    TooManyGroups(usize),
    #[error(transparent)]
    V4(#[from] v4::Refused),
    #[error(transparent)]
    V6(#[from] v6::Full),
    #[error("cannot copy the routes into the kernel: {0}")]
    Kernel(String),
}
