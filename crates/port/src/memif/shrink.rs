//! Keeps the process alive when a client shortens a memory file whose bytes are in use here.
//!
//! An access beyond the end of a mapped file raises SIGBUS, whose default is the end of the process. A file sealed with
//! `F_SEAL_SHRINK` cannot be shortened, and what DPDK and VPP make for memif is sealed; packet memory on huge pages that they lend
//! without a copy is not and cannot be, and huge pages can be taken out of any file (`FALLOC_FL_PUNCH_HOLE`). So the signal
//! is answered: fresh zeroed pages take the place of the whole region, the access is done again, and the connection ends.

use super::fault::Fault;
use crate::PortError;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use std::mem::{MaybeUninit, transmute};
use std::ops::Range;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// Regions of all connections of this process at most.
const MOST: usize = 512;

/// Mappings that the signal handler looks through, which must not take locks or memory.
static WATCHED: [Watched; MOST] = [const { Watched::none() }; MOST];

/// Action of SIGBUS before ours.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

struct Watched {
    taken: AtomicBool,
    /// 0 while nobody's.
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

/// A region that may become shorter while this lives.
#[derive(Debug)]
pub(super) struct Guard {
    place: usize,
    /// The handler uses it.
    _fault: Arc<Fault>,
}

impl Guard {
    /// Watches the whole pages at `region`, which a mapping of its own covers and which stay mapped while this lives.
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
        // Release: whoever sees the start sees the rest.
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
        // Release: whoever takes the place writes to it afterwards.
        watched.taken.store(false, Ordering::Release);
    }
}

/// Answers SIGBUS from now on, before whoever did so until now.
fn listen() -> std::io::Result<()> {
    static LISTENING: OnceLock<Option<i32>> = OnceLock::new();
    let failed = LISTENING.get_or_init(|| {
        let mut before = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: the kernel reads one structure, which is zeroes but for what is set, and writes the other one. The
        // handler calls nothing but what a signal handler may.
        unsafe {
            // Asked first, as the handler needs it from the start.
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

/// The thread that is here was about to touch a byte that its file no longer has.
extern "C" fn on_bus_error(
    signal: libc::c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
) {
    // SAFETY: the kernel hands a SIGBUS handler a description with an address.
    let address = unsafe { (*info).si_addr() } as usize;
    if WATCHED.iter().any(|watched| replaced(watched, address)) {
        return;
    }
    // SAFETY: what is called is what stood there before, with what the kernel hands such a handler.
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
            // The access is done again, and ends the process.
            _ => {
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
            }
        }
    }
}

/// Puts zeroes in the region's place if the address lies there.
fn replaced(watched: &Watched, address: usize) -> bool {
    let start = watched.start.load(Ordering::Acquire);
    let len = watched.len.load(Ordering::Relaxed);
    if start == 0 || !(start..start + len).contains(&address) {
        return false;
    }
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: whole pages of one mapping that its owner keeps; what lies there is shared with a peer that may have written
    // these zeroes.
    if unsafe { mmap_anonymous(start as *mut _, len, access, flags) }.is_err() {
        return false;
    }
    // SAFETY: the guard keeps it while the start can be read.
    let fault = unsafe { &*watched.fault.load(Ordering::Relaxed) };
    fault.raise(Fault::SHRUNK);
    true
}
