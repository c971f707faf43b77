//! Integers of a map that is mapped into this process's memory. This process writes them by atomic stores, without a
//! system call, and XDP programs read them.

use libbpf_rs::MapHandle;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU16, AtomicU64};

/// Integers that readers access atomically, and that may be zero-initialised.
pub(super) trait Atomic {}

impl Atomic for AtomicU16 {}
impl Atomic for AtomicU64 {}

/// The integers of an array map with `BPF_F_MMAPABLE`.
#[derive(Debug)]
pub(super) struct Mapped<A> {
    first: NonNull<A>,
    count: usize,
}

// SAFETY: the memory belongs to no thread, and is only touched by atomic operations.
unsafe impl<A: Atomic> Send for Mapped<A> {}
// SAFETY: the memory is only accessed by atomic operations.
unsafe impl<A: Atomic> Sync for Mapped<A> {}

impl<A: Atomic> Mapped<A> {
    /// Maps the first `count` integers of a map into memory. The map's values have to contain at least `count`
    /// integers.
    pub fn of(map: &MapHandle, count: usize) -> io::Result<Self> {
        let (len, flags) = (count * size_of::<A>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses the address of the new mapping, so the mapping overlaps nothing. It is used only
        // within its length.
        let base = unsafe { mmap(null_mut(), len, flags, MapFlags::SHARED, map.as_fd(), 0) }?;
        let first = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("address 0"))?;
        Ok(Self { first, count })
    }

    /// Returns the integer at an index; none after the last.
    pub fn get(&self, index: usize) -> Option<&A> {
        // SAFETY: the integer is within the mapping. The mapping begins at a page, was initialised with zeroes, and
        // lives as long as `self`.
        (index < self.count).then(|| unsafe { self.first.add(index).as_ref() })
    }
}

impl<A> Drop for Mapped<A> {
    fn drop(&mut self) {
        // SAFETY: `mmap` returned this range, which is unmapped only here. References into the range do not outlive
        // `self`.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<A>()) };
    }
}
