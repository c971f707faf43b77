//! The clock that all programs on a machine share.

use rustix::time::{ClockId, clock_gettime};

/// Returns the time of `CLOCK_MONOTONIC`, ns. All programs on a machine share this clock; its time is never 0.
pub(crate) fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
