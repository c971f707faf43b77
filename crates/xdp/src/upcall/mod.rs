//! Programs of a function that pass most frames by themselves and hand the rest up to the process, whose worker does the
//! same function for those ([`UpcallPrograms`]).
//!
//! For few frames: who asks for them sleeps while there are none.

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

/// The programs of a function, one for each direction, that share what the function in the process puts into their maps.
///
/// Gone with the last program and process that has the maps open.
pub trait UpcallPrograms: Debug + Send + Sync {
    /// Loads the program of the direction that begins at the first of these ports and leaves through the second one, where
    /// addresses change as well. `what` is what errors say was being done.
    ///
    /// # Errors
    /// What the machine lacks.
    #[cfg(feature = "xdp")]
    fn load(
        &self,
        what: &str,
        change: HeaderChange,
        ports: (usize, usize),
    ) -> Result<Object, Error>;

    /// Whether frames leave through ports of the programs' choice, with the addresses that these give them; else they leave through the
    /// second port of a direction.
    fn sends(&self) -> bool {
        false
    }

    /// Returns the ring through which the program of the direction that begins at a port hands frames up.
    #[cfg(feature = "xdp")]
    fn ring(&self, from: usize) -> &MapHandle;
}

/// Stand-in where programs in the kernel are not built.
#[cfg(not(feature = "xdp"))]
mod without {
    use super::UpcallPrograms;
    use taut_sys::Error;

    /// The frames that a program hands up. This build has none.
    #[derive(Debug)]
    pub enum HandedUp {}

    impl HandedUp {
        /// Says what is lacking.
        ///
        /// # Errors
        /// Always.
        pub fn new(
            what: &str,
            _: &dyn UpcallPrograms,
            _: usize,
            _: impl FnMut(Option<&[u8]>) + 'static,
        ) -> Result<Self, Error> {
            Err(Error::missing(what, "a build with feature \"xdp\""))
        }

        /// Shows so many frames at most.
        pub fn show(&mut self, _: usize) -> usize {
            match *self {}
        }
    }
}
