//! Hardware and kernel event counters of one thread: cycles, instructions, cache misses. (perf_event_open(2); a
//! thread's counters stay open while it sleeps, and cost it time only at thread switches.)

use crate::Error;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

/// An event that hardware or kernel can count.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// Cycles of the core, at any clock frequency.
    Cycles,
    /// Retired instructions.
    Instructions,
    /// Loads that missed the first-level data cache.
    L1dReadMisses,
    /// Accesses that missed the last-level cache.
    LlcMisses,
    /// Page faults, counted by the kernel.
    PageFaults,
    /// Switches to another thread, counted by the kernel.
    ContextSwitches,
}

impl Event {
    /// The events that need a hardware counter. Every processor of the last ten years has enough counters for them.
    pub const HARDWARE: [Self; 4] = [
        Self::Cycles,
        Self::Instructions,
        Self::L1dReadMisses,
        Self::LlcMisses,
    ];

    /// Returns the display name of the event.
    pub fn label(self) -> &'static str {
        match self {
            Self::Cycles => "core cycles",
            Self::Instructions => "instructions",
            Self::L1dReadMisses => "L1d read misses",
            Self::LlcMisses => "last-level cache misses",
            Self::PageFaults => "page faults",
            Self::ContextSwitches => "context switches",
        }
    }

    /// Returns the type and number of the event in the kernel's interface (linux/perf_event.h).
    fn code(self) -> (u32, u64) {
        const HARDWARE: u32 = 0;
        const SOFTWARE: u32 = 1;
        const HARDWARE_CACHE: u32 = 3;
        match self {
            Self::Cycles => (HARDWARE, 0),
            Self::Instructions => (HARDWARE, 1),
            // Cache 0 (L1D), operation 0 (read), result 1 (miss).
            Self::L1dReadMisses => (HARDWARE_CACHE, 1 << 16),
            Self::LlcMisses => (HARDWARE, 3),
            Self::PageFaults => (SOFTWARE, 2),
            Self::ContextSwitches => (SOFTWARE, 3),
        }
    }
}

/// The first 64 bytes of `struct perf_event_attr`, which every kernel accepts.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint: u32,
    config1: u64,
}

/// The flags `PERF_FORMAT_TOTAL_TIME_ENABLED | PERF_FORMAT_TOTAL_TIME_RUNNING | PERF_FORMAT_GROUP`.
const READ_FORMAT: u64 = 1 | 2 | 8;
/// The flag `PERF_FORMAT_GROUP`.
const GROUP: u64 = 8;
/// The flag `inherit`: processes that are started later are counted too.
const INHERIT: u64 = 1 << 1;
/// The flags `exclude_kernel` and `exclude_hv`; without `exclude_hv` some processors refuse to count.
const EXCLUDE_KERNEL: u64 = 1 << 5 | 1 << 6;
/// The flag `PERF_FLAG_FD_CLOEXEC`.
const CLOSE_ON_EXEC: libc::c_ulong = 8;

/// The event counters of one thread, which run as long as this value exists. All counters start and stop together, so
/// that their values cover the same instructions.
#[derive(Debug)]
pub struct EventCounters {
    /// Files of the counters; the first one leads the group.
    files: Vec<(Event, OwnedFd)>,
    counts_kernel: bool,
}

/// Counts since the counters were opened.
#[derive(Debug, Clone, PartialEq)]
pub struct EventCounts {
    /// Time for which the counters were enabled, seconds.
    pub seconds: f64,
    /// Count of each event. The count is an extrapolation if other users occupied the processor's counters part of the
    /// time.
    pub counts: Vec<(Event, f64)>,
}

impl EventCounters {
    /// Starts to count `events` in the thread with the given id, or in the calling one. Events that the machine cannot
    /// count are skipped.
    ///
    /// # Errors
    /// [`Error::Missing`] with the reason, if the machine can count none of them.
    pub fn open(thread: Option<u32>, events: &[Event]) -> Result<Self, Error> {
        let all = Self::open_group(thread, events, 0);
        match all {
            // Counting in the kernel needs privileges.
            Err(e) if is_denied(&e) => {
                Self::open_group(thread, events, EXCLUDE_KERNEL).map_err(|e| explain(events, &e))
            }
            other => other.map_err(|e| explain(events, &e)),
        }
    }

    fn open_group(thread: Option<u32>, events: &[Event], flags: u64) -> io::Result<Self> {
        let mut files: Vec<(Event, OwnedFd)> = Vec::new();
        let mut why = io::Error::from_raw_os_error(libc::ENOENT);
        for event in events {
            match open_event(thread, *event, files.first().map(|(_, file)| file), flags) {
                Ok(file) => files.push((*event, file)),
                Err(e) => why = e,
            }
        }
        if files.is_empty() {
            return Err(why);
        }
        Ok(Self {
            files,
            counts_kernel: flags & EXCLUDE_KERNEL == 0,
        })
    }

    /// Returns the events that are counted.
    pub fn events(&self) -> impl Iterator<Item = Event> {
        self.files.iter().map(|(event, _)| *event)
    }

