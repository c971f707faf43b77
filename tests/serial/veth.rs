//! Forwarders between veth pairs: the Linux bridge and taut on AF_PACKET and AF_XDP sockets, for packets of taut and of
//! unmodified programs.

use crate::support::hosts::{
    FAR, Transport, in_namespace, ip, transfer, two_hosts, wait_for_packets,
};
use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{RESTING, alone_and_root, is_installed};
use std::process::Command;
use taut_host::{Steering, Testbed, choose_cores};

/// Returns the programs between the interfaces, by the kind of their ports.
fn backends() -> impl Iterator<Item = &'static str> {
    ["af_packet", "af_xdp"].into_iter().filter(|name| {
        let found = taut_port::backends()
            .iter()
            .find(|b| b.name == *name)
            .map(|b| (b.probe)());
        let works = matches!(found, Some(Ok(_)));
        if !works {
            println!("skipped: needs {name} ports: {found:?}");
        }
        works
    })
}

fn start_forward(testbed: &Testbed, backend: &str) -> Program {
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.args([
        "forward",
        "--json",
        "--core",
        &choose_cores().device.to_string(),
    ]);
    command.args(RESTING);
    for interface in ["dut0", "dut1"] {
        command.args(["--port", &format!("{backend}:{interface}")]);
    }
    let mut forward = Program::start(&mut command);
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });
    forward
}

fn generate(testbed: &Testbed, seconds: &str) -> Command {
    let mut command = in_namespace(testbed.generator_namespace(), env!("CARGO_BIN_EXE_taut"));
    command.args([
        "generate",
        "--port",
        "af_packet:gen0",
        "--port",
        "af_packet:gen1",
        "--json",
    ]);
    command.args(["--rate", "5k", "--seconds", seconds]);
    command.args(["--core", &choose_cores().generator.to_string()]);
    command
}

fn no_panic(finished: &Finished) {
    assert!(!finished.stderr.contains("panicked"), "{finished:?}");
}

/// Checks that all packets of `taut generate` out of gen0 return at gen1.
fn all_come_back(testbed: &Testbed) {
    undisturbed(|| {
        let finished = run(&mut generate(testbed, "0.5"));
        no_panic(&finished);
        if finished.code() != Some(0) {
            return Err(finished.stderr);
        }
        let stream = finished.first_stream();
        let tally = &stream["tally"];
        assert_eq!(tally["corrupt"], 0, "{stream}");
        assert_eq!(stream["sequence"]["duplicate"], 0, "{stream}");
        if stream["lost"] == 0 && tally["received"] == tally["sent"] {
            Ok(())
        } else {
            Err(stream.to_string())
        }
    });
}

#[test]
fn every_packet_crosses_the_linux_bridge() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let cpu = choose_cores().device;
    let steering = Steering::PacketSteering { cpu };
    let testbed = Testbed::builder()
        .bridge(true)
        .steering(steering)
        .build()
        .unwrap();
    all_come_back(&testbed);
}

#[test]
fn every_packet_crosses_the_forwarder() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for backend in backends() {
        let testbed = Testbed::builder().build().unwrap();
        let forward = start_forward(&testbed, backend);
        all_come_back(&testbed);
        let finished = forward.interrupt().success();
        no_panic(&finished);
        let summary = finished.last_json();
        assert!(
            summary["counters"]["tx_packets"].as_u64().unwrap() >= 2_500,
            "{backend}: {summary}"
        );
    }
}

#[test]
fn an_interface_that_goes_down_is_reported_and_recovers() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for backend in backends() {
        let testbed = Testbed::builder().build().unwrap();
        let mut forward = start_forward(&testbed, backend);
        let device = testbed.device_namespace();
        let generator = Program::start(&mut generate(&testbed, "3"));
        wait_for_packets(testbed.generator_namespace(), "gen1");
        ip(&format!("-n {device} link set dut1 down"));
        forward.wait_for_stderr("dut1: down: ");
        ip(&format!("-n {device} link set dut1 up"));
        forward.wait_until("up again", |_, stderr| {
            stderr.matches("dut1: up").count() >= 2
        });
        // Packets may be lost during the change, and the exit code of the generator does not matter.
        no_panic(&generator.interrupt());
        all_come_back(&testbed);
        assert!(forward.is_running());
        no_panic(&forward.interrupt().success());
    }
}

