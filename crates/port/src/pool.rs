//! The packet pool: equal slots of shared memory, and a list of free slots.
//!
//! A pool belongs to one thread, so taking and returning a slot is a push and a pop. The list is last-in-first-out, so
//! that the next slot is the one whose cache lines are still in the cache. A slot that a packet or another owner uses
//! is *counted out* of the pool; the pool is freed only when no slot is counted out.
//!
//! The same type is the ledger of a port that receives *in place*. Its slots are descriptors of the peer's ring, and a
//! free slot is one that may be returned to the peer.

pub(crate) mod slots;

pub use slots::Pool;

use crate::error::PortError;
use crate::packet::Packet;
use slots::given_back_twice;
use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use taut_sys::Mapping;

/// The number of bytes before each received frame that are reserved for headers that functions add.
pub(crate) const HEADROOM_BYTES: u16 = 128;

/// The default size of a slot: 33 cache lines, an odd number, so that the first lines of consecutive slots are in
/// different cache sets. A power of two would map all of them to two sets.
const STRIDE_BYTES: u32 = 2112;

/// The size of a slot if the kernel requires a power of two (AF_XDP).
const ALIGNED_STRIDE_BYTES: u32 = 2048;

impl Pool {
    /// Returns the slots of packets to their pools. Successive slots of one pool are returned together, with the same
    /// result as [`Pool::give_back`] for each.
    ///
    /// # Safety
    /// The packets must be initialised, and no code may use them after the call.
    #[inline(always)]
    pub(crate) unsafe fn give_back_all(mut packets: &[ManuallyDrop<Packet>]) {
        while let Some(first) = packets.first() {
            let pool = first.pool();
            // SAFETY: a pool lives at least as long as any slot is counted out of it.
            let this = unsafe { pool.as_ref() };
            // SAFETY: as in `give_back`.
            let returned = unsafe { &mut *this.returned.get() };
            let len = returned.len();
            let most = packets.len().min(returned.capacity() - len);
            let mut count = 0;
            while count < most && packets[count].pool() == pool {
                // SAFETY: `count` is below the free capacity after the last element.
                unsafe {
                    let end = returned.as_mut_ptr().add(len + count);
                    end.write(packets[count].slot());
                }
                count += 1;
            }
            if count == 0 {
                given_back_twice();
            }
            // SAFETY: `count` elements were written after the last one, within the capacity.
            unsafe { returned.set_len(len + count) };
            let outstanding = this.outstanding.get() - count as u32;
            this.outstanding.set(outstanding);
            if outstanding == 0 && this.handles.get() == 0 {
                // SAFETY: as in `give_back`.
                drop(unsafe { Box::from_raw(pool.as_ptr()) });
            }
            packets = &packets[count..];
        }
    }
}

/// A shared handle on a [`Pool`].
#[derive(Debug)]
pub struct PoolHandle(NonNull<Pool>);

impl PoolHandle {
    /// Makes a pool of `slots` frames, on huge pages if there are any. `aligned` gives slots of 2048 bytes on 2048-byte
    /// boundaries, as AF_XDP requires; otherwise slots are spread over cache sets.
    ///
    /// # Errors
    /// The machine has not enough memory.
    pub fn new(slots: u32, aligned: bool) -> Result<Self, PortError> {
        let stride_bytes = if aligned {
            ALIGNED_STRIDE_BYTES
        } else {
            STRIDE_BYTES
        };
        let memory = Mapping::create("taut-pool", slots as usize * stride_bytes as usize)?;
        // The highest slots are at the bottom of the stack, so that the pool is used from its start.
        Ok(Self::from_parts(
            (0..slots).rev().collect(),
            Some(memory),
            stride_bytes,
            None,
        ))
    }

    /// Makes a ledger, a pool without memory of its own, for a ring with `slots` descriptors from which a port receives
    /// in place.
    pub(crate) fn ledger(slots: u32) -> Self {
        Self::from_parts(Vec::with_capacity(slots as usize), None, 0, None)
    }

