//! The server's data path: receives in place from the client's buffers, and sends by writing into the empty buffers
//! that the client offers.

use super::connection::Connection;
use super::knock::Knocker;
use super::ring::{Descriptor, FLAG_NEXT, Ring};
use super::round_robin::round_robin;
use super::wakes::{self, Wakes};
use crate::{Batch, Packet, PoolHandle, PortCounters};
use std::ptr::NonNull;
use taut_sys::Alarm;

pub(super) struct ServerQueue {
    /// Pool for frames in several buffers, and for frames that the client must not be able to change.
    pool: PoolHandle,
    /// True if all received frames are copied into the pool.
    pub(super) copies: bool,
    rings: Option<Rings>,
    knocker: &'static Knocker,
    pub(super) counters: PortCounters,
}

struct Rings {
    connection: Connection,
    rx: Vec<Receiving>,
    /// Index of the ring that is checked next for received frames.
    next_rx: usize,
    tx: Sending,
}

struct Receiving {
    ring: Ring,
    /// Index after the last descriptor that was received from the client.
    next: u16,
    /// Index after the last descriptor returned to the client, written by taut.
    tail: u16,
    /// Record of the descriptors whose buffers packets use in place.
    ledger: PoolHandle,
    /// For each descriptor, true if it was returned out of order and waits for earlier ones.
    done: Box<[bool]>,
}

struct Sending {
    ring: Ring,
    wakes: Wakes,
    /// Index after the last filled buffer, written by taut.
    tail: u16,
    /// Index after the last buffer that the client had offered when this index was last loaded.
    offered: u16,
}

impl ServerQueue {
    pub(super) fn new(pool: PoolHandle, knocker: &'static Knocker) -> Self {
        Self {
            pool,
            copies: false,
            rings: None,
            knocker,
            counters: PortCounters::default(),
        }
    }

    pub(super) fn is_connected(&self) -> bool {
        self.rings.is_some()
    }

    /// Returns the number of packets in the connection's memory.
    pub(super) fn in_place(&self) -> usize {
        let rings = self.rings.iter().flat_map(|rings| &rings.rx);
        rings.map(|rx| rx.ledger.outstanding()).sum()
    }

    /// Releases the connection, unless packets are still in its memory.
    pub(super) fn disconnect(&mut self) -> bool {
        if self.in_place() > 0 {
            return false;
        }
        self.rings = None;
        true
    }

    pub(super) fn connect(&mut self, connection: Connection) {
        let (Some(rx), Some(tx)) = (
            connection.rings(&connection.client_to_server),
            connection.rings(&connection.server_to_client),
        ) else {
            return;
        };
        let Some(tx) = tx.first().copied() else {
            return;
        };
        rx.iter().for_each(Ring::mask_interrupts);
        self.rings = Some(Rings {
            connection,
            rx: rx
                .into_iter()
                .map(|ring| Receiving {
                    ring,
                    next: 0,
                    tail: 0,
                    ledger: PoolHandle::ledger(u32::from(ring.size())),
                    done: vec![false; usize::from(ring.size())].into(),
                })
                .collect(),
            next_rx: 0,
            tx: Sending {
                ring: tx,
                wakes: Wakes::default(),
                tail: 0,
                offered: 0,
            },
        });
    }

    #[inline]
    pub(super) fn rx(&mut self, batch: &mut Batch) -> usize {
        let Some(Rings {
            connection,
            rx,
            next_rx,
            ..
        }) = &mut self.rings
        else {
            return 0;
        };
        let mut receive = |rx: &mut Receiving, batch: &mut Batch| {
            if rx.ledger.has_returned() {
                rx.give_back();
            }
            let copies = self.copies;
            rx.receive(batch, connection, &self.pool, copies, &mut self.counters)
        };
        if let [rx] = rx.as_mut_slice() {
            return receive(rx, batch);
        }
        round_robin(rx, next_rx, batch, receive)
    }

    #[inline]
    pub(super) fn tx(&mut self, batch: &mut Batch) -> usize {
        let Some(Rings { connection, tx, .. }) = &mut self.rings else {
            return 0;
        };
        let sent = tx.send(batch, connection, &mut self.counters);
        if sent > 0 && tx.wakes.asked(tx.ring) {
            self.knocker
                .knock(&connection.server_to_client[0].interrupt);
        }
        sent
    }

