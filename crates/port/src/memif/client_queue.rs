//! The client's data path: frames are in the shared pool, so sending and receiving move descriptors.

use super::connection::Connection;
use super::knock::Knocker;
use super::ring::{Descriptor, FLAG_NEXT, Ring};
use super::round_robin::round_robin;
use super::wakes::{self, Wakes};
use crate::{Batch, Packet, PoolHandle, PortCounters};
use taut_sys::Alarm;

/// While packets arrive, the client offers new empty buffers as soon as this number of descriptors has no buffer. While
/// no packets arrive, it does so at half of this number.
const REFILL_BATCH: u16 = 64;

/// The threshold of sent frames in flight at which the client reclaims those that the server has read.
const RECLAIM_BATCH: u16 = 64;

pub(super) struct ClientQueue {
    pool: PoolHandle,
    rings: Option<Rings>,
    knocker: &'static Knocker,
    pub(super) counters: PortCounters,
}

struct Rings {
    connection: Connection,
    tx: Sending,
    rx: Vec<Receiving>,
    /// Index of the ring that is checked next for received frames.
    next_rx: usize,
}

struct Sending {
    pool: PoolHandle,
    /// Region number under which the pool is announced to the server.
    pool_region: u16,
    ring: Ring,
    wakes: Wakes,
    /// Index after the last filled descriptor, written by taut.
    head: u16,
    /// Index after the last reclaimed frame: one that the server has read and whose slot is back in the pool.
    reclaimed: u16,
    /// Pool slot of the frame in each filled descriptor.
    in_flight: Box<[u32]>,
}

struct Receiving {
    pool: PoolHandle,
    pool_region: u16,
    ring: Ring,
    /// Index after the last offered buffer, written by taut.
    head: u16,
    /// Index after the last buffer that was received from the server.
    tail: u16,
    /// Pool slot of the buffer in each offered descriptor.
    offered: Box<[u32]>,
    /// True within a frame in several buffers that is skipped because it does not fit into one buffer.
    skipping: bool,
}

fn slots(ring: Ring) -> Box<[u32]> {
    vec![0; usize::from(ring.size())].into()
}

impl ClientQueue {
    pub(super) fn new(pool: PoolHandle, knocker: &'static Knocker) -> Self {
        Self {
            pool,
            rings: None,
            knocker,
            counters: PortCounters::default(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.rings.is_some()
    }

    /// Releases the connection and returns its packets to the pool. The result is always true.
    pub(super) fn disconnect(&mut self) -> bool {
        self.rings = None;
        true
    }

    pub(super) fn connect(&mut self, connection: Connection) {
        let (Some(tx), Some(rx)) = (
            connection.rings(&connection.client_to_server),
            connection.rings(&connection.server_to_client),
        ) else {
            return;
        };
        let Some(tx) = tx.first().copied() else {
            return;
        };
        let pool_region = connection.pool_region;
        let mut rings = Rings {
            connection,
            tx: Sending {
                pool: self.pool.clone(),
                pool_region,
                ring: tx,
                wakes: Wakes::default(),
                head: 0,
                reclaimed: 0,
                in_flight: slots(tx),
            },
            rx: rx
                .into_iter()
                .map(|ring| Receiving {
                    pool: self.pool.clone(),
                    pool_region,
                    ring,
                    head: 0,
                    tail: 0,
                    offered: slots(ring),
                    skipping: false,
                })
                .collect(),
            next_rx: 0,
        };
        for rx in &mut rings.rx {
            rx.ring.mask_interrupts();
            rx.refill();
        }
        self.rings = Some(rings);
    }

    #[inline]
    pub(super) fn rx(&mut self, batch: &mut Batch) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        let mut receive = |rx: &mut Receiving, batch: &mut Batch| {
            rx.receive(batch, &rings.connection, &mut self.counters)
        };
        if let [rx] = rings.rx.as_mut_slice() {
            return receive(rx, batch);
        }
        round_robin(&mut rings.rx, &mut rings.next_rx, batch, receive)
    }

    #[inline]
    pub(super) fn tx(&mut self, batch: &mut Batch) -> usize {
        let Some(rings) = &mut self.rings else {
            return 0;
        };
        let sent = rings.tx.send(batch, &rings.connection, &mut self.counters);
        if sent > 0 && rings.tx.wakes.asked(rings.tx.ring) {
            self.knocker
                .knock(&rings.connection.client_to_server[0].interrupt);
        }
        sent
    }

    /// Requests interrupts from the server.
    pub(super) fn arm(&self, alarm: &mut Alarm) {
        if let Some(Rings { connection, rx, .. }) = &self.rings {
            let rings = rx.iter().map(|rx| rx.ring);
            wakes::arm(rings, &connection.server_to_client, alarm);
        }
    }

    /// Withdraws the request that the server sends interrupts.
    pub(super) fn disarm(&self) {
        if let Some(Rings { connection, rx, .. }) = &self.rings {
            let rings = rx.iter().map(|rx| rx.ring);
            wakes::disarm(rings, &connection.server_to_client);
        }
    }
}

impl Receiving {
    #[inline(always)]
    fn receive(
        &mut self,
        batch: &mut Batch,
        connection: &Connection,
        counters: &mut PortCounters,
    ) -> usize {
        let tail = self.ring.tail();
        if tail == self.tail {
            if self.missing() >= REFILL_BATCH / 2 {
                self.refill();
            }
            return 0;
        }
        // The server cannot fill more buffers than were offered.
        let Some(filled) = Ring::advance(tail, self.tail, self.head.wrapping_sub(self.tail)) else {
            connection.end_for_wrong_index(counters);
            return 0;
        };
        let before = batch.len();
        let room = self.pool.room();
        let n = usize::from(filled).min(batch.room());
        let mut bytes = 0;
        for _ in 0..n {
            let d = self.ring.read(self.tail);
            let slot = self.offered[self.ring.place(self.tail)];
            self.tail = self.tail.wrapping_add(1);
            let chained = d.flags & FLAG_NEXT != 0;
            if chained || self.skipping || d.length as usize > room {
                self.refuse(slot, chained, counters);
                continue;
            }
            bytes += u64::from(d.length);
            // SAFETY: the slot has been counted out since its buffer was offered, and advancing the tail has removed it
            // from the ring; the length was compared with the size of a slot.
            batch.push(unsafe { self.pool.packet(slot, d.length as u16) });
        }
        if self.missing() >= REFILL_BATCH {
            self.refill();
        }
        let received = batch.len() - before;
        counters.rx_packets += received as u64;
        counters.rx_bytes += bytes;
        received
    }

