//! Locks on files: exclusive for one process, or shared by several.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, flock};

/// A file or folder that is locked (flock(2)) until this value is dropped or the process ends in any way.
///
/// A child process that another thread starts has copies of this process's files until it calls exec, and a lock lasts
/// while any copy is open. Dropping therefore unlocks explicitly, which ends the lock for all copies, and then closes
/// the file.
#[derive(Debug)]
pub struct Locked<F: AsFd = File> {
    file: F,
}

impl<F: AsFd> Locked<F> {
    /// Locks a file exclusively.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] if another process has locked it, or the system's error, because not every file
    /// system has locks.
    pub fn exclusive(file: F) -> io::Result<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { file })
    }

    /// Locks a file shared: other shared locks are possible, exclusive ones are not.
    ///
    /// # Errors
    /// The errors are those of [`Locked::exclusive`].
    pub fn shared(file: F) -> io::Result<Self> {
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { file })
    }

    /// Returns the locked file.
    pub fn get(&self) -> &F {
        &self.file
    }

    /// Returns the locked file for reading or writing.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.file
    }
}

impl<F: AsFd> Drop for Locked<F> {
    fn drop(&mut self) {
        // If unlocking fails, closing the file unlocks it.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_lock_is_released_although_duplicated_descriptors_stay_open() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::open(folder.path()).unwrap();
        let held = Locked::exclusive(open()).unwrap();
        // This copy simulates the one that a child process has until it calls exec.
        let copy: OwnedFd = held.get().as_fd().try_clone_to_owned().unwrap();
        let refused = Locked::shared(open()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        drop(held);
        let first = Locked::shared(open()).unwrap();
        let second = Locked::shared(open()).unwrap();
        assert!(Locked::exclusive(open()).is_err());
        drop((first, second));
        assert!(Locked::exclusive(open()).is_ok());
        drop(copy);
    }
}
