//! Tests of the complete router, with its slow path, in one thread.
#![allow(clippy::unwrap_used)]

mod full_table;
mod in_kernel;
mod vlans;

use super::*;
use crate::text::Target;
use prefix::Prefix;
use proptest::prelude::*;
use std::net::IpAddr;
use taut_function::control_socket::Decides;
use taut_function::{Passage, Punted};
use taut_port::{Mark, PoolHandle};
use taut_wire::arp::Operation;
use taut_wire::{
    Arp, ArpRepr, EtherType, Ethernet, EthernetRepr, Icmpv4, Ipv4, Ipv6, Mac, Neighbour,
    NeighbourRepr, UdpFlow, Vlan, resolution,
};
use taut_xdp::router::KernelRouter;

/// The router's own MAC address on each port.
const OWN: [Mac; 3] = [
    Mac([2, 0, 0, 0, 0, 0xa0]),
    Mac([2, 0, 0, 0, 0, 0xa1]),
    Mac([2, 0, 0, 0, 0, 0xa2]),
];
/// The MAC address of the host that sends the test frames.
const SENDER: Mac = Mac([2, 0, 0, 0, 0, 1]);

const SETTINGS: &str = r#"
[[interface]]
name = "lan"
mac = "02:00:00:00:00:a0"
addresses = ["10.0.0.1/24", "2001:db8:0::1/64"]
[[interface]]
name = "wan"
mac = "02:00:00:00:00:a1"
addresses = ["10.0.1.1/24", "2001:db8:1::1/64"]
[[interface]]
mac = "02:00:00:00:00:a2"
addresses = ["10.0.2.1/24", "2001:db8:2::1/64"]
mtu = 1280
"#;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn mac(last: u8) -> Mac {
    Mac([2, 0, 0, 0, 1, last])
}

/// A frame that leaves, and the number of its port.
type Sent = (usize, Vec<u8>);

struct Bench {
    router: Router,
    handler: Box<dyn Handler>,
    pool: PoolHandle,
    /// True if the worker has space for the frames that the slow path sends.
    has_room: bool,
}

/// The result of passing a frame to the router.
#[derive(Debug, PartialEq)]
enum Fate {
    Forwarded(Sent),
    /// The slow path received the frame, with the given punt cause, and sent the given frames.
    Slow(taut_port::Punt, Vec<Sent>),
    Dropped,
}

impl Bench {
    fn new(routes: &str) -> Self {
        Self::beside(routes, None)
    }

    /// Creates a router for a test; if `kernel` is set, the router copies its routes to the maps of those XDP programs.
    fn beside(routes: &str, kernel: Option<&Arc<KernelRouter>>) -> Self {
        Self::of(SETTINGS, routes, kernel)
    }

    fn of(settings: &str, routes: &str, kernel: Option<&Arc<KernelRouter>>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("routes");
        std::fs::write(&file, routes).unwrap();
        let text = format!("routes = \"{}\"\n{settings}", file.display());
        let settings: Settings = toml::from_str(&text).unwrap();
        let mut router = Router::new(settings.check().unwrap());
        let shared = Shared::default();
        shared.lock(|it| *it = kernel.cloned());
        router.join(Member::default(), &shared).unwrap();
        router.prepare().unwrap();
        Self {
            handler: router.handler().unwrap(),
            router,
            pool: PoolHandle::new(64, false).unwrap(),
            has_room: true,
        }
    }

    fn pass(&mut self, from_port: usize, frame: &[u8]) -> Fate {
        self.pass_at(0, from_port, frame)
    }

    fn pass_at(&mut self, now_ticks: u64, from_port: usize, frame: &[u8]) -> Fate {
        let mut batch = Batch::new();
        self.pool.fill(&mut batch, 1, frame.len() as u16);
        batch.packets_mut()[0].bytes_mut().copy_from_slice(frame);
        let context = Context {
            now_ticks,
            from_port,
            to_port: from_port ^ 1,
            ports: 3,
        };
        self.router.process(&mut batch, &context);
        match batch.mark(0) {
            Some(Mark::Dropped) => Fate::Dropped,
            None => {
                let port = usize::from(batch.egress(0).unwrap());
                Fate::Forwarded((port, batch.packets()[0].bytes().to_vec()))
            }
            Some(Mark::Punted(cause)) => {
                let mut sent = Vec::new();
                let punted = Punted {
                    frame,
                    from_port,
                    cause,
                };
                let has_room = self.has_room;
                self.handler.handle(&punted, &mut |way, frame: &[u8]| {
                    if has_room {
                        sent.extend(leaving(way, frame));
                    }
                    has_room
                });
                Fate::Slow(cause, sent)
            }
        }
    }

