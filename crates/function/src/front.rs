//! Room in the middle of a packet: headers move, what follows stays where it is.

use taut_port::{Packet, PoolHandle};

/// Replaces the `old` bytes behind the first `keep` ones by `new` ones of no particular value. False, and no change,
/// where there is no room: neither before the frame nor in `pool`.
#[inline]
pub(crate) fn replace(
    packet: &mut Packet,
    keep: usize,
    old: usize,
    new: usize,
    pool: &PoolHandle,
) -> bool {
    if new <= old {
        let less = old - new;
        packet.bytes_mut().copy_within(..keep, less);
        return packet.drop_front(less as u16);
    }
    let more = new - old;
    if packet.prepend(more as u16) {
        packet.bytes_mut().copy_within(more..more + keep, 0);
        return true;
    }
    // Received in place, in a ring that leaves no room before its frames.
    let length = packet.len() + more;
    if length > pool.room() {
        return false;
    }
    let Some(mut copy) = pool.take(length as u16) else {
        return false;
    };
    let (from, to) = (packet.bytes(), copy.bytes_mut());
    to[..keep].copy_from_slice(&from[..keep]);
    to[keep + more..].copy_from_slice(&from[keep..]);
    *packet = copy;
    true
}
