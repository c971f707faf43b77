//! The slots of a pool: the list of free slots, and the count of slots that packets use.

use std::any::Any;
use std::cell::{Cell, UnsafeCell};
use std::ptr::NonNull;
use taut_sys::Mapping;

/// The slots of packet memory. They are made and shared through [`PoolHandle`](super::PoolHandle).
#[derive(Debug)]
pub struct Pool {
    /// Free slots, the most recently returned last.
    pub(super) returned: UnsafeCell<Vec<u32>>,
    /// Number of slots that packets use.
    pub(super) outstanding: Cell<u32>,
    /// Number of existing [`PoolHandle`](super::PoolHandle)s; the pool is freed when `handles` and `outstanding` are
    /// both 0.
    pub(super) handles: Cell<u32>,
    pub(super) memory: Option<Mapping>,
    pub(super) stride_bytes: u32,
    /// Memory of the packets of a ledger, if it must exist as long as the packets do.
    pub(super) _keeps: Option<Box<dyn Any>>,
}

impl Pool {
    /// Returns the size of a slot in bytes; 0 for a ledger, which does not know the size of its slots.
    #[inline(always)]
    pub(crate) fn stride_bytes(&self) -> usize {
        self.stride_bytes as usize
    }

    /// Adds `slots` to the number of slots that packets use.
    #[inline(always)]
    pub(crate) fn count_out(&self, slots: u32) {
        self.outstanding.set(self.outstanding.get() + slots);
    }

    /// Returns a slot to the pool's free list. Frees the pool if this was the last used slot and no handle exists.
    ///
    /// # Safety
    /// `pool` must be alive, and `slot` counted out of it and not returned since.
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
        // SAFETY: the list has free capacity, as was just checked.
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

/// Panics after a double return. The list has space for every slot, and a slot that is counted out is not in it, so
/// this is an error in the program.
#[cold]
#[inline(never)]
pub(super) fn given_back_twice() -> ! {
    panic!("a slot was given back to a pool that has all of its slots");
}
