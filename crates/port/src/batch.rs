//! A batch: up to 64 packets that travel together, and who of them dropped out.

use crate::Packet;

/// Packets a batch holds at most: the bits of its drop-out masks.
pub const BATCH_CAPACITY: usize = 64;

/// Up to 64 packets in order of arrival, and two masks: dropped and punted.
///
/// A function never reorders or re-allocates a batch. It marks packets; the worker takes the marked
/// ones out once per batch, after the last function ran (drop-out batching, Gallenmüller 2021, section 5.3.1).
#[derive(Debug)]
pub struct Batch {
    packets: Vec<Packet>,
    /// Empty except inside [`Batch::settle`].
    kept: Vec<Packet>,
    dropped: u64,
    punted: u64,
    /// Packets it takes, at most its capacity.
    limit: usize,
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Batch {
    /// An empty batch; the only time it allocates.
    pub fn new() -> Self {
        Self::limited(BATCH_CAPACITY)
    }

    /// An empty batch that has room for `limit` packets (1 to [`BATCH_CAPACITY`]; others are brought
    /// into that range): how a worker takes no more than its burst from a port.
    pub fn limited(limit: usize) -> Self {
        Self {
            packets: Vec::with_capacity(BATCH_CAPACITY),
            kept: Vec::with_capacity(BATCH_CAPACITY),
            dropped: 0,
            punted: 0,
            limit: limit.clamp(1, BATCH_CAPACITY),
        }
    }

    /// Has room for `limit` packets from now on, as in [`Batch::limited`], but never for fewer than it has.
    #[inline(always)]
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit.clamp(self.packets.len().max(1), BATCH_CAPACITY);
    }

    /// Packets in the batch, marked ones included.
    #[inline(always)]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// True if there is none.
    #[inline(always)]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// How many more fit.
    #[inline(always)]
    pub fn room(&self) -> usize {
        self.limit - self.packets.len()
    }

    /// Appends a packet. A full batch drops it (ports ask [`Batch::room`] first).
    #[inline(always)]
    pub fn push(&mut self, packet: Packet) {
        debug_assert!(self.room() > 0, "pushed onto a full batch");
        let len = self.packets.len();
        if len < self.limit {
            // SAFETY: both vectors are made with a capacity no less than the limit and never shrink.
            unsafe {
                self.packets.as_mut_ptr().add(len).write(packet);
                self.packets.set_len(len + 1);
            }
        }
    }

    /// Appends what `fill` writes to the place behind the last packet, which has [`Batch::room`] packets'
    /// room; `fill` says how many they are, and so does this.
    ///
    /// # Safety
    /// `fill` must have written as many packets as it says, and no more than there is room for.
    #[cfg(dpdk)]
    #[inline(always)]
    pub(crate) unsafe fn append_with(&mut self, fill: impl FnOnce(*mut Packet) -> usize) -> usize {
        let len = self.packets.len();
        // SAFETY: the vector is made with the full capacity and never shrinks, so the place behind its
        // last packet is in it; what is appended is initialised, as the caller promises.
        unsafe {
            let n = fill(self.packets.as_mut_ptr().add(len));
            debug_assert!(n <= BATCH_CAPACITY - len);
            self.packets.set_len(len + n);
            n
        }
    }

    /// All packets in order of arrival, marked ones included.
    #[inline(always)]
    pub fn packets(&self) -> &[Packet] {
        &self.packets
    }

    /// All packets, to change in place.
    #[inline(always)]
    pub fn packets_mut(&mut self) -> &mut [Packet] {
        &mut self.packets
    }

    /// Marks packet `index` to be dropped.
    #[inline(always)]
    pub fn mark_dropped(&mut self, index: usize) {
        debug_assert!(index < self.packets.len());
        self.dropped |= 1 << (index & 63);
    }

    /// Marks packet `index` for the slow path.
    #[inline(always)]
    pub fn mark_punted(&mut self, index: usize) {
        debug_assert!(index < self.packets.len());
        self.punted |= 1 << (index & 63);
    }

    /// True if packet `index` is still on the fast path.
    #[inline(always)]
    pub fn is_kept(&self, index: usize) -> bool {
        (self.dropped | self.punted) & (1 << (index & 63)) == 0
    }

    /// True if packet `index` is marked for the slow path.
    #[inline(always)]
    pub fn is_punted(&self, index: usize) -> bool {
        self.punted & (1 << (index & 63)) != 0
    }

    /// Packets marked as dropped.
    #[inline(always)]
    pub fn dropped(&self) -> u32 {
        self.dropped.count_ones()
    }