    /// Sends a request to the router as a client of the control socket does.
    fn ask(&self, line: &str) {
        let deciding = self.router.deciding.as_ref().unwrap();
        let mut answer = Vec::new();
        let loading = taut_function::control_socket::Loading::default();
        Served(Arc::clone(&deciding.control))
            .answer(
                line.as_bytes(),
                &mut std::io::empty(),
                &mut answer,
                &loading,
            )
            .unwrap();
        let answer = String::from_utf8(answer).unwrap();
        assert!(!answer.contains("error"), "{line}: {answer}");
    }

    /// Passes to the router a request of the neighbour `who` with MAC address `at` for the router's own address;
    /// returns the frames that the router then sends.
    fn hear(&mut self, port: usize, who: &str, at: Mac) -> Vec<Sent> {
        let frame = question(port, ip(who), at);
        match self.pass(port, &frame) {
            Fate::Slow(_, sent) => sent,
            other => panic!("{other:?}"),
        }
    }

    /// Returns the frames that timers of the slow path send.
    fn due(&mut self) -> Vec<Sent> {
        let mut sent = Vec::new();
        self.handler.poll(&mut |way, frame: &[u8]| {
            sent.extend(leaving(way, frame));
            true
        });
        sent
    }

    fn counted(&self, name: &str) -> u64 {
        let outcomes = self.router.outcomes();
        outcomes.iter().find(|(it, _)| *it == name).unwrap().1
    }
}

/// Returns the frames that leave when the slow path sends `frame`, each with its port: fragments if it exceeds the MTU,
/// otherwise `frame` itself.
fn leaving(way: Passage, frame: &[u8]) -> Vec<Sent> {
    let mut all = Vec::new();
    let is_cut = way.mtu.is_some_and(|mtu| {
        taut_function::fragment::cut(frame, mtu, |head, payload| {
            all.push((way.to_port, [head, payload].concat()));
        })
    });
    if !is_cut {
        all.push((way.to_port, frame.to_vec()));
    }
    all
}

#[test]
fn every_slow_path_drop_cause_has_an_outcome_counter() {
    let outcomes = Counts::default().outcomes();
    for name in slow::DROPS {
        assert!(outcomes.iter().any(|(it, _)| *it == name), "{name}");
    }
}

#[test]
fn a_waiting_packet_dropped_for_lack_of_space_counts_once() {
    let mut bench = Bench::new("");
    let frame = datagram(0, "10.0.0.7", "10.0.1.9", 100);
    assert!(matches!(bench.pass(0, &frame), Fate::Slow(..)));
    bench.has_room = false;
    // The waiting packet is dropped, and the neighbour gets no reply.
    assert_eq!(bench.hear(1, "10.0.1.9", mac(9)), []);
    assert_eq!(
        bench.counted("slow path: dropped, as there was no room to send them"),
        1
    );
    assert_eq!(
        bench.counted("slow path: no room to send, beside the above"),
        1
    );
}

/// Returns a neighbour's request for the router's address on the given port.
fn question(port: usize, who: IpAddr, at: Mac) -> Vec<u8> {
    let mut frame = [0; resolution::LONGEST_BYTES];
    let header = |ethertype| EthernetRepr {
        destination: Mac::BROADCAST,
        source: at,
        vlan: Vlan::Untagged,
        ethertype,
    };
    let length = match who {
        IpAddr::V4(sender_ip) => {
            let asked = ArpRepr {
                operation: Operation::REQUEST,
                sender_mac: at,
                sender_ip,
                target_mac: Mac::default(),
                target_ip: [10, 0, port as u8, 1].into(),
            };
            resolution::arp_frame(&header(EtherType::ARP), &asked, &mut frame)
        }
        IpAddr::V6(who) => {
            let target = format!("2001:db8:{port}::1").parse().unwrap();
            let asked = NeighbourRepr::Solicitation { target, mac: at };
            let (group, to) = taut_wire::neighbour::solicited_node(target);
            let header = EthernetRepr {
                destination: to,
                ..header(EtherType::IPV6)
            };
            resolution::neighbour_frame(&header, (who, group), &asked, &mut frame)
        }
    };
    frame[..length.unwrap()].to_vec()
}

/// Returns a UDP datagram to the router's own MAC address on the given port.
fn datagram(port: usize, from: &str, to: &str, size: usize) -> Vec<u8> {
    let flow = UdpFlow {
        src_mac: SENDER,
        dst_mac: OWN[port],
        src_ip: ip(from),
        dst_ip: ip(to),
        ..UdpFlow::default()
    };
    flow.frame(size).unwrap()
}

