//! Pins the calling thread to one CPU and, where allowed, gives it a real-time priority.

use std::io;

use rustix::io::Errno;
use rustix::process::Pid;
use rustix::thread::{CpuSet, gettid, sched_setaffinity};

use crate::command::{self, CommandError};

/// The reason why a thread could not be pinned, or its priority could not be raised.
#[derive(Debug, thiserror::Error)]
pub enum AffinityError {
    /// The CPU is absent, offline or not in the cpuset of this process.
    #[error(
        "cannot pin to CPU {cpu}: {source}; the CPU must be online and in this process's cpuset \
         (see /proc/self/status, Cpus_allowed_list)"
    )]
    NotPinned {
        /// The requested CPU.
        cpu: usize,
        /// Error that the operating system reported.
        source: io::Error,
    },
    /// The requested real-time priority is outside 1 to 99, the range of SCHED_FIFO.
    #[error("real-time priority {priority} is outside 1 to 99")]
    PriorityOutOfRange {
        /// The requested priority, which is outside 1 to 99.
        priority: u8,
    },
    /// `chrt` could not give the thread the policy SCHED_FIFO.
    #[error("cannot set a real-time priority: {0}")]
    NotRealtime(#[from] CommandError),
}

/// Pins the calling thread to `cpu`. Threads and processes that the thread starts afterwards run on `cpu` too.
///
/// # Errors
/// [`AffinityError::NotPinned`] if the CPU is absent, offline or not allowed.
pub fn pin_current_thread(cpu: usize) -> Result<(), AffinityError> {
    let not_pinned = |source| AffinityError::NotPinned { cpu, source };
    if cpu >= CpuSet::MAX_CPU {
        return Err(not_pinned(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    let pin = || sched_setaffinity(None, &set);
    pin()
        .or_else(|_| {
            // A CPU that `taut tune apply` isolated is only available inside its partition.
            crate::tune::enter_partition(cpu);
            pin()
        })
        .map_err(|errno| not_pinned(errno.into()))
}

/// Moves every process of the process group `group` to `cpu`, including those that chose another CPU themselves.
/// Processes that end during this are skipped.
///
/// # Errors
/// [`AffinityError::NotPinned`] if the CPU is absent, offline or not allowed.
pub fn pin_process_group(group: u32, cpu: usize) -> Result<(), AffinityError> {
    let not_pinned = |source| AffinityError::NotPinned { cpu, source };
    if cpu >= CpuSet::MAX_CPU {
        return Err(not_pinned(io::ErrorKind::InvalidInput.into()));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    for pid in processes().filter(|pid| group_of(*pid) == Some(group)) {
        match sched_setaffinity(Pid::from_raw(pid as i32), &set) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(errno) => return Err(not_pinned(errno.into())),
        }
    }
    Ok(())
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

fn group_of(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, in brackets, may contain anything; state, parent and group follow it.
    stat.rsplit_once(')')?
        .1
        .split_whitespace()
        .nth(2)?
        .parse()
        .ok()
}

/// Gives the calling thread the policy SCHED_FIFO with `priority` (1 to 99, 99 highest).
///
/// Danger: a SCHED_FIFO thread that polls without end is only preempted by higher priorities. Kernel threads of that
/// CPU (soft interrupts, RCU, writeback) then wait. If every CPU polls, as on a two-CPU virtual machine, the machine
/// can stall: no shell, no network, no disk. The kernel's throttle (`/proc/sys/kernel/sched_rt_runtime_us`, 95 % of
/// each second by default) softens this at the price of a pause of up to 50 ms each second. For latency, such a pause
/// is far worse than an ordinary priority. Use this policy only if another CPU is left for everything else.
///
/// # Errors
/// [`AffinityError::PriorityOutOfRange`]; [`AffinityError::NotRealtime`] without the privilege, or
/// when `chrt` (util-linux) is absent.
pub fn set_realtime(priority: u8) -> Result<(), AffinityError> {
    if !(1..=99).contains(&priority) {
        return Err(AffinityError::PriorityOutOfRange { priority });
    }
    set_realtime_of(gettid(), priority)?;
    Ok(())
}

/// Sets the policy SCHED_FIFO with `priority`, like [`set_realtime`], for another thread.
pub(crate) fn set_realtime_of(thread: Pid, priority: u8) -> Result<(), CommandError> {
    // `chrt` sets the policy, because there is no safe binding of sched_setscheduler; this runs during set-up only.
    let thread = thread.as_raw_nonzero().to_string();
    command::run("chrt", &["--fifo", "--pid", &priority.to_string(), &thread]).map(drop)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::permissions::{Capability, has_capability};
    use rustix::thread::sched_getaffinity;
    use std::thread;

    #[test]
    fn a_pinned_thread_and_its_children_have_one_cpu() {
        let cpu = crate::choose_cores().device;
        thread::spawn(move || {
            pin_current_thread(cpu).unwrap();
            for set in [
                sched_getaffinity(None).unwrap(),
                thread::spawn(|| sched_getaffinity(None).unwrap())
                    .join()
                    .unwrap(),
            ] {
                assert!(set.is_set(cpu));
                assert_eq!(set.count(), 1);
            }
        })
        .join()
        .unwrap();
    }

    #[test]
    fn an_absent_cpu_is_refused_with_its_number() {
        for cpu in [CpuSet::MAX_CPU - 1, CpuSet::MAX_CPU, usize::MAX] {
            let error = pin_current_thread(cpu).unwrap_err();
            assert!(error.to_string().contains(&cpu.to_string()), "{error}");
        }
    }

    #[test]
    fn priorities_outside_1_to_99_are_refused() {
        for priority in [0, 100] {
            assert!(matches!(
                set_realtime(priority),
                Err(AffinityError::PriorityOutOfRange { .. })
            ));
        }
    }

    #[test]
    fn the_kernel_reports_the_realtime_priority_of_the_thread() {
        if !has_capability(Capability::SysNice) {
            println!("skipped: needs CAP_SYS_NICE");
            return;
        }
        thread::spawn(|| {
            set_realtime(1).unwrap();
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // Fields 40 and 41 of proc_pid_stat(5); the name in parentheses is field 2.
            let fields: Vec<&str> = stat
                .rsplit_once(')')
                .unwrap()
                .1
                .split_whitespace()
                .collect();
            assert_eq!((fields[37], fields[38]), ("1", "1"));
        })
        .join()
        .unwrap();
    }
}
