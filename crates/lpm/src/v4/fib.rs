//! The two levels of the IPv4 table, and look-ups in them: of one address, or of several without vector instructions.

use std::sync::atomic::{AtomicU16, Ordering, fence};

use super::{BLOCK_ENTRIES, FIRST_ENTRIES};
use crate::NextHop;
use taut_sys::AlignedTable;

/// Flag of an entry whose other bits are the index of a block.
pub(super) const IS_BLOCK: u16 = 1 << 15;
/// Number of addresses of a batch whose first-level entries are read together, before any second-level entry.
const TOGETHER: usize = 64;

/// Reference to an entry, through which the updater changes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryPlace<'a>(&'a AtomicU16);

impl EntryPlace<'_> {
    pub fn load(self) -> u16 {
        self.0.load(Ordering::Relaxed)
    }

    pub fn store(self, hop: NextHop) {
        self.0.store(hop.bits(), Ordering::Relaxed);
    }

    /// Stores the index of a filled block. The release order ensures that a reader of the index finds the block filled.
    pub fn store_block(self, block: u16) {
        self.0.store(IS_BLOCK | block, Ordering::Release);
    }

    pub fn block(self) -> Option<u16> {
        let entry = self.load();
        (entry & IS_BLOCK != 0).then_some(entry & !IS_BLOCK)
    }
}

/// The tables that look-ups read, shared between the updater and all readers.
#[derive(Debug)]
pub struct Fib {
    first: AlignedTable<AtomicU16>,
    /// Entries of all blocks, one block after the other.
    pub(super) second: AlignedTable<AtomicU16>,
    #[cfg(target_arch = "x86_64")]
    pub(super) wide: Option<taut_sys::lanes::Wide>,
}

impl Fib {
    pub(super) fn new(blocks: usize) -> Self {
        Self {
            first: AlignedTable::new(FIRST_ENTRIES),
            second: AlignedTable::new(blocks * BLOCK_ENTRIES),
            #[cfg(target_arch = "x86_64")]
            wide: taut_sys::lanes::Wide::found(),
        }
    }

    /// Returns the entries of the first level.
    #[inline(always)]
    pub(super) fn first(&self) -> &[AtomicU16; FIRST_ENTRIES] {
        match self.first.first_chunk() {
            Some(first) => first,
            None => unreachable!("it has so many"),
        }
    }

    /// Returns a reference to the entry of the /24 that contains `address`.
    pub(super) fn first_of(&self, address: u32) -> EntryPlace<'_> {
        EntryPlace(&self.first()[(address >> 8) as usize])
    }

    /// Returns references to the 256 entries of a block of the second level.
    pub(super) fn block(&self, block: u16) -> impl Iterator<Item = EntryPlace<'_>> {
        let from = usize::from(block) * BLOCK_ENTRIES;
        self.second[from..from + BLOCK_ENTRIES]
            .iter()
            .map(EntryPlace)
    }

    /// Returns the number of blocks of the second level.
    pub(super) fn blocks(&self) -> usize {
        self.second.len() / BLOCK_ENTRIES
    }

    /// Looks up one address; returns [`NextHop::NONE`] without a route.
    #[inline]
    pub fn lookup(&self, address: u32) -> NextHop {
        let entry = self.first()[(address >> 8) as usize].load(Ordering::Relaxed);
        if entry & IS_BLOCK == 0 {
            return NextHop::of_bits(entry);
        }
        fence(Ordering::Acquire);
        self.in_block(entry, address)
    }

    #[inline(always)]
    pub(super) fn look_up_plainly(&self, addresses: &[u32], hops: &mut [NextHop]) {
        let count = addresses.len().min(hops.len());
        let (batches, rest) = addresses[..count].as_chunks::<TOGETHER>();
        let (places, others) = hops[..count].as_chunks_mut::<TOGETHER>();
        for (addresses, hops) in batches.iter().zip(places) {
            for (address, hop) in addresses.iter().zip(hops.iter_mut()) {
                let entry = self.first()[(address >> 8) as usize].load(Ordering::Relaxed);
                *hop = NextHop::of_bits(entry);
            }
            let any = hops.iter().fold(0, |any, hop| any | hop.bits());
            if any & IS_BLOCK != 0 {
                self.look_further(addresses, hops);
            }
        }
        for (address, hop) in rest.iter().zip(others) {
            *hop = self.lookup(*address);
        }
    }

    /// Returns the first-level entry of the addresses whose first 24 bits are `index`, for copies of the table outside
    /// of this process. A value up to [`NextHop::MOST`] is a next hop; the lowest 15 bits of a greater value are the
    /// index of a block.
    pub fn first_bits(&self, index: usize) -> u16 {
        let entry = self.first.get(index);
        entry.map_or(0, |entry| entry.load(Ordering::Relaxed))
    }

    /// Returns the 256 entries of a block, one for each last byte of an address, for copies of the table outside of
    /// this process.
    pub fn block_bits(&self, block: usize) -> impl Iterator<Item = u16> {
        let entries = self.second.chunks(BLOCK_ENTRIES).nth(block);
        let entries = entries.unwrap_or_default().iter();
        entries.map(|entry| entry.load(Ordering::Relaxed))
    }

    /// Returns the memory of both levels in bytes, including unused blocks.
    pub fn memory_bytes(&self) -> usize {
        size_of_val(&*self.first) + size_of_val(&*self.second)
    }

    /// Completes the look-ups of at most [`TOGETHER`] addresses, whose first-level entries are in `hops`.
    pub(super) fn look_further(&self, addresses: &[u32], hops: &mut [NextHop]) {
        fence(Ordering::Acquire);
        // The addresses with a block are listed without a branch, which could be mispredicted.
        let mut further = [0_u8; TOGETHER];
        let mut count = 0;
        for (i, hop) in hops.iter().enumerate() {
            further[count % TOGETHER] = i as u8;
            count += usize::from(hop.bits() >> 15);
        }
        for i in further.iter().take(count).map(|i| usize::from(*i)) {
            if let (Some(hop), Some(address)) = (hops.get_mut(i), addresses.get(i)) {
                *hop = self.in_block(hop.bits(), *address);
            }
        }
    }

    #[inline(always)]
    fn in_block(&self, entry: u16, address: u32) -> NextHop {
        let place = usize::from(entry & !IS_BLOCK) * BLOCK_ENTRIES + (address & 0xff) as usize;
        NextHop::of_bits(self.second[place].load(Ordering::Relaxed))
    }
}
