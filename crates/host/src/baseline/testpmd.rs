//! DPDK's own forwarder, `dpdk-testpmd`, over memif, vhost-user, packet sockets and AF_XDP.

use std::fs;
use std::path::{Path, PathBuf};

use super::step::{Owner, Ready, words};
use super::{Baseline, Frames, Place, Reach, Step, free_huge_pages};
use crate::command::is_installed;
use crate::permissions::{Missing, can_load_xdp, can_open_packet_sockets};

const PROGRAM: &str = "dpdk-testpmd";
/// Memory of the program, MB: 16384 buffers of 2304 bytes take 38.
const MEMORY_MB: u64 = 128;
/// Frames of each ring; taut's packet sockets have as many.
pub(super) const AF_PACKET_FRAMES: u32 = 2048;

pub(super) const MEMIF_IO: Baseline = Baseline {
    id: "memif-testpmd-io",
    label: "testpmd io",
    io: "testpmd",
    note: "DPDK's forwarder, frames untouched; server on both links: it copies each frame into its own memory and out again",
    reach: Reach::Memif { tx_rings: 1 },
    frames: Frames::Through,
    probe: probe_memif,
    steps: |place| memif(place, "io"),
};

pub(super) const MEMIF_MAC_SWAP: Baseline = Baseline {
    id: "memif-testpmd-macswap",
    label: "testpmd macswap",
    note: "as testpmd io, and swaps the MAC addresses",
    steps: |place| memif(place, "macswap"),
    ..MEMIF_IO
};

pub(super) const MEMIF_5_TUPLE_SWAP: Baseline = Baseline {
    id: "memif-testpmd-5tswap",
    label: "testpmd 5tswap",
    note: "as testpmd io, and swaps MAC addresses, IP addresses and UDP ports",
    frames: Frames::SameUdpPorts,
    steps: |place| memif(place, "5tswap"),
    ..MEMIF_IO
};

pub(super) const VHOST_IO: Baseline = Baseline {
    id: "vhost-testpmd-io",
    label: "testpmd io",
    io: "testpmd",
    note: "DPDK's forwarder on its net_vhost driver, frames untouched: it copies each frame into its own memory and out again",
    reach: Reach::Vhost,
    frames: Frames::Through,
    probe: probe_vhost,
    steps: |place| {
        let devices =
            [0, 1].map(|number| format!("--vdev=net_vhost{number},iface={}", place.ends[number]));
        vec![testpmd(place, devices, "io")]
    },
};

pub(super) const AF_PACKET: Baseline = Baseline {
    id: "veth-testpmd-af-packet",
    label: "testpmd AF_PACKET",
    io: "testpmd AF_PACKET",
    note: "DPDK's forwarder on its net_af_packet driver (mapped rings); kernel work on the receiving side steered to the device's core (RPS)",
    reach: Reach::Veth { steered: true },
    frames: Frames::Through,
    probe: probe_af_packet,
    steps: |place| {
        on_interfaces(
            place,
            "net_af_packet",
            &format!(",framecnt={AF_PACKET_FRAMES}"),
        )
    },
};

pub(super) const AF_XDP: Baseline = Baseline {
    id: "veth-testpmd-af-xdp",
    label: "testpmd AF_XDP",
    io: "testpmd AF_XDP",
    note: "DPDK's forwarder on its net_af_xdp driver; the XDP program runs on the sender's core; copy mode, as veth has no other",
    reach: Reach::Veth { steered: false },
    frames: Frames::Through,
    probe: probe_af_xdp,
    steps: |place| on_interfaces(place, "net_af_xdp", ""),
};

fn memif(place: &Place, mode: &str) -> Vec<Step> {
    let devices = [0, 1].map(|number| {
        format!(
            "--vdev=net_memif{number},role=server,id=0,socket={},socket-abstract=no",
            place.ends[number]
        )
    });
    vec![testpmd(place, devices, mode)]
}

fn on_interfaces(place: &Place, driver: &str, options: &str) -> Vec<Step> {
    let devices = [0, 1].map(|number| {
        let interface = &place.ends[number];
        format!("--vdev={driver}{number},iface={interface}{options}")
    });
    vec![testpmd(place, devices, "io")]
}

