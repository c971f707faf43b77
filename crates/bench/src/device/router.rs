//! The chain file of taut's router between the generator's two networks.

use std::path::{Path, PathBuf};
use taut_host::baseline::ROUTED_NETWORKS;
use taut_host::testbed::DEVICE_MACS;
use taut_wire::Mac;

/// Returns the path of the router's chain file in the device's folder.
pub(super) fn path(folder: &Path) -> PathBuf {
    folder.join("router.toml")
}

/// Writes the router's chain file into the device's folder.
pub(super) fn write(folder: &Path) -> std::io::Result<()> {
    std::fs::write(path(folder), chain())
}

/// Returns the text of the chain file with a router for [`taut_host::baseline::Frames::Routed`]. Its ports are given on
/// the command line.
fn chain() -> String {
    let interfaces = ROUTED_NETWORKS
        .iter()
        .zip(DEVICE_MACS)
        .map(|(network, mac)| {
            let mac = Mac(mac);
            format!("\n[[function.interface]]\nmac = \"{mac}\"\naddresses = [\"{network}\"]\n")
        });
    let head = "ports = [\"null:\", \"null:\"]\n\n[[function]]\nname = \"route\"\n";
    std::iter::once(head.to_owned()).chain(interfaces).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_functions::FUNCTIONS;

    #[test]
    fn the_written_chain_file_of_the_router_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path()).unwrap();
        let chain = taut_engine::Chain::load(&path(folder.path()), FUNCTIONS).unwrap();
        assert_eq!(chain.functions.len(), 1);
    }
}
