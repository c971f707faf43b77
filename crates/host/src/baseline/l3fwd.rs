//! DPDK's own example `l3fwd`, a router, over memif, on `rte_lpm` and on `rte_fib`.

use super::dpdk_example::{build, line, probe};
use super::step::{Owner, Ready};
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::net::testbed::{GENERATOR_MACS, mac_text};

pub(super) const LPM: Baseline = Baseline {
    id: "memif-l3fwd-lpm",
    label: "l3fwd lpm",
    io: "l3fwd",
    note: "routing of IPv4 by DPDK's example l3fwd, on rte_lpm (TTL and MAC addresses rewritten), its check sum offload left out, which memif has not; server on both links: it copies each frame into its own memory and out again",
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

/// Source files of the example `l3fwd` other than its `main.c`.
const OTHERS: &[&str] = &[
    "l3fwd_acl.c",
    "l3fwd_em.c",
    "l3fwd_event.c",
    "l3fwd_event_generic.c",
    "l3fwd_event_internal_port.c",
    "l3fwd_fib.c",
    "l3fwd_lpm.c",
];

/// The IPv4 routes of the example: one to the network at each of its two ports.
const ROUTES: &str = "R198.18.0.0/16 0\nR198.19.0.0/16 1\n";

fn steps(place: &CommandValues, table: &str) -> Vec<Step> {
    let [routes, routes_v6] = ["routes", "routes-v6"].map(|name| place.folder.join(name));
    let next = |port: usize| format!("--eth-dest={port},{}", mac_text(GENERATOR_MACS[port]));
    let own = [
        "-p",
        "0x3",
        "-P",
        "--config=(0,0,0),(1,0,0)",
        &format!("--lookup={table}"),
        &format!("--rule_ipv4={}", routes.display()),
        &format!("--rule_ipv6={}", routes_v6.display()),
        &next(0),
        &next(1),
        // memif does not report packet types, so the example has to determine them in software.
        "--parse-ptype",
        "--no-numa",
    ];
    let line = line(place, "l3fwd", &own);
    vec![
        Step::Write(routes, ROUTES),
        // The example requires an IPv6 route.
        Step::Write(routes_v6, "R2001:db8::/48 0\n"),
        build(place, "l3fwd", "s/RTE_ETH_RX_OFFLOAD_CHECKSUM/0/", OTHERS),
        Step::Keep {
            name: "l3fwd",
            line,
            // After this line the program waits for its links, which come up when the generator starts.
            ready: Ready::LineStart("Port 1: softly parse"),
            owner: Owner::NeedsWatcher,
        },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    #[test]
    fn each_l3fwd_port_has_a_route_to_its_host_network() {
        for (line, host) in ROUTES.lines().zip(crate::baseline::linux_routing::HOSTS) {
            let [a, b, ..] = host.octets();
            assert!(
                line.contains(&format!("R{a}.{b}.0.0/16 ")),
                "{line}: {host}"
            );
        }
    }

    #[test]
    fn l3fwd_has_its_own_folder_and_a_route_per_port() {
        let place = CommandValues {
            ends: ["/scratch/w", "/scratch/e"].map(str::to_owned),
            cpu: 3,
            folder: "/scratch".into(),
        };
        let lines: Vec<String> = steps(&place, "fib").iter().map(text).collect();
        assert!(
            lines[2].contains("-o /scratch/l3fwd /scratch/l3fwd.c "),
            "{lines:?}"
        );
        for part in [
            "/scratch/l3fwd --no-pci",
            "--lcores 0@3",
            "--vdev=net_memif1,role=server,id=0,socket=/scratch/e,",
            "--lookup=fib --rule_ipv4=/scratch/routes ",
            "--eth-dest=1,02:00:00:00:00:02",
        ] {
            assert!(lines[3].contains(part), "{part}: {lines:?}");
        }
    }
}
