//! Tests of the translator's changes to packets, checked by an independent parser.
#![allow(clippy::unwrap_used)]

mod connections;
mod limits;

use super::*;
use etherparse::{Icmpv4Slice, PacketBuilder, SlicedPacket, TransportSlice};
use proptest::prelude::*;
use std::net::Ipv4Addr;
use taut_function::testing::batch_of;

const OUTSIDE: [u8; 4] = [203, 0, 113, 1];
const PEER: [u8; 4] = [198, 51, 100, 7];

fn nat(more: &str) -> Box<dyn Function> {
    let text = format!("outside = [1]\naddress = \"203.0.113.1\"\nseed = 1\n{more}");
    let mut nat = (ENTRY.build)(text.parse().unwrap()).unwrap();
    nat.prepare().unwrap();
    nat
}

/// Returns a frame after its translation at a time in ticks; none if it is dropped.
fn at(nat: &mut dyn Function, frame: &[u8], to_port: usize, now_ticks: u64) -> Option<Vec<u8>> {
    let mut batch = batch_of(frame, 0);
    let context = Context {
        now_ticks,
        from_port: 1 - to_port,
        to_port,
        ports: 2,
    };
    nat.process(&mut batch, &context);
    let bytes = batch.packets()[0].bytes().to_vec();
    batch.is_kept(0).then_some(bytes)
}

fn out(nat: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    at(nat, frame, 1, 0)
}

fn back(nat: &mut dyn Function, frame: &[u8]) -> Option<Vec<u8>> {
    at(nat, frame, 0, 0)
}

