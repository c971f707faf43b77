//! The time slice of a thread: the time for which it runs before the kernel selects another thread of its core.

use std::time::Duration;

/// The shortest time slice that Linux grants.
pub const SHORTEST_SLICE: Duration = Duration::from_micros(100);

/// Requests time slices of [`SHORTEST_SLICE`] for the calling thread instead of the kernel's milliseconds. A thread
/// that wakes up for packets then runs immediately, although other threads on its core have not used up their time
/// slices. Linux lets the thread with the shorter slice run first (EEVDF, from Linux 6.12 on). The thread gets no more
/// CPU time in total than without the request. The request needs no privilege.
///
/// Returns false if the kernel does not support such slices, or if the thread does not have the default scheduling
/// policy.
pub fn request_short_slices() -> bool {
    // SAFETY: all zeros is a value of this struct of integers.
    let mut attributes: libc::sched_attr = unsafe { std::mem::zeroed() };
    let size = size_of::<libc::sched_attr>() as u32;
    // SAFETY: the kernel writes at most `size` bytes into the struct, which is alive.
    let got = unsafe { libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) };
    if got != 0 || attributes.sched_policy != libc::SCHED_OTHER as u32 {
        return false;
    }
    attributes.size = size;
    attributes.sched_flags = 0;
    attributes.sched_runtime = SHORTEST_SLICE.as_nanos() as u64;
    // SAFETY: the kernel reads `size` bytes of the struct, which is alive.
    let set = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    set == 0
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_thread_receives_the_short_time_slices_it_requests() {
        let turn = || {
            let status = std::fs::read_to_string("/proc/thread-self/sched").ok()?;
            let line = status.lines().find(|line| line.starts_with("se.slice"))?;
            line.split(':').nth(1)?.trim().parse::<u64>().ok()
        };
        let told = std::thread::spawn(move || (turn(), request_short_slices(), turn()));
        match told.join().unwrap() {
            (_, false, _) => println!("skipped: needs a kernel with turns that can be asked for"),
            (None, true, _) => println!("skipped: needs a kernel that shows turns"),
            (Some(before), true, after) => {
                assert!(before > 100_000, "{before}");
                assert_eq!(after, Some(100_000));
            }
        }
    }
}
