//! Bytes put in or taken out behind the first headers of a packet.

use taut_port::{Packet, PoolHandle};

/// Replaces `old` bytes behind the first `keep` ones by `new` ones of no particular value. False, and no change,
/// where neither the packet nor the pool has room.
pub(crate) fn move_start(
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
    let fits = packet.len() + more <= pool.room();
    let length = fits.then(|| u16::try_from(packet.len() + more).ok());
    let Some(mut copy) = length.flatten().and_then(|length| pool.take(length)) else {
        return false;
    };
    let (from, to) = (packet.bytes(), copy.bytes_mut());
    to[..keep].copy_from_slice(&from[..keep]);
    to[keep + more..].copy_from_slice(&from[keep..]);
    *packet = copy;
    true
}
