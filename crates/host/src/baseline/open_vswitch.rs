//! Open vSwitch with its user-space datapath, which needs no kernel module.
//!
//! The polling thread of Open vSwitch sends on a port's second queue; the first queue belongs to the main thread. Over
//! memif the peer therefore has to receive from both queues, or no frames arrive.

use std::fs;
use std::path::{Path, PathBuf};

use super::step::{BaselineError, Line, Owner, Ready, Running, start, words};
use super::testpmd::AF_PACKET_FRAMES;
use super::{Baseline, CommandValues, Frames, Reach, Step};
use crate::command::{is_installed, run};
use crate::permissions::{Missing, can_load_xdp, can_open_packet_sockets};
use crate::testpmd::{driver_library, free_huge_pages};

const DAEMON: &str = "ovs-vswitchd";
/// Debian's second build of the daemon, which includes DPDK.
const DAEMON_WITH_DPDK: &str = "/usr/lib/openvswitch-switch-dpdk/ovs-vswitchd-dpdk";
const SCHEMA: &str = "/usr/share/openvswitch/vswitch.ovsschema";
const BRIDGE: &str = "br0";
/// Timeout of `ovs-vsctl`, s; it waits until the daemon has applied a change.
const TIMEOUT: &str = "--timeout=10";
/// The memory of DPDK, MB. A pool of 32768 buffers fits; the daemon tries smaller pools by itself.
const MEMORY_MB: u64 = 128;
const DRIVER: &str = "net_af_packet";
const MEMIF_DRIVER: &str = "net_memif";

pub(super) const VETH: Baseline = Baseline {
    id: "veth-ovs",
    label: "Open vSwitch",
    io: "Open vSwitch",
    note: "user-space datapath (netdev) on packet sockets, one flow each way; its main thread sleeps when no frame waits; kernel work on the receiving side steered to the device's core (RPS)",
    reach: Reach::Veth { steered: true },
    frames: Frames::Through,
    probe: probe_veth,
    steps: |place| open_vswitch(place, DAEMON, &[], |_, end| [end.to_owned(), String::new()]),
};

pub(super) const VETH_AF_XDP: Baseline = Baseline {
    id: "veth-ovs-af-xdp",
    label: "Open vSwitch AF_XDP",
    io: "Open vSwitch AF_XDP",
    note: "user-space datapath (netdev) on AF_XDP sockets, a polling thread, one flow each way; the XDP program runs on the sender's core; copy mode, as veth has no other",
    reach: Reach::Veth { steered: false },
    frames: Frames::Through,
    probe: probe_af_xdp,
    steps: |place| {
        let settings = [format!("other_config:pmd-cpu-mask={:#x}", mask(place.cpu))];
        open_vswitch(place, DAEMON, &settings, |_, end| {
            [
                end.to_owned(),
                "type=afxdp options:xdp-mode=native".to_owned(),
            ]
        })
    },
};

pub(super) const VHOST: Baseline = Baseline {
    id: "vhost-ovs",
    label: "Open vSwitch DPDK",
    io: "Open vSwitch DPDK",
    note: "user-space datapath (netdev) with vhost-user ports, a polling thread, one flow each way: it copies each frame into its own memory and out again",
    reach: Reach::Vhost,
    frames: Frames::Through,
    probe: probe_vhost,
    steps: |place| {
        let daemon = daemon_with_dpdk().unwrap_or(DAEMON);
        let settings = dpdk_settings(place.cpu);
        open_vswitch(place, daemon, &settings, |_, end| {
            // The daemon creates the socket in its folder and names it after the port.
            let name = Path::new(end).file_name().unwrap_or_default();
            [
                name.to_string_lossy().into_owned(),
                "type=dpdkvhostuser".to_owned(),
            ]
        })
    },
};

