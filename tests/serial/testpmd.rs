//! DPDK's `dpdk-testpmd` as the memif peer: taut forwards its packets, and it forwards taut's.

use crate::support::program::{PATIENCE, Program};
use crate::support::testpmd::Testpmd;
use crate::support::undisturbed::{Complaint, undisturbed};
use crate::support::{RESTING, Sockets, alone, is_listened_on, other, taut, testpmd};
use serde_json::Value;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

const ROLES: [&str; 2] = ["server", "client"];

/// The largest number of packets in both of testpmd's bursts of 32.
const CIRCULATING: u64 = 64;

fn start_forward(sockets: &Sockets, role: &str) -> Program {
    let core = taut_host::choose_cores().generator.to_string();
    let mut arguments = vec!["forward".to_string()];
    arguments.extend(sockets.ports(role, ""));
    arguments.extend(["--json", "--core", &core].map(String::from));
    arguments.extend(RESTING.map(String::from));
    let mut forward = Program::start(&mut taut(&arguments));
    forward.wait_for_stdout("started");
    forward
}

fn wait_for_links(forward: &mut Program, ups: usize) {
    forward.wait_until(&format!("{ups} links up"), |_, stderr| {
        stderr.matches(": up").count() >= ups
    });
}

/// Waits for a second in which the forwarder passed packets, after the first `lines` lines of its output.
fn wait_for_packets(forward: &mut Program, lines: usize) {
    forward.wait_until("packets", |stdout, _| {
        stdout
            .lines()
            .skip(lines)
            .any(|line| line.contains("rx_packets") && !line.contains("\"rx_packets\":0,"))
    });
}

fn counter(summary: &Value, name: &str) -> u64 {
    summary["counters"][name].as_u64().unwrap()
}

/// Sends packets of each of these `sizes` by `taut generate` through the program that `other_end` starts at the
/// sockets' other end. Checks that all packets return, intact and in order.
fn all_come_back(
    role: &str,
    ends: usize,
    sizes: &str,
    mut other_end: impl FnMut(&[PathBuf]) -> Testpmd,
) {
    let core = taut_host::choose_cores().generator.to_string();
    undisturbed(|| {
        let sockets = Sockets::new();
        let mut generate = vec!["generate".to_string()];
        let ports = sockets.ports(role, ",ring=4096");
        let paths = &sockets.paths()[..ends];
        generate.extend_from_slice(&ports[..2 * ends]);
        generate.extend(["--rate", "20k", "--seconds", "0.4", "--json"].map(String::from));
        generate.extend(["--core", &core, "--size", sizes, "--wait", "30"].map(String::from));
        let (finished, mut testpmd) = if role == "server" {
            let generate = Program::start(&mut taut(&generate));
            wait_until_listened_on(paths);
            let testpmd = other_end(paths);
            (generate.finish(), testpmd)
        } else {
            let testpmd = other_end(paths);
            (crate::support::program::run(&mut taut(&generate)), testpmd)
        };
        if !testpmd.is_running() {
            // This is a bug of DPDK (docs/reference/ports.md): its thread for the socket unmaps a ring that its worker
            // polls.
            let died = format!("testpmd died as its peer left: {}", testpmd.output());
            return Err(Complaint::spoilt(died));
        }
        if finished.code() == Some(1) {
            // Code 1 means that the generator was preempted.
            return Err(finished.stderr.into());
        }
        let stream = finished.success().first_stream();
        let tally = &stream["tally"];
        assert_eq!(tally["corrupt"], 0, "{stream}");
        if tally["foreign"] != 0 {
            // The packets belong to the warm-up and were delayed for longer than the generator waits for stragglers.
            return Err(stream.to_string().into());
        }
        for name in ["duplicate", "reordered"] {
            assert_eq!(stream["sequence"][name], 0, "{stream}");
        }
        // Some packets are refused because they arrive before testpmd is ready; they do not count as sent.
        let sent = tally["sent"].as_u64().unwrap();
        if sent >= 1_000 && stream["lost"] == 0 && tally["received"] == sent {
            Ok(())
        } else {
            Err(format!("{stream} {}", testpmd.output()).into())
        }
    });
}

fn wait_until_listened_on(sockets: &[PathBuf]) {
    let deadline = Instant::now() + PATIENCE;
    while !sockets.iter().all(|path| is_listened_on(path)) {
        assert!(Instant::now() < deadline, "no sockets");
        sleep(Duration::from_millis(5));
    }
}

