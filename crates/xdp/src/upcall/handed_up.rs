//! What a program hands up to the process, out of its ring.

use super::UpcallPrograms;
use crate::program::as_io;
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use taut_sys::Error;

/// How long a call waits for the first frame.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};
/// Bytes of the length in front of a frame in the ring.
const LENGTH_BYTES: usize = 4;

/// The frames that the program of one direction hands up.
pub struct HandedUp {
    ring: RingBuffer<'static>,
}

impl std::fmt::Debug for HandedUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandedUp").finish_non_exhaustive()
    }
}

impl HandedUp {
    /// What the direction from port `from` hands up from now on: shown to `each`, and none where a frame is said to be
    /// longer than what there is of it. `what` is what errors say was being done.
    ///
    /// # Errors
    /// What the machine lacks.
    pub fn new(
        what: &str,
        programs: &dyn UpcallPrograms,
        from: usize,
        mut each: impl FnMut(Option<&[u8]>) + 'static,
    ) -> Result<Self, Error> {
        let failed = |e| Error::system(what, as_io(e));
        let mut builder = RingBufferBuilder::new();
        builder
            .add(programs.ring(from), move |record| {
                each(frame(record));
                0
            })
            .map_err(failed)?;
        Ok(Self {
            ring: builder.build().map_err(failed)?,
        })
    }

    /// Shows so many frames at most, in their order; waits half a millisecond for the first. How many it were.
    pub fn show(&mut self, most: usize) -> usize {
        let mut shown = self.ring.consume_raw_n(most);
        if shown == 0 {
            // SAFETY: the descriptor is the ring's, which outlives the call.
            let ring = unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) };
            // A signal ends it early.
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(ring, PollFlags::IN)],
                Some(&WAIT),
            );
            shown = self.ring.consume_raw_n(most);
        }
        usize::try_from(shown).unwrap_or(0)
    }
}

/// `struct handed_up` in the program: how long, then the frame.
fn frame(record: &[u8]) -> Option<&[u8]> {
    let (length, rest) = record.split_at_checked(LENGTH_BYTES)?;
    rest.get(..u32::from_ne_bytes(length.try_into().ok()?) as usize)
}
