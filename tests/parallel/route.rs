//! Routers between unmodified hosts.

use crate::support::hosts::{
    Hosts, Namespace, Transport, hops, in_namespace, ip, mtr_hops, ping, pinged, transfer,
};
use crate::support::program::{Finished, Program, run};
use crate::support::undisturbed::undisturbed;
use crate::support::{scratch, taut};
use std::fs;
use std::time::{Duration, Instant};

/// Returns the table of one router interface in the format of a chain file.
fn interface(mac: u8, addresses: &str, more: &str) -> String {
    format!(
        "[[function.interface]]\nmac = \"02:00:00:00:00:{mac:02x}\"\naddresses = [{addresses}]\n{more}"
    )
}

#[test]
fn three_routers_forward_traffic_between_hosts_and_send_icmp_errors() {
    let programs = [
        ("ping", "iputils-ping"),
        ("traceroute", "traceroute"),
        ("mtr", "mtr-tiny"),
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
    // The kernel of host b must not limit its ICMP errors, because it must answer every traceroute probe.
    for setting in ["net.ipv4.icmp_ratelimit=0", "net.ipv6.icmp.ratelimit=0"] {
        run(in_namespace(&b.0, "sysctl").args(["-qw", setting])).success();
    }
    // The first packets wait for ARP; none is lost.
    ping(a, "10.8.2.2", 5, &["-i", "0.2"], 5);
    ping(a, "fd00:2::2", 5, &["-i", "0.2"], 5);
    ping(b, "10.8.1.2", 5, &["-i", "0.02"], 5);
    ping(a, "10.8.23.3", 3, &["-i", "0.02"], 3);
    let way_of_4 = ["10.8.1.1", "10.8.12.2", "10.8.23.3", "10.8.2.2"];
    let way_of_6 = ["fd00:1::1", "fd00:12::2", "fd00:23::3", "fd00:2::2"];
    let ways = [("-4", "10.8.2.2", way_of_4), ("-6", "fd00:2::2", way_of_6)];
    for (protocol, to, way) in ways {
        assert_eq!(hops(a, protocol, to), way);
    }
    // The probes are echo requests, datagrams and connections. They run at the same time, as mtr waits for late
    // replies.
    std::thread::scope(|scope| {
        let mut traced = Vec::new();
        for (protocol, to, way) in ways {
            for probes in [None, Some("--udp"), Some("--tcp")] {
                let options: Vec<_> = [protocol].into_iter().chain(probes).collect();
                traced.push(scope.spawn(move || {
                    undisturbed(|| match mtr_hops(a, &options, to) {
                        found if found == way => Ok(()),
                        found => Err(format!("{options:?}: {found:?}")),
                    });
                }));
            }
        }
        for found in traced {
            found.join().unwrap();
        }
    });
    // A link on the path has an MTU of 1300 bytes. Packets that may be fragmented arrive complete; for other packets,
    // the sender gets an error with the MTU.
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
        // Router 2 has no route to this network, and router 3 has no such neighbour.
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
        // Every packet was sent, or counted as dropped.
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

#[test]
fn routes_are_listed_shown_and_changed_while_packets_pass() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (chain, socket) = (path("router.toml"), path("control.sock"));
    let (left, right) = (
        interface(0xa, "\"10.0.0.1/24\"", ""),
        interface(0xb, "\"10.0.1.1/24\", \"fd00::1/64\"", "name = \"wan\"\n"),
    );
    fs::write(
        &chain,
        format!(
            "ports = [\"null:source=32\", \"null:\"]\n[[function]]\nname = \"route\"\ncontrol = \"{socket}\"\n{left}{right}"
        ),
    )
    .unwrap();
    let route = |words: &[&str]| run(taut(&["route", "--control", &socket]).args(words));
    let early = route(&["status"]);
    assert_eq!(early.code(), Some(3));
    assert!(
        early
            .stderr
            .contains("start `taut forward` with the function route")
    );
    let router = Program::start(&mut taut(&["forward", &chain, "--quiet"]));
    router_is_up(&route);
    let done = route(&["add", "10.9.0.0/16 via 10.0.1.2", "default via fd00::2"]).success();
    assert_eq!(done.stdout, "2 routes added\n");
    let shown = route(&["show", "10.9.3.4"]).success();
    assert!(
        shown
            .stdout
            .starts_with("10.9.0.0/16 via 10.0.1.2 dev wan\n"),
        "{shown:?}"
    );
    assert!(
        shown.stdout.contains("10.0.1.2 on wan: unknown"),
        "{shown:?}"
    );
    for (words, part) in [
        (&["show", "192.0.2.1"][..], "no route to 192.0.2.1"),
        (
            &["del", "10.0.0.0/24"],
            "10.0.0.0/24 belongs to an interface",
        ),
        (&["del", "10.8.0.0/16"], "10.8.0.0/16 has no route"),
        (&["add", "10.9.0.0/16 via 10.0.1.3"], "has a route already"),
        (
            &["add", "10.0.0.1 via 10.0.1.3", "--replace"],
            "the router's own address",
        ),
        (
            &[
                "add",
                "10.3.0.0/16 via 10.0.1.3",
                "10.9.0.0/16 via 10.0.1.3",
            ],
            "already; the 1 before it are in effect",
        ),
        (&["load", "/nowhere"], "/nowhere: No such file"),
        (
            &["churn", "/dev/null", "--rate", "10"],
            "the file contains no route",
        ),
        (
            &["churn", "/dev/null", "--rate", "NaN"],
            "expected changes per second",
        ),
    ] {
        let refused = route(words);
        assert_eq!(refused.code(), Some(2), "{refused:?}");
        assert!(refused.stderr.contains(part), "{words:?}: {refused:?}");
        assert_eq!(refused.stdout, "", "{words:?}");
    }
    let wrong = path("wrong");
    fs::write(
        &wrong,
        "10.20.0.0/16 via 10.0.1.2\n10.21.0.0/16 via 10.7.7.7\n",
    )
    .unwrap();
    let refused = route(&["load", &wrong]);
    assert!(
        refused
            .stderr
            .contains(&format!("{wrong}:2: via: 10.7.7.7 is in no network")),
        "{refused:?}"
    );
    let many = path("many");
    let lines: String = (0..5000)
        .map(|n| format!("20.{}.{}.0/24 via 10.0.1.2\n", n >> 8, n & 255))
        .collect();
    fs::write(&many, &lines).unwrap();
    let loaded = route(&["load", &many]).success();
    assert_eq!(loaded.stdout, "5000 routes loaded\n");
    let churned = route(&["churn", &many, "--rate", "2k", "--seconds", "1", "--json"]).success();
    let churned: serde_json::Value = serde_json::from_str(&churned.stdout).unwrap();
    assert!(churned["changes"].as_u64().unwrap() >= 1000, "{churned}");
    let list = route(&["list"]).success();
    let own = 2 * 2 + 3;
    assert_eq!(list.stdout.lines().count(), own + 3 + 5000);
    // The list can be loaded again, except for the router's own addresses and networks.
    let again = path("again");
    let kept: Vec<_> = list
        .stdout
        .lines()
        .filter(|line| line.contains(" via "))
        .collect();
    fs::write(&again, kept.join("\n")).unwrap();
    let loaded = route(&["load", &again, "--replace"]).success();
    assert_eq!(loaded.stdout, "5003 routes loaded\n");
    let status = route(&["status", "--json"]).success();
    let status: serde_json::Value = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(status["status"]["routes_v4"], 4 + 2 + 5000);
    let ended = router.interrupt().success();
    assert!(!ended.stderr.contains("panicked"), "{ended:?}");
    assert!(!std::path::Path::new(&socket).exists());
}

/// Waits until the router replies to requests.
fn router_is_up(route: &dyn Fn(&[&str]) -> Finished) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while route(&["status"]).code() != Some(0) {
        assert!(Instant::now() < deadline, "the router does not answer");
        std::thread::sleep(Duration::from_millis(50));
    }
}