#[test]
fn packets_circulate_between_testpmd_and_the_forwarder_in_both_roles() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    for role in ROLES {
        let sockets = Sockets::new();
        let mut forward = start_forward(&sockets, role);
        let mut testpmd = Testpmd::start(other(role), &sockets.paths());
        wait_for_links(&mut forward, 2);
        testpmd.forward_burst("io");
        // Each round trip of a burst increases both counters, so a short time suffices.
        sleep(Duration::from_millis(300));
        let theirs = testpmd.stop();
        // In this time the forwarder forwards the packets in flight.
        sleep(Duration::from_millis(200));
        let ours = forward.interrupt().success().last_json();
        let (rx, tx) = (counter(&ours, "rx_packets"), counter(&ours, "tx_packets"));
        let close = |sent: u64, received: u64| received <= sent && sent - received <= CIRCULATING;
        assert!(tx > 10 * CIRCULATING, "{role}: {ours}");
        assert!(
            close(theirs.tx, rx) && close(tx, theirs.rx),
            "{role}: {ours} {theirs:?}"
        );
        assert_eq!(
            (rx, ours["dropped"].as_u64()),
            (tx, Some(0)),
            "{role}: {ours}"
        );
    }
}

#[test]
fn the_forwarder_receives_every_packet_testpmd_sends_at_full_rate() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    for role in ROLES {
        let sockets = Sockets::new();
        let mut forward = start_forward(&sockets, role);
        let mut testpmd = Testpmd::start(other(role), &sockets.paths());
        wait_for_links(&mut forward, 2);
        // testpmd sends on both ports as fast as possible, and receives nothing.
        testpmd.forward("txonly");
        sleep(Duration::from_millis(500));
        let theirs = testpmd.stop();
        sleep(Duration::from_millis(200));
        let ours = forward.interrupt().success().last_json();
        assert!(theirs.tx > 10_000, "{role}: {theirs:?}");
        assert_eq!(counter(&ours, "rx_packets"), theirs.tx, "{role}: {ours}");
        // Nothing receives the forwarded packets: one ring is full, and the rest is counted as dropped.
        let gone = counter(&ours, "tx_packets") + counter(&ours, "dropped_tx_full");
        assert_eq!(gone, theirs.tx, "{role}: {ours}");
    }
}

#[test]
fn a_testpmd_server_returns_every_packet() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    all_come_back("client", 2, "64,128,1518", |sockets| {
        let mut testpmd = Testpmd::start("server", sockets);
        testpmd.forward("io");
        testpmd
    });
}

#[test]
fn a_testpmd_client_returns_every_packet() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    all_come_back("server", 2, "64,128,1518", |sockets| {
        Testpmd::start_forwarding_client("io", false, sockets)
    });
}

#[test]
fn every_packet_returns_when_testpmd_swaps_the_mac_addresses() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    all_come_back("server", 2, "64", |sockets| {
        Testpmd::start_forwarding_client("macswap", false, sockets)
    });
}

/// Every packet returns over a single port. With two ports, testpmd (DPDK 22.11) sometimes sends the file of the wrong
/// memory region or crashes, as both ports share the same memory at the same time.
#[test]
fn testpmd_with_zero_copy_memory_returns_every_packet() {
    if !testpmd::is_here() {
        return;
    }
    let free = std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages");
    if free.ok().and_then(|f| f.trim().parse().ok()).unwrap_or(0) < 40 {
        println!("skipped: needs 40 free huge pages of 2 MB (echo 64 > /proc/sys/vm/nr_hugepages)");
        return;
    }
    let _turn = alone();
    all_come_back("server", 1, "64,1518", |sockets| {
        Testpmd::start_forwarding_client("io", true, sockets)
    });
}

#[test]
fn the_forwarder_detects_a_killed_testpmd_and_serves_the_next() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    for role in ROLES {
        let sockets = Sockets::new();
        let mut forward = start_forward(&sockets, role);
        for life in 1..=2 {
            let mut testpmd = Testpmd::start(other(role), &sockets.paths());
            wait_for_links(&mut forward, 2 * life);
            testpmd.forward_burst("io");
            let before = forward.stdout().lines().count();
            wait_for_packets(&mut forward, before);
            let downs = forward.stderr().matches(": down").count();
            testpmd.kill();
            if role == "client" {
                // DPDK (22.11) cannot bind over the socket file of its killed predecessor; taut can.
                for path in sockets.paths() {
                    std::fs::remove_file(path).unwrap();
                }
            }
            forward.wait_until("both links down", |_, stderr| {
                stderr.matches(": down").count() >= downs + 2
            });
            assert!(forward.is_running());
        }
        let finished = forward.interrupt().success();
        assert!(!finished.stderr.contains("panicked"), "{finished:?}");
    }
}

/// The test runs testpmd only as the memif server. A memif client of DPDK (22.11) connects once, when its port is
/// started, and does not reconnect after a disconnect.
#[test]
fn a_new_forwarder_serves_testpmd_after_the_first_is_killed() {
    if !testpmd::is_here() {
        return;
    }
    let _turn = alone();
    let sockets = Sockets::new();
    let mut testpmd = Testpmd::start("server", &sockets.paths());
    testpmd.forward("txonly");
    for _ in 0..2 {
        let mut forward = start_forward(&sockets, "client");
        wait_for_links(&mut forward, 2);
        wait_for_packets(&mut forward, 0);
        forward.kill();
        assert!(testpmd.is_running(), "{}", testpmd.output());
    }
}
