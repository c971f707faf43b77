//! The client's data path: frames lie in the shared pool, so sending and receiving move descriptors.

use super::connection::Connection;
use super::interrupt;
use super::ring::{Descriptor, FLAG_NEXT, Ring};
use crate::{Batch, Packet, PoolHandle, PortCounters};

/// The region index under which the client's pool is announced.
const POOL_REGION: u16 = 1;

/// Empty buffers are offered this many at a time while packets keep coming, and at once when they pause.
const REFILL_BATCH: u16 = 64;

/// Sent frames are taken back once this many are on their way.
const RECLAIM_BATCH: u16 = 64;

pub(super) struct ClientQueue {
    pool: PoolHandle,
    rings: Option<Rings>,
    pub(super) counters: PortCounters,
}

struct Rings {
    connection: Connection,
    tx: Sending,
    rx: Receiving,
}

struct Sending {
    ring: Ring,
    /// Filled up to here: ours to write.
    head: u16,
    /// Taken back up to here.
    reclaimed: u16,
    /// The packet behind each filled descriptor.
    in_flight: Box<[Option<Packet>]>,
}

struct Receiving {
    ring: Ring,
    /// Offered up to here: ours to write.
    head: u16,
    /// Received up to here.
    tail: u16,
    /// The buffer behind each offered descriptor.
    offered: Box<[Option<Packet>]>,
    /// Inside a chained frame that is being skipped because it does not fit one buffer.
    skipping: bool,
}

fn slots(ring: Ring) -> Box<[Option<Packet>]> {
    (0..ring.size()).map(|_| None).collect()
}

impl ClientQueue {
    pub(super) fn new(pool: PoolHandle) -> Self {
        Self {
            pool,
            rings: None,
            counters: PortCounters::default(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.rings.is_some()
    }

    /// Lets the connection go; its packets return to the pool. Always possible at once.
    pub(super) fn disconnect(&mut self) -> bool {
        self.rings = None;
        true
    }

    pub(super) fn connect(&mut self, connection: Connection) {
        let (Some(tx), Some(rx)) = (
            connection.ring(&connection.client_to_server),
            connection.ring(&connection.server_to_client),
        ) else {
            return;
        };
        rx.mask_interrupts();
        let mut rings = Rings {
            connection,
            tx: Sending {
                ring: tx,
                head: 0,
                reclaimed: 0,
                in_flight: slots(tx),
            },
            rx: Receiving {
                ring: rx,
                head: 0,
                tail: 0,
                offered: slots(rx),
                skipping: false,
            },
        };
        rings.rx.refill(&self.pool);
        self.rings = Some(rings);
    }

    #[inline]
    pub(super) fn rx(&mut self, batch: &mut Batch) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        rings.rx.receive(batch, &self.pool, &mut self.counters)
    }

    #[inline]
    pub(super) fn tx(&mut self, batch: &mut Batch) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        let sent = rings.tx.send(batch, &self.pool, &mut self.counters);
        if sent > 0 && rings.tx.ring.wants_interrupt() {
            interrupt(&rings.connection.client_to_server.interrupt);
        }
        sent
    }
}

impl Receiving {
    #[inline(always)]
    fn receive(
        &mut self,
        batch: &mut Batch,
        pool: &PoolHandle,
        counters: &mut PortCounters,
    ) -> usize {
        let filled = self.ring.tail().wrapping_sub(self.tail);
        if filled == 0 {
            if self.missing() >= REFILL_BATCH / 2 {
                self.refill(pool);
            }
            return 0;
        }
        let before = batch.len();
        if filled > self.head.wrapping_sub(self.tail) {
            // More filled than was offered: believe nothing, wait for the control channel to end it.
            counters.rx_malformed += 1;
            return 0;
        }
        let n = usize::from(filled).min(batch.room());
        let mut bytes = 0;
        for _ in 0..n {
            let d = self.ring.read(self.tail);
            let packet = self.offered[self.ring.place(self.tail)].take();
            self.tail = self.tail.wrapping_add(1);
            let Some(mut packet) = packet else { continue };
            let chained = d.flags & FLAG_NEXT != 0;
            if chained || self.skipping {
                // One frame over several buffers is longer than any frame we could send on.
                counters.rx_too_long += u64::from(!chained);
                self.skipping = chained;
            } else if d.length as usize > pool.room() {
                counters.rx_malformed += 1;
            } else {
                // SAFETY: `length` was just checked against the room behind the packet's start.
                unsafe { packet.set_len(d.length as u16) };
                bytes += u64::from(d.length);
                batch.push(packet);
            }
        }
        if self.missing() >= REFILL_BATCH {
            self.refill(pool);
        }
        let received = batch.len() - before;
        counters.rx_packets += received as u64;
        counters.rx_bytes += bytes;
        received
    }

