//! Changes of an IPv4 table: entries are written one by one, blocks come from a bounded pool.

use std::sync::Arc;

use thiserror::Error;

use super::{Fib, MOST_BLOCKS};
use crate::grace::Grace;
use crate::{NextHop, PrefixV4, Rib};

/// Longest prefix that needs no block.
const FIRST_BITS: u8 = 24;
/// Reason why a table cannot be or take a route.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum Refused {
    /// All blocks are in use, or wait for look-ups to end.
    #[error("all {0} blocks for prefixes beyond /24 are in use: make the table with more of them")]
    Full(usize),
    /// An entry has no room for the number of so many blocks.
    #[error("a table has at most {MOST_BLOCKS} blocks for prefixes beyond /24, not {0}")]
    TooManyBlocks(usize),
}

/// The end that adds and deletes routes.
#[derive(Debug)]
pub struct Table {
    pub(super) rib: Rib<u32>,
    pub(super) fib: Arc<Fib>,
    /// Prefixes beyond /24 of each block.
    longer: Vec<u16>,
    free: Vec<u16>,
    retired: Grace<u16>,
}

impl Table {
    /// Makes an empty table with `blocks` blocks, which are as many /24 as can have longer prefixes in them, on huge pages
    /// where the kernel has some.
    ///
    /// # Errors
    /// [`Refused::TooManyBlocks`] beyond [`MOST_BLOCKS`].
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

    /// Returns the end for look-ups.
    pub fn fib(&self) -> &Arc<Fib> {
        &self.fib
    }

    /// Returns the routes.
    pub fn rib(&self) -> &Rib<u32> {
        &self.rib
    }

    /// Returns how many blocks are free, those aside that wait for [`Self::quiesced`].
    pub fn free_blocks(&self) -> usize {
        self.free.len()
    }

    /// Returns how many blocks wait for [`Self::quiesced`].
    pub fn retired_blocks(&self) -> usize {
        self.retired.len()
    }

    /// Adds all routes of `rib`: of an empty table in the time that its entries take.
    ///
    /// # Errors
    /// [`Refused::Full`]; the routes before are then in the table.
    pub fn extend(&mut self, rib: &Rib<u32>) -> Result<(), Refused> {
        // Each route comes before those within it, so nothing is in its way.
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

    /// Adds a route or changes the one of its prefix; returns where that led before.
    ///
    /// # Errors
    /// [`Refused::Full`] if a block is needed and none is free; nothing has changed then.
    pub fn insert(&mut self, prefix: PrefixV4, hop: NextHop) -> Result<Option<NextHop>, Refused> {
        let before = self.note(prefix, hop)?;
        if before != Some(hop) {
            self.paint(prefix, hop);
        }
        Ok(before)
    }

    /// Deletes the route of a prefix; returns where it led.
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

    /// Returns what to give [`Self::quiesced`] once all readers have moved on.
    pub fn generation(&self) -> u64 {
        self.retired.generation()
    }

    /// Frees the blocks that changes until [`Self::generation`] returned `generation` have put out of use.
    ///
    /// The caller has since sent every reader a message and got an answer that it gave between two look-ups. (A
    /// counter that readers raise after each batch is such an answer only with a fence of sequential consistency on
    /// both sides.)
    pub fn quiesced(&mut self, generation: u64) {
        self.free.extend(self.retired.quiesced(generation));
    }

    /// Notes a route, with its block if it needs one, before its entries are written.
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

    /// Sends the addresses of `prefix` to `hop`, those aside that have a route of a longer prefix.
    fn paint(&self, prefix: PrefixV4, hop: NextHop) {
        let mut from = u64::from(prefix.network());
        // Most routes of a full table: nothing is within them, and nobody has to look.
        if prefix.length() == FIRST_BITS && self.fib.first_of(prefix.network()).block().is_none() {
            return self.write(from, end(prefix), hop);
        }
        for (inner, _) in self.rib.within(prefix).filter(|(it, _)| *it != prefix) {
            // What lies within another longer prefix has been passed with it.
            if u64::from(inner.network()) >= from {
                self.write(from, inner.network().into(), hop);
                from = end(inner);
            }
        }
        self.write(from, end(prefix), hop);
    }

    /// Writes the entries of addresses `from..end`. Where these are a part of a /24, that has a block.
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

    /// Retires the block of a prefix that has been deleted if it was the last one there: all its entries are the same
    /// now.
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

/// Returns the address behind the last one, which is 2^32 behind all.
fn end(prefix: PrefixV4) -> u64 {
    u64::from(prefix.last()) + 1
}
