//! Keeps the processor from running ahead: what stands before is done before what stands behind begins.

/// Waits until every instruction before this call is done; none behind it begins earlier.
///
/// An out-of-order processor otherwise hides some hundred cycles of a computation behind its
/// neighbours, which is what one wants of work and not of a load that is to be felt in full.
#[inline(always)]
pub fn wait_for_instructions() {
    #[cfg(target_arch = "x86_64")]
    {
        // SAFETY: LFENCE changes no memory and no register, and every x86-64 processor has it. (AMD's
        // wait for all instructions too, since Linux switches that on.)
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
