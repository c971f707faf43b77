//! The ports of functions inside a virtual machine, and the files that DPDK's port needs there.

use super::archive::Archive;
use super::libraries::{libraries, read};
use crate::DeployError;
use std::fs;
use std::path::{Path, PathBuf};
use taut_engine::{MachinePort, Place};
use taut_host::Missing;
use taut_port::{Attachment, PortSpec};

/// Names of the west and the east NIC inside the virtual machine.
pub const CARDS: [&str; 2] = ["eth0", "eth1"];

/// PCI device number of a machine's first NIC; the others follow. Machines enumerate NICs in this order.
pub(super) const FIRST_SLOT: usize = 0x10;

/// The kernel module by which DPDK accesses NICs. Virtual machines here have no IOMMU, so VFIO is not possible.
pub(super) const USER_SPACE_DRIVER: &str = "uio_pci_generic";

/// Huge pages of 2 MB of a machine with DPDK ports: buffers and rings of two ports.
pub(super) const HUGE_PAGES: u32 = 128;

/// Kernel modules of virtual functions (SR-IOV) that are passed through to a machine.
pub(super) const PASSED_THROUGH: [&str; 3] = ["igbvf", "ixgbevf", "iavf"];

/// Folder in which the loader finds libraries, by the name that `ldd` prints.
const LIBRARIES: &str = "/lib/x86_64-linux-gnu";
/// Folder with a folder of plugins for each release of DPDK.
const DPDK: &str = "/usr/lib/x86_64-linux-gnu/dpdk";

/// The plugins that DPDK loads when it starts inside a machine: buses, packet memory, and the driver of virtio NICs.
const PLUGINS: [&str; 4] = ["bus_pci", "bus_vdev", "mempool_ring", "net_virtio"];

/// Returns the specs of the west and the east port of a function inside its machine.
pub fn ports_inside(place: Place, port: MachinePort) -> [String; 2] {
    match (place, port) {
        (Place::Kernel, _) | (Place::User, MachinePort::AfPacket) => {
            CARDS.map(|card| format!("af_packet:{card}"))
        }
        (Place::User, MachinePort::AfXdp) => CARDS.map(|card| format!("af_xdp:{card}")),
        (Place::User, MachinePort::Dpdk) => {
            [0, 1].map(|number| format!("dpdk:0000:00:{:02x}.0", FIRST_SLOT + number))
        }
    }
}

/// Returns the PCI address of a NIC or virtual function of this host that a machine gets whole; None for a socket.
pub(super) fn passed_through(card: &Path) -> Option<&str> {
    let address = card.to_str()?;
    let parts: Vec<&str> = address.split([':', '.']).collect();
    let is_hex = |part: &&str| part.bytes().all(|digit| digit.is_ascii_hexdigit());
    let lengths: Vec<usize> = parts.iter().map(|part| part.len()).collect();
    (lengths == [4, 2, 2, 1] && parts.iter().all(is_hex)).then_some(address)
}

/// Checks that the NIC of this host with this PCI address has the driver `vfio-pci`, which passes NICs to virtual
/// machines.
///
/// # Errors
/// There is no such NIC, or another driver has it.
pub(super) fn check_passed_through(address: &str) -> Result<(), DeployError> {
    let device = Path::new("/sys/bus/pci/devices").join(address);
    if !device.exists() {
        return Err(DeployError::Chain(format!(
            "card {address}: no such PCI device here (lspci -D lists them)"
        )));
    }
    let driver = fs::read_link(device.join("driver")).unwrap_or_default();
    if driver.ends_with("vfio-pci") {
        return Ok(());
    }
    Err(Missing {
        what: format!("card {address} needs the driver vfio-pci to be passed to a virtual machine"),
        how_to_get_it: format!("driverctl set-override {address} vfio-pci (needs an IOMMU)"),
    }
    .into())
}

/// Returns the PCI addresses of the NICs that DPDK is to use.
pub(super) fn dpdk_devices(ports: &[PortSpec]) -> Vec<String> {
    let ports = ports
        .iter()
        .filter(|port| matches!(port.kind().attachment, Attachment::Device));
    ports.map(|port| port.target().to_string()).collect()
}

/// Adds DPDK's plugins for virtio NICs, and their libraries, to the files of a machine.
///
/// # Errors
/// DPDK is not installed here.
pub(super) fn add_dpdk(archive: &mut Archive) -> Result<(), DeployError> {
    let missing = |what: &str| Missing {
        what: format!("DPDK ports in a virtual machine need {what}"),
        how_to_get_it: "apt-get install dpdk librte-net-virtio23 (the number of your release)"
            .to_string(),
    };
    let folder = plugins_folder().ok_or_else(|| missing(&format!("DPDK's plugins in {DPDK}")))?;
    for plugin in PLUGINS {
        let link = folder.join(format!("librte_{plugin}.so"));
        // DPDK loads a plugin by this path, and other plugins load it by its soname. It must be one file: two copies
        // would register the same driver twice.
        let library = fs::read_link(&link)
            .ok()
            .and_then(|soname| Some(Path::new(LIBRARIES).join(soname.file_name()?)))
            .filter(|library| library.exists())
            .ok_or_else(|| missing(&format!("DPDK's {plugin}")))?;
        archive.link(&link, &library);
        archive.file(&library, 0o755, &read(&library)?);
        for needed in libraries(&library)? {
            archive.file(&needed, 0o755, &read(&needed)?);
        }
    }
    Ok(())
}

/// Returns the folder of the plugins of the newest release of DPDK that is installed.
fn plugins_folder() -> Option<PathBuf> {
    let entries = fs::read_dir(Path::new(DPDK)).ok()?.flatten();
    let folders = entries.map(|entry| entry.path());
    folders
        .filter(|path| {
            let name = path.file_name().and_then(|name| name.to_str());
            name.is_some_and(|name| name.starts_with("pmds-"))
        })
        .max()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn pci_addresses_are_told_from_sockets() {
        let address = |card: &str| passed_through(Path::new(card)).is_some();
        assert!(address("0000:01:10.0"));
        for socket in ["/run/0000:01:10.0", "west.sock", "0000:01:1g.0", "01:10.0"] {
            assert!(!address(socket), "{socket}");
        }
        let message = check_passed_through("ffff:ff:1f.7")
            .unwrap_err()
            .to_string();
        assert!(message.contains("no such PCI device"), "{message}");
    }

    #[test]
    fn kernel_functions_use_interfaces_and_dpdk_functions_pci_devices() {
        let dpdk = ports_inside(Place::User, MachinePort::Dpdk);
        assert_eq!(dpdk, ["dpdk:0000:00:10.0", "dpdk:0000:00:11.0"]);
        let kernel = ports_inside(Place::Kernel, MachinePort::Dpdk);
        assert_eq!(kernel, ["af_packet:eth0", "af_packet:eth1"]);
        let specs: Vec<PortSpec> = [&dpdk[0], &kernel[1]]
            .map(|spec| PortSpec::parse(spec).unwrap())
            .into();
        assert_eq!(dpdk_devices(&specs), ["0000:00:10.0"]);
    }
}
