//! Queues for packets at a full port, by priority.

use crate::Queueing;
use crate::codel::Codel;
use crate::queueing::DropPolicy;
use crate::time::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use taut_port::{BATCH_CAPACITY, Batch, NO_PRIORITY, Packet, PoolHandle, Port, PortError};
use taut_sys::Clock;

/// The maximum number of queued packets that are offered to the port in one call.
const AT_A_TIME: usize = 32;
/// The length of the largest packet (RFC 8289): CoDel drops nothing while the queue has no more bytes than this.
const LARGE_PACKET_BYTES: u64 = 1514;

/// Counts of packets in a queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct QueueCounters {
    /// Packets that were queued.
    pub queued: u64,
    /// Packets dropped because the queue was full.
    pub dropped_full: u64,
    /// Packets dropped by CoDel.
    pub dropped_codel: u64,
    /// Packets that are in the queue now.
    pub waiting_packets: u64,
    /// Bytes of the packets that are in the queue now.
    pub waiting_bytes: u64,
}

impl QueueCounters {
    pub(crate) const fn counts(&self) -> [u64; 5] {
        [
            self.queued,
            self.dropped_full,
            self.dropped_codel,
            self.waiting_packets,
            self.waiting_bytes,
        ]
    }

    pub(crate) const fn of(
        [
            queued,
            dropped_full,
            dropped_codel,
            waiting_packets,
            waiting_bytes,
        ]: [u64; 5],
    ) -> Self {
        Self {
            queued,
            dropped_full,
            dropped_codel,
            waiting_packets,
            waiting_bytes,
        }
    }
}

impl std::ops::Add for QueueCounters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        let (mut counts, others) = (self.counts(), other.counts());
        for (count, more) in counts.iter_mut().zip(others) {
            *count += more;
        }
        Self::of(counts)
    }
}

/// The queues of one port. A queued packet is copied, so that it occupies no slot of an ingress ring.
pub(crate) struct Queues {
    /// The queues by priority; the last one has the highest priority.
    queues: Vec<Queue>,
    /// Number of packets in all queues of the port.
    waiting: usize,
    pool: PoolHandle,
    time: Time,
    /// Packets from the queues that are being offered to the port; `since` has the time at which each was queued.
    out: Batch,
    since: [u64; BATCH_CAPACITY],
}

struct Queue {
    waiting: VecDeque<Waiting>,
    bytes: u64,
    most_packets: usize,
    most_bytes: u64,
    codel: Option<Codel>,
    counts: QueueCounters,
}

struct Waiting {
    packet: Packet,
    since: u64,
}

