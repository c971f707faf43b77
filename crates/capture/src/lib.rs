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
