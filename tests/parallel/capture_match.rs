//! `taut capture match` on both sides of unmodified devices: a router of the kernel, and a forwarder that loses
//! packets.

use crate::support::hosts::{
    Hosts, Namespace, Transport, in_namespace, ip, ping, received, transfer,
};
use crate::support::program::{Program, run};
use crate::support::{json, taut};
use rustix::process::Signal;
use serde_json::Value;
use std::path::Path;
use std::thread::sleep;
use std::time::Duration;

const TAUT: &str = env!("CARGO_BIN_EXE_taut");

/// Creates a client, a device and a server. The client's interface `c` is connected to the device's `in`, and the
/// device's `out` to the server's `s`. The device does not forward yet. Returns `None` if a requirement is missing.
fn joined(programs: &[(&str, &str)]) -> Option<Hosts> {
    let hosts = Hosts::new(3, programs)?;
    let [client, device, server] = names(&hosts);
    ip(&format!(
        "link add c netns {client} type veth peer name in netns {device}"
    ));
    ip(&format!(
        "link add s netns {server} type veth peer name out netns {device}"
    ));
    for (namespace, interface) in [
        (client, "c"),
        (device, "in"),
        (device, "out"),
        (server, "s"),
    ] {
        ip(&format!("-n {namespace} link set {interface} up"));
    }
    Some(hosts)
}

fn names(hosts: &Hosts) -> [&str; 3] {
    [0, 1, 2].map(|at| hosts.all[at].0.as_str())
}

/// Creates the hosts of [`joined`] with a device that routes between two networks, and has no route to a third network.
fn routed(programs: &[(&str, &str)]) -> Option<Hosts> {
    let hosts = joined(programs)?;
    let [client, device, server] = names(&hosts);
    for (namespace, interface, address) in [
        (client, "c", "10.8.1.2/24"),
        (device, "in", "10.8.1.1/24"),
        (device, "out", "10.8.2.1/24"),
        (server, "s", "10.8.2.2/24"),
    ] {
        ip(&format!(
            "-n {namespace} addr add {address} dev {interface}"
        ));
    }
    ip(&format!("-n {client} route add default via 10.8.1.1"));
    ip(&format!("-n {server} route add default via 10.8.2.1"));
    ip(&format!("-n {device} route add blackhole 10.8.3.0/24"));
    let mut forward = in_namespace(device, "sysctl");
    run(forward.args(["-w", "net.ipv4.ip_forward=1"])).success();
    Some(hosts)
}

fn start_match(device: &str, arguments: &[&str]) -> Program {
    let mut command = in_namespace(device, TAUT);
    command.args(["capture", "match", "--from", "in", "--to", "out", "--json"]);
    let mut matching = Program::start(command.args(arguments));
    matching.wait_for_stderr("watching in and out");
    matching
}

fn number(of: &Value) -> u64 {
    of.as_u64().unwrap_or_else(|| panic!("{of}"))
}

/// Checks the relations between the report's packet counts that hold for every match.
#[track_caller]
fn assert_sums(report: &Value) {
    let of = |name: &str| number(&report["matching"][name]);
    assert_eq!(
        of("matched") + of("lost") + of("gave_up"),
        of("seen_a"),
        "{report}"
    );
    assert_eq!(of("matched") + of("extra"), of("seen_b"), "{report}");
    assert_eq!(report["missed"]["ring_full"], 0, "{report}");
    assert_eq!(report["missed"]["unseen"], 0, "{report}");
}