/// Checks that `after` is the frame `before` with new MAC addresses and a decremented hop limit.
fn assert_forwarded(before: &[u8], after: &[u8], source: Mac, destination: Mac) {
    let ethernet = Ethernet::new(after).unwrap();
    assert_eq!(
        (ethernet.source(), ethernet.destination()),
        (source, destination)
    );
    let mut wanted = before.to_vec();
    let mut ethernet = Ethernet::new(&mut wanted[..]).unwrap();
    ethernet.set_source(source);
    ethernet.set_destination(destination);
    match ethernet.ethertype() {
        EtherType::IPV4 => {
            Ipv4::new(ethernet.payload_mut()).unwrap().decrement_ttl();
        }
        _ => {
            Ipv6::new(ethernet.payload_mut())
                .unwrap()
                .decrement_hop_limit();
        }
    }
    assert_eq!(after, wanted);
}

#[test]
fn next_hops_are_resolved_immediately_when_the_link_returns() {
    let mut bench = Bench::new("10.9.0.0/16 via 10.0.1.9");
    let asks = |sent: Vec<Sent>| -> Vec<_> {
        let asked = |(port, frame): &Sent| (*port, resolution::asked(frame));
        sent.iter().map(asked).collect()
    };
    let next_hop = (1, Some(ip("10.0.1.9")));
    assert_eq!(asks(bench.due()), [next_hop]);
    // The request was lost because the link was down. The next one would be due in a second.
    assert_eq!(bench.due(), []);
    bench.router.link_changed(1, true);
    assert_eq!(asks(bench.due()), [next_hop]);
    bench.router.link_changed(1, false);
    assert_eq!(bench.due(), []);
    bench.router.link_changed(1, true);
    assert_eq!(asks(bench.due()), [next_hop]);
}

#[test]
fn only_packets_before_neighbour_resolution_take_the_slow_path() {
    for (to, own, sender) in [
        ("10.0.1.9", "10.0.1.1", "10.0.0.7"),
        ("2001:db8:1::9", "2001:db8:1::1", "2001:db8::7"),
    ] {
        let mut bench = Bench::new("");
        let first = datagram(0, sender, to, 100);
        let Fate::Slow(taut_port::Punt::Unresolved, sent) = bench.pass(0, &first) else {
            panic!("{to}");
        };
        // The request leaves on the other port's link.
        let [(1, asked)] = sent.as_slice() else {
            panic!("{sent:?}")
        };
        assert_eq!(resolution::asked(asked), Some(ip(to)));
        let mut answer = [0; resolution::LONGEST_BYTES];
        let length = resolution::answer(asked, |it| (it == ip(to)).then_some(mac(9)), &mut answer);
        let Fate::Slow(_, sent) = bench.pass(1, &answer[..length.unwrap()]) else {
            panic!("{to}");
        };
        let [(1, forwarded)] = sent.as_slice() else {
            panic!("{sent:?}")
        };
        assert_forwarded(&first, forwarded, OWN[1], mac(9));
        let Fate::Forwarded((1, next)) = bench.pass(0, &first) else {
            panic!("{to}")
        };
        assert_forwarded(&first, &next, OWN[1], mac(9));
        // A neighbour that requests the router gets a reply, and is known from then on.
        let sent = bench.hear(0, sender, SENDER);
        assert_eq!(sent.len(), 1);
        let back = datagram(1, to, sender, 100);
        let Fate::Forwarded((0, back)) = bench.pass(1, &back) else {
            panic!("{to}")
        };
        assert_eq!(Ethernet::new(&back[..]).unwrap().destination(), SENDER);
        assert_eq!(bench.counted("forwarded"), 2);
        assert_eq!(bench.counted("slow path: forwarded"), 1);
        let _ = own;
    }
}