#[test]
fn the_actual_egress_port_decides_whether_a_packet_is_translated() {
    let text = "outside = [2]\naddress = \"203.0.113.1\"\nseed = 1";
    let mut nat = (ENTRY.build)(text.parse().unwrap()).unwrap();
    nat.prepare().unwrap();
    let frame = packet(Kind::Udp, ([10, 0, 0, 2], 7), (PEER, 9), b"");
    for egress in [None, Some(2), Some(3)] {
        let mut batch = batch_of(&frame, 0);
        if let Some(port) = egress {
            batch.send_to(0, port);
        }
        let context = Context {
            now_ticks: 0,
            from_port: 0,
            to_port: 1,
            ports: 4,
        };
        nat.process(&mut batch, &context);
        let is_out = batch.is_kept(0) && ends(batch.packets()[0].bytes()).0.0 == OUTSIDE;
        assert_eq!(is_out, egress == Some(2), "{egress:?}");
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Udp,
    Tcp,
    Echo,
}

fn packet(kind: Kind, from: ([u8; 4], u16), to: ([u8; 4], u16), payload: &[u8]) -> Vec<u8> {
    let builder = PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(from.0, to.0, 64);
    let mut bytes = Vec::new();
    match kind {
        Kind::Udp => builder.udp(from.1, to.1).write(&mut bytes, payload),
        Kind::Tcp => builder
            .tcp(from.1, to.1, 7, 1000)
            .ack(9)
            .write(&mut bytes, payload),
        Kind::Echo => builder
            .icmpv4_echo_request(from.1, 3)
            .write(&mut bytes, payload),
    }
    .unwrap();
    bytes
}

/// Returns the source and destination endpoint of a frame, after a check of every checksum.
fn ends(frame: &[u8]) -> (([u8; 4], u16), ([u8; 4], u16)) {
    let sliced = SlicedPacket::from_ethernet(frame).unwrap();
    let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else {
        panic!("IPv4")
    };
    let header = ip.header().to_header();
    assert_eq!(header.header_checksum, header.calc_header_checksum());
    let (source, destination) = match sliced.transport.as_ref().unwrap() {
        TransportSlice::Udp(udp) => {
            let right = udp.to_header().calc_checksum_ipv4(&header, udp.payload());
            assert_eq!(udp.checksum(), right.unwrap());
            (udp.source_port(), udp.destination_port())
        }
        TransportSlice::Tcp(tcp) => {
            let right = tcp.to_header().calc_checksum_ipv4(&header, tcp.payload());
            assert_eq!(tcp.checksum(), right.unwrap());
            (tcp.source_port(), tcp.destination_port())
        }
        TransportSlice::Icmpv4(icmp) => {
            is_icmp_right(icmp);
            let [a, b, ..] = icmp.bytes5to8();
            let identifier = u16::from_be_bytes([a, b]);
            (identifier, identifier)
        }
        other => panic!("{other:?}"),
    };
    ((header.source, source), (header.destination, destination))
}

fn is_icmp_right(icmp: &Icmpv4Slice<'_>) {
    assert_eq!(
        icmp.header().icmp_type.calc_checksum(icmp.payload()),
        icmp.checksum()
    );
}

fn any_kind() -> impl Strategy<Value = Kind> {
    prop_oneof![Just(Kind::Udp), Just(Kind::Tcp), Just(Kind::Echo)]
}

thread_local! {
    /// The translator of a property test, which its cases share: creating a translator takes longer than a case.
    static NAT: std::cell::RefCell<Option<Box<dyn Function>>> = const { std::cell::RefCell::new(None) };
}

proptest! {
    #[test]
    fn translation_and_its_reverse_change_only_address_port_and_checksum(
        kind in any_kind(), host: [u8; 2], port: u16, peer_port: u16,
        payload in proptest::collection::vec(any::<u8>(), 0..200)
    ) {
        let mut nat = NAT.take().unwrap_or_else(|| nat(""));
        let inside = ([10, 0, host[0], host[1]], port);
        let sent = packet(kind, inside, (PEER, peer_port), &payload);
        let translated = out(&mut *nat, &sent).unwrap();
        let (from, to) = ends(&translated);
        prop_assert_eq!((from.0, to.0), (OUTSIDE, PEER));
        prop_assert!(from.1 >= 1024 && from.1 % 2 == port % 2);
        // Only address, port and checksums change.
        let mut undone = translated.clone();
        undone[26..30].copy_from_slice(&sent[26..30]);
        undone[24..26].copy_from_slice(&sent[24..26]);
        let (port_at, checksum_at) = match kind {
            Kind::Udp => (34, 40),
            Kind::Tcp => (34, 50),
            Kind::Echo => (38, 36),
        };
        for place in [port_at, checksum_at] {
            undone[place..place + 2].copy_from_slice(&sent[place..place + 2]);
        }
        prop_assert_eq!(&undone, &sent);
        // Every peer can reply.
        for peer in [PEER, [192, 0, 2, 200]] {
            let answer = packet(kind, (peer, peer_port), (OUTSIDE, from.1), &payload);
            // An echo has the identifier.
            let answer = if kind == Kind::Echo {
                packet(kind, (peer, from.1), (OUTSIDE, from.1), &payload)
            } else {
                answer
            };
            let came = back(&mut *nat, &answer).unwrap();
            prop_assert_eq!(ends(&came).1, inside);
            prop_assert_eq!(ends(&came).0.0, peer);
        }
        // The mapping still exists: the same packet gets the same translation.
        prop_assert_eq!(out(&mut *nat, &sent).unwrap(), translated);
        // A wrong checksum stays wrong; a UDP checksum may also be missing.
        let mut wrong = sent.clone();
        wrong[checksum_at] ^= 1;
        let wrong = out(&mut *nat, &wrong).unwrap();
        prop_assert!(std::panic::catch_unwind(|| ends(&wrong)).is_err());
        if kind == Kind::Udp {
            let mut none = sent;
            none[40..42].fill(0);
            prop_assert_eq!(&out(&mut *nat, &none).unwrap()[40..42], &[0, 0]);
        }
        NAT.set(Some(nat));
    }

    #[test]
    fn icmp_errors_are_translated_together_with_the_packet_they_quote(
        kind in any_kind(), port: u16, payload in proptest::collection::vec(any::<u8>(), 0..40),
        // A length of 37 bytes is excluded: the quote would end within the TCP checksum, and half of a checksum cannot
        // be updated.
        quoted in prop_oneof![28_usize..37, 38_usize..100]
    ) {
        let mut nat = NAT.take().unwrap_or_else(|| nat(""));
        let inside = ([10, 0, 0, 9], port);
        let sent = packet(kind, inside, (PEER, 53), &payload);
        let translated = out(&mut *nat, &sent).unwrap();
        let router = [192, 0, 2, 1];
        let error = |to: [u8; 4], about: &[u8]| {
            let about = &about[14..];
            let about = &about[..quoted.min(about.len())];
            let mut bytes = Vec::new();
            let kind = etherparse::Icmpv4Type::TimeExceeded(etherparse::icmpv4::TimeExceededCode::TtlExceededInTransit);
            PacketBuilder::ethernet2([2; 6], [4; 6]).ipv4(router, to, 64).icmpv4(kind).write(&mut bytes, about).unwrap();
            bytes
        };
        let came = back(&mut *nat, &error(OUTSIDE, &translated)).unwrap();
        ends(&came);
        prop_assert_eq!(came, error(inside.0, &sent));
        // In the other direction, a host inside sends an error about a reply.
        let answer = match kind {
            Kind::Echo => packet(kind, (PEER, ends(&translated).0.1), (OUTSIDE, 0), &payload),
            kind => packet(kind, (PEER, 53), (OUTSIDE, ends(&translated).0.1), &payload),
        };
        let arrived = back(&mut *nat, &answer).unwrap();
        let complaint = |from: [u8; 4], about: &[u8]| {
            let mut it = error(PEER, about);
            it[26..30].copy_from_slice(&from);
            it[24..26].fill(0);
            let sum = taut_wire::Sum::of(&it[14..34]).checksum();
            it[24..26].copy_from_slice(&sum.to_be_bytes());
            it
        };
        let left = out(&mut *nat, &complaint(inside.0, &arrived)).unwrap();
        prop_assert_eq!(left, complaint(OUTSIDE, &answer));
        NAT.set(Some(nat));
    }
}

fn counts(nat: &dyn Function) -> Vec<u64> {
    nat.outcomes().into_iter().map(|(_, n)| n).collect()
}

#[test]
fn untranslatable_packets_are_counted_by_cause_and_non_ipv4_passes() {
    let mut nat = nat("ports = \"2000-2001\"\nmappings = 2\n");
    let inside = |n| ([10, 0, 0, 1], n);
    let udp = |from, to| packet(Kind::Udp, from, to, b"x");
    let peer = (PEER, 53);
    assert!(back(&mut *nat, &udp(peer, (OUTSIDE, 2000))).is_none());
    assert!(out(&mut *nat, &udp(inside(2), peer)).is_some());
    assert!(out(&mut *nat, &udp(inside(4), peer)).is_none());
    assert!(out(&mut *nat, &udp(inside(3), peer)).is_some());
    assert!(out(&mut *nat, &packet(Kind::Tcp, inside(3), peer, b"")).is_none());
    assert!(back(&mut *nat, &udp(peer, ([10, 0, 0, 1], 2))).is_none());
    assert!(out(&mut *nat, &udp(inside(2), (OUTSIDE, 2000))).is_none());
    let whole = udp(inside(2), peer);
    let mut fragment = whole.clone();
    fragment[20] = 0x20;
    assert!(out(&mut *nat, &fragment).is_none());
    let mut other = whole.clone();
    other[23] = 47;
    assert!(out(&mut *nat, &other).is_none());
    for length in 0..whole.len() {
        assert!(out(&mut *nat, &whole[..length]).is_none(), "{length}");
    }
    let mut arp = whole.clone();
    arp[12..14].copy_from_slice(&[8, 6]);
    assert_eq!(out(&mut *nat, &arp), Some(arp));
    let malformed = whole.len() as u64;
    assert_eq!(
        counts(&*nat),
        [2, 0, 0, 1, 1, 1, 1, 1, 1, 0, 1, 1, malformed]
    );
}

#[test]
fn a_mapping_expires_when_its_host_stays_idle() {
    let mut nat = nat("udp_timeout = \"2s\"\n");
    let sent = packet(Kind::Udp, ([10, 0, 0, 1], 9), (PEER, 53), b"x");
    let hz = Clock::calibrate(Duration::from_millis(20)).hz as u64;
    let (from, _) = ends(&at(&mut *nat, &sent, 1, hz).unwrap());
    let answer = packet(Kind::Udp, (PEER, 53), from, b"y");
    assert!(at(&mut *nat, &answer, 0, hz * 29 / 10).is_some());
    // Replies do not refresh the mapping (RFC 4787, REQ-6).
    assert!(at(&mut *nat, &answer, 0, hz * 31 / 10).is_none());
    // The host gets its port back.
    assert_eq!(ends(&at(&mut *nat, &sent, 1, hz * 4).unwrap()).0, from);
    assert!(at(&mut *nat, &answer, 0, hz * 5).is_some());
}

#[test]
fn inside_servers_are_reached_and_reply_at_their_outside_ports() {
    let mut nat = nat(
        "forward = [{ protocol = \"tcp\", port = 80, to = \"10.0.0.5:8080\" }, { protocol = \"udp\", port = 53, to = \"10.0.0.6:53\" }]",
    );
    let server = ([10, 0, 0, 5], 8080);
    let request = packet(Kind::Tcp, (PEER, 999), (OUTSIDE, 80), b"GET");
    assert_eq!(
        ends(&at(&mut *nat, &request, 0, u64::MAX).unwrap()).1,
        server
    );
    let response = packet(Kind::Tcp, server, (PEER, 999), b"200");
    assert_eq!(ends(&out(&mut *nat, &response).unwrap()).0, (OUTSIDE, 80));
    assert!(back(&mut *nat, &packet(Kind::Udp, (PEER, 9), (OUTSIDE, 80), b"")).is_none());
}

#[test]
fn hosts_with_equal_ports_in_a_batch_get_different_mappings() {
    let mut nat = nat("");
    let pool = taut_port::PoolHandle::new(64, false).unwrap();
    let mut batch = Batch::new();
    for n in 0..64 {
        let frame = packet(Kind::Udp, ([10, 0, 0, n / 2], 5000), (PEER, 53), b"x");
        let mut it = pool.take(frame.len() as u16).unwrap();
        it.bytes_mut().copy_from_slice(&frame);
        batch.push(it);
    }
    let context = Context {
        to_port: 1,
        ..Context::default()
    };
    nat.process(&mut batch, &context);
    let ports: Vec<u16> = batch
        .packets()
        .iter()
        .map(|it| ends(it.bytes()).0.1)
        .collect();
    let different: std::collections::HashSet<_> = ports.iter().collect();
    assert_eq!(different.len(), 32);
    assert!(ports.chunks(2).all(|pair| pair[0] == pair[1]));
}

#[test]
fn invalid_nat_settings_are_refused_with_a_remedy() {
    let wrong = |text: &str| (ENTRY.build)(text.parse().unwrap()).err().unwrap().0;
    let base = "outside = [1]\naddress = \"203.0.113.1\"\n";
    for (text, part) in [
        ("address = \"203.0.113.1\"", "outside"),
        ("outside = []\naddress = \"203.0.113.1\"", "[1]"),
        ("outside = [1]\naddress = \"x\"", "203.0.113.1"),
        ("outside = [1]\naddress = []", "1 to 16"),
        (
            "outside = [1]\naddress = \"224.0.0.1\"",
            "a unicast address",
        ),
        (
            "outside = [1]\naddress = [\"1.2.3.4\", \"1.2.3.4\"]",
            "twice",
        ),
        (&format!("{base}ports = \"9-9\""), "1024-65535"),
        (
            &format!("{base}mappings = 0"),
            "mappings = 0: expected 1 to 1048576",
        ),
        (
            &format!("{base}mappings_per_host = 0"),
            "mappings_per_host = 0",
        ),
        (
            &format!("{base}udp_timeout = \"5ms\""),
            "udp_timeout = \"5ms\": expected 1s",
        ),
        (
            &format!("{base}forward = [{{ protocol = \"tcp\", port = 1, to = \"10.0.0.1\" }}]"),
            "forward 1: to: expected an address with a port",
        ),
        (
            &format!(
                "{base}forward = [{{ protocol = \"tcp\", port = 1, to = \"10.0.0.1:1\", address = \"1.1.1.1\" }}]"
            ),
            "forward 1: its address",
        ),
        (
            &format!(
                "{base}forward = [{{ protocol = \"tcp\", port = 1, to = \"10.0.0.1:1\" }}, {{ protocol = \"tcp\", port = 1, to = \"10.0.0.1:2\" }}]"
            ),
            "forward 2: port 1",
        ),
    ] {
        assert!(wrong(text).contains(part), "{text}: {}", wrong(text));
    }
    assert_eq!(Ipv4Addr::from(OUTSIDE).to_string(), "203.0.113.1");
}
