//! Prefetching of cache lines that will be read soon.

/// Prefetches the cache line in which `place` begins, without waiting. Lookups for many packets prefetch in one step
/// the lines that they read in the next step.
#[inline(always)]
pub fn prefetch<T>(place: &T) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch reads nothing that the program sees, and faults at no address.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(any(not(target_arch = "x86_64"), miri))]
    let _ = place;
}
