//! A ring of equal slots for one direction of a pair, with one sender and one receiver, on one or two threads.
//!
//! Indices run freely. The sender writes `head`, the index after the last filled slot. The receiver writes `tail`, the
//! index after the last emptied slot. The receiver may return slots in any order; the tail moves past successive
//! returned slots.

use crate::PortError;
use crate::frame_copy::copy_frame;
use crate::pool::HEADROOM_BYTES;
use std::ptr::NonNull;
use std::sync::Arc;
use taut_sys::Mapping;

// Tests of every interleaving (`./run miri`) use loom's types.
#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
#[cfg(not(loom))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// The size of a slot in bytes: as in packet pools, an odd number of cache lines.
const STRIDE_BYTES: usize = 2112;

/// The length in bytes of the longest frame that fits into a slot.
pub(super) const ROOM_BYTES: usize = STRIDE_BYTES - HEADROOM_BYTES as usize;

/// The number of bits of a frame's length; the sender's note has the remaining bits of a slot's first word.
const LENGTH_BITS: u32 = 12;
const _: () = assert!(ROOM_BYTES < 1 << LENGTH_BITS);

/// An index on two cache lines of its own, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Index(AtomicU32);

/// The memory of a ring and its indices, which sender and receiver share.
#[derive(Debug)]
pub(super) struct Ring {
    slots: Mapping,
    /// First word of each slot: the length of the frame in the lowest [`LENGTH_BITS`], and the sender's note above.
    heads: Box<[AtomicU64]>,
    head: Index,
    tail: Index,
}

// SAFETY: indices and lengths are atomic; the bytes of a slot belong to one side at a time, which the indices
// determine.
unsafe impl Sync for Ring {}

impl Ring {
    /// Makes a ring of `slots` slots, a power of two.
    pub(super) fn new(slots: u32) -> Result<Self, PortError> {
        debug_assert!(slots.is_power_of_two());
        Ok(Self {
            slots: Mapping::create("taut-pair", slots as usize * STRIDE_BYTES)?,
            heads: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            head: Index::default(),
            tail: Index::default(),
        })
    }

    pub(super) fn size(&self) -> u32 {
        self.heads.len() as u32
    }

    #[inline(always)]
    fn place(&self, index: u32) -> usize {
        index as usize & (self.heads.len() - 1)
    }

    /// Returns the start of the frame in a slot.
    #[inline(always)]
    fn data(&self, place: usize) -> NonNull<u8> {
        debug_assert!(place < self.heads.len());
        // SAFETY: the mapping has space for every slot index below the ring's size, and for the headroom of each slot.
        unsafe {
            self.slots
                .base()
                .add(place * STRIDE_BYTES + usize::from(HEADROOM_BYTES))
        }
    }
}

/// The sending side of a ring.
#[derive(Debug)]
pub(super) struct Sender {
    ring: Arc<Ring>,
    /// Index after the last filled slot.
    head: u32,
    /// Index after the last emptied slot, as last loaded from the receiver's shared index.
    tail: u32,
}

impl Sender {
    /// # Safety
    /// The ring must have no other sender during its lifetime.
    pub(super) unsafe fn new(ring: Arc<Ring>) -> Self {
        Self {
            ring,
            head: 0,
            tail: 0,
        }
    }

    /// Copies `frame` (at most [`ROOM_BYTES`]) with a note of 52 bits into the next slot. The receiver sees it after
    /// [`Sender::publish`]. Returns false if no slot is free.
    #[inline(always)]
    pub(super) fn push(&mut self, frame: &[u8], note: u64) -> bool {
        debug_assert!(frame.len() <= ROOM_BYTES);
        let ring = &*self.ring;
        if self.head.wrapping_sub(self.tail) == ring.size() {
            // Acquire: the receiver has finished with the slots before we overwrite them.
            self.tail = ring.tail.0.load(Ordering::Acquire);
            if self.head.wrapping_sub(self.tail) == ring.size() {
                return false;
            }
        }
        if frame.len() > ROOM_BYTES {
            return false;
        }
        let place = ring.place(self.head);
        // Relaxed: the release of the head in `publish` also publishes this word.
        ring.heads[place].store(note << LENGTH_BITS | frame.len() as u64, Ordering::Relaxed);
        // SAFETY: the slot is free, so ours alone; the frame fits into it.
        unsafe { copy_frame(NonNull::from(frame).cast(), ring.data(place), frame.len()) };
        self.head = self.head.wrapping_add(1);
        true
    }

    /// Publishes the pushed frames to the receiver.
    #[inline(always)]
    pub(super) fn publish(&self) {
        // Release: lengths and bytes are written before the head covers them.
        self.ring.head.0.store(self.head, Ordering::Release);
    }
}

