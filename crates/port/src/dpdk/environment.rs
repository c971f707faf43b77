//! DPDK's environment (EAL): one per process, made on first use; it ends with the process.
//!
//! The environment keeps everything in memory: no files, no sockets, and huge pages without names, so that even a
//! killed process leaves nothing behind. It is made on a separate thread, because DPDK pins the thread that makes it.

use super::library::{Shim, shim};
use super::reason::reason;
use crate::PortError;
use rustix::process::{Pid, getpid};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// The minimum size of free huge pages with which DPDK uses them, bytes; otherwise DPDK gets normal pages.
const HUGE_BYTES_WANTED: u64 = 64 << 20;

/// The maximum size of normal pages for DPDK, MB; untouched pages cost nothing.
const ORDINARY_MEGABYTES: u32 = 1024;

/// The PCI address of no device. If only this device is allowed, DPDK attaches no PCI device at its start, but still
/// does so on request.
const NO_PCI_DEVICE: &str = "0000:00:00.0";

#[derive(Debug)]
pub(super) struct Environment {
    pub(super) shim: &'static Shim,
    /// Lowest address of DPDK's packet memory.
    pub(super) base: usize,
    pub(super) on_huge_pages: bool,
}

impl std::fmt::Debug for Shim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Shim")
    }
}

/// Returns a lock for attaching and removing devices, which DPDK does not support from two threads at a time.
pub(super) fn control() -> MutexGuard<'static, ()> {
    static CONTROL: Mutex<()> = Mutex::new(());
    CONTROL.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the environment, with the calling thread registered.
///
/// # Errors
/// [`PortError::Missing`] with DPDK's own message if the environment cannot be made. Later calls return the same error,
/// because DPDK tries only once.
pub(super) fn environment() -> Result<&'static Environment, PortError> {
    static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();
    let shim = shim()?;
    let environment = ENVIRONMENT
        .get_or_init(|| {
            std::thread::Builder::new()
                .name("dpdk".to_string())
                .spawn(move || make(shim))
                .map_err(|e| e.to_string())?
                .join()
                .unwrap_or_else(|_| Err("its thread died".to_string()))
        })
        .as_ref()
        .map_err(|why| {
            PortError::missing(
                "starting DPDK",
                format!("an environment that DPDK can start in; it reported: {why}"),
            )
        })?;
    register_thread(shim)?;
    Ok(environment)
}

fn make(shim: &'static Shim) -> Result<Environment, String> {
    // DPDK's own threads sleep and belong to no worker. They get all the cores that the process began with, not the one
    // that the calling thread is pinned to.
    let process = Pid::from_raw(getpid().as_raw_nonzero().get());
    let cores = sched_getaffinity(process).map_err(|e| e.to_string())?;
    sched_setaffinity(None, &cores).map_err(|e| e.to_string())?;
    let on_huge_pages = free_huge_bytes() >= HUGE_BYTES_WANTED;
    let physical = on_huge_pages && takes_physical_addresses(Path::new("/sys"));
    let arguments: Vec<CString> = arguments(&list(&cores), on_huge_pages, physical)
        .into_iter()
        .map(CString::new)
        .collect::<Result<_, _>>()
        .map_err(|e| e.to_string())?;
    let mut pointers: Vec<*mut c_char> = arguments.iter().map(|a| a.as_ptr().cast_mut()).collect();
    let count = pointers.len() as c_int;
    pointers.push(std::ptr::null_mut());
    // SAFETY: an argument list as `main` gets it, alive during the call; called once per process
    // (`ENVIRONMENT`); DPDK may reorder the list but does not write to the words.
    let rc = unsafe { (shim.initialise)(count, pointers.as_mut_ptr()) };
    if rc < 0 {
        return Err(reason(&shim.words(), rc));
    }
    // Messages during initialisation do not explain later errors.
    shim.words();
    Ok(Environment {
        shim,
        // SAFETY: the environment is made.
        base: unsafe { (shim.memory_base)() },
        on_huge_pages,
    })
}

/// Returns true if a NIC accesses memory without an IOMMU, so that DPDK must use physical addresses. DPDK detects that
/// only from devices that are present at its start; here devices are attached later.
fn takes_physical_addresses(sys: &Path) -> bool {
    let without_iommu = sys.join("module/vfio/parameters/enable_unsafe_noiommu_mode");
    let is_on = std::fs::read_to_string(without_iommu).is_ok_and(|text| text.trim() == "Y");
    let has_devices = |driver| {
        let entries = std::fs::read_dir(sys.join("bus/pci/drivers").join(driver));
        let mut names = entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| entry.file_name());
        names.any(|name| name.to_string_lossy().contains(':'))
    };
    is_on || ["uio_pci_generic", "igb_uio"].into_iter().any(has_devices)
}

