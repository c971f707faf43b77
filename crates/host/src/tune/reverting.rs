//! A guard that reverts the settings of a measurement.

use super::apply::revert;
use super::{Root, TuneError};

/// Reverts the journal when it is dropped, so that a measurement which changes settings restores them however it ends.
#[derive(Debug)]
pub struct Reverting<'a> {
    root: &'a Root,
    is_done: bool,
}

impl<'a> Reverting<'a> {
    /// Makes the guard. It has to be made before the settings are changed.
    #[must_use]
    pub fn new(root: &'a Root) -> Self {
        Self {
            root,
            is_done: false,
        }
    }

    /// Reverts the settings immediately. A change that cannot be reverted stays in the journal, and is reported as an
    /// error.
    ///
    /// # Errors
    /// The errors of [`revert`], and [`TuneError::NotReverted`].
    pub fn end(mut self) -> Result<(), TuneError> {
        self.is_done = true;
        match revert(self.root)?.refused.into_iter().next() {
            Some(first) => Err(TuneError::NotReverted(first)),
            None => Ok(()),
        }
    }
}

impl Drop for Reverting<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            // Another error is reported already; what cannot be reverted stays in the journal.
            let _ = revert(self.root);
        }
    }
}