#[test]
fn forwarded_packets_are_matched_and_unroutable_packets_count_as_lost() {
    let tools = [("ping", "iputils-ping"), ("iperf3", "iperf3")];
    let Some(hosts) = routed(&tools) else {
        return;
    };
    let [_, device, server] = names(&hosts);
    let client = &hosts.all[0];
    let out = hosts.folder.path().join("match");
    let matching = start_match(device, &["--filter=icmp", "--out", out.to_str().unwrap()]);
    ping(client, "10.8.2.2", 50, &["-i", "0.002"], 50);
    ping(client, "10.8.3.9", 7, &["-i", "0.01"], 0);
    let report = matching.interrupt().success().last_json();
    assert_sums(&report);
    let way = &report["directions"][0];
    assert_eq!((&way["from"], &way["to"]), (&"in".into(), &"out".into()));
    let counts = ["entered", "left", "lost", "reordered"].map(|it| number(&way[it]));
    assert_eq!(counts, [57, 50, 7, 0], "{report}");
    let lost: Vec<u64> = (50..57).collect();
    assert_eq!(way["flows"][0]["lost_sequences"], serde_json::json!(lost));
    assert!(number(&way["latency_ns"]["min_ns"]) > 0, "{report}");
    assert_eq!(report["matching"]["lost_packets"][0]["sequence"], 50);
    assert!(report["matching"]["slowest"][0]["delay_ns"] == way["latency_ns"]["max_ns"]);
    assert_eq!(json(&out.join("summary.json")), report);
    assert_eq!(report["samples"], 57);
    assert!(out.join("in/flow-0/samples.parquet").is_file());
    let again = run(taut(&["report"]).arg(&out)).success();
    assert!(again.stdout.contains("report.html"), "{again:?}");

    // Packets that arrived before the end count, even if the program had not processed them by then.
    let matching = start_match(device, &["--filter=icmp"]);
    matching.signal(Signal::STOP);
    ping(client, "10.8.2.2", 40, &["-i", "0.002"], 40);
    matching.signal(Signal::INT);
    matching.signal(Signal::CONT);
    let report = matching.finish().success().last_json();
    assert_sums(&report);
    assert_eq!(number(&report["directions"][0]["left"]), 40, "{report}");

    // The match covers both directions, including the replies of the transport.
    let matching = start_match(device, &["--both", "--within=200ms", "--filter=ip"]);
    ping(client, "10.8.2.2", 20, &["-i", "0.002"], 20);
    transfer(
        Transport::Udp,
        (server, 5201),
        &client.0,
        ("10.8.2.2", 5201),
    );
    let report = matching.interrupt().success().last_json();
    assert_sums(&report);
    for way in [0, 1].map(|at| &report["directions"][at]) {
        assert!(number(&way["left"]) >= 20, "{report}");
        assert_eq!(way["lost"], 0, "{report}");
        assert!(number(&way["latency_ns"]["max_ns"]) > 0, "{report}");
    }
}

/// Runs `tcpdump` on an interface in both directions, with the number of bytes of each packet that `--bytes 40` needs.
fn record(device: &str, interface: &str, file: &Path) -> Program {
    let mut command = in_namespace(device, "tcpdump");
    command.args([
        "-i",
        interface,
        "-s",
        "74",
        "-U",
        "--immediate-mode",
        "-Z",
        "root",
    ]);
    command.args(["--time-stamp-precision=nano", "-w"]);
    let mut recording = Program::start(command.arg(file));
    recording.wait_for_stderr("listening on");
    recording
}

fn match_files(files: &[&Path; 2], arguments: &[&str]) -> crate::support::program::Finished {
    run(taut(&["capture", "match", "--json"])
        .args(files)
        .args(arguments))
}

#[test]
fn two_captures_by_tcpdump_are_matched() {
    let tools = [("ping", "iputils-ping"), ("tcpdump", "tcpdump")];
    let Some(hosts) = routed(&tools) else {
        return;
    };
    let [_, device, _] = names(&hosts);
    let client: &Namespace = &hosts.all[0];
    let [a, b] = ["a.pcap", "b.pcap"].map(|it| hosts.folder.path().join(it));
    let recordings = [record(device, "in", &a), record(device, "out", &b)];
    ping(client, "10.8.2.2", 30, &["-i", "0.002"], 30);
    ping(client, "10.8.3.9", 5, &["-i", "0.01"], 0);
    for recording in recordings {
        recording.interrupt().success();
    }
    let files = [a.as_path(), b.as_path()];
    let there = match_files(&files, &["--bytes=40", "--filter=icmp and src 10.8.1.2"]);
    let there = there.success().last_json();
    assert_sums(&there);
    let counts = ["seen_a", "matched", "lost", "extra"];
    let counts = counts.map(|it| number(&there["matching"][it]));
    assert_eq!(counts, [35, 30, 5, 0], "{there}");
    // Ignoring the fields that a device may rewrite gives the same result.
    let ignoring = [
        "--ignore=addresses",
        "--ignore=ports",
        "--filter=icmp[0] = 8",
    ];
    let ignoring = match_files(&files, &[&["--bytes=40"][..], &ignoring].concat());
    let ignoring = ignoring.success().last_json();
    assert_eq!(number(&ignoring["matching"]["matched"]), 30, "{ignoring}");
    let both = match_files(&files, &["--bytes=40", "--both", "--filter=icmp"]);
    let both = both.success().last_json();
    assert_sums(&both);
    let left = [0, 1].map(|at| number(&both["directions"][at]["left"]));
    assert_eq!(left, [30, 30], "{both}");

    // Comparing more bytes than were captured distinguishes no packets. A file that is no capture is reported.
    let cut = match_files(&files, &["--filter=icmp"]);
    assert_eq!(cut.code(), Some(1), "{cut:?}");
    assert!(cut.stderr.contains("--bytes"), "{cut:?}");
    let wrong = match_files(&[&a, Path::new("Cargo.toml")], &[]);
    assert_eq!(wrong.code(), Some(2), "{wrong:?}");
    assert!(wrong.stderr.contains("Cargo.toml"), "{wrong:?}");
}

