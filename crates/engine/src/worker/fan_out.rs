//! Sending of batches whose packets leave through different ports, with copies and fragments.

use super::{Egress, Worker};
use crate::CountersView;
use taut_port::{Batch, Packet, PoolHandle};

impl Worker {
    /// Sends a batch whose packets leave through different ports, together with the copies that functions have
    /// requested. Packets for one port stay in order. If `mtu` is set, longer IPv4 packets that may be fragmented leave
    /// in fragments.
    #[inline(never)]
    pub(super) fn send_apart(
        &mut self,
        way: Egress,
        batch: &mut Batch,
        ran_dry: bool,
        mtu: Option<u16>,
        own: &mut CountersView,
    ) {
        if way.patient {
            return self.send_apart_patiently(way, batch, ran_dry, own);
        }
        let (outboxes, ports) = (&mut self.outboxes[..], &mut self.ports[..]);
        let pool = self.copies.as_ref();
        let add = |packet: Packet, to: usize, priority, own: &mut CountersView| {
            let (Some(outbox), Some(port)) = (outboxes.get_mut(to), ports.get_mut(to)) else {
                own.dropped_no_port += 1;
                return;
            };
            match mtu {
                Some(mtu) if packet.len() > usize::from(mtu) => {
                    let (mut made, mut is_whole) = (0_u64, true);
                    let is_cut = taut_function::fragment::cut(
                        packet.bytes(),
                        mtu,
                        |head, payload| match pool.and_then(|pool| joined(pool, head, payload)) {
                            Some(fragment) => {
                                outbox.push(fragment, priority, &mut **port);
                                made += 1;
                            }
                            None => is_whole = false,
                        },
                    );
                    // The slow path has sent one packet, but each of its fragments is counted when it leaves or is
                    // dropped. If a fragment had no memory, the packet itself is counted as well. The additional counts
                    // are added to `from_slow_path`.
                    let ends = made + u64::from(!is_whole);
                    own.dropped_no_copy += u64::from(!is_whole);
                    own.from_slow_path += ends.saturating_sub(1);
                    if !is_cut {
                        outbox.push(packet, priority, &mut **port);
                    }
                }
                _ => outbox.push(packet, priority, &mut **port),
            }
        };
        take_apart(batch, way.to, pool, own, add);
        for (outbox, port) in self.outboxes.iter_mut().zip(&mut self.ports) {
            outbox.end_of_batch(ran_dry, &mut **port);
        }
    }

    /// Sends as [`Worker::send_apart`] does, but without losing packets at a full port.
    #[cold]
    fn send_apart_patiently(
        &mut self,
        way: Egress,
        batch: &mut Batch,
        ran_dry: bool,
        own: &mut CountersView,
    ) {
        let parts = &mut self.parts;
        let (outboxes, ports) = (&mut self.outboxes, &mut self.ports);
        // The priority is ignored, because it matters only to packets that are queued at a full port.
        let add = |packet, to: usize, _, own: &mut CountersView| {
            let Some(part) = parts.get_mut(to) else {
                own.dropped_no_port += 1;
                return;
            };
            if part.room() == 0 {
                outboxes[to].accept(part, false, false, &mut *ports[to]);
            }
            part.push(packet);
        };
        take_apart(batch, way.to, self.copies.as_ref(), own, add);
        for (to, part) in self.parts.iter_mut().enumerate() {
            if !part.is_empty() {
                let (outbox, out) = (&mut self.outboxes[to], &mut *self.ports[to]);
                outbox.accept(part, ran_dry, way.patient, out);
            }
        }
    }
}

/// Passes each packet of a batch, and each requested copy, to `add` with its egress port and priority. The egress port
/// is `usual` unless a function has chosen another one.
#[inline(always)]
fn take_apart(
    batch: &mut Batch,
    usual: usize,
    copies: Option<&PoolHandle>,
    own: &mut CountersView,
    mut add: impl FnMut(Packet, usize, u8, &mut CountersView),
) {
    batch.scatter(|packet, to, priority, of_it| {
        for (_, to) in of_it {
            match copies.and_then(|pool| copy(pool, &packet)) {
                Some(copy) => add(copy, usize::from(*to), priority, own),
                None => own.dropped_no_copy += 1,
            }
        }
        add(packet, to.map_or(usual, usize::from), priority, own);
    });
}

/// Returns a packet from `pool` that contains `head` and then `payload`; None if the pool is empty or its slots are too
/// small.
fn joined(pool: &PoolHandle, head: &[u8], payload: &[u8]) -> Option<Packet> {
    let mut packet = pool.take(u16::try_from(head.len() + payload.len()).ok()?)?;
    let (front, back) = packet.bytes_mut().split_at_mut(head.len());
    front.copy_from_slice(head);
    back.copy_from_slice(payload);
    Some(packet)
}

/// Returns a copy of a packet from `pool`; None if the pool is empty or its slots are too small.
fn copy(pool: &PoolHandle, packet: &Packet) -> Option<Packet> {
    let mut copy = pool.take(u16::try_from(packet.len()).ok()?)?;
    copy.bytes_mut().copy_from_slice(packet.bytes());
    Some(copy)
}