pub(super) const MEMIF: Baseline = Baseline {
    id: "memif-ovs",
    label: "Open vSwitch DPDK",
    io: "Open vSwitch DPDK",
    note: "user-space datapath (netdev) on DPDK's net_memif driver, a polling thread, one flow each way: server of both links, it copies each frame into its own memory and out again",
    reach: Reach::Memif { tx_rings: 2 },
    frames: Frames::Through,
    probe: probe_memif,
    steps: |place| {
        let daemon = daemon_with_dpdk().unwrap_or(DAEMON);
        let settings = dpdk_settings(place.cpu);
        open_vswitch(place, daemon, &settings, |number, end| {
            [
                format!("memif{number}"),
                format!(
                    "type=dpdk options:dpdk-devargs={MEMIF_DRIVER}{number},role=server,id=0,socket={end},socket-abstract=no"
                ),
            ]
        })
    },
};

pub(super) const VETH_DPDK: Baseline = Baseline {
    id: "veth-ovs-dpdk",
    label: "Open vSwitch DPDK",
    io: "Open vSwitch DPDK",
    note: "user-space datapath (netdev) on DPDK's net_af_packet driver, a polling thread, one flow each way; kernel work on the receiving side steered to the device's core (RPS)",
    reach: Reach::Veth { steered: true },
    frames: Frames::Through,
    probe: probe_dpdk,
    steps: |place| {
        let daemon = daemon_with_dpdk().unwrap_or(DAEMON);
        let settings = dpdk_settings(place.cpu);
        open_vswitch(place, daemon, &settings, |number, end| {
            [
                format!("dpdk{number}"),
                format!(
                    "type=dpdk options:dpdk-devargs={DRIVER}{number},iface={end},framecnt={AF_PACKET_FRAMES}"
                ),
            ]
        })
    },
};

/// Returns the version of Open vSwitch that [`start_cabled`] would start.
///
/// # Errors
/// A requirement is missing; the error names the remedy.
pub fn probe_cabled() -> Result<String, Missing> {
    probe_memif()
}

/// Starts the switch of the baseline `memif-ovs` with `cables` additional memif links, each between two ports of the
/// switch itself.
///
/// Port 1 is connected to the generator's first socket, and the last port to its second one. Ports 2 and 3, 4 and 5,
/// and so on are the ends of cables. A cable is a memif link with the switch at both ends. The generator is the client
/// of its [`Baseline::sockets`], and has to receive from two rings. Flow entries are changed through the
/// [`management_socket`]; the initial entries forward frames between the two ports of each pair (1 and 2, 3 and 4,
/// ...).
///
/// # Errors
/// A step failed; programs that had been started are stopped.
pub fn start_cabled(cables: usize, cpu: usize, folder: &Path) -> Result<Running, BaselineError> {
    start(cabled(cables, cpu, folder), None, cpu, folder)
}

/// Returns the path of the socket through which a controller changes the flow entries of the switch that has its files
/// in `folder`.
#[must_use]
pub fn management_socket(folder: &Path) -> PathBuf {
    folder.join(format!("{BRIDGE}.mgmt"))
}

fn cabled(cables: usize, cpu: usize, folder: &Path) -> Vec<Step> {
    let end = |number: usize, role: &str, socket: &Path, queues: &str| {
        [
            format!("memif{number}"),
            format!(
                "type=dpdk {queues}options:dpdk-devargs={MEMIF_DRIVER}{number},role={role},id=0,socket={},socket-abstract=no",
                socket.display()
            ),
        ]
    };
    // The polling thread sends on the second queue of a cable.
    let both = "options:n_rxq=2 ";
    let [west, east] = Baseline::sockets(folder);
    let mut ports = vec![end(0, "server", &west, "")];
    for cable in 0..cables {
        let socket = folder.join(format!("cable{cable}.sock"));
        // The driver creates the socket for the first port that names it, the server.
        ports.push(end(1 + 2 * cable, "server", &socket, both));
        ports.push(end(2 + 2 * cable, "client", &socket, both));
    }
    ports.push(end(1 + 2 * cables, "server", &east, ""));
    Switch {
        folder,
        daemon: daemon_with_dpdk().unwrap_or(DAEMON),
        bridge: BRIDGE,
        own_network: true,
        settings: &dpdk_settings(cpu),
        ports: &ports,
    }
    .steps()
}

