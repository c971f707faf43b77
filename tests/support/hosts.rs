//! Two hosts with addresses at the ends of a testbed, for third-party programs.

use super::program::{Finished, Program, run};
use super::{is_installed, is_root, scratch, taut};
use std::fs;
use std::net::{IpAddr, UdpSocket};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};
use taut_host::Testbed;
use taut_wire::Gtpu;
use taut_wire::gtpu::emit_echo_request;
use tempfile::TempDir;

/// Address of the second host of [`two_hosts`].
pub const FAR: &str = "192.0.2.2";

/// Builds the command that runs `program` in `namespace`.
pub fn in_namespace(namespace: &str, program: &str) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", namespace, program]);
    command
}

/// Runs `ip` with the given arguments and checks that it succeeds.
#[track_caller]
pub fn ip(line: &str) {
    let finished = run(Command::new("ip").args(line.split(' ')));
    assert_eq!(finished.code(), Some(0), "ip {line}: {finished:?}");
}

/// Waits until `interface` in `namespace` has received some packets.
#[track_caller]
pub fn wait_for_packets(namespace: &str, interface: &str) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while received(namespace, interface) < 500 {
        assert!(Instant::now() < deadline, "{interface} receives nothing");
    }
}

/// The transport protocol that `iperf3` uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    Tcp,
    Udp,
}

/// Runs `iperf3` from the namespace `client` to a server in the namespace `server`, at the server's `port`. The client
/// uses the address and port `at` for the server. Handshake, checksums and windows have to be correct.
#[track_caller]
pub fn transfer(transport: Transport, (server, port): (&str, u16), client: &str, at: (&str, u16)) {
    let mut command = in_namespace(server, "iperf3");
    command.args(["--server", "--one-off", "--forceflush"]);
    let mut serving = Program::start(command.args(["--port", &port.to_string()]));
    serving.wait_for_stdout("Server listening");
    let mut command = in_namespace(client, "iperf3");
    command.args(["--client", at.0, "--port", &at.1.to_string()]);
    command.args(["--connect-timeout", "10000", "--bytes", "300K"]);
    if transport == Transport::Udp {
        command.args(["--udp", "--bitrate", "20M"]);
    }
    let finished = run(&mut command);
    assert_eq!(finished.code(), Some(0), "{transport:?}: {finished:?}");
    assert!(finished.stdout.contains("receiver"), "{finished:?}");
    serving.finish();
}

/// Reports whether a gateway at `to` answers echo requests that a kernel socket sends from the generator's side.
pub fn gateway_answers_echo(testbed: &Testbed, from: IpAddr, to: IpAddr) -> bool {
    let inside = testbed.enter_generator().unwrap();
    let socket = UdpSocket::bind((from, 2152)).unwrap();
    drop(inside);
    let soon = Duration::from_millis(500);
    socket.set_read_timeout(Some(soon)).unwrap();
    let mut request = [0; 64];
    let length = emit_echo_request(7, &mut request).unwrap();
    // The first requests may wait for ARP, or get lost on a busy machine.
    (0..40).any(|_| {
        let sent = socket.send_to(&request[..length], (to, 2152));
        let mut response = [0; 64];
        sent.is_ok()
            && socket.recv(&mut response).is_ok_and(|length| {
                let response = Gtpu::new(&response[..length]).unwrap();
                (response.message_type().0, response.sequence()) == (2, Some(7))
            })
    })
}

/// A namespace of the test, removed when it is dropped.
pub struct Namespace(pub String);

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

/// Hosts on which no taut runs.
pub struct Hosts {
    pub all: Vec<Namespace>,
    /// The folder for chain files and other files of the test.
    pub folder: TempDir,
}

impl Hosts {
    /// Creates `count` hosts; `None` if rights or one of the given programs, each with its package, are missing.
    pub fn new(count: usize, programs: &[(&str, &str)]) -> Option<Self> {
        if !is_root() {
            return None;
        }
        for (program, package) in programs {
            if !is_installed(program) {
                println!("skipped: needs {program} (package {package})");
                return None;
            }
        }
        let folder = scratch();
        let name = folder.path().file_name().unwrap().to_string_lossy();
        let host = |number| {
            let host = Namespace(format!("{name}-{number}"));
            ip(&format!("netns add {}", host.0));
            host
        };
        Some(Self {
            all: (1..=count).map(host).collect(),
            folder,
        })
    }

    /// Connects the first two hosts by a cable, `eth0` at both, and assigns the addresses 10.8.0.1 and 10.8.0.2.
    pub fn join_two(&self) {
        let [one, other] = [0, 1].map(|at| &self.all[at].0);
        ip(&format!(
            "link add eth0 netns {one} type veth peer name eth0 netns {other}"
        ));
        for (host, address) in [(one, "10.8.0.1/24"), (other, "10.8.0.2/24")] {
            ip(&format!("-n {host} address add {address} dev eth0"));
            ip(&format!("-n {host} link set eth0 up"));
            ip(&format!("-n {host} link set lo up"));
        }
    }

