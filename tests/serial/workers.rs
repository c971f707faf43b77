//! Several workers of one chain, each of which processes a part of every port's traffic.

use crate::support::hosts::{FAR, Hosts, Transport, in_namespace, ip, ping, transfer, two_hosts};
use crate::support::program::{Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{RESTING, Sockets, alone, alone_and_root, scratch, taut};
use serde_json::Value;
use std::fs;
use std::process::Command;
use taut_host::{Testbed, allowed_cpus};

const TOOLS: [(&str, &str); 2] = [("ping", "iputils-ping"), ("iperf3", "iperf3")];

/// Reports whether there is a core for each of two workers.
fn has_two_cores() -> bool {
    let has = allowed_cpus().len() > 1;
    if !has {
        println!("skipped: needs two cores");
    }
    has
}

/// Returns the value of a counter for each worker.
fn of_each(event: &Value, counter: &str) -> Vec<u64> {
    let workers = event["workers"].as_array().unwrap();
    let count = |it: &Value| it[counter].as_u64().unwrap();
    workers.iter().map(count).collect()
}

fn both_links_up(forward: &mut Program) {
    forward.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() == 2
    });
}

/// Returns the MAC address of an interface in a namespace.
fn mac_of(namespace: &str, interface: &str) -> String {
    let path = format!("/sys/class/net/{interface}/address");
    let read = run(in_namespace(namespace, "cat").arg(path)).success();
    read.stdout.trim().to_string()
}

#[test]
fn nat_workers_hand_off_packets_to_the_owner_of_flows() {
    let _turn = alone();
    let Some(hosts) = Hosts::new(2, &TOOLS) else {
        return;
    };
    if !has_two_cores() {
        return;
    }
    let [inside, outside] = [0, 1].map(|at| &hosts.all[at]);
    let up = hosts.up(
        "nat.toml",
        &format!(
            "workers = 2\nwait = \"sleep(50us)\"\nports = [\"veth:eth0,netns={},address=10.9.1.1/24\", \
             \"veth:eth0,netns={},address=203.0.113.2/24\"]\n[[function]]\nname = \"nat\"\noutside = [1]\n\
             address = \"203.0.113.1\"\n",
            inside.0, outside.0
        ),
    );
    // The function `nat` does not reply to ARP, so each host has the MAC address of the other host.
    let (near, far) = (mac_of(&inside.0, "eth0"), mac_of(&outside.0, "eth0"));
    ip(&format!(
        "-n {} route add 203.0.113.0/24 dev eth0",
        inside.0
    ));
    ip(&format!(
        "-n {} neigh add 203.0.113.2 lladdr {far} dev eth0",
        inside.0
    ));
    ip(&format!(
        "-n {} neigh add 203.0.113.1 lladdr {near} dev eth0",
        outside.0
    ));
    for host in 2..=8 {
        ip(&format!(
            "-n {} address add 10.9.1.{host}/24 dev eth0",
            inside.0
        ));
        let from = format!("10.9.1.{host}");
        ping(inside, "203.0.113.2", 5, &["-i", "0.02", "-I", &from], 5);
    }
    for port in 5201..5205 {
        transfer(
            Transport::Tcp,
            (&outside.0, port),
            &inside.0,
            ("203.0.113.2", port),
        );
    }
    // All workers get another list of functions, and keep their state.
    let file = hosts.chain_file("nat.toml");
    let text = fs::read_to_string(&file).unwrap();
    let more = "[[function]]\nname = \"filter\"\ndefault = \"accept\"\nrules = []\n";
    fs::write(&file, text + more).unwrap();
    run(taut(&["chain", "update"]).arg(&file)).success();
    for host in 2..=8 {
        let from = format!("10.9.1.{host}");
        ping(inside, "203.0.113.2", 3, &["-i", "0.02", "-I", &from], 3);
    }
    let ended = up.interrupt().success();
    let event: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    let counters = &event["status"]["segments"][0]["counters"];
    let counted = |name: &str| counters[name].as_u64().unwrap();
    assert!(counted("handed_over") > 20, "{event}");
    for none in ["dropped_handoff", "dropped_by_function"] {
        assert_eq!(counted(none), 0, "{none}: {event}");
    }
    assert_eq!(counted("rx_packets"), counted("tx_packets"), "{event}");
}

