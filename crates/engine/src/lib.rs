//! The worker loop: receive, functions, send; flush and waiting policies, chain files, counters.
//!
//! The main types:
//!
//! - [`Chain`]: a chain file as data: ports, functions, policies, number of workers.
//! - [`Worker`]: one thread's loop over its ports and functions. It owns them, and its counters.
//! - [`Team`]: the workers of a chain, on threads of their own, and the [`Exchange`] through which other threads read
//!   counters and change functions.
//!
//! `taut forward` parses a [`Chain`] and starts a [`Team`]. Each thread opens its ports, makes the functions and runs a
//! [`Worker`]. An iteration receives a burst, passes it to each function, and removes the packets that functions have
//! marked. The rest goes to a transmit buffer, which sends by the [`Flush`] policy. After iterations without packets,
//! the [`Wait`] policy applies. Punted packets go to a separate thread (`slow.rs`), and packets of another worker
//! through a ring to that worker (`handoff.rs`). [`InKernel`] and [`UpcallWorker`] run chains whose functions are XDP
//! programs.
//!
//! `examples/forwarder.rs` is a forwarder in 30 lines. It runs a chain, here parsed from text:
//!
//! ```
//! use taut_engine::{Chain, Flush};
//! use taut_functions::FUNCTIONS;
//!
//! let text = "ports = ['null:', 'null:']\nflush = 'idle(32)'\n[[function]]\nname = 'mac-swap'\n";
//! let chain = Chain::parse(text, "edge.toml", FUNCTIONS)?;
//! assert_eq!((chain.ports.len(), chain.functions.len()), (2, 1));
//! assert_eq!(chain.flush, Flush::Idle { n: 32 });
//! # Ok::<(), taut_engine::ChainError>(())
//! ```
//!
//! Start reading at `worker.rs`, where `run` and `round` are the loop; then `outbox.rs`, then `team.rs`.
//!
//! # Egress
//!
//! The worker has one transmit buffer per egress port (`outbox.rs`). A batch with one egress port goes there as a
//! whole, which costs one comparison. Any other batch is divided by port, in order. Copies for additional ports are
//! made last, from the packet as the functions left it, in the pool that the ports share. Every packet is either sent
//! or counted as dropped. That includes packets for a port that does not exist, and copies for which the pool is empty.
//!
//! A packet for a full port is dropped, or queued if the chain file configures queues (`queues.rs`). A port has up to
//! eight queues by strict priority, limited in packets and bytes, with CoDel on request. A function sets the priority
//! of a packet; otherwise the headers give it, and they are parsed only if the port is full. A queued packet is copied
//! into memory of the queue, so that it occupies no slot of an ingress ring.
//!
//! # Slow path
//!
//! The worker copies a punted packet, with ingress port, cause and time, into a ring to a thread of its own
//! (`slow.rs`). That thread offers the packet to the handler of the function that punted it, then to the other
//! handlers. The packets that a handler sends return through a second ring. They continue in the chain after the
//! handler's function, in their direction (`Worker::go_on`), so no function is skipped. A packet that exceeds the MTU
//! of its link is fragmented after the last function, because a translator or cipher needs the complete packet. A frame
//! without MAC addresses passes `mac-rewrite` wherever that function is in the chain.
//!
//! Neither side waits. A full ring drops the packet and counts it (`dropped_punted`). The worker rings the doorbell of
//! a sleeping slow path at most once per millisecond, which is its only system call for punted packets. A worker
//! without punting functions has no such thread.
//!
//! # Several workers
//!
//! Workers of one chain share nothing that a packet needs. The shared part of a port (a listening socket, a tap
//! interface, the division of its queues) is made first. Then each worker opens its own part on its own thread, with
//! its own pool. If packets have owners (`Function::homes`), the worker asks the function once per batch for the
//! owners. The worker sends packets of another worker through a ring between these two workers, before any function
//! sees the packets (`handoff.rs`). Therefore the state of a flow has one owner and needs no lock, whichever queue a
//! NIC chooses, and the packets of a flow stay in order. A handoff costs a copy, and the headers are parsed twice.
//!
//! # Changes while packets flow
//!
//! A worker checks one flag per iteration (`update.rs`). On request the worker makes the new functions between two
//! iterations and swaps the list. The worker itself makes the functions because a function owns packet pools, which
//! belong to one thread. Names and settings are checked before that. A function that does not change moves to the new
//! list. A replaced function that still stores packets is called with empty batches until it has released them all.
//!
//! In the kernel a changed chain is a new program in the place of the old one, by an update of the `bpf_link`
//! (`programs.rs`). Both programs share the map of egress interfaces and that of the counters. The counts by cause of
//! the old program are read after an RCU grace period. A function such as `gtpu` or `route` has a worker in addition to
//! its programs. [`UpcallWorker`] runs the same functions on the frames that the programs pass up, so that rare cases
//! are implemented once.

#![forbid(unsafe_code)]

mod chain;
mod classes;
mod codel;
mod counters;
mod flush;
mod handoff;
mod idle;
mod in_kernel;
mod interruptions;
mod lanes;
mod outbox;
mod outcomes;
mod programs;
mod queueing;
mod queues;
mod replicas;
mod report;
mod slow;
mod team;
mod time;
mod timing;
mod upcall;
mod update;
mod wait;
mod worker;

pub use chain::{
    Chain, ChainError, Classification, DEFAULT_BURST, MOST_BURST, MachinePort, MachineSettings,
    NOT_IN_KERNEL, Place, Placement, Replication, SpreadBy, Stage,
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
pub use timing::{functions_ticks, look_ticks, ports_ticks};
pub use upcall::UpcallWorker;
pub use update::{LONGEST_DRAIN, Replaced, UpdateError, Updates};
pub use wait::{BEFORE_SLEEP, LONGEST_INTERRUPT_SLEEP, Wait, WaitError};
pub use worker::{End, Worker};