fn testpmd(place: &Place, devices: [String; 2], mode: &str) -> Step {
    // Its words at once, also to a file; and its run-time files where ours are.
    let mut line = words(&[
        "env",
        &format!("RUNTIME_DIRECTORY={}", place.folder.display()),
        "stdbuf",
        "-oL",
        PROGRAM,
        "--no-pci",
        "--no-telemetry",
        // The main thread sleeps until the end, so that it may share the CPU.
        "--lcores",
        &format!("0@{0},1@{0}", place.cpu),
    ]);
    line.extend(memory(free_huge_pages()));
    line.extend(devices);
    line.extend(words(&[
        "--",
        "--auto-start",
        &format!("--forward-mode={mode}"),
        "--nb-cores=1",
        "--total-num-mbufs=16384",
        // The links come up with the generator, which comes later.
        "--disable-link-check",
    ]));
    Step::Keep {
        name: "testpmd",
        line,
        ready: Ready::LineStart("Press enter to exit"),
        owner: Owner::WatchesInput,
    }
}

/// Huge pages where there are enough, as taut's own packet memory has them.
pub(super) fn memory(free_huge_pages: u64) -> Vec<String> {
    let pages = if free_huge_pages * 2 >= MEMORY_MB {
        "--in-memory"
    } else {
        "--no-huge"
    };
    words(&[pages, "-m", &MEMORY_MB.to_string()])
}

fn probe_memif() -> Result<String, Missing> {
    probe("net_memif", "'librte-net-memif*'")
}

fn probe_vhost() -> Result<String, Missing> {
    probe("net_vhost", "'librte-net-vhost*'")
}

fn probe_af_packet() -> Result<String, Missing> {
    can_open_packet_sockets()?;
    probe("net_af_packet", "'librte-net-af-packet*'")
}

fn probe_af_xdp() -> Result<String, Missing> {
    can_load_xdp()?;
    probe("net_af_xdp", "'librte-net-af-xdp*'")
}

fn probe(driver: &str, package: &str) -> Result<String, Missing> {
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

/// The file name of an installed DPDK driver, with its full version: `librte_net_memif.so.23.0`.
pub(super) fn driver_library(driver: &str) -> Option<String> {
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    fn place(ends: [&str; 2]) -> Place {
        Place {
            ends: ends.map(str::to_owned),
            cpu: 3,
            folder: "/scratch".into(),
        }
    }

    #[test]
    fn memif_server_on_both_sockets_and_one_cpu() {
        let steps = memif(&place(["/scratch/w", "/scratch/e"]), "macswap");
        let line = text(&steps[0]);
        for part in [
            "env RUNTIME_DIRECTORY=/scratch stdbuf -oL dpdk-testpmd --no-pci",
            "--lcores 0@3,1@3",
            "--vdev=net_memif0,role=server,id=0,socket=/scratch/w,socket-abstract=no",
            "--vdev=net_memif1,role=server,id=0,socket=/scratch/e,socket-abstract=no",
            "-- --auto-start --forward-mode=macswap",
        ] {
            assert!(line.contains(part), "{part}: {line}");
        }
    }

    #[test]
    fn vhost_has_a_socket_for_each_device() {
        let line = text(&(VHOST_IO.steps)(&place(["/scratch/w", "/scratch/e"]))[0]);
        assert!(line.contains(
            "--vdev=net_vhost0,iface=/scratch/w --vdev=net_vhost1,iface=/scratch/e -- --auto-start"
        ));
    }

    #[test]
    fn interfaces_are_given_to_the_driver_in_their_order() {
        let line = text(&(AF_PACKET.steps)(&place(["dut0", "dut1"]))[0]);
        assert!(
            line.contains("--vdev=net_af_packet0,iface=dut0,framecnt=2048 --vdev=net_af_packet1,iface=dut1,framecnt=2048"),
            "{line}"
        );
        let line = text(&(AF_XDP.steps)(&place(["dut0", "dut1"]))[0]);
        assert!(line.contains("net_af_xdp0,iface=dut0 --vdev=net_af_xdp1,iface=dut1"));
    }

    #[test]
    fn huge_pages_are_used_where_all_of_the_memory_fits_into_them() {
        assert_eq!(memory(64)[0], "--in-memory");
        assert_eq!(memory(63)[0], "--no-huge");
    }

    #[test]
    fn a_driver_is_found_below_the_folder_of_libraries() {
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
