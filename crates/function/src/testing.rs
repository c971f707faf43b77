//! Packets for the tests of functions.

use crate::datagram::Seen;
use taut_port::{Batch, PoolHandle};
use taut_wire::Headers;

/// Returns a batch of one frame, as a port could deliver it. `headroom` is the frame's headroom in bytes, which may be
/// more or less than in a pool's buffers.
///
/// # Panics
/// Panics if there is no memory, or if the frame is longer than a buffer.
pub fn batch_of(frame: &[u8], headroom: u16) -> Batch {
    let pool = PoolHandle::new(1, false).unwrap_or_else(|e| panic!("{e}"));
    let mut batch = Batch::new();
    pool.fill(&mut batch, 1, frame.len() as u16);
    let packet = &mut batch.packets_mut()[0];
    let there = packet.headroom() as u16;
    assert!(packet.prepend(there) && packet.drop_front(headroom));
    packet.truncate(frame.len() as u16);
    packet.bytes_mut().copy_from_slice(frame);
    batch
}

/// Returns the kind of a frame, as functions that change UDP payloads see it.
pub fn seen(frame: &[u8]) -> Seen {
    Seen::of(&Headers::of(frame), frame)
}
