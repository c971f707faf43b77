//! The folder of a running chain, in which other processes find its state, its control socket and its segments' files.

use crate::DeployError;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use taut_host::private::{self, Lock, LockError};
use taut_sys::Locked;

/// Name of the log file of a supervisor without a terminal.
const LOG: &str = "supervisor.log";

/// The folder of one chain, locked by its supervisor. Dropping this value removes the folder, unless the folder must
/// remain because of its log.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    is_left: bool,
    /// The lock of a running chain. The kernel releases the lock when the process ends, even if it is killed.
    _lock: Lock,
}

/// Returns the folder of all chains of this user, which is created if it does not exist.
///
/// # Errors
/// [`DeployError::System`], also if another user owns the folder.
pub fn make_all_chains() -> Result<PathBuf, DeployError> {
    let failed = |e: io::Error| DeployError::system("cannot make the run folder", e);
    let path = private::run_folder().map_err(failed)?.join("chains");
    private::folder(&path).map_err(|e| cannot_use(&path, e))?;
    Ok(path)
}

/// Returns the folder of all chains of this user; none if it does not exist. The folder belongs to this user, so no
/// other user can have put a chain there.
///
/// # Errors
/// [`DeployError::System`] if another user owns the folder.
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
    /// Creates and locks the folder for a chain with the given name, and removes the remains of a dead chain.
    ///
    /// # Errors
    /// [`DeployError::NameTaken`] while a chain of that name is running; [`DeployError::System`].
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
                // The previous holder has removed the folder.
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

    /// Sets whether the folder remains when this value is dropped. A folder remains if it contains a log that explains
    /// the end of the chain.
    pub(crate) fn leave(&mut self, is_left: bool) {
        self.is_left = is_left;
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.is_left && self.path.join(LOG).exists() {
            return;
        }
        // There is no way to report an error; the next chain of this name removes the rest.
        let _ = fs::remove_dir_all(&self.path);
    }
}

/// Returns the folder of the chain with the given name, if it is running.
///
/// # Errors
/// The errors are those of [`all_chains`].
pub fn of_running(name: &str) -> Result<Option<PathBuf>, DeployError> {
    let Some(path) = all_chains()?.map(|all| all.join(name)) else {
        return Ok(None);
    };
    let is_up = File::open(path.join("lock")).is_ok_and(|lock| Locked::shared(lock).is_err());
    Ok(is_up.then_some(path))
}

/// Returns true if a chain with the given name has a folder, also if its supervisor is dead.
///
/// # Errors
/// The errors are those of [`all_chains`].
pub(crate) fn is_left(name: &str) -> Result<bool, DeployError> {
    Ok(names()?.iter().any(|known| known == name))
}

/// Returns the path of the log of the chain's supervisor; none if there is no log.
///
/// # Errors
/// The errors are those of [`all_chains`].
pub fn log(name: &str) -> Result<Option<PathBuf>, DeployError> {
    let path = all_chains()?.map(|all| all.join(name).join(LOG));
    Ok(path.filter(|log| log.exists()))
}

/// Moves the file with the output of a chain's supervisor into the chain's folder, as its log.
///
/// # Errors
/// The folder does not exist.
pub fn keep_as_log(words: &Path, name: &str) -> Result<(), DeployError> {
    let log = make_all_chains()?.join(name).join(LOG);
    fs::rename(words, &log)
        .map_err(|e| DeployError::system(format!("cannot write {}", log.display()), e))
}

/// Returns the names of all chains with a folder, including those with a dead supervisor.
///
/// # Errors
/// The errors are those of [`all_chains`].
pub fn names() -> Result<Vec<String>, DeployError> {
    let entries = all_chains()?.and_then(|all| fs::read_dir(all).ok());
    let mut names: Vec<_> = entries
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        // Names with a dot are not those of chains.
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
    fn the_folder_of_a_crashed_supervisor_with_log_is_retained() {
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
        // The next chain of that name removes the rest.
        drop(RunFolder::take(&name).unwrap());
    }
}
