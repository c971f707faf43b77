//! Messages over transports. Probes arrive in time over the deadline transport, and through a chain that models a radio
//! link. A peer that dies, a wrong key and an impossible medium are reported. A control loop uses the transport as
//! well, also in virtual time.

use crate::support::hosts::{Hosts, in_namespace, ping};
use crate::support::program::{Program, run};
use crate::support::{scratch, taut};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// Starts a probe server with `options` and returns the program with its address.
fn server(options: &[&str]) -> (Program, String) {
    let mut command = taut(&["probe", "server", "--bind", "127.0.0.1:0", "--json"]);
    let mut server = Program::start(command.args(options));
    server.wait_for_stdout("started");
    let started: Value = serde_json::from_str(server.stdout().lines().next().unwrap()).unwrap();
    (server, started["address"].as_str().unwrap().to_string())
}

/// Options with a target delay that even a busy machine meets.
const PATIENT: [&str; 4] = ["--transport", "deadline", "--target", "3s"];

#[test]
fn probes_succeed_over_each_transport_and_deadlines_are_reported() {
    for transport in ["fec", "tcp", "deadline"] {
        let options = match transport {
            "deadline" => PATIENT.to_vec(),
            other => vec!["--transport", other],
        };
        let (server, address) = server(&options);
        let mut client = taut(&[
            "probe",
            "client",
            &address,
            "--count",
            "40",
            "--repetitions",
            "2",
        ]);
        client.args(["--interval", "1ms", "--patience", "20s", "--json"]);
        let found = run(client.args(&options)).success().last_json();
        assert_eq!(
            (&found["transport"], &found["received"]),
            (&transport.into(), &80.into()),
            "{found}"
        );
        let connection = &found["connection"];
        assert_eq!(connection.is_null(), transport != "deadline", "{found}");
        if transport == "deadline" {
            assert_eq!(
                connection["sent"]["messages"], connection["received"]["in_time"],
                "{found}"
            );
            assert_eq!(connection["malformed"], 0);
        }
        let ended = server.interrupt();
        assert_eq!(ended.code(), Some(0), "{ended:?}");
        assert!(
            ended.last_json()["probes"]["answered"].as_u64().unwrap() >= 80,
            "{ended:?}"
        );
    }
}

#[test]
fn a_server_replies_to_the_longest_messages_its_settings_allow() {
    let options = [&PATIENT[..], &["--redundancy", "off"]].concat();
    let (_server, address) = server(&options);
    let mut client = taut(&["probe", "client", &address, "--json", "--size", "1400"]);
    client.args(["--count", "5", "--repetitions", "1", "--patience", "20s"]);
    let found = run(client.args(&options)).success().last_json();
    assert_eq!(found["received"], 5, "{found}");
}

#[test]
fn only_clients_with_the_right_key_get_replies() {
    let folder = scratch();
    let keys = ["right", "wrong"].map(|name| {
        let file = folder.path().join(name);
        let digit = &name[..1].replace('r', "a").replace('w', "b");
        fs::write(&file, digit.repeat(64)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        file.display().to_string()
    });
    let with = |key: &str| {
        [&PATIENT[..], &["--key-file", key]]
            .concat()
            .iter()
            .map(|it| (*it).to_string())
            .collect::<Vec<_>>()
    };
    let right = with(&keys[0]);
    let words: Vec<&str> = right.iter().map(String::as_str).collect();
    let (_server, address) = server(&words);
    let ask = |options: &[String], wait: &str| {
        let mut client = taut(&[
            "probe",
            "client",
            &address,
            "--count",
            "10",
            "--repetitions",
            "1",
            "--wait",
            wait,
            "--json",
        ]);
        run(client
            .args(["--interval", "1ms", "--patience", "20s"])
            .args(options))
    };
    let found = ask(&right, "20").success().last_json();
    assert_eq!(found["received"], 10, "{found}");
    for wrong in [with(&keys[1]), PATIENT.map(str::to_string).to_vec()] {
        let refused = ask(&wrong, "0.5");
        assert_eq!(refused.code(), Some(3), "{refused:?}");
        assert!(refused.stderr.contains("no reply"), "{refused:?}");
    }
    fs::set_permissions(&keys[0], fs::Permissions::from_mode(0o644)).unwrap();
    let refused = ask(&right, "1");
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("chmod 600"), "{refused:?}");
}

