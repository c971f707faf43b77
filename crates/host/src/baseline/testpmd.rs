//! DPDK's own forwarder `dpdk-testpmd` over memif, vhost-user, packet sockets and AF_XDP.

use super::step::{Owner, Ready, words};
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::permissions::{Missing, can_load_xdp, can_open_packet_sockets};
use crate::testpmd::{Memory, Testpmd, probe};

/// The number of frames per ring of an AF_PACKET socket, the same as in taut's packet sockets.
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
            [0, 1].map(|number| format!("net_vhost{number},iface={}", place.ends[number]));
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

fn memif(place: &CommandValues, mode: &str) -> Vec<Step> {
    let devices = [0, 1].map(|number| {
        format!(
            "net_memif{number},role=server,id=0,socket={},socket-abstract=no",
            place.ends[number]
        )
    });
    vec![testpmd(place, devices, mode)]
}

fn on_interfaces(place: &CommandValues, driver: &str, options: &str) -> Vec<Step> {
    let devices = [0, 1].map(|number| {
        let interface = &place.ends[number];
        format!("{driver}{number},iface={interface}{options}")
    });
    vec![testpmd(place, devices, "io")]
}

fn testpmd(place: &CommandValues, devices: [String; 2], mode: &str) -> Step {
    // `stdbuf` makes the program write each line immediately, even to a file. DPDK's run-time files are in the
    // baseline's folder.
    let mut line = words(&[
        "env",
        &format!("RUNTIME_DIRECTORY={}", place.folder.display()),
        "stdbuf",
        "-oL",
    ]);
    line.extend(
        Testpmd {
            cpu: place.cpu,
            memory: Memory::Usual,
            devices: &devices,
            mode,
            buffers: 16384,
            // The links come up when the generator starts, which is later.
            more: &["--disable-link-check"],
        }
        .words(),
    );
    Step::Keep {
        name: "testpmd",
        line,
        ready: Ready::LineStart("Press enter to exit"),
        owner: Owner::WatchesInput,
    }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    fn place(ends: [&str; 2]) -> CommandValues {
        CommandValues {
            ends: ends.map(str::to_owned),
            cpu: 3,
            folder: "/scratch".into(),
        }
    }

    #[test]
    fn testpmd_serves_both_memif_sockets_and_uses_one_cpu() {
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
    fn testpmd_has_one_vhost_socket_per_device() {
        let line = text(&(VHOST_IO.steps)(&place(["/scratch/w", "/scratch/e"]))[0]);
        assert!(line.contains(
            "--vdev=net_vhost0,iface=/scratch/w --vdev=net_vhost1,iface=/scratch/e -- --auto-start"
        ));
    }

    #[test]
    fn testpmd_devices_have_the_order_of_the_interfaces() {
        let line = text(&(AF_PACKET.steps)(&place(["dut0", "dut1"]))[0]);
        assert!(
            line.contains("--vdev=net_af_packet0,iface=dut0,framecnt=2048 --vdev=net_af_packet1,iface=dut1,framecnt=2048"),
            "{line}"
        );
        let line = text(&(AF_XDP.steps)(&place(["dut0", "dut1"]))[0]);
        assert!(line.contains("net_af_xdp0,iface=dut0 --vdev=net_af_xdp1,iface=dut1"));
    }
}
