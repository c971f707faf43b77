//! Memory on transparent huge pages. (Linux, Documentation/admin-guide/mm/transhuge.rst.)

use rustix::mm::{Advice, madvise};
use std::mem::MaybeUninit;

/// `count` times `value`, written now, on huge pages where the kernel has some. What is searched at random meets fewer
/// misses of the translation cache so.
pub fn filled_on_huge_pages<T: Clone>(count: usize, value: T) -> Vec<T> {
    let mut memory = Vec::with_capacity(count);
    prefer_huge_pages(memory.spare_capacity_mut());
    memory.resize(count, value);
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
    fn memory_is_what_is_written_to_it() {
        for len in [0, 1, 511, 3 << 20] {
            let mut memory = filled_on_huge_pages(len, 7_u64);
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
