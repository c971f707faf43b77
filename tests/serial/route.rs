//! Routers between hosts that know nothing of them.

use crate::support::hosts::{Hosts, Namespace, Transport, in_namespace, ip, ping, transfer};
use crate::support::program::{Finished, Program, run};
use std::fs;

/// The interface of a router, as a chain file has it.
fn interface(mac: u8, addresses: &str, more: &str) -> String {
    format!(
        "[[function.interface]]\nmac = \"02:00:00:00:00:{mac:02x}\"\naddresses = [{addresses}]\n{more}"
    )
}

/// The next hops that `traceroute` finds.
fn hops(host: &Namespace, protocol: &str, to: &str) -> Vec<String> {
    let mut command = in_namespace(&host.0, "traceroute");
    let traced = run(command.args([protocol, "-n", "-q", "1", "-w", "5", to])).success();
    let lines = traced.stdout.lines().skip(1);
    let hops = lines.map(|line| line.split_whitespace().nth(1).unwrap_or("-").to_string());
    hops.collect()
}

fn pinged(host: &Namespace, arguments: &[&str]) -> Finished {
    run(in_namespace(&host.0, "ping").args(arguments))
}

#[test]
fn three_routers_in_a_row_carry_what_hosts_say_and_tell_what_is_wrong() {
    let programs = [
        ("ping", "iputils-ping"),
        ("traceroute", "traceroute"),
        ("iperf3", "iperf3"),
    ];
    let Some(hosts) = Hosts::new(2, &programs) else {
        return;
    };
    let (a, b) = (&hosts.all[0], &hosts.all[1]);
    let path = |name: &str| hosts.folder.path().join(name).display().to_string();
    // host a - 10.8.1 - router 1 - 10.8.12 - router 2 - 10.8.23 - router 3 - 10.8.2 - host b
    let router = |number: u8,
                  ports: [String; 2],
                  interfaces: [String; 2],
                  routes: &str|
     -> Program {
        let file = path(&format!("routes-{number}"));
        fs::write(&file, routes).unwrap();
        let [left, right] = interfaces;
        hosts.up(
            &format!("router{number}.toml"),
            &format!(
                "wait = \"sleep(50us)\"\nports = {ports:?}\n[[function]]\nname = \"route\"\nroutes = \"{file}\"\n{left}{right}"
            ),
        )
    };
    let veth = |host: &Namespace, network: u8| {
        format!("veth:eth0,netns={},address=10.8.{network}.2/24", host.0)
    };
    let memif = |name: &str, role: &str| format!("memif:{},role={role}", path(name));
    let first = router(
        1,
        [veth(a, 1), memif("12.sock", "server")],
        [
            interface(0x11, "\"10.8.1.1/24\", \"fd00:1::1/64\"", ""),
            interface(0x12, "\"10.8.12.1/24\", \"fd00:12::1/64\"", ""),
        ],
        "default via 10.8.12.2\ndefault via fd00:12::2\nprohibit 10.66.0.0/16\n",
    );
    let second = router(
        2,
        [memif("12.sock", "client"), memif("23.sock", "server")],
        [
            interface(0x21, "\"10.8.12.2/24\", \"fd00:12::2/64\"", ""),
            interface(0x22, "\"10.8.23.2/24\", \"fd00:23::2/64\"", "mtu = 1300\n"),
        ],
        "10.8.1.0/24 via 10.8.12.1\n10.8.2.0/24 via 10.8.23.3\nfd00:1::/64 via fd00:12::1\nfd00:2::/64 via fd00:23::3\n",
    );
    let third = router(
        3,
        [memif("23.sock", "client"), veth(b, 2)],
        [
            interface(0x32, "\"10.8.23.3/24\", \"fd00:23::3/64\"", ""),
            interface(0x31, "\"10.8.2.1/24\", \"fd00:2::1/64\"", ""),
        ],
        "default via 10.8.23.2\ndefault via fd00:23::2\n",
    );
    for (host, network) in [(a, 1), (b, 2)] {
        ip(&format!(
            "-n {} route add default via 10.8.{network}.1",
            host.0
        ));
        ip(&format!(
            "-n {} address add fd00:{network}::2/64 dev eth0 nodad",
            host.0
        ));
        ip(&format!(
            "-n {} route add default via fd00:{network}::1",
            host.0
        ));
    }
    // The first ones wait for those who are asked; none is lost.
    ping(a, "10.8.2.2", 5, &["-i", "0.2"], 5);
    ping(a, "fd00:2::2", 5, &["-i", "0.2"], 5);
    ping(b, "10.8.1.2", 5, &["-i", "0.02"], 5);
    ping(a, "10.8.23.3", 3, &["-i", "0.02"], 3);
    assert_eq!(
        hops(a, "-4", "10.8.2.2"),
        ["10.8.1.1", "10.8.12.2", "10.8.23.3", "10.8.2.2"]
    );
    assert_eq!(
        hops(a, "-6", "fd00:2::2"),
        ["fd00:1::1", "fd00:12::2", "fd00:23::3", "fd00:2::2"]
    );
    // A link in between takes 1300 bytes. What may be cut arrives whole; of the rest the sender is told how much fits.
    ping(
        a,
        "10.8.2.2",
        3,
        &["-M", "dont", "-s", "1400", "-i", "0.05"],
        3,
    );
    let told = pinged(a, &["-c", "1", "-M", "do", "-s", "1400", "10.8.2.2"]);
    assert!(
        told.stdout.contains("Frag needed and DF set (mtu = 1300)"),
        "{told:?}"
    );
    let told = pinged(a, &["-6", "-c", "1", "-M", "do", "-s", "1400", "fd00:2::2"]);
    assert!(told.stdout.contains("Packet too big: mtu=1300"), "{told:?}");
    transfer(Transport::Tcp, (&b.0, 5201), &a.0, ("10.8.2.2", 5201));
    transfer(Transport::Udp, (&a.0, 5202), &b.0, ("fd00:1::2", 5202));
    for (to, line) in [
        ("10.66.0.1", "From 10.8.1.1 icmp_seq=1 Packet filtered"),
        // Router 2 knows no such network, and router 3 no such station.
        (
            "192.0.2.1",
            "From 10.8.12.2 icmp_seq=1 Destination Net Unreachable",
        ),
        (
            "10.8.2.77",
            "From 10.8.23.3 icmp_seq=1 Destination Host Unreachable",
        ),
    ] {
        let told = pinged(a, &["-c", "1", "-W", "10", to]);
        assert!(told.stdout.contains(line), "{to}: {told:?}");
    }
    for router in [first, second, third] {
        let ended = router.interrupt().success();
        let line = ended.stdout.lines().last().unwrap();
        let event: serde_json::Value = serde_json::from_str(line).unwrap();
        let counters = &event["status"]["segments"][0]["counters"];
        let counted = |name: &str| counters[name].as_u64().unwrap();
        // Every packet left, or is in a counter.
        let dropped: u64 = counters
            .as_object()
            .unwrap()
            .iter()
            .filter(|(name, _)| name.starts_with("dropped"))
            .map(|(_, count)| count.as_u64().unwrap_or(0))
            .sum();
        assert_eq!(
            counted("rx_packets") + counted("from_slow_path"),
            counted("tx_packets") + counted("punted") + dropped,
            "{event}"
        );
        assert!(counted("tx_packets") > 100, "{event}");
    }
}
