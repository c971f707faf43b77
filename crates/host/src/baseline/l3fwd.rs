//! A router on DPDK as its example `l3fwd` is, over memif: a program of ours on others' tables, built when it is started.

use super::linux_routing::{HOSTS, NETWORKS};
use super::step::{Owner, Ready, words};
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::command::{is_installed, run};
use crate::net::testbed::{DEVICE_MACS, GENERATOR_MACS, mac_text};
use crate::permissions::Missing;
use crate::testpmd::{Memory, driver_library};

/// Its source: DPDK's own example of this name takes its routes from a table in its source.
const SOURCE: &str = include_str!("../../../../benches/peers/l3fwd/l3fwd.c");

pub(super) const LPM: Baseline = Baseline {
    id: "memif-l3fwd-lpm",
    label: "l3fwd lpm",
    io: "l3fwd",
    note: "routing of IPv4 on DPDK's rte_lpm (TTL and MAC addresses rewritten), as DPDK's example l3fwd does it; server on both links: it copies each frame into its own memory and out again",
    reach: Reach::Memif { tx_rings: 1 },
    frames: Frames::Routed,
    probe,
    steps: |place| steps(place, "lpm"),
};

pub(super) const FIB: Baseline = Baseline {
    id: "memif-l3fwd-fib",
    label: "l3fwd fib",
    note: "as l3fwd lpm, on DPDK's rte_fib",
    steps: |place| steps(place, "fib"),
    ..LPM
};

pub(super) fn probe() -> Result<String, Missing> {
    let missing = |what: &str| Missing {
        what: what.to_owned(),
        how_to_get_it: "apt-get install gcc pkg-config libdpdk-dev 'librte-net-memif*'".to_owned(),
    };
    if let Some(program) = ["cc", "pkg-config"]
        .into_iter()
        .find(|it| !is_installed(it))
    {
        return Err(missing(&format!("`{program}` is not on the search path")));
    }
    let version = run("pkg-config", &["--modversion", "libdpdk"]);
    let version = version.map_err(|_| missing("DPDK's libdpdk is not installed"))?;
    let driver = driver_library("net_memif");
    driver.ok_or_else(|| missing("DPDK's driver net_memif is not installed"))?;
    Ok(format!("built here on DPDK {}", version.trim()))
}

fn steps(place: &CommandValues, table: &str) -> Vec<Step> {
    let [source, program] = ["l3fwd.c", "l3fwd"].map(|name| place.folder.join(name));
    let [source_text, program_text] = [&source, &program].map(|it| it.display().to_string());
    let flags = "$(pkg-config --cflags --libs libdpdk)";
    let build = format!("cc -O3 -march=native -o {program_text} {source_text} {flags}");
    let mut line = words(&[
        "env",
        &format!("RUNTIME_DIRECTORY={}", place.folder.display()),
        &program_text,
        "--no-pci",
        "--no-telemetry",
        "--lcores",
        &format!("0@{0},1@{0}", place.cpu),
    ]);
    line.extend(Memory::Usual.words_here());
    for (number, end) in place.ends.iter().enumerate() {
        line.push(format!(
            "--vdev=net_memif{number},role=server,id=0,socket={end},socket-abstract=no"
        ));
    }
    line.extend(words(&["--", table]));
    for (port, host) in HOSTS.iter().enumerate() {
        let (_, length) = NETWORKS[port].split_once('/').unwrap_or(("", "16"));
        let [own, next] = [DEVICE_MACS, GENERATOR_MACS].map(|macs| mac_text(macs[port]));
        let [a, b, ..] = host.octets();
        line.push(format!("{port}:{a}.{b}.0.0/{length}:{own}-{next}"));
    }
    vec![
        Step::Write(source, SOURCE),
        Step::Run(words(&["sh", "-c", &build])),
        Step::Keep {
            name: "l3fwd",
            line,
            ready: Ready::LineStart("forwarding"),
            owner: Owner::WatchesInput,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    #[test]
    fn it_is_built_in_its_folder_and_has_a_route_to_each_port() {
        let place = CommandValues {
            ends: ["/scratch/w", "/scratch/e"].map(str::to_owned),
            cpu: 3,
            folder: "/scratch".into(),
        };
        let lines: Vec<String> = steps(&place, "fib").iter().map(text).collect();
        assert!(
            lines[1].contains("-o /scratch/l3fwd /scratch/l3fwd.c "),
            "{lines:?}"
        );
        for part in [
            "RUNTIME_DIRECTORY=/scratch /scratch/l3fwd --no-pci",
            "--lcores 0@3,1@3",
            "--vdev=net_memif1,role=server,id=0,socket=/scratch/e,",
            "-- fib 0:198.18.0.0/16:02:00:00:00:01:01-02:00:00:00:00:01 1:198.19.0.0/16:02:00:00:00:01:02-02:00:00:00:00:02",
        ] {
            assert!(lines[2].contains(part), "{part}: {lines:?}");
        }
    }
}