    /// Descriptors without a buffer.
    #[inline(always)]
    fn missing(&self) -> u16 {
        self.ring.size() - self.head.wrapping_sub(self.tail)
    }

    /// Offers the server empty buffers in every free descriptor, as far as the pool has any.
    #[inline(never)]
    fn refill(&mut self, pool: &PoolHandle) {
        let Some(memory) = pool.memory() else { return };
        let room = pool.room() as u16;
        for _ in 0..self.missing() {
            let Some(packet) = pool.take(room) else { break };
            let offset = packet.data().as_ptr() as usize - memory.base().as_ptr() as usize;
            self.ring.write(
                self.head,
                Descriptor {
                    flags: 0,
                    region: POOL_REGION,
                    length: u32::from(room),
                    offset: offset as u32,
                },
            );
            self.offered[self.ring.place(self.head)] = Some(packet);
            self.head = self.head.wrapping_add(1);
        }
        self.ring.publish_head(self.head);
    }
}

impl Sending {
    #[inline(always)]
    fn in_flight(&self) -> u16 {
        self.head.wrapping_sub(self.reclaimed)
    }

    #[inline(always)]
    fn send(&mut self, batch: &mut Batch, pool: &PoolHandle, counters: &mut PortCounters) -> usize {
        let Some(memory) = pool.memory() else {
            return 0;
        };
        if usize::from(self.ring.size() - self.in_flight()) < batch.len() {
            self.reclaim();
        }
        let n = batch
            .len()
            .min(usize::from(self.ring.size() - self.in_flight()));
        let mut bytes = 0;
        for packet in batch.drain_front(n) {
            let packet = if pool.owns(&packet) {
                packet
            } else {
                match copied(pool, &packet) {
                    Ok(copy) => copy,
                    Err(TooLong) => {
                        counters.tx_too_long += 1;
                        continue;
                    }
                }
            };
            let offset = packet.data().as_ptr() as usize - memory.base().as_ptr() as usize;
            self.ring.write(
                self.head,
                Descriptor {
                    flags: 0,
                    region: POOL_REGION,
                    length: packet.len() as u32,
                    offset: offset as u32,
                },
            );
            bytes += packet.len() as u64;
            counters.tx_packets += 1;
            self.in_flight[self.ring.place(self.head)] = Some(packet);
            self.head = self.head.wrapping_add(1);
        }
        self.ring.publish_head(self.head);
        counters.tx_bytes += bytes;
        // After the packets are on their way, so that no packet waits for it.
        if self.in_flight() >= RECLAIM_BATCH {
            self.reclaim();
        }
        n
    }

    /// Takes frames back that the server has read.
    #[inline(always)]
    fn reclaim(&mut self) {
        let done = self.ring.tail().wrapping_sub(self.reclaimed);
        if done > self.in_flight() {
            return;
        }
        for _ in 0..done {
            self.in_flight[self.ring.place(self.reclaimed)] = None;
            self.reclaimed = self.reclaimed.wrapping_add(1);
        }
    }
}

/// A frame that fits no buffer of the pool, or a pool without a free one.
struct TooLong;

/// Copies a packet that lies in somebody else's memory into the pool: the one copy between two ports.
#[inline]
fn copied(pool: &PoolHandle, packet: &Packet) -> Result<Packet, TooLong> {
    let mut copy = pool.take(packet.len() as u16).ok_or(TooLong)?;
    copy.bytes_mut().copy_from_slice(packet.bytes());
    Ok(copy)
}
