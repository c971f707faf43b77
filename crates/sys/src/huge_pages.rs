//! Memory on transparent huge pages. (Linux, Documentation/admin-guide/mm/transhuge.rst.)

use rustix::mm::{Advice, madvise};
use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32};

const HUGE_PAGE_BYTES: usize = 2 << 20;
const CACHE_LINE_BYTES: usize = 64;

/// A number that is 0 where all its bytes are.
///
/// # Safety
/// Bytes of 0 are a valid value of it, which needs not be dropped.
pub unsafe trait SharedNumber {}

// SAFETY: an integer.
unsafe impl SharedNumber for AtomicU16 {}
// SAFETY: an integer.
unsafe impl SharedNumber for AtomicU32 {}

/// A table of numbers, 0 at first, that begins with a huge page, or if it is smaller with a cache line.
#[derive(Debug)]
pub struct AlignedTable<T: SharedNumber> {
    numbers: NonNull<T>,
    len: usize,
}

// SAFETY: it owns its numbers, as a box would.
unsafe impl<T: SharedNumber + Send> Send for AlignedTable<T> {}
// SAFETY: it lends its numbers, as a box would.
unsafe impl<T: SharedNumber + Sync> Sync for AlignedTable<T> {}

impl<T: SharedNumber> AlignedTable<T> {
    /// Makes a table of so many numbers, on huge pages where the kernel has some.
    ///
    /// # Panics
    /// If there is no such memory, as [`Vec::with_capacity`] does.
    pub fn new(len: usize) -> Self {
        let layout = Self::layout(len);
        // SAFETY: the layout has a size, as at least one number is asked for.
        let memory = unsafe { alloc(layout) };
        let Some(numbers) = NonNull::new(memory.cast::<T>()) else {
            handle_alloc_error(layout);
        };
        let uninit = NonNull::slice_from_raw_parts(numbers.cast::<MaybeUninit<T>>(), len);
        // SAFETY: memory for so many numbers that nobody else knows, and that may hold anything.
        let uninit = unsafe { &mut *uninit.as_ptr() };
        prefer_huge_pages(uninit);
        // At once: number by number takes seconds where nothing is optimised.
        // SAFETY: the same memory, whose numbers may be bytes of 0.
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
        // SAFETY: so many numbers lie there, all written with bytes of 0, which they may be; they are borrowed from this.
        unsafe { NonNull::slice_from_raw_parts(self.numbers, self.len).as_ref() }
    }
}

impl<T: SharedNumber> Drop for AlignedTable<T> {
    fn drop(&mut self) {
        // SAFETY: the memory that was taken with this layout; nobody borrows it any more.
        unsafe { dealloc(self.numbers.as_ptr().cast(), Self::layout(self.len)) };
    }
}

/// `count` times what `make` makes, written now, on huge pages where the kernel has some. What is searched at random meets fewer
/// misses of the translation cache so.
pub fn filled_on_huge_pages<T>(count: usize, make: impl FnMut() -> T) -> Vec<T> {
    let mut memory = Vec::with_capacity(count);
    prefer_huge_pages(memory.spare_capacity_mut());
    memory.resize_with(count, make);
    memory
}

/// Asks the kernel to lay memory that nobody has written yet on huge pages.
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
    fn a_table_is_0_and_begins_where_a_page_or_a_cache_line_does() {
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
    fn memory_is_what_is_written_to_it() {
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
