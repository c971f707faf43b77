//! Runs the scripts of `examples/lua`, each on ports of one process; together they are the counterparts of MoonGen's
//! examples.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_measure::LatencyHistogram;
use taut_port::PortSpec;
use taut_script::{LAST_WORDS, Script};
use taut_sys::Clock;

/// Counters and histograms of a script that has ended.
struct Counted {
    counters: BTreeMap<String, f64>,
    histograms: BTreeMap<String, LatencyHistogram>,
}

impl Counted {
    /// Returns the value of a counter.
    #[track_caller]
    fn of(&self, name: &str) -> f64 {
        let counter = self.counters.get(name);
        *counter.unwrap_or_else(|| panic!("no counter {name} in {:?}", self.counters))
    }

    /// Returns the number of values in a histogram.
    #[track_caller]
    fn in_histogram(&self, name: &str) -> f64 {
        self.histograms[name].count() as f64
    }
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lua")
}

fn script(name: &str, ports: &[&str], arguments: &[&str]) -> Script {
    Script {
        path: folder().join(format!("{name}.lua")),
        ports: ports.iter().map(|p| PortSpec::parse(p).unwrap()).collect(),
        arguments: arguments.iter().map(ToString::to_string).collect(),
        trusted: true,
        limit: Some(Duration::from_secs(60)),
        last_words: LAST_WORDS,
        memory_bytes: 64_000_000,
        wait: Duration::from_secs(30),
        core: None,
        clock: Clock::calibrate(Duration::from_millis(5)),
    }
}

/// Runs an example, which must succeed.
#[track_caller]
fn example(name: &str, ports: &[&str], arguments: &[&str]) -> Counted {
    let ended = script(name, ports, arguments).run(&AtomicBool::new(false));
    ended.outcome.unwrap();
    Counted {
        counters: ended.counted.counters,
        histograms: ended.counted.histograms,
    }
}

/// Runs a script's text with the same ports and arguments as [`example`].
#[track_caller]
fn source(text: &str, ports: &[&str]) -> Counted {
    let ended = script("text", ports, &[]).run_source(text.to_string(), &AtomicBool::new(false));
    ended.outcome.unwrap();
    Counted {
        counters: ended.counted.counters,
        histograms: ended.counted.histograms,
    }
}

/// Writes a capture of UDP packets to ports 4000 and 4001, of 60 and 96 bytes; returns its name.
fn capture(folder: &Path) -> String {
    let path = folder.join("in.pcap").display().to_string();
    let text = r#"
        local n = 0
        taut.send(taut.port(1), function(batch)
            for _, packet in ipairs(batch) do
                packet.udp.dst_port = 4000 + n % 2
                if n % 2 == 1 then packet:resize(96) end
                n = n + 1
            end
        end, { rate = 20000, seconds = 0.005, stamp = false, listen = 0 })"#;
    source(text, &[&format!("pcap:{path},role=write")]);
    path
}

#[test]
fn every_example_is_run_by_a_test() {
    let here = include_str!("examples.rs");
    let ended = include_str!("../../../tests/serial/scripts.rs");
    for entry in std::fs::read_dir(folder()).unwrap() {
        let name = entry.unwrap().path();
        let name = name.file_stem().unwrap().to_str().unwrap();
        let quoted = format!("\"{name}\"");
        let is_run = here.contains(&quoted)
            || ended.contains(&quoted)
            || ended.contains(&format!("lua/{name}.lua"));
        assert!(is_run, "{name}");
    }
}

#[test]
fn port_statistics_of_both_ports_agree() {
    let ports = ["pair:statistics", "pair:statistics"];
    let done = example("port_statistics", &ports, &["20k", "64", "0.02"]);
    let sent = done.of("tx_packets of port 1");
    assert!(sent > 0.0);
    assert_eq!(done.of("rx_packets of port 2"), sent);
    assert_eq!(done.of("rx_bytes of port 2"), sent * 60.0);
}

#[test]
fn dump_and_packet_sizes_read_every_packet_of_a_capture() {
    let folder = tempfile::tempdir().unwrap();
    let port = format!("pcap:{}", capture(folder.path()));
    let dumped = example("dump", &[&port], &["0.02", "2"]);
    let packets = dumped.of("packets");
    assert!(packets > 0.0);
    let sizes = example("packet_sizes", &[&port], &["0.02"]);
    assert_eq!(sizes.of("packets"), packets);
    assert_eq!(sizes.in_histogram("sizes"), packets);
    let long = (packets / 2.0).floor();
    assert_eq!(sizes.of("bytes"), long * 100.0 + (packets - long) * 64.0);
}

