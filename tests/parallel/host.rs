//! A port with its own addresses, as its neighbours see it.

use crate::support::hosts::{Hosts, Transport, in_namespace, ip, ping, transfer};
use crate::support::program::run;
use crate::support::taut;
use std::fs;
use std::time::{Duration, Instant};

#[test]
fn a_port_replies_for_its_ipv4_and_ipv6_addresses() {
    let Some(hosts) = Hosts::new(1, &[("ping", "iputils-ping"), ("traceroute", "traceroute")])
    else {
        return;
    };
    let host = &hosts.all[0];
    let chain = |wait: &str| {
        format!(
            "wait = \"{wait}\"\nports = [\"veth:eth0,netns={},address=10.8.1.2/24\", \"null:\"]\n[[function]]\nname = \"host\"\n\
             mac = \"02:00:00:00:00:0a\"\naddresses = [\"10.8.1.1\", \"fd00:8::1\"]\n",
            host.0
        )
    };
    for wait in ["poll", "sleep(50us)"] {
        let up = hosts.up("host.toml", &chain(wait));
        ip(&format!(
            "-n {} address add fd00:8::2/64 dev eth0 nodad",
            host.0
        ));
        for (protocol, to) in [("-4", "10.8.1.1"), ("-6", "fd00:8::1")] {
            // Some echo requests are longer than a frame of minimum size, and a few follow a pause in which the slow
            // path sleeps.
            for (count, apart, bytes) in [(20, "0.01", "56"), (3, "0.2", "1400")] {
                let arguments = [protocol, "-i", apart, "-s", bytes];
                ping(host, to, count, &arguments, count);
            }
        }
        // This address belongs to no host.
        ping(host, "10.8.1.3", 1, &[], 0);
        // Nothing listens at this address: the host's kernel accepts the ICMP error and reports it to the socket.
        let mut command = in_namespace(&host.0, "bash");
        let asked = "exec 3<>/dev/udp/10.8.1.1/33434; for _ in {1..500}; do echo a >&3 || break; sleep 0.02; done";
        let finished = run(command.args(["-c", asked]));
        assert!(
            finished.stderr.contains("Connection refused"),
            "{finished:?}"
        );
        // traceroute uses such errors: the port is the first hop and the last one.
        for (protocol, to) in [("-4", "10.8.1.1"), ("-6", "fd00:8::1")] {
            let mut command = in_namespace(&host.0, "traceroute");
            let traced = run(command.args([protocol, "-n", "-q", "1", to])).success();
            let hops: Vec<_> = traced.stdout.lines().skip(1).collect();
            let first = hops.first().and_then(|hop| hop.split_whitespace().nth(1));
            assert_eq!((hops.len(), first), (1, Some(to)), "{traced:?}");
        }
        let mut command = in_namespace(&host.0, "ip");
        let finished = run(command.args(["neighbour", "show", "to", "10.8.1.1"]));
        assert!(
            finished.stdout.contains("02:00:00:00:00:0a"),
            "{finished:?}"
        );
        let ended = up.interrupt().success();
        // There are 46 echo requests, and at least one address resolution for either address.
        let line = ended.stdout.lines().last().unwrap();
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let counted = |name: &str| {
            let counters = &event["status"]["segments"][0]["counters"];
            counters[name].as_u64().unwrap()
        };
        assert!(counted("punted") >= 48, "{event}");
        assert_eq!(counted("punted"), counted("from_slow_path"), "{event}");
        let rx = counted("rx_packets");
        assert_eq!(counted("tx_packets"), rx, "{event}");
    }
}

#[test]
fn the_kernel_serves_the_ports_addresses_through_a_tap_interface() {
    let Some(hosts) = Hosts::new(2, &[("ping", "iputils-ping"), ("iperf3", "iperf3")]) else {
        return;
    };
    let [near, far] = [0, 1].map(|at| &hosts.all[at]);
    let tap = format!("tap{}", std::process::id());
    let up = hosts.up(
        "kernel.toml",
        &format!(
            "wait = \"sleep(50us)\"\nports = [\"veth:eth0,netns={},address=10.8.2.2/24\", \"null:\"]\n[[function]]\n\
             name = \"host\"\nmac = \"02:00:00:00:00:0a\"\naddresses = [\"10.8.2.1\"]\ntap = \"{tap}\"\n",
            near.0
        ),
    );
    // The tap interface moves to the namespace of the far host, so that the host's programs use it.
    ip(&format!("link set {tap} netns {}", far.0));
    ip(&format!("-n {} address add 10.8.2.1/24 dev {tap}", far.0));
    ip(&format!("-n {} link set {tap} up", far.0));
    for (host, to) in [(near, "10.8.2.1"), (far, "10.8.2.2")] {
        ping(host, to, 5, &["-i", "0.02"], 5);
    }
    transfer(Transport::Tcp, (&far.0, 5201), &near.0, ("10.8.2.1", 5201));
    // An update removes the function, and its interface disappears once the function has released its packets.
    let file = hosts.chain_file("kernel.toml");
    let text = fs::read_to_string(&file).unwrap();
    let (ports, _) = text.split_once("[[function]]").unwrap();
    fs::write(&file, ports).unwrap();
    run(taut(&["chain", "update"]).arg(&file)).success();
    let is_there = || {
        let finished = run(in_namespace(&far.0, "ip").args(["link", "show"]));
        finished.stdout.contains(&tap)
    };
    let begun = Instant::now();
    while is_there() {
        assert!(begun.elapsed() < Duration::from_secs(20), "{tap} stays");
        std::thread::sleep(Duration::from_millis(20));
    }
    up.interrupt().success();
}
