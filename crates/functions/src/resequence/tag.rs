//! The redundancy tag (R-TAG) of IEEE 802.1CB, section 7.8.

use taut_function::resize::move_start;
use taut_port::{Packet, PoolHandle};
use taut_wire::Ethernet;

/// EtherType of the redundancy tag.
const ETHERTYPE: [u8; 2] = [0xf1, 0xc1];

/// The length of the tag: EtherType, reserved bytes, sequence number.
pub(super) const LEN_BYTES: usize = 6;

/// The content of a redundancy tag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tag {
    /// The group of flows; in the reserved bytes.
    pub group: u16,
    pub number: u16,
}

impl Tag {
    /// Returns the tag of a frame and its offset; none if the frame has no tag, or ends within it.
    #[inline]
    pub fn of(frame: &[u8]) -> Option<(Self, usize)> {
        let offset = Ethernet::new(frame).ok()?.header_len_bytes() - ETHERTYPE.len();
        let [a, b, c, d, e, f] = *frame.get(offset..)?.first_chunk::<LEN_BYTES>()?;
        // The EtherType of the packet follows.
        let is_tagged = [a, b] == ETHERTYPE && frame.len() >= offset + LEN_BYTES + ETHERTYPE.len();
        let tag = Self {
            group: u16::from_be_bytes([c, d]),
            number: u16::from_be_bytes([e, f]),
        };
        is_tagged.then_some((tag, offset))
    }

    /// Inserts the tag into a frame. Returns false, without a change, if the frame is truncated or has no space.
    #[inline]
    pub fn insert(self, packet: &mut Packet, pool: &PoolHandle) -> bool {
        let Ok(ethernet) = Ethernet::new(packet.bytes()) else {
            return false;
        };
        let offset = ethernet.header_len_bytes() - ETHERTYPE.len();
        if !move_start(packet, offset, 0, LEN_BYTES, pool) {
            return false;
        }
        let tag = &mut packet.bytes_mut()[offset..offset + LEN_BYTES];
        tag[..2].copy_from_slice(&ETHERTYPE);
        tag[2..4].copy_from_slice(&self.group.to_be_bytes());
        tag[4..].copy_from_slice(&self.number.to_be_bytes());
        true
    }

    /// Removes the redundancy tag at `offset`.
    #[inline]
    pub fn remove(packet: &mut Packet, offset: usize, pool: &PoolHandle) {
        move_start(packet, offset, LEN_BYTES, 0, pool);
    }
}
