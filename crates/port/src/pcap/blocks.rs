//! The memory that frames of a file are read into: blocks of equal size, shared by the reading thread and the packets
//! in them. The thread and the data path pass the numbers of blocks to each other, and only the current owner of the
//! number may access the block.

use crate::PortError;
use std::ptr::NonNull;
use taut_sys::Mapping;

/// The size of one block in bytes, which one read of the file fills.
const BLOCK_BYTES: usize = 512 << 10;

/// The number of blocks of a capture file in memory: some being filled by the reading thread, some waiting, some with
/// packets in use.
pub(super) const BLOCKS: usize = 8;

/// The memory of [`BLOCKS`] blocks. Only the owner of a block's number may access its bytes.
#[derive(Debug)]
pub(super) struct Blocks(Mapping);

// SAFETY: `Blocks` only returns addresses. Only the owner of a block's number uses the block, and each number exists
// once.
unsafe impl Sync for Blocks {}

impl Blocks {
    pub(super) fn new() -> Result<Self, PortError> {
        Ok(Self(Mapping::create_small(
            "taut-pcap",
            BLOCKS * BLOCK_BYTES,
        )?))
    }

    /// Returns the start of a block.
    #[inline(always)]
    pub(super) fn start(&self, number: usize) -> NonNull<u8> {
        debug_assert!(number < BLOCKS);
        // SAFETY: the mapping was made for this many blocks.
        unsafe { self.0.base().add((number % BLOCKS) * BLOCK_BYTES) }
    }

    /// Returns the bytes of a block, to read a file into.
    ///
    /// # Safety
    /// The caller must own the number, and drop the slice before passing the number on.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn bytes(&self, number: usize) -> &mut [u8] {
        // SAFETY: the range is inside the mapping, which lives as long as `self`; the caller guarantees that nobody
        // else accesses the block.
        unsafe { std::slice::from_raw_parts_mut(self.start(number).as_ptr(), BLOCK_BYTES) }
    }
}