    /// Skips a received buffer that is not a complete frame, because the frame is too long for a single buffer or the
    /// length of the buffer is invalid.
    #[cold]
    fn refuse(&mut self, slot: u32, chained: bool, counters: &mut PortCounters) {
        // SAFETY: the slot has been counted out since its buffer was offered, and the caller has removed it from the
        // ring.
        unsafe { self.pool.return_slot(slot) };
        if !chained {
            let too_long = self.skipping;
            counters.rx_too_long += u64::from(too_long);
            counters.rx_malformed += u64::from(!too_long);
        }
        self.skipping = chained;
    }

    /// Returns the number of receive descriptors without a buffer.
    #[inline(always)]
    fn missing(&self) -> u16 {
        self.ring.size() - self.head.wrapping_sub(self.tail)
    }

    /// Offers the server empty buffers in all free receive descriptors, as long as the pool has any.
    #[inline(never)]
    fn refill(&mut self) {
        let length = self.pool.room() as u32;
        let (ring, pool, mut head) = (self.ring, self.pool.clone(), self.head);
        pool.lend_slots(usize::from(self.missing()), |slot| {
            let offset = pool.offset_of(slot) as u32;
            ring.write(
                head,
                Descriptor {
                    flags: 0,
                    region: self.pool_region,
                    length,
                    offset,
                },
            );
            self.offered[ring.place(head)] = slot;
            head = head.wrapping_add(1);
        });
        self.head = head;
        ring.publish_head(head);
    }
}

impl Drop for Receiving {
    fn drop(&mut self) {
        while self.tail != self.head {
            // SAFETY: the slot has been counted out since its buffer was offered, and has received no frame; the
            // connection has ended.
            unsafe {
                self.pool
                    .return_slot(self.offered[self.ring.place(self.tail)])
            };
            self.tail = self.tail.wrapping_add(1);
        }
    }
}

impl Sending {
    #[inline(always)]
    fn in_flight(&self) -> u16 {
        self.head.wrapping_sub(self.reclaimed)
    }

    #[inline(always)]
    fn send(
        &mut self,
        batch: &mut Batch,
        connection: &Connection,
        counters: &mut PortCounters,
    ) -> usize {
        if usize::from(self.ring.size() - self.in_flight()) < batch.len() {
            self.reclaim(connection, counters);
        }
        let n = batch
            .len()
            .min(usize::from(self.ring.size() - self.in_flight()));
        let (ring, base) = (self.ring, self.pool.base().as_ptr() as usize);
        let first = self.head;
        let mut head = first;
        let mut bytes = 0;
        batch.take_front(n, |packet| {
            let packet = if self.pool.owns(&packet) {
                packet
            } else {
                match self.copied(&packet) {
                    Some(copy) => copy,
                    None => {
                        counters.tx_too_long += 1;
                        return;
                    }
                }
            };
            let offset = (packet.data().as_ptr() as usize - base) as u32;
            let length = packet.len() as u32;
            ring.write(
                head,
                Descriptor {
                    flags: 0,
                    region: self.pool_region,
                    length,
                    offset,
                },
            );
            bytes += u64::from(length);
            self.in_flight[ring.place(head)] = packet.into_slot();
            head = head.wrapping_add(1);
        });
        self.head = head;
        ring.publish_head(head);
        counters.tx_packets += u64::from(head.wrapping_sub(first));
        counters.tx_bytes += bytes;
        // Buffers are reclaimed after the transmission, so that reclaiming delays no packet.
        if self.in_flight() >= RECLAIM_BATCH {
            self.reclaim(connection, counters);
        }
        n
    }

    /// Returns to the pool the frames that the server has read.
    #[inline(always)]
    fn reclaim(&mut self, connection: &Connection, counters: &mut PortCounters) {
        let Some(done) = Ring::advance(self.ring.tail(), self.reclaimed, self.in_flight()) else {
            connection.end_for_wrong_index(counters);
            return;
        };
        for _ in 0..done {
            self.take_one_back();
        }
    }

    #[inline(always)]
    fn take_one_back(&mut self) {
        // SAFETY: the slot has been counted out since its frame was sent; the server has read it, or the connection has
        // ended.
        unsafe {
            self.pool
                .return_slot(self.in_flight[self.ring.place(self.reclaimed)])
        };
        self.reclaimed = self.reclaimed.wrapping_add(1);
    }

    /// Copies a packet from other memory into the pool: the only copy between two ports. None if the frame fits into no
    /// buffer, or the pool is empty.
    #[inline]
    fn copied(&self, packet: &Packet) -> Option<Packet> {
        let mut copy = self.pool.take(packet.len() as u16)?;
        crate::frame_copy::copy_bytes(packet.bytes(), copy.bytes_mut());
        Some(copy)
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        while self.reclaimed != self.head {
            self.take_one_back();
        }
    }
}