    /// Makes a ledger (a pool without memory of its own) as [`PoolHandle::ledger`] does. `memory` is dropped with the
    /// last packet, even if the port no longer exists.
    pub(crate) fn ledger_keeping(slots: u32, memory: Box<dyn Any>) -> Self {
        let returned = Vec::with_capacity(slots as usize);
        Self::from_parts(returned, None, 0, Some(memory))
    }

    fn from_parts(
        returned: Vec<u32>,
        memory: Option<Mapping>,
        stride_bytes: u32,
        keeps: Option<Box<dyn Any>>,
    ) -> Self {
        let pool = Box::new(Pool {
            returned: UnsafeCell::new(returned),
            outstanding: Cell::new(0),
            handles: Cell::new(1),
            memory,
            stride_bytes,
            _keeps: keeps,
        });
        Self(NonNull::from(Box::leak(pool)))
    }

    #[inline(always)]
    fn pool(&self) -> &Pool {
        // SAFETY: a pool lives while a handle does.
        unsafe { self.0.as_ref() }
    }

    /// Returns true if the slot of `packet` belongs to this pool.
    #[inline(always)]
    pub(crate) fn owns(&self, packet: &Packet) -> bool {
        packet.pool() == self.0
    }

    /// Returns a pointer to the pool itself, for making [`Packet`]s.
    #[inline(always)]
    pub(crate) fn raw(&self) -> NonNull<Pool> {
        self.0
    }

    /// Counts slots of a ledger (a pool without memory of its own) as used by packets.
    #[inline(always)]
    pub(crate) fn count_out(&self, slots: u32) {
        self.pool().count_out(slots);
    }

    /// Removes slots from a ledger, because another owner tracks them from now on.
    #[cfg(dpdk)]
    #[inline(always)]
    pub(crate) fn hand_over(&self, slots: u32) {
        let outstanding = &self.pool().outstanding;
        outstanding.set(outstanding.get() - slots);
    }

    /// Returns the number of free slots.
    #[inline]
    pub fn available(&self) -> usize {
        // SAFETY: single-threaded, and the reference ends with this expression.
        unsafe { &*self.pool().returned.get() }.len()
    }

    /// Returns the number of slots that packets use now.
    #[inline]
    pub fn outstanding(&self) -> usize {
        self.pool().outstanding.get() as usize
    }

    /// Returns true if the memory is on huge pages.
    pub fn on_huge_pages(&self) -> bool {
        self.pool().memory.as_ref().is_some_and(|m| m.huge)
    }

    /// Takes one slot as a packet of `len` bytes (at most [`PoolHandle::room`]), with its previous contents. None if
    /// the pool is empty.
    #[inline]
    pub fn take(&self, len: u16) -> Option<Packet> {
        let pool = self.pool();
        if pool.memory.is_none() || usize::from(len) > self.room() {
            return None;
        }
        // SAFETY: single-threaded, and the reference ends with this statement.
        let slot = unsafe { &mut *pool.returned.get() }.pop()?;
        pool.count_out(1);
        // SAFETY: just taken and counted out; `len` was compared with the room.
        Some(unsafe { self.packet(slot, len) })
    }

    /// Returns a packet of `len` bytes in a slot from [`PoolHandle::lend_slots`].
    ///
    /// # Safety
    /// The pool must have memory; `slot` must be counted out of it and owned by nobody else; `len` must be at most
    /// [`PoolHandle::room`].
    #[inline(always)]
    pub(crate) unsafe fn packet(&self, slot: u32, len: u16) -> Packet {
        let base = self.base();
        // SAFETY: slot numbers are below the count for which the mapping was sized, so the offset and the `room()`
        // bytes after it are inside. The caller guarantees that nobody else owns the slot.
        unsafe {
            let data = base.add(self.offset_of(slot));
            Packet::new(data, len, HEADROOM_BYTES, self.0, slot)
        }
    }

    /// Returns the offset of a slot's frame from the start of the memory, bytes.
    #[inline(always)]
    pub(crate) fn offset_of(&self, slot: u32) -> usize {
        slot as usize * self.pool().stride_bytes as usize + usize::from(HEADROOM_BYTES)
    }

    /// Returns the start of the pool's memory; a dangling pointer for a ledger, which has no memory of its own.
    #[inline(always)]
    pub(crate) fn base(&self) -> NonNull<u8> {
        self.pool()
            .memory
            .as_ref()
            .map_or(NonNull::dangling(), Mapping::base)
    }

