//! Interrupts of memif: a receiver that sleeps clears its ring's flag, and the sender then writes to the ring's file.

use super::connection::RingPlace;
use super::ring::Ring;
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use taut_sys::Alarm;

/// A receiver that has not slept during this many sends is taken for one that polls.
const REMEMBERED_SENDS: u32 = 1 << 16;

/// Knowledge of a sender about its receiver's sleep.
///
/// The flag has to be read after the packets are published, which takes a fence (Dekker's problem: store, then load
/// what the other side stores). A receiver that polls is not to pay for it, so the fence begins with the first sleep
/// that is seen. Before, and with peers without such a fence (DPDK, VPP), a wake-up can be missed in the nanoseconds
/// that a store takes to become visible: sleepers bound their sleep.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    fenced_sends_left: u32,
}

impl Wakes {
    /// Whether the receiver asks to be woken for what has just been published in `ring`.
    #[inline(always)]
    pub(super) fn asked(&mut self, ring: Ring) -> bool {
        if self.fenced_sends_left > 0 {
            self.fenced_sends_left -= 1;
            fence(Ordering::SeqCst);
        }
        let asked = ring.wants_interrupt();
        if asked {
            self.fenced_sends_left = REMEMBERED_SENDS;
        }
        asked
    }
}

/// Asks the senders of `rings`, which lie at `places`, to interrupt.
pub(super) fn arm(rings: impl Iterator<Item = Ring>, places: &[RingPlace], alarm: &mut Alarm) {
    for (ring, place) in rings.zip(places) {
        ring.unmask_interrupts();
        alarm.watch(place.interrupt.as_fd());
    }
}

/// Asks them not to, and takes the interrupts that have come.
pub(super) fn disarm(rings: impl Iterator<Item = Ring>, places: &[RingPlace]) {
    for (ring, place) in rings.zip(places) {
        ring.mask_interrupts();
        // Not waiting, whatever the peer makes of the file that it shares.
        let mut counted = [0; 8];
        let mut to = [IoSliceMut::new(&mut counted)];
        let _ = preadv2(&place.interrupt, &mut to, u64::MAX, ReadWriteFlags::NOWAIT);
    }
}
