//! Programs of a function that process most frames in the kernel ([`UpcallPrograms`]). They pass the other frames up to
//! the process, in which a worker runs the same function.
//!
//! The upcall is meant for few frames: the reader sleeps while there are none.

#[cfg(feature = "xdp")]
mod handed_up;

#[cfg(feature = "xdp")]
pub use handed_up::HandedUp;
#[cfg(not(feature = "xdp"))]
pub use without::HandedUp;

#[cfg(feature = "xdp")]
use crate::forward::HeaderChange;
#[cfg(feature = "xdp")]
use libbpf_rs::{MapHandle, Object};
use std::fmt::Debug;
#[cfg(feature = "xdp")]
use taut_sys::Error;

/// The XDP programs of a function, one for each direction. They share maps that the function in the process fills.
///
/// The kernel frees programs and maps when no program and no process uses the maps any more.
pub trait UpcallPrograms: Debug + Send + Sync {
    /// Loads the XDP program for the direction from the first of the given ports to the second one, with a change of
    /// addresses. `what` names the action in error messages.
    ///
    /// # Errors
    /// The machine lacks a requirement of the XDP program.
    #[cfg(feature = "xdp")]
    fn load(
        &self,
        what: &str,
        change: HeaderChange,
        ports: (usize, usize),
    ) -> Result<Object, Error>;

    /// Returns true if the XDP programs choose the egress ports and addresses of frames; otherwise frames leave through
    /// the second port of a direction.
    fn sends(&self) -> bool {
        false
    }

    /// Returns the ring through which the XDP program at ingress port `from` passes frames up.
    #[cfg(feature = "xdp")]
    fn ring(&self, from: usize) -> &MapHandle;
}

/// The replacement of [`HandedUp`] in builds without feature `xdp`.
#[cfg(not(feature = "xdp"))]
mod without {
    use super::UpcallPrograms;
    use taut_sys::Error;

    /// The frames that a program passes up. Builds without feature `xdp` do not support passing frames up.
    #[derive(Debug)]
    pub enum HandedUp {}

    impl HandedUp {
        /// Returns an error that names the missing feature.
        ///
        /// # Errors
        /// The function always fails.
        pub fn new(
            what: &str,
            _: &dyn UpcallPrograms,
            _: usize,
            _: impl FnMut(Option<&[u8]>) + 'static,
        ) -> Result<Self, Error> {
            Err(Error::missing(what, "a build with feature \"xdp\""))
        }

        /// Passes at most `most` frames to the callback.
        pub fn show(&mut self, _: usize) -> usize {
            match *self {}
        }
    }
}
