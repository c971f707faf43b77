//! The only code in which ports copy a frame's bytes in user space, so that tests can count the copies.

use std::ptr::NonNull;

/// Copies a frame of `len` bytes; the ranges may overlap.
///
/// # Safety
/// `from` must be valid for reads and `to` for writes of `len` bytes.
#[inline(always)]
pub(crate) unsafe fn copy_frame(from: NonNull<u8>, to: NonNull<u8>, len: usize) {
    #[cfg(test)]
    count::one();
    // SAFETY: the caller's promise is the same.
    unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), len) };
}

/// Copies as [`copy_frame`] does, between slices of equal length.
///
/// # Panics
/// Panics if the lengths differ.
#[inline(always)]
pub(crate) fn copy_bytes(from: &[u8], to: &mut [u8]) {
    #[cfg(test)]
    count::one();
    to.copy_from_slice(from);
}

/// Copies as [`copy_frame`] does, to the end of a vector.
#[inline(always)]
pub(crate) fn append(from: &[u8], to: &mut Vec<u8>) {
    #[cfg(test)]
    count::one();
    to.extend_from_slice(from);
}

/// The copy counter for tests.
#[cfg(test)]
pub(crate) mod count {
    use std::cell::Cell;

    thread_local! {
        static COPIES: Cell<u64> = const { Cell::new(0) };
    }

    pub(super) fn one() {
        COPIES.set(COPIES.get() + 1);
    }

    /// Returns the number of frames that this thread has copied since it started.
    pub(crate) fn so_far() -> u64 {
        COPIES.get()
    }
}