#[test]
fn the_forwarder_reports_a_deleted_interface_and_continues() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for backend in backends() {
        let testbed = Testbed::builder().build().unwrap();
        let mut forward = start_forward(&testbed, backend);
        let generator = Program::start(&mut generate(&testbed, "3"));
        wait_for_packets(testbed.generator_namespace(), "gen1");
        ip(&format!("-n {} link del dut1", testbed.device_namespace()));
        forward.wait_for_stderr("dut1: down: interface dut1 was deleted");
        no_panic(&generator.interrupt());
        assert!(forward.is_running());
        no_panic(&forward.interrupt().success());
    }
}

#[test]
fn unmodified_programs_reach_each_other_through_the_forwarder() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let (ping, iperf) = (is_installed("ping"), is_installed("iperf3"));
    if !ping && !iperf {
        println!("skipped: needs ping or iperf3 (package iputils-ping or iperf3)");
        return;
    }
    for backend in backends() {
        let testbed = Testbed::builder().build().unwrap();
        let far = two_hosts(&testbed, testbed.generator_namespace(), "gen1");
        let forward = start_forward(&testbed, backend);
        if ping {
            // All requests get replies, including the first request, which needs ARP.
            let mut command = in_namespace(testbed.generator_namespace(), "ping");
            let finished = run(command.args(["-c", "20", "-i", "0.02", "-W", "10", FAR]));
            assert!(
                finished.stdout.contains(" 20 received"),
                "{backend}: {finished:?}"
            );
        }
        if iperf {
            for transport in [Transport::Tcp, Transport::Udp] {
                let near = testbed.generator_namespace();
                transfer(transport, (&far.0, 11111), near, (FAR, 11111));
            }
        }
        let summary = forward.interrupt().success().last_json();
        assert!(
            summary["counters"]["tx_packets"].as_u64().unwrap() > 40,
            "{backend}: {summary}"
        );
    }
}

#[test]
fn packets_outside_the_filter_go_to_the_kernel() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !is_installed("ping") {
        println!("skipped: needs ping (package iputils-ping)");
        return;
    }
    if !backends().any(|backend| backend == "af_xdp") {
        return;
    }
    let testbed = Testbed::builder().build().unwrap();
    let (near, device) = (testbed.generator_namespace(), testbed.device_namespace());
    for (namespace, interface, address) in [(near, "gen0", 1), (device, "dut0", 2)] {
        ip(&format!("-n {namespace} link set {interface} arp on up"));
        ip(&format!(
            "-n {namespace} addr add 192.0.2.{address}/24 dev {interface}"
        ));
    }
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    // A frame that matches the filter returns to its sender.
    command.args(["forward", "--json", "--port", "af_xdp:dut0,filter=udp"]);
    let mut forward = Program::start(&mut command);
    forward.wait_for_stderr("takes udp and leaves the rest");
    forward.wait_for_stderr("dut0,filter=udp: up");
    undisturbed(|| {
        let mut command = in_namespace(near, env!("CARGO_BIN_EXE_taut"));
        command.args(["generate", "--port", "af_packet:gen0", "--json"]);
        let generator = Program::start(command.args(["--rate", "1k", "--seconds", "1"]));
        let mut command = in_namespace(near, "ping");
        let pings = run(command.args(["-c", "10", "-i", "0.05", "-W", "10", "192.0.2.2"]));
        assert!(pings.stdout.contains(" 10 received"), "{pings:?}");
        let finished = generator.finish();
        if finished.code() != Some(0) {
            return Err(finished.stderr);
        }
        let stream = finished.first_stream();
        if stream["lost"] == 0 && stream["tally"]["received"] == stream["tally"]["sent"] {
            Ok(())
        } else {
            Err(stream.to_string())
        }
    });
    forward.interrupt().success();
}
