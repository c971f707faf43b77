//! Packets that a function's slow path has buffered, fragmented or created pass all later functions: tests on veth
//! links.

use crate::support::between::{Between, decoded};
use crate::support::scratch;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use taut_wire::{Ethernet, Mac, Protocol, UdpFlow, resolution};

const OWN: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 0xa0]), Mac([2, 0, 0, 0, 0, 0xa1])];
/// MAC addresses of the host at each port.
const STATIONS: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 7]), Mac([2, 0, 0, 0, 0, 9])];
const ADDRESSES: [&str; 2] = ["10.0.0.7", "10.0.1.9"];
/// The source address that `mac-rewrite` sets in every packet that passes it, as a witness.
const WITNESS: Mac = Mac([2, 0, 0, 0, 0, 0xee]);
const SECRET: &[u8] = b"SECRETSECRET";
const SILENCE: Duration = Duration::from_millis(200);

const ROUTE: &str = "[[function]]
name = \"route\"
[[function.interface]]
mac = \"02:00:00:00:00:a0\"
addresses = [\"10.0.0.1/24\"]
[[function.interface]]
mac = \"02:00:00:00:00:a1\"
addresses = [\"10.0.1.1/24\"]
mtu = 1300
";

fn named(name: &str, settings: &str) -> String {
    format!("[[function]]\nname = \"{name}\"\n{settings}\n")
}

fn witness() -> String {
    named("mac-rewrite", &format!("source = \"{WITNESS}\""))
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Builds a packet from the host at a port to an address, with the given length and protocol.
fn packet(port: usize, to: &str, protocol: Protocol, ttl: u8, size: usize) -> Vec<u8> {
    let flow = UdpFlow {
        src_mac: STATIONS[port],
        dst_mac: OWN[port],
        src_ip: ip(ADDRESSES[port]),
        dst_ip: ip(to),
        dst_port: 99,
        ttl,
        ..UdpFlow::default()
    };
    flow.frame_as(protocol, None, size + 4).unwrap()
}

/// Builds a datagram from the host at `port` to the host at the other port, with [`SECRET`] in its payload.
fn datagram(port: usize, size: usize) -> Vec<u8> {
    let mut frame = packet(port, ADDRESSES[1 - port], Protocol::Udp, 64, size);
    frame[42..42 + SECRET.len()].copy_from_slice(SECRET);
    // The checksum is cleared, as the payload was changed.
    frame[40..42].fill(0);
    // Fragmentation is allowed.
    frame[20] = 0;
    frame[24..26].fill(0);
    let sum = taut_wire::Sum::of(&frame[14..34]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

fn is_ip(frame: &[u8]) -> bool {
    frame[12..14] == [8, 0]
}

fn source_of(frame: &[u8]) -> Mac {
    Ethernet::new(frame).unwrap().source()
}

/// Answers an ARP request that arrived at a port; returns true if there was one.
fn answer(between: &mut Between, port: usize, came: &[Vec<u8>]) -> bool {
    let mac_of = |asked| (asked == ip(ADDRESSES[port])).then_some(STATIONS[port]);
    let mut reply = [0; resolution::LONGEST_BYTES];
    let length = came
        .iter()
        .find_map(|frame| resolution::answer(frame, mac_of, &mut reply));
    if let Some(length) = length {
        between.send(port, &[reply[..length].to_vec()]);
    }
    length.is_some()
}

/// Sends three datagrams to a host whose MAC address is unknown, and, once the address is known, a long datagram that
/// has to be fragmented. Returns all frames that leave the port; waits for them for a limited time.
fn held_and_cut(functions: &str, to: usize) -> Vec<Vec<u8>> {
    let mut between = Between::start(functions);
    between.send(1 - to, &vec![datagram(1 - to, 100); 3]);
    let mut all = Vec::new();
    let mut is_asked = false;
    for _ in 0..50 {
        let came = between.receive_all(to, 0, SILENCE / 4);
        is_asked |= answer(&mut between, to, &came);
        all.extend(came);
        if is_asked {
            break;
        }
    }
    assert!(is_asked, "no question: {all:?}");
    all.extend(between.receive_all(to, 0, SILENCE));
    between.send(1 - to, &[datagram(1 - to, 1400)]);
    all.extend(between.receive_all(to, 0, SILENCE));
    between.outcomes();
    all
}

#[test]
fn packets_buffered_or_fragmented_by_routers_are_translated_by_nat() {
    let nat = named("nat", "outside = [1]\naddress = \"10.0.1.1\"");
    let all = held_and_cut(&(ROUTE.to_string() + &nat), 1);
    let packets: Vec<_> = all.into_iter().filter(|it| is_ip(it)).collect();
    let Some(lines) = decoded(&packets, &["ip.src", "ip.len", "ip.frag_offset"]) else {
        return;
    };
    // The frames are three buffered ones, and two fragments of the long one.
    assert_eq!(lines.len(), 5, "{lines:?}");
    assert!(lines.iter().all(|line| line[0] == "10.0.1.1"), "{lines:?}");
    assert_eq!(lines[3][1..], ["1300", "0"], "{lines:?}");
    assert_ne!(lines[4][2], "0", "{lines:?}");
}

#[test]
fn filters_drop_packets_buffered_or_fragmented_by_routers() {
    let filter = |rules| named("filter", &format!("default = \"drop\"\nrules = [{rules}]"));
    let none = filter("");
    let from_inside = filter("{ action = \"accept\", source = \"10.0.0.0/24\" }");
    for (functions, to) in [
        (ROUTE.to_string() + &none, 1),
        // This is the usual firewall: packets from outside reach nothing inside.
        (from_inside + ROUTE, 0),
    ] {
        let all = held_and_cut(&functions, to);
        assert!(
            !all.iter().any(|frame| is_ip(frame)),
            "{functions}: {all:?}"
        );
    }
}

#[test]
fn packets_buffered_or_fragmented_by_routers_are_encrypted_and_inspected() {
    let folder = scratch();
    let path = |name: &str| folder.path().join(name);
    let write = |path: &Path, text: &str| {
        fs::write(path, text).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
    };
    write(&path("key"), &"0123456789abcdef".repeat(2));
    write(
        &path("local.rules"),
        "drop udp any any -> any 99 (msg:\"no\"; sid:1;)\n",
    );
    let key = path("key").display().to_string();
    let aes = named("aes", &format!("encrypt = [1]\nkey_file = \"{key}\""));
    let all = held_and_cut(&(ROUTE.to_string() + &aes), 1);
    assert_eq!(all.iter().filter(|frame| is_ip(frame)).count(), 5);
    let is_clear = |frame: &Vec<u8>| frame.windows(SECRET.len()).any(|it| it == SECRET);
    assert!(!all.iter().any(is_clear), "{all:?}");
    let rules = path("local.rules").display().to_string();
    let ips = named("ips", &format!("rules = [\"{rules}\"]"));
    let all = held_and_cut(&(ROUTE.to_string() + &ips), 1);
    assert!(!all.iter().any(|frame| is_ip(frame)), "{all:?}");
}

#[test]
fn packets_from_a_function_pass_all_later_functions() {
    let folder = scratch();
    let rules = folder.path().join("local.rules");
    fs::write(
        &rules,
        "reject udp any any -> any 99 (msg:\"no\"; sid:1;)\n",
    )
    .unwrap();
    let ips = named("ips", &format!("rules = [\"{}\"]", rules.display()));
    let host = |port: usize| {
        named(
            "host",
            &format!(
                "port = {port}\nmac = \"{}\"\naddresses = [\"10.0.{port}.1\"]",
                OWN[port]
            ),
        )
    };
    let gateway = named(
        "gtpu",
        "address = \"10.0.0.1\"\nmac = \"02:00:00:00:00:a0\"",
    );
    let echo = |port: usize| packet(port, &format!("10.0.{port}.1"), Protocol::IcmpEcho, 64, 104);
    let expired = |port: usize| packet(port, ADDRESSES[1 - port], Protocol::Udp, 1, 100);
    let rejected = |port: usize| packet(port, ADDRESSES[1 - port], Protocol::Udp, 64, 100);
    // Each case has a name, a function that creates packets, and the port and frame that make the function create one.
    let cases = [
        ("echo answered by a router", ROUTE.to_string(), 0, echo(0)),
        ("echo answered by a router", ROUTE.to_string(), 1, echo(1)),
        ("hops used up", ROUTE.to_string(), 0, expired(0)),
        ("hops used up", ROUTE.to_string(), 1, expired(1)),
        ("question for the router", ROUTE.to_string(), 0, question(0)),
        ("question for the router", ROUTE.to_string(), 1, question(1)),
        ("echo answered by a host", host(0), 0, echo(0)),
        ("question for a host", host(1), 1, question(1)),
        ("rejected", ips.clone(), 0, rejected(0)),
        ("rejected", ips, 1, rejected(1)),
        ("question for the gateway", gateway, 0, question(0)),
    ];
    for (what, maker, port, frame) in cases {
        // A created frame passes the functions between its creator and its egress port. In the second order, the
        // witness is not among these functions.
        let chains = match port {
            0 => [witness() + &maker, maker + &witness()],
            _ => [maker.clone() + &witness(), witness() + &maker],
        };
        for (chain, is_seen) in chains.into_iter().zip([true, false]) {
            let mut between = Between::start(&chain);
            // Other frames of the port, such as requests, may arrive as well.
            between.send(port, std::slice::from_ref(&frame));
            let came = between.receive_all(port, 1, SILENCE / 4);
            let sources: Vec<_> = came.iter().map(|frame| source_of(frame)).collect();
            assert!(
                sources.iter().all(|it| (*it == WITNESS) == is_seen),
                "{what}, {chain}: {sources:?}"
            );
            between.outcomes();
        }
    }
}

#[test]
fn echo_requests_of_a_gateway_get_the_configured_mac_addresses() {
    let folder = scratch();
    let bearers = folder.path().join("bearers.csv");
    fs::write(&bearers, "10.45.0.2,encapsulate,0x20,192.0.2.7\n").unwrap();
    let gateway = named(
        "gtpu",
        &format!(
            "address = \"192.0.2.1\"\ntunnels = [0]\nload = \"{}\"\n\
             pfcp = {{ address = \"127.0.7.1\", peers = [\"127.0.7.2\"], echo = \"1s\" }}",
            bearers.display()
        ),
    );
    let next = "02:00:00:00:00:0d";
    let addresses = named(
        "mac-rewrite",
        &format!("source = \"{WITNESS}\"\ndestination = \"{next}\""),
    );
    for chain in [gateway.clone() + &addresses, addresses + &gateway] {
        let mut between = Between::start(&chain);
        let asked = between.receive_all(0, 1, SILENCE / 4);
        let fields = ["eth.src", "eth.dst", "ip.dst", "gtp.message"];
        let Some(lines) = decoded(&asked, &fields) else {
            return;
        };
        let echo = [&WITNESS.to_string(), next, "192.0.2.7", "0x01"];
        assert!(lines.iter().all(|line| *line == echo), "{chain}: {lines:?}");
        // No frame leaves through the port that no tunnel uses.
        assert!(between.receive_all(1, 0, SILENCE).is_empty());
        between.outcomes();
    }
}

/// Sends the ARP request of the host at a port for the port's MAC address.
fn question(port: usize) -> Vec<u8> {
    use taut_wire::arp::Operation;
    use taut_wire::{ArpRepr, EtherType, EthernetRepr, Vlan};
    let IpAddr::V4(sender_ip) = ip(ADDRESSES[port]) else {
        panic!("IPv4")
    };
    let asked = ArpRepr {
        operation: Operation::REQUEST,
        sender_mac: STATIONS[port],
        sender_ip,
        target_mac: Mac::default(),
        target_ip: [10, 0, port as u8, 1].into(),
    };
    let header = EthernetRepr {
        destination: Mac::BROADCAST,
        source: STATIONS[port],
        vlan: Vlan::Untagged,
        ethertype: EtherType::ARP,
    };
    let mut frame = [0; resolution::LONGEST_BYTES];
    let length = resolution::arp_frame(&header, &asked, &mut frame).unwrap();
    frame[..length].to_vec()
}
