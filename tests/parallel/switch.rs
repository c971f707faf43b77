//! A switch between four unmodified hosts, and a fifth port whose peer dies.

use crate::support::hosts::{Hosts, Transport, in_namespace, ip, ping, transfer};
use crate::support::program::Program;
use crate::support::taut;

#[test]
fn four_hosts_reach_each_other_and_receive_broadcasts() {
    let tools = [
        ("ping", "iputils-ping"),
        ("iperf3", "iperf3"),
        ("tshark", "tshark"),
    ];
    let Some(hosts) = Hosts::new(4, &tools) else {
        return;
    };
    let [first, second, third, fourth] = hosts.all.as_slice() else {
        unreachable!("four were asked for");
    };
    let socket = hosts.folder.path().join("fifth.sock");
    let ports = hosts.all.iter().zip(1..);
    let ports =
        ports.map(|(host, at)| format!("veth:eth0,netns={},address=10.8.0.{at}/24", host.0));
    let mut ports: Vec<_> = ports.collect();
    ports.push(format!("memif:{},role=server", socket.display()));
    let mut up = hosts.up(
        "switch.toml",
        &format!("wait = \"sleep(50us)\"\nports = {ports:?}\n[[function]]\nname = \"switch\"\n"),
    );
    for (from, to) in [(first, 4), (second, 3), (third, 1), (fourth, 2)] {
        ping(from, &format!("10.8.0.{to}"), 5, &["-i", "0.02"], 5);
    }
    let at = ("10.8.0.4", 5201);
    transfer(Transport::Tcp, (&fourth.0, 5201), &second.0, at);

    // Broadcasts reach the third host; packets between two others do not.
    let mut heard = in_namespace(&third.0, "tshark");
    heard.args([
        "-i",
        "eth0",
        "-l",
        "-n",
        "-f",
        "arp or icmp",
        "-T",
        "fields",
    ]);
    heard.args(["-e", "arp.opcode", "-e", "icmp.type"]);
    let mut heard = Program::start(&mut heard);
    heard.wait_for_stderr("Capturing on");
    heard.wait_until("a request for all", |stdout, _| {
        ip(&format!("-n {} neighbour flush dev eth0", first.0));
        ping(first, "10.8.0.2", 2, &["-i", "0.02"], 2);
        stdout.lines().any(|line| line.trim() == "1")
    });
    let heard = heard.interrupt();
    let echoes = heard.stdout.lines().filter(|line| line.starts_with('\t'));
    assert_eq!(echoes.count(), 0, "{heard:?}");

    let mut peer = taut(&["forward", "--port", "null:", "--port"]);
    peer.arg(format!("memif:{},role=client", socket.display()));
    let mut peer = Program::start(&mut peer);
    peer.wait_for_stderr("fifth.sock,role=client: up");
    let before = up.stdout().len();
    peer.kill();
    up.wait_until("a port of the switch without its peer", |stdout, _| {
        stdout[before..].contains("\"links_down\":{\"")
    });
    ping(first, "10.8.0.2", 5, &["-i", "0.02"], 5);
    let ended = up.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
}
