//! A temporary folder for the sockets and the output of a device during a measurement.

use super::error::RunError;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) use taut_host::private::scratch as folder;
pub(crate) use taut_host::process::sweep_left_behind;

/// The log of a `taut forward`'s interruptions; it is deleted on drop.
#[derive(Debug)]
pub struct Notes {
    _folder: TempDir,
    path: PathBuf,
}

impl Notes {
    /// Creates a folder for the log.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created.
    pub fn new() -> Result<Self, RunError> {
        let folder = folder()
            .map_err(|e| RunError::Device(format!("cannot make a folder for notes: {e}")))?;
        Ok(Self {
            path: folder.path().join("interruptions"),
            _folder: folder,
        })
    }

    /// Returns the path of the log, which the device creates.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
