//! Increments an event counter that is shared with a peer, without ever blocking.
//!
//! Whether a write to an event counter blocks depends on a flag of the open file, which any process that shares it may
//! clear at any time. A peer can also fill the counter, so that the next write blocks until it is read. No flag of a
//! single write prevents blocking (`pwritev2` refuses `RWF_NOWAIT` here). Asynchronous I/O does not block: the kernel
//! adds one to a counter when a request completes, and never waits for space (`io_submit(2)`, `IOCB_FLAG_RESFD`). The
//! request itself reads nothing from an empty file.
//!
//! Without asynchronous I/O in the kernel (`CONFIG_AIO`; QEMU's user emulation has none either), the counter is written
//! directly, if it has space at that moment. A peer that fills the counter between the check and the write blocks the
//! write.

use crate::PortError;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::write;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;

/// The operation `IOCB_CMD_PREAD` of linux/aio_abi.h.
const READ: u16 = 0;

/// The flag of an asynchronous request that increments an event counter when the request completes (`IOCB_FLAG_RESFD`).
const COUNT_WHEN_DONE: u32 = 1;

/// The number of unread results of requests for which the kernel is to have space; the kernel rounds this number up.
const KEPT: usize = 64;

/// The structure `struct iocb` of linux/aio_abi.h (little endian).
#[repr(C)]
struct Request {
    data: u64,
    key: u32,
    read_flags: u32,
    operation: u16,
    priority: i16,
    file: u32,
    buffer: u64,
    len_bytes: u64,
    offset_bytes: i64,
    reserved: u64,
    flags: u32,
    counter: u32,
}

/// The event of a completed request: `struct io_event`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Done([u64; 4]);

/// The kernel's context for asynchronous I/O (`None` if the kernel has no asynchronous I/O), and the empty file that
/// requests read.
#[derive(Debug)]
pub(super) struct Knocker {
    context: Option<libc::c_ulong>,
    empty: File,
}

impl Knocker {
    /// Returns the context of this process, which is shared because the kernel takes milliseconds to delete one.
    pub(super) fn shared() -> Result<&'static Self, PortError> {
        static SHARED: OnceLock<Knocker> = OnceLock::new();
        match SHARED.get() {
            Some(knocker) => Ok(knocker),
            None => {
                let new = Self::new()?;
                Ok(SHARED.get_or_init(|| new))
            }
        }
    }

    fn new() -> Result<Self, PortError> {
        let what = "asynchronous I/O, to wake memif peers that sleep (see /proc/sys/fs/aio-max-nr)";
        let empty = File::open("/dev/null").map_err(|e| PortError::system(what, e))?;
        let mut context = 0;
        // Miri does not support this call; its tests have no sleeping receivers.
        if !cfg!(miri) {
            // SAFETY: the kernel writes the context's number, which has to be 0 before.
            let answer = unsafe { libc::syscall(libc::SYS_io_setup, KEPT, &raw mut context) };
            if answer < 0 {
                let error = std::io::Error::last_os_error();
                let context = None;
                return match error.raw_os_error() {
                    Some(libc::ENOSYS) => Ok(Self { context, empty }),
                    _ => Err(PortError::system(what, error)),
                };
            }
        }
        let context = Some(context);
        Ok(Self { context, empty })
    }

    /// Adds one to `counter`; a counter at its maximum stays unchanged.
    #[cold]
    pub(super) fn knock(&self, counter: &OwnedFd) {
        if cfg!(miri) {
            return;
        }
        let Some(context) = self.context else {
            return write_if_space(counter);
        };
        let mut request = Request {
            data: 0,
            key: 0,
            read_flags: 0,
            operation: READ,
            priority: 0,
            file: self.empty.as_raw_fd() as u32,
            buffer: 0,
            len_bytes: 0,
            offset_bytes: 0,
            reserved: 0,
            flags: COUNT_WHEN_DONE,
            counter: counter.as_raw_fd() as u32,
        };
        if !submit(context, &mut request) {
            // The kernel's list of results is full, so they are discarded before the retry.
            forget_results(context);
            submit(context, &mut request);
        }
    }
}

fn submit(context: libc::c_ulong, request: &mut Request) -> bool {
    let mut requests = [&raw mut *request];
    // SAFETY: a list of one request, whose read of no bytes touches no memory, and is done before the call returns.
    let taken = unsafe { libc::syscall(libc::SYS_io_submit, context, 1, requests.as_mut_ptr()) };
    taken == 1
}

fn forget_results(context: libc::c_ulong) {
    let mut done = [Done([0; 4]); KEPT];
    let no_time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes at most as many results as the list is long, and does not wait for any.
    unsafe {
        libc::syscall(
            libc::SYS_io_getevents,
            context,
            0,
            KEPT,
            done.as_mut_ptr(),
            &raw const no_time,
        );
    }
}

/// Adds one to `counter` by a write, if there is space at this moment.
fn write_if_space(counter: &OwnedFd) {
    let mut polled = [PollFd::new(counter, PollFlags::OUT)];
    let no_time = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    if poll(&mut polled, Some(&no_time)).is_ok() && polled[0].revents().contains(PollFlags::OUT) {
        // A peer that has closed the counter is noticed elsewhere.
        let _ = write(counter, &1_u64.to_ne_bytes());
    }
}

impl Drop for Knocker {
    fn drop(&mut self) {
        if let (false, Some(context)) = (cfg!(miri), self.context) {
            // SAFETY: the context was made by `new` and is not used after this call.
            unsafe { libc::syscall(libc::SYS_io_destroy, context) };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::event::{EventfdFlags, eventfd};
    use rustix::io::read;

    #[test]
    fn interrupts_are_counted_and_a_full_counter_blocks_no_sender() {
        counts_and_never_blocks(&Knocker::new().unwrap());
    }

    #[test]
    fn memif_interrupts_are_also_counted_without_asynchronous_io() {
        let empty = File::open("/dev/null").unwrap();
        let context = None;
        counts_and_never_blocks(&Knocker { context, empty });
    }

    fn counts_and_never_blocks(knocker: &Knocker) {
        // A counter whose writers block when it is full.
        let counter = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let mut value = [0; 8];
        for _ in 0..1_000 {
            knocker.knock(&counter);
        }
        read(&counter, &mut value).unwrap();
        assert_eq!(u64::from_ne_bytes(value), 1_000);
        write(&counter, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        for _ in 0..1_000 {
            knocker.knock(&counter);
        }
        read(&counter, &mut value).unwrap();
        assert!(u64::from_ne_bytes(value) >= u64::MAX - 1);
    }
}