/// A frame that has arrived; the receiver owns it until [`Receiver::give_back`].
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) place: u32,
    pub(super) data: NonNull<u8>,
    pub(super) len: u16,
    pub(super) note: u64,
}

/// The receiving side of a ring.
#[derive(Debug)]
pub(super) struct Receiver {
    ring: Arc<Ring>,
    /// Index after the last received slot.
    next: u32,
    /// Index after the last filled slot, as last loaded from the sender's shared index.
    head: u32,
    /// Index up to which all slots have been returned.
    tail: u32,
    /// For each slot, true if it was returned out of order and waits for earlier slots.
    done: Box<[bool]>,
}

impl Receiver {
    /// # Safety
    /// The ring must have no other receiver during its lifetime.
    pub(super) unsafe fn new(ring: Arc<Ring>) -> Self {
        let done = vec![false; ring.heads.len()].into();
        Self {
            ring,
            next: 0,
            head: 0,
            tail: 0,
            done,
        }
    }

    /// Takes the next frame that has arrived; None if there is none.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Arrived> {
        if self.is_empty() {
            return None;
        }
        let ring = &*self.ring;
        let place = ring.place(self.next);
        self.next = self.next.wrapping_add(1);
        let head = ring.heads[place].load(Ordering::Relaxed);
        Some(Arrived {
            place: place as u32,
            data: ring.data(place),
            len: (head & ((1 << LENGTH_BITS) - 1)) as u16,
            note: head >> LENGTH_BITS,
        })
    }

    /// Returns true if no received frame is waiting.
    #[inline(always)]
    pub(super) fn is_empty(&mut self) -> bool {
        if self.next == self.head {
            // Acquire: the sender wrote lengths and bytes before it published this head.
            self.head = self.ring.head.0.load(Ordering::Acquire);
        }
        self.next == self.head
    }

    /// Returns a slot to the sender, which can fill it after [`Receiver::publish`].
    #[inline(always)]
    pub(super) fn give_back(&mut self, place: u32) {
        let place = place as usize;
        if place != self.ring.place(self.tail) {
            self.done[place] = true;
            return;
        }
        self.tail = self.tail.wrapping_add(1);
        while std::mem::take(&mut self.done[self.ring.place(self.tail)]) {
            self.tail = self.tail.wrapping_add(1);
        }
    }

    /// Publishes the returned slots to the sender.
    #[inline(always)]
    pub(super) fn publish(&self) {
        // Release: this side's last reads and writes of the slots come before the tail that frees them.
        self.ring.tail.0.store(self.tail, Ordering::Release);
    }
}

/// Tests of every interleaving of a few steps: `./run miri`.
#[cfg(all(test, loom))]
mod interleavings {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use loom::thread;

