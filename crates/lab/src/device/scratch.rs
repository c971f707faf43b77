//! A folder for the sockets and the output of a device while it is measured.

use super::error::RunError;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub(crate) use taut_host::private::scratch as folder;
pub(crate) use taut_host::process::sweep_left_behind;

/// Where a device of ours notes when its core was taken away; gone when it is dropped.
#[derive(Debug)]
pub struct Notes {
    _folder: TempDir,
    path: PathBuf,
}

impl Notes {
    /// Makes room for notes in a fresh folder.
    ///
    /// # Errors
    /// What the system says.
    pub fn new() -> Result<Self, RunError> {
        let folder = folder()
            .map_err(|e| RunError::Device(format!("cannot make a folder for notes: {e}")))?;
        Ok(Self {
            path: folder.path().join("interruptions"),
            _folder: folder,
        })
    }

    /// The file, which the device makes.
    pub fn path(&self) -> &Path {
        &self.path
    }
}
