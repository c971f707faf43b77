//! The insertion and removal of bytes after the first headers of a packet.

use taut_port::{Packet, PoolHandle};

/// Replaces `old` bytes after the first `keep` bytes of a packet by `new` bytes with undefined values. Returns false,
/// without a change, if neither the packet nor the pool has space, or if the packet is shorter than `keep + old`.
#[inline]
pub fn move_start(
    packet: &mut Packet,
    keep: usize,
    old: usize,
    new: usize,
    pool: &PoolHandle,
) -> bool {
    if packet.len() < keep + old {
        return false;
    }
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
    // The packet is still in a receive ring without headroom.
    let fits = packet.len() + more <= pool.room();
    let length = fits.then(|| u16::try_from(packet.len() + more).ok());
    let Some(mut copy) = length.flatten().and_then(|length| pool.take(length)) else {
        return false;
    };
    let (from, to) = (packet.bytes(), copy.bytes_mut());
    to[..keep].copy_from_slice(&from[..keep]);
    to[keep + new..].copy_from_slice(&from[keep + old..]);
    *packet = copy;
    true
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_resize_changes_a_packet_correctly_or_leaves_it_unchanged() {
        let pool = PoolHandle::new(4, false).unwrap();
        for length in 0..24_u16 {
            for (keep, old, new) in [(12, 0, 4), (12, 4, 0), (12, 4, 8), (14, 0, 0), (0, 3, 5)] {
                for has_headroom in [true, false] {
                    let mut packet = pool.take(length).unwrap();
                    for (byte, number) in packet.bytes_mut().iter_mut().zip(1..) {
                        *byte = number;
                    }
                    let before = packet.bytes().to_vec();
                    let headroom = packet.headroom() as u16;
                    if !has_headroom {
                        // This is like a receive ring without headroom.
                        assert!(packet.prepend(headroom));
                        packet.truncate(length);
                        packet.bytes_mut().copy_from_slice(&before);
                    }
                    let moved = move_start(&mut packet, keep, old, new, &pool);
                    let case = (length, keep, old, new, has_headroom);
                    assert_eq!(moved, before.len() >= keep + old, "{case:?}");
                    if moved {
                        assert_eq!(packet.len(), before.len() - old + new, "{case:?}");
                        assert_eq!(packet.bytes()[..keep], before[..keep], "{case:?}");
                        assert_eq!(
                            packet.bytes()[keep + new..],
                            before[keep + old..],
                            "{case:?}"
                        );
                    } else {
                        assert_eq!(packet.bytes(), before, "{case:?}");
                    }
                }
            }
        }
    }
}