/// Returns the steps that start the switch of a baseline. `port` returns the name and the settings of a port from the
/// port's number and from its interface or socket.
fn open_vswitch(
    place: &CommandValues,
    daemon: &str,
    settings: &[String],
    port: impl Fn(usize, &str) -> [String; 2],
) -> Vec<Step> {
    let ends = place.ends.iter().enumerate();
    Switch {
        folder: &place.folder,
        daemon,
        bridge: BRIDGE,
        own_network: place.ends.iter().any(|end| Path::new(end).is_absolute()),
        settings,
        ports: &ends
            .map(|(number, end)| port(number, end))
            .collect::<Vec<_>>(),
    }
    .steps()
}

/// Values for the command lines that start an Open vSwitch.
pub(crate) struct Switch<'a> {
    /// The folder of all files that the switch writes.
    pub(crate) folder: &'a Path,
    pub(crate) daemon: &'a str,
    /// The name of the bridge, and of the interface that the daemon creates for the bridge.
    pub(crate) bridge: &'a str,
    /// True to run the daemon in a network namespace of its own, in which it then creates the bridge's interface.
    pub(crate) own_network: bool,
    /// Settings `COLUMN:KEY=VALUE` of the table `Open_vSwitch`.
    pub(crate) settings: &'a [String],
    /// The name and the settings of each port. Ports 1 and 2, 3 and 4, and so on form pairs; frames pass between the
    /// ports of a pair.
    pub(crate) ports: &'a [[String; 2]],
}

impl Switch<'_> {
    /// Returns the steps that start the database, the daemon, and a bridge with its ports. A flow forwards frames in
    /// each direction between the two ports of a pair.
    pub(crate) fn steps(&self) -> Vec<Step> {
        let mut steps = self.database_steps();
        for setting in self.settings {
            steps.push(self.vsctl(&["--no-wait", "set", "Open_vSwitch", ".", setting]));
        }
        steps.push(self.daemon_step());
        // Without this fail mode the bridge would learn and flood until the flows are set.
        steps.push(self.vsctl(&[
            "add-br",
            self.bridge,
            "--",
            "set",
            "Bridge",
            self.bridge,
            "datapath_type=netdev",
            "fail_mode=secure",
        ]));
        for (number, port) in self.ports.iter().enumerate() {
            steps.extend(self.port_steps(number + 1, port));
        }
        steps.extend(self.flow_steps());
        steps
    }

    /// Returns the path of the file called `name` in the switch's folder.
    fn file(&self, name: &str) -> String {
        self.folder.join(name).display().to_string()
    }

    /// Returns the address of the switch's configuration database, for `ovs-vsctl`.
    fn remote(&self) -> String {
        format!("unix:{}", self.file("ovsdb.sock"))
    }

    fn vsctl(&self, arguments: &[&str]) -> Step {
        Step::Run(self.vsctl_line(arguments))
    }

    fn vsctl_line(&self, arguments: &[&str]) -> Line {
        let db = format!("--db={}", self.remote());
        words(&[&["ovs-vsctl", TIMEOUT, &db], arguments].concat())
    }

    /// Returns the steps that create the switch's configuration database and start its server.
    fn database_steps(&self) -> Vec<Step> {
        let database = self.file("ovs.db");
        vec![
            Step::Run(words(&["ovsdb-tool", "create", &database, SCHEMA])),
            Step::Keep {
                name: "ovsdb-server",
                line: words(&[
                    "ovsdb-server",
                    &database,
                    &format!("--remote=p{}", self.remote()),
                    &format!("--unixctl={}", self.file("ovsdb-server.ctl")),
                    // Without this option, the daemon would write into the host's system log.
                    "--verbose=syslog:off",
                ]),
                ready: Ready::Socket(self.folder.join("ovsdb.sock")),
                owner: Owner::NeedsWatcher,
            },
            self.vsctl(&["--no-wait", "init"]),
        ]
    }

    fn daemon_step(&self) -> Step {
        // The daemon creates an interface for the bridge. If the daemon is killed, the interface remains, unless it is
        // in a network namespace that ends with the daemon.
        let own_network: &[&str] = if self.own_network {
            &["unshare", "--net"]
        } else {
            &[]
        };
        let daemon_line = [
            own_network,
            &[
                "env",
                &format!("OVS_RUNDIR={}", self.folder.display()),
                &format!("RUNTIME_DIRECTORY={}", self.folder.display()),
                self.daemon,
                &self.remote(),
                &format!("--unixctl={}", self.file("ovs-vswitchd.ctl")),
                "--verbose=syslog:off",
            ],
        ];
        Step::Keep {
            name: "ovs-vswitchd",
            line: words(&daemon_line.concat()),
            ready: Ready::AtOnce,
            owner: Owner::NeedsWatcher,
        }
    }

    /// Returns the steps that add a port to the bridge; `port` is its name and its settings.
    fn port_steps(&self, number: usize, port: &[String; 2]) -> [Step; 2] {
        let [name, options] = port;
        let request = format!("ofport_request={number}");
        let mut arguments = vec![
            "add-port",
            self.bridge,
            name,
            "--",
            "set",
            "Interface",
            name,
            &request,
        ];
        arguments.extend(options.split_whitespace());
        [
            self.vsctl(&arguments),
            // `add-port` reports success even if the port failed.
            Step::Expect(self.vsctl_line(&["get", "Interface", name, "error"]), "[]"),
        ]
    }

    /// Returns the steps that add a flow in each direction between the two ports of each pair.
    fn flow_steps(&self) -> Vec<Step> {
        let management = format!("unix:{}", self.file(&format!("{}.mgmt", self.bridge)));
        let mut steps = Vec::new();
        for first in (1..=self.ports.len()).step_by(2) {
            for [from, to] in [[first, first + 1], [first + 1, first]] {
                steps.push(Step::Run(words(&[
                    "ovs-ofctl",
                    "add-flow",
                    &management,
                    &format!("in_port={from},actions=output:{to}"),
                ])));
            }
        }
        steps
    }
}

