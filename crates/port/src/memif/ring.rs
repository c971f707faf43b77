//! A memif ring in shared memory: two indices and the descriptors, on separate cache lines.
//!
//! Indices run freely (they wrap at 2^16, not at the ring's size), and each has one writer: the client writes `head`,
//! the server `tail`. Each index is the position after the last descriptor that its writer has processed. From client
//! to server, `head` follows the filled descriptors and `tail` the emptied ones. From server to client, `head` follows
//! the offered empty buffers and `tail` the filled ones.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering, fence};

/// The first word of every initialised memif ring.
pub const COOKIE: u32 = 0x03E3_1F20;

/// The ring flag of a receiver that polls and must not be interrupted.
pub const FLAG_MASK_INTERRUPT: u16 = 1;

/// The descriptor flag of a buffer whose frame continues in the next descriptor.
pub const FLAG_NEXT: u16 = 1;

/// The minimum ring size, as a power of two.
pub const MIN_LOG2_RING_SIZE: u8 = 5;

/// The maximum ring size, as a power of two (DPDK's limit too).
pub const MAX_LOG2_RING_SIZE: u8 = 14;

#[repr(C, align(64))]
struct Header {
    cookie: AtomicU32,
    flags: AtomicU16,
    head: AtomicU16,
    _to_next_line: [u8; 56],
    tail: AtomicU16,
    _to_descriptors: [u8; 62],
}

/// A descriptor of a buffer, as client and server pass it to each other through a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Descriptor {
    /// Flags: [`FLAG_NEXT`] or 0.
    pub flags: u16,
    /// Index of the memory region that contains the buffer.
    pub region: u16,
    /// Length of the frame in a filled buffer, or of an empty buffer, bytes.
    pub length: u32,
    /// Offset of the buffer in the region, bytes.
    pub offset: u32,
}

/// A memif ring that taut may use. The module documentation says whether client or server writes an index.
#[derive(Debug, Clone, Copy)]
pub struct Ring {
    header: NonNull<Header>,
    log2_size: u8,
}

impl Ring {
    /// Returns the size of a ring of `1 << log2_size` descriptors, bytes.
    pub const fn bytes(log2_size: u8) -> usize {
        size_of::<Header>() + (16 << log2_size)
    }

    /// Returns the number of descriptors by which the peer has advanced its index from `seen` to `now`. None if the
    /// peer moved it back, or forward by more than `most`.
    #[inline(always)]
    pub fn advance(now: u16, seen: u16, most: u16) -> Option<u16> {
        let by = now.wrapping_sub(seen);
        (by <= most).then_some(by)
    }

    /// Returns the ring at `memory`.
    ///
    /// # Safety
    /// `memory` must be 64-byte aligned and valid for [`Ring::bytes`] for as long as this value or a copy of it is
    /// used. The range may be accessed only through atomics or as a ring.
    pub unsafe fn at(memory: NonNull<u8>, log2_size: u8) -> Self {
        debug_assert!(log2_size <= MAX_LOG2_RING_SIZE);
        Self {
            header: memory.cast(),
            log2_size,
        }
    }

    #[inline(always)]
    fn header(&self) -> &Header {
        // SAFETY: the caller of `at` guaranteed that the memory is valid; every field is atomic, so a shared reference
        // is sound even while the peer writes.
        unsafe { self.header.as_ref() }
    }

    /// Returns the number of descriptors.
    #[inline(always)]
    pub fn size(&self) -> u16 {
        1 << self.log2_size
    }

    /// Returns the position of a free-running index in the ring.
    #[inline(always)]
    pub fn place(&self, index: u16) -> usize {
        usize::from(index & (self.size() - 1))
    }

    /// Initialises an empty ring. The client does so before it announces the ring to the server.
    pub fn initialise(&self) {
        let header = self.header();
        header.flags.store(0, Ordering::Relaxed);
        header.head.store(0, Ordering::Relaxed);
        header.tail.store(0, Ordering::Relaxed);
        header.cookie.store(COOKIE, Ordering::Release);
    }

    /// Returns true if the ring is initialised.
    pub fn has_cookie(&self) -> bool {
        self.header().cookie.load(Ordering::Acquire) == COOKIE
    }

    /// Requests no interrupts from the sender, because taut polls.
    pub fn mask_interrupts(&self) {
        self.header()
            .flags
            .fetch_or(FLAG_MASK_INTERRUPT, Ordering::Relaxed);
    }

