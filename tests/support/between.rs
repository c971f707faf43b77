//! `taut forward` with a chain between two memif links to the test, and the decoding of frames by tshark.

use super::program::{Program, run};
use super::{Sockets, is_installed, scratch, taut};
use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::time::{Duration, Instant};
use taut_port::{Batch, PoolHandle, Port, PortSpec, Resources};
use taut_wire::{EtherType, Ethernet, resolution};

/// A forwarder; a test sends to its ports 0 and 1 and receives from them.
pub struct Between {
    pub program: Program,
    pub ports: Vec<Box<dyn Port>>,
    pub resources: Resources,
    _sockets: Sockets,
    _folder: tempfile::TempDir,
}

impl Between {
    /// Starts a forwarder with the given functions, in the form of a chain file.
    pub fn start(functions: &str) -> Self {
        let (sockets, folder) = (Sockets::new(), scratch());
        let [west, east] = sockets.paths().map(|p| format!("memif:{}", p.display()));
        let specs = [west, east].map(|spec| PortSpec::parse(&spec).unwrap());
        let mut resources = Resources::for_ports(&specs).unwrap();
        let ports: Vec<_> = specs
            .iter()
            .map(|s| s.open(&mut resources).unwrap())
            .collect();
        let clients: Vec<_> = sockets
            .paths()
            .iter()
            .map(|p| format!("\"memif:{},role=client\"", p.display()))
            .collect();
        let chain = folder.path().join("chain.toml");
        let text = format!(
            "ports = [{}]\nwait = \"sleep(50us)\"\n{functions}",
            clients.join(", ")
        );
        std::fs::write(&chain, text).unwrap();
        let chain = chain.display().to_string();
        let mut program = Program::start(&mut taut(&["forward", &chain, "--json", "--quiet"]));
        program.wait_until("both links up", |_, stderr| {
            stderr.matches(": up").count() >= 2
        });
        let mut between = Self {
            program,
            ports,
            resources,
            _sockets: sockets,
            _folder: folder,
        };
        let deadline = Instant::now() + Duration::from_secs(20);
        while !between.ports.iter_mut().all(|p| p.link().is_up()) {
            assert!(Instant::now() < deadline, "no link");
            std::thread::sleep(Duration::from_millis(5));
        }
        between
    }

    pub fn send(&mut self, port: usize, frames: &[Vec<u8>]) {
        send(&mut *self.ports[port], &self.resources.pool(), frames);
    }

    /// Receives at a port until there are `count` frames, or no more frames arrive.
    pub fn receive(&mut self, port: usize, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(20);
        while frames.len() < count && Instant::now() < deadline {
            self.take(port, &mut frames);
        }
        assert_eq!(frames.len(), count, "{}", self.program.stderr());
        frames
    }

    /// Receives at least `least` frames at a port, and further frames until none arrives for `silence`.
    pub fn receive_all(&mut self, port: usize, least: usize, silence: Duration) -> Vec<Vec<u8>> {
        let (mut frames, begun) = (Vec::new(), Instant::now());
        let mut last = begun;
        while last.elapsed() < silence
            || frames.len() < least && begun.elapsed() < Duration::from_secs(20)
        {
            let before = frames.len();
            self.take(port, &mut frames);
            if frames.len() > before {
                last = Instant::now();
            }
        }
        assert!(frames.len() >= least, "{}", self.program.stderr());
        frames
    }

    fn take(&mut self, port: usize, frames: &mut Vec<Vec<u8>>) {
        let mut batch = Batch::new();
        self.ports[port].rx(&mut batch);
        frames.extend(batch.packets().iter().map(|p| p.bytes().to_vec()));
    }

    /// Ends the forwarder; returns the number of packets by outcome.
    pub fn outcomes(self) -> serde_json::Value {
        self.program.interrupt().success().last_json()["outcomes"].clone()
    }
}