pub(crate) fn dpdk_settings(cpu: usize) -> [String; 6] {
    let mask = mask(cpu);
    [
        "dpdk-init=true".to_owned(),
        format!("dpdk-lcore-mask={mask:#x}"),
        format!("pmd-cpu-mask={mask:#x}"),
        format!("dpdk-socket-mem={MEMORY_MB}"),
        format!("dpdk-socket-limit={MEMORY_MB}"),
        "dpdk-extra=\"--in-memory --no-pci --no-telemetry\"".to_owned(),
    ]
    .map(|setting| format!("other_config:{setting}"))
}

fn mask(cpu: usize) -> u128 {
    1 << cpu
}

fn probe_veth() -> Result<String, Missing> {
    can_open_packet_sockets()?;
    installed()?;
    Ok(version(DAEMON))
}

fn probe_af_xdp() -> Result<String, Missing> {
    can_load_xdp()?;
    installed()?;
    if !has_af_xdp(DAEMON) {
        return Err(Missing {
            what: "this build of Open vSwitch has no AF_XDP ports".to_owned(),
            how_to_get_it: "build it with ./configure --enable-afxdp".to_owned(),
        });
    }
    Ok(version(DAEMON))
}

fn probe_vhost() -> Result<String, Missing> {
    probe_daemon_with_dpdk().map(version)
}

pub(crate) fn probe_daemon_with_dpdk() -> Result<&'static str, Missing> {
    installed()?;
    let free = free_huge_pages();
    // Without huge pages the daemon starts, but has no memory for its ports.
    if free < MEMORY_MB / 2 {
        return Err(Missing {
            what: format!(
                "Open vSwitch with DPDK takes {} free huge pages of 2 MB, and {free} are free",
                MEMORY_MB / 2
            ),
            how_to_get_it: "echo 256 > /proc/sys/vm/nr_hugepages".to_owned(),
        });
    }
    daemon_with_dpdk().ok_or_else(|| Missing {
        what: "this build of Open vSwitch has no DPDK ports".to_owned(),
        how_to_get_it: "apt-get install openvswitch-switch-dpdk".to_owned(),
    })
}

