//! Receiving from several rings in turn.

use crate::batch::Batch;

/// Lets `receive` fill `batch` from the rings in turn, each time from the next one on, so that none is left behind.
/// Returns how many packets came.
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
