//! The slots of a pool: the list of those that are free, and the count of those that are not.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use taut_sys::Mapping;

/// Slots of packet memory. Made and shared through [`PoolHandle`](super::PoolHandle).
#[derive(Debug)]
pub struct Pool {
    /// Slots nobody holds, the most recently returned last.
    pub(super) returned: UnsafeCell<Vec<u32>>,
    /// Slots that packets hold.
    pub(super) outstanding: Cell<u32>,
    /// Living [`PoolHandle`](super::PoolHandle)s; the pool is freed when this and `outstanding` are both 0.
    pub(super) handles: Cell<u32>,
    pub(super) memory: Option<Mapping>,
    pub(super) stride_bytes: u32,
    /// Memory that a ledger's packets lie in, if it is to live as long as they do.
    pub(super) _keeps: Option<Box<dyn Any>>,
}

impl Pool {
    /// Bytes of a slot; 0 for a ledger, which does not know where its slots end.
    #[inline(always)]
    pub(crate) fn stride_bytes(&self) -> usize {
        self.stride_bytes as usize
    }

    /// Counts one slot as held by a packet.
    #[inline(always)]
    pub(crate) fn count_out(&self, slots: u32) {
        self.outstanding.set(self.outstanding.get() + slots);
    }

    /// Takes a slot back.
    ///
    /// # Safety
    /// `pool` must be alive, and `slot` counted out of it and not given back since.
    #[inline(always)]
    pub(crate) unsafe fn give_back(pool: NonNull<Pool>, slot: u32) {
        // SAFETY: alive, as the caller promises.
        let this = unsafe { pool.as_ref() };
        let outstanding = this.outstanding.get() - 1;
        this.outstanding.set(outstanding);
        // SAFETY: a pool belongs to one thread (it is neither Send nor Sync) and no reference to
        // the list outlives any of its methods, so this is the only one.
        let returned = unsafe { &mut *this.returned.get() };
        let len = returned.len();
        if len >= returned.capacity() {
            given_back_twice();
        }
        // SAFETY: there is room, as was just looked at.
        unsafe {
            returned.as_mut_ptr().add(len).write(slot);
            returned.set_len(len + 1);
        }
        if outstanding == 0 && this.handles.get() == 0 {
            // SAFETY: no handle and no packet is left; it was made by Box in `PoolHandle::new`.
            drop(unsafe { Box::from_raw(pool.as_ptr()) });
        }
    }
}

/// The list was made with room for every slot, and a slot that was counted out is not in it: there is no way on.
#[cold]
#[inline(never)]
pub(super) fn given_back_twice() -> ! {
    panic!("a slot was given back to a pool that has all of its slots");
}
