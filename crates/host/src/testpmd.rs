//! Command lines of `dpdk-testpmd`, DPDK's own forwarder and generator, and its requirements.

use crate::command::is_installed;
use crate::permissions::Missing;
use std::fs;
use std::path::{Path, PathBuf};

/// The name of the forwarder's executable.
pub const PROGRAM: &str = "dpdk-testpmd";

/// The memory of `dpdk-testpmd` with [`Memory::Usual`], MB; 16384 buffers of 2304 bytes need 38.
const MEMORY_MB: u64 = 128;

/// The memory of `dpdk-testpmd` with [`Memory::Shared`], MB.
const SHARED_MEMORY_MB: u64 = 64;

/// The kind of memory that `dpdk-testpmd` uses for packet buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Huge pages if enough of them are free, as for taut's own packet memory.
    Usual,
    /// One file of huge pages, which the process at the other end of a link can map: drivers send from it without a
    /// copy.
    Shared,
}

/// The settings for a command line of `dpdk-testpmd`.
#[derive(Debug, Clone)]
pub struct Testpmd<'a> {
    /// The CPU of `dpdk-testpmd`.
    pub cpu: usize,
    /// The kind of memory for the packet buffers of `dpdk-testpmd`.
    pub memory: Memory,
    /// The DPDK devices that `dpdk-testpmd` creates, such as `net_null0,size=64`.
    pub devices: &'a [String],
    /// The forwarding mode: `io`, `macswap`, `txonly` and so on.
    pub mode: &'a str,
    /// The number of packet buffers.
    pub buffers: u32,
    /// Further options of `dpdk-testpmd`, added after all others.
    pub more: &'a [&'a str],
}

impl Testpmd<'_> {
    /// Returns the program and its arguments. The program starts to forward without an interactive command.
    #[must_use]
    pub fn words(&self) -> Vec<String> {
        let mut line = vec![
            PROGRAM.to_string(),
            "--no-pci".to_string(),
            "--no-telemetry".to_string(),
            // The main thread sleeps until the end, so it may share the CPU.
            "--lcores".to_string(),
            format!("0@{0},1@{0}", self.cpu),
        ];
        line.extend(self.memory.words_here());
        line.extend(self.devices.iter().map(|device| format!("--vdev={device}")));
        line.extend([
            "--".to_string(),
            "--auto-start".to_string(),
            format!("--forward-mode={}", self.mode),
            "--nb-cores=1".to_string(),
            format!("--total-num-mbufs={}", self.buffers),
        ]);
        line.extend(self.more.iter().map(|word| (*word).to_string()));
        line
    }
}

impl Memory {
    /// Returns the command line of `dpdk-testpmd`; its memory options depend on the present number of free huge pages.
    pub(crate) fn words_here(self) -> Vec<String> {
        self.words(free_huge_pages())
    }

    fn words(self, free_huge_pages: u64) -> Vec<String> {
        let (words, megabytes): (&[&str], u64) = match self {
            Self::Usual if free_huge_pages * 2 >= MEMORY_MB => (&["--in-memory"], MEMORY_MB),
            Self::Usual => (&["--no-huge"], MEMORY_MB),
            Self::Shared => (&["--in-memory", "--single-file-segments"], SHARED_MEMORY_MB),
        };
        let words = words.iter().map(|word| (*word).to_string());
        words
            .chain(["-m".to_string(), megabytes.to_string()])
            .collect()
    }
}

/// Returns the names of the program and of the library of `driver`, which contains its version, as one text.
///
/// # Errors
/// The program or the driver is not installed; `package` contains the driver.
pub fn probe(driver: &str, package: &str) -> Result<String, Missing> {
    if !is_installed(PROGRAM) {
        return Err(Missing {
            what: format!("`{PROGRAM}` is not on the search path"),
            how_to_get_it: format!("apt-get install dpdk-dev {package}"),
        });
    }
    driver_library(driver)
        .map(|library| format!("{PROGRAM} with {library}"))
        .ok_or_else(|| Missing {
            what: format!("DPDK's driver {driver} is not installed"),
            how_to_get_it: format!("apt-get install {package}"),
        })
}

/// Returns the file name of an installed DPDK driver, with its full version: `librte_net_memif.so.23.0`.
#[must_use]
pub fn driver_library(driver: &str) -> Option<String> {
    [
        "/usr/lib",
        "/usr/lib64",
        "/usr/local/lib",
        "/usr/local/lib64",
    ]
    .into_iter()
    .find_map(|root| library_in(Path::new(root), &format!("librte_{driver}.so"), 3))
}

fn library_in(folder: &Path, start: &str, depth: u32) -> Option<String> {
    let mut found = Vec::new();
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if name.starts_with(start) {
            found.push(name);
        } else if depth > 0 && entry.file_type().is_ok_and(|t| t.is_dir()) {
            folders.push(entry.path());
        }
    }
    let longest = found.into_iter().max_by_key(String::len);
    longest.or_else(|| {
        folders
            .iter()
            .find_map(|folder| library_in(folder, start, depth - 1))
    })
}

/// Returns the number of free huge pages of 2 MB.
#[must_use]
pub(crate) fn free_huge_pages() -> u64 {
    fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|free| free.trim().parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn testpmd_arguments_have_devices_before_the_double_dash() {
        let line = Testpmd {
            cpu: 3,
            memory: Memory::Shared,
            devices: &["net_null0".to_string(), "net_null1".to_string()],
            mode: "macswap",
            buffers: 8192,
            more: &["--burst=8"],
        };
        assert_eq!(
            line.words().join(" "),
            "dpdk-testpmd --no-pci --no-telemetry --lcores 0@3,1@3 --in-memory --single-file-segments -m 64 --vdev=net_null0 \
             --vdev=net_null1 -- --auto-start --forward-mode=macswap --nb-cores=1 --total-num-mbufs=8192 --burst=8"
        );
    }

    #[test]
    fn huge_pages_are_used_when_all_memory_fits_into_them() {
        assert_eq!(Memory::Usual.words(64)[0], "--in-memory");
        assert_eq!(Memory::Usual.words(63)[0], "--no-huge");
    }

    #[test]
    fn a_dpdk_driver_is_found_below_the_library_folder() {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("x86_64-linux-gnu/dpdk/pmds-23.0");
        fs::create_dir_all(&folder).unwrap();
        for name in ["librte_net_memif.so.23.0", "librte_net_memif.so.23"] {
            fs::write(folder.join(name), "").unwrap();
        }
        let find = |name: &str| library_in(root.path(), name, 3);
        assert_eq!(
            find("librte_net_memif.so").as_deref(),
            Some("librte_net_memif.so.23.0")
        );
        assert_eq!(find("librte_net_vhost.so"), None);
    }
}