/// Sends frames one by one, until the port has accepted all.
pub fn send(port: &mut dyn Port, pool: &PoolHandle, frames: &[Vec<u8>]) {
    for frame in frames {
        let mut batch = Batch::new();
        pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        while !batch.is_empty() {
            port.tx(&mut batch);
        }
    }
}

/// Reports whether a frame belongs to ARP or neighbour discovery.
pub fn is_about_neighbours(frame: &[u8]) -> bool {
    let ethernet = Ethernet::new(frame).unwrap();
    ethernet.ethertype() == EtherType::ARP || resolution::neighbour_message(&ethernet).is_some()
}

/// Writes a capture file of Ethernet frames.
pub fn write_pcap(path: &Path, frames: &[Vec<u8>]) {
    let words = |n: &[u32]| n.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    let mut file = words(&[0xa1b2_c3d4, 0x0004_0002, 0, 0, 65_535, 1]);
    for frame in frames {
        let length = frame.len() as u32;
        file.extend(words(&[0, 0, length, length]));
        file.extend(frame);
    }
    std::fs::write(path, file).unwrap();
}

/// Protocols that tshark guesses from the payload of a datagram: encrypted bytes sometimes look like a malformed packet
/// of such a protocol.
static GUESSED_OVER_UDP: LazyLock<Vec<String>> = LazyLock::new(|| {
    let guesses = run(Command::new("tshark").args(["-G", "heuristic-decodes"])).success();
    let of_udp = guesses.stdout.lines().filter_map(|line| {
        let (name, enabled) = line.strip_prefix("udp\t")?.split_once('\t')?;
        (enabled == "T").then(|| name.to_string())
    });
    of_udp.collect()
});

/// Makes tshark treat a datagram's payload as data unless a port identifies its protocol. One stamped payload in 145
/// looks like DNS to tshark.
pub fn guess_nothing_over_udp(tshark: &mut Command) {
    for guessed in &*GUESSED_OVER_UDP {
        tshark.args(["--disable-protocol", guessed]);
    }
}

/// Returns the values of the given fields for each frame, after checking that tshark finds no error in any frame.
/// Returns `None` if tshark is not installed.
pub fn decoded(frames: &[Vec<u8>], fields: &[&str]) -> Option<Vec<Vec<String>>> {
    if !is_installed("tshark") {
        println!("skipped: needs tshark");
        return None;
    }
    let folder = scratch();
    let capture = folder.path().join("frames.pcap");
    write_pcap(&capture, frames);
    let mut command = Command::new("tshark");
    command.arg("-r").arg(&capture);
    for checked in ["ip", "udp"] {
        command.args(["-o", &format!("{checked}.check_checksum:TRUE")]);
    }
    guess_nothing_over_udp(&mut command);
    // A NAT may have chosen any of these ports, even one that belongs to a protocol. The excluded ports 2123, 2152 and
    // 8805 are those of GTP-C, GTP-U and PFCP.
    for ports in ["1024-2122", "2124-2151", "2153-8804", "8806-65535"] {
        command.args(["-d", &format!("udp.port=={ports},data")]);
    }
    command.args(["-T", "fields", "-E", "occurrence=a"]);
    for field in ["_ws.malformed", "ip.checksum.status", "udp.checksum.status"]
        .iter()
        .chain(fields)
    {
        command.args(["-e", field]);
    }
    let shown = run(&mut command).success();
    let lines: Vec<Vec<String>> = shown
        .stdout
        .lines()
        .map(|line| line.split('\t').map(str::to_string).collect())
        .collect();
    assert_eq!(lines.len(), frames.len(), "{shown:?}");
    for line in &lines {
        assert_eq!(line[0], "", "malformed: {line:?}");
        let statuses = line[1..3].iter().flat_map(|s| s.split(','));
        // tshark's checksum statuses are 0 for bad, 1 good, 2 not checked, 3 none.
        assert!(!statuses.clone().any(|s| s == "0"), "{line:?}");
    }
    Some(lines.into_iter().map(|line| line[3..].to_vec()).collect())
}
