//! Linked cache lines: memory of a fixed size in which each line contains the index of another line. A memory load
//! follows these links, so that each access depends on the one before. (Gallenmüller 2021, sections 4.1.3 and 5.1.)

use crate::Error;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bytes of one line: a cache line of the supported processors.
pub const LINE_BYTES: usize = 64;

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The bytes populated between two checks of the stop flag: some ten milliseconds of work.
const POPULATED_BYTES: usize = 64 << 20;

/// The memory that remains free for other processes of the machine, bytes.
const SPARED_BYTES: u64 = 256 << 20;

/// A block of cache lines, each of which contains the index of a line, initially 0.
///
/// The block belongs to one thread, and is on huge pages if enough are free.
#[derive(Debug)]
pub struct LinkedLines {
    base: NonNull<u8>,
    lines: usize,
    mapped_bytes: usize,
    huge: bool,
}

// SAFETY: this is an address range of this process to which nobody else refers; it has no thread affinity.
unsafe impl Send for LinkedLines {}

impl LinkedLines {
    /// Allocates and populates all the memory. Setting `stop` cancels this within some ten milliseconds.
    ///
    /// # Errors
    /// [`Error::Missing`] if the machine has not enough free memory, [`Error::System`] if the kernel refuses or `stop`
    /// was set.
    pub fn new(lines: usize, stop: &AtomicBool) -> Result<Self, Error> {
        let what = || {
            format!(
                "setting aside {} bytes of memory",
                lines as u128 * LINE_BYTES as u128
            )
        };
        let bytes = lines
            .checked_mul(LINE_BYTES)
            .filter(|bytes| (1..=isize::MAX as usize - HUGE_PAGE_BYTES).contains(bytes))
            .ok_or_else(|| Error::missing(what(), "a number of lines that a machine can have"))?;
        let huge_bytes = bytes.next_multiple_of(HUGE_PAGE_BYTES);
        // The kernel reserves the huge pages of a mapping, so that they are available when they are touched.
        if let Ok(base) = map(huge_bytes, MapFlags::HUGETLB) {
            let found = Self {
                base,
                lines,
                mapped_bytes: huge_bytes,
                huge: true,
            };
            match found.populate(huge_bytes, stop) {
                Ok(()) => return Ok(found),
                Err(rustix::io::Errno::INTR) => return Err(stopped(what())),
                // The control group has a limit, or this node has no huge pages left; use normal pages then.
                Err(_) => {}
            }
        }
        // The kernel overcommits memory, and kills a process when it runs out.
        let available = available_bytes();
        if available.is_some_and(|a| a < bytes as u64 + SPARED_BYTES) {
            let free = available.unwrap_or(0) >> 20;
            return Err(Error::missing(
                what(),
                format!(
                    "more memory: {free} MB are available, of which 256 MB stay free; request less"
                ),
            ));
        }
        let base = map(huge_bytes, MapFlags::empty()).map_err(|e| Error::system(what(), e))?;
        let found = Self {
            base,
            lines,
            mapped_bytes: huge_bytes,
            huge: false,
        };
        // SAFETY: the range was mapped just now, and advice does not change what is in it. A kernel without transparent
        // huge pages refuses; then ordinary pages are used.
        let _ = unsafe { madvise(base.as_ptr().cast(), huge_bytes, Advice::LinuxHugepage) };
        match found.populate(bytes, stop) {
            Ok(()) => Ok(found),
            Err(rustix::io::Errno::INTR) => Err(stopped(what())),
            Err(e) => Err(Error::system(what(), e)),
        }
    }