    /// Lengths and notes of frames reach the receiver complete and in order. (Miri tests that a slot is not filled
    /// before its last reader has finished: loom does not model late reads.)
    #[test]
    fn published_frames_are_received_complete_and_in_order() {
        let mut all = loom::model::Builder::new();
        all.preemption_bound = Some(3);
        all.check(|| {
            let ring = Arc::new(Ring::new(2).unwrap());
            // SAFETY: the ring gets one sender and one receiver.
            let (mut sender, mut receiver) = unsafe {
                (
                    Sender::new(Arc::clone(&ring)),
                    Receiver::new(Arc::clone(&ring)),
                )
            };
            let sending = thread::spawn(move || {
                let mut sent = 0;
                for number in 1..=3_u64 {
                    if !sender.push(&[0; 8][..number as usize], number) {
                        break;
                    }
                    sender.publish();
                    sent += 1;
                }
                sent
            });
            let mut seen = 0;
            for _ in 0..2 {
                let Some(arrived) = receiver.next() else {
                    continue;
                };
                seen += 1;
                assert_eq!((u64::from(arrived.len), arrived.note), (seen, seen));
                receiver.give_back(arrived.place);
                receiver.publish();
            }
            let sent = sending.join().unwrap();
            while let Some(arrived) = receiver.next() {
                seen += 1;
                assert_eq!(arrived.note, seen);
            }
            assert_eq!(sent, seen);
        });
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn ends(slots: u32) -> (Sender, Receiver) {
        let ring = Arc::new(Ring::new(slots).unwrap());
        // SAFETY: the ring gets one sender and one receiver.
        unsafe { (Sender::new(Arc::clone(&ring)), Receiver::new(ring)) }
    }

    fn bytes(arrived: &Arrived) -> Vec<u8> {
        // SAFETY: the tests pass only frames that they have not returned yet.
        unsafe { std::slice::from_raw_parts(arrived.data.as_ptr(), arrived.len.into()) }.to_vec()
    }

    /// Tests all sizes of a ring, and indices near the wrap-around. Run under Miri this also checks the memory
    /// orderings.
    #[test]
    fn ring_accesses_stay_in_bounds_for_any_index() {
        // Miri takes a thousand times as long, so it tests fewer indices.
        let indices = if cfg!(miri) { 1 << 7 } else { 1 << 16 };
        for log2_size in 5..=14 {
            let ring = Ring::new(1 << log2_size).unwrap();
            let end = (ring.size() as usize - 1) * STRIDE_BYTES + usize::from(HEADROOM_BYTES);
            let first = ring.data(0).as_ptr() as usize - usize::from(HEADROOM_BYTES);
            for index in (0..indices).chain(u32::MAX - indices..=u32::MAX) {
                let place = ring.place(index);
                assert!(place < ring.size() as usize);
                assert!(ring.data(place).as_ptr() as usize - first <= end);
            }
        }
    }

    #[test]
    fn frames_pass_between_two_threads_complete_and_in_order() {
        let total: u32 = if cfg!(miri) { 200 } else { 20_000 };
        let (mut sender, mut receiver) = ends(8);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut n = 0_u32;
                while n < total {
                    if sender.push(
                        &n.to_le_bytes().repeat(1 + n as usize % 16),
                        u64::from(n) << 16,
                    ) {
                        n += 1;
                    } else {
                        std::thread::yield_now();
                    }
                    sender.publish();
                }
            });
            let (mut n, mut held) = (0_u32, Vec::new());
            while n < total {
                let Some(arrived) = receiver.next() else {
                    held.drain(..).for_each(|place| receiver.give_back(place));
                    receiver.publish();
                    std::thread::yield_now();
                    continue;
                };
                assert_eq!(bytes(&arrived), n.to_le_bytes().repeat(1 + n as usize % 16));
                assert_eq!(arrived.note, u64::from(n) << 16);
                held.push(arrived.place);
                n += 1;
                if held.len() == 3 {
                    // The slots are returned out of order.
                    held.swap(0, 2);
                    held.drain(..).for_each(|place| receiver.give_back(place));
                    receiver.publish();
                }
            }
        });
    }

    #[test]
    fn frames_pass_correctly_while_ring_indices_wrap() {
        let (mut sender, mut receiver) = ends(4);
        let start = u32::MAX - 5;
        (sender.head, sender.tail) = (start, start);
        (receiver.next, receiver.head, receiver.tail) = (start, start, start);
        sender.publish();
        receiver.publish();
        for n in 0..20_u8 {
            assert!(sender.push(&[n], 0));
            sender.publish();
            let arrived = receiver.next().unwrap();
            assert_eq!(bytes(&arrived), [n]);
            receiver.give_back(arrived.place);
            receiver.publish();
        }
    }

    proptest! {
        /// For any order of sends, receives and returns, no frame is lost, duplicated or reordered, or overwritten
        /// before it is returned.
        #[test]
        fn every_frame_is_received_exactly_once_and_in_order(steps in proptest::collection::vec((0_u8..3, any::<u8>()), 1..300)) {
            let (mut sender, mut receiver) = ends(8);
            let (mut sent, mut seen) = (0_u8, 0_u8);
            let mut held: Vec<(Arrived, u8)> = Vec::new();
            for (step, pick) in steps {
                match step {
                    0 => {
                        let pushed = sender.push(&[sent; 40], 0);
                        // Slots are free if they are neither in flight nor after a slot that is still in use.
                        let oldest = held.iter().map(|(_, n)| seen.wrapping_sub(*n)).max().unwrap_or(0);
                        prop_assert_eq!(pushed, sent.wrapping_sub(seen) + oldest < 8);
                        sent = sent.wrapping_add(u8::from(pushed));
                        sender.publish();
                    }
                    1 => {
                        if let Some(arrived) = receiver.next() {
                            prop_assert!(bytes(&arrived) == [seen; 40]);
                            held.push((arrived, seen));
                            seen = seen.wrapping_add(1);
                        } else {
                            prop_assert_eq!(sent, seen);
                        }
                    }
                    _ if !held.is_empty() => {
                        let (arrived, _) = held.swap_remove(usize::from(pick) % held.len());
                        receiver.give_back(arrived.place);
                        receiver.publish();
                    }
                    _ => {}
                }
                for (arrived, n) in &held {
                    prop_assert!(bytes(arrived) == [*n; 40]);
                }
            }
        }
    }
}