#[test]
fn a_worker_joins_under_traffic_and_no_packet_is_lost() {
    let _turn = alone();
    let Some(hosts) = Hosts::new(2, &TOOLS) else {
        return;
    };
    if !has_two_cores() {
        return;
    }
    let [near, far] = [0, 1].map(|at| &hosts.all[at]);
    let cores: Vec<usize> = allowed_cpus().into_iter().take(2).collect();
    let chain = |workers: usize| {
        format!(
            "workers = {workers}\ncores = {cores:?}\nwait = \"sleep(50us)\"\n\
             ports = [\"veth:eth0,netns={},address=10.9.1.1/24\", \"veth:eth0,netns={},address=10.9.1.2/24\"]\n",
            near.0, far.0
        )
    };
    let up = hosts.up("joined.toml", &chain(1));
    let update = |workers: usize| {
        let file = hosts.chain_file("joined.toml");
        fs::write(&file, chain(workers)).unwrap();
        run(taut(&["chain", "update"]).arg(&file))
    };
    let mut command = in_namespace(&near.0, "ping");
    command.args(["-i", "0.002", "-c", "1000", "-O", "10.9.1.2"]);
    let mut pinging = Program::start(&mut command);
    pinging.wait_for_stdout("icmp_seq=100 ");
    update(2).success();
    let pinged = pinging.finish().success();
    assert!(
        pinged
            .stdout
            .contains("1000 packets transmitted, 1000 received"),
        "{pinged:?}"
    );
    for port in 5201..5205 {
        transfer(Transport::Udp, (&far.0, port), &near.0, ("10.9.1.2", port));
    }
    let too_many = update(3);
    assert_eq!(too_many.code(), Some(2), "{too_many:?}");
    assert!(
        too_many.stderr.contains("cores: 2 for 3 workers"),
        "{too_many:?}"
    );
    let ended = up.interrupt().success();
    let event: Value = serde_json::from_str(ended.stdout.lines().last().unwrap()).unwrap();
    let counters = &event["status"]["segments"][0]["counters"];
    let counted = |name: &str| counters[name].as_u64().unwrap();
    assert!(counted("rx_packets") >= 2000, "{event}");
    assert_eq!(counted("rx_packets"), counted("tx_packets"), "{event}");
}

#[test]
fn the_kernel_spreads_flows_over_sockets_and_queues() {
    let _turn = alone();
    if Hosts::new(0, &TOOLS).is_none() || !has_two_cores() {
        return;
    }
    let testbed = Testbed::builder().build().unwrap();
    let far = two_hosts(&testbed, testbed.generator_namespace(), "gen1");
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.args(["forward", "--json", "--workers", "2"]);
    command.args(RESTING);
    command.args(["--port", "af_packet:dut0", "--port", "af_packet:dut1"]);
    let mut forward = Program::start(&mut command);
    both_links_up(&mut forward);
    let near = testbed.generator_namespace();
    for port in 5201..5213 {
        transfer(Transport::Tcp, (&far.0, port), near, (FAR, port));
    }
    let summary = forward.interrupt().success().last_json();
    // Both directions of a flow use one worker, and all flows use the same one by chance in one of two thousand runs.
    assert!(
        of_each(&summary, "rx_packets").iter().all(|rx| *rx > 100),
        "{summary}"
    );
    let counted = |name: &str| summary["counters"][name].as_u64().unwrap();
    assert_eq!(counted("rx_packets"), counted("tx_packets"), "{summary}");
}

#[test]
fn workers_of_a_gateway_have_the_same_bearers() {
    gateway_of_two_workers(false);
}

#[test]
fn a_worker_that_joins_a_gateway_gets_all_bearers() {
    gateway_of_two_workers(true);
}

