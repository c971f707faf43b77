//! A router compared with Linux for the same routes, and a router after the death of a memif peer.

use crate::support::hosts::{Hosts, Namespace, in_namespace, ip, ping};
use crate::support::program::{Finished, Program, run};
use crate::support::taut;
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use taut_router::Detached;

const ROUTES: [usize; 2] = [5_000, 2_000];
const INTERFACES: usize = 4;
/// Number of requests in flight at a time, small enough for their replies to fit into a socket's buffer.
const AT_A_TIME: usize = 100;

/// A prefix with its first and last address, as integers of the address length.
#[derive(Clone, Copy)]
struct Range {
    is_v4: bool,
    length: u32,
    first: u128,
    last: u128,
}

impl Range {
    /// Draws a random prefix. Its first byte is one of few, so that many prefixes contain others.
    fn random(random: &mut fastrand::Rng, is_v4: bool) -> Self {
        let (bits, start, shortest) = match is_v4 {
            true => (32, u128::from(random.u32(20..28)) << 24, 8),
            false => (
                128,
                0x2001_0db8_u128 << 96 | u128::from(random.u32(..8)) << 88,
                40,
            ),
        };
        let length = random.u32(shortest..=bits);
        let behind = match bits - length {
            128.. => u128::MAX,
            rest => (1 << rest) - 1,
        };
        let below = match is_v4 {
            true => u128::from(random.u32(..1 << 24)),
            // The shift sets a random number of upper bits to 0, so that routes have long common beginnings.
            false => random.u128(..) >> random.u32(40..128),
        };
        let first = (start | below) & !behind;
        Self {
            is_v4,
            length,
            first,
            last: first | behind,
        }
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.is_v4 {
            true => Ipv4Addr::from_bits(number as u32).into(),
            false => Ipv6Addr::from_bits(number).into(),
        }
    }

    /// Returns the addresses for which a lookup is most likely wrong: first and last address of the prefix, their
    /// neighbours outside of it, and one within.
    fn addresses(&self, random: &mut fastrand::Rng) -> [IpAddr; 5] {
        let within = self.first + random.u128(..=self.last - self.first);
        let numbers = [self.first - 1, self.first, within, self.last, self.last + 1];
        numbers.map(|number| self.address(number))
    }
}

/// Returns the next hop and the interface from the text of a route.
fn way(words: &str) -> (String, String) {
    let words: Vec<_> = words.split_whitespace().collect();
    let behind = |word: &str| {
        let at = words.iter().position(|it| *it == word);
        at.and_then(|at| words.get(at + 1)).copied().unwrap_or("-")
    };
    let via: Result<IpAddr, _> = behind("via").parse();
    (
        via.map_or("-".into(), |it| it.to_string()),
        behind("dev").to_string(),
    )
}

/// Returns the next hop that Linux uses for each of the addresses.
fn ways_of_linux(namespace: &str, folder: &Path, addresses: &[IpAddr]) -> Vec<(String, String)> {
    let file = folder.join("asked");
    let lines: String = addresses
        .iter()
        .map(|it| format!("route get {it}\n"))
        .collect();
    fs::write(&file, lines).unwrap();
    let file = file.display().to_string();
    let mut command = in_namespace(namespace, "ip");
    let answered = run(command.args(["-batch", &file])).success();
    let lines = answered.stdout.lines();
    lines
        .filter(|line| line.contains(" dev "))
        .map(way)
        .collect()
}

/// Returns the next hop that the router reports for each of the addresses.
fn ways_of_router(socket: &Path, addresses: &[IpAddr]) -> Vec<(String, String)> {
    let mut asking = UnixStream::connect(socket).unwrap();
    let mut answers = BufReader::new(asking.try_clone().unwrap()).lines();
    let mut ways = Vec::new();
    for some in addresses.chunks(AT_A_TIME) {
        let lines = some
            .iter()
            .map(|it| format!("{{\"op\":\"show\",\"address\":\"{it}\"}}\n"));
        asking
            .write_all(lines.collect::<String>().as_bytes())
            .unwrap();
        for _ in some {
            let answer: serde_json::Value =
                serde_json::from_str(&answers.next().unwrap().unwrap()).unwrap();
            ways.push(way(answer["route"]["route"]
                .as_str()
                .unwrap_or_else(|| panic!("{answer}"))));
        }
    }
    ways
}

