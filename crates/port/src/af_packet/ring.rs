//! The two rings of a packet socket (TPACKET_V2): equal frames, each led by a status word that says which side owns it.
//! This file only accesses memory, not the socket.
//!
//! The layout is that of the kernel's `Documentation/networking/packet_mmap.rst` and `linux/if_packet.h`.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// The length of the frame header `struct tpacket2_hdr`, bytes.
const HEADER_BYTES: usize = size_of::<libc::tpacket2_hdr>();

/// The length of the kernel's own data at the start of a received frame, bytes: frame header and link-layer address.
pub(super) const RX_OVERHEAD_BYTES: usize = HEADER_BYTES + size_of::<libc::sockaddr_ll>();

/// The length of the `struct virtio_net_hdr` (linux/virtio_net.h) between the frame header and a frame to be sent,
/// bytes.
const SEND_HEADER_BYTES: usize = 10;

/// The offset of a frame to be sent from the start of its slot.
const SEND_OFFSET_BYTES: usize = HEADER_BYTES + SEND_HEADER_BYTES;

/// The maximum number of bytes that the kernel copies into the linear head of its own packet. A longer head would take
/// more than a page of the kernel's memory.
const LONGEST_HEAD_BYTES: usize = 2048;

/// The status of a receive frame that the kernel may fill, and of a free transmit frame.
const FREE: u32 = libc::TP_STATUS_KERNEL;
/// The status of a received frame that the kernel has passed to this process.
const FILLED: u32 = libc::TP_STATUS_USER;
/// The status of a transmit frame that the kernel is to send.
const TO_SEND: u32 = libc::TP_STATUS_SEND_REQUEST;
/// The status of a received frame that a packet of this process still uses. The kernel takes only frames with status
/// [`FREE`], and this process takes only frames with [`FILLED`]. The bit is defined by the kernel (`TP_STATUS_COPY`),
/// and has no meaning without [`FILLED`].
const HELD: u32 = libc::TP_STATUS_COPY;

/// A ring of `frames` equal frames in memory shared with the kernel.
#[derive(Debug)]
struct Frames {
    base: NonNull<u8>,
    frame_bytes: usize,
    mask: u32,
    /// Index of the ring frame that is checked next for a change of its status.
    head: u32,
}

impl Frames {
    /// # Safety
    /// `base` must point at `frames * frame_bytes` bytes, valid for as long as the ring is used,
    /// and aligned to 16; `frames` must be a power of two and `frame_bytes` a multiple of 16.
    unsafe fn new(base: NonNull<u8>, frame_bytes: usize, frames: u32) -> Self {
        debug_assert!(frames.is_power_of_two() && frame_bytes.is_multiple_of(16));
        Self {
            base,
            frame_bytes,
            mask: frames - 1,
            head: 0,
        }
    }

    #[inline(always)]
    fn frame(&self, index: u32) -> NonNull<u8> {
        // SAFETY: the mask keeps the index below the number of frames, and the caller of `new` guaranteed that many
        // frames.
        unsafe {
            self.base
                .add((index & self.mask) as usize * self.frame_bytes)
        }
    }

    #[inline(always)]
    fn header(&self, index: u32) -> *mut libc::tpacket2_hdr {
        self.frame(index).as_ptr().cast()
    }

    /// Returns the status word of a frame, the only word that kernel and process access at the same time.
    #[inline(always)]
    fn status(&self, index: u32) -> &AtomicU32 {
        // SAFETY: the status is the first word of the frame, aligned as the caller of `new` guaranteed, and both sides
        // access it as one word.
        unsafe { AtomicU32::from_ptr(self.frame(index).as_ptr().cast()) }
    }
}

/// A received frame, as the kernel describes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Received {
    /// Index of the frame in the ring, by which it is returned.
    pub(super) slot: u32,
    /// First byte of the Ethernet header.
    pub(super) data: NonNull<u8>,
    /// Number of captured bytes from `data` on.
    pub(super) len: u16,
    /// Unused bytes before `data` that belong to the frame.
    pub(super) headroom: u16,
    /// VLAN tag that the kernel removed from the frame (EtherType and control information); None for an untagged frame.
    pub(super) vlan: Option<(u16, u16)>,
    /// Time at which the kernel received the frame, ns since 1970; 0 without a timestamp.
    pub(super) kernel_stamp_ns: u64,
}