/// A route inside the network of a port has a longer prefix than the network. The route applies to neighbours that were
/// known before it was added, and no longer applies after its removal.
#[test]
fn a_route_inside_a_connected_network_applies_to_known_neighbours() {
    type IsRight = fn(&Fate) -> bool;
    let routes: [(&str, &str, IsRight); 3] = [
        ("blackhole", "10.0.1.0/27", |fate| {
            matches!(fate, Fate::Dropped)
        }),
        ("unreachable", "2001:db8:1::/96", |fate| {
            matches!(fate, Fate::Slow(taut_port::Punt::Unreachable, _))
        }),
        ("via", "10.0.1.0/28", |fate| match fate {
            Fate::Forwarded((2, frame)) => {
                Ethernet::new(&frame[..]).unwrap().destination() == mac(7)
            }
            _ => false,
        }),
    ];
    for (kind, prefix, is_right) in routes {
        let (to, sender) = match prefix.contains(':') {
            true => ("2001:db8:1::9", "2001:db8::7"),
            false => ("10.0.1.9", "10.0.0.7"),
        };
        let mut bench = Bench::new("");
        bench.hear(1, to, mac(9));
        bench.hear(2, "10.0.2.7", mac(7));
        let frame = datagram(0, sender, to, 100);
        let straight = |fate: &Fate| match fate {
            Fate::Forwarded((1, frame)) => {
                Ethernet::new(&frame[..]).unwrap().destination() == mac(9)
            }
            _ => false,
        };
        assert!(straight(&bench.pass(0, &frame)), "{prefix}");
        let route = match kind {
            "via" => format!("{prefix} via 10.0.2.7"),
            kind => format!("{kind} {prefix}"),
        };
        bench.ask(&format!(r#"{{"op":"add","routes":["{route}"]}}"#));
        let fate = bench.pass(0, &frame);
        assert!(is_right(&fate), "{route}: {fate:?}");
        bench.ask(&format!(r#"{{"op":"remove","prefixes":["{prefix}"]}}"#));
        let fate = bench.pass(0, &frame);
        assert!(straight(&fate), "{route}, taken away: {fate:?}");
    }
}

/// The network of a port gets a route to another port, and then a route to its own port again.
#[test]
fn a_replaced_connected_route_applies_to_known_neighbours() {
    let mut bench = Bench::new("");
    bench.hear(1, "10.0.1.9", mac(9));
    let frame = datagram(0, "10.0.0.7", "10.0.1.9", 100);
    assert!(matches!(bench.pass(0, &frame), Fate::Forwarded((1, _))));
    let set = |bench: &Bench, target| {
        let mut control = bench
            .router
            .deciding
            .as_ref()
            .unwrap()
            .control
            .lock()
            .unwrap();
        let network = taut_lpm::PrefixV4::new(u32::from_be_bytes([10, 0, 1, 0]), 24);
        control.set(Prefix::V4(network.unwrap()), target).unwrap();
    };
    set(&bench, Target::Blackhole);
    assert!(matches!(bench.pass(0, &frame), Fate::Dropped));
    set(&bench, Target::Connected(1));
    assert!(matches!(bench.pass(0, &frame), Fate::Forwarded((1, _))));
}

#[test]
fn every_packet_has_the_outcome_of_its_route_and_headers() {
    let mut bench = Bench::new(
        "default via 10.0.1.254\n10.9.0.0/16 via 10.0.1.253 dev wan\nblackhole 10.66.0.0/16\nunreachable 10.67.0.0/16\n\
         prohibit 10.68.0.0/16\n10.69.0.0/16 dev 2\n",
    );
    bench.hear(1, "10.0.1.254", mac(0xfe));
    bench.hear(1, "10.0.1.253", mac(0xfd));
    bench.hear(2, "10.0.2.9", mac(9));
    let to = |to: &str| datagram(0, "10.0.0.7", to, 100);
    for (address, next) in [("192.0.2.1", mac(0xfe)), ("10.9.3.4", mac(0xfd))] {
        let Fate::Forwarded((1, frame)) = bench.pass(0, &to(address)) else {
            panic!("{address}")
        };
        assert_forwarded(&to(address), &frame, OWN[1], next);
    }
    // Returns the type and code of the ICMP error for the sender.
    let told = |fate: Fate| {
        let Fate::Slow(_, sent) = fate else {
            panic!("{fate:?}")
        };
        let [(0, reply)] = sent.as_slice() else {
            panic!("{sent:?}")
        };
        let ethernet = Ethernet::new(&reply[..]).unwrap();
        assert_eq!(
            (ethernet.source(), ethernet.destination()),
            (OWN[0], SENDER)
        );
        let packet = Ipv4::new(ethernet.payload()).unwrap();
        assert_eq!(IpAddr::from(packet.source()), ip("10.0.0.1"));
        let icmp = Icmpv4::new(packet.payload()).unwrap();
        (icmp.kind(), icmp.code())
    };
    let with = |frame: &[u8], at: usize, bytes: &[u8]| {
        let mut frame = frame.to_vec();
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        if let Ok(mut packet) = Ipv4::new(&mut frame[14..]) {
            packet.fill_checksum();
        }
        frame
    };
    let usual = to("10.9.3.4");
    assert_eq!(told(bench.pass(0, &with(&usual, 22, &[1]))), (11, 0));
    assert_eq!(told(bench.pass(0, &with(&usual, 22, &[0]))), (11, 0));
    assert_eq!(told(bench.pass(0, &to("10.67.0.1"))), (3, 1));
    assert_eq!(told(bench.pass(0, &to("10.68.0.1"))), (3, 13));
    // These packets are a datagram to a port of the router without a listener, and an echo request.
    assert_eq!(told(bench.pass(0, &to("10.0.1.1"))), (3, 3));
    assert_eq!(bench.pass(0, &to("10.66.0.1")), Fate::Dropped);
    // A packet above the MTU is fragmented, or refused if it forbids fragmentation.
    let long = datagram(0, "10.0.0.7", "10.0.2.9", 1500);
    let may_not_be_cut = with(&long, 20, &[0x40, 0]);
    assert_eq!(told(bench.pass(0, &may_not_be_cut)), (3, 4));
    let may_be_cut = with(&long, 20, &[0, 0]);
    let Fate::Slow(_, sent) = bench.pass(0, &may_be_cut) else {
        panic!()
    };
    assert_eq!(sent.len(), 2);
    let mut whole = Vec::new();
    for (port, fragment) in &sent {
        assert_eq!(*port, 2);
        let packet = Ipv4::new(&fragment[14..]).unwrap();
        packet.verify_checksum().unwrap();
        assert!(fragment.len() - 14 <= 1280);
        assert_eq!(packet.fragment_offset_bytes(), whole.len());
        whole.extend_from_slice(packet.payload());
    }
    assert_eq!(whole, Ipv4::new(&may_be_cut[14..]).unwrap().payload());
    // Packets that are malformed, or from an invalid source, are dropped.
    let broken = {
        let mut frame = usual.clone();
        frame[24] ^= 1;
        frame
    };
    for (name, frame, outcome) in [
        ("checksum", broken, "dropped: wrong checksum"),
        ("version", with(&usual, 14, &[0x55]), "dropped: malformed"),
        (
            "length",
            with(&usual, 16, &[0xff, 0xff]),
            "dropped: malformed",
        ),
        ("short", usual[..30].to_vec(), "dropped: malformed"),
        (
            "from 127",
            with(&usual, 26, &[127, 0, 0, 1]),
            "dropped: from or to an address that nobody has",
        ),
        (
            "from a group",
            with(&usual, 26, &[224, 0, 0, 1]),
            "dropped: from or to an address that nobody has",
        ),
        (
            "to 0",
            with(&usual, 30, &[0, 0, 0, 1]),
            "dropped: from or to an address that nobody has",
        ),
        (
            "to a group",
            with(&usual, 30, &[224, 0, 0, 1]),
            "dropped: for another station",
        ),
        (
            "other station",
            with(&usual, 0, &[2, 9]),
            "dropped: for another station",
        ),
        (
            "neither",
            with(&usual, 12, &[0x88, 0xcc]),
            "dropped: neither IP nor ARP",
        ),
    ] {
        let before = bench.counted(outcome);
        assert_eq!(bench.pass(0, &frame), Fate::Dropped, "{name}");
        assert_eq!(bench.counted(outcome), before + 1, "{name}");
    }
    assert_eq!(bench.pass(7, &usual), Fate::Dropped);
    // Every packet has exactly one outcome in the worker.
    let passed: u64 = OUTCOMES.iter().map(|name| bench.counted(name)).sum();
    assert_eq!(passed, 3 + 2 + 5 + 1 + 2 + 10 + 1);
}

#[test]
fn link_local_addresses_are_never_forwarded_to_another_link() {
    let mut bench = Bench::new("2001:db8:9::/48 via fe80::9 dev wan\n");
    bench.hear(1, "fe80::9", mac(9));
    let usual = datagram(0, "2001:db8::7", "2001:db8:9::1", 100);
    let Fate::Forwarded((1, frame)) = bench.pass(0, &usual) else {
        panic!()
    };
    assert_forwarded(&usual, &frame, OWN[1], mac(9));
    for (from, to) in [
        ("fe80::7", "2001:db8:9::1"),
        ("2001:db8::7", "fe80::9"),
        ("::1", "2001:db8:9::1"),
    ] {
        assert_eq!(bench.pass(0, &datagram(0, from, to, 100)), Fate::Dropped);
    }
    // There is no route.
    let fate = bench.pass(0, &datagram(0, "2001:db8::7", "2001:dead::1", 100));
    let Fate::Slow(taut_port::Punt::Unknown, sent) = fate else {
        panic!("{fate:?}")
    };
    let packet = Ipv6::new(&sent[0].1[14..]).unwrap();
    assert_eq!(packet.payload()[..2], [1, 0]);
    // The neighbour's request also reaches the router at its link-local address.
    let own = "fe80::ff:fe00:a1".parse().unwrap();
    let asked = NeighbourRepr::Solicitation {
        target: own,
        mac: mac(9),
    };
    let header = EthernetRepr {
        destination: OWN[1],
        source: mac(9),
        vlan: Vlan::Untagged,
        ethertype: EtherType::IPV6,
    };
    let mut frame = [0; resolution::LONGEST_BYTES];
    let ends = ("fe80::9".parse().unwrap(), own);
    let length = resolution::neighbour_frame(&header, ends, &asked, &mut frame).unwrap();
    let Fate::Slow(_, sent) = bench.pass(1, &frame[..length]) else {
        panic!()
    };
    let ethernet = Ethernet::new(&sent[0].1[..]).unwrap();
    let (_, answer): (_, Neighbour<&[u8]>) = resolution::neighbour_message(&ethernet).unwrap();
    assert_eq!(answer.mac(), Some(OWN[1]));
}

#[test]
fn flows_keep_their_next_hop_until_it_is_deleted() {
    let mut bench = Bench::new(
        "10.9.0.0/16 proto static\n\tnexthop via 10.0.1.2 dev wan weight 1\n\tnexthop via 10.0.1.3 dev wan weight 1\n\
         \tnexthop via 10.0.2.2 dev 2 weight 1\n",
    );
    let hops = [
        ("10.0.1.2", 1, mac(2)),
        ("10.0.1.3", 1, mac(3)),
        ("10.0.2.2", 2, mac(4)),
    ];
    for (who, port, at) in hops {
        bench.hear(port, who, at);
    }
    let flows: Vec<_> = (0..200_u8)
        .map(|last| datagram(0, "10.0.0.7", &format!("10.9.0.{last}"), 80))
        .collect();
    let ways = |bench: &mut Bench| -> Vec<Mac> {
        let mut way = |frame: &Vec<u8>| match bench.pass(0, frame) {
            Fate::Forwarded((_, frame)) => Ethernet::new(&frame[..]).unwrap().destination(),
            other => panic!("{other:?}"),
        };
        flows.iter().map(&mut way).collect()
    };
    let before = ways(&mut bench);
    for (_, _, at) in hops {
        let share = before.iter().filter(|way| **way == at).count();
        assert!((30..=110).contains(&share), "{share} of 200");
    }
    // One neighbour leaves: its flows move, and no others.
    let control = Arc::clone(&bench.router.deciding.as_ref().unwrap().control);
    let gone = (1, ip("10.0.1.3"));
    control.lock().unwrap().forget(gone);
    let after = ways(&mut bench);
    for (then, now) in before.iter().zip(&after) {
        assert!(now != &mac(3) && (now == then || then == &mac(3)));
    }
    // The neighbour comes back, and gets flows again.
    bench.hear(1, "10.0.1.3", mac(3));
    assert!(ways(&mut bench).contains(&mac(3)));
}

#[test]
fn flows_spread_by_weight_and_the_route_lists_its_weights() {
    let text =
        "10.9.0.0/16 nexthop via 10.0.1.2 dev wan weight 9 nexthop via 10.0.2.2 dev 2 weight 3\n";
    let mut bench = Bench::new(text);
    bench.hear(1, "10.0.1.2", mac(2));
    bench.hear(2, "10.0.2.2", mac(4));
    let mut light = 0;
    for last in 0..=255_u8 {
        let frame = datagram(0, "10.0.0.7", &format!("10.9.0.{last}"), 80);
        let Fate::Forwarded((_, frame)) = bench.pass(0, &frame) else {
            panic!()
        };
        light += usize::from(Ethernet::new(&frame[..]).unwrap().destination() == mac(4));
    }
    // The member has 16 of 64 buckets. The hash key differs in each run of the test, hence the wide range.
    assert!((20..=120).contains(&light), "{light} of 256");
    let control = Arc::clone(&bench.router.deciding.as_ref().unwrap().control);
    let told = control.lock().unwrap().list();
    assert!(told.iter().any(|route| route.route == text.trim()));
}

#[test]
fn a_flood_for_an_unresolved_neighbour_never_blocks_its_reply() {
    let mut bench = Bench::new("");
    let frame = datagram(0, "10.0.0.7", "10.0.1.9", 100);
    let fates: Vec<Fate> = (0..1_000).map(|_| bench.pass(0, &frame)).collect();
    let punted = fates.iter().filter(|fate| matches!(fate, Fate::Slow(..)));
    assert_eq!(punted.count(), 256);
    assert_eq!(
        bench.counted("dropped: more than the slow path is given"),
        744
    );
    // Neighbour messages, and packets for the router itself, have separate limits.
    assert_eq!(bench.hear(1, "10.0.1.9", mac(9)).len(), 8 + 1);
    let own = bench.pass(0, &datagram(0, "10.0.0.7", "10.0.0.1", 100));
    assert!(matches!(own, Fate::Slow(taut_port::Punt::Local, _)));
    assert!(matches!(bench.pass(0, &frame), Fate::Forwarded(_)));
}

#[test]
fn route_changes_reuse_memory_while_packets_pass() {
    let mut bench = Bench::new("default via 10.0.1.254\n");
    bench.hear(1, "10.0.1.254", mac(0xfe));
    let control = Arc::clone(&bench.router.deciding.as_ref().unwrap().control);
    let frame = datagram(0, "10.0.0.7", "192.0.2.200", 100);
    /// The number of route changes in the test: more than the 32,768 blocks of memory that exist at one time.
    const ROUNDS: u32 = 40_000;
    for round in 0..ROUNDS {
        let prefix = Prefix::of(ip("192.0.2.200"), 25 + (round % 7) as u8);
        let via = Target::via((2, IpAddr::from([10, 0, 2, (round % 200) as u8 + 2])));
        let mut control = control.lock().unwrap();
        control.set(prefix, via).unwrap();
        assert!(control.remove(prefix).unwrap());
        assert!(!control.remove(prefix).unwrap());
        if round % 100 == 0 {
            control.tick(Instant::now());
            drop(control);
            assert!(matches!(bench.pass(0, &frame), Fate::Forwarded((1, _))));
        }
    }
    // A route to a host behind a port replaces its learned host route, and the other way round.
    bench.hear(2, "10.0.2.9", mac(9));
    let station = Prefix::host(ip("10.0.2.9"));
    let to_station = datagram(0, "10.0.0.7", "10.0.2.9", 100);
    assert!(matches!(
        bench.pass(0, &to_station),
        Fate::Forwarded((2, _))
    ));
    control
        .lock()
        .unwrap()
        .set(station, Target::Blackhole)
        .unwrap();
    assert_eq!(bench.pass(0, &to_station), Fate::Dropped);
    assert!(control.lock().unwrap().remove(station).unwrap());
    assert!(matches!(
        bench.pass(0, &to_station),
        Fate::Forwarded((2, _))
    ));
    let changes = 2 * u64::from(ROUNDS) + 2;
    assert_eq!(bench.router.count_of("route_changes"), Some(changes));
    // The same route again is no change.
    let default = Prefix::of(ip("0.0.0.0"), 0);
    let via = control.lock().unwrap().get(default).cloned().unwrap();
    control.lock().unwrap().set(default, via).unwrap();
    assert_eq!(bench.router.count_of("route_changes"), Some(changes));
}

#[test]
fn errors_quote_the_invalid_setting_or_route() {
    let read = |text: &str| {
        let settings: Settings = toml::from_str(text).unwrap();
        settings.check().map(drop).unwrap_err().to_string()
    };
    let interface = |more: &str| format!("[[interface]]\nmac = \"02:00:00:00:00:01\"\n{more}");
    for (text, part) in [
        (
            String::new(),
            "expected a [[function.interface]] for each port",
        ),
        (
            interface("addresses = []"),
            "interface 0: addresses: expected 1 to 64, not 0",
        ),
        (
            interface("addresses = [\"10.0.0.1/33\"]"),
            "expected an address such as 192.0.2.1/24, not \"10.0.0.1/33\"",
        ),
        (
            interface("addresses = [\"224.0.0.1/4\"]"),
            "not a unicast address",
        ),
        (
            interface("addresses = [\"10.0.0.1/24\", \"10.0.0.1/25\"]"),
            "10.0.0.1 is listed twice",
        ),
        (
            interface("addresses = [\"10.0.0.1/24\"]\nmtu = 100"),
            "mtu = 100: expected 1280 to 9000",
        ),
        (
            "[[interface]]\nmac = \"ff:ff:ff:ff:ff:ff\"\naddresses = [\"10.0.0.1/24\"]".to_string(),
            "not a unicast address",
        ),
        (
            format!(
                "routes = \"/nowhere\"\n{}",
                interface("addresses = [\"10.0.0.1/24\"]")
            ),
            "routes: /nowhere: No such file",
        ),
    ] {
        let error = read(&text);
        assert!(error.contains(part), "{text}: {error}");
    }
    let settings: Settings = toml::from_str(SETTINGS).unwrap();
    let checked = settings.check().unwrap();
    let (interfaces, tables) = (checked.interfaces, checked.tables);
    for (line, part) in [
        (
            "10.0.0.1/8 via 10.0.1.2",
            "write 10.0.0.0/8, not 10.0.0.1/8",
        ),
        ("10.0.0.0/33 via 10.0.1.2", "expected a prefix such as"),
        (
            "banana",
            "expected a prefix such as 192.0.2.0/24, not 'banana'",
        ),
        (
            "via",
            "not 'via'; on a command line, quote each route: 'PREFIX via ADDRESS'",
        ),
        ("blackhole", "not ''; on a command line, quote each route"),
        ("10.0.0.0/8", "expected `via ADDRESS`"),
        (
            "10.0.0.0/8 via 10.9.9.9",
            "10.9.9.9 is in no network of an interface",
        ),
        ("10.0.0.0/8 via 10.0.1.1", "10.0.1.1 is the router's own"),
        (
            "10.0.0.0/8 via 10.0.1.2 dev eth7",
            "unknown interface 'eth7'; the interfaces are lan, wan, 2",
        ),
        ("10.0.0.0/8 via 2001:db8::2", "of another family"),
        (
            "10.0.0.0/8 via 10.0.1.2 quickly",
            "'quickly' is not understood",
        ),
        (
            "10.0.0.0/8 via 10.0.1.2 weight 257",
            "weight: expected 1 to 256, not '257'",
        ),
        (
            "10.0.0.0/8 via 10.0.1.2 weight",
            "weight: expected 1 to 256, not ''",
        ),
        (
            "\tnexthop via 10.0.1.2",
            "next hop without a route before it",
        ),
    ] {
        let (number, reason) =
            text::parse(&format!("# routes\n\n{line}\n"), &interfaces, &tables).unwrap_err();
        assert_eq!(number, 3, "{line}");
        assert!(reason.contains(part), "{line}: {reason}");
    }
    let right = "default via 10.0.1.254 dev wan proto bgp metric 20 # the internet\n10.3.0.0/16 dev lan scope link src 10.0.0.1\n\
                 10.4.4.4 via 10.0.1.2\nunreachable default dev lo metric 4294967295 error -101 pref medium\n\
                 2001:db8:9::/48 via fe80::1 dev wan metric 1024 onlink pref medium\n";
    let routes = text::parse(right, &interfaces, &tables).unwrap();
    assert_eq!(routes.len(), 5);
    assert_eq!(routes[0].target, Target::via((1, ip("10.0.1.254"))));
    assert_eq!(routes[1].target, Target::Connected(0));
    assert_eq!(routes[2].network.prefix, Prefix::host(ip("10.4.4.4")));
    assert_eq!(routes[4].target, Target::via((1, ip("fe80::1"))));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn decrementing_the_ttl_leaves_a_correct_checksum(ttl in 2_u8.., identification: u16, source: [u8; 4], v6: bool) {
        let mut frame = match v6 {
            false => datagram(0, "10.0.0.7", "10.9.3.4", 100),
            true => datagram(0, "2001:db8::7", "2001:db8:1::9", 100),
        };
        if v6 {
            frame[21] = ttl;
        } else {
            frame[18..20].copy_from_slice(&identification.to_be_bytes());
            frame[22] = ttl;
            frame[26..30].copy_from_slice(&source);
            Ipv4::new(&mut frame[14..]).unwrap().fill_checksum();
        }
        let mut after = frame.clone();
        fast::rewrite(&mut after, OWN[1], mac(9));
        assert_forwarded(&frame, &after, OWN[1], mac(9));
        if !v6 {
            Ipv4::new(&after[14..]).unwrap().verify_checksum().unwrap();
        }
    }

    #[test]
    fn no_packet_bytes_make_the_router_panic(port in 0_usize..4, mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0_usize..4) {
        let mut bench = BENCH.with(|bench| bench.borrow_mut().take()).unwrap_or_else(|| Bench::new("default via 10.0.1.254\n"));
        if bytes.len() >= 14 {
            bytes[..6].copy_from_slice(&OWN[port.min(2)].0);
            let kinds = [[0x08, 0], [0x86, 0xdd], [0x08, 0x06], [0x81, 0]];
            bytes[12..14].copy_from_slice(&kinds[kind]);
        }
        bench.pass(port, &bytes);
        BENCH.with(|kept| *kept.borrow_mut() = Some(bench));
    }
}

thread_local! {
    static BENCH: std::cell::RefCell<Option<Bench>> = const { std::cell::RefCell::new(None) };
}

#[test]
fn arp_requests_for_other_hosts_add_no_neighbour() {
    let mut bench = Bench::new("");
    let mut frame = question(0, ip("10.0.0.50"), mac(50));
    // The neighbour requests the address of another host.
    let mut arp = Arp::new(&frame[14..]).map(|_| ()).map(|()| ArpRepr {
        operation: Operation::REQUEST,
        sender_mac: mac(50),
        sender_ip: "10.0.0.50".parse().unwrap(),
        target_mac: Mac::default(),
        target_ip: "10.0.0.60".parse().unwrap(),
    });
    let other = arp.as_mut().unwrap();
    other.emit(&mut frame[14..]).unwrap();
    assert_eq!(bench.pass(0, &frame), Fate::Dropped);
    let to = datagram(1, "10.0.1.7", "10.0.0.50", 100);
    assert!(matches!(
        bench.pass(1, &to),
        Fate::Slow(taut_port::Punt::Unresolved, _)
    ));
}