    /// Populates the first `bytes` bytes now, a part at a time; returns INTR if `stop` was set.
    fn populate(&self, bytes: usize, stop: &AtomicBool) -> rustix::io::Result<()> {
        for at in (0..bytes).step_by(POPULATED_BYTES) {
            if stop.load(Ordering::Relaxed) {
                return Err(rustix::io::Errno::INTR);
            }
            let part = POPULATED_BYTES.min(bytes - at);
            // SAFETY: the part lies inside the mapping, and advice does not change what is in it.
            let advised = unsafe {
                let start = self.base.as_ptr().add(at);
                madvise(start.cast(), part, Advice::LinuxPopulateWrite)
            };
            match advised {
                Ok(()) => {}
                // Kernels before 5.14 do not know this advice; pages are then populated when lines are linked.
                Err(rustix::io::Errno::INVAL) => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Returns the number of cache lines of the block.
    #[inline]
    pub fn lines(&self) -> usize {
        self.lines
    }

    /// Returns the kind of the pages, for display.
    pub fn pages(&self) -> &'static str {
        if self.huge {
            "huge pages"
        } else {
            "ordinary pages, as too few huge ones are free"
        }
    }

    /// Returns the index of a line that is stored in the cache line `line`.
    ///
    /// # Panics
    /// Panics if there is no such line.
    #[inline]
    pub fn next(&self, line: usize) -> usize {
        assert!(line < self.lines, "line {line} of {}", self.lines);
        self.follow(line, 1)
    }

    /// Stores the index `to` in line `from`.
    ///
    /// # Panics
    /// Panics if there is no such line.
    #[inline]
    pub fn link(&mut self, from: usize, to: usize) {
        assert!(from < self.lines && to < self.lines, "{from} to {to}");
        // SAFETY: the line lies inside the mapping, is aligned, and `&mut self` makes the access unique.
        unsafe {
            self.base
                .add(from * LINE_BYTES)
                .cast::<usize>()
                .write(to * LINE_BYTES);
        }
    }

    /// Returns the index of the line reached from line `from` in `steps` steps, each of which depends on the previous
    /// one.
    ///
    /// # Panics
    /// Panics if there is no such line.
    #[inline]
    pub fn follow(&self, from: usize, steps: u32) -> usize {
        assert!(from < self.lines, "line {from} of {}", self.lines);
        let mut offset = from * LINE_BYTES;
        for _ in 0..steps {
            // SAFETY: every line contains the offset of a line: 0 at first, and later an offset that `link` has
            // checked.
            offset = unsafe { self.base.add(offset).cast::<usize>().read() };
        }
        offset / LINE_BYTES
    }
}

impl Drop for LinkedLines {
    fn drop(&mut self) {
        // SAFETY: this is the range `mmap` gave us, unmapped once, and nothing points into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped_bytes) };
    }
}

fn stopped(what: String) -> Error {
    let source = std::io::Error::new(std::io::ErrorKind::Interrupted, "stopped");
    Error::system(what, source)
}

fn map(bytes: usize, flags: MapFlags) -> rustix::io::Result<NonNull<u8>> {
    // SAFETY: a fresh mapping at an address the kernel chooses overlaps nothing.
    let base = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE | flags,
        )
    }?;
    NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)
}

/// Returns the available memory in bytes: the smaller of what the machine has available and the limit of this process's
/// control group. None if the system does not report it.
pub fn available_bytes() -> Option<u64> {
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available_in(&text));
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let in_group = limit_files(&groups).into_iter().filter_map(|path| {
        // The value "max", or a number beyond all memory, is no limit.
        std::fs::read_to_string(path)
            .ok()?
            .trim()
            .parse::<u64>()
            .ok()
    });
    machine.into_iter().chain(in_group).min()
}

/// Returns the files with the memory limits of the control groups in a text such as `/proc/self/cgroup`.
fn limit_files(groups: &str) -> Vec<String> {
    groups
        .lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
            if controllers.is_empty() {
                Some(format!("/sys/fs/cgroup{path}/memory.max"))
            } else if controllers.split(',').any(|c| c == "memory") {
                Some(format!("/sys/fs/cgroup/memory{path}/memory.limit_in_bytes"))
            } else {
                None
            }
        })
        .collect()
}

/// Returns `MemAvailable` of a text such as `/proc/meminfo`, in bytes; none if the text has no such line.
fn available_in(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim()
        .strip_suffix("kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kb| kb * 1024)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn unlinked_cache_lines_point_to_line_0() {
        let mut lines = LinkedLines::new(5, &AtomicBool::new(false)).unwrap();
        assert_eq!((0..5).map(|i| lines.next(i)).max(), Some(0));
        lines.link(0, 4);
        lines.link(4, 2);
        assert_eq!((lines.follow(0, 0), lines.follow(0, 2)), (0, 2));
        assert_eq!(lines.follow(0, 3), 0);
    }

    #[test]
    fn sizes_beyond_the_available_memory_are_refused_before_allocation() {
        for lines in [usize::MAX, 1 << 50, 0] {
            let error = LinkedLines::new(lines, &AtomicBool::new(false)).unwrap_err();
            assert!(error.is_missing(), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }

    #[test]
    fn allocation_stops_when_a_stop_is_requested() {
        let error = LinkedLines::new(1 << 20, &AtomicBool::new(true)).unwrap_err();
        assert!(error.to_string().ends_with("stopped"), "{error}");
    }

    #[test]
    fn memory_limits_are_read_from_both_versions_of_control_groups() {
        let files = limit_files("9:name=systemd:/\n4:memory:/a/b\n0::/c\n");
        assert_eq!(
            files,
            [
                "/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes",
                "/sys/fs/cgroup/c/memory.max"
            ]
        );
    }

    #[test]
    fn available_memory_is_read_in_bytes() {
        let text = "MemTotal:       24000000 kB\nMemAvailable:   2048 kB\n";
        assert_eq!(available_in(text), Some(2 << 20));
        assert_eq!(available_in("MemTotal: 1 kB\n"), None);
    }
}
