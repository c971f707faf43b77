//! Changes of an IPv4 table: entries are written one by one, and blocks come from a bounded pool.

use std::sync::Arc;

use thiserror::Error;

use super::{Fib, MOST_BLOCKS};
use crate::grace::Grace;
use crate::{NextHop, PrefixV4, Rib};

/// Longest prefix that needs no block.
const FIRST_BITS: u8 = 24;
/// Reason why a table cannot be made or cannot hold a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// All blocks are in use, or wait for look-ups to end.
    #[error("all {0} blocks for prefixes beyond /24 are in use: make the table with more of them")]
    Full(usize),
    /// An entry cannot address this many blocks.
    #[error("a table has at most {MOST_BLOCKS} blocks for prefixes beyond /24, not {0}")]
    TooManyBlocks(usize),
}

/// The side of a table that adds and deletes routes.
#[derive(Debug)]
pub struct Table {
    pub(super) rib: Rib<u32>,
    pub(super) fib: Arc<Fib>,
    /// Number of prefixes beyond /24 in each block.
    longer: Vec<u16>,
    free: Vec<u16>,
    retired: Grace<u16>,
}

impl Table {
    /// Makes an empty table with `blocks` blocks, on huge pages where the kernel has some. One block serves the longer
    /// prefixes of one /24.
    ///
    /// # Errors
    /// [`Refused::TooManyBlocks`] above [`MOST_BLOCKS`].
    pub fn new(blocks: usize) -> Result<Self, Refused> {
        if blocks > MOST_BLOCKS {
            return Err(Refused::TooManyBlocks(blocks));
        }
        Ok(Self {
            rib: Rib::new(),
            longer: vec![0; blocks],
            free: (0..blocks).rev().map(|block| block as u16).collect(),
            fib: Arc::new(Fib::new(blocks)),
            retired: Grace::default(),
        })
    }

    /// Returns the side of the table for look-ups.
    pub fn fib(&self) -> &Arc<Fib> {
        &self.fib
    }

    /// Returns the routes.
    pub fn rib(&self) -> &Rib<u32> {
        &self.rib
    }

    /// Returns the number of free blocks, without those that wait for [`Self::quiesced`].
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Returns the number of blocks that wait for [`Self::quiesced`].
    pub fn retired_blocks(&self) -> usize {
        self.retired.len()
    }

    /// Adds all routes of `rib`. In an empty table each entry is written directly, without a search for longer
    /// prefixes.
    ///
    /// # Errors
    /// [`Refused::Full`]; the routes before the failing one are in the table.
    pub fn extend(&mut self, rib: &Rib<u32>) -> Result<(), Refused> {
        // Each route comes before those within it, so it cannot overwrite longer ones.
        let was_empty = self.rib.is_empty();
        for (prefix, hop) in rib.iter() {
            if was_empty {
                self.note(prefix, hop)?;
                self.write(prefix.network().into(), end(prefix), hop);
            } else {
                self.insert(prefix, hop)?;
            }
        }
        Ok(())
    }

    /// Adds a route or changes the one of its prefix; returns the previous next hop.
    ///
    /// # Errors
    /// [`Refused::Full`] if a block is needed and none is free; the table is unchanged.
    pub fn insert(&mut self, prefix: PrefixV4, hop: NextHop) -> Result<Option<NextHop>, Refused> {
        let before = self.note(prefix, hop)?;
        if before != Some(hop) {
            self.paint(prefix, hop);
        }
        Ok(before)
    }

    /// Deletes the route of a prefix; returns its next hop.
    pub fn remove(&mut self, prefix: PrefixV4) -> Option<NextHop> {
        let before = self.rib.remove(prefix)?;
        let covering = self.rib.covering(prefix);
        let hop = covering.map_or(NextHop::NONE, |(_, hop)| hop);
        if hop != before {
            self.paint(prefix, hop);
        }
        if prefix.length() > FIRST_BITS {
            self.leave_block(prefix);
        }
        Some(before)
    }

    /// Returns the number to pass to [`Self::quiesced`] after all earlier look-ups have ended.
    pub fn generation(&self) -> u64 {
        self.retired.generation()
    }

    /// Frees the blocks that were retired before [`Self::generation`] returned `generation`.
    ///
    /// Since then the caller must have sent every reader a message and received a reply that the reader sent between
    /// two look-ups. (A counter that readers increment after each batch is such a reply only with a sequentially
    /// consistent fence on both sides.)
    pub fn quiesced(&mut self, generation: u64) {
        self.free.extend(self.retired.quiesced(generation));
    }

    /// Records a route, and allocates its block if it needs one, before its entries are written.
    fn note(&mut self, prefix: PrefixV4, hop: NextHop) -> Result<Option<NextHop>, Refused> {
        if prefix.length() <= FIRST_BITS {
            return Ok(self.rib.insert(prefix, hop));
        }
        let entry = self.fib.first_of(prefix.network());
        let block = match entry.block() {
            Some(block) => block,
            None => {
                let full = Refused::Full(self.fib.blocks());
                let block = self.free.pop().ok_or(full)?;
                let hop = NextHop::of_bits(entry.load());
                self.fib.block(block).for_each(|it| it.store(hop));
                entry.store_block(block);
                block
            }
        };
        let before = self.rib.insert(prefix, hop);
        self.longer[usize::from(block)] += u16::from(before.is_none());
        Ok(before)
    }

    /// Writes `hop` for the addresses of `prefix`, except those with a route of a longer prefix.
    fn paint(&self, prefix: PrefixV4, hop: NextHop) {
        let mut from = u64::from(prefix.network());
        // A /24 without a block contains no longer route, so no search is needed: the common case in a full table.
        if prefix.length() == FIRST_BITS && self.fib.first_of(prefix.network()).block().is_none() {
            return self.write(from, end(prefix), hop);
        }
        for (inner, _) in self.rib.within(prefix).filter(|(it, _)| *it != prefix) {
            // A route within another longer prefix was skipped together with that prefix.
            if u64::from(inner.network()) >= from {
                self.write(from, inner.network().into(), hop);
                from = end(inner);
            }
        }
        self.write(from, end(prefix), hop);
    }

    /// Writes the entries of addresses `from..end`. A /24 that is only partly in the range has a block.
    fn write(&self, mut from: u64, end: u64, hop: NextHop) {
        while from < end {
            let next = end.min((from | 0xff) + 1);
            let entry = self.fib.first_of(from as u32);
            match entry.block() {
                None => entry.store(hop),
                Some(block) => {
                    let (first, count) = ((from & 0xff) as usize, (next - from) as usize);
                    let entries = self.fib.block(block).skip(first).take(count);
                    entries.for_each(|it| it.store(hop));
                }
            }
            from = next;
        }
    }

    /// Retires the block of a deleted prefix if it was the last one there: all entries of the block are equal now.
    fn leave_block(&mut self, prefix: PrefixV4) {
        let entry = self.fib.first_of(prefix.network());
        let Some(block) = entry.block() else { return };
        let longer = &mut self.longer[usize::from(block)];
        *longer -= 1;
        if *longer == 0 {
            if let Some(any) = self.fib.block(block).next() {
                entry.store(NextHop::of_bits(any.load()));
            }
            self.retired.retire(block);
        }
    }
}

/// Returns the address after the last one; it is 2^32 for the end of the address space.
fn end(prefix: PrefixV4) -> u64 {
    u64::from(prefix.last()) + 1
}