    /// Requests interrupts from the sender for packets sent from now on, because taut will sleep. Packets sent at the
    /// same time may not cause an interrupt, so the caller must check the ring after this.
    pub fn unmask_interrupts(&self) {
        self.header()
            .flags
            .fetch_and(!FLAG_MASK_INTERRUPT, Ordering::Relaxed);
        // Pairs with the fence in `Wakes::asked`: the sender sees the flag, or this side sees its packets.
        fence(Ordering::SeqCst);
    }

    /// Returns true if the receiver sleeps and requests wakeups through the ring's interrupt file.
    #[inline(always)]
    pub fn wants_interrupt(&self) -> bool {
        self.header().flags.load(Ordering::Relaxed) & FLAG_MASK_INTERRUPT == 0
    }

    /// Loads the head for its reader, which then also sees everything that the writer wrote before it.
    #[inline(always)]
    pub fn head(&self) -> u16 {
        self.header().head.load(Ordering::Acquire)
    }

    /// Loads the tail for its reader, which then also sees everything that the writer wrote before it.
    #[inline(always)]
    pub fn tail(&self) -> u16 {
        self.header().tail.load(Ordering::Acquire)
    }

    /// Publishes the head as its writer: descriptors and frame bytes written before become visible to the peer first.
    #[inline(always)]
    pub fn publish_head(&self, head: u16) {
        self.header().head.store(head, Ordering::Release);
    }

    /// Publishes the tail as its writer: earlier writes and reads of frame bytes complete first.
    #[inline(always)]
    pub fn publish_tail(&self, tail: u16) {
        self.header().tail.store(tail, Ordering::Release);
    }

    /// Returns the two 64-bit words of the descriptor at `index`.
    #[inline(always)]
    fn words(&self, index: u16) -> &[AtomicU64; 2] {
        // SAFETY: `place` is below the ring's size. The descriptors start right after the header, so they are 16-byte
        // aligned and inside the memory that the caller of `at` guaranteed to be valid.
        unsafe {
            self.header
                .add(1)
                .cast::<[AtomicU64; 2]>()
                .add(self.place(index))
                .as_ref()
        }
    }

    /// Copies the descriptor at `index` out of the shared memory, once, so that the peer cannot change the values
    /// between check and use. The loads are relaxed, because the index that covers the descriptor was loaded with
    /// acquire.
    #[inline(always)]
    pub fn read(&self, index: u16) -> Descriptor {
        let [low, high] = self.words(index);
        let (low, high) = (low.load(Ordering::Relaxed), high.load(Ordering::Relaxed));
        Descriptor {
            flags: low as u16,
            region: (low >> 16) as u16,
            length: (low >> 32) as u32,
            offset: high as u32,
        }
    }

    /// Writes the descriptor at `index`; the peer sees it after the next publication of an index.
    #[inline(always)]
    pub fn write(&self, index: u16, d: Descriptor) {
        let [low, high] = self.words(index);
        low.store(first_word(d), Ordering::Relaxed);
        high.store(u64::from(d.offset), Ordering::Relaxed);
    }

    /// Writes the flags, region and length of the descriptor at `index`, and keeps the offset that the peer wrote
    /// there.
    #[inline(always)]
    pub fn write_length(&self, index: u16, d: Descriptor) {
        self.words(index)[0].store(first_word(d), Ordering::Relaxed);
    }
}

