//! The memory that frames of a file are read into: equal blocks, owned by number, shared by the reading
//! thread and the packets that lie in them.

use crate::PortError;
use std::ptr::NonNull;
use taut_sys::Mapping;

/// Bytes of one block: a read of the file.
const BLOCK_BYTES: usize = 512 << 10;

/// Blocks: some being read, some waiting, some in use.
pub(super) const BLOCKS: usize = 8;

/// Memory for [`BLOCKS`] blocks. Whoever has a block's number, and nobody else, may touch its bytes.
#[derive(Debug)]
pub(super) struct Blocks(Mapping);

// SAFETY: a `Blocks` gives out addresses only; who may use which is told by the numbers, of which there
// is one each.
unsafe impl Sync for Blocks {}

impl Blocks {
    pub(super) fn new() -> Result<Self, PortError> {
        Ok(Self(Mapping::create_small(
            "taut-pcap",
            BLOCKS * BLOCK_BYTES,
        )?))
    }

    /// The start of a block.
    #[inline(always)]
    pub(super) fn start(&self, number: usize) -> NonNull<u8> {
        debug_assert!(number < BLOCKS);
        // SAFETY: the mapping was made for this many blocks.
        unsafe { self.0.base().add((number % BLOCKS) * BLOCK_BYTES) }
    }

    /// The bytes of a block, to read a file into.
    ///
    /// # Safety
    /// The caller must be the one who has the number, and let go of the slice before he passes it on.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn bytes(&self, number: usize) -> &mut [u8] {
        // SAFETY: inside the mapping, which lives while `self` does; nobody else touches the block, as the
        // caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.start(number).as_ptr(), BLOCK_BYTES) }
    }
}