#[test]
fn capture_writes_only_the_wanted_packets() {
    let folder = tempfile::tempdir().unwrap();
    let from = format!("pcap:{}", capture(folder.path()));
    let path = folder.path().join("out.pcap").display().to_string();
    let to = format!("pcap:{path},role=write");
    let done = example("capture", &[&from, &to], &["0.02", "4001"]);
    let written = done.of("written");
    assert!(written > 0.0 && done.of("left out") > 0.0);
    let again = example("packet_sizes", &[&format!("pcap:{path}")], &["0.02"]);
    assert_eq!(again.of("bytes"), written * 100.0);
}

#[test]
fn replay_sends_the_frames_of_a_capture() {
    let folder = tempfile::tempdir().unwrap();
    let path = capture(folder.path());
    for speed in ["2x", "20k"] {
        let done = example("replay", &["null:"], &[&path, speed, "0.01"]);
        assert!(done.of("sent") > 0.0, "{speed}");
    }
}

#[test]
fn the_script_inter_arrival_times_records_every_gap() {
    let done = example("inter_arrival_times", &["null:source=1"], &["0.01"]);
    assert!(done.in_histogram("time between arrivals") > 0.0);
}

#[test]
fn ipfix_messages_have_the_lengths_they_state() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ipfix.pcap").display().to_string();
    let to = format!("pcap:{path},role=write");
    let done = example("ipfix", &[&to], &["20000", "3", "0.02", "0.005"]);
    assert!(done.of("messages") > 1.0);
    let text = r#"
        local template, data = taut.counter("templates"), taut.counter("data")
        taut.receive(taut.port(1), function(batch)
            for _, packet in ipairs(batch) do
                assert(packet.udp.dst_port == 4739 and packet:u16(42) == 10)
                assert(packet:u16(44) == packet.len - 42 and packet.ip4.length == packet.len - 14)
                local set, bytes = packet:u16(58), packet:u16(60)
                assert(bytes == packet.len - 58)
                assert(set == 2 and bytes == 28 or set == 256 and bytes == 4 + 3 * 13);
                (set == 2 and template or data):add()
            end
        end, { seconds = 0.02 })"#;
    let read = source(text, &[&format!("pcap:{path}")]);
    assert!(read.of("templates") >= 1.0 && read.of("data") > read.of("templates"));
}

#[test]
fn two_way_latency_measures_both_directions() {
    let ports = ["pair:two-way", "pair:two-way"];
    let done = example("two_way_latency", &ports, &["10k", "64", "0.02"]);
    for (from, to) in [(1, 2), (2, 1)] {
        let sent = done.of(&format!("sent {from} to {to}"));
        assert!(sent > 0.0);
        // A task that gets no processor time for seconds ends before the other one.
        let received = done.of(&format!("received {from} to {to}"));
        assert!(received > 0.0 && received <= sent, "{received} of {sent}");
        let recorded = done.in_histogram(&format!("latency {from} to {to}"));
        assert_eq!(recorded, received);
    }
}

#[test]
fn poisson_load_and_quality_of_service_lose_nothing() {
    let ports = ["pair:classes", "pair:classes"];
    let poisson = example("poisson_load_latency", &ports, &["20k", "64", "0.02"]);
    let qos = example("quality_of_service", &ports, &["10k", "40k", "0.02"]);
    for (done, names) in [
        (poisson, ["load", "probes"]),
        (qos, ["foreground", "background"]),
    ] {
        for name in names {
            let sent = done.of(&format!("sent {name}"));
            assert!(sent > 0.0, "{name}");
            assert_eq!(done.of(&format!("received {name}")), sent);
        }
    }
}

#[test]
fn syn_floods_have_only_syn_segments_of_both_ip_versions() {
    for (source_ip, destination, is_ip6) in [
        ("10.0.0.1", "10.1.0.1", false),
        ("fd00::1", "fd01::1", true),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("syn.pcap").display().to_string();
        let ports = [format!("pcap:{path},role=write"), "null:".to_string()];
        let arguments = ["20k", "0.01", source_ip, destination, "7"];
        let done = example("tcp_syn_flood", &[&ports[0], &ports[1]], &arguments);
        assert!(done.of("sent") > 0.0);
        let text = format!(
            "local seen, sources = taut.counter('segments'), {{}}
             taut.receive(taut.port(1), function(batch)
                 for _, packet in ipairs(batch) do
                     assert(packet.tcp.flags == 2 and packet.ip6.present == {is_ip6})
                     local source = packet.ip6.present and packet.ip6.src_low or packet.ip4.src
                     if not sources[source] then sources[source] = true taut.counter('sources'):add() end
                     seen:add()
                 end
             end, {{ seconds = 0.02 }})"
        );
        let read = source(&text, &[&format!("pcap:{path}")]);
        assert!(read.of("segments") > 7.0);
        assert_eq!(read.of("sources"), 7.0);
    }
}

