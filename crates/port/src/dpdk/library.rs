//! Loading of the library made from `shim.c`, and of DPDK's libraries with it.

use super::path::Path;
use super::setup::{Losses, Setup};
use crate::{Packet, PortError};
use rustix::fs::{MemfdFlags, memfd_create};
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::OnceLock;
use taut_sys::Library;

/// The library built by `build.rs`. It is embedded in the program, so that the program stays a single file.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/libtaut_dpdk.so"));

/// The functions of `shim.c`, which documents them (`struct taut_dpdk`). Errors are negative error numbers.
#[repr(C)]
pub(super) struct Shim {
    layout: usize,
    drivers: *const c_char,
    version: unsafe extern "C" fn() -> *const c_char,
    pub(super) initialise: unsafe extern "C" fn(c_int, *mut *mut c_char) -> c_int,
    pub(super) log_take: unsafe extern "C" fn(*mut u8, usize) -> usize,
    pub(super) register_thread: unsafe extern "C" fn() -> c_int,
    pub(super) unregister_thread: unsafe extern "C" fn(),
    pub(super) memory_base: unsafe extern "C" fn() -> usize,
    pub(super) make_mempool: unsafe extern "C" fn(*const c_char, c_uint) -> *mut c_void,
    pub(super) mempool_top: unsafe extern "C" fn(*mut c_void) -> usize,
    pub(super) mempool_in_use: unsafe extern "C" fn(*mut c_void) -> c_uint,
    pub(super) free_mempool: unsafe extern "C" fn(*mut c_void),
    pub(super) give_back: unsafe extern "C" fn(usize, *const u32, usize),
    pub(super) add_port: unsafe extern "C" fn(*const c_char, *const c_char, *mut Setup) -> c_int,
    pub(super) remove_port: unsafe extern "C" fn(u16) -> c_int,
    pub(super) link_is_up: unsafe extern "C" fn(u16) -> c_int,
    pub(super) is_leaving: unsafe extern "C" fn(u16) -> c_int,
    pub(super) losses: unsafe extern "C" fn(u16, *mut Losses) -> c_int,
    pub(super) receive: unsafe extern "C" fn(*mut Path, *mut Packet, u16) -> u16,
    pub(super) transmit: unsafe extern "C" fn(*mut Path, *const Packet, u16, *mut u16) -> u16,
}

// SAFETY: the fields are constants and functions; callers ensure that only functions that may run at the same time do
// so.
unsafe impl Sync for Shim {}
// SAFETY: as above.
unsafe impl Send for Shim {}

/// The sizes of the structures that both Rust and C define, combined in one number; `shim.c` must report an equal
/// number.
const LAYOUT: usize = size_of::<Shim>() << 32 | size_of::<Path>() << 16 | size_of::<Setup>();

impl Shim {
    /// Returns the version of DPDK, such as "DPDK 22.11.11".
    pub(super) fn version(&self) -> String {
        // SAFETY: takes nothing, returns a string constant.
        let text = unsafe { CStr::from_ptr((self.version)()) };
        text.to_string_lossy().into_owned()
    }

    /// Returns the folder from which DPDK loads its drivers.
    pub(super) fn drivers_folder(&self) -> String {
        // SAFETY: a string constant.
        let text = unsafe { CStr::from_ptr(self.drivers) };
        text.to_string_lossy().into_owned()
    }

    /// Returns DPDK's log messages since the last call.
    pub(super) fn words(&self) -> String {
        let mut words = vec![0_u8; 4096];
        // SAFETY: the function writes at most the given number of bytes, and returns the number of bytes written.
        let len = unsafe { (self.log_take)(words.as_mut_ptr(), words.len()) };
        String::from_utf8_lossy(&words[..len]).into_owned()
    }
}

/// Returns the library, loaded on first use; it stays loaded.
///
/// # Errors
/// [`PortError::Missing`] if DPDK's own libraries are not installed.
pub(super) fn shim() -> Result<&'static Shim, PortError> {
    static SHIM: OnceLock<Result<&Shim, String>> = OnceLock::new();
    SHIM.get_or_init(load).as_ref().copied().map_err(|reason| {
        PortError::missing(
            "loading DPDK",
            format!(
                "DPDK's libraries of release {}: apt install libdpdk-dev dpdk, or build taut anew where apt has \
                 another release ({reason})",
                release(super::BUILT_WITH.unwrap_or_default())
            ),
        )
    })
}

/// Returns the release of a version of DPDK: the first two numbers. The libraries of a release serve all its versions.
fn release(version: &str) -> &str {
    version
        .match_indices('.')
        .nth(1)
        .map_or(version, |(end, _)| &version[..end])
}

fn load() -> Result<&'static Shim, String> {
    let file = memory_file().map_err(|e| format!("making a memory file: {e}"))?;
    let path =
        CString::new(format!("/proc/self/fd/{}", file.as_raw_fd())).map_err(|e| e.to_string())?;
    // SAFETY: a library made by our own build; loading it runs DPDK's constructors, which register
    // drivers.
    let library = unsafe { Library::load(&[&path]) }?;
    let shim = library.symbol(c"taut_dpdk")?;
    // SAFETY: this is the constant of this name, the first field of which is the layout; the library is never unloaded.
    let shim = unsafe { shim.cast::<Shim>().as_ref() };
    if shim.layout == LAYOUT {
        Ok(shim)
    } else {
        Err("its C side was built from another version; build again".to_string())
    }
}

fn memory_file() -> rustix::io::Result<OwnedFd> {
    let make = |flags| memfd_create("libtaut_dpdk.so", MemfdFlags::CLOEXEC | flags);
    // Kernels before 6.3 do not know the flag, and do not need it.
    let file = make(MemfdFlags::EXEC).or_else(|_| make(MemfdFlags::empty()))?;
    let mut left = LIBRARY;
    while !left.is_empty() {
        let written = rustix::io::write(&file, left)?;
        left = &left[written..];
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::release;

    #[test]
    fn a_dpdk_release_number_omits_the_patch_level() {
        assert_eq!(release("22.11.11"), "22.11");
        assert_eq!(release("24.11"), "24.11");
    }
}