/// The item at the head of the receive ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Arrival {
    /// A complete frame, which the caller owns until [`RxRing::give_back`].
    Frame(Received),
    /// A frame longer than the ring's frames; it has been returned already.
    TooLong,
    /// A frame with an invalid header; it has been returned already.
    Malformed,
}

/// The receive ring of a packet socket.
#[derive(Debug)]
pub(super) struct RxRing(Frames);

impl RxRing {
    /// # Safety
    /// `base` must point at `frames * frame_bytes` bytes, aligned to 16 and valid for as long as the ring or anything
    /// received from it is used. `frames` must be a power of two and `frame_bytes` a multiple of 16.
    pub(super) unsafe fn new(base: NonNull<u8>, frame_bytes: usize, frames: u32) -> Self {
        // SAFETY: the caller guarantees the same conditions.
        Self(unsafe { Frames::new(base, frame_bytes, frames) })
    }

    /// Takes the frame at the head of the ring, if one has arrived.
    #[inline(always)]
    pub(super) fn next(&mut self) -> Option<Arrival> {
        let ring = &mut self.0;
        let slot = ring.head & ring.mask;
        // Acquire: the kernel wrote header and bytes before it wrote this word.
        let status = ring.status(slot).load(Ordering::Acquire);
        if status & FILLED == 0 {
            return None;
        }
        ring.head = ring.head.wrapping_add(1);
        // SAFETY: the frame is ours now, and the header at its start is plain data.
        let header = unsafe { &*ring.header(slot) };
        let (from, len) = (usize::from(header.tp_mac), header.tp_snaplen as usize);
        if header.tp_len != header.tp_snaplen {
            ring.status(slot).store(FREE, Ordering::Release);
            return Some(Arrival::TooLong);
        }
        if from < RX_OVERHEAD_BYTES || from + len > ring.frame_bytes || len > 0xffff {
            ring.status(slot).store(FREE, Ordering::Release);
            return Some(Arrival::Malformed);
        }
        let vlan = (status & libc::TP_STATUS_VLAN_VALID != 0).then(|| {
            let known = status & libc::TP_STATUS_VLAN_TPID_VALID != 0;
            let kind = if known { header.tp_vlan_tpid } else { 0x8100 };
            (kind, header.tp_vlan_tci)
        });
        // Without this flag the time is that of the copy into the ring.
        let kernel_stamp_ns = if status & libc::TP_STATUS_TS_SOFTWARE != 0 {
            u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec)
        } else {
            0
        };
        ring.status(slot).store(HELD, Ordering::Relaxed);
        Some(Arrival::Frame(Received {
            slot,
            // SAFETY: `from` was checked to lie inside the frame.
            data: unsafe { ring.frame(slot).add(from) },
            len: len as u16,
            headroom: (from - RX_OVERHEAD_BYTES) as u16,
            vlan,
            kernel_stamp_ns,
        }))
    }

    /// Returns a frame to the kernel. Frames may be returned in any order, but the kernel fills them in ring order and
    /// waits for the oldest one.
    #[inline(always)]
    pub(super) fn give_back(&mut self, slot: u32) {
        // Release: our last reads and writes of the frame come before the kernel's next write.
        self.0.status(slot).store(FREE, Ordering::Release);
    }
}

/// The transmit ring of a packet socket.
#[derive(Debug)]
pub(super) struct TxRing(Frames);

impl TxRing {
    /// # Safety
    /// `base`, `frame_bytes` and `frames` must meet the conditions of [`RxRing::new`].
    pub(super) unsafe fn new(base: NonNull<u8>, frame_bytes: usize, frames: u32) -> Self {
        // SAFETY: the caller guarantees the same conditions.
        Self(unsafe { Frames::new(base, frame_bytes, frames) })
    }