/// Runs a gateway whose second worker starts with the first or joins it later.
fn gateway_of_two_workers(joins: bool) {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    if !has_two_cores() {
        return;
    }
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let line = |n: u32| format!("10.45.0.{n},encapsulate,{n:#x},198.18.0.9\n");
    fs::write(path("bearers.csv"), (1..=49).map(line).collect::<String>()).unwrap();
    let cores: Vec<usize> = allowed_cpus().into_iter().take(2).collect();
    let workers = if joins { 1 } else { 2 };
    let chain = format!(
        "workers = {workers}\ncores = {cores:?}\nwait = \"sleep(50us)\"\nports = {{ core = \"af_packet:dut0\", radio = \"af_packet:dut1\" }}\n\
         [[function]]\nname = \"gtpu\"\naddress = \"192.0.2.1\"\nload = \"{}\"\ncontrol = \"{}\"\n\
         tunnels = [\"radio\"]\n",
        path("bearers.csv"),
        path("control.sock")
    );
    fs::write(path("gateway.toml"), chain).unwrap();
    let testbed = Testbed::builder().build().unwrap();
    let mut command = testbed.command_in_device(env!("CARGO_BIN_EXE_taut"));
    command.args(["forward", "--json", "--control", &path("gateway.toml")]);
    let mut forward = Program::start(&mut command);
    forward.wait_for_stdout("started");
    let bearer = |words: &[&str]| {
        let control = path("control.sock");
        run(taut(&["bearer", "--control", &control]).args(words)).success()
    };
    bearer(&["add", line(50).trim()]);
    if joins {
        forward.say("{\"add_worker\": true}");
        forward.wait_for_stdout("joined");
    }
    let mut command = in_namespace(testbed.generator_namespace(), env!("CARGO_BIN_EXE_taut"));
    command.args([
        "generate",
        "--port",
        "af_packet:gen0",
        "--port",
        "af_packet:gen1",
        "--json",
    ]);
    command.args(["--rate", "5k", "--seconds", "0.5", "--size", "128"]);
    for set in ["dst_ip=10.45.0.1-10.45.0.50", "src_port=1000-2000"] {
        command.args(["--set", set]);
    }
    let generated = run(&mut command).first_stream();
    let sent = generated["tally"]["sent"].as_u64().unwrap();
    assert!(sent > 1000, "{generated}");
    bearer(&["remove", "10.45.0.50"]);
    assert!(bearer(&["status"]).stdout.contains("49 bearers"));
    let summary = forward.interrupt().success().last_json();
    assert!(
        of_each(&summary, "rx_packets").iter().all(|rx| *rx > 100),
        "{summary}"
    );
    // The received packets include those of the warm-up.
    let received = summary["counters"]["rx_packets"].as_u64().unwrap();
    assert!(received >= sent, "{summary}");
    assert_eq!(summary["outcomes"]["encapsulated"], received, "{summary}");
    assert_eq!(summary["counters"]["tx_packets"], received, "{summary}");
}

#[test]
fn a_tap_interface_has_a_queue_for_each_worker() {
    let _turn = alone();
    let Some(hosts) = Hosts::new(2, &TOOLS) else {
        return;
    };
    if !has_two_cores() {
        return;
    }
    let taps = [0, 1].map(|end| format!("tap{}-{end}", std::process::id()));
    let mut command = taut(&["forward", "--json", "--workers", "2", "--wait", "interrupt"]);
    for tap in &taps {
        command.args(["--port", &format!("tap:{tap}")]);
    }
    let mut forward = Program::start(&mut command);
    forward.wait_for_stdout("started");
    for ((tap, host), number) in taps.iter().zip(&hosts.all).zip(1..) {
        ip(&format!("link set {tap} netns {}", host.0));
        ip(&format!(
            "-n {} address add 10.9.2.{number}/24 dev {tap}",
            host.0
        ));
        ip(&format!("-n {} link set {tap} up", host.0));
    }
    ping(&hosts.all[0], "10.9.2.2", 10, &["-i", "0.02"], 10);
    for port in 5201..5207 {
        transfer(
            Transport::Tcp,
            (&hosts.all[1].0, port),
            &hosts.all[0].0,
            ("10.9.2.2", port),
        );
    }
    let summary = forward.interrupt().success().last_json();
    assert!(
        of_each(&summary, "rx_packets").iter().all(|rx| *rx > 0),
        "{summary}"
    );
    let gone = run(Command::new("ip").args(["-n", &hosts.all[0].0, "link", "show", &taps[0]]));
    assert_ne!(gone.code(), Some(0), "{gone:?}");
}