#[test]
fn a_probe_client_reports_losses_after_its_server_is_killed() {
    let (server, address) = server(&PATIENT);
    let mut client = taut(&[
        "probe",
        "client",
        &address,
        "--count",
        "2000",
        "--repetitions",
        "1",
        "--interval",
        "1ms",
    ]);
    let client = Program::start(client.args(["--patience", "300ms", "--json"]).args(PATIENT));
    // The client prints a line for its first repetition, so the server has replied by then.
    let mut client = client;
    client.wait_until("that it sends", |_, stderr| stderr.contains("repetition 1"));
    let _ = server.kill();
    let ended = client.finish();
    // If the server was killed before its first reply, the exit code is 1.
    let nothing = ended.stderr.contains("no reply arrived");
    assert_eq!(ended.code(), Some(i32::from(nothing)), "{ended:?}");
    let found = ended.last_json();
    assert!(found["lost"].as_u64().unwrap() > 0, "{found}");
}

#[test]
fn a_chain_with_a_simulated_radio_forwards_and_counts_packets() {
    let Some(hosts) = Hosts::new(2, &[("ping", "iputils-ping")]) else {
        return;
    };
    let radio = hosts.folder.path().join("radio.toml");
    fs::write(&radio, "queue = 32\n[wlan]\nimplementation_us = 120\n").unwrap();
    let [plant, room] = [0, 1].map(|at| &hosts.all[at]);
    let chain = format!(
        "ports = [\"veth:eth0,netns={},address=10.9.1.1/24\", \"veth:eth0,netns={},address=10.9.1.2/24\"]\n[[function]]\nname = \"medium\"\n\
         file = \"{}\"\n",
        plant.0,
        room.0,
        radio.display()
    );
    let up = hosts.up("air.toml", &chain);
    ping(plant, "10.9.1.2", 5, &["-i", "0.05"], 5);
    let taut_in = |host: &str, arguments: &[&str]| {
        let mut command = in_namespace(host, env!("CARGO_BIN_EXE_taut"));
        command.args(["probe"]).args(arguments).args(PATIENT);
        command
    };
    let mut server = Program::start(&mut taut_in(
        &room.0,
        &["server", "--bind", "10.9.1.2:9000"],
    ));
    server.wait_for_stdout("answering");
    let asked = [
        "client",
        "10.9.1.2:9000",
        "--count",
        "100",
        "--repetitions",
        "1",
        "--interval",
        "5ms",
        "--patience",
        "20s",
        "--json",
    ];
    let found = run(&mut taut_in(&plant.0, &asked)).success().last_json();
    assert_eq!(found["received"], 100, "{found}");
    // Neither direction is faster than a frame of 256 bytes on the air without backoff: 256 x 0.15 + 95 + 120 us.
    assert!(
        found["rtt_ns"]["min_ns"].as_f64().unwrap() > 500_000.0,
        "{found}"
    );
    let ended = up.interrupt().success();
    let line = ended.stdout.lines().last().unwrap();
    let event: Value = serde_json::from_str(line).unwrap();
    let counters = &event["status"]["segments"][0]["counters"];
    assert_eq!(counters["rx_packets"], counters["tx_packets"], "{event}");
}

#[test]
fn captures_at_both_ends_report_the_latency_of_each_stage() {
    let Some(hosts) = Hosts::new(2, &[("ethtool", "ethtool")]) else {
        return;
    };
    hosts.join_two();
    let [near, far] = [0, 1].map(|at| hosts.all[at].0.as_str());
    let taut_in = |host: &str, arguments: &[&str]| {
        let mut command = in_namespace(host, env!("CARGO_BIN_EXE_taut"));
        command.args(arguments);
        command
    };
    // With segmentation offload, packets that a busy machine sends together would be one frame in a capture.
    let cut = ["-K", "eth0", "tx-udp-segmentation", "off"];
    for host in [near, far] {
        run(in_namespace(host, "ethtool").args(cut)).success();
    }
    let mut captures = [near, far].map(|host| {
        let mut command = taut_in(
            host,
            &["capture", "eth0", "--filter", "udp", "--ring", "64M"],
        );
        command.args(["--stamps", "kernel", "--wait", "interrupt", "--write"]);
        Program::start(command.arg(hosts.folder.path().join(host)))
    });
    captures
        .iter_mut()
        .for_each(|it| it.wait_for_stdout("capturing"));
    let server = ["probe", "server", "--bind", "10.8.0.2:9000"];
    let mut server = Program::start(taut_in(far, &server).args(PATIENT));
    server.wait_for_stdout("answering");
    let client = [
        "probe",
        "client",
        "10.8.0.2:9000",
        "--count",
        "100",
        "--repetitions",
        "1",
    ];
    let mut client = taut_in(near, &client);
    client.args(["--interval", "2ms", "--patience", "20s", "--json"]);
    let sent = run(client.args(PATIENT)).success().last_json();
    assert_eq!(sent["received"], 100, "{sent}");
    for capture in captures {
        capture.interrupt().success();
    }
    let layers = |one: &str, other: &str| {
        let files = [one, other].map(|it| hosts.folder.path().join(it));
        run(taut(&["probe", "layers", "--json"]).args(files))
    };
    let found = layers(near, far).success().last_json();
    let there = &found["there"];
    assert!(there["messages"].as_u64().unwrap() >= 100, "{found}");
    assert!(there["stamped"].as_u64().unwrap() >= 50, "{found}");
    let mean = |stage: &str| there[stage]["avg_ns"].as_f64().unwrap();
    let stages = ["sender_ns", "out_ns", "medium_ns", "in_ns", "receiver_ns"];
    let (sum, took) = (stages.map(mean).iter().sum::<f64>(), mean("took_ns"));
    assert!((sum / took - 1.0).abs() < 0.05, "{sum} {took} {found}");
    // If the two captures were exchanged, packets would arrive before they leave.
    let refused = layers(far, near);
    assert_eq!(refused.code(), Some(1), "{refused:?}");
    assert!(refused.stderr.contains("contradict"), "{refused:?}");
    let refused = layers(near, "none.pcapng");
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("none.pcapng"), "{refused:?}");
}

