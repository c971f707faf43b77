//! The worker loop: receive, functions, send; flush and waiting policies, chain files, counters.

#![forbid(unsafe_code)]

mod beside;
mod chain;
mod codel;
mod counters;
mod flush;
mod handoff;
mod in_kernel;
mod interrupted;
mod lanes;
mod outbox;
mod programs;
mod queueing;
mod queues;
mod report;
mod rest;
mod slow;
mod team;
mod update;
mod wait;
mod worker;

pub use beside::{Beside, Fates};
pub use chain::{
    Chain, ChainError, DEFAULT_BURST, MOST_BURST, NOT_IN_KERNEL, Place, Placement, Stage,
};
pub use counters::{Counters, CountersView};
pub use flush::{Flush, FlushError};
pub use in_kernel::InKernel;
pub use programs::Programs;
pub use queueing::{DropPolicy, Queueing};
pub use queues::QueueCounters;
pub use report::{AtPort, Event, Order, Report, Second, Shares, Started, Summary};
pub use team::{AtEnd, Ended, Exchange, Start, Team, Tell, TellLink};
pub use update::{LONGEST_DRAIN, Replaced, UpdateError, Updates};
pub use wait::{BEFORE_SLEEP, LONGEST_INTERRUPT_SLEEP, Wait, WaitError};
pub use worker::{End, Worker};

use worker::add_fates;
