//! Where a running chain keeps what others need to find it by: its state, its control socket, its segments' files.

use crate::DeployError;
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The folder of one chain, held by whoever keeps the chain up. Dropping it removes it.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// Held for as long as the chain is up; the kernel lets go of it however the process ends.
    _lock: File,
}

/// The folder of all chains: below `/run` for root, else below the user's `XDG_RUNTIME_DIR`.
pub fn all_chains() -> PathBuf {
    let own = std::env::var_os("XDG_RUNTIME_DIR").filter(|folder| !folder.is_empty());
    let base = match own {
        _ if taut_host::permissions::is_root() => PathBuf::from("/run/taut"),
        Some(folder) => PathBuf::from(folder).join("taut"),
        None => {
            let user = rustix::process::geteuid().as_raw();
            std::env::temp_dir().join(format!("taut-{user}"))
        }
    };
    base.join("chains")
}

impl RunFolder {
    /// The folder for a chain of that name; what a dead one left in it is removed.
    ///
    /// # Errors
    /// [`DeployError::NameTaken`] while a chain of that name is up; [`DeployError::System`].
    pub fn take(name: &str) -> Result<Self, DeployError> {
        let path = all_chains().join(name);
        let failed =
            |e: std::io::Error| DeployError::system(format!("cannot use {}", path.display()), e);
        loop {
            fs::create_dir_all(&path).map_err(failed)?;
            let lock = match File::create(path.join("lock")) {
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => continue,
                lock => lock.map_err(failed)?,
            };
            if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Err(DeployError::NameTaken(name.to_string()));
            }
            // Whoever held it may have removed it meanwhile.
            let still = fs::metadata(path.join("lock"));
            let ours = lock.metadata().map_err(failed)?;
            if !still.is_ok_and(|now| now.ino() == ours.ino()) {
                continue;
            }
            for entry in fs::read_dir(&path).map_err(failed)?.flatten() {
                if entry.file_name() != "lock" {
                    let _ = fs::remove_file(entry.path());
                }
            }
            return Ok(Self { path, _lock: lock });
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        // Nobody is left to tell; the next chain of this name takes what stays.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Whether somebody keeps the chain of that name up.
pub fn is_up(name: &str) -> bool {
    File::open(all_chains().join(name).join("lock")).is_ok_and(|lock| {
        // Let go of when the file is closed.
        flock(&lock, FlockOperation::NonBlockingLockShared).is_err()
    })
}

/// The names of all chains that have a folder, also of those whose supervisor is dead.
pub fn names() -> Vec<String> {
    let entries = fs::read_dir(all_chains()).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries
        .filter_map(|entry| entry.file_name().into_string().ok())
        // Those with a dot are not chains' own.
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    names
}
