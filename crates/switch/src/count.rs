//! The counters of packets and bytes.

use std::sync::atomic::{AtomicU64, Ordering};

/// The packets and bytes of a rule, bucket, group, meter or port, and the time of the last packet, in ticks. Each
/// counter has only one writer, and never crosses a cache line.
#[derive(Debug, Default)]
#[repr(align(32))]
pub(super) struct Count {
    pub packets: AtomicU64,
    pub bytes: AtomicU64,
    pub used_ticks: AtomicU64,
}

impl Count {
    pub fn read(&self) -> (u64, u64) {
        // Relaxed: the numbers are statistics.
        (
            self.packets.load(Ordering::Relaxed),
            self.bytes.load(Ordering::Relaxed),
        )
    }

    pub fn clear(&self) {
        self.packets.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
    }

    /// Counts a packet of `bytes` bytes.
    #[inline(always)]
    pub fn add(&self, bytes: usize, now_ticks: u64) {
        self.add_some(1, bytes as u64, now_ticks);
    }

    /// Counts several packets, which have `bytes` bytes together.
    #[inline(always)]
    pub fn add_some(&self, packets: u64, bytes: u64, now_ticks: u64) {
        more(&self.packets, packets);
        more(&self.bytes, bytes);
        self.used_ticks.store(now_ticks, Ordering::Relaxed);
    }
}

/// Adds `by` to a counter that has only one writer, without an atomic read-modify-write.
#[inline(always)]
pub(super) fn more(count: &AtomicU64, by: u64) {
    // Relaxed: the number is a statistic.
    count.store(
        count.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}