    /// Takes the marked packets out, in order: the dropped ones give their memory back, the punted
    /// ones go to the end of `slow` as far as it has room and are dropped where it has none. Returns
    /// how many were dropped.
    #[inline]
    pub fn settle(&mut self, slow: &mut Batch) -> usize {
        if self.dropped | self.punted == 0 {
            return 0;
        }
        let mut lost = 0;
        for (index, packet) in self.packets.drain(..).enumerate() {
            let bit = 1 << index;
            if self.dropped & bit != 0 {
                lost += 1;
            } else if self.punted & bit == 0 {
                self.kept.push(packet);
            } else if slow.room() > 0 {
                slow.packets.push(packet);
            } else {
                lost += 1;
            }
        }
        std::mem::swap(&mut self.packets, &mut self.kept);
        self.dropped = 0;
        self.punted = 0;
        lost
    }

    /// Moves up to `n` packets from the front of this batch to the end of `other`, as far as it has
    /// room; returns how many.
    #[inline(always)]
    pub fn move_up_to(&mut self, n: usize, other: &mut Batch) -> usize {
        let n = n.min(self.len()).min(other.room());
        self.take_front(n, |packet| other.push(packet));
        n
    }

    /// Takes the first `n` packets out of the batch and gives them to `each`, in order: how a port takes
    /// what it sends.
    #[inline(always)]
    pub fn take_front(&mut self, n: usize, mut each: impl FnMut(Packet)) {
        let len = self.packets.len();
        let n = n.min(len);
        // SAFETY: 0 is below the capacity; should `each` panic, the packets leak instead of being
        // dropped twice.
        unsafe { self.packets.set_len(0) };
        let start = self.packets.as_mut_ptr();
        for i in 0..n {
            // SAFETY: the first `len` are initialised, and the vector no longer owns them.
            each(unsafe { start.add(i).read() });
        }
        // SAFETY: the rest is initialised, moves to the front and is owned again; `self` is borrowed
        // mutably, so `each` cannot have changed the vector.
        unsafe {
            if n < len {
                std::ptr::copy(start.add(n), start, len - n);
            }
            self.packets.set_len(len - n);
        }
    }

    /// Gives every packet's memory back.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.packets.clear();
        self.dropped = 0;
        self.punted = 0;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::PoolHandle;

    fn numbered(pool: &PoolHandle, n: u8) -> Batch {
        let mut batch = Batch::new();
        pool.fill(&mut batch, usize::from(n), 1);
        for (i, packet) in batch.packets_mut().iter_mut().enumerate() {
            packet.bytes_mut()[0] = i as u8;
        }
        batch
    }

    fn numbers(batch: &Batch) -> Vec<u8> {
        batch.packets().iter().map(|p| p.bytes()[0]).collect()
    }

    #[test]
    fn settling_keeps_the_order_of_fast_and_slow_path() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 6);
        batch.mark_dropped(0);
        batch.mark_punted(2);
        batch.mark_dropped(3);
        batch.mark_punted(3);
        batch.mark_punted(5);
        let mut slow = Batch::new();
        assert_eq!(batch.settle(&mut slow), 2);
        assert_eq!(numbers(&batch), [1, 4]);
        assert_eq!(numbers(&slow), [2, 5]);
        assert_eq!(pool.outstanding(), 4);
        assert!(batch.is_kept(0) && batch.is_kept(1));
    }

    #[test]
    fn punted_packets_without_room_are_counted_as_dropped() {
        let pool = PoolHandle::new(128, false).unwrap();
        let mut slow = numbered(&pool, 63);
        let mut batch = numbered(&pool, 2);
        batch.mark_punted(0);
        batch.mark_punted(1);
        assert_eq!(batch.settle(&mut slow), 1);
        assert_eq!(slow.len(), 64);
        assert_eq!(pool.outstanding(), 64);
    }

    #[test]
    fn a_full_batch_marks_its_last_packet() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = numbered(&pool, 64);
        batch.mark_dropped(63);
        assert_eq!(batch.settle(&mut Batch::new()), 1);
        assert_eq!(batch.len(), 63);
    }

    #[test]
    fn a_limited_batch_takes_no_more_than_its_limit() {
        let pool = PoolHandle::new(64, false).unwrap();
        let mut batch = Batch::limited(3);
        assert_eq!(pool.fill(&mut batch, 64, 1), 3);
        assert_eq!((batch.len(), batch.room()), (3, 0));
        assert_eq!(Batch::limited(0).room(), 1);
        assert_eq!(Batch::limited(1000).room(), BATCH_CAPACITY);
    }

    #[test]
    fn moving_stops_when_the_other_batch_is_full() {
        let pool = PoolHandle::new(128, false).unwrap();
        let mut a = numbered(&pool, 10);
        let mut b = numbered(&pool, 60);
        assert_eq!(a.move_up_to(9, &mut b), 4);
        assert_eq!(numbers(&a), [4, 5, 6, 7, 8, 9]);
    }
}