#[test]
fn linux_and_taut_choose_the_same_route_for_every_address() {
    let Some(hosts) = Hosts::new(1, &[]) else {
        return;
    };
    let namespace = hosts.all[0].0.as_str();
    let path = |name: &str| hosts.folder.path().join(name);
    let mut interfaces = String::new();
    for number in 0..INTERFACES {
        for line in [
            format!("link add d{number} type veth peer name e{number}"),
            format!("link set e{number} up"),
            format!("link set d{number} up"),
            format!("address add 10.200.{number}.1/24 dev d{number}"),
            format!("address add fd00:200:{number}::1/64 dev d{number} nodad"),
        ] {
            ip(&format!("-n {namespace} {line}"));
        }
        interfaces += &format!(
            "[[interface]]\nname = \"d{number}\"\nmac = \"02:00:00:00:00:0{number}\"\n\
             addresses = [\"10.200.{number}.1/24\", \"fd00:200:{number}::1/64\"]\n"
        )
        .replace("00:00\"", "00:10\"");
    }
    let mut random = fastrand::Rng::with_seed(22);
    let mut routes = BTreeMap::new();
    for (count, is_v4) in ROUTES.into_iter().zip([true, false]) {
        let before = routes.len();
        while routes.len() < before + count {
            let range = Range::random(&mut random, is_v4);
            let interface = random.usize(..INTERFACES);
            let host = random.usize(2..10);
            let via = match is_v4 {
                true => format!("10.200.{interface}.{host}"),
                false => format!("fd00:200:{interface}::{host}"),
            };
            let text = format!(
                "{}/{} via {via} dev d{interface}",
                range.address(range.first),
                range.length
            );
            routes.insert((is_v4, range.first, range.length), (range, text));
        }
    }
    let mut lines: String = routes
        .values()
        .map(|(_, text)| format!("{text}\n"))
        .collect();
    lines += "default via 10.200.0.2 dev d0\ndefault via fd00:200::2 dev d0\n";
    fs::write(path("routes"), &lines).unwrap();
    let batch: String = lines
        .lines()
        .map(|line| format!("route add {line}\n"))
        .collect();
    fs::write(path("batch"), batch).unwrap();
    let batch = path("batch").display().to_string();
    run(in_namespace(namespace, "ip").args(["-batch", &batch])).success();

    let ranges = routes.values().map(|(range, _)| range);
    let addresses: Vec<_> = ranges
        .flat_map(|range| range.addresses(&mut random))
        .collect();
    let settings = format!("routes = \"{}\"\n{interfaces}", path("routes").display());
    let socket = path("control");
    let chain = path("chain.toml").display().to_string();
    fs::write(
        &chain,
        format!(
            "wait = \"sleep(1ms)\"\nports = [\"null:\", \"null:\", \"null:\", \"null:\"]\n[[function]]\nname = \"route\"\n\
             control = \"{}\"\n{}",
            socket.display(),
            settings.replace("[[interface]]", "[[function.interface]]")
        ),
    )
    .unwrap();
    let mut router = Program::start(&mut taut(&["forward", &chain, "--quiet"]));
    let deadline = Instant::now() + Duration::from_secs(60);
    while UnixStream::connect(&socket).is_err() {
        assert!(
            Instant::now() < deadline && router.is_running(),
            "{}",
            router.stderr()
        );
        std::thread::sleep(Duration::from_millis(50));
    }
    let of_linux = ways_of_linux(namespace, hosts.folder.path(), &addresses);
    let of_router = ways_of_router(&socket, &addresses);
    assert_eq!(
        (of_linux.len(), of_router.len()),
        (addresses.len(), addresses.len())
    );
    let mut used = BTreeMap::new();
    for ((address, linux), router) in addresses.iter().zip(&of_linux).zip(&of_router) {
        assert_eq!(router, linux, "{address}");
        *used.entry(router).or_insert(0) += 1;
    }
    // All next hops of both families are used about equally.
    assert_eq!(used.len(), 2 * INTERFACES * 8);
    assert!(used.values().all(|count| *count > 100), "{used:?}");
    router.interrupt().success();
    // The tables of a worker agree with the router's report.
    let detached = Detached::new(settings.parse().unwrap()).unwrap();
    for address in &addresses {
        detached.check(*address).unwrap();
    }
}