    /// Returns true if events in the kernel are counted too; false if only those in user space are.
    pub fn counts_kernel(&self) -> bool {
        self.counts_kernel
    }

    /// Returns the counts since the counters were opened.
    ///
    /// # Errors
    /// The counters cannot be read, or other users occupied the processor's counters all the time.
    pub fn read(&self) -> Result<EventCounts, Error> {
        const HEAD: usize = 3;
        let what = "reading event counters";
        let Some((_, leader)) = self.files.first() else {
            return Err(Error::missing(what, "at least one event"));
        };
        let mut words = vec![0_u64; HEAD + self.files.len()];
        let bytes = words.len() * size_of::<u64>();
        // SAFETY: the buffer has `bytes` bytes, and any bytes are valid numbers.
        let n = unsafe { libc::read(leader.as_raw_fd(), words.as_mut_ptr().cast(), bytes) };
        if n < 0 {
            return Err(Error::system(what, io::Error::last_os_error()));
        }
        let [count, enabled_ns, running_ns, values @ ..] = words.as_slice() else {
            return Err(Error::missing(
                what,
                "a kernel that returns complete counters",
            ));
        };
        if n as usize != bytes || *count as usize != values.len() {
            return Err(Error::missing(
                what,
                "a kernel that returns complete counters",
            ));
        }
        if *running_ns == 0 && *enabled_ns > 0 {
            let needs = "counters that are not in use (perf, the kernel's watchdog)";
            return Err(Error::missing(what, needs));
        }
        let scale = *enabled_ns as f64 / (*running_ns).max(1) as f64;
        let counts = self.events().zip(values);
        Ok(EventCounts {
            seconds: *enabled_ns as f64 / 1e9,
            counts: counts.map(|(e, n)| (e, *n as f64 * scale)).collect(),
        })
    }
}

impl EventCounts {
    /// Returns the counts since `earlier`, a reading of the same counters.
    pub fn since(&self, earlier: &Self) -> Self {
        let counts = self.counts.iter().zip(&earlier.counts);
        Self {
            seconds: self.seconds - earlier.seconds,
            counts: counts
                .map(|((event, now), (_, before))| (*event, (now - before).max(0.0)))
                .collect(),
        }
    }
}

/// The event counters of the calling thread and of all threads and processes that it starts after they are opened.
#[derive(Debug)]
pub struct FamilyCounters {
    files: Vec<(Event, OwnedFd)>,
    missing: Vec<(Event, Error)>,
}

impl FamilyCounters {
    /// Starts to count `events`. Each counts by itself, as the kernel does not group events of several processes.
    pub fn open(events: &[Event]) -> Self {
        let mut counters = Self {
            files: Vec::new(),
            missing: Vec::new(),
        };
        for event in events {
            let opened = open_event(None, *event, None, INHERIT).or_else(|e| match is_denied(&e) {
                true => open_event(None, *event, None, INHERIT | EXCLUDE_KERNEL),
                false => Err(e),
            });
            match opened {
                Ok(file) => counters.files.push((*event, file)),
                Err(e) => counters.missing.push((*event, explain(&[*event], &e))),
            }
        }
        counters
    }

    /// Returns the events that this machine cannot count, each with the reason.
    pub fn missing(&self) -> &[(Event, Error)] {
        &self.missing
    }

    /// Returns the counts since the counters were opened. A count is an extrapolation if other users occupied the
    /// processor's counters part of the time; events whose counters were never active are skipped.
    ///
    /// # Errors
    /// The counters cannot be read.
    pub fn read(&self) -> Result<Vec<(Event, f64)>, Error> {
        let mut counts = Vec::new();
        for (event, file) in &self.files {
            let mut words = [0_u64; 3];
            let bytes = size_of_val(&words);
            // SAFETY: the buffer has `bytes` bytes, and any bytes are valid numbers.
            let n = unsafe { libc::read(file.as_raw_fd(), words.as_mut_ptr().cast(), bytes) };
            if n < 0 {
                let error = io::Error::last_os_error();
                return Err(Error::system("reading event counters", error));
            }
            let [count, enabled_ns, running_ns] = words;
            if running_ns > 0 {
                counts.push((*event, count as f64 * enabled_ns as f64 / running_ns as f64));
            }
        }
        Ok(counts)
    }
}

fn open_event(
    thread: Option<u32>,
    event: Event,
    leader: Option<&OwnedFd>,
    flags: u64,
) -> io::Result<OwnedFd> {
    let (kind, config) = event.code();
    let attributes = Attributes {
        kind,
        size: size_of::<Attributes>() as u32,
        config,
        // The kernel refuses groups of inherited counters.
        read_format: match flags & INHERIT {
            0 => READ_FORMAT,
            _ => READ_FORMAT & !GROUP,
        },
        flags,
        ..Attributes::default()
    };
    let thread = thread.map_or(0, |id| id as libc::pid_t);
    let on_any_cpu: libc::c_int = -1;
    let leader = leader.map_or(-1, |file| file.as_fd().as_raw_fd());
    // SAFETY: the kernel reads as many bytes of the attributes as their size field states, and the structure has that
    // many.
    let file = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            on_any_cpu,
            leader,
            CLOSE_ON_EXEC,
        )
    };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just opened this file, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(file as libc::c_int) })
}

