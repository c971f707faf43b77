//! Round-robin receiving from several rings.

use crate::batch::Batch;

/// Fills `batch` by calling `receive` for the rings round robin. Each call starts after the ring read last, so
/// that none starves. Returns the number of received packets.
#[inline(never)]
pub(super) fn round_robin<R>(
    rings: &mut [R],
    next: &mut usize,
    batch: &mut Batch,
    mut receive: impl FnMut(&mut R, &mut Batch) -> usize,
) -> usize {
    let mut received = 0;
    for _ in 0..rings.len() {
        if let Some(ring) = rings.get_mut(*next) {
            received += receive(ring, batch);
        }
        *next = (*next + 1) % rings.len();
        if batch.room() == 0 {
            break;
        }
    }
    received
}
