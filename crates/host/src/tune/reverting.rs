//! A guard that reverts the settings of a measurement.

use super::apply::revert;
use super::{Root, TuneError};

/// A guard that reverts all changes in the journal when it is dropped, so that a measurement which changes settings
/// restores them however it ends.
#[derive(Debug)]
pub struct Reverting<'a> {
    root: &'a Root,
    is_done: bool,
}

impl<'a> Reverting<'a> {
    /// Makes the guard, before the settings are changed.
    #[must_use]
    pub fn new(root: &'a Root) -> Self {
        Self {
            root,
            is_done: false,
        }
    }

    /// Reverts all changes in the journal, and returns an error that names those that could not be reverted, which stay
    /// in the journal.
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
