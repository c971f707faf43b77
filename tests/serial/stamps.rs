//! Receive timestamps of ports: every packet has one, and it is earlier than the generator's own.

use crate::support::program::run;
use crate::support::undisturbed::undisturbed;
use crate::support::{alone, alone_and_root, json, scratch, taut};
use serde_json::Value;
use std::process::Command;
use taut_host::{Steering, Testbed, choose_cores};

/// Builds the command of a generator that sends through gen0, and receives the bridge's packets with a port of `spec`.
fn generate(testbed: &Testbed, spec: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new("ip");
    let inside = ["netns", "exec", testbed.generator_namespace()];
    command.args(inside).arg(env!("CARGO_BIN_EXE_taut"));
    command.args(["generate", "--warm-up=0.1", "--rate=5k", "--seconds=0.5"]);
    command.args(["--port", "af_packet:gen0", "--port", spec]);
    command.args(["--core", &choose_cores().generator.to_string()]);
    command.args(arguments);
    command
}

fn bridge() -> Testbed {
    let cpu = choose_cores().device;
    let steering = Steering::PacketSteering { cpu };
    let testbed = Testbed::builder().bridge(true).steering(steering);
    testbed.build().unwrap()
}

/// Checks that every received packet has a timestamp, and that at every percentile it is earlier than the generator's.
/// Fails the attempt if more than a few packets are stamped late.
fn stamps_lie_within_the_round_trip(testbed: &Testbed, spec: &str) {
    undisturbed(|| {
        let generated = run(&mut generate(testbed, spec, &["--json"]));
        if generated.code() != Some(0) {
            return Err(format!("{generated:?}"));
        }
        let stream = generated.first_stream();
        let (stamps, whole) = (&stream["kernel_stamps"], &stream["latency_ns"]);
        let stamped = &stamps["latency_ns"];
        assert_eq!(whole["count"], stream["tally"]["received"], "{stream}");
        if stamped["count"] != whole["count"] {
            // The kernel begins to timestamp packets for packet sockets only when one of its threads has run.
            return Err(stream.to_string());
        }
        let error_ns = stamps["error_ns"].as_f64().unwrap();
        let at = |of: &Value, name: &str| of[name].as_f64().unwrap();
        for quantile in ["min_ns", "avg_ns", "p50_ns", "p99_ns", "max_ns"] {
            // Histograms have a resolution of at least two digits, hence the tolerance of 1 %.
            let (by_kernel, by_program) = (at(stamped, quantile), at(whole, quantile));
            assert!(
                by_kernel < by_program * 1.01 + error_ns,
                "{quantile}: {stream}"
            );
        }
        // The path through a bridge takes longer than the error of clocks.
        if at(stamped, "p50_ns") <= 0.0 || at(stamped, "p50_ns") >= at(whole, "p50_ns") {
            return Err(stream.to_string());
        }
        Ok(())
    });
}

#[test]
fn packet_sockets_and_xdp_sockets_timestamp_every_packet() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = bridge();
    for spec in [
        "af_packet:gen1,stamps=kernel",
        "af_xdp:gen1,stamps=kernel",
        "af_xdp:gen1,stamps=kernel,mode=generic,filter=udp",
    ] {
        stamps_lie_within_the_round_trip(&testbed, spec);
    }
    for spec in ["af_packet:gen1", "af_xdp:gen1"] {
        let finished = run(&mut generate(&testbed, spec, &["--json"]));
        assert!(
            finished.first_stream()["kernel_stamps"].is_null(),
            "{finished:?}"
        );
        for stamps in ["sun", "hardware"] {
            let spec = format!("{spec},stamps={stamps}");
            let finished = run(&mut generate(&testbed, &spec, &[]));
            assert_eq!(finished.code(), Some(2), "{finished:?}");
            assert!(finished.stderr.contains("expected kernel"), "{finished:?}");
            assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        }
    }
}

/// Reports whether DPDK ports can be opened; prints a line if not.
fn has_dpdk() -> bool {
    let dpdk = taut_port::backends().iter().find(|b| b.name == "dpdk");
    if let Some(Err(lacking)) = dpdk.map(|backend| (backend.probe)()) {
        println!("skipped: needs {lacking}");
        return false;
    }
    true
}

#[test]
fn a_dpdk_pcap_port_returns_the_kernels_timestamps() {
    if !has_dpdk() {
        return;
    }
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let name = format!("net_pcap{}", std::process::id());
    let spec = format!("dpdk:{name},iface=gen1,stamps=hardware");
    stamps_lie_within_the_round_trip(&bridge(), &spec);
}

#[test]
fn timestamps_of_an_unknown_clock_are_not_reported() {
    if !has_dpdk() {
        return;
    }
    let _turn = alone();
    let folder = scratch();
    let path = folder.path().join("empty.pcap");
    // The header: microseconds, version 2.4, Ethernet.
    let header = [0xa1b2_c3d4_u32, 0x0004_0002, 0, 0, 65535, 1];
    std::fs::write(&path, header.map(u32::to_le_bytes).concat()).unwrap();
    let name = format!("net_pcap{}", std::process::id());
    let spec = format!("dpdk:{name},rx_pcap={},stamps=hardware", path.display());
    let out = folder.path().join("out");
    let mut command = taut(&["generate", "--seconds=0.1", "--rate=1k", "--warm-up=0"]);
    command.args(["--port", "null:", "--port", &spec, "--out"]);
    let finished = run(command.arg(&out));
    let part = "no data: its clock is its own";
    assert!(finished.stdout.contains(part), "{finished:?}");
    let summary = json(&out.join("summary.json"));
    let stamps = summary["streams"][0].get("kernel_stamps");
    assert_eq!(stamps, Some(&Value::Null), "{summary}");
}

#[test]
fn the_list_of_ports_names_each_ports_timestamps() {
    let finished = run(&mut taut(&["ports", "--json"])).success();
    let ports: Value = serde_json::from_str(&finished.stdout).unwrap();
    let stamps = |name: &str| {
        let rows = ports.as_array().unwrap();
        let row = rows.iter().find(|row| row["name"] == name).unwrap();
        row["stamps"].as_str().unwrap().to_string()
    };
    for name in ["af_packet", "af_xdp"] {
        assert!(stamps(name).starts_with("kernel, with stamps=kernel"));
        assert!(stamps(name).ends_with("hardware: no data"));
    }
    assert!(stamps("dpdk").contains("stamps=hardware"));
    for name in ["memif", "pair", "null", "tap"] {
        assert_eq!(stamps(name), "no data");
    }
}
