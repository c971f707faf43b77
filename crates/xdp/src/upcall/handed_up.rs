//! Frames that a program passes up to this process through a ring.

use super::UpcallPrograms;
use crate::program::as_io;
use libbpf_rs::{RingBuffer, RingBufferBuilder};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::BorrowedFd;
use taut_sys::Error;

/// Timeout of a call that waits for the first frame.
const WAIT: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000,
};
/// Length of the length field before a frame in the ring, bytes.
const LENGTH_BYTES: usize = 4;

/// The frames that the XDP program of one direction passes up.
pub struct HandedUp {
    ring: RingBuffer<'static>,
}

impl std::fmt::Debug for HandedUp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HandedUp").finish_non_exhaustive()
    }
}

impl HandedUp {
    /// Opens the ring of the direction that begins at port `from`; `each` is called for every record: with the frame,
    /// or with none if the record is shorter than its length field states. `what` names the action in error messages.
    ///
    /// # Errors
    /// The machine lacks a requirement.
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

    /// Passes at most `most` frames to `each`, in order; waits up to half a millisecond for the first frame. Returns
    /// the number of frames.
    pub fn show(&mut self, most: usize) -> usize {
        let mut shown = self.ring.consume_raw_n(most);
        if shown == 0 {
            // SAFETY: the descriptor is the ring's, which outlives the call.
            let ring = unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) };
            // A signal ends the wait early.
            let _ = poll(
                &mut [PollFd::from_borrowed_fd(ring, PollFlags::IN)],
                Some(&WAIT),
            );
            shown = self.ring.consume_raw_n(most);
        }
        usize::try_from(shown).unwrap_or(0)
    }
}

/// Returns the frame in a record (`struct handed_up` of the XDP program), which begins with the length of the frame.
/// Returns None if the record is too short.
fn frame(record: &[u8]) -> Option<&[u8]> {
    let (length, rest) = record.split_at_checked(LENGTH_BYTES)?;
    rest.get(..u32::from_ne_bytes(length.try_into().ok()?) as usize)
}
