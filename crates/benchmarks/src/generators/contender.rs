//! The generators that are compared, the command line of each, and the requirements that this machine lacks.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;
use taut_bench::framework::Transport;
use taut_host::is_installed;
use taut_host::testpmd::{Memory, Testpmd};
use taut_results::LeftOut;

/// The program of a generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Program {
    /// `taut generate`.
    Taut,
    /// DPDK's `dpdk-testpmd` in mode `txonly` or `flowgen`, at full speed and without pacing.
    Testpmd,
    /// `trafgen` of netsniff-ng.
    Trafgen,
    /// `tcpreplay`.
    Tcpreplay,
    /// `iperf3` over UDP.
    Iperf3,
    /// `pktgen` of Pktgen-DPDK.
    Pktgen,
}

/// A generator that the benchmark compares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Contender {
    /// Short name of the generator for file names.
    pub id: String,
    /// Name of the generator in tables and figures.
    pub label: String,
    /// The generator's program.
    pub program: Program,
    /// The transport to the receiver.
    pub transport: Transport,
    /// The egress port: a port spec of taut and further options, or a device of DPDK, with mode and further options of
    /// testpmd. `{}` is replaced by the socket or interface.
    pub port: String,
    /// Note about the generator for readers of the results.
    pub note: String,
}

impl Contender {
    /// Returns the generator's id: its short name for file names.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Returns true if the generator can pace its packets at a given rate.
    pub fn paces(&self) -> bool {
        self.program != Program::Testpmd
    }
}

/// The settings of one trial of a generator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted<'a> {
    /// The socket or interface to which the generator sends.
    pub(super) end: &'a str,
    /// Requested packets per second; none for full speed.
    pub(super) pps: Option<f64>,
    /// Frame size, frame check sequence included.
    pub(super) frame_size_bytes: usize,
    /// The CPU on which the generator runs.
    pub(super) cpu: usize,
    /// The folder with `frames.pcap`, `frames.cfg` and `frames.pkt`.
    pub(super) folder: &'a Path,
    /// Path of the `taut` program.
    pub(super) taut: &'a Path,
    /// Maximum run time in seconds, so that a generator that is not stopped ends by itself.
    pub(super) seconds: u32,
}

/// Address of the receiver's interface, for programs that send through the kernel's network stack.
pub(super) const RECEIVER_ADDRESS: &str = "192.0.2.1";

/// Bytes of a frame outside of the UDP payload: Ethernet, IPv4, UDP, frame check sequence.
const HEADERS_BYTES: usize = 14 + 20 + 8 + 4;

/// Interval in µs at which iperf3 wakes up to send. With its default of 1000 µs, iperf3 sends bursts.
const IPERF3_PACING_US: u32 = 10;

/// Link speed that DPDK's memif driver reports, bit/s; the rates of Pktgen-DPDK are percentages of it.
const DPDK_MEMIF_BITS_PER_S: f64 = 100e9;
/// Bytes that a frame takes on a link in addition to its own: preamble and inter-frame gap.
const LINE_BYTES: usize = 20;
/// Memory of Pktgen-DPDK, MB.
const PKTGEN_MEMORY_MB: u32 = 1024;

