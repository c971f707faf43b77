//! The alarm that a sleeping worker waits on: the files that its ports make readable when packets arrive.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// The files that end a sleep when they become readable. Their owners add them again before each [`Alarm::wait`]. The
/// list allocates memory only when it gets longer than ever before.
#[derive(Debug, Default)]
pub struct Alarm {
    files: Vec<libc::pollfd>,
}

impl Alarm {
    /// Removes all files from the list.
    #[inline]
    pub fn clear(&mut self) {
        self.files.clear();
    }

    /// Adds a file that ends the wait when the file is readable. The file has to stay open until [`Alarm::wait`] has
    /// returned.
    #[inline]
    pub fn watch(&mut self, file: BorrowedFd<'_>) {
        self.files.push(libc::pollfd {
            fd: file.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        });
    }

    /// Sleeps until a file is readable or broken, a signal arrives, or `at_most` has passed (never if it is `None`).
    pub fn wait(&mut self, at_most: impl Into<Option<Duration>>) {
        let timeout = at_most.into().map(|at_most| libc::timespec {
            tv_sec: at_most.as_secs() as libc::time_t,
            tv_nsec: at_most.subsec_nanos() as libc::c_long,
        });
        let timeout = timeout
            .as_ref()
            .map_or(std::ptr::null(), |it| &raw const *it);
        // SAFETY: the array has as many entries as the count argument states, the timeout is a time or null, and there
        // is no signal mask. All of them are alive during the call. If a descriptor is not open, the kernel sets an
        // error in the descriptor's entry.
        unsafe {
            libc::ppoll(
                self.files.as_mut_ptr(),
                self.files.len() as libc::nfds_t,
                timeout,
                std::ptr::null(),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::os::fd::AsFd;
    use std::time::Instant;

    #[test]
    fn the_alarm_fires_on_a_readable_file_or_a_timeout() {
        let file = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
        let mut alarm = Alarm::default();
        alarm.watch(file.as_fd());
        let begun = Instant::now();
        alarm.wait(Duration::from_millis(20));
        assert!(begun.elapsed() >= Duration::from_millis(20));
        rustix::io::write(&file, &1_u64.to_ne_bytes()).unwrap();
        let begun = Instant::now();
        alarm.wait(Duration::from_secs(60));
        assert!(begun.elapsed() < Duration::from_secs(30));
        alarm.wait(None);
        alarm.clear();
        alarm.wait(Duration::from_millis(1));
    }
}