fn probe_dpdk() -> Result<String, Missing> {
    can_open_packet_sockets()?;
    probe_driver(DRIVER)
}

fn probe_memif() -> Result<String, Missing> {
    probe_driver(MEMIF_DRIVER)
}

fn probe_driver(driver: &str) -> Result<String, Missing> {
    let daemon = probe_daemon_with_dpdk()?;
    dpdk_driver(driver).map(|library| format!("{} with {library}", version(daemon)))
}

/// Returns the file name of an installed DPDK driver's library.
pub(crate) fn dpdk_driver(driver: &str) -> Result<String, Missing> {
    driver_library(driver).ok_or_else(|| Missing {
        what: format!("DPDK's driver {driver} is not installed"),
        how_to_get_it: format!("apt-get install 'librte-{}*'", driver.replace('_', "-")),
    })
}

fn installed() -> Result<(), Missing> {
    let missing = |what: String| Missing {
        what,
        how_to_get_it: "apt-get install openvswitch-switch".to_owned(),
    };
    for program in [
        DAEMON,
        "ovsdb-server",
        "ovsdb-tool",
        "ovs-vsctl",
        "ovs-ofctl",
    ] {
        if !is_installed(program) {
            return Err(missing(format!("`{program}` is not on the search path")));
        }
    }
    if !Path::new(SCHEMA).exists() {
        return Err(missing(format!("{SCHEMA} is missing")));
    }
    Ok(())
}

/// Returns the name and version of an Open vSwitch daemon, such as `Open vSwitch 3.1.0`.
pub(crate) fn version(daemon: &str) -> String {
    let said = run(daemon, &["--version"]).unwrap_or_default();
    version_in(&said).map_or_else(
        || "Open vSwitch of unknown version".to_owned(),
        |version| format!("Open vSwitch {version}"),
    )
}

/// Returns the end of the first line of a daemon's version text, `ovs-vswitchd (Open vSwitch) 3.1.0`: the version.
/// Returns `None` for text of another form.
fn version_in(said: &str) -> Option<&str> {
    said.lines().next()?.split("(Open vSwitch) ").nth(1)
}

/// Returns the path of an installed daemon whose version text names DPDK; `None` if there is none.
pub(crate) fn daemon_with_dpdk() -> Option<&'static str> {
    let candidates = [DAEMON_WITH_DPDK, DAEMON];
    candidates.into_iter().find(|daemon| {
        (is_installed(daemon) || Path::new(daemon).exists())
            && run(daemon, &["--version"]).is_ok_and(|said| speaks_dpdk(&said))
    })
}

fn speaks_dpdk(said: &str) -> bool {
    said.lines().skip(1).any(|line| line.starts_with("DPDK "))
}