#[test]
fn simulations_in_virtual_time_are_repeatable_without_late_messages() {
    let folder = scratch();
    let radio = folder.path().join("radio.toml");
    fs::write(
        &radio,
        "[loss]\ngood = 0.02\n[wlan]\nimplementation_us = 120\n",
    )
    .unwrap();
    let ask = |options: &[&str]| {
        let mut command = taut(&[
            "probe",
            "simulate",
            "--json",
            "--interval",
            "3.25ms",
            "--target",
            "10ms",
            "--medium",
        ]);
        run(command.arg(&radio).args(options)).success().last_json()
    };
    let found = ask(&[]);
    assert_eq!(found, ask(&[]));
    assert_eq!(
        (&found["delivered_late"], &found["delivered_out_of_order"]),
        (&0.into(), &0.into())
    );
    assert!(
        found["there"]["in_time_share"].as_f64().unwrap() > 0.97,
        "{found}"
    );
    assert_ne!(found["medium"], ask(&["--seed", "2"])["medium"]);
    // The average times of the stages sum up to the total, except for messages recovered by repairs.
    let of = |found: &Value, stage: &str| {
        let stage = &found["there"]["stages"][stage]["avg_ns"];
        stage.as_f64().unwrap()
    };
    let stages = ["sender_ns", "access_ns", "air_ns", "receiver_ns"];
    let sum: f64 = stages.iter().map(|it| of(&found, it)).sum();
    let took = found["there"]["took_ns"]["avg_ns"].as_f64().unwrap();
    assert!((sum / took - 1.0).abs() < 0.05, "{sum} {took} {found}");
    // Only the client sends, for the configured time.
    let one_way = ask(&["--transport", "udp", "--one-way"]);
    assert_eq!(one_way["back"]["sent"], 0, "{one_way}");
    let pps = one_way["there"]["in_time_pps"].as_f64().unwrap();
    assert!((290.0..310.0).contains(&pps), "{one_way}");
    let datagrams = ask(&["--transport", "udp"]);
    assert!(datagrams["connection"].is_null(), "{datagrams}");
    // The text output has the same values.
    let words = run(taut(&["probe", "simulate", "--medium"]).arg(&radio))
        .success()
        .stdout;
    assert!(
        words.contains("in time;") && words.contains("of the time"),
        "{words}"
    );
}

