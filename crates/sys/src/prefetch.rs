//! Telling the processor what will be read soon.

/// Has the processor bring the cache line in which `place` begins, and does not wait for it. For look-ups of many packets at once, each
/// of which would wait for memory: what is asked for in one step is there in the next one.
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
