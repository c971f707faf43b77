//! Settings and versions of a machine's firmware.
//!
//! Sources: the DMI tables as `/sys/class/dmi/id` and dmidecode(8) show them, the kernel's firmware attributes
//! (Documentation/ABI/testing/sysfs-class-firmware-attributes), and the `Bios` resource of Redfish (DSP2046).

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

/// Files of `/sys/class/dmi/id`, each with the name of the fact that it contains.
const DMI: [(&str, &str); 3] = [
    ("bios_release", "bios_release"),
    ("ec_firmware_release", "controller_release"),
    ("product_version", "product_version"),
];
/// Lines of `dmidecode --type memory`, each with the name of its fact. The values of all memory modules are listed,
/// without duplicates.
const MEMORY: [(&str, &str); 3] = [
    ("Configured Memory Speed", "memory_speed"),
    ("Type", "memory_type"),
    ("Rank", "memory_rank"),
];
/// Maximum length of a fact's value, bytes.
const MOST_BYTES: usize = 1024;

/// Reads the settings and versions of the firmware from the files below `root`, the root of the file system.
pub(crate) fn read(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut add = |name: String, value: &str| {
        let value = value.trim();
        if !value.is_empty() && value.len() <= MOST_BYTES {
            found.insert(name, value.to_owned());
        }
    };
    for (file, name) in DMI {
        let path = root.join("sys/class/dmi/id").join(file);
        add(
            name.to_owned(),
            &fs::read_to_string(path).unwrap_or_default(),
        );
    }
    let attributes = root.join("sys/class/firmware-attributes");
    for driver in fs::read_dir(attributes).into_iter().flatten().flatten() {
        let attributes = fs::read_dir(driver.path().join("attributes"));
        for attribute in attributes.into_iter().flatten().flatten() {
            let value = fs::read_to_string(attribute.path().join("current_value"));
            let name = attribute.file_name().to_string_lossy().into_owned();
            add(format!("bios.{name}"), &value.unwrap_or_default());
        }
    }
    for (name, value) in memory_in(&dmidecode(root)) {
        add(name, &value);
    }
    found
}

/// Returns dmidecode's report about the memory; empty if dmidecode is not installed, or the user is not root.
fn dmidecode(root: &Path) -> String {
    if root != Path::new("/") || !root.join("sys/firmware/dmi/tables/DMI").exists() {
        return String::new();
    }
    let said = Command::new("dmidecode")
        .args(["--type", "memory"])
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    said.map(|said| String::from_utf8_lossy(&said.stdout).into_owned())
        .unwrap_or_default()
}

/// Returns the facts in the output of dmidecode about the memory.
fn memory_in(said: &str) -> BTreeMap<String, String> {
    let mut found: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut is_module = false;
    for line in said.lines() {
        if !line.starts_with([' ', '\t']) {
            is_module = line.trim() == "Memory Device";
            continue;
        }
        let Some((key, value)) = line.trim().split_once(": ").filter(|_| is_module) else {
            continue;
        };
        if let Some((_, name)) = MEMORY.iter().find(|(line, _)| *line == key)
            && value != "Unknown"
        {
            let values = found.entry((*name).to_owned()).or_default();
            if !values.contains(&value) {
                values.push(value);
            }
        }
    }
    let joined = found.into_iter();
    joined
        .map(|(name, values)| (name, values.join(", ")))
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn firmware_attributes_and_releases_are_read_from_sysfs() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join("sys/class").join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("dmi/id/bios_release", "2.14\n");
        let attributes = "firmware-attributes/dell-wmi-sysman/attributes";
        write(
            &format!("{attributes}/LogicalProc/current_value"),
            "Disabled\n",
        );
        write(&format!("{attributes}/Secret/current_value"), "");
        let found = read(root.path());
        let expected = [("bios.LogicalProc", "Disabled"), ("bios_release", "2.14")];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, BTreeMap::from(expected));
    }

    #[test]
    fn memory_modules_are_parsed_from_dmidecode() {
        let said = "# dmidecode 3.4\nHandle 0x11, DMI type 17, 92 bytes\nMemory Device\n\tType: DDR5\n\tSpeed: 5600 MT/s\n\
                    \tConfigured Memory Speed: 4800 MT/s\n\tRank: Unknown\n\nHandle 0x12, DMI type 17, 92 bytes\n\
                    Memory Device\n\tType: DDR5\n\tConfigured Memory Speed: 5600 MT/s\n\nSystem Slot\n\tType: x16\n";
        let found = memory_in(said);
        assert_eq!(found["memory_speed"], "4800 MT/s, 5600 MT/s");
        assert_eq!(found["memory_type"], "DDR5");
        assert_eq!(found.len(), 2);
    }
}