#[test]
fn unsupported_settings_are_refused_with_the_reason() {
    let folder = scratch();
    let radio = folder.path().join("radio.toml");
    fs::write(&radio, "[wlan]\nimplementation_us = -5\n").unwrap();
    let radio = radio.display().to_string();
    let wrong = [
        (vec!["--medium", &radio], "implementation_us = -5"),
        (vec!["--medium", "nowhere.toml"], "nowhere.toml"),
        (vec!["--transport", "tcp"], "expected deadline or udp"),
        (vec!["--transport", "fec"], "expected deadline or udp"),
        (vec!["--answers", "--one-way"], "--one-way"),
        (
            vec!["--transport", "sctp"],
            "expected udp, fec, tcp or deadline",
        ),
        (vec!["--target", "1us"], "must be 10us to 4s"),
        (vec!["--redundancy", "7"], "expected off, auto"),
    ];
    for (options, text) in wrong {
        let refused = run(taut(&["probe", "simulate"]).args(&options));
        assert_eq!(refused.code(), Some(2), "{options:?} {refused:?}");
        assert!(refused.stderr.contains(text), "{options:?} {refused:?}");
        assert!(!refused.stderr.contains("panicked"), "{refused:?}");
    }
    let refused = run(&mut taut(&[
        "probe",
        "client",
        "127.0.0.1:9",
        "--target",
        "5ms",
    ]));
    assert!(
        refused.stderr.contains("needs --transport deadline"),
        "{refused:?}"
    );
    let refused = run(&mut taut(&[
        "control",
        "run",
        "--virtual",
        "--transport",
        "deadline",
    ]));
    assert!(refused.stderr.contains("needs a channel"), "{refused:?}");
    fs::write(&radio, "[wlan]\n").unwrap();
    let over = format!("medium:{radio}");
    for (options, text) in [
        (["--transport", "tcp", &over], "expected deadline or udp"),
        (["--target", "5ms", &over], "needs --transport deadline"),
        (
            ["--transport", "udp", "chain:x.toml"],
            "--over chain:x.toml: unsupported with --virtual; expected medium:FILE",
        ),
    ] {
        let [name, value, over] = options;
        let mut command = taut(&["control", "run", "--virtual", "--over", over]);
        let refused = run(command.args([name, value]));
        assert_eq!(refused.code(), Some(2), "{options:?} {refused:?}");
        assert!(refused.stderr.contains(text), "{options:?} {refused:?}");
    }
    let client = taut(&["probe", "client", "127.0.0.1:9"]);
    for (options, text) in [
        (["--redundancy", "auto"], "repairs for each message"),
        (["--redundancy", "0.01"], "one for every 16 messages"),
        (["--size", "1459"], "at most 1458"),
    ] {
        let mut command = std::process::Command::new(client.get_program());
        command.args(client.get_args()).args(["--transport", "fec"]);
        let refused = run(command.args(options));
        assert_eq!(refused.code(), Some(2), "{options:?} {refused:?}");
        assert!(refused.stderr.contains(text), "{options:?} {refused:?}");
    }
}

#[test]
fn a_robot_in_virtual_time_tolerates_a_lossy_radio() {
    let folder = scratch();
    let radio = folder.path().join("radio.toml");
    let ask = |medium: &str, options: &[&str]| {
        fs::write(&radio, medium).unwrap();
        let mut command = taut(&["control", "run", "--virtual", "--json", "--over"]);
        command.arg(format!("medium:{}", radio.display()));
        run(command.args(["--periods", "400"]).args(options)).last_json()
    };
    let deadline = ["--transport", "deadline", "--target", "10ms"];
    for options in [&deadline[..], &["--transport", "udp"]] {
        let found = ask("[wlan]\n", options);
        assert_eq!(found["kpis"]["rounds"], 400, "{found}");
        assert_eq!(found["kpis"]["lost"], 0, "{found}");
        assert_eq!(found, {
            let mut again = ask("[wlan]\n", options);
            again["started"] = found["started"].clone();
            again
        });
    }
    // A tenth of the packets is lost in each direction. Some rounds fail over datagrams, hardly any if there is time
    // for retransmission.
    let lossy = "[loss]\ngood = 0.1\n[wlan]\nattempts = 1\n";
    let lost = |options: &[&str]| ask(lossy, options)["kpis"]["lost"].as_u64().unwrap();
    let (ours, datagrams) = (lost(&deadline), lost(&["--transport", "udp"]));
    assert!(datagrams > 40 && ours * 3 < datagrams, "{ours} {datagrams}");
    // Every packet is lost.
    let none = ask("[loss]\ngood = 1.0\n[wlan]\n", &deadline);
    assert_eq!(none["kpis"]["rounds"], 0, "{none}");
}

#[test]
fn a_control_loop_works_over_tcp_and_the_deadline_transport() {
    for transport in ["tcp", "deadline"] {
        let mut command = taut(&[
            "control",
            "run",
            "--plant",
            "conveyor",
            "--periods",
            "30",
            "--json",
        ]);
        let finished = run(command.args(["--transport", transport]));
        // Other processes may delay commands; the loop must work nevertheless.
        let found = finished.last_json();
        assert!(
            found["kpis"]["rounds"].as_u64().unwrap() > 0,
            "{transport}: {finished:?}"
        );
        assert_eq!(found["settings"]["transport"], transport, "{found}");
    }
}
