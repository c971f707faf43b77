//! A router in the kernel between unmodified hosts, in native and generic XDP. Its chain file differs from one for user
//! space only in the line `place = "kernel"`.

use crate::support::hosts::{Hosts, Transport, hops, in_namespace, ip, ping, pinged, transfer};
use crate::support::program::{Finished, Program, run};
use crate::support::{alone, scratch, taut};
use std::fs;
use std::sync::MutexGuard;

const PROGRAMS: [(&str, &str); 4] = [
    ("ping", "iputils-ping"),
    ("traceroute", "traceroute"),
    ("iperf3", "iperf3"),
    ("ethtool", "ethtool"),
];

/// A router in a namespace of its own, and three hosts, each with the index of its network, from 1.
struct Routed {
    program: Program,
    socket: String,
    hosts: Hosts,
    _turn: MutexGuard<'static, ()>,
}

impl Routed {
    /// Starts the router. The last link has an MTU of 1300 bytes. Returns `None` if a requirement is missing.
    fn start(mode: &str) -> Option<Self> {
        let turn = alone();
        let hosts = Hosts::new(4, &PROGRAMS)?;
        let path = |name: &str| hosts.folder.path().join(name).display().to_string();
        let router = &hosts.all[3].0;
        let (mut ports, mut interfaces) = (Vec::new(), String::new());
        for (number, host) in (1..).zip(&hosts.all[..3]) {
            let host = &host.0;
            ip(&format!(
                "-n {router} link add net{number} type veth peer name eth0 netns {host}"
            ));
            // Frames have complete checksums on the wire, and the far end accepts redirected frames.
            let mut offloads = in_namespace(host, "ethtool");
            run(offloads.args(["-K", "eth0", "tx", "off", "gro", "on"])).success();
            for line in [
                format!("-n {router} link set net{number} up"),
                format!("-n {host} link set lo up"),
                format!("-n {host} link set eth0 up"),
                format!("-n {host} address add 10.8.{number}.2/24 dev eth0"),
                format!("-n {host} address add fd00:{number}::2/64 dev eth0 nodad"),
                format!("-n {host} route add default via 10.8.{number}.1"),
                format!("-n {host} route add default via fd00:{number}::1"),
            ] {
                ip(&line);
            }
            ports.push(format!("af_xdp:net{number},mode={mode}"));
            let mtu = if number == 3 { "mtu = 1300\n" } else { "" };
            interfaces += &format!(
                "[[function.interface]]\nname = \"net{number}\"\nmac = \"02:00:00:00:00:0{number}\"\n\
                 addresses = [\"10.8.{number}.1/24\", \"fd00:{number}::1/64\"]\n{mtu}"
            );
        }
        let (routes, socket) = (path("routes"), path("control"));
        fs::write(
            &routes,
            "blackhole 10.66.0.0/16\nprohibit 10.67.0.0/16\nunreachable 10.68.0.0/16\n",
        )
        .unwrap();
        fs::write(
            path("chain.toml"),
            format!(
                "place = \"kernel\"\nports = {ports:?}\n[[function]]\nname = \"route\"\nroutes = \"{routes}\"\n\
                 control = \"{socket}\"\n{interfaces}"
            ),
        )
        .unwrap();
        let mut command = in_namespace(router, env!("CARGO_BIN_EXE_taut"));
        command.args(["forward", "--json", "--quiet", &path("chain.toml")]);
        let mut program = Program::start(&mut command);
        program.wait_until("all links up", |stdout, _| {
            stdout.matches("\"down\":null").count() >= 3
        });
        Some(Self {
            program,
            socket,
            hosts,
            _turn: turn,
        })
    }

    fn route(&self, words: &[&str]) -> Finished {
        run(taut(&["route", "--control", &self.socket]).args(words)).success()
    }
}