#[inline(always)]
fn first_word(d: Descriptor) -> u64 {
    u64::from(d.flags) | u64::from(d.region) << 16 | u64::from(d.length) << 32
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The memory of a ring on the heap, so that Miri can check it.
    pub(crate) struct HeapRing(Vec<Line>, pub(crate) u8);

    #[repr(align(64))]
    #[derive(Clone)]
    struct Line(#[allow(dead_code)] [u8; 64]);

    impl HeapRing {
        pub(crate) fn new(log2_size: u8) -> Self {
            let ring = Self(
                vec![Line([0; 64]); Ring::bytes(log2_size).div_ceil(64)],
                log2_size,
            );
            ring.ring().initialise();
            ring
        }

        pub(crate) fn ring(&self) -> Ring {
            let memory = NonNull::new(self.0.as_ptr().cast_mut().cast::<u8>()).unwrap();
            // SAFETY: aligned by `Line`, sized in `new`, and only used as a ring while `self` lives.
            unsafe { Ring::at(memory, self.1) }
        }
    }

    /// A copy of a ring for the second thread of a test. The memory of the ring exists until both threads have ended.
    struct Other(Ring);
    // SAFETY: every access to a ring is atomic.
    unsafe impl Send for Other {}

    /// Tests all indices, in rings of all sizes, and all changes of an index near the wrap-around.
    #[test]
    fn ring_accesses_stay_in_bounds_for_any_peer_index() {
        // Miri takes a thousand times as long, so it tests only some of the indices, with the last one among them.
        let indices = || (0..=u16::MAX).step_by(if cfg!(miri) { 771 } else { 1 });
        for log2_size in MIN_LOG2_RING_SIZE..=MAX_LOG2_RING_SIZE {
            let heap = HeapRing::new(log2_size);
            let (ring, bytes) = (heap.ring(), Ring::bytes(log2_size));
            let start = std::ptr::from_ref(ring.header()) as usize;
            for index in indices() {
                assert!(ring.place(index) < usize::from(ring.size()));
                let words = std::ptr::from_ref(ring.words(index)) as usize;
                assert!(words - start >= size_of::<Header>());
                assert!(words - start + 16 <= bytes);
            }
        }
        for seen in [0, 1, 31, 0x7fff, 0x8000, 0xfffe, 0xffff] {
            for most in [0, 1, 31, 32, 1 << 14] {
                for now in indices() {
                    let by = (u32::from(now) + 0x1_0000 - u32::from(seen)) % 0x1_0000;
                    let may = by <= u32::from(most);
                    assert_eq!(Ring::advance(now, seen, most), may.then_some(by as u16));
                }
            }
        }
    }

    #[test]
    fn ring_headers_and_descriptors_have_the_layout_of_the_protocol() {
        assert_eq!(size_of::<Header>(), 128);
        assert_eq!(std::mem::offset_of!(Header, flags), 4);
        assert_eq!(std::mem::offset_of!(Header, head), 6);
        assert_eq!(std::mem::offset_of!(Header, tail), 64);
        let heap = HeapRing::new(2);
        let d = Descriptor {
            flags: 1,
            region: 2,
            length: 0x0304_0506,
            offset: 0x0708_090A,
        };
        heap.ring().write(5, d);
        assert_eq!(heap.ring().read(1), d);
        // SAFETY: reads the heap memory of the test on the thread that wrote it.
        let bytes =
            unsafe { std::slice::from_raw_parts(heap.0.as_ptr().cast::<u8>().add(128 + 16), 12) };
        assert_eq!(bytes, [1, 0, 2, 0, 6, 5, 4, 3, 10, 9, 8, 7]);
    }

    /// Two threads pass descriptors through a small ring, and its indices wrap past 2^16. Run under Miri this also
    /// checks the memory orderings (a payload word represents the frame's bytes).
    #[test]
    fn published_descriptors_reach_the_peer_complete_and_in_order() {
        let total: u32 = if cfg!(miri) { 300 } else { 70_000 };
        let heap = HeapRing::new(3);
        let payload: Vec<AtomicU32> = (0..8).map(|_| AtomicU32::new(0)).collect();
        let sender = Other(heap.ring());
        std::thread::scope(|scope| {
            let payload = &payload;
            scope.spawn(move || {
                let sender = sender;
                let ring = sender.0;
                let (mut head, mut n) = (0_u16, 0_u32);
                while n < total {
                    if head.wrapping_sub(ring.tail()) == ring.size() {
                        std::thread::yield_now();
                        continue;
                    }
                    payload[ring.place(head)].store(n, Ordering::Relaxed);
                    ring.write(
                        head,
                        Descriptor {
                            flags: 0,
                            region: 0,
                            length: n,
                            offset: !n,
                        },
                    );
                    head = head.wrapping_add(1);
                    ring.publish_head(head);
                    n += 1;
                }
            });
            let ring = heap.ring();
            let (mut tail, mut n) = (0_u16, 0_u32);
            while n < total {
                if ring.head() == tail {
                    std::thread::yield_now();
                    continue;
                }
                let d = ring.read(tail);
                assert_eq!((d.length, d.offset), (n, !n));
                assert_eq!(payload[ring.place(tail)].load(Ordering::Relaxed), n);
                tail = tail.wrapping_add(1);
                ring.publish_tail(tail);
                n += 1;
            }
        });
    }
}