#[test]
fn two_lacp_systems_aggregate_both_links() {
    let peers = ["02:00:00:00:01:00", "02:00:00:00:02:00"].map(|mac| {
        std::thread::spawn(move || {
            let ports = ["pair:lacp-1", "pair:lacp-2"];
            example("lacp", &ports, &["2k", "0.7", mac, "20", "0.02"])
        })
    });
    for peer in peers {
        let done = peer.join().unwrap();
        assert_eq!(done.of("ports in the group"), 2.0);
        assert!(done.of("sent over the group") > 0.0);
    }
}

#[test]
fn pacing_reaches_the_rate_by_software_and_by_fillers() {
    let ports = ["pair:pacing", "pair:pacing"];
    for pacing in ["software", "fill"] {
        let arguments = [pacing, "20k", "constant", "0.01", "100Mbit/s"];
        let done = example("pacing", &ports, &arguments);
        assert!(done.of("sent") > 0.0, "{pacing}");
        assert_eq!(done.of("received"), done.of("sent"), "{pacing}");
        assert!(done.in_histogram("time between arrivals") > 0.0, "{pacing}");
    }
}

#[test]
fn receive_queues_count_the_flows_that_were_sent() {
    let ports = ["pair:queues", "pair:queues"];
    let done = example("receive_queues", &ports, &["10k", "10", "0.02"]);
    assert_eq!(done.of("packets of queue 1"), done.of("sent"));
    assert_eq!(done.of("flows of queue 1"), 10.0);
}

/// Runs a VXLAN endpoint and its test; returns how many frames the endpoint changed, and how many came back with the
/// expected content.
fn vxlan(endpoint: &'static str, test: &str, attempt: u32) -> (f64, f64) {
    let ports = ["there", "back"].map(|way| format!("pair:{test}-{way}-{attempt}"));
    let there = ports.clone();
    let vtep = std::thread::spawn(move || {
        let ports = [there[0].as_str(), there[1].as_str()];
        example("vxlan", &ports, &[endpoint, "1k", "1"])
    });
    let done = example("vxlan", &[&ports[0], &ports[1]], &[test, "1k", "0.3"]);
    let vtep = vtep.join().unwrap();
    assert_eq!(done.of("other packets"), 0.0);
    assert_eq!(vtep.of("other packets"), 0.0);
    assert!(done.of(test) <= done.of("sent"));
    (vtep.of(endpoint), done.of(test))
}

#[test]
fn vxlan_endpoints_encapsulate_and_decapsulate_frames() {
    for (endpoint, test) in [("encapsulate", "plain"), ("decapsulate", "tunnelled")] {
        // On a busy machine, a test may end before the endpoint begins.
        let mut attempts = (0..5).map(|attempt| vxlan(endpoint, test, attempt));
        let (changed, right) = attempts.find(|(_, right)| *right > 0.0).unwrap();
        assert!(changed >= right, "{changed} {right}");
    }
}

#[test]
fn scripts_about_port_stamps_run_without_them() {
    let ports = ["pair:stamps", "pair:stamps"];
    let drift = example("clock_drift", &ports, &["0.02", "0.01"]);
    assert_eq!(drift.of("stamped"), 0.0);
    assert!(drift.of("without a stamp of the port") > 0.0);
    let stamps = example("port_stamps", &ports, &["100"]);
    assert!(stamps.of("received") > 0.0);
    assert_eq!(stamps.of("stamped"), 0.0);
}

#[test]
fn packetgen_receives_all_bursts() {
    let ports = ["pair:bursts", "pair:bursts"];
    let arguments = ["20k", "4", "2", "16", "256", "64", "0.02"];
    let done = example("packetgen", &ports, &arguments);
    assert!(done.of("sent") > 0.0);
    assert_eq!(done.of("received"), done.of("sent"));
}

#[test]
fn timestamps_leave_the_load_out() {
    let ports = ["pair:loaded", "pair:loaded"];
    let done = example("timestamps", &ports, &["0.02", "84", "50k"]);
    let probes = done.in_histogram("latency by the script");
    assert!(probes > 0.0 && probes <= 200.0, "{probes}");
}

#[test]
fn a_packet_is_resized_only_within_its_room() {
    for (length, is_right) in [(14, true), (1500, true), (13, false), (100_000, false)] {
        let text = format!(
            "taut.send(taut.port(1), function(batch) batch[1]:resize({length}) end, {{ rate = 1000, seconds = 0.002 }})"
        );
        let ended = script("text", &["null:"], &[]).run_source(text, &AtomicBool::new(false));
        assert_eq!(
            ended.outcome.is_ok(),
            is_right,
            "{length}: {:?}",
            ended.outcome
        );
    }
}
