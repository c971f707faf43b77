//! The virtual machines of a chain: table `[machine]` of a chain file.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;

/// The smallest and the largest memory of a machine, MB.
const MEMORY_MB: std::ops::RangeInclusive<u32> = 256..=65_536;

/// The ports by which functions in user space use the NICs of their virtual machine.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MachinePort {
    /// Packet sockets of the machine's kernel.
    #[default]
    AfPacket,
    /// AF_XDP sockets of the machine's kernel.
    AfXdp,
    /// DPDK's driver for virtio NICs; packets stay in huge pages of the machine.
    Dpdk,
}

/// Properties of each virtual machine of a chain.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineSettings {
    /// Ports of functions in user space.
    #[serde(default)]
    pub port: MachinePort,
    /// Number of virtual cores: 1 (the default), or 2, of which the second runs only the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u8>,
    /// The core of this host that runs the machine, or the second of its cores; None for the `core` of the chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub core: Option<usize>,
    /// The core of this host on which the first of two virtual cores runs; None for the first core that this process
    /// may use and that does not run the function.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub system_core: Option<usize>,
    /// Kernel image; None for Debian's kernel for clouds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// SHA-256 that the kernel image must have, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel_sha256: Option<String>,
    /// Folder of the kernel's modules; None for the one beside the image, or the installed one of its version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modules: Option<PathBuf>,
    /// Memory, MB; None for as much as the ports need.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

impl MachineSettings {
    /// Returns the number of virtual cores.
    pub fn cores(&self) -> u8 {
        self.cores.unwrap_or(1)
    }

    /// Checks the values.
    ///
    /// # Errors
    /// The error names the first wrong key and the values that it may have.
    pub(super) fn check(&self) -> Result<(), String> {
        if !matches!(self.cores(), 1 | 2) {
            return Err(format!(
                "machine: cores = {}: expected 1 or 2",
                self.cores()
            ));
        }
        if self.system_core.is_some() && self.cores() == 1 {
            return Err("machine: system_core is for cores = 2".to_string());
        }
        let is_digest =
            |text: &String| text.len() == 64 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
        match (&self.kernel_sha256, &self.kernel) {
            (Some(digest), _) if !is_digest(digest) => {
                Err("machine: kernel_sha256: expected 64 hexadecimal digits".to_string())
            }
            (Some(_), None) => Err("machine: kernel_sha256 needs kernel = \"FILE\"".to_string()),
            _ if self.modules.is_some() && self.kernel.is_none() => {
                Err("machine: modules needs kernel = \"FILE\"".to_string())
            }
            _ => match self.memory_mb {
                Some(memory) if !MEMORY_MB.contains(&memory) => Err(format!(
                    "machine: memory_mb = {memory}: expected {} to {}",
                    MEMORY_MB.start(),
                    MEMORY_MB.end()
                )),
                _ => Ok(()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn wrong_machine_settings_name_the_key() {
        let complaint = |text: &str| {
            let settings: MachineSettings = toml::from_str(text).unwrap();
            settings.check().err().unwrap_or_default()
        };
        let digest = "0".repeat(64);
        for (text, part) in [
            ("cores = 3", "cores = 3: expected 1 or 2"),
            ("system_core = 0", "system_core is for cores = 2"),
            ("kernel = \"k\"\nkernel_sha256 = \"12\"", "64 hexadecimal"),
            (&format!("kernel_sha256 = \"{digest}\""), "needs kernel"),
            ("modules = \"m\"", "modules needs kernel"),
            ("memory_mb = 8", "memory_mb = 8: expected 256"),
        ] {
            assert!(complaint(text).contains(part), "{text}");
        }
        assert_eq!(complaint("port = \"dpdk\"\ncores = 2\nsystem_core = 0"), "");
        assert!(toml::from_str::<MachineSettings>("port = \"null\"").is_err());
    }
}
