//! Permissions of this process: checks before namespaces, sockets and locks are used.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::command::{is_installed, package_of};

/// The capabilities for packet processing; the numbers are those of capabilities(7).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Capability {
    /// CAP_NET_ADMIN: set up interfaces and bridges, and attach XDP programs.
    NetAdmin = 12,
    /// CAP_NET_RAW: open AF_PACKET sockets.
    NetRaw = 13,
    /// CAP_IPC_LOCK: lock more memory (huge pages, rings) than RLIMIT_MEMLOCK allows.
    IpcLock = 14,
    /// CAP_SYS_ADMIN: create namespaces and mounts.
    SysAdmin = 21,
    /// CAP_SYS_NICE: set real-time priorities, and the affinity of other processes.
    SysNice = 23,
    /// CAP_PERFMON: load XDP programs, such as filters, whose operations the kernel's verifier otherwise forbids.
    Perfmon = 38,
    /// CAP_BPF: load eBPF programs and create their maps.
    Bpf = 39,
}

impl Capability {
    /// Every capability that this crate knows.
    pub const ALL: [Self; 7] = [
        Self::NetAdmin,
        Self::NetRaw,
        Self::IpcLock,
        Self::SysAdmin,
        Self::SysNice,
        Self::Perfmon,
        Self::Bpf,
    ];

    /// Returns the name of the capability as capabilities(7) writes it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::SysNice => "CAP_SYS_NICE",
            Self::Perfmon => "CAP_PERFMON",
            Self::Bpf => "CAP_BPF",
        }
    }

    /// Returns true if a mask in the form of `CapEff` in `/proc/self/status` contains this capability.
    pub(crate) fn is_in(self, mask: u64) -> bool {
        mask & (1 << self as u32) != 0
    }
}

/// A requirement that this machine or this user lacks, and how to get it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{what}; {how_to_get_it}")]
pub struct Missing {
    /// The requirement that is missing, in one clause.
    pub what: String,
    /// The way to get the missing requirement, in one clause.
    pub how_to_get_it: String,
}

impl Missing {
    fn capability(capability: Capability, purpose: &str) -> Self {
        Self {
            what: format!("no {} ({purpose})", capability.name()),
            how_to_get_it: format!("run as root, or with {}", capability.name()),
        }
    }
}

/// Returns true if the effective user is root.
#[must_use]
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns true if the calling process has `capability` (the effective set of `/proc/self/status`).
#[must_use]
pub fn has_capability(capability: Capability) -> bool {
    fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| effective_capabilities(&status))
        .is_some_and(|mask| capability.is_in(mask))
}

/// Returns true if this process is in a separate user namespace, which limits its rights. Rights within such a
/// namespace do not allow a process to load programs into the kernel or to lock memory.
#[must_use]
pub fn in_user_namespace() -> bool {
    fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| !maps_everybody(&map))
}

/// Returns true if `map`, the text of a process's `uid_map`, is that of the initial user namespace, which maps each
/// user to itself.
fn maps_everybody(map: &str) -> bool {
    let numbers: Vec<_> = map.split_whitespace().collect();
    numbers == ["0", "0", "4294967295"]
}

/// Returns the mask of effective capabilities: the number after `CapEff:` in the text of `/proc/<pid>/status`.
pub(crate) fn effective_capabilities(status: &str) -> Option<u64> {
    mask_after("CapEff:", status)
}

/// Returns the hexadecimal mask in the line that begins with `word`, in the text of `/proc/<pid>/status`.
pub(crate) fn mask_after(word: &str, status: &str) -> Option<u64> {
    let mask = status.lines().find_map(|line| line.strip_prefix(word))?;
    u64::from_str_radix(mask.trim(), 16).ok()
}

fn need(capability: Capability, purpose: &str) -> Result<(), Missing> {
    if has_capability(capability) {
        Ok(())
    } else {
        Err(Missing::capability(capability, purpose))
    }
}

/// Checks whether a [`crate::Testbed`] can be built: kernel support, programs and privilege.
///
/// # Errors
/// The first requirement that is missing: kernel support, a program or a privilege.
pub fn can_make_namespaces() -> Result<(), Missing> {
    if !Path::new("/proc/self/ns/net").exists() {
        return Err(Missing {
            what: "this kernel has no network namespaces".to_owned(),
            how_to_get_it: "use a kernel built with CONFIG_NET_NS".to_owned(),
        });
    }
    for program in ["ip", "bridge", "ethtool"] {
        if !is_installed(program) {
            return Err(Missing {
                what: format!("`{program}` is not on the search path"),
                how_to_get_it: format!(
                    "apt-get install {} (or add /usr/sbin to PATH)",
                    package_of(program)
                ),
            });
        }
    }
    need(Capability::SysAdmin, "network namespaces")?;
    need(Capability::NetAdmin, "interfaces and bridges")
}

/// Checks whether AF_PACKET sockets can be opened.
///
/// # Errors
/// The capability that is missing.
pub fn can_open_packet_sockets() -> Result<(), Missing> {
    need(Capability::NetRaw, "packet sockets")
}

/// Checks whether XDP programs can be loaded and attached, as needed by AF_XDP.
///
/// # Errors
/// The capability that is missing.
pub fn can_load_xdp() -> Result<(), Missing> {
    if !has_capability(Capability::SysAdmin) {
        need(Capability::Bpf, "XDP programs")?;
    }
    need(Capability::NetAdmin, "attaching XDP programs")?;
    need(Capability::NetRaw, "AF_XDP sockets")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn each_bit_of_the_effective_mask_is_a_capability() {
        let mask =
            effective_capabilities("Name:\tx\nCapPrm:\t0\nCapEff:\t0000000000003000\n").unwrap();
        let held: Vec<_> = Capability::ALL
            .into_iter()
            .filter(|c| c.is_in(mask))
            .collect();
        assert_eq!(held, [Capability::NetAdmin, Capability::NetRaw]);
    }

    #[test]
    fn a_user_namespace_is_recognised_by_its_uid_map() {
        assert!(maps_everybody("         0          0 4294967295\n"));
        for map in ["         0      65534          1\n", ""] {
            assert!(!maps_everybody(map), "{map}");
        }
    }

    #[test]
    fn a_status_file_without_valid_mask_yields_no_capabilities() {
        assert_eq!(effective_capabilities("Name:\tx\n"), None);
        assert_eq!(effective_capabilities("CapEff:\tzz\n"), None);
    }

    #[test]
    fn the_error_about_a_missing_capability_names_the_remedy() {
        let missing = Missing::capability(Capability::NetRaw, "packet sockets");
        assert_eq!(
            missing.to_string(),
            "no CAP_NET_RAW (packet sockets); run as root, or with CAP_NET_RAW"
        );
    }
}
