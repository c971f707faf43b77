//! Packets that are buffered until their user is reached (3GPP TS 29.244 section 5.2.4). The packets are copied into
//! separate memory, so that they occupy no ring. Limits apply per rule and in total.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use taut_port::{Packet, PoolHandle, PortError};

/// The state of the packets that one forwarding rule has buffered.
#[derive(Debug)]
pub(super) struct Held {
    /// The SEID (session identifier) of the session; `rule` is the identifier of the forwarding rule in that session.
    pub session: u64,
    pub rule: u32,
    /// The limit on packets that the forwarding rule buffers.
    most: AtomicU32,
    waiting: AtomicU32,
    /// True if the first buffered packet is reported to the control plane.
    tells: AtomicBool,
    is_told: AtomicBool,
}

impl Held {
    pub fn new(session: u64, rule: u32) -> Self {
        Self {
            session,
            rule,
            most: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            tells: AtomicBool::new(false),
            is_told: AtomicBool::new(false),
        }
    }

    /// Sets the limit on packets that the forwarding rule buffers, and whether the first buffered packet is reported to
    /// the control plane.
    pub fn limit(&self, most: u32, tells: bool) {
        self.most.store(most, Ordering::Relaxed);
        self.tells.store(tells, Ordering::Relaxed);
    }

    /// Re-enables the notification of the control plane for the next buffered packet.
    pub fn tell_again(&self) {
        self.is_told.store(false, Ordering::Relaxed);
    }

    /// Returns true if the control plane is to be notified of a buffered packet. Later calls return false until
    /// [`Self::tell_again`].
    pub fn is_to_tell(&self) -> bool {
        self.tells.load(Ordering::Relaxed) && !self.is_told.swap(true, Ordering::Relaxed)
    }

    /// Returns the number of packets that the forwarding rule has buffered.
    #[cfg(test)]
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// Two states are equal if they are the same object in memory.
impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Held {}

/// The number of packets that all workers buffer together, and the limit on that number.
#[derive(Debug, Clone, Default)]
pub(super) struct HeldInAll {
    pub most: usize,
    waiting: Arc<AtomicUsize>,
}

impl HeldInAll {
    pub fn new(most: usize) -> Self {
        Self {
            most,
            waiting: Arc::default(),
        }
    }

    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::Relaxed)
    }
}

/// A buffered packet: the frame as it arrived, the key of its rule's bearer, the buffering state of the rule, and the
/// egress port.
#[derive(Debug)]
struct Entry {
    key: u64,
    packet: Packet,
    held: Arc<Held>,
    to_port: usize,
}

/// The packets that a worker buffers.
#[derive(Debug)]
pub(super) struct HeldPackets {
    pool: PoolHandle,
    in_all: HeldInAll,
    waiting: VecDeque<Entry>,
    /// The released packets, which wait only for a batch to their egress port.
    due: VecDeque<Entry>,
}

impl HeldPackets {
    /// Allocates memory for as many packets as the total limit of all workers allows.
    pub fn new(in_all: HeldInAll) -> Result<Self, PortError> {
        let most = in_all.most;
        Ok(Self {
            // A pool cannot be empty, so a limit of 0 still takes one slot.
            pool: PoolHandle::new(u32::try_from(most.max(1)).unwrap_or(u32::MAX), false)?,
            waiting: VecDeque::with_capacity(most),
            due: VecDeque::with_capacity(most),
            in_all,
        })
    }

