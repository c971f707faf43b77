//! A fence for instructions: all instructions before it complete before later ones begin.

/// Waits until every instruction before this call has completed; no later instruction begins earlier.
///
/// Without this fence, an out-of-order processor overlaps some hundred cycles of a computation with the code before and
/// after it. That is useful for normal work, but not for a load whose full latency is to be measured.
#[inline(always)]
pub fn wait_for_instructions() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: LFENCE changes no memory and no register, and every x86-64 processor has it. (On AMD processors it
        // waits for all instructions too, because Linux enables that.)
        #[allow(unused_unsafe)]
        unsafe {
            core::arch::x86_64::_mm_lfence();
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        // SAFETY: a barrier changes no memory and no register and is allowed in user space.
        unsafe { core::arch::asm!("dsb nsh", "isb", options(nostack)) };
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}
