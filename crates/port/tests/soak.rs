//! Soak tests, which take minutes and are run manually, one after the other.
//!
//! `cargo test --release -p taut-port --test soak -- --ignored --nocapture --test-threads 1`
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use taut_port::{Batch, Port, PortSpec, Resources};

/// The environment variable with the port spec for a child process of this program, which acts as the peer and is
/// killed.
const PEER: &str = "TAUT_SOAK_PEER";

/// The number of peers that are killed in each role.
const KILLS: usize = 1_000;

/// The number of restarts of the peer before memory is measured, in which all one-time allocations are made.
const WARM_UP: usize = 50;

/// The timeout of a round, after which the test fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn open(spec: &str) -> (Box<dyn Port>, Resources) {
    let spec = PortSpec::parse(spec).unwrap();
    let mut resources = Resources::for_ports(std::slice::from_ref(&spec)).unwrap();
    (spec.open(&mut resources).unwrap(), resources)
}

/// Acts as the peer until it is killed: sends and receives as fast as it can.
#[test]
#[ignore = "the other half of the soak below, which starts it"]
fn peer() {
    let Ok(spec) = std::env::var(PEER) else {
        return;
    };
    let parent = rustix::process::getppid();
    let (mut port, resources) = open(&spec);
    let mut batch = Batch::new();
    while rustix::process::getppid() == parent {
        for _ in 0..1_000 {
            resources.pool().fill(&mut batch, 32, 60);
            port.tx(&mut batch);
            batch.clear();
            port.rx(&mut batch);
            batch.clear();
        }
        std::thread::yield_now();
    }
}

fn start_peer(spec: &str) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["peer", "--exact", "--ignored"])
        .env(PEER, spec)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Returns the number of open files of this process, and its memory in use, KiB.
fn footprint() -> (usize, u64) {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().count();
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|text| text.trim().split(' ').next());
    (files, resident.unwrap().parse().unwrap())
}

fn kill_peers(path: &Path, ours: &str, peers: &str) {
    let (mut port, resources) = open(&format!("memif:{}{ours}", path.display()));
    let (mut out, mut held) = (Batch::new(), Batch::new());
    let mut warm = None;
    let (mut most_files, mut most_resident) = (0, 0);
    let mut received = 0;
    for round in 0..KILLS {
        let begun = Instant::now();
        let mut peer = start_peer(&format!("memif:{}{peers}", path.display()));
        let mut came = 0;
        // The link is up, with traffic in both directions.
        while came < 1_000 {
            assert!(
                begun.elapsed() < PATIENCE,
                "round {round}: {:?}",
                port.link()
            );
            resources.pool().fill(&mut out, 32, 60);
            port.tx(&mut out);
            out.clear();
            held.clear();
            let n = port.rx(&mut held);
            came += n;
            if n == 0 {
                let _ = port.link();
                std::thread::yield_now();
            }
        }
        received += came;
        peer.kill().unwrap();
        peer.wait().unwrap();
        // The packets received last stay in use until after the peer was killed.
        while port.link().is_up() {
            assert!(
                begun.elapsed() < PATIENCE,
                "round {round}: the end is not noticed"
            );
            std::thread::yield_now();
        }
        std::hint::black_box(
            held.packets()
                .iter()
                .map(|p| u64::from(p.bytes()[0]))
                .sum::<u64>(),
        );
        held.clear();
        let (files, resident) = footprint();
        let (files_then, resident_then) = *warm.get_or_insert((files, resident));
        if round < WARM_UP {
            warm = None;
        } else {
            (most_files, most_resident) = (most_files.max(files), most_resident.max(resident));
            assert!(
                files <= files_then + 8,
                "{files} files after round {round}, {files_then} at first"
            );
            assert!(
                resident <= resident_then + 4_096,
                "{resident} KiB after round {round}, {resident_then} KiB at first"
            );
        }
        if round == WARM_UP || round + 1 == KILLS {
            println!("{ours} {round}: {files} files, {resident} KiB resident, {received} packets");
        }
    }
    println!("{ours}: at most {most_files} files, {most_resident} KiB resident");
    drop(port);
    assert_eq!(resources.pool().outstanding(), 0);
}

#[test]
#[ignore = "takes minutes: kills 1,000 peers in each role"]
fn a_thousand_killed_memif_peers_leave_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("memif.sock");
    kill_peers(&path, ",role=server", ",role=client,ring=256");
    kill_peers(&path, ",role=client,ring=256", ",role=server");
}
