//! The frameworks that are compared: ways for packets into a program and out of it, each with the
//! forwarder that uses it.

use serde::{Deserialize, Serialize};
use taut_host::{is_installed, testpmd};
use taut_port::{BATCH_CAPACITY, backends};
use taut_results::LeftOut;

/// Who forwards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `taut forward`, in a process of its own.
    Taut,
    /// A worker of taut in the generator's process.
    TautThread,
    /// DPDK's `dpdk-testpmd` in mode `io`: it has no load to raise.
    Testpmd,
}

/// How frames reach the forwarder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// They do not: a device that makes frames and swallows them, so that only the program costs.
    Nothing,
    /// Shared memory to the generator's memif ports.
    Memif,
    /// Rings between threads of one process.
    Pair,
    /// Veth pairs between two network namespaces, packet sockets at the generator.
    Veth,
}

impl Transport {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "none",
            Self::Memif => "memif",
            Self::Pair => "pair",
            Self::Veth => "veth",
        }
    }
}

/// A framework under test.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Framework {
    /// Short name for files.
    pub id: String,
    /// Name in tables and figures.
    pub label: String,
    /// Who forwards.
    pub program: Program,
    /// How frames reach it.
    pub transport: Transport,
    /// The device's two ports: port specs of taut, or devices of testpmd. `{0}` and `{1}` stand for the
    /// socket or interface of each, `{burst}` and `{size}` for packets a call and the length of frames.
    pub ports: [String; 2],
    /// What a reader should know of it.
    pub note: String,
}

impl Framework {
    pub(crate) fn new(
        id: &str,
        label: &str,
        program: Program,
        transport: Transport,
        ports: [&str; 2],
    ) -> Self {
        Self {
            id: id.to_string(),
            label: label.to_string(),
            program,
            transport,
            ports: ports.map(str::to_string),
            note: String::new(),
        }
    }

    pub(crate) fn noted(mut self, note: &str) -> Self {
        self.note = note.to_string();
        self
    }

    /// Its id.
    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    /// Whether it can be given a load per packet.
    pub fn can_be_loaded(&self) -> bool {
        self.program != Program::Testpmd
    }

    /// Whether frames come from a generator, at a rate; otherwise the device makes them itself.
    pub fn has_generator(&self) -> bool {
        self.transport != Transport::Nothing
    }

    /// Its ports on these sockets or interfaces, with `burst` packets a call, in frames of `size_bytes`, where the port makes
    /// them.
    pub(super) fn ports_on(&self, ends: [&str; 2], burst: usize, size_bytes: usize) -> [String; 2] {
        self.ports.clone().map(|port| {
            port.replace("{0}", ends[0])
                .replace("{1}", ends[1])
                .replace("{burst}", &burst.min(BATCH_CAPACITY).to_string())
                .replace("{size}", &size_bytes.to_string())
        })
    }
}

