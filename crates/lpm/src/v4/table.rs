//! Changes of an IPv4 table: entries are written one by one, and blocks come from a bounded pool.

use std::sync::Arc;

use thiserror::Error;

use super::{Fib, MOST_BLOCKS};
use crate::grace::Grace;
use crate::{NextHop, PrefixV4, Rib};

/// Longest prefix length that needs no block of the second level.
const FIRST_BITS: u8 = 24;
/// The reason why a table cannot be made, or a route cannot be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// All blocks of the table are in use or wait for look-ups to end; the value is their number.
    #[error(
        "all {0} blocks for prefixes beyond /24 are in use: create the table with more of them"
    )]
    Full(usize),
    /// The requested number of blocks, which is the value, exceeds the number that an entry can address.
    #[error("a table has at most {MOST_BLOCKS} blocks for prefixes beyond /24, not {0}")]
    TooManyBlocks(usize),
}

/// A table of routes, whose owner adds and deletes routes. Other threads look up addresses in its [`Fib`].
#[derive(Debug)]
pub struct Table {
    pub(super) rib: Rib<u32>,
    pub(super) fib: Arc<Fib>,
    /// For each block, the number of its routes with prefixes longer than /24.
    longer: Vec<u16>,
    free: Vec<u16>,
    retired: Grace<u16>,
}

impl Table {
    /// Makes an empty table with `blocks` blocks, on huge pages where the kernel has some. One block serves the longer
    /// prefixes of one /24.
    ///
    /// # Errors
    /// Returns [`Refused::TooManyBlocks`] for more than [`MOST_BLOCKS`].
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

    /// Returns the part of the table in which threads look up addresses. Only `self` changes it.
    pub fn fib(&self) -> &Arc<Fib> {
        &self.fib
    }

    /// Returns the routes of the table.
    pub fn rib(&self) -> &Rib<u32> {
        &self.rib
    }

    /// Returns the number of free blocks. Retired blocks, which wait for [`Self::quiesced`], are not included.
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
    /// Returns [`Refused::Full`] if no block is free; the routes before the failing one are in the table.
    pub fn extend(&mut self, rib: &Rib<u32>) -> Result<(), Refused> {
        // The routes are ordered, so a shorter prefix is written before the longer prefixes within it and cannot
        // overwrite them.
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

    /// Adds a route, or replaces the next hop of the route for the same prefix. Returns the replaced next hop, if any.
    ///
    /// # Errors
    /// Returns [`Refused::Full`] if a block is needed and none is free; the table is unchanged.
    pub fn insert(&mut self, prefix: PrefixV4, hop: NextHop) -> Result<Option<NextHop>, Refused> {
        let before = self.note(prefix, hop)?;
        if before != Some(hop) {
            self.paint(prefix, hop);
        }
        Ok(before)
    }

    /// Deletes the route for exactly the given prefix. Returns its next hop; `None` if there is no such route.
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

    /// Returns the generation: the number to pass to [`Self::quiesced`] after all look-ups that are in progress now
    /// have ended.
    pub fn generation(&self) -> u64 {
        self.retired.generation()
    }

    /// Frees the blocks that were retired before [`Self::generation`] returned `generation`.
    ///
    /// After that call of [`Self::generation`], the caller must have sent every reader a message and received a reply
    /// that the reader sent between two look-ups. (A counter that readers increment after each batch is such a reply
    /// only with a sequentially consistent fence on both sides.)
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

    /// Writes `hop` into the entries of the addresses of `prefix`, except addresses that have a route with a longer
    /// prefix.
    fn paint(&self, prefix: PrefixV4, hop: NextHop) {
        let mut from = u64::from(prefix.network());
        // A /24 without a block contains no route with a longer prefix, so no search is needed. This is the common case
        // in a full table.
        if prefix.length() == FIRST_BITS && self.fib.first_of(prefix.network()).block().is_none() {
            return self.write(from, end(prefix), hop);
        }
        for (inner, _) in self.rib.within(prefix).filter(|(it, _)| *it != prefix) {
            // A route within another longer prefix is skipped, because the whole range of that prefix was skipped
            // already.
            if u64::from(inner.network()) >= from {
                self.write(from, inner.network().into(), hop);
                from = end(inner);
            }
        }
        self.write(from, end(prefix), hop);
    }

    /// Writes `hop` into the entries of the addresses `from..end`. A /24 that is only partly in this range has a block.
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

    /// Retires the block of a deleted prefix if the block has no other prefix. All entries of such a block are equal.
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

/// Returns the address after the last address of `prefix`; 2^32 at the end of the address space.
fn end(prefix: PrefixV4) -> u64 {
    u64::from(prefix.last()) + 1
}
