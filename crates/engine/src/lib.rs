//! The worker loop: receive, functions, send; flush policies, chain files, counters.

#![forbid(unsafe_code)]

mod beside;
mod chain;
mod counters;
mod flush;
mod outbox;
mod worker;

pub use beside::{Beside, Fates};
pub use chain::{Chain, ChainError, DEFAULT_BURST, MOST_BURST, NOT_IN_KERNEL, Place, Stage};
pub use counters::{Counters, CountersView};
pub use flush::{Flush, FlushError};
pub use worker::{End, Worker};