/// Starts a program that copies frames between a router's memif socket and a host.
fn bridge(socket: &str, namespace: &str) -> Program {
    let mut command = in_namespace(namespace, env!("CARGO_BIN_EXE_taut"));
    command.args([
        "forward",
        "--wait",
        "sleep(50us)",
        "--port",
        &format!("memif:{socket},role=client"),
    ]);
    let mut bridge = Program::start(command.args(["--port", "af_packet:wire"]));
    bridge.wait_until("both links up", |_, stderr| {
        stderr.matches(": up").count() >= 2
    });
    bridge
}

/// Sends echo requests from a host until a few in a row are answered.
#[track_caller]
fn until_answered(host: &Namespace, to: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let mut command = in_namespace(&host.0, "ping");
        let pinged = run(command.args(["-c", "3", "-i", "0.1", "-W", "3", to]));
        if pinged.stdout.contains(" 3 received") {
            return;
        }
        assert!(Instant::now() < deadline, "{pinged:?}");
    }
}

fn killed(bridge: Program) -> Finished {
    let killed = bridge.kill();
    assert_eq!(killed.signal(), Some(9), "{killed:?}");
    killed
}

#[test]
fn a_router_continues_after_a_peer_exits_and_accepts_reconnections() {
    let Some(hosts) = Hosts::new(2, &[("ping", "iputils-ping"), ("ethtool", "ethtool")]) else {
        return;
    };
    let path = |name: &str| hosts.folder.path().join(name).display().to_string();
    let sockets = [path("a.sock"), path("b.sock")];
    let mut interfaces = String::new();
    for (number, host) in (1..).zip(&hosts.all) {
        let host = &host.0;
        ip(&format!("-n {host} link add eth0 type veth peer name wire"));
        // Offloads are disabled, so that frames have complete checksums on the link.
        for interface in ["eth0", "wire"] {
            let mut offloads = in_namespace(host, "ethtool");
            run(offloads.args(["-K", interface, "tx", "off"])).success();
        }
        for line in [
            "link set wire up".to_string(),
            "link set eth0 up".to_string(),
            format!("address add 10.8.{number}.2/24 dev eth0"),
            format!("route add default via 10.8.{number}.1"),
        ] {
            ip(&format!("-n {host} {line}"));
        }
        interfaces += &format!(
            "[[function.interface]]\nmac = \"02:00:00:00:00:0{number}\"\naddresses = [\"10.8.{number}.1/24\"]\n"
        );
    }
    let chain = path("chain.toml");
    fs::write(
        &chain,
        format!(
            "wait = \"sleep(50us)\"\nports = [\"memif:{},role=server\", \"memif:{},role=server\"]\n\
             [[function]]\nname = \"route\"\n{interfaces}",
            sockets[0], sockets[1]
        ),
    )
    .unwrap();
    let mut router = Program::start(&mut taut(&["forward", &chain, "--json", "--quiet"]));
    let [a, b]: &[Namespace; 2] = hosts.all.as_slice().try_into().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while !sockets.iter().all(|it| Path::new(it).exists()) {
        assert!(
            Instant::now() < deadline && router.is_running(),
            "{}",
            router.stderr()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut first = bridge(&sockets[0], &a.0);
    let second = bridge(&sockets[1], &b.0);
    until_answered(a, "10.8.2.2");
    for deaths in 1..=3 {
        killed(first);
        let down = |stdout: &str, _: &str| stdout.matches("a.sock (last one").count() >= deaths;
        router.wait_until("the link down", down);
        // The host at the other port still reaches the router, and learns its MAC address.
        until_answered(b, "10.8.2.1");
        ping(b, "10.8.1.2", 1, &[], 0);
        first = bridge(&sockets[0], &a.0);
        until_answered(a, "10.8.2.2");
        until_answered(b, "10.8.1.2");
    }
    for program in [first, second] {
        program.interrupt().success();
    }
    let summary = router.interrupt().success().last_json();
    let counters = summary["counters"].as_object().unwrap();
    let counted = |name: &str| counters[name].as_u64().unwrap();
    // Every packet was sent, or counted as dropped.
    let dropped: u64 = counters
        .iter()
        .filter(|(name, _)| name.starts_with("dropped"))
        .map(|(_, count)| count.as_u64().unwrap_or(0))
        .sum();
    assert_eq!(
        counted("rx_packets") + counted("from_slow_path"),
        counted("tx_packets") + counted("punted") + dropped,
        "{summary}"
    );
}