    /// Takes up to `n` slots without making packets of them, and passes the number of each slot to `each`. Returns the
    /// count of slots. The new owner makes packets of the slots or returns them.
    #[inline(always)]
    pub(crate) fn lend_slots(&self, n: usize, mut each: impl FnMut(u32)) -> usize {
        // SAFETY: single-threaded; `each` gets a number, and the callers in this crate do not touch the
        // pool from within it.
        let free = unsafe { &mut *self.pool().returned.get() };
        let n = n.min(free.len());
        let left = free.len() - n;
        for &slot in free[left..].iter().rev() {
            each(slot);
        }
        free.truncate(left);
        self.count_out(n as u32);
        n
    }

    /// Returns to the pool a slot that is owned without a packet, from [`PoolHandle::lend_slots`] or
    /// [`Packet::into_slot`].
    ///
    /// # Safety
    /// The slot must be counted out and owned by nobody else.
    #[inline(always)]
    pub(crate) unsafe fn return_slot(&self, slot: u32) {
        // SAFETY: alive through this handle; counted out, as the caller promises.
        unsafe { Pool::give_back(self.0, slot) };
    }

    /// Returns the maximum number of bytes of a frame in one slot.
    #[inline]
    pub fn room(&self) -> usize {
        (self.pool().stride_bytes as usize).saturating_sub(usize::from(HEADROOM_BYTES))
    }

    /// Returns the memory of the slots; a ledger has none.
    pub(crate) fn memory(&self) -> Option<&Mapping> {
        self.pool().memory.as_ref()
    }

    /// Returns the distance from one slot's start to the next one's, bytes.
    #[cfg(feature = "xdp")]
    pub(crate) fn stride_bytes(&self) -> usize {
        self.pool().stride_bytes as usize
    }

    /// Returns the number of slots of the pool.
    #[cfg(feature = "xdp")]
    pub(crate) fn slots(&self) -> usize {
        self.memory().map_or(0, |m| m.len() / self.stride_bytes())
    }

    /// Removes all slots that packets have returned to a ledger, and passes each to `each`, oldest first.
    #[inline(always)]
    pub(crate) fn drain_returned(&self, mut each: impl FnMut(u32)) {
        // SAFETY: single-threaded; `each` gets a number, not access to this pool, and the callers in
        // this crate return no packet from within it.
        let returned = unsafe { &mut *self.pool().returned.get() };
        for &slot in returned.iter() {
            each(slot);
        }
        returned.clear();
    }

    /// Drains returned slots as [`PoolHandle::drain_returned`] does, but passes all in one call.
    #[cfg(dpdk)]
    #[inline(always)]
    pub(crate) fn drain_all_returned(&self, all: impl FnOnce(&[u32])) {
        // SAFETY: as in `drain_returned`.
        let returned = unsafe { &mut *self.pool().returned.get() };
        all(returned);
        returned.clear();
    }

    /// Returns true if packets have returned slots to the ledger that [`PoolHandle::drain_returned`] has not removed
    /// yet.
    #[inline(always)]
    pub(crate) fn has_returned(&self) -> bool {
        self.available() != 0
    }
}

impl Clone for PoolHandle {
    fn clone(&self) -> Self {
        let handles = &self.pool().handles;
        handles.set(handles.get() + 1);
        Self(self.0)
    }
}

