//! The generator as the hosts of a router's networks: Linux routing without any static neighbour.

use crate::support::alone_and_root;
use crate::support::program::run;
use crate::support::undisturbed::undisturbed;
use std::process::Command;
use taut_host::{Testbed, choose_cores};

fn in_device(testbed: &Testbed, line: &str) {
    let mut command = testbed.command_in_device("sh");
    let finished = run(command.args(["-c", line]));
    assert_eq!(finished.code(), Some(0), "{line}: {finished:?}");
}

/// Creates a router of `networks` between the testbed's interfaces, which has to resolve every neighbour.
fn router(networks: [&str; 2]) -> Testbed {
    let testbed = Testbed::builder().build().unwrap();
    in_device(
        &testbed,
        "echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
    );
    for (interface, network) in ["dut0", "dut1"].iter().zip(networks) {
        in_device(
            &testbed,
            &format!("echo 0 > /proc/sys/net/ipv6/conf/{interface}/disable_ipv6"),
        );
        in_device(&testbed, &format!("ip link set {interface} arp on up"));
        let nodad = if network.contains(':') { "nodad" } else { "" };
        in_device(
            &testbed,
            &format!("ip address add {network} dev {interface} {nodad}"),
        );
    }
    testbed
}

fn generate(testbed: &Testbed, more: &[&str]) -> Command {
    let mut command = Command::new("ip");
    let namespace = testbed.generator_namespace();
    command.args(["netns", "exec", namespace, env!("CARGO_BIN_EXE_taut")]);
    command.args([
        "generate",
        "--port",
        "af_packet:gen0",
        "--port",
        "af_packet:gen1",
    ]);
    command.args(["--json", "--core", &choose_cores().generator.to_string()]);
    command.args(more);
    command
}

#[test]
fn router_and_generator_resolve_their_neighbours_before_the_trial() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    for (networks, settings) in [
        (
            ["10.81.0.254/24", "10.82.0.254/24"],
            [
                "src_ip=10.81.0.1-10.81.0.9",
                "dst_ip=10.82.0.1-10.82.0.20",
                "gateway=10.81.0.254",
            ],
        ),
        (
            ["2001:db8:81::fe/64", "2001:db8:82::fe/64"],
            [
                "src_ip=2001:db8:81::1",
                "dst_ip=2001:db8:82::1-2001:db8:82::9",
                "gateway=2001:db8:81::fe",
            ],
        ),
    ] {
        let testbed = router(networks);
        let mut arguments = vec![
            "--rate",
            "2k",
            "--seconds",
            "0.5",
            "--warm-up",
            "0.3",
            "--size",
            "100",
        ];
        settings
            .iter()
            .for_each(|set| arguments.extend(["--set", set]));
        undisturbed(|| {
            let finished = run(&mut generate(&testbed, &arguments));
            if finished.code() != Some(0) {
                return Err(finished.stderr);
            }
            let stream = finished.first_stream();
            let tally = &stream["tally"];
            match stream["lost"] == 0 && tally["received"] == tally["sent"] {
                true => Ok(()),
                false => Err(stream.to_string()),
            }
        });
    }
}

#[test]
fn arp_requests_during_a_trial_get_replies_and_are_counted() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = router(["10.81.0.254/24", "10.82.0.254/24"]);
    undisturbed(|| {
        in_device(&testbed, "ip neighbour flush all");
        // Without a warm-up the router resolves each destination during the trial, and buffers its packets.
        let more = [
            "--rate",
            "1k",
            "--seconds",
            "1",
            "--warm-up",
            "0",
            "--max-loss",
            "0.5",
        ];
        let sets = [
            "src_ip=10.81.0.1",
            "dst_ip=10.82.0.1-10.82.0.10",
            "gateway=10.81.0.254",
        ];
        let mut command = generate(&testbed, &more);
        sets.iter().for_each(|set| {
            command.args(["--set", set]);
        });
        let finished = run(&mut command);
        if finished.code() != Some(0) {
            return Err(finished.stderr);
        }
        let stream = finished.first_stream();
        let tally = &stream["tally"];
        let answered = tally["arp_answered"].as_u64().unwrap();
        match answered >= 10 && tally["received"].as_u64() > Some(900) {
            true => Ok(()),
            false => Err(stream.to_string()),
        }
    });
}

#[test]
fn frames_above_the_mtu_are_refused_with_exit_code_2() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = Testbed::builder().build().unwrap();
    // A full frame has 1518 bytes with its check sequence, and may have a VLAN tag in addition. There is no warm-up, as
    // it would wait for packets that never come back.
    for (size, code) in [("1519", 2), ("1518", 1), ("imix", 1)] {
        let more = [
            "--size",
            size,
            "--seconds",
            "0.05",
            "--warm-up",
            "0",
            "--wait",
            "5",
            "--rate",
            "1k",
        ];
        let finished = run(&mut generate(&testbed, &more));
        assert_eq!(finished.code(), Some(code), "{size}: {finished:?}");
        let said = finished
            .stderr
            .contains("af_packet:gen0\": frames of 1515 bytes");
        assert_eq!(said, code == 2, "{size}: {finished:?}");
    }
}

#[test]
fn an_unresolved_gateway_ends_the_generator_with_exit_code_3() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let testbed = router(["10.81.0.254/24", "10.82.0.254/24"]);
    let mut command = generate(&testbed, &["--wait", "0.5", "--set", "gateway=10.81.0.77"]);
    let finished = run(command.args(["--set", "src_ip=10.81.0.1"]));
    assert_eq!(finished.code(), Some(3), "{finished:?}");
    let said = finished.stderr.lines().last().unwrap();
    assert!(
        said.contains("no ARP or ND reply from gateway 10.81.0.77"),
        "{finished:?}"
    );
    assert!(said.contains("af_packet:gen0"), "{finished:?}");
}