    /// Returns the maximum length of a frame that can be sent through this ring, bytes.
    pub(super) fn room(&self) -> usize {
        self.0.frame_bytes - SEND_OFFSET_BYTES
    }

    /// Copies `bytes` (at most [`TxRing::room`]) into the next frame and marks it to be sent. Returns false if that
    /// frame is still in use.
    #[inline(always)]
    pub(super) fn push(&mut self, bytes: &[u8]) -> bool {
        debug_assert!(bytes.len() <= self.room());
        let ring = &mut self.0;
        let slot = ring.head;
        // Acquire: the kernel has read the old frame before we overwrite it.
        if ring.status(slot).load(Ordering::Acquire) != FREE
            || bytes.len() > ring.frame_bytes - SEND_OFFSET_BYTES
        {
            return false;
        }
        // No segmentation and no checksum offload: all fields but the third, `hdr_len`, are 0.
        let mut header = [0; SEND_HEADER_BYTES];
        let head_bytes = bytes.len().min(LONGEST_HEAD_BYTES) as u16;
        header[2..4].copy_from_slice(&head_bytes.to_ne_bytes());
        // SAFETY: a free frame is ours; headers and bytes lie inside it, as was checked.
        unsafe {
            (*ring.header(slot)).tp_len = (SEND_HEADER_BYTES + bytes.len()) as u32;
            let to = ring.frame(slot).add(HEADER_BYTES);
            to.cast().write(header);
            let from = NonNull::from(bytes).cast();
            crate::frame_copy::copy_frame(from, to.add(SEND_HEADER_BYTES), bytes.len());
        }
        // Release: the kernel sees length and bytes once it sees this status.
        ring.status(slot).store(TO_SEND, Ordering::Release);
        ring.head = slot.wrapping_add(1);
        true
    }