impl Drop for PoolHandle {
    fn drop(&mut self) {
        let pool = self.pool();
        let handles = pool.handles.get() - 1;
        pool.handles.set(handles);
        if handles == 0 && pool.outstanding.get() == 0 {
            // SAFETY: this is the last handle, and no packet uses a slot; the pool was made by Box in `from_parts`.
            drop(unsafe { Box::from_raw(self.0.as_ptr()) });
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_slot_of_a_dropped_packet_is_reused_next() {
        let pool = PoolHandle::new(8, false).unwrap();
        let first = pool.take(60).unwrap();
        let slot = first.slot();
        drop(first);
        assert_eq!(pool.take(60).unwrap().slot(), slot);
    }

    #[test]
    fn an_empty_pool_returns_no_packet_until_packets_are_released() {
        let pool = PoolHandle::new(2, false).unwrap();
        let held = (pool.take(1).unwrap(), pool.take(1).unwrap());
        assert!(pool.take(1).is_none());
        drop(held);
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn packets_remain_valid_after_the_last_pool_handle_is_dropped() {
        let pool = PoolHandle::new(2, false).unwrap();
        let mut packet = pool.take(4).unwrap();
        drop(pool);
        packet.bytes_mut().copy_from_slice(b"taut");
        assert_eq!(packet.bytes(), b"taut");
    }

    #[test]
    fn a_frame_longer_than_a_slot_is_refused() {
        let pool = PoolHandle::new(2, true).unwrap();
        assert!(pool.take(u16::try_from(pool.room()).unwrap() + 1).is_none());
        assert_eq!(pool.available(), 2);
    }

    #[test]
    fn prepend_is_limited_to_the_headroom() {
        let pool = PoolHandle::new(1, false).unwrap();
        let mut packet = pool.take(10).unwrap();
        assert!(packet.prepend(HEADROOM_BYTES));
        assert_eq!(packet.len(), 10 + usize::from(HEADROOM_BYTES));
        assert!(!packet.prepend(1));
    }

    #[test]
    fn append_is_limited_to_the_end_of_the_slot() {
        for aligned in [false, true] {
            let pool = PoolHandle::new(3, aligned).unwrap();
            let all = [0, 1, 2].map(|_| pool.take(100).unwrap());
            for mut packet in all {
                let tailroom = packet.tailroom();
                assert_eq!(100 + tailroom, pool.room());
                assert!(!packet.append(tailroom as u16 + 1));
                assert!(packet.append(tailroom as u16));
                assert_eq!((packet.len(), packet.tailroom()), (pool.room(), 0));
                packet.bytes_mut().fill(7);
                assert!(packet.drop_front(10) && packet.tailroom() == 0);
                packet.truncate(4);
                assert_eq!(packet.tailroom(), pool.room() - 14);
            }
        }
        // SAFETY: the test does not access the bytes.
        let placed = |ledger: &PoolHandle, bytes: &mut [u8; 4]| unsafe {
            ledger.count_out(1);
            Packet::new(NonNull::from(bytes).cast(), 4, 0, ledger.raw(), 0)
        };
        let ledger = PoolHandle::ledger(1);
        let mut packet = placed(&ledger, &mut [0; 4]);
        assert_eq!(packet.tailroom(), 0);
        assert!(!packet.append(1) && packet.append(0));
    }

    #[test]
    fn bytes_dropped_from_the_front_can_be_prepended_again() {
        let pool = PoolHandle::new(1, false).unwrap();
        let mut packet = pool.take(4).unwrap();
        packet.bytes_mut().copy_from_slice(b"taut");
        let headroom = packet.headroom();
        assert!(packet.drop_front(3));
        assert_eq!(
            (packet.bytes(), packet.headroom()),
            (&b"t"[..], headroom + 3)
        );
        assert!(!packet.drop_front(2));
        assert!(packet.prepend(3));
        assert_eq!(packet.bytes(), b"taut");
    }

    proptest! {
        /// For any order of takes and drops, no two existing packets share a slot or a byte, and no slot is lost.
        #[test]
        fn no_two_packets_share_a_slot(steps in proptest::collection::vec((any::<bool>(), any::<u8>()), 1..400)) {
            let pool = PoolHandle::new(16, false).unwrap();
            let mut held: Vec<(Packet, u8)> = Vec::new();
            for (take, value) in steps {
                if take {
                    match pool.take(64) {
                        Some(mut packet) => {
                            packet.bytes_mut().fill(value);
                            held.push((packet, value));
                        }
                        None => prop_assert_eq!(held.len(), 16),
                    }
                } else if !held.is_empty() {
                    held.swap_remove(usize::from(value) % held.len());
                }
                prop_assert_eq!(pool.outstanding(), held.len());
                prop_assert_eq!(pool.available() + held.len(), 16);
                for (packet, value) in &held {
                    prop_assert!(packet.bytes() == [*value; 64]);
                }
            }
        }
    }
}
