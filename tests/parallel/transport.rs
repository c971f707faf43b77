//! Messages over transports: probes in time over the deadline transport, through a chain that is a radio, with a peer that dies, a wrong
//! key, a medium that cannot be; a control loop over it; virtual time.

use crate::support::hosts::{Hosts, in_namespace, ping};
use crate::support::program::{Program, run};
use crate::support::{scratch, taut};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// A server, and where it listens.
fn server(options: &[&str]) -> (Program, String) {
    let mut command = taut(&["probe", "server", "--bind", "127.0.0.1:0", "--json"]);
    let mut server = Program::start(command.args(options));
    server.wait_for_stdout("started");
    let started: Value = serde_json::from_str(server.stdout().lines().next().unwrap()).unwrap();
    (server, started["address"].as_str().unwrap().to_string())
}

/// Options of a target that even a busy machine meets.
const PATIENT: [&str; 4] = ["--transport", "deadline", "--target", "3s"];

#[test]
fn probes_go_over_each_transport_and_a_deadline_says_what_it_did() {
    for transport in ["tcp", "deadline"] {
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
        assert_eq!(connection.is_null(), transport == "tcp", "{found}");
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
fn only_who_has_the_key_is_answered() {
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
        assert!(refused.stderr.contains("no answer"), "{refused:?}");
    }
    fs::set_permissions(&keys[0], fs::Permissions::from_mode(0o644)).unwrap();
    let refused = ask(&right, "1");
    assert_eq!(refused.code(), Some(2), "{refused:?}");
    assert!(refused.stderr.contains("chmod 600"), "{refused:?}");
}

#[test]
fn a_server_that_dies_leaves_losses_and_no_hang() {
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
    // It has been answered: it sends.
    let mut client = client;
    client.wait_until("that it sends", |_, stderr| stderr.contains("repetition 1"));
    let _ = server.kill();
    let ended = client.finish();
    assert_eq!(ended.code(), Some(0), "{ended:?}");
    let found = ended.last_json();
    assert!(found["lost"].as_u64().unwrap() > 0, "{found}");
}

#[test]
fn a_chain_that_is_a_radio_carries_programs_and_counts_what_it_did() {
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
    // Neither way is shorter than a frame of 256 bytes on the air without any backoff: 256 x 0.15 + 95 + 120 us.
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
fn virtual_time_gives_the_same_twice_and_no_message_late() {
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
    let datagrams = ask(&["--transport", "udp"]);
    assert!(datagrams["connection"].is_null(), "{datagrams}");
    // In words as well.
    let words = run(taut(&["probe", "simulate", "--medium"]).arg(&radio))
        .success()
        .stdout;
    assert!(
        words.contains("in time;") && words.contains("of the time busy"),
        "{words}"
    );
}

#[test]
fn what_cannot_be_is_one_line() {
    let folder = scratch();
    let radio = folder.path().join("radio.toml");
    fs::write(&radio, "[wlan]\nimplementation_us = -5\n").unwrap();
    let radio = radio.display().to_string();
    let wrong = [
        (vec!["--medium", &radio], "implementation_us = -5"),
        (vec!["--medium", "nowhere.toml"], "nowhere.toml"),
        (vec!["--transport", "tcp"], "want deadline or udp"),
        (vec!["--transport", "sctp"], "want udp, tcp or deadline"),
        (vec!["--target", "1us"], "a target delay is 10us to 4s"),
        (vec!["--redundancy", "7"], "want off, auto"),
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
    assert!(refused.stderr.contains("needs sockets"), "{refused:?}");
}

#[test]
fn a_control_loop_closes_over_tcp_and_over_the_deadline_transport() {
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
        // Whoever shares the machine may make commands late; the loop closes all the same.
        let found = finished.last_json();
        assert!(
            found["kpis"]["rounds"].as_u64().unwrap() > 0,
            "{transport}: {finished:?}"
        );
        assert_eq!(found["settings"]["transport"], transport, "{found}");
    }
}
