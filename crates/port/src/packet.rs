//! Packet: an owned handle on bytes in a [`Pool`] or in a port's receive ring.

use crate::pool::slots::Pool;
use std::ptr::NonNull;

/// An owned packet. Dropping it returns its memory to the owner: the pool's free list, or the receive ring of the port
/// that received the packet in place. Therefore a packet moves from one port to another with one copy at most.
///
/// It has 24 bytes and belongs to one thread. `dpdk/shim.c` writes the same layout.
#[repr(C)]
pub struct Packet {
    data: NonNull<u8>,
    pool: NonNull<Pool>,
    slot: u32,
    len: u16,
    headroom: u16,
}

impl Packet {
    /// The offsets of the fields for C code that writes packets: data, pool, slot, length, headroom.
    #[cfg(dpdk)]
    pub(crate) const LAYOUT: [usize; 5] = [
        std::mem::offset_of!(Self, data),
        std::mem::offset_of!(Self, pool),
        std::mem::offset_of!(Self, slot),
        std::mem::offset_of!(Self, len),
        std::mem::offset_of!(Self, headroom),
    ];

    /// Makes the handle of one slot of `pool`.
    ///
    /// # Safety
    /// `data .. data + len` must be valid for reads and writes and unshared (as far as the ring protocol of the memory
    /// guarantees) until the slot is returned. `slot` must have been counted out of `pool` ([`Pool::count_out`]) for
    /// exactly this handle. The `headroom` bytes before `data` must be part of the same slot. In a pool with memory of
    /// its own, `headroom` must be the number of all bytes of the slot before `data`.
    #[inline(always)]
    pub(crate) unsafe fn new(
        data: NonNull<u8>,
        len: u16,
        headroom: u16,
        pool: NonNull<Pool>,
        slot: u32,
    ) -> Self {
        Self {
            data,
            pool,
            slot,
            len,
            headroom,
        }
    }

    /// Returns the length in bytes of the frame, which starts with the destination MAC address and excludes the frame
    /// check sequence.
    #[inline(always)]
    pub fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// Returns true for a packet without bytes.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the frame's bytes.
    #[inline(always)]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the caller of `new` guaranteed that the range is valid and belongs to this handle until it is
        // dropped.
        unsafe { std::slice::from_raw_parts(self.data.as_ptr(), self.len()) }
    }

    /// Returns the frame's bytes, to change in place.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` makes the borrow unique.
        unsafe { std::slice::from_raw_parts_mut(self.data.as_ptr(), self.len()) }
    }

    /// Returns the address of the first byte, for C code. The address, the headroom before it and the tailroom after
    /// the last byte are valid as long as the packet is borrowed.
    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Returns the number of bytes that [`Packet::prepend`] can still add.
    #[inline]
    pub fn headroom(&self) -> usize {
        usize::from(self.headroom)
    }

    /// Returns true if the packet was received in place and is in the port's ring instead of a pool. A peer may then
    /// write to it.
    pub fn is_in_ring(&self) -> bool {
        // Only the ledger of a ring has a stride of 0, because it does not know the size of its slots.
        self.stride_bytes() == 0
    }

    /// Extends the packet by `n` bytes at the front. These bytes keep their previous contents. Returns false and
    /// changes nothing if the headroom is too short.
    #[inline]
    pub fn prepend(&mut self, n: u16) -> bool {
        if n > self.headroom || self.len.checked_add(n).is_none() {
            return false;
        }
        // SAFETY: `headroom` bytes before `data` are part of the slot, as the caller of `new` guaranteed.
        self.data = unsafe { self.data.sub(usize::from(n)) };
        self.headroom -= n;
        self.len += n;
        true
    }

    /// Returns the number of bytes that [`Packet::append`] can still add; 0 for a packet in a port's ring.
    #[inline(always)]
    pub fn tailroom(&self) -> usize {
        self.stride_bytes()
            .saturating_sub(self.headroom() + self.len())
    }

    #[inline(always)]
    fn stride_bytes(&self) -> usize {
        // SAFETY: a pool lives at least as long as any slot is counted out of it.
        unsafe { self.pool.as_ref() }.stride_bytes()
    }

    /// Extends the packet by `n` bytes at the end. These bytes keep their previous contents. Returns false and changes
    /// nothing if the tailroom is too short.
    #[inline]
    pub fn append(&mut self, n: u16) -> bool {
        let fits = usize::from(n) <= self.tailroom();
        if fits {
            self.len += n;
        }
        fits
    }

    /// Removes `n` bytes from the front, which become headroom. Returns false and changes nothing if there are fewer
    /// bytes.
    #[inline]
    pub fn drop_front(&mut self, n: u16) -> bool {
        let (Some(len), Some(headroom)) = (self.len.checked_sub(n), self.headroom.checked_add(n))
        else {
            return false;
        };
        // SAFETY: the first `n` of `len` bytes are part of the slot, so the new start is inside the slot or at its end.
        self.data = unsafe { self.data.add(usize::from(n)) };
        self.headroom = headroom;
        self.len = len;
        true
    }

    /// Truncates the packet to `len` bytes; a longer `len` changes nothing.
    #[inline]
    pub fn truncate(&mut self, len: u16) {
        self.len = self.len.min(len);
    }

    /// Returns the pool or receive ring that owns the memory.
    #[inline(always)]
    pub(crate) fn pool(&self) -> NonNull<Pool> {
        self.pool
    }

    /// Returns the number that identifies the packet's slot in its pool or receive ring.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u32 {
        self.slot
    }

    /// Consumes the handle without returning the slot to the pool; returns the slot's number. The pool still counts the
    /// slot as used, and the caller owns it.
    #[inline(always)]
    pub(crate) fn into_slot(self) -> u32 {
        let slot = self.slot;
        std::mem::forget(self);
        slot
    }

    /// Returns the address of the first byte.
    #[inline(always)]
    pub(crate) fn data(&self) -> NonNull<u8> {
        self.data
    }
}

impl Drop for Packet {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: a pool lives at least as long as any slot is counted out of it.
        unsafe { Pool::give_back(self.pool, self.slot) };
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packet")
            .field("slot", &self.slot)
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
