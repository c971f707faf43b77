//! Folder in which a running chain keeps what others need to find it by: its state, its control socket, its segments'
//! files.

use crate::DeployError;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use taut_host::private::{self, Lock, LockError};
use taut_sys::Locked;

/// Name of the file in which a supervisor that belongs to no terminal keeps what it has to say.
const LOG: &str = "supervisor.log";

/// The folder of one chain, held by whoever keeps the chain up. Dropping it removes it, unless it is to be left with the log.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    is_left: bool,
    /// Lock, held for as long as the chain is up; the kernel lets go of it however the process ends.
    _lock: Lock,
}

/// The folder of all chains of this user, made if it is not there.
///
/// # Errors
/// [`DeployError::System`], also where it is somebody else's.
pub fn make_all_chains() -> Result<PathBuf, DeployError> {
    let failed = |e: io::Error| DeployError::system("cannot make the run folder", e);
    let path = private::run_folder().map_err(failed)?.join("chains");
    private::folder(&path).map_err(|e| cannot_use(&path, e))?;
    Ok(path)
}

/// The folder of all chains of this user, where there is one: nobody else can have put a chain there.
///
/// # Errors
/// [`DeployError::System`] where it is somebody else's.
pub fn all_chains() -> Result<Option<PathBuf>, DeployError> {
    let above = private::run_folder_path();
    let path = above.join("chains");
    for folder in [&above, &path] {
        match private::check(folder) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(None),
            checked => checked.map_err(|e| cannot_use(folder, e))?,
        }
    }
    Ok(Some(path))
}

fn cannot_use(path: &Path, e: io::Error) -> DeployError {
    DeployError::system(format!("cannot use {}", path.display()), e)
}

impl RunFolder {
    /// The folder for a chain of that name; what a dead one left in it is removed.
    ///
    /// # Errors
    /// [`DeployError::NameTaken`] while a chain of that name is up; [`DeployError::System`].
    pub fn take(name: &str) -> Result<Self, DeployError> {
        let path = make_all_chains()?.join(name);
        let lock = loop {
            private::folder(&path).map_err(|e| cannot_use(&path, e))?;
            let file = path.join("lock");
            let lock = match Lock::take(&file) {
                Ok(lock) => lock,
                Err(LockError::Held { .. }) => {
                    return Err(DeployError::NameTaken(name.to_string()));
                }
                // Whoever held it removes the folder.
                Err(LockError::System(e)) if e.kind() == ErrorKind::NotFound => continue,
                Err(LockError::System(e)) => return Err(cannot_use(&file, e)),
            };
            if lock.is_at(&file) {
                break lock;
            }
        };
        let entries = fs::read_dir(&path).map_err(|e| cannot_use(&path, e))?;
        for entry in entries.flatten() {
            if entry.file_name() != "lock" {
                let _ = fs::remove_file(entry.path());
            }
        }
        Ok(Self {
            path,
            is_left: false,
            _lock: lock,
        })
    }

    /// Says whether the folder stays, if there is a log in it, when this is dropped: for those who ask why the chain is gone.
    pub(crate) fn leave(&mut self, is_left: bool) {
        self.is_left = is_left;
    }

    /// Path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.is_left && self.path.join(LOG).exists() {
            return;
        }
        // Nobody is left to tell; the next chain of this name takes what stays.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// The folder of the chain of that name, if somebody keeps it up.
///
/// # Errors
/// Those of [`all_chains`].
pub fn of_running(name: &str) -> Result<Option<PathBuf>, DeployError> {
    let Some(path) = all_chains()?.map(|all| all.join(name)) else {
        return Ok(None);
    };
    let is_up = File::open(path.join("lock")).is_ok_and(|lock| Locked::shared(lock).is_err());
    Ok(is_up.then_some(path))
}

/// Whether a chain of that name has a folder, also one whose supervisor is dead.
///
/// # Errors
/// Those of [`all_chains`].
pub(crate) fn is_left(name: &str) -> Result<bool, DeployError> {
    Ok(names()?.iter().any(|known| known == name))
}

/// Path of the log of the supervisor of the chain of that name, if it keeps one.
///
/// # Errors
/// Those of [`all_chains`].
pub fn log(name: &str) -> Result<Option<PathBuf>, DeployError> {
    let path = all_chains()?.map(|all| all.join(name).join(LOG));
    Ok(path.filter(|log| log.exists()))
}

/// Moves what the supervisor of a chain writes its words to into the chain's folder, as its log.
///
/// # Errors
/// Where the folder is gone.
pub fn keep_as_log(words: &Path, name: &str) -> Result<(), DeployError> {
    let log = make_all_chains()?.join(name).join(LOG);
    fs::rename(words, &log)
        .map_err(|e| DeployError::system(format!("cannot write {}", log.display()), e))
}

/// The names of all chains that have a folder, also of those whose supervisor is dead.
///
/// # Errors
/// Those of [`all_chains`].
pub fn names() -> Result<Vec<String>, DeployError> {
    let entries = all_chains()?.and_then(|all| fs::read_dir(all).ok());
    let mut names: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        // Those with a dot are not chains' own.
        .filter(|name| !name.starts_with('.'))
        .collect();
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_folder_is_left_with_its_log_by_a_supervisor_that_dies_and_not_by_one_that_ends() {
        let name = format!("left-{}", std::process::id());
        for (is_left, has_log, stays) in [
            (true, true, true),
            (true, false, false),
            (false, true, false),
        ] {
            let mut folder = RunFolder::take(&name).unwrap();
            if has_log {
                let words = folder.path().join("words");
                fs::write(&words, "taut: a word\n").unwrap();
                keep_as_log(&words, &name).unwrap();
            }
            folder.leave(is_left);
            let path = folder.path().to_path_buf();
            drop(folder);
            assert_eq!(path.exists(), stays, "{is_left} {has_log}");
            assert_eq!(log(&name).unwrap().is_some(), stays);
            let said = crate::ask(&name, &crate::Request::Status).unwrap_err();
            let said = said.to_string();
            if stays {
                let log = path.join(LOG);
                let want = format!("has died (log: {})", log.display());
                assert!(said.contains(&want), "{said}");
            } else {
                assert!(said.starts_with("no chain"), "{said}");
            }
        }
        // The next one of that name takes what stays.
        drop(RunFolder::take(&name).unwrap());
    }
}