    /// Requests interrupts from the client.
    pub(super) fn arm(&self, alarm: &mut Alarm) {
        if let Some(Rings { connection, rx, .. }) = &self.rings {
            let rings = rx.iter().map(|rx| rx.ring);
            wakes::arm(rings, &connection.client_to_server, alarm);
        }
    }

    /// Withdraws the request that the client sends interrupts.
    pub(super) fn disarm(&self) {
        if let Some(Rings { connection, rx, .. }) = &self.rings {
            let rings = rx.iter().map(|rx| rx.ring);
            wakes::disarm(rings, &connection.client_to_server);
        }
    }
}

impl Receiving {
    #[inline(always)]
    fn receive(
        &mut self,
        batch: &mut Batch,
        connection: &Connection,
        pool: &PoolHandle,
        copies: bool,
        counters: &mut PortCounters,
    ) -> usize {
        let head = self.ring.head();
        if head == self.next {
            return 0;
        }
        // Descriptors that are not returned yet cannot be filled again, so the ledger always has space.
        let held = self.next.wrapping_sub(self.tail);
        let Some(mut filled) = Ring::advance(head, self.next, self.ring.size() - held) else {
            connection.end_for_wrong_index(counters);
            return 0;
        };
        let before = batch.len();
        let tail_before = self.tail;
        let mut bytes = 0;
        let mut in_place = 0;
        while filled > 0 && batch.room() > 0 {
            let d = self.ring.read(self.next);
            if copies || d.flags & FLAG_NEXT != 0 {
                let pieces = self.gather(filled, batch, connection, pool, counters);
                if pieces == 0 {
                    break;
                }
                filled -= pieces;
                continue;
            }
            let place = self.ring.place(self.next);
            self.next = self.next.wrapping_add(1);
            filled -= 1;
            let data = connection.bytes(d.region, d.offset, d.length as usize);
            match (data, u16::try_from(d.length)) {
                (Some(data), Ok(len)) => {
                    in_place += 1;
                    // SAFETY: the range was just checked to be in a mapped region, which stays mapped until the
                    // ledger's packets are back (`disconnect`). The descriptor is ours until its slot is returned, and
                    // is counted out of the ledger.
                    batch.push(unsafe {
                        Packet::new(data, len, 0, self.ledger.raw(), place as u32)
                    });
                    bytes += u64::from(d.length);
                }
                _ => {
                    counters.rx_malformed += 1;
                    self.return_place(place);
                }
            }
        }
        self.ledger.count_out(in_place);
        if self.tail != tail_before {
            self.ring.publish_tail(self.tail);
        }
        let received = batch.len() - before;
        counters.rx_packets += received as u64;
        counters.rx_bytes += bytes;
        received
    }

    /// Copies the next frame, which may be in several buffers, into a packet of the pool. Returns the number of the
    /// frame's descriptors, or 0 if a part of the frame has not arrived or the pool is empty.
    #[cold]
    fn gather(
        &mut self,
        filled: u16,
        batch: &mut Batch,
        connection: &Connection,
        pool: &PoolHandle,
        counters: &mut PortCounters,
    ) -> u16 {
        let mut pieces = 0;
        let mut total = 0_usize;
        loop {
            if pieces == filled {
                if filled < self.ring.size() {
                    return 0;
                }
                // A chain that fills the whole ring has no end.
                counters.rx_malformed += 1;
                break;
            }
            let d = self.ring.read(self.next.wrapping_add(pieces));
            pieces += 1;
            total = total.saturating_add(d.length as usize);
            if d.flags & FLAG_NEXT == 0 {
                let fits = u16::try_from(total).ok();
                let fits = fits.filter(|len| usize::from(*len) <= pool.room());
                let whole = fits.and_then(|len| pool.take(len));
                match whole {
                    // The frame waits until packets have been returned.
                    None if fits.is_some() => return 0,
                    None => counters.rx_too_long += 1,
                    Some(mut packet) => {
                        if self.copy_pieces(pieces, connection, packet.bytes_mut()) {
                            batch.push(packet);
                            counters.rx_bytes += total as u64;
                        } else {
                            counters.rx_malformed += 1;
                        }
                    }
                }
                break;
            }
        }
        for _ in 0..pieces {
            let place = self.ring.place(self.next);
            self.next = self.next.wrapping_add(1);
            self.return_place(place);
        }
        pieces
    }

