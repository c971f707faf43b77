//! The frameworks that are compared: packet I/O backends, each with the forwarder that uses it.

use taut_bench::framework::{Framework, Program, Transport};
use taut_host::{is_installed, testpmd};
use taut_port::backends;
use taut_results::LeftOut;

/// An entry of the lists of frameworks below.
struct Listed {
    id: &'static str,
    label: &'static str,
    program: Program,
    transport: Transport,
    ports: [&'static str; 2],
    note: &'static str,
}

impl Listed {
    /// Converts the entry into a framework.
    fn framework(&self) -> Framework {
        Framework::new(
            self.id,
            self.label,
            self.program,
            self.transport,
            self.ports,
        )
        .noted(self.note)
    }
}

/// Frameworks of taut that need the same backend.
struct OfBackend {
    /// The name of the backend, and the name under which the frameworks are reported as skipped if the backend is
    /// unsupported; none for a backend that every machine supports.
    backend: Option<[&'static str; 2]>,
    frameworks: &'static [Listed],
}

/// The frameworks of taut that need no network namespaces.
const WITHOUT_NAMESPACES: [OfBackend; 4] = [
    OfBackend {
        backend: None,
        frameworks: &[Listed {
            id: "null",
            label: "null",
            program: Program::Taut,
            transport: Transport::Nothing,
            ports: ["null:source={burst}", "null:"],
            note: "no device: frames come from nothing and vanish, which is the price of \
                the loop itself",
        }],
    },
    OfBackend {
        backend: Some(["dpdk", "DPDK devices as ports of taut"]),
        frameworks: &[
            Listed {
                id: "dpdk-null",
                label: "DPDK net_null",
                program: Program::Taut,
                transport: Transport::Nothing,
                ports: [
                    "dpdk:net_null0,size=64,copy=0",
                    "dpdk:net_null1,size=64,copy=0",
                ],
                note: "both directions at once, as testpmd over the same devices",
            },
            Listed {
                id: "dpdk-memif",
                label: "DPDK net_memif",
                program: Program::Taut,
                transport: Transport::Memif,
                ports: [
                    "dpdk:net_memif0,role=client,id=0,socket={0},socket-abstract=no",
                    "dpdk:net_memif1,role=client,id=0,socket={1},socket-abstract=no",
                ],
                note: "",
            },
        ],
    },
    OfBackend {
        backend: Some(["pair", "threads of one process"]),
        frameworks: &[Listed {
            id: "pair",
            label: "pair",
            program: Program::TautThread,
            transport: Transport::Pair,
            ports: ["pair:{0}", "pair:{1}"],
            note: "worker and generator are threads of one process",
        }],
    },
    OfBackend {
        backend: None,
        frameworks: &[Listed {
            id: "memif",
            label: "memif",
            program: Program::Taut,
            transport: Transport::Memif,
            ports: ["memif:{0},role=client", "memif:{1},role=client"],
            note: "client on both links with one packet pool: frames are forwarded without a copy",
        }],
    },
];

/// The frameworks of taut between network namespaces.
const BETWEEN_NAMESPACES: [OfBackend; 2] = [
    OfBackend {
        backend: Some(["af_packet", "AF_PACKET over veth"]),
        frameworks: &[Listed {
            id: "af-packet",
            label: "AF_PACKET",
            program: Program::Taut,
            transport: Transport::Veth,
            ports: ["af_packet:{0}", "af_packet:{1}"],
            note: "the kernel's receive work runs on the device's core too (packet steering)",
        }],
    },
    OfBackend {
        backend: Some(["af_xdp", "AF_XDP over veth"]),
        frameworks: &[Listed {
            id: "af-xdp",
            label: "AF_XDP",
            program: Program::Taut,
            transport: Transport::Veth,
            ports: ["af_xdp:{0}", "af_xdp:{1}"],
            note: "copy mode, the only one of veth; its XDP program runs on the sender's core",
        }],
    },
];

/// The frameworks of testpmd, each with its driver of DPDK.
const OF_TESTPMD: [(&str, Listed); 4] = [
    (
        "net_null",
        Listed {
            id: "testpmd-null",
            label: "testpmd net_null",
            program: Program::Testpmd,
            transport: Transport::Nothing,
            ports: ["net_null0,size=64,copy=0", "net_null1,size=64,copy=0"],
            note: "its throughput follows from its own count of cycles",
        },
    ),
    (
        "net_memif",
        Listed {
            id: "testpmd-memif",
            label: "testpmd net_memif",
            program: Program::Testpmd,
            transport: Transport::Memif,
            ports: [
                "net_memif0,role=client,id=0,socket={0},socket-abstract=no,rsize=10,zero-copy=yes",
                "net_memif1,role=client,id=0,socket={1},socket-abstract=no,rsize=10,zero-copy=yes",
            ],
            note: "",
        },
    ),
    (
        "net_af_packet",
        Listed {
            id: "testpmd-af-packet",
            label: "testpmd net_af_packet",
            program: Program::Testpmd,
            transport: Transport::Veth,
            ports: ["net_af_packet0,iface={0}", "net_af_packet1,iface={1}"],
            note: "",
        },
    ),
    (
        "net_af_xdp",
        Listed {
            id: "testpmd-af-xdp",
            label: "testpmd net_af_xdp",
            program: Program::Testpmd,
            transport: Transport::Veth,
            ports: ["net_af_xdp0,iface={0}", "net_af_xdp1,iface={1}"],
            note: "",
        },
    ),
];

/// Returns the frameworks that this machine and this build support, and the skipped ones.
pub fn possible() -> (Vec<Framework>, Vec<LeftOut>) {
    let mut found = Vec::new();
    let mut left_out = Vec::new();
    let namespaces = taut_host::permissions::can_make_namespaces();
    add_of_taut(&WITHOUT_NAMESPACES, &mut found, &mut left_out);
    match &namespaces {
        Ok(()) => add_of_taut(&BETWEEN_NAMESPACES, &mut found, &mut left_out),
        Err(e) => left_out.push(missing("everything over veth", &e.what, &e.how_to_get_it)),
    }
    add_of_testpmd(namespaces.is_ok(), &mut found, &mut left_out);
    (found, left_out)
}

/// Adds those frameworks of taut to `found` whose backend works here, and the others to `left_out`.
fn add_of_taut(list: &[OfBackend], found: &mut Vec<Framework>, left_out: &mut Vec<LeftOut>) {
    for group in list {
        let backend = group.backend;
        if backend.is_none_or(|[name, what]| works(name, what, left_out)) {
            found.extend(group.frameworks.iter().map(Listed::framework));
        }
    }
}

/// Returns true if this build has the backend `backend` and the backend works on this machine. A backend of this build
/// that does not work is added to `left_out` under the name `what`. A backend that this build lacks is not added.
fn works(backend: &str, what: &str, left_out: &mut Vec<LeftOut>) -> bool {
    match backends()
        .iter()
        .find(|b| b.name == backend)
        .map(|b| (b.probe)())
    {
        Some(Ok(_)) => true,
        Some(Err(e)) => {
            left_out.push(missing(what, &e.to_string(), "see taut ports"));
            false
        }
        None => false,
    }
}

/// Adds those frameworks of testpmd to `found` whose driver is installed, and the others to `left_out`. Those over veth
/// also need `namespaces`.
fn add_of_testpmd(namespaces: bool, found: &mut Vec<Framework>, left_out: &mut Vec<LeftOut>) {
    if !is_installed(testpmd::PROGRAM) {
        left_out.push(missing(
            "dpdk-testpmd beside taut",
            "it is not installed",
            "apt-get install dpdk",
        ));
        return;
    }
    for (driver, listed) in &OF_TESTPMD {
        if listed.transport == Transport::Veth && !namespaces {
            continue;
        }
        if testpmd::driver_library(driver).is_some() {
            found.push(listed.framework());
        } else {
            left_out.push(missing(
                listed.label,
                &format!("DPDK's driver {driver} is not installed"),
                &format!("apt-get install librte-{}*", driver.replace('_', "-")),
            ));
        }
    }
}

fn missing(what: &str, why: &str, how: &str) -> LeftOut {
    LeftOut {
        what: what.to_string(),
        why: why.to_string(),
        how: how.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn frameworks_have_unique_names_and_include_null_and_memif() {
        let (found, _) = possible();
        let ids: BTreeSet<_> = found.iter().map(|f| f.id.as_str()).collect();
        let labels: BTreeSet<_> = found.iter().map(|f| f.label.as_str()).collect();
        assert_eq!((ids.len(), labels.len()), (found.len(), found.len()));
        assert!(ids.contains("null") && ids.contains("memif"));
    }
}