    /// Buffers a copy of a frame for the bearer with the given key; returns false if there is not enough space. If
    /// earlier packets of that key are being released, the copy is queued after them.
    pub fn hold(&mut self, key: u64, frame: &[u8], held: &Arc<Held>, to_port: usize) -> bool {
        let is_due = self.is_key_due(key);
        let has_room = |count: &AtomicUsize, most: usize| {
            let before = count.fetch_add(1, Ordering::Relaxed);
            if before >= most {
                count.fetch_sub(1, Ordering::Relaxed);
            }
            before < most
        };
        if !has_room(&self.in_all.waiting, self.in_all.most) {
            return false;
        }
        let most = held.most.load(Ordering::Relaxed);
        let before = held.waiting.fetch_add(1, Ordering::Relaxed);
        let length = u16::try_from(frame.len()).ok();
        let length = length.filter(|length| usize::from(*length) <= self.pool.room());
        // Packets that queue after released packets leave soon, so the rule's limit does not apply to them.
        let taken = length.filter(|_| is_due || before < most);
        let Some(mut packet) = taken.and_then(|length| self.pool.take(length)) else {
            held.waiting.fetch_sub(1, Ordering::Relaxed);
            self.in_all.waiting.fetch_sub(1, Ordering::Relaxed);
            return false;
        };
        packet.bytes_mut().copy_from_slice(frame);
        let entry = Entry {
            key,
            packet,
            held: Arc::clone(held),
            to_port,
        };
        match is_due {
            true => self.due.push_back(entry),
            false => self.waiting.push_back(entry),
        }
        true
    }

    /// Returns true if released packets of the bearer with the given key have not left yet.
    #[inline]
    pub fn is_key_due(&self, key: u64) -> bool {
        !self.due.is_empty() && self.due.iter().any(|entry| entry.key == key)
    }

    /// Returns the buffering state of the released packets of the bearer with the given key; none if no released packet
    /// of the key waits.
    pub fn held_of(&self, key: u64) -> Option<Arc<Held>> {
        let entry = self.due.iter().find(|entry| entry.key == key)?;
        Some(Arc::clone(&entry.held))
    }

    /// Releases the packets of the bearer with the given key in order: the packets leave with later batches.
    pub fn release(&mut self, key: u64) {
        for _ in 0..self.waiting.len() {
            let Some(entry) = self.waiting.pop_front() else {
                return;
            };
            match entry.key == key {
                true => self.due.push_back(entry),
                false => self.waiting.push_back(entry),
            }
        }
    }

    /// Drops the buffered packets of the bearer with the given key; returns how many there were.
    pub fn forget(&mut self, key: u64) -> usize {
        let before = self.len();
        let stays = |entry: &Entry| {
            if entry.key == key {
                entry.held.waiting.fetch_sub(1, Ordering::Relaxed);
            }
            entry.key != key
        };
        self.waiting.retain(stays);
        self.due.retain(stays);
        let gone = before - self.len();
        self.in_all.waiting.fetch_sub(gone, Ordering::Relaxed);
        gone
    }

    /// Returns true if a released packet waits for the given port.
    #[inline]
    pub fn is_due(&self, to_port: usize) -> bool {
        !self.due.is_empty() && self.due.iter().any(|entry| entry.to_port == to_port)
    }

    /// Passes the released packets of the given port to `each`, up to `most`.
    pub fn take_due(&mut self, to_port: usize, most: usize, mut each: impl FnMut(Packet)) {
        let mut taken = 0;
        for _ in 0..self.due.len() {
            let Some(entry) = self.due.pop_front() else {
                return;
            };
            if entry.to_port != to_port || taken == most {
                self.due.push_back(entry);
                continue;
            }
            taken += 1;
            entry.held.waiting.fetch_sub(1, Ordering::Relaxed);
            self.in_all.waiting.fetch_sub(1, Ordering::Relaxed);
            each(entry.packet);
        }
    }

    pub fn len(&self) -> usize {
        self.waiting.len() + self.due.len()
    }

    pub fn due(&self) -> usize {
        self.due.len()
    }
}

