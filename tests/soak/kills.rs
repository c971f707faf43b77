//! Peers of a chain that are killed repeatedly while packets pass: nothing hangs, and their resources are released.
//! (crates/port/tests/soak.rs kills the peers of a single memif port.)

use super::{held_by, share_of};
use crate::support::program::Program;
use crate::support::{Sockets, alone, scratch, taut};
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const KILLS: u64 = 1000;
/// Number of kills after which memory must not grow any more.
const SETTLING: u64 = 20;
const GROWTH_KB: u64 = 1024;
const PATIENCE: Duration = Duration::from_secs(60);

/// Kills the sender or receiver of `ports` `kills` times, each at a random time after its start. Sometimes, and at the
/// last kill, packets have to return before the kill. `watched` are processes whose resources must not grow.
fn kill_often(what: &str, ports: &[String], kills: u64, watched: &[u32]) {
    let mut random = fastrand::Rng::with_seed(1);
    let mut settled = Vec::new();
    for kill in 1..=kills {
        let line = "generate --rate 200k --seconds 1000 --live --warm-up 0";
        let mut arguments: Vec<&str> = line.split(' ').collect();
        arguments.extend(ports.iter().map(String::as_str));
        let mut peer = Program::start(&mut taut(&arguments));
        if kill % 50 == 0 || kill == SETTLING || kill == kills {
            // The sender prints the number of returned packets each second.
            peer.wait_until("packets that come back", |stdout, _| {
                stdout.contains("latency p50")
            });
        } else {
            std::thread::sleep(Duration::from_millis(random.u64(10..250)));
        }
        peer.kill();
        if kill == SETTLING.min(kills) {
            settled = watched.iter().map(|process| held_by(*process)).collect();
        }
    }
    // The last connection's memory is released once its end is detected.
    let deadline = Instant::now() + PATIENCE;
    loop {
        let now: Vec<_> = watched.iter().map(|process| held_by(*process)).collect();
        let flat = |(now, then): (&(usize, u64), &(usize, u64))| {
            now.0 <= then.0 && now.1 <= then.1 + GROWTH_KB
        };
        if now.iter().zip(&settled).all(flat) {
            println!(
                "{what}: {kills} kills; descriptors and kB after {SETTLING}: {settled:?}, at the end: {now:?}"
            );
            return;
        }
        assert!(
            Instant::now() < deadline,
            "{what}: {settled:?}, then {now:?}"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
#[ignore = "minutes: ./run soak"]
fn killed_peers_of_a_chain_leak_no_resources() {
    let _turn = alone();
    let (sockets, folder) = (Sockets::new(), scratch());
    let ports = sockets
        .paths()
        .map(|path| format!("memif:{}", path.display()));
    let name = format!("t{}-killed", std::process::id());
    let file = folder.path().join("chain.toml");
    let functions = "[[function]]\nname = \"forward\"\n".repeat(2);
    let head = format!("name = \"{name}\"\nplacement = \"processes\"\nports = {ports:?}\n");
    fs::write(&file, head + &functions).unwrap();
    let mut up = Program::start(taut(&["chain", "up", "--json"]).arg(&file));
    up.wait_for_stdout("\"event\":\"up\"");
    let segments = children(up.id());
    assert_eq!(segments.len(), 2);
    let watched: Vec<u32> = segments.into_iter().chain([up.id()]).collect();
    let mut ends = sockets.ports("client", "");
    for side in ["west", "east"] {
        kill_often(side, &ends, share_of(KILLS), &watched);
        // In the next iteration, the sender and the receiver exchange their sides.
        ends = [&ends[2..], &ends[..2]].concat();
    }
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}

/// Returns the processes that `process` has started.
fn children(process: u32) -> Vec<u32> {
    let tasks = PathBuf::from(format!("/proc/{process}/task"));
    let mut found = Vec::new();
    for task in fs::read_dir(tasks).unwrap() {
        let children = fs::read_to_string(task.unwrap().path().join("children")).unwrap();
        found.extend(
            children
                .split_whitespace()
                .map(|id| id.parse::<u32>().unwrap()),
        );
    }
    found
}