/// Returns true if the daemon has AF_XDP ports. Only a running daemon lists its port types, so this checks whether it
/// is linked to libxdp or libbpf.
fn has_af_xdp(daemon: &str) -> bool {
    let file = std::env::var_os("PATH").and_then(|path| {
        std::env::split_paths(&path)
            .map(|folder| folder.join(daemon))
            .find(|file| file.is_file())
    });
    let needle = b"netdev_afxdp";
    file.and_then(|file| fs::read(file).ok())
        .is_some_and(|bytes| bytes.windows(needle.len()).any(|part| part == needle))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::step::text;

    fn place(ends: [&str; 2]) -> CommandValues {
        CommandValues {
            ends: ends.map(str::to_owned),
            cpu: 2,
            folder: "/scratch".into(),
        }
    }

    fn lines(entry: &Baseline, ends: [&str; 2]) -> Vec<String> {
        (entry.steps)(&place(ends)).iter().map(text).collect()
    }

    fn position(lines: &[String], part: &str) -> usize {
        let at = lines.iter().position(|line| line.contains(part));
        assert!(at.is_some(), "{part}: {lines:#?}");
        at.unwrap_or_default()
    }

    #[test]
    fn ovs_steps_are_database_daemon_ports_and_flows_in_order() {
        let lines = lines(&VETH, ["dut0", "dut1"]);
        let order: Vec<usize> = [
            "ovsdb-tool create /scratch/ovs.db",
            "ovsdb-server /scratch/ovs.db --remote=punix:/scratch/ovsdb.sock",
            "--no-wait init",
            "ovs-vswitchd unix:/scratch/ovsdb.sock",
            "add-br br0 -- set Bridge br0 datapath_type=netdev fail_mode=secure",
            "add-port br0 dut0 -- set Interface dut0 ofport_request=1",
            "get Interface dut0 error",
            "add-port br0 dut1 -- set Interface dut1 ofport_request=2",
            "add-flow unix:/scratch/br0.mgmt in_port=1,actions=output:2",
            "add-flow unix:/scratch/br0.mgmt in_port=2,actions=output:1",
        ]
        .map(|part| position(&lines, part))
        .into();
        assert!(order.is_sorted(), "{order:?} {lines:#?}");
    }

    #[test]
    fn dpdk_gets_its_cpu_and_memory_before_the_daemon_starts() {
        let lines = lines(&VETH_DPDK, ["dut0", "dut1"]);
        let daemon = position(&lines, "--unixctl=/scratch/ovs-vswitchd.ctl");
        for setting in [
            "dpdk-init=true",
            "dpdk-lcore-mask=0x4",
            "pmd-cpu-mask=0x4",
            "dpdk-socket-mem=128",
        ] {
            assert!(position(&lines, setting) < daemon, "{setting}");
        }
        position(
            &lines,
            "dpdk1 ofport_request=2 type=dpdk options:dpdk-devargs=net_af_packet1,iface=dut1,framecnt=2048",
        );
    }

    #[test]
    fn memif_ports_are_servers_on_their_sockets() {
        let lines = lines(&MEMIF, ["/scratch/west.sock", "/scratch/east.sock"]);
        position(
            &lines,
            "memif1 ofport_request=2 type=dpdk options:dpdk-devargs=net_memif1,role=server,id=0,socket=/scratch/east.sock,socket-abstract=no",
        );
    }

    #[test]
    fn ovs_cables_are_memif_links_between_ports_of_one_switch() {
        let steps = cabled(1, 2, Path::new("/scratch"));
        let lines: Vec<String> = steps.iter().map(text).collect();
        for part in [
            "memif0 ofport_request=1 type=dpdk options:dpdk-devargs=net_memif0,role=server,id=0,socket=/scratch/west.sock",
            "memif1 ofport_request=2 type=dpdk options:n_rxq=2 options:dpdk-devargs=net_memif1,role=server,id=0,socket=/scratch/cable0.sock",
            "memif2 ofport_request=3 type=dpdk options:n_rxq=2 options:dpdk-devargs=net_memif2,role=client,id=0,socket=/scratch/cable0.sock",
            "memif3 ofport_request=4 type=dpdk options:dpdk-devargs=net_memif3,role=server,id=0,socket=/scratch/east.sock",
        ] {
            position(&lines, part);
        }
    }

    #[test]
    fn vhost_ports_are_named_after_their_sockets() {
        let lines = lines(&VHOST, ["/scratch/west.sock", "/scratch/east.sock"]);
        position(&lines, "unshare --net env OVS_RUNDIR=/scratch ");
        for (number, name) in [(1, "west.sock"), (2, "east.sock")] {
            position(
                &lines,
                &format!(
                    "add-port br0 {name} -- set Interface {name} ofport_request={number} type=dpdkvhostuser"
                ),
            );
        }
    }

    #[test]
    fn the_version_and_dpdk_support_of_the_daemon_are_parsed() {
        let plain = "ovs-vswitchd (Open vSwitch) 3.1.0\n";
        assert_eq!(version_in(plain), Some("3.1.0"));
        assert!(!speaks_dpdk(plain));
        assert!(speaks_dpdk(
            "ovs-vswitchd (Open vSwitch) 3.1.0\nDPDK 22.11.6\n"
        ));
        assert_eq!(version_in("something else\n"), None);
    }
}