#[test]
fn each_worker_has_separate_rings_of_a_memif_port() {
    let _turn = alone();
    if !has_two_cores() {
        return;
    }
    for role in ["server", "client"] {
        let sockets = Sockets::new();
        let [path, _] = sockets.paths();
        let port = |role: &str| format!("memif:{},role={role}", path.display());
        let (here, there) = (port(role), port(crate::support::other(role)));
        let mut sink = taut(&["forward", "--json", "--workers", "2"]);
        let mut sink = Program::start(
            sink.args(RESTING)
                .args(["--port", &here, "--port", "null:"]),
        );
        sink.wait_for_stdout("started");
        undisturbed(|| {
            let mut source = taut(&["forward", "--json", "--workers", "2", "--seconds", "0.4"]);
            source.args(["--port", "null:source=8", "--port", &there]);
            let sent = run(&mut source).success().last_json();
            if of_each(&sent, "tx_packets").contains(&0) {
                return Err(sent.to_string());
            }
            Ok(())
        });
        let summary = sink.interrupt().success().last_json();
        assert!(
            of_each(&summary, "rx_packets").iter().all(|rx| *rx > 0),
            "{summary}"
        );
        let counted = |name: &str| summary["counters"][name].as_u64().unwrap();
        assert_eq!(counted("rx_packets"), counted("tx_packets"), "{summary}");
        let ports = &summary["ports"];
        assert_eq!(ports[0]["port"], here.as_str());
        assert_eq!(ports[0]["rx_packets"], counted("rx_packets"));
        assert_eq!(ports[1]["tx_packets"], counted("tx_packets"));
    }
}

#[test]
fn only_the_first_workers_receive_from_peers_with_fewer_rings() {
    let _turn = alone();
    if !has_two_cores() {
        return;
    }
    let sockets = Sockets::new();
    let [path, _] = sockets.paths();
    let here = format!("memif:{}", path.display());
    let there = format!("memif:{},role=client", path.display());
    let mut sink = taut(&["forward", "--json", "--workers", "2"]);
    let mut sink = Program::start(
        sink.args(RESTING)
            .args(["--port", &here, "--port", "null:"]),
    );
    sink.wait_for_stdout("started");
    let mut source = taut(&["forward", "--port", "null:source=8", "--port", &there]);
    let mut source = Program::start(source.args(["--wait", "yield"]));
    sink.wait_for_stderr("give it as many queues");
    source.wait_for_stdout("1 s");
    source.interrupt().success();
    let summary = sink.interrupt().success().last_json();
    let rx = of_each(&summary, "rx_packets");
    assert!(rx[0] > 0 && rx[1] == 0, "{summary}");
}

#[test]
fn unsupported_settings_for_several_workers_cause_a_one_line_error() {
    for (arguments, part) in [
        (
            &["--workers", "0"] as &[&str],
            "workers = 0: expected 1 to 64",
        ),
        (&["--workers", "65"], "expected 1 to 64"),
        (&["--workers", "64"], "this process may use"),
        (&["--cores", "0,0"], "cores: 0 is listed twice"),
        (&["--cores", "0,x"], "invalid value"),
        (&["--cores", "0,9999"], "9999"),
        (
            &["--workers", "2", "--core", "0"],
            "2 workers need one each",
        ),
        (
            &["--workers", "3", "--cores", "0,1"],
            "cores: 2 for 3 workers",
        ),
        (
            &["--workers", "2", "--port", "pcap:x.pcap", "--port", "null:"],
            "2 workers cannot share it",
        ),
        (
            &["--workers", "2", "--port", "af_xdp:lo", "--port", "null:"],
            "as many queues",
        ),
        (
            &[
                "--workers",
                "9",
                "--port",
                "memif:/nowhere/x",
                "--port",
                "null:",
            ],
            "",
        ),
        (
            &["--workers", "2", "--function", "switch"],
            "\"switch\": one worker must process all",
        ),
        (
            &[
                "--workers",
                "2",
                "--function",
                "nat(outside=[1], address=192.0.2.1, ports=9000-9002)",
            ],
            "2 workers need 4 or more",
        ),
        (
            &[
                "--workers",
                "2",
                "--function",
                "nat(outside=[1], address=192.0.2.1)",
                "--function",
                "nat(outside=[1], address=192.0.2.1)",
            ],
            "both select the worker",
        ),
        (&["--workers", "2", "--in-kernel"], "neither flush policy"),
        (
            &["--workers", "2", "--interruptions", "x"],
            "with one worker only",
        ),
    ] {
        let mut command = taut(&["forward", "--seconds", "1"]);
        command.args(arguments);
        if !arguments.contains(&"--port") {
            command.args(["--port", "null:", "--port", "null:"]);
        }
        let finished = run(&mut command);
        assert_eq!(finished.code(), Some(2), "{arguments:?}: {finished:?}");
        assert!(
            finished.stderr.contains(part),
            "{arguments:?}: {finished:?}"
        );
        if !part.contains("invalid") {
            assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
        }
    }
}