/// The frameworks that this machine and this build have, and what they have not.
pub fn possible() -> (Vec<Framework>, Vec<LeftOut>) {
    let mut found = Vec::new();
    let mut left_out = Vec::new();
    let mut has = |backend: &str, what: &str| match backends()
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
    };
    let namespaces = taut_host::permissions::can_make_namespaces();
    use Program::{Taut, TautThread, Testpmd};
    use Transport::{Memif, Nothing, Pair, Veth};

    found.push(
        Framework::new(
            "null",
            "null",
            Taut,
            Nothing,
            ["null:source={burst}", "null:"],
        )
        .noted(
            "no device: frames come from nothing and vanish, which is the price of the loop itself",
        ),
    );
    if has("dpdk", "DPDK devices as ports of taut") {
        found.push(
            Framework::new(
                "dpdk-null",
                "DPDK net_null",
                Taut,
                Nothing,
                [
                    "dpdk:net_null0,size=64,copy=0",
                    "dpdk:net_null1,size=64,copy=0",
                ],
            )
            .noted("both directions at once, as testpmd over the same devices"),
        );
        found.push(Framework::new(
            "dpdk-memif",
            "DPDK net_memif",
            Taut,
            Memif,
            [
                "dpdk:net_memif0,role=client,id=0,socket={0},socket-abstract=no",
                "dpdk:net_memif1,role=client,id=0,socket={1},socket-abstract=no",
            ],
        ));
    }
    if has("pair", "threads of one process") {
        found.push(
            Framework::new("pair", "pair", TautThread, Pair, ["pair:{0}", "pair:{1}"])
                .noted("worker and generator are threads of one process"),
        );
    }
    found.push(
        Framework::new(
            "memif",
            "memif",
            Taut,
            Memif,
            ["memif:{0},role=client", "memif:{1},role=client"],
        )
        .noted("client on both links with one packet pool: frames are forwarded without a copy"),
    );
    if let Err(e) = &namespaces {
        left_out.push(missing("everything over veth", &e.what, &e.how_to_get_it));
    } else {
        if has("af_packet", "AF_PACKET over veth") {
            found.push(
                Framework::new(
                    "af-packet",
                    "AF_PACKET",
                    Taut,
                    Veth,
                    ["af_packet:{0}", "af_packet:{1}"],
                )
                .noted("the kernel's receive work runs on the device's core too (packet steering)"),
            );
        }
        if has("af_xdp", "AF_XDP over veth") {
            found.push(
                Framework::new("af-xdp", "AF_XDP", Taut, Veth, ["af_xdp:{0}", "af_xdp:{1}"]).noted(
                    "copy mode, the only one of veth; its XDP program runs on the sender's core",
                ),
            );
        }
    }
    let wanted = |id: &str, label: &str, transport, devices| {
        Framework::new(id, label, Testpmd, transport, devices)
    };
    if is_installed(testpmd::PROGRAM) {
        let mut add = |driver: &str, framework: Framework| {
            if testpmd::driver_library(driver).is_some() {
                found.push(framework);
            } else {
                left_out.push(missing(
                    &framework.label,
                    &format!("DPDK's driver {driver} is not installed"),
                    &format!("apt-get install librte-{}*", driver.replace('_', "-")),
                ));
            }
        };
        add(
            "net_null",
            wanted(
                "testpmd-null",
                "testpmd net_null",
                Nothing,
                ["net_null0,size=64,copy=0", "net_null1,size=64,copy=0"],
            )
            .noted("its throughput follows from its own count of cycles"),
        );
        add(
            "net_memif",
            wanted(
                "testpmd-memif",
                "testpmd net_memif",
                Memif,
                [
                    "net_memif0,role=client,id=0,socket={0},socket-abstract=no,rsize=10,zero-copy=yes",
                    "net_memif1,role=client,id=0,socket={1},socket-abstract=no,rsize=10,zero-copy=yes",
                ],
            ),
        );
        if namespaces.is_ok() {
            add(
                "net_af_packet",
                wanted(
                    "testpmd-af-packet",
                    "testpmd net_af_packet",
                    Veth,
                    ["net_af_packet0,iface={0}", "net_af_packet1,iface={1}"],
                ),
            );
            add(
                "net_af_xdp",
                wanted(
                    "testpmd-af-xdp",
                    "testpmd net_af_xdp",
                    Veth,
                    ["net_af_xdp0,iface={0}", "net_af_xdp1,iface={1}"],
                ),
            );
        }
    } else {
        left_out.push(missing(
            "dpdk-testpmd beside taut",
            "it is not installed",
            "apt-get install dpdk",
        ));
    }
    (found, left_out)
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
    fn frameworks_have_names_of_their_own_and_null_and_memif_are_always_there() {
        let (found, _) = possible();
        let ids: BTreeSet<_> = found.iter().map(|f| f.id.as_str()).collect();
        let labels: BTreeSet<_> = found.iter().map(|f| f.label.as_str()).collect();
        assert_eq!((ids.len(), labels.len()), (found.len(), found.len()));
        assert!(ids.contains("null") && ids.contains("memif"));
    }

    #[test]
    fn ends_and_bursts_come_into_the_ports() {
        let framework = Framework::new(
            "x",
            "x",
            Program::Taut,
            Transport::Memif,
            ["memif:{0}", "null:source={burst},size={size}"],
        );
        assert_eq!(
            framework.ports_on(["/a", "/b"], 8, 512),
            ["memif:/a", "null:source=8,size=512"]
        );
    }
}
