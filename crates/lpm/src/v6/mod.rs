//! IPv6: levels of eight bits where routes are dense, and sorted ranges of 32 bits in two cache lines where they are
//! sparse.
//!
//! After a first level by the first 16 bits comes whichever of two things the routes there ask for. A *node* has 256
//! entries, one for each value of the next byte (a multibit trie: Srinivasan and Varghese, "Fast Address Lookups
//! Using Controlled Prefix Expansion", 1999). A *line* has up to sixteen ranges of the next four bytes and an entry
//! for each, found by binary search without branches, up to eight in the first cache line (ranges instead of prefixes as in DXR: Zec, Rizzo and Mikuc,
//! "DXR: Towards a Billion Routing Lookups per Second in Software", 2012). An entry is a next hop, a node, or a line.
//! So what is dense costs one access a byte, what is sparse one or two accesses in all, and memory stays small enough for
//! caches.
//!
//! Every entry is one atomic number. A change makes new nodes and lines aside and puts them in place by one store
//! (release; the reader's fences acquire), or stores next hops in place where nothing else differs: readers find, for
//! each address, what was before or what is after. What has been replaced keeps its contents until all look-ups from
//! before are over.
//!
//! Poptrie (Asai and Ohara, SIGCOMM 2015) was tried beside it and is not kept: a prototype of it took 8 MiB of a full
//! table where this takes 22, and in nine turns on a busy machine 1.3 (random) and 1.9 times (Zipf) as long, without
//! instructions that count bits. With them the two were within the noise of each other at random addresses.
//!
//! `plan.rs` says what a set of routes becomes, `fib.rs` looks up, `batch.rs` a batch, `wide.rs` sixteen at once,
//! `table.rs` changes.

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

/// Bits of the first level.
const FIRST_BITS: u8 = 16;
/// Bits of a node.
const NODE_BITS: u8 = 8;
/// Bits of a line's ranges.
const LINE_BITS: u8 = 32;
/// Entries of a node.
const NODE_ENTRIES: usize = 1 << NODE_BITS;
/// Ranges of a line.
const RANGES: usize = 16;
/// Ranges of a half of a line: eight starts and eight entries of 4 bytes fill a cache line.
const HALF_RANGES: usize = RANGES / 2;
/// Numbers of a half: where ranges begin, and their entries.
const HALF_ENTRIES: usize = 2 * HALF_RANGES;
/// Numbers of a line.
const LINE_ENTRIES: usize = 2 * RANGES;
/// Most nodes: 4 GiB of them.
const MOST_NODES: usize = 1 << 22;
/// Most lines: 8 GiB of them.
const MOST_LINES: usize = 1 << 26;