impl Queues {
    /// Makes empty queues for one port.
    ///
    /// # Errors
    /// The machine has no memory for the queues.
    pub(crate) fn new(queueing: &Queueing, clock: &Clock, time: Time) -> Result<Self, PortError> {
        let in_ticks = |t: std::time::Duration| clock.to_ticks(t.as_nanos() as f64) as u64;
        let queue = || Queue {
            waiting: VecDeque::with_capacity(queueing.packets),
            bytes: 0,
            most_packets: queueing.packets,
            most_bytes: queueing.bytes.unwrap_or(u64::MAX),
            codel: match queueing.drop {
                DropPolicy::Tail => None,
                DropPolicy::Codel { target, interval } => {
                    Some(Codel::new(in_ticks(target), in_ticks(interval)))
                }
            },
            counts: QueueCounters::default(),
        };
        let slots = queueing.packets * queueing.priorities;
        Ok(Self {
            queues: std::iter::repeat_with(queue)
                .take(queueing.priorities)
                .collect(),
            waiting: 0,
            pool: PoolHandle::new(u32::try_from(slots).unwrap_or(u32::MAX), false)?,
            time,
            out: Batch::limited(AT_A_TIME),
            since: [0; BATCH_CAPACITY],
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.waiting == 0
    }

    /// Returns the counters of each queue; the last one has the highest priority.
    pub(crate) fn counters(&self) -> impl Iterator<Item = QueueCounters> {
        self.queues.iter().map(|queue| QueueCounters {
            waiting_packets: queue.waiting.len() as u64,
            waiting_bytes: queue.bytes,
            ..queue.counts
        })
    }

    /// Sends the packets of a batch until the port is full, and queues the remaining ones. If earlier packets are still
    /// queued, all packets of the batch are queued. Each packet goes to the queue of its assigned priority in `given`,
    /// or otherwise of the priority in its headers.
    pub(crate) fn offer(
        &mut self,
        batch: &mut Batch,
        given: Option<&[u8; BATCH_CAPACITY]>,
        port: &mut dyn Port,
    ) {
        let (before, goes_on) = (batch.len(), self.waiting == 0);
        if goes_on {
            port.tx(batch);
        }
        if batch.is_empty() {
            return;
        }
        let now = (self.time.now)();
        let mut index = before - batch.len();
        batch.take_front(batch.len(), |packet| {
            let given = given.map_or(NO_PRIORITY, |given| given[index & 63]);
            self.put(&packet, given, now);
            index += 1;
        });
        if !goes_on {
            self.drain(port);
        }
    }

    /// Drops all queued packets, because the port accepts no more packets.
    pub(crate) fn drop_all(&mut self) {
        for queue in &mut self.queues {
            queue.counts.dropped_full += queue.waiting.len() as u64;
            queue.waiting.clear();
            queue.bytes = 0;
        }
        self.waiting = 0;
    }

    fn put(&mut self, packet: &Packet, given: u8, since: u64) {
        let priority = match given {
            NO_PRIORITY => priority_of(packet.bytes()),
            given => given.min(7),
        };
        let at = usize::from(priority) * self.queues.len() / 8;
        let (queue, bytes) = (&mut self.queues[at], packet.len() as u64);
        let has_room =
            queue.waiting.len() < queue.most_packets && queue.bytes + bytes <= queue.most_bytes;
        // A packet longer than a slot of the pool is dropped, as if the queue were full.
        let copy = has_room
            .then(|| self.pool.take(packet.len() as u16))
            .flatten();
        let Some(mut copy) = copy else {
            queue.counts.dropped_full += 1;
            return;
        };
        copy.bytes_mut().copy_from_slice(packet.bytes());
        queue.counts.queued += 1;
        queue.bytes += bytes;
        queue.waiting.push_back(Waiting {
            packet: copy,
            since,
        });
        self.waiting += 1;
    }

    /// Sends queued packets until the port is full, the highest priority first.
    #[inline(never)]
    pub(crate) fn drain(&mut self, port: &mut dyn Port) {
        let now = (self.time.now)();
        'queues: for queue in self.queues.iter_mut().rev() {
            while !queue.waiting.is_empty() {
                queue.take(now, &mut self.out, &mut self.since);
                let count = self.out.len();
                port.tx(&mut self.out);
                let left = self.out.len();
                if left > 0 {
                    queue.put_back(&mut self.out, &self.since[count - left..count]);
                    break 'queues;
                }
            }
        }
        self.waiting = self.queues.iter().map(|queue| queue.waiting.len()).sum();
    }
}

impl Queue {
    /// Moves packets from the front of the queue to `out`, except those that CoDel drops. The time at which each was
    /// queued is written to `since`.
    fn take(&mut self, now: u64, out: &mut Batch, since: &mut [u64; BATCH_CAPACITY]) {
        // Packets taken in this loop still count as queued.
        let is_little = self.bytes <= LARGE_PACKET_BYTES;
        while out.room() > 0
            && let Some(front) = self.waiting.pop_front()
        {
            self.bytes -= front.packet.len() as u64;
            if let Some(codel) = &mut self.codel {
                let waited = now.saturating_sub(front.since);
                if codel.drops(waited, now, is_little) {
                    self.counts.dropped_codel += 1;
                    continue;
                }
            }
            since[out.len() & 63] = front.since;
            out.push(front.packet);
        }
    }

