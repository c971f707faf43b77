//! A temporary folder for the sockets and the output of a device during a measurement.

use super::error::RunError;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) use taut_host::private::scratch as folder;
pub(crate) use taut_host::process::sweep_left_behind;

/// The file in which a `taut forward` logs the interruptions of its core; it is deleted on drop.
#[derive(Debug)]
pub struct Notes {
    _folder: TempDir,
    path: PathBuf,
}

impl Notes {
    /// Creates a temporary folder for the log of interruptions.
    ///
    /// # Errors
    /// Returns an error if the temporary folder cannot be created.
    pub fn new() -> Result<Self, RunError> {
        let folder = folder()
            .map_err(|e| RunError::Device(format!("cannot make a folder for notes: {e}")))?;
        Ok(Self {
            path: folder.path().join("interruptions"),
            _folder: folder,
        })
    }

    /// Returns the path of the log of interruptions, which the device creates.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
