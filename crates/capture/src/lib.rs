//! Capture: everything that passes in memory, the interesting part on disk, also from before it became interesting.
//! (Gallenmüller 2021, section 3.5: FlowScope and its queue of queues.)
//!
//! The types to know:
//!
//! - [`record::Record`]: a packet as it is kept: its time, its length on the wire, and the bytes kept of it.
//! - [`ring::Ring`]: memory for the last seconds of packets, in buckets; a [`ring::Producer`] writes, a
//!   [`ring::Reader`] looks, a [`ring::Taker`] removes.
//! - [`filter::Filter`]: an expression of libpcap, compiled and checked once, and asked of frames.
//! - [`matching::Matcher`]: brings together what two places saw of each packet.
//!
//! - [`analyser::Analyser`]: code of others that sees packets and remembers their flows.
//! - [`trigger::Trigger`]: what makes packets interesting; [`capture::Capture`] has threads that look for it, write
//!   dumps (`dump.rs`) and keep packets on disk (`keeper.rs`, `disk/`).
//!
//! Begin with `record.rs`, then `ring.rs` and `capture.rs`.
//!
//! # Threads
//!
//! `taut capture` runs a chain of the function `record`, which copies packets into the ring. Each worker is a producer.
//! It appends to a bucket of its own, publishes the readable length once per batch by one store, and claims the next
//! bucket by one atomic exchange, without a lock. A claim skips a bucket that a reader holds; a reader counts the
//! packets that it missed. The ring's memory and libpcap's compiler are in `taut-sys`.
//!
//! One thread evaluates filters and fires triggers, also those that others request, so that one place decides whether a
//! trigger extends a dump or begins one. A second thread writes dumps, by a reader that begins in the past. A third
//! thread writes all packets to pcapng segments with an index each; a query reads only the blocks that can contain its
//! packets. Compressed segments are a sequence of zstd frames, each complete by itself (`packed.rs`). Each analyser has
//! a thread of its own, and a dump ends after the analysers have read its packets.

pub mod analyser;
pub mod capture;
pub mod clock;
mod delays;
pub mod disk;
pub mod dump;
pub mod filter;
pub mod flow;
pub mod flows;
pub mod keeper;
pub mod matching;
mod packed;
pub mod pcapng;
pub mod record;
pub mod ring;
pub mod trigger;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks it, also after a thread that held it has died: what is locked here is whole at any time.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
