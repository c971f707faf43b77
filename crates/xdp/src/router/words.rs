//! Words of a map that lie in this process's memory as well: written here one whole word at a time, without a system call, and read
//! by programs.

use libbpf_rs::MapHandle;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::io;
use std::os::fd::AsFd;
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicU64, Ordering};

/// The words of an array map of 64-bit values that was made to be mapped (`BPF_F_MMAPABLE`).
#[derive(Debug)]
pub(super) struct Words {
    first: NonNull<AtomicU64>,
    count: usize,
}

// SAFETY: the memory belongs to no thread, and is only touched by atomic operations.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the values of a map of that many.
    pub fn of(map: &MapHandle, count: usize) -> io::Result<Self> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address the kernel chooses overlaps nothing, and is used within its length only.
        let base = unsafe {
            mmap(
                null_mut(),
                count * size_of::<u64>(),
                flags,
                MapFlags::SHARED,
                map.as_fd(),
                0,
            )
        }?;
        let first = NonNull::new(base.cast()).ok_or_else(|| io::Error::other("address 0"))?;
        Ok(Self { first, count })
    }

    /// Writes a word; one beyond the last is none.
    pub fn set(&self, index: usize, word: u64) {
        if index < self.count {
            // SAFETY: the word lies in the mapping, which is page-aligned, zeroed at first, and lives as long as this.
            let at = unsafe { self.first.add(index).as_ref() };
            // What leads to it is written later.
            at.store(word, Ordering::Release);
        }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: this is the range that `mmap` gave, unmapped once; nobody has a reference into it beyond a call.
        let _ = unsafe { munmap(self.first.as_ptr().cast(), self.count * size_of::<u64>()) };
    }
}
