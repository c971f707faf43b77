//! Capture: all packets in memory, and the interesting ones on disk, including those from before a trigger fired.
//! (Gallenmüller 2021, section 3.5: FlowScope and its queue of queues.)
//!
//! The types to know:
//!
//! - [`record::Record`]: a stored packet: its time, its length on the wire, and its stored bytes.
//! - [`ring::Ring`]: memory for the last seconds of packets, in buckets; a [`ring::Producer`] writes, a
//!   [`ring::Reader`] reads, a [`ring::Taker`] removes.
//! - [`filter::Filter`]: an expression of libpcap, compiled and verified once, and evaluated on frames.
//! - [`matching::Matcher`]: matches the observations of each packet at two places.
//!
//! - [`analyser::Analyser`]: user code that receives packets and stores numbers for their flows.
//! - [`trigger::Trigger`]: a condition on which packets are written; [`capture::Capture`] has threads that evaluate
//!   triggers, write dumps (`dump.rs`) and store packets on disk (`keeper.rs`, `disk/`).
//!
//! Read `record.rs` first, then `ring.rs` and `capture.rs`.
//!
//! # Threads
//!
//! `taut capture` runs a chain of the function `record`, which copies packets into the ring. Each worker is a producer.
//! It appends to a bucket of its own, publishes the readable length once per batch by one store, and claims the next
//! bucket by one atomic exchange, without a lock. A claim skips a bucket that a reader uses; a reader counts the
//! packets that were overwritten before it read them. The ring's memory and libpcap's compiler are in `taut-sys`.
//!
//! One thread evaluates filters and fires all triggers, including those that other threads request. A single thread
//! therefore decides whether a trigger extends a dump or begins one. A second thread writes dumps, with a reader that
//! begins before the trigger fired. A third thread writes all packets to pcapng segments with an index each; a query
//! reads only the blocks that can contain its packets. A compressed segment is a sequence of zstd frames, each of which
//! can be decompressed on its own (`compression.rs`). Each analyser has a thread of its own, and a dump ends after the
//! analysers have read its packets.

pub mod analyser;
pub mod capture;
pub mod clock;
mod compression;
mod delays;
pub mod disk;
pub mod dump;
pub mod filter;
pub mod flow;
pub mod flows;
pub mod keeper;
pub mod matching;
pub mod pcapng;
pub mod record;
pub mod ring;
pub mod trigger;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex, also after a thread that held it has panicked: the data in these mutexes is consistent at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