    /// Returns the path of a chain file. The file name is also the name of the chain, and unique among the tests.
    pub fn chain_file(&self, name: &str) -> PathBuf {
        let folder = self.folder.path();
        let own = folder.file_name().unwrap().to_string_lossy();
        folder.join(format!("{own}-{name}"))
    }

    /// Starts a chain and waits until packets pass.
    pub fn up(&self, name: &str, chain: &str) -> Program {
        let file = self.chain_file(name);
        fs::write(&file, chain).unwrap();
        let mut up = Program::start(taut(&["chain", "up", "--json"]).arg(&file));
        up.wait_for_stdout("\"up\"");
        up
    }
}

/// Returns the number of frames that an interface in a namespace has received.
#[track_caller]
pub fn received(namespace: &str, interface: &str) -> u64 {
    let file = format!("/sys/class/net/{interface}/statistics/rx_packets");
    let read = run(in_namespace(namespace, "cat").arg(file)).success();
    read.stdout.trim().parse().unwrap()
}

/// Sends echo requests from a host, with the given arguments of `ping`, and expects `count` replies.
#[track_caller]
pub fn ping(host: &Namespace, to: &str, count: usize, arguments: &[&str], answers: usize) {
    let mut command = in_namespace(&host.0, "ping");
    let wait = if answers == 0 { "1" } else { "10" };
    command.args(["-c", &count.to_string(), "-W", wait]);
    let finished = run(command.args(arguments).arg(to));
    let all = format!(" {answers} received");
    if finished.stdout.contains(&all) {
        return;
    }
    // Once a reply has arrived, `ping` waits for the last replies at most twice the longest round trip so far, and at
    // least one interval. That is too short on a busy machine. For the reply to a single request, `ping` waits for the
    // full time of `-W`.
    let answered = |sequence: usize| finished.stdout.contains(&format!("icmp_seq={sequence} "));
    let first = (1..=count).take_while(|it| answered(*it)).count();
    let were_not_awaited = answers == count && first > 0 && !(first + 1..=count).any(answered);
    assert!(were_not_awaited, "{finished:?}");
    for _ in first..count {
        let mut command = in_namespace(&host.0, "ping");
        command.args(["-c", "1", "-W", wait]);
        let finished = run(command.args(arguments).arg(to));
        assert!(finished.stdout.contains(" 1 received"), "{finished:?}");
    }
}

/// Returns the next hops that `traceroute` finds.
pub fn hops(host: &Namespace, protocol: &str, to: &str) -> Vec<String> {
    let mut command = in_namespace(&host.0, "traceroute");
    let traced = run(command.args([protocol, "-n", "-q", "1", "-w", "5", to])).success();
    let lines = traced.stdout.lines().skip(1);
    let hops = lines.map(|line| line.split_whitespace().nth(1).unwrap_or("-").to_string());
    hops.collect()
}

/// Returns the next hops that `mtr` finds, and ignores the losses that `mtr` reports. `mtr` misses some replies that
/// arrive within a millisecond, as tcpdump shows, and sometimes all replies of a hop.
pub fn mtr_hops(host: &Namespace, options: &[&str], to: &str) -> Vec<String> {
    let mut command = in_namespace(&host.0, "mtr");
    let traced = run(command
        .args(["-n", "--json", "-c", "5", "-i", "0.2", "-G", "1"])
        .args(options)
        .arg(to));
    let report: serde_json::Value = serde_json::from_str(&traced.success().stdout).unwrap();
    let hubs = report["report"]["hubs"].as_array().unwrap().iter();
    hubs.map(|hub| hub["host"].as_str().unwrap_or("-").to_string())
        .collect()
}

/// Returns the output of `ping` with the given arguments.
pub fn pinged(host: &Namespace, arguments: &[&str]) -> Finished {
    run(in_namespace(&host.0, "ping").args(arguments))
}

/// Moves `far_interface` from the namespace `from` to a new namespace, and returns that namespace. Sets up ARP and
/// addresses of one network for `far_interface` and the generator's first interface.
pub fn two_hosts(testbed: &Testbed, from: &str, far_interface: &str) -> Namespace {
    let near = testbed.generator_namespace();
    let far = Namespace(format!("{near}-far"));
    ip(&format!("netns add {}", far.0));
    ip(&format!(
        "-n {from} link set {far_interface} netns {}",
        far.0
    ));
    for (namespace, interface, address) in [
        (near, "gen0", "192.0.2.1/24"),
        (&far.0, far_interface, "192.0.2.2/24"),
    ] {
        ip(&format!("-n {namespace} link set {interface} arp on up"));
        ip(&format!(
            "-n {namespace} addr add {address} dev {interface}"
        ));
    }
    far
}
