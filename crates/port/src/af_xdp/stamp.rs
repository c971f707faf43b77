//! The arrival timestamp that the XDP program writes before a frame (`struct arrival` in
//! crates/xdp/ebpf/xdp_to_socket.bpf.c).

use crate::Packet;

/// The two words of an arrival timestamp: the number [`MARK`], and a time in ns of `CLOCK_MONOTONIC`.
type Arrival = [u64; 2];

/// The number that distinguishes a timestamp from earlier contents of the headroom (`ARRIVAL_MARK` of the XDP program).
const MARK: u64 = 0x9d1c_7ab3_5e64_f028;

/// Returns the timestamp before a received frame in ns, or 0 if there is none, and invalidates the timestamp.
#[inline(always)]
pub(super) fn take(packet: &mut Packet) -> u64 {
    if packet.headroom() < size_of::<Arrival>() {
        return 0;
    }
    // SAFETY: the headroom is memory of the packet, which owns it exclusively; the accesses need no alignment.
    unsafe {
        let at = packet
            .data()
            .sub(size_of::<Arrival>())
            .cast::<Arrival>()
            .as_ptr();
        let [mark, time_ns] = at.read_unaligned();
        if mark != MARK {
            return 0;
        }
        // A timestamp left in this memory would be taken for that of the next frame in the same memory, if that frame
        // has none.
        at.write_unaligned([0, time_ns]);
        time_ns
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::PoolHandle;

    #[test]
    fn a_timestamp_without_magic_number_or_already_read_is_ignored() {
        let pool = PoolHandle::new(1, false).unwrap();
        let mut packet = pool.take(16).unwrap();
        let [mark, time] = [MARK, 7].map(u64::to_ne_bytes);
        packet.bytes_mut().copy_from_slice(&[mark, time].concat());
        // The frame starts after the timestamp.
        let address = packet.data();
        let headroom = packet.headroom() as u16;
        let (slot, owner) = (packet.slot(), packet.pool());
        std::mem::forget(packet);
        // SAFETY: the same packet, 16 bytes further on.
        let mut packet = unsafe { Packet::new(address.add(16), 60, headroom + 16, owner, slot) };
        assert_eq!(take(&mut packet), 7);
        assert_eq!(take(&mut packet), 0);
        let len = packet.headroom() as u16 - 15;
        assert!(packet.prepend(len));
        // The headroom is too small for a timestamp.
        assert_eq!(take(&mut packet), 0);
    }
}
