//! Memory on transparent huge pages. (Linux, Documentation/admin-guide/mm/transhuge.rst.)

use rustix::mm::{Advice, madvise};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32};

const HUGE_PAGE_BYTES: usize = 2 << 20;
const CACHE_LINE_BYTES: usize = 64;

/// A number that is 0 if all its bytes are 0.
///
/// # Safety
/// All-zero bytes must be a valid value of the type, and the type must not need to be dropped.
pub unsafe trait SharedNumber {}

// SAFETY: an integer.
unsafe impl SharedNumber for AtomicU16 {}
// SAFETY: an integer.
unsafe impl SharedNumber for AtomicU32 {}

/// A table of numbers, initially 0. Its start is aligned to a huge page, or to a cache line if the table is smaller
/// than a huge page.
#[derive(Debug)]
pub struct AlignedTable<T: SharedNumber> {
    numbers: NonNull<T>,
    len: usize,
}

// SAFETY: the table owns its numbers, as a box would.
unsafe impl<T: SharedNumber + Send> Send for AlignedTable<T> {}
// SAFETY: a shared table gives only shared references to its numbers, as a box would.
unsafe impl<T: SharedNumber + Sync> Sync for AlignedTable<T> {}

impl<T: SharedNumber> AlignedTable<T> {
    /// Makes a table of `len` numbers, on huge pages if the kernel supports them.
    ///
    /// # Panics
    /// Panics if the memory is unavailable, as [`Vec::with_capacity`] does.
    pub fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the size of the layout is not 0, because the layout has at least one number.
        let memory = unsafe { alloc(layout) };
        let Some(numbers) = NonNull::new(memory.cast::<T>()) else {
            handle_alloc_error(layout);
        };
        let uninit = NonNull::slice_from_raw_parts(numbers.cast::<MaybeUninit<T>>(), len);
        // SAFETY: the memory has space for `len` numbers, nobody else refers to it, and it may be uninitialised.
        let uninit = unsafe { &mut *uninit.as_ptr() };
        prefer_huge_pages(uninit);
        // One write for all numbers, because a loop over them takes seconds in unoptimised builds.
        // SAFETY: this is the same memory, and numbers may consist of zero bytes.
        unsafe { numbers.write_bytes(0, len) };
        Self { numbers, len }
    }

    fn layout(len: usize) -> Layout {
        let bytes = len.saturating_mul(size_of::<T>());
        let begin = if bytes < HUGE_PAGE_BYTES {
            CACHE_LINE_BYTES
        } else {
            HUGE_PAGE_BYTES
        };
        let numbers = Layout::array::<T>(len.max(1));
        match numbers.and_then(|it| it.align_to(begin)) {
            Ok(layout) => layout,
            Err(_) => panic!("no memory has {len} numbers"),
        }
    }
}

impl<T: SharedNumber> Deref for AlignedTable<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: the memory has `len` numbers, all written with zero bytes, which are valid numbers; the borrow is
        // that of `self`.
        unsafe { NonNull::slice_from_raw_parts(self.numbers, self.len).as_ref() }
    }
}

impl<T: SharedNumber> Drop for AlignedTable<T> {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and nobody borrows it any more.
        unsafe { dealloc(self.numbers.as_ptr().cast(), Self::layout(self.len)) };
    }
}

/// Returns a vector of `count` values from `make`, on huge pages if the kernel supports them. Random lookups in such a
/// vector cause fewer TLB misses.
pub fn filled_on_huge_pages<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    let mut memory = Vec::with_capacity(count);
    prefer_huge_pages(memory.spare_capacity_mut());
    memory.resize_with(count, make);
    memory
}

/// Advises the kernel to use huge pages for memory that is not written yet.
fn prefer_huge_pages<T>(memory: &mut [MaybeUninit<T>]) {
    const PAGE_BYTES: usize = 4096;
    let range = memory.as_mut_ptr_range();
    let start = range.start.addr().next_multiple_of(PAGE_BYTES);
    let bytes = (range.end.addr() & !(PAGE_BYTES - 1)).saturating_sub(start);
    if bytes > 0 {
        // SAFETY: whole pages of the slice that is borrowed here; advice does not change what is in them.
        // Kernels without huge pages refuse, which changes nothing.
        let _ = unsafe {
            madvise(
                range.start.with_addr(start).cast(),
                bytes,
                Advice::LinuxHugepage,
            )
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_zeroed_and_aligned_to_pages_or_cache_lines() {
        for (len, begin) in [
            (0, 64),
            (3, 64),
            (1 << 19, HUGE_PAGE_BYTES),
            ((1 << 20) + 1, HUGE_PAGE_BYTES),
        ] {
            let table = AlignedTable::<AtomicU32>::new(len);
            assert_eq!(table.len(), len);
            assert_eq!(table.as_ptr().addr() % begin, 0);
            assert!(
                table
                    .iter()
                    .all(|it| it.load(std::sync::atomic::Ordering::Relaxed) == 0)
            );
        }
    }

    #[test]
    fn memory_on_huge_pages_returns_the_values_written() {
        for len in [0, 1, 511, 3 << 20] {
            let mut memory = filled_on_huge_pages(len, || 7_u64);
            assert!(
                memory.len() == len && memory.iter().all(|value| *value == 7),
                "{len}"
            );
            memory.clear();
            memory.extend(0..len as u64);
            assert!(memory.iter().copied().eq(0..len as u64), "{len}");
        }
    }
}
