//! Files that are locked for one process.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FlockOperation, flock};

/// A file or folder that is locked (flock(2)) until this is dropped or the process ends, however it ends.
///
/// A program that another thread is starting has copies of this process's files until it runs, and a lock lasts while any
/// copy is open. Dropping therefore unlocks by a call, which ends the lock for all copies, and then closes.
#[derive(Debug)]
pub struct Locked<F: AsFd = File> {
    file: F,
}

impl<F: AsFd> Locked<F> {
    /// Locks a file that nobody else has locked.
    ///
    /// # Errors
    /// [`io::ErrorKind::WouldBlock`] while somebody else has it; what the system says, as not every file system has locks.
    pub fn exclusive(file: F) -> io::Result<Self> {
        flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        Ok(Self { file })
    }

    /// Locks a file that others may lock in this way as well, and nobody exclusively.
    ///
    /// # Errors
    /// As for [`Locked::exclusive`].
    pub fn shared(file: F) -> io::Result<Self> {
        flock(&file, FlockOperation::NonBlockingLockShared)?;
        Ok(Self { file })
    }

    /// The file.
    pub fn get(&self) -> &F {
        &self.file
    }

    /// The file, to be read or written.
    pub fn get_mut(&mut self) -> &mut F {
        &mut self.file
    }
}

impl<F: AsFd> Drop for Locked<F> {
    fn drop(&mut self) {
        // What cannot be unlocked is by closing.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::OwnedFd;

    use super::*;

    #[test]
    fn a_lock_ends_although_copies_of_the_file_stay_open() {
        let folder = tempfile::tempdir().unwrap();
        let open = || File::open(folder.path()).unwrap();
        let held = Locked::exclusive(open()).unwrap();
        // As a program has that is being started.
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