fn is_denied(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EACCES | libc::EPERM))
}

/// Explains why none of `events` can be counted.
fn explain(events: &[Event], e: &io::Error) -> Error {
    let hardware = events.iter().any(|event| Event::HARDWARE.contains(event));
    let what = if hardware {
        "hardware counters"
    } else {
        "event counters"
    };
    let needs = match e.raw_os_error() {
        Some(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP) => {
            "a processor with accessible counters, which most virtual machines hide".to_string()
        }
        Some(libc::EACCES | libc::EPERM) => {
            "root, CAP_PERFMON, or sysctl kernel.perf_event_paranoid=2 or less".to_string()
        }
        Some(libc::ENOSYS) => "a kernel with perf events".to_string(),
        Some(libc::ESRCH) => "a thread that still runs".to_string(),
        _ => format!("the kernel to allow them ({e})"),
    };
    Error::missing(what, needs)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// Events that the kernel counts; they allow tests on machines without hardware counters.
    const SOFTWARE: [Event; 2] = [Event::ContextSwitches, Event::PageFaults];
    const SLEEPS: usize = 20;

    fn sleep_often() {
        (0..SLEEPS).for_each(|_| std::thread::sleep(Duration::from_micros(200)));
    }

    fn counters(thread: Option<u32>) -> Option<EventCounters> {
        match EventCounters::open(thread, &SOFTWARE) {
            Ok(counters) => Some(counters),
            Err(e) => {
                println!("skipped: {e}");
                None
            }
        }
    }

    #[test]
    fn a_thread_counts_its_own_context_switches_and_page_faults() {
        let Some(counters) = counters(None) else {
            return;
        };
        assert!(counters.events().eq(SOFTWARE));
        let before = counters.read().unwrap();
        sleep_often();
        let slept = counters.read().unwrap().since(&before);
        // Every sleep of a thread is a context switch.
        assert!(slept.counts[0].1 >= SLEEPS as f64, "{slept:?}");
        let before = counters.read().unwrap();
        let pages = vec![1_u8; 32 << 20];
        let touched = counters.read().unwrap().since(&before);
        assert!(touched.counts[1].1 >= 1.0, "{touched:?} {}", pages.len());
    }

    #[test]
    fn events_of_processes_started_later_are_counted() {
        let counters = FamilyCounters::open(&[Event::PageFaults]);
        if let Some((_, why)) = counters.missing().first() {
            println!("skipped: {why}");
            return;
        }
        let before = counters.read().unwrap()[0].1;
        std::process::Command::new("true").status().unwrap();
        let after = counters.read().unwrap()[0].1;
        // The start of a program touches at least its stack, its code and its loader.
        assert!(after - before > 10.0, "{before} {after}");
    }

    #[test]
    fn events_of_another_thread_are_counted_by_its_id() {
        let (tell, told) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            let id = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            tell.send(id).unwrap();
            // The thread waits until counting starts, works, and waits until the counters were read.
            gone.recv().unwrap();
            sleep_often();
            tell.send(id).unwrap();
            let _ = gone.recv();
        });
        let Some(counters) = counters(Some(told.recv().unwrap())) else {
            return;
        };
        go.send(()).unwrap();
        told.recv().unwrap();
        let switches = counters.read().unwrap().counts[0].1;
        assert!(switches >= SLEEPS as f64, "{switches}");
        drop(go);
        thread.join().unwrap();
    }

    #[test]
    fn hardware_events_are_counted_or_reported_as_unavailable() {
        match EventCounters::open(None, &Event::HARDWARE) {
            Ok(counters) => {
                let sum: u64 = (0..100_000_u64).map(std::hint::black_box).sum();
                match counters.read() {
                    Ok(counts) => {
                        let some = counts.counts.iter().any(|(_, n)| *n > 1_000.0);
                        assert!(some, "{counts:?} {sum}");
                    }
                    Err(e) => assert!(e.is_missing(), "{e}"),
                }
            }
            Err(e) => {
                let text = e.to_string();
                assert!(e.is_missing() && text.starts_with("hardware counters: needs "));
                assert_eq!(text.lines().count(), 1, "{text}");
            }
        }
    }

    #[test]
    fn every_event_counter_error_names_a_remedy() {
        for (code, part) in [
            (libc::ENOENT, "virtual machines"),
            (libc::EACCES, "perf_event_paranoid"),
            (libc::ENOSYS, "a kernel with perf events"),
            (libc::EMFILE, "the kernel to allow them"),
        ] {
            let e = explain(&Event::HARDWARE, &io::Error::from_raw_os_error(code));
            assert!(e.is_missing() && e.to_string().contains(part), "{e}");
        }
    }

    #[test]
    fn counting_a_thread_that_does_not_exist_fails() {
        let e = EventCounters::open(Some(i32::MAX as u32), &SOFTWARE).unwrap_err();
        assert!(e.is_missing(), "{e}");
    }
}