    /// Copies the `pieces` buffers of a frame into `to`, one after the other. Returns false if one is not inside its
    /// region, or if the peer has changed a length since the sum of the lengths was computed.
    fn copy_pieces(&self, pieces: u16, connection: &Connection, mut to: &mut [u8]) -> bool {
        for i in 0..pieces {
            let d = self.ring.read(self.next.wrapping_add(i));
            let len = d.length as usize;
            let Some(from) = connection.bytes(d.region, d.offset, len) else {
                return false;
            };
            if len > to.len() {
                return false;
            }
            let (here, rest) = to.split_at_mut(len);
            // SAFETY: `from` has `len` bytes inside a mapped region, and pool memory is another mapping.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), here.as_mut_ptr(), len) };
            to = rest;
        }
        to.is_empty()
    }

    /// Returns the descriptors of dropped packets to the client.
    #[inline(always)]
    fn give_back(&mut self) {
        let ledger = self.ledger.clone();
        ledger.drain_returned(|place| self.return_place(place as usize));
        self.ring.publish_tail(self.tail);
    }

    /// Marks the descriptor at `place` as returned, and moves the tail past all successive returned descriptors.
    #[inline(always)]
    fn return_place(&mut self, place: usize) {
        if place != self.ring.place(self.tail) {
            self.done[place] = true;
            return;
        }
        self.tail = self.tail.wrapping_add(1);
        while self.done[self.ring.place(self.tail)] {
            self.done[self.ring.place(self.tail)] = false;
            self.tail = self.tail.wrapping_add(1);
        }
    }
}

impl Sending {
    #[inline(always)]
    fn send(
        &mut self,
        batch: &mut Batch,
        connection: &Connection,
        counters: &mut PortCounters,
    ) -> usize {
        let mut free = self.offered.wrapping_sub(self.tail);
        if usize::from(free) < batch.len() {
            let Some(more) = Ring::advance(self.ring.head(), self.offered, self.ring.size() - free)
            else {
                connection.end_for_wrong_index(counters);
                return 0;
            };
            self.offered = self.offered.wrapping_add(more);
            free += more;
        }
        let n = batch.len().min(usize::from(free));
        let (ring, mut tail) = (self.ring, self.tail);
        let mut sent = PortCounters::default();
        for packet in &batch.packets()[..n] {
            let d = ring.read(tail);
            let len = packet.len();
            if len > d.length as usize {
                sent.tx_too_long += 1;
                continue;
            }
            let length = match connection.bytes(d.region, d.offset, len) {
                Some(to) => {
                    copy_frame(packet, to);
                    sent.tx_packets += 1;
                    sent.tx_bytes += len as u64;
                    len as u32
                }
                None => {
                    // The offered buffer is not inside a region, so it is returned empty.
                    sent.tx_failed += 1;
                    0
                }
            };
            ring.write_length(
                tail,
                Descriptor {
                    flags: 0,
                    length,
                    ..d
                },
            );
            tail = tail.wrapping_add(1);
        }
        self.tail = tail;
        ring.publish_tail(tail);
        // Sent packets are released after the transmission, so that the release delays no packet.
        batch.drop_front(n);
        counters.tx_packets += sent.tx_packets;
        counters.tx_bytes += sent.tx_bytes;
        counters.tx_too_long += sent.tx_too_long;
        counters.tx_failed += sent.tx_failed;
        n
    }
}

/// Copies a frame's bytes into a buffer of the peer.
#[inline(always)]
fn copy_frame(packet: &Packet, to: NonNull<u8>) {
    // SAFETY: `to` has `packet.len()` bytes in a mapped region (checked by the caller). Source and destination differ:
    // the client offers a buffer or fills it, never both. A malicious client that offers a filled buffer makes them
    // equal or overlap, which `copy` (memmove) allows.
    unsafe { crate::frame_copy::copy_frame(packet.data(), to, packet.len()) };
}