#[test]
fn xdp_routes_between_three_networks_while_routes_change() {
    for mode in ["native", "generic"] {
        let Some(routed) = Routed::start(mode) else {
            return;
        };
        let [a, b, c, _] = routed.hosts.all.as_slice() else {
            panic!("four namespaces");
        };
        // The first packets wait for ARP; none is lost.
        for to in ["10.8.2.2", "10.8.3.2", "fd00:2::2", "fd00:3::2"] {
            ping(a, to, 5, &["-i", "0.02"], 5);
        }
        ping(b, "10.8.3.2", 5, &["-i", "0.02"], 5);
        // The destinations are the router's own addresses at the port of the host and at another port.
        ping(a, "10.8.1.1", 3, &["-i", "0.02"], 3);
        ping(a, "fd00:3::1", 3, &["-i", "0.02"], 3);
        assert_eq!(hops(a, "-4", "10.8.2.2"), ["10.8.1.1", "10.8.2.2"]);
        assert_eq!(hops(a, "-6", "fd00:3::2"), ["fd00:1::1", "fd00:3::2"]);
        // Packets that may be fragmented arrive complete; for other packets, the sender gets an error with the MTU.
        let cut = ["-M", "dont", "-s", "1400", "-i", "0.02"];
        ping(a, "10.8.3.2", 3, &cut, 3);
        for (arguments, part) in [
            (
                &["-M", "do", "-s", "1400", "10.8.3.2"][..],
                "Frag needed and DF set (mtu = 1300)",
            ),
            (
                &["-6", "-M", "do", "-s", "1400", "fd00:3::2"],
                "Packet too big: mtu=1300",
            ),
            (&["10.67.0.1"], "From 10.8.1.1 icmp_seq=1 Packet filtered"),
            (
                &["10.68.0.1"],
                "From 10.8.1.1 icmp_seq=1 Destination Host Unreachable",
            ),
            (
                &["192.0.2.1"],
                "From 10.8.1.1 icmp_seq=1 Destination Net Unreachable",
            ),
            (
                &["10.8.2.77"],
                "From 10.8.1.1 icmp_seq=1 Destination Host Unreachable",
            ),
        ] {
            let told = pinged(a, &[&["-c", "1", "-W", "10"], arguments].concat());
            assert!(told.stdout.contains(part), "{mode}: {told:?}");
        }
        ping(a, "10.66.0.1", 1, &[], 0);
        transfer(Transport::Tcp, (&b.0, 5201), &a.0, ("10.8.2.2", 5201));
        transfer(Transport::Tcp, (&a.0, 5201), &c.0, ("fd00:1::2", 5201));
        transfer(Transport::Udp, (&a.0, 5202), &b.0, ("10.8.1.2", 5202));

        // Two hosts have this address, and the route changes between them while packets pass: none is lost.
        for host in [b, c] {
            ip(&format!("-n {} address add 10.99.0.1/32 dev lo", host.0));
        }
        let both = "10.99.0.0/24 nexthop via 10.8.2.2 dev net2 nexthop via 10.8.3.2 dev net3";
        let ways = [
            "10.99.0.0/24 via 10.8.2.2",
            "10.99.0.0/24 via 10.8.3.2",
            both,
        ];
        routed.route(&["add", ways[0]]);
        std::thread::scope(|scope| {
            let pinging = scope.spawn(|| ping(a, "10.99.0.1", 1000, &["-q", "-i", "0.002"], 1000));
            for way in ways.iter().cycle() {
                routed.route(&["add", "--replace", way]);
                if pinging.is_finished() {
                    break;
                }
            }
            pinging.join().unwrap();
        });
        let shown = routed.route(&["show", "10.99.0.1"]);
        assert!(shown.stdout.contains("10.99.0.0/24"), "{shown:?}");
        routed.route(&["del", "10.99.0.0/24"]);
        let told = pinged(a, &["-c", "1", "-W", "10", "10.99.0.1"]);
        let part = "Destination Net Unreachable";
        assert!(told.stdout.contains(part), "{told:?}");

        let summary = routed.program.interrupt().success().last_json();
        let outcomes = summary["outcomes"].as_object().unwrap();
        let counted = |name: &str| outcomes[name].as_u64().unwrap();
        assert!(counted("forwarded") > 2500, "{summary}");
        // The kernel has forwarded nearly all packets, and every packet is counted once.
        assert!(counted("to the slow path") < 250, "{summary}");
        let worker = outcomes
            .iter()
            .filter(|(name, _)| !name.starts_with("slow path"))
            .map(|(_, count)| count.as_u64().unwrap());
        let received = summary["counters"]["rx_packets"].as_u64();
        assert_eq!(received, Some(worker.sum()), "{summary}");
        assert_eq!(counted("dropped: blackhole route"), 1, "{summary}");
        assert_eq!(summary["counters"]["dropped_tx_failed"], 0, "{summary}");
    }
}

#[test]
fn router_settings_unsupported_in_the_kernel_are_refused() {
    let folder = scratch();
    let file = folder.path().join("chain.toml");
    let refused = |head: &str, functions: &str, part: &str| {
        let interface = |number| {
            format!(
                "[[function.interface]]\nmac = \"02:00:00:00:00:0{number}\"\naddresses = [\"10.0.{number}.1/24\"]\n"
            )
        };
        let text = format!(
            "place = \"kernel\"\n{head}\n[[function]]\nname = \"route\"\n{}{}{functions}",
            interface(1),
            interface(2)
        );
        fs::write(&file, text).unwrap();
        let finished = run(&mut taut(&["forward", &file.display().to_string()]));
        assert_eq!(finished.code(), Some(2), "{finished:?}");
        assert!(finished.stderr.contains(part), "{part}: {finished:?}");
        assert_eq!(finished.stderr.lines().count(), 1, "{finished:?}");
    };
    let ports = "ports = [\"af_xdp:none0\", \"af_xdp:none1\"]";
    refused(
        &format!("workers = 2\n{ports}"),
        "",
        "the kernel has neither",
    );
    refused(
        ports,
        "[[function]]\nname = \"mac-swap\"\n",
        "combined with forward only",
    );
    refused(
        ports,
        "[[function]]\nname = \"xor\"\nkey = 1\n",
        "leave the others out",
    );
    refused(
        "ports = [\"null:\", \"null:\"]",
        "",
        "between interfaces only",
    );
}
