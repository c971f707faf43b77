//! The NICs of the machine: driver, firmware, bus address. MAC addresses are omitted, as they identify one NIC.

use super::Tree;
use crate::command;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Facts about a NIC.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NetworkCard {
    /// The name of the NIC's driver, such as `ice`, or `vfio-pci` if DPDK uses the NIC.
    pub driver: Option<String>,
    /// The version of the driver; drivers of the kernel usually have the kernel's version.
    pub driver_version: Option<String>,
    /// The version of the NIC's firmware.
    pub firmware_version: Option<String>,
    /// The bus address of the NIC, such as `0000:17:00.0` or `virtio2`.
    pub bus: Option<String>,
    /// The PCI vendor and device numbers: `8086:1592`.
    pub pci_id: Option<String>,
    /// The folder in sysfs with the properties of the NIC.
    pub source: String,
}

impl NetworkCard {
    /// Adds the facts that the driver reports through `ethtool`. Adds nothing if `ethtool` is not installed or the
    /// driver reports nothing.
    pub(super) fn ask_driver(&mut self, interface: &str) {
        // A NIC without an interface has no driver to query.
        if !self.source.starts_with(INTERFACES) || interface.starts_with('-') {
            return;
        }
        if let Ok(said) = command::run("ethtool", &["-i", interface]) {
            self.take_from(&said);
        }
    }

    /// Parses the output of `ethtool -i`, lines `key: value`. An empty value or `N/A` counts as a missing value.
    fn take_from(&mut self, said: &str) {
        let value = |key: &str| {
            super::value_of(said, key).filter(|value| !value.is_empty() && value != "N/A")
        };
        for (field, key) in [
            (&mut self.driver, "driver"),
            (&mut self.driver_version, "version"),
            (&mut self.firmware_version, "firmware-version"),
            (&mut self.bus, "bus-info"),
        ] {
            *field = value(key).or(field.take());
        }
    }
}

const INTERFACES: &str = "/sys/class/net";
const PCI: &str = "/sys/bus/pci/devices";

