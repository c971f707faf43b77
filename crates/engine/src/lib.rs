//! The worker loop: receive, functions, send; flush and waiting policies, chain files, counters.
//!
//! The types to know:
//!
//! - [`Chain`]: a chain file as data: ports, functions, policies, how many workers.
//! - [`Worker`]: one thread's loop over its ports and functions. It owns them, and all it counts.
//! - [`Team`]: the workers of a chain, on threads of their own, and the [`Exchange`] by which others read counters and
//!   change functions.
//!
//! `taut forward` parses a [`Chain`] and starts a [`Team`]; on each thread that opens the ports, makes the functions
//! and runs a [`Worker`]. A round receives a burst, has each function see it, takes out what they have marked, and
//! gives the rest to an outbox, which sends by the [`Flush`] policy. After rounds without packets the [`Wait`] policy
//! says what is done. What functions punt goes to a thread beside (`slow.rs`), what is another worker's by a lane to
//! that one (`handoff.rs`). [`InKernel`] and [`UpcallWorker`] run chains whose functions are XDP programs.
//!
//! A forwarder in 30 lines: `examples/forwarder.rs`. What it runs is a chain, here from the text of a file:
//!
//! ```
//! use taut_engine::{Chain, Flush};
//!
//! let text = "ports = ['null:', 'null:']\nflush = 'idle(32)'\n[[function]]\nname = 'mac-swap'\n";
//! let chain = Chain::parse(text, "edge.toml")?;
//! assert_eq!((chain.ports.len(), chain.functions.len()), (2, 1));
//! assert_eq!(chain.flush, Flush::Idle { n: 32 });
//! # Ok::<(), taut_engine::ChainError>(())
//! ```
//!
//! Begin with `worker.rs`, where `run` and `round` are the loop; then `outbox.rs`, then `team.rs`.

#![forbid(unsafe_code)]

mod chain;
mod codel;
mod counters;
mod flush;
mod handoff;
mod idle;
mod in_kernel;
mod interrupted;
mod lanes;
mod outbox;
mod outcomes;
mod programs;
mod queueing;
mod queues;
mod report;
mod slow;
mod team;
mod time;
mod timed;
mod upcall;
mod update;
mod wait;
mod worker;

pub use chain::{
    Chain, ChainError, DEFAULT_BURST, MOST_BURST, NOT_IN_KERNEL, Place, Placement, Stage,
};
pub use counters::{Counters, CountersView};
pub use flush::{Flush, FlushError};
pub use in_kernel::{InKernel, Upcall};
pub use outcomes::Outcomes;
pub use programs::Programs;
pub use queueing::{DropPolicy, Queueing};
pub use queues::QueueCounters;
pub use report::{AtPort, Event, Order, Report, Second, Shares, Started, Summary};
pub use taut_function::{Count, CountKind};
pub use team::{AtEnd, Ended, Exchange, JoinError, Start, Team, Tell, TellLink};
pub use timed::{functions_ticks, look_ticks, ports_ticks};
pub use upcall::UpcallWorker;
pub use update::{LONGEST_DRAIN, Replaced, UpdateError, Updates};
pub use wait::{BEFORE_SLEEP, LONGEST_INTERRUPT_SLEEP, Wait, WaitError};
pub use worker::{End, Worker};