/// Packets that a worker still buffers when it ends are lost, and are subtracted from the number that all workers
/// buffer.
impl Drop for HeldPackets {
    fn drop(&mut self) {
        for entry in self.waiting.iter().chain(&self.due) {
            entry.held.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        let kept = self.len();
        self.in_all.waiting.fetch_sub(kept, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn kept(most: usize) -> HeldPackets {
        HeldPackets::new(HeldInAll::new(most)).unwrap()
    }

    fn rule(most: u32) -> Arc<Held> {
        let held = Arc::new(Held::new(1, 1));
        held.limit(most, true);
        held
    }

    fn taken(packets: &mut HeldPackets, port: usize, most: usize) -> Vec<u8> {
        let mut all = Vec::new();
        packets.take_due(port, most, |packet| all.push(packet.bytes()[0]));
        all
    }

    #[test]
    fn buffered_packets_stay_in_order_and_within_their_limits() {
        let mut packets = kept(5);
        let (first, second) = (rule(3), rule(100));
        let held: Vec<_> = (0..4)
            .map(|n| packets.hold(7, &[n; 60], &first, 1))
            .collect();
        assert_eq!(held, [true, true, true, false]);
        assert!(packets.hold(8, &[50; 60], &second, 1) && packets.hold(8, &[51; 60], &second, 0));
        assert!(!packets.hold(8, &[52; 60], &second, 1), "full in all");
        assert_eq!(
            (first.waiting(), second.waiting(), packets.len()),
            (3, 2, 5)
        );
        packets.release(7);
        assert!(packets.is_due(1) && !packets.is_due(0) && packets.is_key_due(7));
        assert_eq!(taken(&mut packets, 1, 2), [0, 1]);
        // Although this packet could leave immediately, it follows the earlier packets of its key.
        assert!(packets.hold(7, &[9; 60], &first, 1));
        packets.release(8);
        assert_eq!(taken(&mut packets, 1, 64), [2, 9, 50]);
        assert_eq!(taken(&mut packets, 0, 64), [51]);
        assert_eq!(
            (first.waiting(), second.waiting(), packets.len()),
            (0, 0, 0)
        );
        // The frame is longer than any slot.
        assert!(!packets.hold(7, &[0; 9000], &first, 1));
        assert_eq!(packets.in_all.waiting(), 0);
        assert!(first.is_to_tell() && !first.is_to_tell());
        first.tell_again();
        assert!(first.is_to_tell());
        assert!(packets.hold(7, &[0; 60], &first, 1));
        let in_all = packets.in_all.clone();
        drop(packets);
        assert_eq!((first.waiting(), in_all.waiting()), (0, 0));
    }

    proptest! {
        /// Under random operations, each key's packets leave in order, all are counted, none is lost.
        #[test]
        fn buffered_packets_of_each_session_leave_in_order(
            steps in proptest::collection::vec((0u8..5, 0u64..3, 0usize..2), 1..200),
        ) {
            let mut packets = kept(16);
            let rules: Vec<_> = (0..3).map(|_| rule(6)).collect();
            let (mut next, mut last) = ([0u8; 3], [None::<u8>; 3]);
            let (mut kept, mut left) = (0, 0);
            for (what, key, port) in steps {
                let at = key as usize;
                match what {
                    0..=1 => {
                        let frame = [&[next[at], at as u8][..], &[0; 58]].concat();
                        // All packets of a key leave through one port.
                        if packets.hold(key + 1, &frame, &rules[at], at % 2) {
                            kept += 1;
                        }
                        next[at] = next[at].wrapping_add(1);
                    }
                    2 => packets.release(key + 1),
                    3 => left += packets.forget(key + 1),
                    _ => packets.take_due(port, 3, |packet| {
                        let (number, at) = (packet.bytes()[0], usize::from(packet.bytes()[1]));
                        assert!(last[at].is_none_or(|last| last < number), "overtaken");
                        last[at] = Some(number);
                        left += 1;
                    }),
                }
                prop_assert_eq!(kept - left, packets.len());
                prop_assert_eq!(packets.len(), packets.in_all.waiting());
                let waiting: u32 = rules.iter().map(|rule| rule.waiting()).sum();
                prop_assert_eq!(waiting as usize, packets.len());
            }
        }
    }
}
