//! Protection against a client that truncates a memory file whose bytes are in use here.
//!
//! An access beyond the end of a mapped file raises SIGBUS, which by default ends the process. A file sealed with
//! `F_SEAL_SHRINK` cannot be truncated, and the memif files of DPDK and VPP are sealed. Packet memory on huge pages
//! that they share without a copy is not sealed and cannot be. Huge pages can also be removed from any file
//! (`FALLOC_FL_PUNCH_HOLE`). Therefore a signal handler replaces the whole region by zeroed pages, the access is
//! repeated, and the connection ends.

use super::fault::Fault;
use crate::PortError;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::mem::{MaybeUninit, transmute};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// The maximum number of protected regions over all memif connections of this process.
const MOST: usize = 512;

/// The mappings that the signal handler searches, which must not take locks or allocate memory.
static WATCHED: [Watched; MOST] = [const { Watched::none() }; MOST];

/// The action for SIGBUS before the handler was installed.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

struct Watched {
    taken: AtomicBool,
    /// Start address of the protected region; 0 while the entry is unused.
    start: AtomicUsize,
    len: AtomicUsize,
    fault: AtomicPtr<Fault>,
}

impl Watched {
    const fn none() -> Self {
        Self {
            taken: AtomicBool::new(false),
            start: AtomicUsize::new(0),
            len: AtomicUsize::new(0),
            fault: AtomicPtr::new(null_mut()),
        }
    }
}

/// A guard of one region that the peer may truncate.
#[derive(Debug)]
pub(super) struct Guard {
    place: usize,
    /// Fault that the signal handler raises for the connection of the region.
    _fault: Arc<Fault>,
}

impl Guard {
    /// Protects the pages at `region`. They must be a mapping of their own, and stay mapped while the guard exists.
    pub(super) fn new(region: Range<usize>, fault: &Arc<Fault>) -> Result<Self, PortError> {
        let what = "watching a memif peer's region";
        listen().map_err(|e| PortError::system(what, e))?;
        let free = WATCHED.iter().position(|watched| {
            let taken = watched.taken.swap(true, Ordering::Acquire);
            !taken
        });
        let Some(place) = free else {
            let many = format!("more than {MOST} regions of memif peers in one process");
            return Err(PortError::system(what, std::io::Error::other(many)));
        };
        let watched = &WATCHED[place];
        watched.len.store(region.len(), Ordering::Relaxed);
        let pointer = Arc::as_ptr(fault).cast_mut();
        watched.fault.store(pointer, Ordering::Relaxed);
        // Release: a handler that sees the start sees the other fields.
        watched.start.store(region.start, Ordering::Release);
        Ok(Self {
            place,
            _fault: Arc::clone(fault),
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let watched = &WATCHED[self.place];
        watched.start.store(0, Ordering::Relaxed);
        // Release: the next user of the entry writes to it only after this.
        watched.taken.store(false, Ordering::Release);
    }
}

/// Installs the handler for SIGBUS. For an address outside of the watched regions, it calls the previous handler.
fn listen() -> std::io::Result<()> {
    static LISTENING: OnceLock<Option<i32>> = OnceLock::new();
    let failed = LISTENING.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the kernel reads one structure, which is zero except for the fields set here, and writes the other
        // one. The handler calls only functions that are allowed in a signal handler.
        unsafe {
            // The previous action is read first, because the handler needs it from the start.
            if libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) == 0 {
                let _ = BEFORE.set(before.assume_init());
                let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
                action.sa_sigaction = on_bus_error as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
                if libc::sigaction(libc::SIGBUS, &raw const action, null_mut()) == 0 {
                    return None;
                }
            }
        }
        std::io::Error::last_os_error().raw_os_error()
    });
    failed.map_or(Ok(()), |code| Err(std::io::Error::from_raw_os_error(code)))
}

/// Handles SIGBUS on the thread that accessed a byte beyond the end of its file.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel passes to a SIGBUS handler a description with an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if WATCHED.iter().any(|watched| replaced(watched, address)) {
        return;
    }
    // SAFETY: the called function is the handler that was installed before, and gets the arguments that the kernel
    // passes to such a handler.
    unsafe {
        match BEFORE.get() {
            Some(before) if before.sa_sigaction > libc::SIG_IGN => {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    transmute::<
                        usize,
                        extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void),
                    >(before.sa_sigaction)(signal, info, context);
                } else {
                    transmute::<usize, extern "C" fn(libc::c_int)>(before.sa_sigaction)(signal);
                }
            }
            // The handler was reset to the default action, so the repeated access ends the process.
            _ => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
        }
    }
}

/// Replaces the pages of `watched` by zeroed pages if `address` is in them; returns true if it is.
fn replaced(watched: &Watched, address: usize) -> bool {
    let start = watched.start.load(Ordering::Acquire);
    let len = watched.len.load(Ordering::Relaxed);
    if start == 0 || !(start..start + len).contains(&address) {
        return false;
    }
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the range is whole pages of one mapping that its owner keeps; the contents are shared with a peer, which
    // may have written these zeroes itself.
    if unsafe { mmap_anonymous(start as *mut _, len, access, flags) }.is_err() {
        return false;
    }
    // SAFETY: the guard keeps the fault alive as long as the entry has a start.
    let fault = unsafe { &*watched.fault.load(Ordering::Relaxed) };
    fault.raise(Fault::SHRUNK);
    true
}