    /// Withdraws up to `most` frames that the kernel has not started to send, the most recently pushed first; returns
    /// their number.
    pub(super) fn withdraw(&mut self, most: u32) -> u32 {
        let ring = &mut self.0;
        for taken in 0..most {
            let slot = ring.head.wrapping_sub(1);
            if ring.status(slot).load(Ordering::Acquire) != TO_SEND {
                return taken;
            }
            ring.status(slot).store(FREE, Ordering::Release);
            ring.head = slot;
        }
        most
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const FRAME_BYTES: usize = 256;

    /// A simulated kernel for tests: the memory of a ring on the heap, and the kernel's accesses to it.
    struct Kernel {
        memory: Vec<u128>,
        head: usize,
        frames: usize,
    }

    impl Kernel {
        fn new(frames: usize) -> Self {
            Self {
                memory: vec![0; frames * FRAME_BYTES / 16],
                head: 0,
                frames,
            }
        }

        fn base(&mut self) -> NonNull<u8> {
            NonNull::new(self.memory.as_mut_ptr().cast()).unwrap()
        }

        fn header(&mut self) -> &mut libc::tpacket2_hdr {
            let offset = self.head % self.frames * FRAME_BYTES;
            // SAFETY: inside the memory, aligned, and tests run on one thread.
            unsafe { &mut *self.base().add(offset).as_ptr().cast() }
        }

        fn at(&mut self, offset: usize) -> *mut u8 {
            let offset = self.head % self.frames * FRAME_BYTES + offset;
            // SAFETY: tests pass offsets inside a frame.
            unsafe { self.base().add(offset).as_ptr() }
        }

        /// Simulates the arrival of a packet; returns false if the kernel has to drop it.
        fn deliver(&mut self, byte: u8) -> bool {
            if self.header().tp_status != FREE {
                return false;
            }
            let mac = 100;
            // SAFETY: inside the frame.
            unsafe { self.at(mac).write(byte) };
            let header = self.header();
            (header.tp_len, header.tp_snaplen, header.tp_mac) = (1, 1, mac as u16);
            header.tp_status = FILLED;
            self.head += 1;
            true
        }

        /// Simulates a send call: sends the next frame of the ring if it is marked, and returns the frame's first byte.
        fn send(&mut self) -> Option<u8> {
            if self.header().tp_status != TO_SEND {
                return None;
            }
            // SAFETY: inside the frame.
            let byte = unsafe { self.at(SEND_OFFSET_BYTES).read() };
            self.header().tp_status = FREE;
            self.head += 1;
            Some(byte)
        }
    }

    fn rx(kernel: &mut Kernel) -> RxRing {
        let frames = kernel.frames as u32;
        // SAFETY: the kernel's memory outlives the ring in every test.
        unsafe { RxRing::new(kernel.base(), FRAME_BYTES, frames) }
    }

    #[test]
    fn an_unreturned_frame_is_neither_delivered_again_nor_overwritten() {
        let mut kernel = Kernel::new(2);
        let mut ring = rx(&mut kernel);
        assert!(kernel.deliver(1) && kernel.deliver(2));
        let Some(Arrival::Frame(first)) = ring.next() else {
            panic!()
        };
        assert!(matches!(ring.next(), Some(Arrival::Frame(_))));
        assert!(ring.next().is_none());
        assert!(!kernel.deliver(3));
        ring.give_back(first.slot);
        assert!(kernel.deliver(3));
        assert!(matches!(ring.next(), Some(Arrival::Frame(f)) if f.slot == first.slot));
    }

    #[test]
    fn truncated_and_malformed_frames_are_refused_and_their_slots_freed() {
        for (len, snaplen, mac, want) in [
            (2000, 100, 100, Arrival::TooLong),
            (100, 100, 200, Arrival::Malformed),
            (100, 100, 20, Arrival::Malformed),
            (u32::MAX, u32::MAX, 100, Arrival::Malformed),
        ] {
            let mut kernel = Kernel::new(2);
            let mut ring = rx(&mut kernel);
            let header = kernel.header();
            (header.tp_len, header.tp_snaplen, header.tp_mac) = (len, snaplen, mac);
            header.tp_status = FILLED;
            assert_eq!(ring.next(), Some(want));
            assert_eq!(kernel.header().tp_status, FREE);
        }
    }

    /// Tests every offset and length in a frame header, and lengths whose sum wraps around.
    #[test]
    fn no_malformed_header_yields_data_outside_its_frame() {
        let mut kernel = Kernel::new(2);
        let first = kernel.base().as_ptr() as usize;
        let mut ring = rx(&mut kernel);
        let mut given = 0_u64;
        // Miri takes a thousand times as long, so it tests only some of the lengths, and the offsets near the frame's
        // ends.
        let (step, places) = match cfg!(miri) {
            true => (97, 2 * FRAME_BYTES as u16),
            false => (1, u16::MAX),
        };
        let lengths = (0..=FRAME_BYTES as u32 + 2).step_by(step);
        for len in lengths.chain([0xffff, 0x1_0000, u32::MAX - 100, u32::MAX]) {
            for mac in 0..=places {
                let header = kernel.header();
                (header.tp_len, header.tp_snaplen, header.tp_mac) = (len, len, mac);
                header.tp_status = FILLED;
                ring.0.head = 0;
                match ring.next() {
                    Some(Arrival::Frame(frame)) => {
                        let at = frame.data.as_ptr() as usize - first;
                        assert!(at >= RX_OVERHEAD_BYTES && frame.len == len as u16);
                        assert!(at + usize::from(frame.len) <= FRAME_BYTES);
                        assert_eq!(at - usize::from(frame.headroom), RX_OVERHEAD_BYTES);
                        ring.give_back(frame.slot);
                        given += 1;
                    }
                    other => assert_eq!(other, Some(Arrival::Malformed)),
                }
            }
        }
        let room = (FRAME_BYTES - RX_OVERHEAD_BYTES) as u64;
        let fitting = (0..=room).step_by(step).map(|len| room - len + 1);
        assert_eq!(given, fitting.sum::<u64>());
    }

    #[test]
    fn stripped_vlan_tags_are_reported_with_tpid_or_0x8100() {
        for (status, want) in [
            (libc::TP_STATUS_VLAN_VALID, 0x8100),
            (
                libc::TP_STATUS_VLAN_VALID | libc::TP_STATUS_VLAN_TPID_VALID,
                0x88a8,
            ),
        ] {
            let mut kernel = Kernel::new(2);
            let mut ring = rx(&mut kernel);
            let header = kernel.header();
            (header.tp_vlan_tci, header.tp_vlan_tpid) = (7, 0x88a8);
            assert!(kernel.deliver(0));
            kernel.head = 0;
            kernel.header().tp_status |= status;
            let Some(Arrival::Frame(frame)) = ring.next() else {
                panic!()
            };
            assert_eq!(frame.vlan, Some((want, 7)));
        }
    }

    #[test]
    fn withdrawn_frames_are_not_sent_and_their_slots_are_reused() {
        let mut kernel = Kernel::new(4);
        // SAFETY: the memory outlives the ring.
        let mut ring = unsafe { TxRing::new(kernel.base(), FRAME_BYTES, 4) };
        assert!(ring.push(&[1]));
        assert_eq!(kernel.send(), Some(1));
        assert!(ring.push(&[2]) && ring.push(&[3]));
        assert_eq!(ring.withdraw(4), 2);
        assert_eq!(kernel.send(), None);
        assert!(ring.push(&[4]));
        assert_eq!(kernel.send(), Some(4));
    }

    proptest! {
        /// For any order of arrivals, receives and returns, no frame is lost, duplicated or reordered.
        #[test]
        fn received_frames_are_delivered_exactly_once_and_in_order(steps in proptest::collection::vec((0u8..3, any::<u8>()), 1..300)) {
            let mut kernel = Kernel::new(8);
            let mut ring = rx(&mut kernel);
            let (mut sent, mut seen) = (0u8, 0u8);
            let mut held: Vec<(Received, u8)> = Vec::new();
            for (step, pick) in steps {
                match step {
                    0 => sent = sent.wrapping_add(u8::from(kernel.deliver(sent))),
                    1 => {
                        if let Some(arrival) = ring.next() {
                            let Arrival::Frame(frame) = arrival else { panic!("{arrival:?}") };
                            // SAFETY: the frame was received and not returned yet.
                            prop_assert_eq!(unsafe { frame.data.read() }, seen);
                            held.push((frame, seen));
                            seen = seen.wrapping_add(1);
                        }
                    }
                    _ if !held.is_empty() => {
                        let (frame, _) = held.swap_remove(usize::from(pick) % held.len());
                        ring.give_back(frame.slot);
                    }
                    _ => {}
                }
                for (frame, byte) in &held {
                    // SAFETY: the frame was received and not returned yet.
                    prop_assert_eq!(unsafe { frame.data.read() }, *byte);
                }
                prop_assert!(usize::from(sent.wrapping_sub(seen)) + held.len() <= 8);
            }
            while let Some(Arrival::Frame(_)) = ring.next() {
                seen = seen.wrapping_add(1);
            }
            prop_assert_eq!(sent, seen);
        }

        /// Pushed frames are sent once and in order; a full ring refuses further frames.
        #[test]
        fn queued_frames_are_sent_exactly_once_and_in_order(steps in proptest::collection::vec(any::<bool>(), 1..300)) {
            let mut kernel = Kernel::new(8);
            // SAFETY: the memory outlives the ring.
            let mut ring = unsafe { TxRing::new(kernel.base(), FRAME_BYTES, 8) };
            let (mut pushed, mut sent) = (0u8, 0u8);
            for push in steps {
                if push {
                    let fits = pushed.wrapping_sub(sent) < 8;
                    prop_assert_eq!(ring.push(&[pushed]), fits);
                    pushed = pushed.wrapping_add(u8::from(fits));
                } else if let Some(byte) = kernel.send() {
                    prop_assert_eq!(byte, sent);
                    sent = sent.wrapping_add(1);
                }
            }
        }
    }
}