fn arguments(cores: &str, on_huge_pages: bool, physical: bool) -> Vec<String> {
    let mut arguments: Vec<String> = [
        "taut",
        "--no-telemetry",
        "--log-level=error",
        "-a",
        NO_PCI_DEVICE,
    ]
    .map(String::from)
    .into();
    arguments.push(format!("--file-prefix=taut-{}", std::process::id()));
    arguments.push(format!("--lcores=0@({cores})"));
    if physical {
        arguments.push("--iova-mode=pa".to_string());
    }
    let memory = if on_huge_pages {
        // The second option lets devices share memory with their peers (net_memif's zero-copy, virtio-user).
        "--in-memory --single-file-segments".to_string()
    } else {
        // DPDK has no `--in-memory` for normal pages, which have no files anyway.
        format!("--no-huge --no-shconf -m {ORDINARY_MEGABYTES}")
    };
    arguments.extend(memory.split(' ').map(String::from));
    arguments
}

fn list(cores: &CpuSet) -> String {
    let numbers = (0..CpuSet::MAX_CPU).filter(|&core| cores.is_set(core));
    let words: Vec<_> = numbers.map(|core| core.to_string()).collect();
    words.join(",")
}

/// Returns the total size of the free huge pages, bytes.
fn free_huge_bytes() -> u64 {
    let sizes = std::fs::read_dir("/sys/kernel/mm/hugepages")
        .into_iter()
        .flatten()
        .flatten();
    sizes
        .filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            let kilobytes: u64 = name
                .strip_prefix("hugepages-")?
                .strip_suffix("kB")?
                .parse()
                .ok()?;
            let free = std::fs::read_to_string(entry.path().join("free_hugepages")).ok()?;
            Some(free.trim().parse::<u64>().ok()? * kilobytes * 1024)
        })
        .sum()
}

/// A thread's registration with DPDK, which ends with the thread.
struct Registration(&'static Shim);

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: on the thread that was registered.
        unsafe { (self.0.unregister_thread)() };
    }
}

/// Registers the calling thread, so that it has its own caches of mbufs.
fn register_thread(shim: &'static Shim) -> Result<(), PortError> {
    thread_local! {
        static REGISTRATION: RefCell<Option<Registration>> = const { RefCell::new(None) };
    }
    REGISTRATION.with_borrow_mut(|registration| {
        if registration.is_none() {
            // SAFETY: the environment is made; the thread is not registered yet.
            let rc = unsafe { (shim.register_thread)() };
            if rc < 0 {
                return Err(PortError::missing(
                    "using DPDK on one more thread",
                    format!(
                        "one of its 128 thread numbers: {}",
                        reason(&shim.words(), rc)
                    ),
                ));
            }
            *registration = Some(Registration(shim));
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn dpdk_starts_without_shared_files_and_without_probing_devices() {
        let words = arguments("0,1", true, false).join(" ");
        assert!(words.contains("--in-memory") && words.contains("-a 0000:00:00.0"));
        assert!(words.contains("--lcores=0@(0,1)") && !words.contains("--no-huge"));
        assert!(!words.contains("iova"));
        let words = arguments("0", false, false).join(" ");
        assert!(words.contains("--no-huge --no-shconf") && !words.contains("--in-memory"));
    }

    #[test]
    fn dpdk_uses_physical_addresses_for_nics_without_an_iommu() {
        let sys = tempfile::tempdir().unwrap();
        let is = || takes_physical_addresses(sys.path());
        assert!(!is());
        let parameters = sys.path().join("module/vfio/parameters");
        let switch = parameters.join("enable_unsafe_noiommu_mode");
        std::fs::create_dir_all(&parameters).unwrap();
        std::fs::write(&switch, "N\n").unwrap();
        let driver = sys.path().join("bus/pci/drivers/uio_pci_generic");
        std::fs::create_dir_all(driver.join("module")).unwrap();
        assert!(!is(), "a driver without devices");
        std::fs::create_dir(driver.join("0000:03:00.0")).unwrap();
        assert!(is());
        std::fs::remove_dir_all(&driver).unwrap();
        std::fs::write(&switch, "Y\n").unwrap();
        assert!(is());
        let words = arguments("0", true, true).join(" ");
        assert!(words.contains("--iova-mode=pa --in-memory"), "{words}");
    }
}