impl Wanted<'_> {
    /// Returns the command line with which `contender` sends as requested.
    pub(super) fn command(&self, contender: &Contender) -> Vec<String> {
        let mut line = Vec::new();
        let mut add = |words: &[&str]| line.extend(words.iter().map(|w| (*w).to_string()));
        let seconds = self.seconds.to_string();
        if contender.program != Program::Taut {
            add(&["timeout", "--kill-after=1", &seconds]);
        }
        let in_folder = |name: &str| self.folder.join(name).display().to_string();
        let port = contender.port.replace("{}", self.end);
        match contender.program {
            Program::Taut => self.add_taut(&port, &seconds, add),
            Program::Testpmd => line.extend(self.testpmd(&port)),
            Program::Trafgen => {
                add(&[
                    "trafgen",
                    "--dev",
                    self.end,
                    "--no-cpu-stats",
                    "--cpus",
                    "1",
                ]);
                add(&["--conf", &in_folder("frames.cfg")]);
                if let Some(pps) = self.pps {
                    add(&["--gap", &format!("{:.0}ns", 1e9 / pps)]);
                }
            }
            Program::Tcpreplay => {
                add(&["tcpreplay", "--preload-pcap", "--loop=0", "-i", self.end]);
                match self.pps {
                    Some(pps) => add(&[&format!("--pps={pps:.0}")]),
                    None => add(&["--topspeed"]),
                }
                add(&[&in_folder("frames.pcap")]);
            }
            Program::Iperf3 => self.add_iperf3(&seconds, add),
            Program::Pktgen => {
                add(&["pktgen", "--no-pci", "--no-telemetry", "--lcores"]);
                add(&[&format!("0@{0},1@{0}", self.cpu), "--no-huge", "-m"]);
                add(&[&PKTGEN_MEMORY_MB.to_string(), &format!("--vdev={port}")]);
                add(&["--", "-P", "-m", "1.0", "-f", &in_folder("frames.pkt")]);
            }
        }
        line
    }

    /// Returns the commands by which Pktgen-DPDK sends, one frame at a time if paced.
    pub(super) fn pktgen_commands(&self) -> String {
        let bits = (self.frame_size_bytes + LINE_BYTES) as f64 * 8.0;
        let percent = |pps: f64| pps * bits / DPDK_MEMIF_BITS_PER_S * 100.0;
        let pacing = match self.pps.map(percent).filter(|percent| *percent < 100.0) {
            Some(percent) => format!("set 0 burst 1\nset 0 rate {percent:.6}\n"),
            None => "set 0 rate 100\n".to_string(),
        };
        let size = self.frame_size_bytes;
        format!("set 0 proto udp\nset 0 size {size}\nset 0 count 0\n{pacing}start 0\n")
    }

    /// Adds the words of a command line of `taut generate`.
    fn add_taut(&self, port: &str, seconds: &str, mut add: impl FnMut(&[&str])) {
        let (port, more) = port.split_once(' ').unwrap_or((port, ""));
        let rate = self.pps.map_or("max".to_string(), |pps| format!("{pps}"));
        add(&[&self.taut.display().to_string(), "generate", "--port"]);
        add(&[port, "--rate", &rate, "--seconds", seconds]);
        add(&["--size", &self.frame_size_bytes.to_string()]);
        add(&["--core", &self.cpu.to_string(), "--max-loss", "1", "--json"]);
        // No packet comes back to this generator. After a warm-up it would wait for returning packets without sending,
        // and the receiver would measure this wait.
        add(&["--warm-up", "0"]);
        if self.pps.is_some() {
            add(&more.split_whitespace().collect::<Vec<_>>());
        }
    }

    /// Returns the words of a command line of testpmd.
    fn testpmd(&self, port: &str) -> Vec<String> {
        let mut words = port.split_whitespace();
        let device = words.next().unwrap_or_default();
        let mode = words.next().unwrap_or("txonly");
        let length = format!("--txpkts={}", self.frame_size_bytes - 4);
        let mut more = vec![length.as_str(), "--disable-link-check"];
        more.extend(words);
        let testpmd = Testpmd {
            cpu: self.cpu,
            memory: Memory::Shared,
            devices: &[device.to_string()],
            mode,
            buffers: 8192,
            more: &more,
        };
        testpmd.words()
    }

    /// Adds the words of a command line of iperf3.
    fn add_iperf3(&self, seconds: &str, mut add: impl FnMut(&[&str])) {
        let payload = self.frame_size_bytes - HEADERS_BYTES;
        let bits = self.pps.unwrap_or(0.0) * payload as f64 * 8.0;
        add(&[
            "iperf3",
            "--udp",
            "--client",
            RECEIVER_ADDRESS,
            "--interval",
            "0",
        ]);
        add(&["--length", &payload.to_string(), "--time", seconds]);
        add(&["--bitrate", &format!("{bits:.0}")]);
        add(&["--pacing-timer", &IPERF3_PACING_US.to_string()]);
    }
}

/// Returns the generators that this machine supports, and the skipped ones.
pub fn possible() -> (Vec<Contender>, Vec<LeftOut>) {
    let mut found = Vec::new();
    let mut left_out = Vec::new();
    let namespaces = taut_host::permissions::can_make_namespaces();
    let xdp = taut_host::permissions::can_load_xdp();
    if let Err(e) = &namespaces {
        left_out.push(LeftOut {
            what: "everything over veth".to_string(),
            why: e.what.clone(),
            how: e.how_to_get_it.clone(),
        });
    }
    for (contender, package, program) in all() {
        if contender.transport == Transport::Veth && namespaces.is_err() {
            continue;
        }
        let lacks = if !is_installed(program) && contender.program != Program::Taut {
            Some((
                format!("needs `{program}`"),
                match package {
                    "" => "put Pktgen-DPDK's program on the search path".to_string(),
                    package => format!("apt-get install {package}"),
                },
            ))
        } else if contender.port.contains("af_xdp") {
            xdp.as_ref()
                .err()
                .map(|e| (e.what.clone(), e.how_to_get_it.clone()))
        } else {
            None
        };
        match lacks {
            None => found.push(contender),
            Some((why, how)) => left_out.push(LeftOut {
                what: format!("{} over {}", contender.label, contender.transport.name()),
                why,
                how,
            }),
        }
    }
    (found, left_out)
}

