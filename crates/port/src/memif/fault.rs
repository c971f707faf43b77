//! A fault of a peer that ends the connection: the data path reports it to the control thread through a file.

use crate::error::PortError;
use rustix::io::write;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

/// A flag by which the data path makes the control thread end a connection.
#[derive(Debug)]
pub(super) struct Fault {
    /// Code of the fault, such as [`Fault::WRONG_INDEX`], or 0.
    what: AtomicU8,
    /// File that becomes readable when the fault is raised. The peer has no copy of it.
    file: OwnedFd,
}

impl Fault {
    /// The peer set an index of its rings to an invalid value.
    pub(super) const WRONG_INDEX: u8 = 1;

    /// The peer truncated a region that it had shared.
    pub(super) const SHRUNK: u8 = 2;

    pub(super) fn new() -> Result<Arc<Self>, PortError> {
        Ok(Arc::new(Self {
            what: AtomicU8::new(0),
            file: interrupt_file()?,
        }))
    }

    /// Returns the file that becomes readable when the fault is raised.
    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Makes the control thread end the connection. Returns false if a fault had already been raised. This function
    /// only calls functions that are allowed in a signal handler.
    #[cold]
    pub(super) fn raise(&self, what: u8) -> bool {
        let first = self
            .what
            .compare_exchange(0, what, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if first {
            let _ = write(&self.file, &1_u64.to_ne_bytes());
        }
        first
    }

    /// Returns a description of the fault; None if no fault was raised.
    pub(super) fn reason(&self) -> Option<&'static str> {
        match self.what.load(Ordering::Relaxed) {
            0 => None,
            Self::WRONG_INDEX => Some("a ring index went backwards, or beyond the ring's capacity"),
            _ => Some("a region became shorter than its announced size"),
        }
    }
}

/// Makes an interrupt file for a ring.
pub(super) fn interrupt_file() -> Result<OwnedFd, PortError> {
    use rustix::event::{EventfdFlags, eventfd};
    eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
        .map_err(|e| PortError::system("memif: cannot make the eventfd that signals a ring", e))
}
