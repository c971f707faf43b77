//! A shared mapping of a memory file, used for pools and memif regions.

use crate::Error;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

const PAGE_BYTES: usize = 4096;
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The unit of memory of [`Mapping::on_heap`], aligned like a page.
#[derive(Clone)]
#[repr(align(4096))]
struct Page(#[allow(dead_code)] [u8; PAGE_BYTES]);

/// A mapped memory file. The bytes may be shared with another process. A Rust reference may be made only to a range
/// that the ring protocol currently assigns to the caller.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
    /// Number of mapped bytes, which is a multiple of the page size.
    mapped: usize,
    fd: Arc<OwnedFd>,
    /// True if the memory is on huge pages.
    pub huge: bool,
}

// SAFETY: a mapping is an address range and a descriptor; it has no thread affinity. Code that derives pointers from it
// is responsible for accesses to the bytes.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference only returns where the memory is; code that reads or writes there is responsible for the
// access.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Creates a memory file of at least `len` bytes, on huge pages if any are free. It is sealed against shrinking, so
    /// that no peer can truncate it and cause faults in this process.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn create(name: &str, len: usize) -> Result<Self, Error> {
        if let Ok(mapping) = Self::create_with(name, len.next_multiple_of(HUGE_PAGE_BYTES), true) {
            return Ok(mapping);
        }
        Self::create_with(name, len.next_multiple_of(PAGE_BYTES), false)
    }

    /// Creates a memory file on normal pages, for rings, which would waste a huge page.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn create_small(name: &str, len: usize) -> Result<Self, Error> {
        Self::create_with(name, len.next_multiple_of(PAGE_BYTES), false)
    }

    fn create_with(name: &str, len: usize, huge: bool) -> Result<Self, Error> {
        let what = || format!("making {len} bytes of shared memory ({name})");
        if cfg!(miri) {
            return Self::on_heap(len).map_err(|e| Error::system(what(), e));
        }
        let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        if huge {
            flags |= MemfdFlags::HUGETLB;
        }
        let fd = memfd_create(name, flags).map_err(|e| Error::system(what(), e))?;
        ftruncate(&fd, len as u64).map_err(|e| Error::system(what(), e))?;
        fcntl_add_seals(&fd, SealFlags::SHRINK).map_err(|e| Error::system(what(), e))?;
        Self::map(Arc::new(fd), len, huge, MapFlags::POPULATE)
    }

    /// Allocates a substitute for a memory file under Miri, which has none. This memory cannot be shared.
    fn on_heap(len: usize) -> std::io::Result<Self> {
        let fd = Arc::new(File::open("/dev/null")?.into());
        let pages = vec![Page([0; PAGE_BYTES]); len / PAGE_BYTES].into_boxed_slice();
        Ok(Self {
            base: NonNull::from(Box::leak(pages)).cast(),
            len,
            mapped: len,
            fd,
            huge: false,
        })
    }

    /// Maps a file of this process.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn of_file(fd: OwnedFd, len: usize) -> Result<Self, Error> {
        Self::map(Arc::new(fd), len, false, MapFlags::POPULATE)
    }

    /// Maps a memory file from a peer, after checking that it has the length that the peer states.
    ///
    /// # Errors
    /// The file is shorter than the peer states, or the system's error.
    pub fn adopt(fd: OwnedFd, len: usize) -> Result<Self, Error> {
        let what = "mapping a memif peer's region";
        let stat = fstat(&fd).map_err(|e| Error::system(what, e))?;
        if len == 0 || (stat.st_size as u64) < len as u64 {
            return Err(Error::system(
                what,
                std::io::Error::other(format!(
                    "the peer announced {len} bytes, its file has {}",
                    stat.st_size
                )),
            ));
        }
        // The length is rounded to whole pages of the file, which may be huge; otherwise it cannot be unmapped.
        let page_bytes = usize::try_from(stat.st_blksize).map_or(PAGE_BYTES, |n| n.max(PAGE_BYTES));
        let mapped = len.checked_next_multiple_of(page_bytes).unwrap_or(len);
        // The mapping is not populated: a peer may share all of its memory, of which a ring uses little.
        let mut mapping = Self::map(Arc::new(fd), mapped, false, MapFlags::empty())?;
        mapping.len = len;
        Ok(mapping)
    }

    fn map(fd: Arc<OwnedFd>, len: usize, huge: bool, populate: MapFlags) -> Result<Self, Error> {
        // SAFETY: a fresh mapping at an address the kernel chooses overlaps nothing; the result is
        // only used through raw pointers within `len`.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | populate,
                fd.as_fd(),
                0,
            )
        }
        .map_err(|e| Error::system(format!("mapping {len} bytes of shared memory"), e))?;
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| {
            Error::system(
                "cannot map shared memory",
                std::io::Error::other("address 0"),
            )
        })?;
        Ok(Self {
            base,
            len,
            mapped: len.next_multiple_of(PAGE_BYTES),
            fd,
            huge,
        })
    }

    /// Returns the addresses of the whole mapping.
    #[inline]
    pub fn pages(&self) -> Range<usize> {
        let start = self.base.as_ptr() as usize;
        start..start + self.mapped
    }

    /// Returns the address of the first byte of the mapping.
    #[inline]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Returns the number of usable bytes.
    #[inline]
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns the memory file, for passing it to a peer.
    pub fn fd(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.fd)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if cfg!(miri) {
            let pages =
                NonNull::slice_from_raw_parts(self.base.cast::<Page>(), self.len / PAGE_BYTES);
            // SAFETY: `on_heap` leaked these pages, and they are freed once; the comment below explains why no pointer
            // into them is left.
            drop(unsafe { Box::from_raw(pages.as_ptr()) });
            return;
        }
        // SAFETY: this is the range that `mmap` returned, unmapped once; users of the bytes own the mapping (or the
        // pool that owns it) for as long as they have pointers into it.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.mapped) };
    }
}