/// Returns the ids of all generators, regardless of this machine.
pub(super) fn ids() -> Vec<String> {
    all().into_iter().map(|(c, ..)| c.id).collect()
}

/// A generator in the list [`CONTENDERS`].
struct Listed {
    id: &'static str,
    label: &'static str,
    program: Program,
    transport: Transport,
    port: &'static str,
    /// The note about the generator; `{pacing}` is replaced by [`IPERF3_PACING_US`].
    note: &'static str,
}

impl Listed {
    /// Converts the entry into a contender.
    fn contender(&self) -> Contender {
        let pacing_us = IPERF3_PACING_US.to_string();
        Contender {
            id: self.id.to_string(),
            label: self.label.to_string(),
            program: self.program,
            transport: self.transport,
            port: self.port.to_string(),
            note: self.note.replace("{pacing}", &pacing_us),
        }
    }
}

/// The generator that sends in pairs, as some network cards do: measured on request only.
pub(super) const PAIRS: &str = "taut-memif-pairs";

/// The generators that are compared, in the order of the report.
const CONTENDERS: [Listed; 14] = [
    Listed {
        id: "taut-memif",
        label: "taut",
        program: Program::Taut,
        transport: Transport::Memif,
        port: "memif:{},role=client",
        note: "client, frames are made in the memory that is shared with the receiver",
    },
    Listed {
        id: PAIRS,
        label: "taut, in pairs",
        program: Program::Taut,
        transport: Transport::Memif,
        port: "memif:{},role=client --pattern burst(2)",
        note: "two packets back to back, then a pause: gaps of two kinds, as of network cards that limit their rate",
    },
    Listed {
        id: "pktgen-memif",
        label: "Pktgen-DPDK",
        program: Program::Pktgen,
        transport: Transport::Memif,
        port: "net_memif0,role=client,id=0,socket={},socket-abstract=no",
        note: "default burst at full speed, one frame at a time if paced; rates are percentages of 100 Gbit/s",
    },
    Listed {
        id: "testpmd-memif-txonly-1",
        label: "testpmd txonly, batch of 1",
        program: Program::Testpmd,
        transport: Transport::Memif,
        port: "net_memif0,role=client,id=0,socket={},socket-abstract=no txonly --burst=1",
        note: "client as shipped, one frame at a time",
    },
    Listed {
        id: "testpmd-memif-txonly",
        label: "testpmd txonly",
        program: Program::Testpmd,
        transport: Transport::Memif,
        port: "net_memif0,role=client,id=0,socket={},socket-abstract=no txonly",
        note: "client as shipped: it copies each frame into the ring",
    },
    Listed {
        id: "testpmd-memif-txonly-zc",
        label: "testpmd txonly zero-copy",
        program: Program::Testpmd,
        transport: Transport::Memif,
        port: "net_memif0,role=client,id=0,socket={},socket-abstract=no,zero-copy=yes txonly",
        note: "client, its own memory shared with the receiver (zero-copy=yes)",
    },
    Listed {
        id: "testpmd-memif-flowgen",
        label: "testpmd flowgen",
        program: Program::Testpmd,
        transport: Transport::Memif,
        port: "net_memif0,role=client,id=0,socket={},socket-abstract=no flowgen",
        note: "many flows, one after the other",
    },
    Listed {
        id: "taut-af-packet",
        label: "taut AF_PACKET",
        program: Program::Taut,
        transport: Transport::Veth,
        port: "af_packet:{}",
        note: "mapped rings",
    },
    Listed {
        id: "taut-af-xdp",
        label: "taut AF_XDP",
        program: Program::Taut,
        transport: Transport::Veth,
        port: "af_xdp:{}",
        note: "copy mode, the only one of veth",
    },
    Listed {
        id: "trafgen",
        label: "trafgen",
        program: Program::Trafgen,
        transport: Transport::Veth,
        port: "",
        note: "paced with --gap (with --rate it sends the packets of a second at once)",
    },
    Listed {
        id: "tcpreplay",
        label: "tcpreplay",
        program: Program::Tcpreplay,
        transport: Transport::Veth,
        port: "",
        note: "one frame from memory, --pps or --topspeed",
    },
    Listed {
        id: "iperf3",
        label: "iperf3",
        program: Program::Iperf3,
        transport: Transport::Veth,
        port: "",
        note: "its UDP frames, --pacing-timer {pacing}; its server is stopped as soon as \
            frames come, so that nothing but the receiver takes them",
    },
    Listed {
        id: "testpmd-af-packet-txonly",
        label: "testpmd txonly AF_PACKET",
        program: Program::Testpmd,
        transport: Transport::Veth,
        port: "net_af_packet0,iface={} txonly",
        note: "",
    },
    Listed {
        id: "testpmd-af-xdp-txonly",
        label: "testpmd txonly AF_XDP",
        program: Program::Testpmd,
        transport: Transport::Veth,
        port: "net_af_xdp0,iface={} txonly",
        note: "",
    },
];

