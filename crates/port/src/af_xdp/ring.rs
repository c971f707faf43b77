//! The four rings of an AF_XDP socket. Each has one producer and one consumer, one of which is the kernel. This file
//! only accesses memory, not the socket.
//!
//! The protocol is that of the kernel's `Documentation/networking/af_xdp.rst`.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The ring flag that the kernel sets while it sleeps until a system call wakes it (`XDP_RING_NEED_WAKEUP`).
const NEED_WAKEUP: u32 = 1;

/// The addresses of a ring's parts (indices, flags, entries) in mapped memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) producer: NonNull<AtomicU32>,
    pub(super) consumer: NonNull<AtomicU32>,
    pub(super) flags: NonNull<AtomicU32>,
    pub(super) entries: NonNull<u8>,
    /// Number of entries of the ring, a power of two.
    pub(super) size: u32,
}

/// A ring as used by its producer or its consumer ("this side"): the ring's memory, and local copies of both indices.
#[derive(Debug)]
struct Ring<T> {
    layout: Layout,
    entries: NonNull<T>,
    mask: u32,
    /// Index of the side (producer or consumer) that uses this value; publishing copies it to the shared index.
    ours: u32,
    /// Index of the opposite side (the kernel's), as last read from the shared memory.
    theirs: u32,
}

impl<T: Copy> Ring<T> {
    /// # Safety
    /// `layout` must meet the conditions of [`Producer::new`].
    unsafe fn new(layout: Layout) -> Self {
        debug_assert!(layout.size.is_power_of_two());
        Self {
            layout,
            entries: layout.entries.cast(),
            mask: layout.size - 1,
            ours: 0,
            theirs: 0,
        }
    }

    #[inline(always)]
    fn entry(&self, index: u32) -> NonNull<T> {
        // SAFETY: the mask keeps the index below the ring's size, and the caller of `new` guaranteed that many entries.
        unsafe { self.entries.add((index & self.mask) as usize) }
    }

    #[inline(always)]
    fn producer(&self) -> &AtomicU32 {
        // SAFETY: the caller of `new` guaranteed that the word is valid as long as the ring; it is accessed only as one
        // word.
        unsafe { self.layout.producer.as_ref() }
    }

    #[inline(always)]
    fn consumer(&self) -> &AtomicU32 {
        // SAFETY: as for `producer`.
        unsafe { self.layout.consumer.as_ref() }
    }
}

/// The producer side of the rings that this process fills: `fill` and `tx`.
#[derive(Debug)]
pub(super) struct Producer<T>(Ring<T>);

impl<T: Copy> Producer<T> {
    /// # Safety
    /// The parts of `layout` must be valid and aligned for as long as the ring is used. Its entries must be `size`
    /// values of `T`, and every bit pattern must be a valid `T`. Both indices must be 0, and nothing else in this
    /// process may act as the producer or consumer that this value represents.
    pub(super) unsafe fn new(layout: Layout) -> Self {
        // SAFETY: the caller guarantees the same conditions.
        Self(unsafe { Ring::new(layout) })
    }

    /// Returns the number of entries that can be pushed now.
    #[inline(always)]
    pub(super) fn room(&mut self) -> u32 {
        // Acquire: the consumer has read the entries before we overwrite them.
        self.0.theirs = self.0.consumer().load(Ordering::Acquire);
        (self.0.mask + 1).saturating_sub(self.0.ours.wrapping_sub(self.0.theirs))
    }

    /// Writes the next entry, which is invisible until [`Producer::publish`]. The ring must not be full.
    #[inline(always)]
    pub(super) fn push(&mut self, value: T) {
        debug_assert!(self.0.ours.wrapping_sub(self.0.theirs) <= self.0.mask);
        // SAFETY: the entry is in the ring, and the consumer does not read it before `publish`.
        unsafe { self.0.entry(self.0.ours).write(value) };
        self.0.ours = self.0.ours.wrapping_add(1);
    }

    /// Publishes the pushed entries to the consumer.
    #[inline(always)]
    pub(super) fn publish(&mut self) {
        // Release: the entries are written before the index that covers them.
        self.0.producer().store(self.0.ours, Ordering::Release);
    }

    /// Returns the number of published entries that the consumer has not taken.
    #[inline(always)]
    pub(super) fn waiting(&self) -> u32 {
        let taken = self.0.consumer().load(Ordering::Relaxed);
        self.0.ours.wrapping_sub(taken)
    }

    /// Returns true if the kernel checks the ring only after a system call.
    #[inline(always)]
    pub(super) fn needs_wakeup(&self) -> bool {
        // SAFETY: as for `Ring::producer`.
        let flags = unsafe { self.0.layout.flags.as_ref() };
        flags.load(Ordering::Relaxed) & NEED_WAKEUP != 0
    }
}

/// The consumer side of the rings that the kernel fills: `rx` and `completion`.
#[derive(Debug)]
pub(super) struct Consumer<T>(Ring<T>);

