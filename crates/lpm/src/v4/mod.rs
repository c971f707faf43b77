//! IPv4: one access by the first 24 bits of an address, a second one by the last 8 where longer prefixes are.
//!
//! DIR-24-8 of Gupta, Lin and McKeown, "Routing Lookups in Hardware at Memory Access Speeds" (INFOCOM 1998), with
//! entries of 16 bits: 2^24 of them take 32 MiB. An entry is a next hop, or the number of a block of 256 entries, one
//! for each last byte.
//!
//! Every entry is one atomic number, and what a change does to an address is one store to one entry. So a reader finds
//! what was before or what is after. A new block is filled with what its entry said before it takes the entry's place
//! (release; the reader's fence acquires), and a block that is no longer needed keeps its last contents until all
//! look-ups from before are over.
//!
//! `fib.rs` looks up, `batch.rs` a batch, `wide.rs` sixteen at once, `table.rs` changes.

mod batch;
mod fib;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use fib::Fib;
pub use table::{Refused, Table};

/// Entries of the first level.
pub const FIRST_ENTRIES: usize = 1 << 24;
/// Entries of a block of the second level.
pub const BLOCK_ENTRIES: usize = 1 << 8;
/// Blocks that can be told apart.
pub const MOST_BLOCKS: usize = 1 << 15;
