//! Interrupts of memif: a sleeping receiver clears its ring's flag, and the sender then writes to the ring's file.

use super::connection::RingPlace;
use super::ring::Ring;
use rustix::io::{IoSliceMut, ReadWriteFlags, preadv2};
use std::os::fd::AsFd;
use std::sync::atomic::{Ordering, fence};
use taut_sys::Alarm;

/// The number of sends without a sleeping receiver after which the sender regards the receiver as polling.
const REMEMBERED_SENDS: u32 = 1 << 16;

/// The state of a sender: whether its receiver is regarded as polling, or may sleep.
///
/// The flag has to be read after the packets are published, which takes a fence (Dekker's problem: store, then load the
/// other side's store). A sender should not pay for that fence while its receiver polls, so the fence is used only
/// after the first observed sleep. Before that, and with peers without such a fence (DPDK, VPP), a wakeup can be missed
/// in the nanoseconds until a store is visible. Therefore receivers limit the length of their sleep.
#[derive(Debug, Default)]
pub(super) struct Wakes {
    fenced_sends_left: u32,
}

impl Wakes {
    /// Returns true if the receiver requests a wakeup for packets just published in `ring`.
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

/// Requests interrupts from the senders of `rings`, and makes `alarm` watch the rings' interrupt files, which `places`
/// contains.
pub(super) fn arm(rings: impl Iterator<Item = Ring>, places: &[RingPlace], alarm: &mut Alarm) {
    for (ring, place) in rings.zip(places) {
        ring.unmask_interrupts();
        alarm.watch(place.interrupt.as_fd());
    }
}

/// Withdraws the request for interrupts from the senders of `rings`, and clears the interrupts received before.
pub(super) fn disarm(rings: impl Iterator<Item = Ring>, places: &[RingPlace]) {
    for (ring, place) in rings.zip(places) {
        ring.mask_interrupts();
        // NOWAIT, because the peer may change the flags of the shared file.
        let mut counted = [0; 8];
        let mut to = [IoSliceMut::new(&mut counted)];
        let _ = preadv2(&place.interrupt, &mut to, u64::MAX, ReadWriteFlags::NOWAIT);
    }
}