    /// Puts packets that the port refused back to the front of the queue, with the times at which they were queued.
    fn put_back(&mut self, out: &mut Batch, since: &[u64]) {
        let count = out.len();
        let mut since = since.iter();
        out.take_front(count, |packet| {
            self.bytes += packet.len() as u64;
            self.waiting.push_back(Waiting {
                packet,
                since: since.next().copied().unwrap_or_default(),
            });
        });
        // The refused packets were appended at the end of the queue, so the queue is rotated to move them to the front.
        self.waiting.rotate_right(count);
    }
}

/// Returns the priority in the headers of a frame, 0 to 7: its VLAN tag (IEEE 802.1Q), or the class selector of its
/// DSCP (RFC 2474).
fn priority_of(frame: &[u8]) -> u8 {
    match frame.get(12..16) {
        Some([0x81, 0x00, tag, _] | [0x88, 0xa8, tag, _]) => tag >> 5,
        Some([0x08, 0x00, _, service]) => service >> 5,
        Some([0x86, 0xdd, class, _]) => (class & 0x0e) >> 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::time::made_up;
    use std::time::Duration;
    use taut_port::{Link, PortCounters};

    /// A port that takes at most `room` packets, and logs their first bytes.
    struct Narrow {
        room: usize,
        taken: Vec<u8>,
    }

    impl Port for Narrow {
        fn rx(&mut self, _: &mut Batch) -> usize {
            0
        }

        fn tx(&mut self, batch: &mut Batch) -> usize {
            let n = batch.len().min(self.room);
            self.room -= n;
            batch.take_front(n, |packet| self.taken.push(packet.bytes()[0]));
            n
        }

        fn link(&mut self) -> Link {
            Link::Up
        }

        fn counters(&mut self) -> PortCounters {
            PortCounters::default()
        }
    }

    struct Bench {
        queues: Queues,
        port: Narrow,
        pool: PoolHandle,
    }

    impl Bench {
        fn new(text: &str) -> Self {
            #[derive(Deserialize)]
            struct File {
                queue: Queueing,
            }
            let file: File = toml::from_str(text).unwrap();
            Self {
                queues: Queues::new(&file.queue, &made_up::CLOCK, made_up::time()).unwrap(),
                port: Narrow {
                    room: 0,
                    taken: Vec::new(),
                },
                pool: PoolHandle::new(64, false).unwrap(),
            }
        }

        /// Offers IPv4 frames of 100 bytes; `frames` has the number and the DSCP of each frame.
        fn offer(&mut self, frames: &[(u8, u8)], given: Option<&[u8; BATCH_CAPACITY]>) {
            let mut batch = Batch::new();
            for (number, dscp) in frames {
                let mut packet = self.pool.take(100).unwrap();
                packet.bytes_mut().fill(0);
                packet.bytes_mut()[0] = *number;
                packet.bytes_mut()[12..16].copy_from_slice(&[8, 0, 0x45, dscp << 2]);
                batch.push(packet);
            }
            self.queues.offer(&mut batch, given, &mut self.port);
            assert!(batch.is_empty());
            assert_eq!(self.pool.outstanding(), 0, "what waits is copied");
        }

        /// Returns the packets that leave when the port has space for `room` packets.
        fn leaves(&mut self, room: usize) -> Vec<u8> {
            self.port.room = room;
            self.queues.drain(&mut self.port);
            self.port.room = 0;
            std::mem::take(&mut self.port.taken)
        }

        fn counted(&self) -> Vec<QueueCounters> {
            self.queues.counters().collect()
        }
    }

    #[test]
    fn packets_for_full_ports_are_queued_up_to_a_limit() {
        let mut bench = Bench::new("queue = 4");
        bench.port.room = 2;
        bench.offer(&[1, 2, 3, 4, 5].map(|number| (number, 0)), None);
        bench.offer(&[(6, 0), (7, 0), (8, 0)], None);
        assert_eq!(bench.leaves(3), [1, 2, 3, 4, 5]);
        let [counted] = bench.counted()[..] else {
            panic!()
        };
        assert_eq!((counted.queued, counted.dropped_full), (4, 2));
        assert_eq!((counted.waiting_packets, counted.waiting_bytes), (1, 100));
        // New packets do not overtake queued ones.
        bench.port.room = 1;
        bench.offer(&[(9, 0)], None);
        assert_eq!(bench.leaves(9), [6, 9]);
        assert!(bench.queues.is_empty());
        bench.port.room = 1;
        bench.offer(&[(10, 0)], None);
        assert_eq!(bench.leaves(0), [10]);
    }

    #[test]
    fn packets_of_the_highest_priority_leave_first() {
        let mut bench = Bench::new("queue = { packets = 2, priorities = 2 }");
        // DSCP 46 is class 5, DSCP 10 class 1.
        bench.offer(&[(1, 0), (2, 10), (3, 0), (4, 46), (5, 46), (6, 46)], None);
        assert_eq!(bench.leaves(1), [4]);
        let mut given = [NO_PRIORITY; BATCH_CAPACITY];
        given[0] = 7;
        bench.offer(&[(7, 0)], Some(&given));
        assert_eq!(bench.leaves(9), [5, 7, 1, 2]);
        let dropped: Vec<_> = bench.counted().iter().map(|it| it.dropped_full).collect();
        assert_eq!(dropped, [1, 1]);
    }

    #[test]
    fn a_queue_limits_bytes_and_codel_drops_at_its_front() {
        let mut bench = Bench::new("queue = { packets = 9, bytes = 250 }");
        bench.offer(&[(1, 0), (2, 0), (3, 0)], None);
        assert_eq!(bench.leaves(9), [1, 2]);
        let mut bench = Bench::new("queue = { packets = 64, drop = \"codel(100us, 1ms)\" }");
        let frames: Vec<_> = (0..32).map(|number| (number, 0)).collect();
        bench.offer(&frames, None);
        made_up::pass(Duration::from_millis(1));
        assert_eq!(bench.leaves(1).len(), 1);
        made_up::pass(Duration::from_millis(2));
        let left = bench.leaves(1)[0];
        assert!(left > 1, "{left}");
        let counted = bench.counted()[0];
        assert_eq!(
            2 + counted.dropped_codel + counted.waiting_packets,
            counted.queued
        );
    }

    #[test]
    fn packet_priority_comes_from_vlan_tag_or_traffic_class() {
        let frame = |head: [u8; 4]| [&[0; 12][..], &head, &[0; 44]].concat();
        for (head, priority) in [
            ([8, 0, 0x45, 0xb8], 5),
            ([8, 0, 0x45, 0xe0], 7),
            ([0x86, 0xdd, 0x6b, 0x80], 5),
            ([0x81, 0, 0xa0, 1], 5),
            ([0x88, 0xa8, 0xe0, 1], 7),
            ([8, 6, 0, 1], 0),
        ] {
            assert_eq!(priority_of(&frame(head)), priority, "{head:x?}");
        }
        assert_eq!(priority_of(&[0; 14]), 0);
    }
}
