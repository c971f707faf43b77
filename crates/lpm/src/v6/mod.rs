//! The IPv6 table: levels of eight bits where routes are dense, and sorted ranges of 32 bits in two cache lines where
//! routes are sparse.
//!
//! The first level uses the first 16 bits. It leads to a node or a line, depending on the routes there. A *node* has
//! 256 entries, one for each value of the next byte (a multibit trie: Srinivasan and Varghese, "Fast Address Lookups
//! Using Controlled Prefix Expansion", 1999). A *line* has up to sixteen ranges of the next four bytes, with an entry
//! for each range; up to eight ranges are in the first cache line. A binary search without branches finds the range.
//! (Ranges instead of prefixes are from DXR: Zec, Rizzo and Mikuc, "DXR: Towards a Billion Routing Lookups per Second
//! in Software", 2012.) An entry is a next hop, a node, or a line. Dense routes cost one access per byte, sparse routes
//! cost one or two accesses in all, and the memory stays small enough for caches.
//!
//! Every entry is one atomic number. A change builds new nodes and lines separately and puts them in place by one store
//! (release; the reader's fences acquire). If only next hops differ, it stores them in place. Readers find, for each
//! address, the old or the new result. Replaced nodes and lines keep their contents until all earlier look-ups have
//! ended.
//!
//! Poptrie (Asai and Ohara, SIGCOMM 2015) was tried as an alternative and rejected: a prototype took 8 MiB for a full
//! table where this table takes 22 MiB. In nine interleaved runs on a busy machine, without instructions that count
//! bits, the prototype took 1.3 times (random addresses) and 1.9 times (Zipf) as long. With such instructions, the
//! difference at random addresses was within the noise.
//!
//! `plan.rs` derives the structure from a set of routes, `fib.rs` looks up one address, `batch.rs` a batch, `wide.rs`
//! sixteen addresses with one instruction sequence; `table.rs` makes changes.

mod batch;
mod fib;
mod part;
mod plan;
mod table;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod wide;

pub use fib::Fib;
pub use table::{Capacity, Full, Table};

/// Number of address bits that index the first level.
const FIRST_BITS: u8 = 16;
/// Number of address bits that index the entries of a node.
const NODE_BITS: u8 = 8;
/// Number of address bits that the ranges of a line distinguish.
const LINE_BITS: u8 = 32;
/// Number of entries of a node.
const NODE_ENTRIES: usize = 1 << NODE_BITS;
/// Maximum number of ranges of a line.
const RANGES: usize = 16;
/// Maximum number of ranges in half of a line: eight starts and eight entries of 4 bytes fill a cache line.
const HALF_RANGES: usize = RANGES / 2;
/// Number of words of half a line: the starts of its ranges, and the entries of its ranges.
const HALF_ENTRIES: usize = 2 * HALF_RANGES;
/// Number of 32-bit words of a line: a start and an entry for each range.
const LINE_ENTRIES: usize = 2 * RANGES;
/// Maximum number of nodes, which together take 4 GiB.
const MOST_NODES: usize = 1 << 22;
/// Maximum number of lines, which together take 8 GiB.
const MOST_LINES: usize = 1 << 26;