/// Waits until no packet has arrived at an interface for half a second.
fn wait_for_silence(namespace: &str, interface: &str) {
    let mut last = None;
    while last != Some(received(namespace, interface)) {
        last = Some(received(namespace, interface));
        sleep(Duration::from_millis(500));
    }
}

#[test]
fn matching_reports_losses_duplicates_and_delays_of_the_device() {
    let Some(hosts) = joined(&[]) else {
        return;
    };
    let [client, device, server] = names(&hosts);
    // The generator is one program, so it sends and receives in one namespace.
    ip(&format!("-n {server} link set s netns {client}"));
    ip(&format!("-n {client} link set s up"));
    let log = hosts.folder.path().join("faults.csv");
    let mut command = in_namespace(device, TAUT);
    command.args(["forward", "--json", "--wait=sleep(50us)", "--function"]);
    command.arg(format!(
        "impair(loss=0.1, duplicate=0.05, reorder=0.02, log=\"{}\")",
        log.display()
    ));
    for interface in ["in", "out"] {
        command.args(["--port", &format!("af_packet:{interface},qdisc=yes")]);
    }
    let mut forward = Program::start(&mut command);
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });
    // The match waits for 3 s, because the programs may have to wait for a CPU.
    let matching = start_match(device, &["--filter=udp", "--within=3s"]);
    let mut command = in_namespace(client, TAUT);
    command.args([
        "generate",
        "--json",
        "--warm-up=0",
        "--rate=2k",
        "--seconds=1",
    ]);
    command.args(["--max-loss=1", "--port=af_packet:c", "--port=af_packet:s"]);
    let generated = run(&mut command).first_stream();
    wait_for_silence(client, "s");
    let report = matching.interrupt().success().last_json();
    forward.interrupt().success();
    let log = std::fs::read_to_string(log).unwrap();
    // Only lines with a stamp are counted: they are the generator's packets, not packets that the kernel sends by
    // itself.
    let logged = |what: &str| {
        let lines = log.lines().map(|it| it.split(',').collect::<Vec<_>>());
        let stamped = lines.filter(|it| it.len() == 5 && !it[2].is_empty());
        stamped.filter(|it| it[4] == what).count() as u64
    };
    assert_sums(&report);
    let of = |name: &str| number(&report["matching"][name]);
    let tally = |name: &str| number(&generated["tally"][name]);
    assert_eq!(of("seen_a"), tally("sent"), "{report}");
    assert_eq!(of("lost"), logged("lose"), "{report} {generated}");
    assert_eq!(of("extra"), logged("duplicate"), "{report}");
    assert_eq!(of("reordered"), logged("reorder"), "{report}");
    let all = ["lost", "extra", "reordered"].map(of);
    assert!(all.iter().all(|it| *it > 0), "{report}");
    // The generator counts packets that return too late as lost.
    assert!(number(&generated["lost"]) >= of("lost"), "{generated}");
    assert_eq!(of("ambiguous"), 0, "{report}");
    // The minimum is compared, as the generator has fewer packets than the match: it counts late ones as lost.
    let inside = number(&report["directions"][0]["latency_ns"]["min_ns"]);
    let around = number(&generated["latency_ns"]["min_ns"]);
    assert!(inside > 0 && inside < around, "{inside} {around}");
}