/// Returns all generators, each with its package and the name of its program.
fn all() -> Vec<(Contender, &'static str, &'static str)> {
    CONTENDERS
        .iter()
        .map(|listed| {
            let (package, name) = package_and_name(listed.program);
            (listed.contender(), package, name)
        })
        .collect()
}

/// Returns the Debian package of a program and the program's name; both are empty for taut.
fn package_and_name(program: Program) -> (&'static str, &'static str) {
    match program {
        Program::Taut => ("", ""),
        Program::Testpmd => (
            "dpdk-dev 'librte-net-memif*' 'librte-net-af-packet*' 'librte-net-af-xdp*'",
            "dpdk-testpmd",
        ),
        Program::Trafgen => ("netsniff-ng", "trafgen"),
        Program::Tcpreplay => ("tcpreplay", "tcpreplay"),
        Program::Iperf3 => ("iperf3", "iperf3"),
        Program::Pktgen => ("", "pktgen"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn command(id: &str, pps: Option<f64>) -> String {
        let (contender, ..) = all().into_iter().find(|(c, ..)| c.id == id).unwrap();
        let wanted = Wanted {
            end: "END",
            pps,
            frame_size_bytes: 128,
            cpu: 3,
            folder: Path::new("/scratch"),
            taut: Path::new("/bin/taut"),
            seconds: 9,
        };
        wanted.command(&contender).join(" ")
    }

    #[test]
    fn every_generator_has_a_unique_id_and_a_time_limit() {
        let ids: std::collections::BTreeSet<_> = all().into_iter().map(|(c, ..)| c.id).collect();
        assert_eq!(ids.len(), all().len());
        for id in ids {
            let line = command(&id, None);
            assert!(
                line.starts_with("timeout --kill-after=1 9 ") || line.contains("--seconds 9"),
                "{line}"
            );
        }
    }

    #[test]
    fn pktgen_gets_its_rate_as_a_percentage_of_the_line() {
        let line = command("pktgen-memif", Some(1e6));
        assert!(
            line.ends_with("-- -P -m 1.0 -f /scratch/frames.pkt"),
            "{line}"
        );
        let wanted = |pps| Wanted {
            end: "END",
            pps,
            frame_size_bytes: 128,
            cpu: 3,
            folder: Path::new("/scratch"),
            taut: Path::new("/bin/taut"),
            seconds: 9,
        };
        // 148 bytes on the line: 1.184 Gbit/s.
        let commands = wanted(Some(1e6)).pktgen_commands();
        assert!(
            commands.contains("set 0 burst 1\nset 0 rate 1.184000\n"),
            "{commands}"
        );
        assert!(wanted(None).pktgen_commands().contains("set 0 rate 100\n"));
    }

    #[test]
    fn rates_are_passed_in_the_unit_of_each_generator() {
        let line = command("taut-memif", Some(1e6));
        assert!(
            line.contains("memif:END,role=client --rate 1000000 "),
            "{line}"
        );
        assert!(command("taut-memif", None).contains("--rate max"));
        assert!(command("trafgen", Some(5e4)).ends_with("--gap 20000ns"));
        assert!(!command("trafgen", None).contains("--gap"));
        assert!(command("tcpreplay", Some(5e4)).contains("--pps=50000"));
        assert!(command("tcpreplay", None).contains("--topspeed"));
        // The payload is 82 bytes, 656 bits.
        let line = command("iperf3", Some(5e4));
        assert!(
            line.contains("--length 82") && line.contains("--bitrate 32800000"),
            "{line}"
        );
        assert!(command("iperf3", None).contains("--bitrate 0"));
        assert!(command("taut-memif-pairs", Some(1e6)).ends_with("--pattern burst(2)"));
        assert!(command("testpmd-memif-txonly-1", None).ends_with("--burst=1"));
        let line = command("testpmd-memif-txonly", None);
        assert!(
            line.contains("--forward-mode=txonly") && line.contains("--txpkts=124"),
            "{line}"
        );
    }
}
