//! The IPv4 table: a look-up needs one access by the first 24 bits of an address. Where there are longer prefixes, a
//! second access uses the last 8 bits.
//!
//! The table is DIR-24-8 of Gupta, Lin and McKeown, "Routing Lookups in Hardware at Memory Access Speeds" (INFOCOM
//! 1998), with entries of 16 bits: 2^24 of them take 32 MiB. An entry is a next hop, or the index of a block. A block
//! has 256 entries, one for each last byte.
//!
//! Every entry is one atomic number. For each address, a change takes effect by one store to one entry, so a reader
//! finds the old or the new result. A new block is filled with the old value of the entry that it will replace, before
//! its index is stored there (release; the reader's fence acquires). An unused block keeps its contents until all
//! earlier look-ups have ended.
//!
//! `fib.rs` looks up one address, `batch.rs` a batch, `wide.rs` sixteen addresses with one instruction sequence;
//! `table.rs` makes changes.

mod batch;
mod fib;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use fib::Fib;
pub use table::{Refused, Table};

/// Number of entries of the first level.
pub const FIRST_ENTRIES: usize = 1 << 24;
/// Number of entries of a block of the second level.
pub const BLOCK_ENTRIES: usize = 1 << 8;
/// Maximum number of blocks of the second level, which an entry of 16 bits can address.
pub const MOST_BLOCKS: usize = 1 << 15;