impl<T: Copy> Consumer<T> {
    /// # Safety
    /// `layout` must meet the conditions of [`Producer::new`].
    pub(super) unsafe fn new(layout: Layout) -> Self {
        // SAFETY: the caller guarantees the same conditions.
        Self(unsafe { Ring::new(layout) })
    }

    /// Returns true if the ring has no entries.
    #[inline(always)]
    pub(super) fn is_empty(&self) -> bool {
        // Relaxed: `next` loads the index again before it reads an entry.
        self.0.ours == self.0.producer().load(Ordering::Relaxed)
    }

    /// Takes the next entry; None if the ring is empty. The entry's slot returns to the producer with
    /// [`Consumer::release`].
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<T> {
        if self.0.ours == self.0.theirs {
            // Acquire: the entries are written before the index that covers them.
            self.0.theirs = self.0.producer().load(Ordering::Acquire);
            if self.0.ours == self.0.theirs {
                return None;
            }
        }
        // SAFETY: the entry is in the ring, and the producer does not write it before `release`.
        let value = unsafe { self.0.entry(self.0.ours).read() };
        self.0.ours = self.0.ours.wrapping_add(1);
        Some(value)
    }

    /// Returns the slots of taken entries to the producer.
    #[inline(always)]
    pub(super) fn release(&mut self) {
        // Release: we have read the entries before the producer overwrites them.
        self.0.consumer().store(self.0.ours, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// A ring on the heap; the tests use both sides of it.
    struct Heap {
        words: [AtomicU32; 3],
        entries: Vec<u64>,
    }

    impl Heap {
        fn new(size: usize) -> Box<Self> {
            Box::new(Self {
                words: [const { AtomicU32::new(0) }; 3],
                entries: vec![0; size],
            })
        }

        fn layout(&mut self) -> Layout {
            let [producer, consumer, flags] = &self.words;
            Layout {
                producer: NonNull::from(producer),
                consumer: NonNull::from(consumer),
                flags: NonNull::from(flags),
                entries: NonNull::new(self.entries.as_mut_ptr().cast()).unwrap(),
                size: self.entries.len() as u32,
            }
        }
    }

    #[test]
    fn unpublished_entries_are_invisible_to_the_consumer() {
        let mut heap = Heap::new(4);
        let layout = heap.layout();
        // SAFETY: the heap outlives both ends.
        let (mut producer, mut consumer) =
            unsafe { (Producer::<u64>::new(layout), Consumer::<u64>::new(layout)) };
        producer.push(7);
        assert_eq!(consumer.next(), None);
        producer.publish();
        assert_eq!((producer.waiting(), consumer.next()), (1, Some(7)));
        assert_eq!(producer.room(), 3);
        consumer.release();
        assert_eq!((producer.waiting(), producer.room()), (0, 4));
    }

    #[test]
    fn the_producer_reads_the_wakeup_flag_of_the_kernel() {
        let mut heap = Heap::new(4);
        let layout = heap.layout();
        // SAFETY: the heap outlives the ring and the reference.
        let (producer, flags) = unsafe { (Producer::<u64>::new(layout), layout.flags.as_ref()) };
        assert!(!producer.needs_wakeup());
        flags.store(NEED_WAKEUP, Ordering::Relaxed);
        assert!(producer.needs_wakeup());
    }

    proptest! {
        /// For any order of calls, and any index where it wraps, every published entry arrives once and in order. The
        /// ring never accepts more entries than it has slots.
        #[test]
        fn published_entries_are_received_exactly_once_and_in_order(
            start in prop_oneof![Just(0u32), Just(u32::MAX - 5), any::<u32>()],
            steps in proptest::collection::vec((0u8..4, 1u32..9), 1..200),
        ) {
            let mut heap = Heap::new(8);
            heap.words[0].store(start, Ordering::Relaxed);
            heap.words[1].store(start, Ordering::Relaxed);
            let layout = heap.layout();
            // SAFETY: the heap outlives both ends.
            let (mut producer, mut consumer) =
                unsafe { (Producer::<u64>::new(layout), Consumer::<u64>::new(layout)) };
            for ring in [&mut producer.0, &mut consumer.0] {
                (ring.ours, ring.theirs) = (start, start);
            }
            let (mut pushed, mut published, mut seen, mut released) = (0u64, 0u64, 0u64, 0u64);
            for (step, n) in steps {
                match step {
                    0 => {
                        let room = producer.room();
                        prop_assert_eq!(u64::from(room), 8 - (pushed - released));
                        for _ in 0..n.min(room) {
                            producer.push(pushed);
                            pushed += 1;
                        }
                    }
                    1 => {
                        producer.publish();
                        published = pushed;
                    }
                    2 => {
                        for _ in 0..n {
                            let Some(value) = consumer.next() else {
                                prop_assert_eq!(seen, published);
                                break;
                            };
                            prop_assert_eq!(value, seen);
                            seen += 1;
                        }
                    }
                    _ => {
                        consumer.release();
                        released = seen;
                    }
                }
            }
        }
    }
}