impl Tree<'_> {
    pub(super) fn network_cards(&self) -> BTreeMap<String, NetworkCard> {
        let mut cards = BTreeMap::new();
        let mut with_interface: Vec<PathBuf> = Vec::new();
        for interface in self.names(INTERFACES) {
            let device = format!("{INTERFACES}/{interface}/device");
            // Bridges, veth pairs and tunnels are not NICs.
            if let Ok(place) = fs::canonicalize(self.path(&device)) {
                with_interface.push(place);
                cards.insert(interface, self.network_card(device));
            }
        }
        for address in self.names(PCI) {
            let device = format!("{PCI}/{address}");
            let class = self.line(&format!("{device}/class"));
            let is_card = class.is_some_and(|class| class.value.starts_with("0x02"));
            let Ok(place) = fs::canonicalize(self.path(&device)) else {
                continue;
            };
            // The sysfs path of a virtio NIC with an interface is below its PCI device, which is not a second NIC.
            if is_card && !with_interface.iter().any(|card| card.starts_with(&place)) {
                cards.insert(address, self.network_card(device));
            }
        }
        cards
    }

    fn network_card(&self, device: String) -> NetworkCard {
        let target = |path: PathBuf| {
            let target = fs::canonicalize(path).ok()?;
            Some(target.file_name()?.to_string_lossy().into_owned())
        };
        let number = |name: &str| {
            let number = self.line(&format!("{device}/{name}"))?.value;
            Some(number.trim_start_matches("0x").to_owned())
        };
        let driver = target(self.path(&format!("{device}/driver")));
        let in_infiniband = format!("{device}/infiniband");
        NetworkCard {
            driver_version: driver
                .as_ref()
                .and_then(|driver| self.line(&format!("/sys/module/{driver}/version")))
                .map(|version| version.value),
            driver,
            firmware_version: self
                .names(&in_infiniband)
                .first()
                .and_then(|name| self.line(&format!("{in_infiniband}/{name}/fw_ver")))
                .map(|version| version.value),
            bus: target(self.path(&device)),
            pci_id: number("vendor")
                .zip(number("device"))
                .filter(|(vendor, device)| vendor.len() == 4 && device.len() == 4)
                .map(|(vendor, device)| format!("{vendor}:{device}")),
            source: device,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Machine;
    use std::os::unix::fs::symlink;
    use std::path::Path;

    /// Makes a NIC on the PCI bus as sysfs shows it.
    fn card(root: &Path, address: &str, driver: &str, below: &str) -> PathBuf {
        let place = root.join("sys/devices/pci0000:00").join(address);
        fs::create_dir_all(place.join(below)).unwrap();
        for (name, text) in [
            ("class", "0x020000\n"),
            ("vendor", "0x8086\n"),
            ("device", "0x1592\n"),
        ] {
            fs::write(place.join(name), text).unwrap();
        }
        let drivers = root.join("sys/bus/pci/drivers").join(driver);
        fs::create_dir_all(&drivers).unwrap();
        symlink(drivers, place.join("driver")).unwrap();
        let bus = root.join("sys/bus/pci/devices");
        fs::create_dir_all(&bus).unwrap();
        symlink(&place, bus.join(address)).unwrap();
        place
    }

    fn interface(root: &Path, name: &str, device: Option<&Path>) {
        let place = root.join("sys/class/net").join(name);
        fs::create_dir_all(&place).unwrap();
        if let Some(device) = device {
            symlink(device, place.join("device")).unwrap();
        }
    }

    #[test]
    fn cards_are_found_with_and_without_an_interface() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let own = card(root, "0000:17:00.0", "ice", "infiniband/rocep23s0");
        fs::write(own.join("infiniband/rocep23s0/fw_ver"), "4.20\n").unwrap();
        fs::create_dir_all(root.join("sys/module/ice")).unwrap();
        fs::write(root.join("sys/module/ice/version"), "1.12.7\n").unwrap();
        interface(root, "ens1", Some(&own));
        card(root, "0000:17:00.1", "vfio-pci", "");
        let bridge = card(root, "0000:00:1c.0", "pcieport", "");
        fs::write(bridge.join("class"), "0x060400\n").unwrap();
        let virtual_one = card(root, "0000:00:03.0", "virtio-pci", "virtio2");
        interface(root, "eth0", Some(&virtual_one.join("virtio2")));
        interface(root, "lo", None);
        let cards = Machine::read_under(root).network_cards;
        assert_eq!(
            cards.keys().map(String::as_str).collect::<Vec<_>>(),
            ["0000:17:00.1", "ens1", "eth0"]
        );
        let ens1 = &cards["ens1"];
        assert_eq!(ens1.driver.as_deref(), Some("ice"));
        assert_eq!(ens1.driver_version.as_deref(), Some("1.12.7"));
        assert_eq!(ens1.firmware_version.as_deref(), Some("4.20"));
        assert_eq!(ens1.bus.as_deref(), Some("0000:17:00.0"));
        assert_eq!(ens1.pci_id.as_deref(), Some("8086:1592"));
        assert_eq!(ens1.source, "/sys/class/net/ens1/device");
        assert_eq!(cards["0000:17:00.1"].driver.as_deref(), Some("vfio-pci"));
        assert_eq!(cards["eth0"].bus.as_deref(), Some("virtio2"));
    }

    #[test]
    fn versions_from_ethtool_replace_earlier_versions() {
        let mut card = NetworkCard {
            driver: Some("ice".into()),
            bus: Some("0000:17:00.0".into()),
            driver_version: Some("1".into()),
            ..NetworkCard::default()
        };
        card.take_from(
            "driver: ice\nversion: 6.8.0\nfirmware-version: 4.20 0x80017785 1.3346.0\nexpansion-rom-version: \nbus-info: \n",
        );
        assert_eq!(card.driver_version.as_deref(), Some("6.8.0"));
        assert_eq!(
            card.firmware_version.as_deref(),
            Some("4.20 0x80017785 1.3346.0")
        );
        assert_eq!(card.bus.as_deref(), Some("0000:17:00.0"));
        let before = card.clone();
        card.take_from("version: N/A\nnonsense");
        assert_eq!(card, before);
    }
}
