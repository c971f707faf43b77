#![allow(clippy::unwrap_used)]

mod scapy;

use super::slot::Slot;
use super::*;
use proptest::prelude::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use taut_function::slow::{Passage, Punted};
use taut_port::{PoolHandle, Punt};
use taut_wire::gtpu::{
    ErrorIndication, Extensions, MessageType, PduSession, UDP_PORT, emit_echo_request,
};
use taut_wire::{
    EtherType, Ethernet, Gtpu, GtpuRepr, IpProtocol, Ipv4, Ipv6, Mac, Protocol, Tunnel, Udp,
    UdpFlow, VlanTag,
};

const OWN4: &str = "192.0.2.1";
const OWN6: &str = "2001:db8::1";

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A gateway without sockets: its data plane and its control plane.
struct Bench {
    plane: Plane,
    control: Control,
    pool: PoolHandle,
    now_ticks: u64,
    slow: Answering,
    /// The frames that the slow path has created, and their egress ports.
    made: Vec<(usize, Vec<u8>)>,
}

impl Bench {
    fn new(settings: &str) -> Self {
        let text = format!("address = [\"{OWN4}\", \"{OWN6}\"]\n{settings}");
        let settings: Settings = text.parse::<toml::Table>().unwrap().try_into().unwrap();
        let checked = settings.check().map_err(|e| e.0).unwrap();
        let mut gateway = Gateway::new(checked);
        let control = gateway.start().unwrap();
        let Checked { own, macs, .. } = &gateway.checked;
        Self {
            slow: Answering::new(Own::new(own), macs.clone(), Arc::default()),
            plane: gateway.plane.unwrap(),
            control,
            pool: PoolHandle::new(256, false).unwrap(),
            now_ticks: 0,
            made: Vec::new(),
        }
    }

    fn with(lines: &str) -> Self {
        let mut gateway = Self::new("");
        gateway.add(lines);
        gateway
    }

    fn add(&mut self, lines: &str) {
        let bearers = read_csv(lines, self.control.own()).unwrap();
        let wishes: Vec<_> = bearers.iter().map(|(_, b)| Wish::Put(*b)).collect();
        self.control.grant(&wishes).unwrap();
        while self.plane.take_changes() {}
    }

    /// Passes frames from port 0 to port 1, or from port 1 to port 0; returns the frames that leave.
    fn pass(&mut self, frames: &[Vec<u8>], from_port: usize) -> Vec<Vec<u8>> {
        let mut batch = Batch::new();
        for frame in frames {
            let mut packet = self.pool.take(frame.len() as u16).unwrap();
            packet.bytes_mut().copy_from_slice(frame);
            batch.push(packet);
        }
        self.pass_batch(&mut batch, from_port)
    }

    fn pass_batch(&mut self, batch: &mut Batch, from_port: usize) -> Vec<Vec<u8>> {
        let context = Context {
            from_port,
            to_port: 1 - from_port,
            now_ticks: self.now_ticks,
            ports: 2,
        };
        self.plane.process(batch, &context);
        let mut punted = Batch::new();
        batch.settle(&mut punted);
        for (index, packet) in punted.packets().iter().enumerate() {
            let punted = Punted {
                frame: packet.bytes(),
                from_port,
                cause: punted.cause(index),
            };
            let made = &mut self.made;
            let mut send = |way: Passage, frame: &[u8]| {
                made.push((way.to_port, frame.to_vec()));
                true
            };
            assert!(self.slow.handle(&punted, &mut send), "{punted:?}");
        }
        batch.packets().iter().map(|p| p.bytes().to_vec()).collect()
    }

    /// Returns the frames that the gateway has created and sends through a port.
    fn answers(&mut self, port: usize) -> Vec<Vec<u8>> {
        let mut answers = self.pass(&[], 1 - port);
        let made = self.made.extract_if(.., |(to, _)| *to == port);
        answers.extend(made.map(|(_, frame)| frame));
        answers
    }

    fn count(&self, outcome: Outcome) -> u64 {
        self.plane.counts[outcome as usize]
    }

    fn counted(&self) -> u64 {
        self.plane.counts.iter().sum()
    }
}

fn flow(source: &str, destination: &str) -> UdpFlow {
    UdpFlow {
        src_ip: address(source),
        dst_ip: address(destination),
        ..UdpFlow::default()
    }
}

/// Returns a frame to the gateway with a user packet in a tunnel. `len` is the length of the complete frame in bytes,
/// without frame check sequence.
fn tunnelled(outer_v4: bool, inner_v4: bool, teid: u32, len: usize) -> Vec<u8> {
    let tunnel = Tunnel {
        teid,
        src_ip: address(if outer_v4 { "192.0.2.7" } else { "2001:db8::7" }),
        dst_ip: address(if outer_v4 { OWN4 } else { OWN6 }),
    };
    let inner = if inner_v4 {
        flow("10.45.0.2", "198.19.0.1")
    } else {
        flow("2001:db8:45::2", "2001:db8:99::1")
    };
    inner
        .frame_as(Protocol::Udp, Some(&tunnel), len + 4)
        .unwrap()
}

/// Returns the frame with a correct outer UDP checksum.
fn with_checksum(mut frame: Vec<u8>) -> Vec<u8> {
    let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
    if ethernet.ethertype() == EtherType::IPV4 {
        let mut ip = Ipv4::new(ethernet.payload_mut()).unwrap();
        let pseudo = ip.pseudo_header(ip.payload().len() as u16);
        Udp::new(ip.payload_mut()).unwrap().fill_checksum(pseudo);
    } else {
        let mut ip = Ipv6::new(ethernet.payload_mut()).unwrap();
        let pseudo = ip.pseudo_header(IpProtocol::UDP, ip.payload().len() as u32);
        Udp::new(ip.payload_mut()).unwrap().fill_checksum(pseudo);
    }
    frame
}

/// The contents of a tunnel's frame; every checksum is verified.
#[derive(Debug, PartialEq, Eq)]
struct Opened {
    source: IpAddr,
    destination: IpAddr,
    hops: u8,
    teid: u32,
    sequence: Option<u16>,
    message: u8,
    qfi: Option<u8>,
    has_checksum: bool,
    payload: Vec<u8>,
}

fn open(frame: &[u8]) -> Opened {
    let ethernet = Ethernet::new(frame).unwrap();
    let (source, destination, hops, datagram, pseudo) = if ethernet.ethertype() == EtherType::IPV4 {
        let ip = Ipv4::new(ethernet.payload()).unwrap();
        ip.verify_checksum().unwrap();
        let pseudo = ip.pseudo_header(ip.payload().len() as u16);
        let datagram = ip.payload().to_vec();
        (
            ip.source().into(),
            ip.destination().into(),
            ip.ttl(),
            datagram,
            pseudo,
        )
    } else {
        let ip = Ipv6::new(ethernet.payload()).unwrap();
        let pseudo = ip.pseudo_header(IpProtocol::UDP, ip.payload().len() as u32);
        let datagram = ip.payload().to_vec();
        (
            ip.source().into(),
            ip.destination().into(),
            ip.hop_limit(),
            datagram,
            pseudo,
        )
    };
    let udp = Udp::new(&datagram[..]).unwrap();
    udp.verify_checksum(pseudo).unwrap();
    assert_eq!(udp.destination_port(), UDP_PORT);
    let gtpu = Gtpu::new(udp.payload()).unwrap();
    Opened {
        source,
        destination,
        hops,
        teid: gtpu.teid(),
        sequence: gtpu.sequence(),
        message: gtpu.message_type().0,
        qfi: gtpu.pdu_session().map(|s| s.qfi),
        has_checksum: udp.checksum() != 0,
        payload: gtpu.payload().to_vec(),
    }
}

#[test]
fn relaying_rewrites_tunnel_addresses_and_ttl_and_keeps_checksums_valid() {
    let mut gateway = Bench::with(
        "0x10,relay,0xdeadbeef,192.0.2.9\n0x11,relay,0x22,2001:db8::9\n0x12,relay,0x23,192.0.2.9,,198.51.100.1",
    );
    for (outer_v4, teid) in [
        (true, 0x10),
        (false, 0x10),
        (true, 0x11),
        (false, 0x11),
        (true, 0x12),
    ] {
        for inner_v4 in [true, false] {
            for checksum in [true, false] {
                let mut frame = tunnelled(outer_v4, inner_v4, teid, 180);
                if checksum {
                    frame = with_checksum(frame);
                } else if !outer_v4 {
                    // Over IPv6, frames without a checksum are tested as they are.
                    assert!(!open(&frame).has_checksum);
                }
                let before = open(&frame);
                let out = gateway.pass(std::slice::from_ref(&frame), 0);
                let after = open(&out[0]);
                let to_v4 = teid != 0x11;
                let same_version = outer_v4 == to_v4;
                assert_eq!(after.teid, [0xdead_beef, 0x22, 0x23][teid as usize - 0x10]);
                let local = match (teid, to_v4) {
                    (0x12, _) => "198.51.100.1",
                    (_, true) => OWN4,
                    (_, false) => OWN6,
                };
                assert_eq!(after.source, address(local));
                let remote = if to_v4 { "192.0.2.9" } else { "2001:db8::9" };
                assert_eq!(after.destination, address(remote));
                assert_eq!(after.hops, if same_version { before.hops - 1 } else { 64 });
                assert_eq!(after.payload, before.payload);
                if same_version {
                    assert_eq!(after.has_checksum, checksum);
                    assert_eq!(out[0].len(), frame.len());
                } else {
                    assert_eq!(after.has_checksum, !to_v4);
                }
            }
        }
    }
    assert_eq!(gateway.count(Outcome::Relayed), 20);
    assert_eq!(gateway.counted(), 20);
}

/// Returns a frame with a sequence number, an N-PDU number and two extension headers, the first of which is a PDU
/// session container.
fn decorated(message: MessageType, kind: u8) -> Vec<u8> {
    let plain = tunnelled(true, true, 0x10, 120);
    let user = open(&plain).payload;
    let chain = [1, 0x10, 9, kind, 2, 1, 2, 3, 4, 5, 6, 0];
    let repr = GtpuRepr {
        message_type: message,
        teid: 0x10,
        sequence: Some(77),
        n_pdu: Some(5),
        extensions: Some(Extensions {
            first: 0x85,
            bytes: &chain,
        }),
        payload_len_bytes: user.len(),
    };
    let mut frame = vec![0; 14 + 28 + repr.header_len_bytes() + user.len()];
    let mut gtpu = repr.emit(&mut frame[42..]).unwrap();
    gtpu.payload_mut().copy_from_slice(&user);
    frame[..14].copy_from_slice(&plain[..14]);
    let path = Path {
        local: address("192.0.2.7"),
        remote: address(OWN4),
    };
    rewrite::write_outer(&mut frame[14..], &path, 0).unwrap();
    with_checksum(frame)
}

#[test]
fn sequence_numbers_and_optional_extension_headers_are_relayed_unchanged() {
    let mut gateway = Bench::with("0x10,relay,0x20,192.0.2.9");
    for message in [MessageType::G_PDU, MessageType::END_MARKER] {
        // A relay ignores headers that only a tunnel endpoint has to understand.
        let frame = decorated(message, 0x80);
        let out = gateway.pass(std::slice::from_ref(&frame), 0);
        let opened = open(&out[0]);
        assert_eq!((opened.sequence, opened.qfi), (Some(77), Some(9)));
        assert_eq!(opened.message, message.0);
        assert_eq!(out[0][42 + 8..], frame[42 + 8..]);
    }
    // Every node has to understand these headers, so they are not ignored.
    assert!(
        gateway
            .pass(&[decorated(MessageType::G_PDU, 0xc9)], 0)
            .is_empty()
    );
    assert_eq!(gateway.count(Outcome::UnknownExtension), 1);
}

#[test]
fn decapsulation_drops_packets_with_unknown_mandatory_extensions() {
    let mut gateway = Bench::with("0x10,decapsulate");
    for (kind, passes) in [(0x20, 1), (0xc0, 1), (0x80, 0), (0xc9, 0)] {
        let out = gateway.pass(&[decorated(MessageType::G_PDU, kind)], 0);
        assert_eq!(out.len(), passes, "{kind:#x}");
    }
    assert_eq!(gateway.count(Outcome::UnknownExtension), 2);
    // An end marker ends here.
    assert!(
        gateway
            .pass(&[decorated(MessageType::END_MARKER, 0x20)], 0)
            .is_empty()
    );
    assert_eq!(gateway.count(Outcome::Consumed), 1);
}

#[test]
fn decapsulation_restores_the_packet_that_was_encapsulated() {
    for (inner_v4, outer_v4, qfi, room) in [
        (true, true, "", true),
        (true, true, "9", true),
        (true, false, "63", true),
        (false, true, "0", false),
        (false, false, "", false),
        (true, true, "9", false),
    ] {
        let user = if inner_v4 {
            "10.45.0.2"
        } else {
            "2001:db8:45::2"
        };
        let (remote, own) = if outer_v4 {
            ("192.0.2.9", OWN4)
        } else {
            ("2001:db8::9", OWN6)
        };
        let mut down = Bench::with(&format!("{user},encapsulate,0x20,{remote},{qfi}"));
        let plain = if inner_v4 {
            flow("198.19.0.1", user)
        } else {
            flow("2001:db8:99::1", user)
        };
        // Short frames are padded; one case is tagged.
        let plain = UdpFlow {
            vlan: (qfi == "9").then(|| VlanTag::new(5).unwrap()),
            ..plain
        };
        let frame = plain.frame(100).unwrap();
        let mut padded = frame.clone();
        padded.extend([0xee; 7]);
        let mut batch = Batch::new();
        let mut packet = down.pool.take((padded.len() - 64) as u16).unwrap();
        // The headroom is complete, or none as in a receive ring.
        if room {
            packet = down.pool.take(padded.len() as u16).unwrap();
        } else {
            let headroom = packet.headroom() as u16;
            assert!(packet.prepend(headroom));
            packet.truncate(padded.len() as u16);
        }
        packet.bytes_mut().copy_from_slice(&padded);
        batch.push(packet);
        let out = down.pass_batch(&mut batch, 1);
        assert_eq!(down.count(Outcome::Encapsulated), 1);
        let opened = open(&out[0]);
        assert_eq!(opened.teid, 0x20);
        assert_eq!(
            (opened.source, opened.destination),
            (address(own), address(remote))
        );
        assert_eq!(opened.qfi, qfi.parse().ok());
        let l2 = if qfi == "9" { 18 } else { 14 };
        assert_eq!(opened.payload, frame[l2..]);
        // The second gateway is the peer of the first one: it removes the tunnel again.
        let mut up = Bench::new("");
        up.plane.own = Own::new(&[address(remote)]);
        up.add("0x20,decapsulate");
        assert_eq!(up.pass(&out, 0), [frame]);
        assert_eq!(up.count(Outcome::Decapsulated), 1);
    }
}

/// Returns a frame with a packet in tunnel 0x11, from a user to the given address.
fn from_user(destination: &str) -> Vec<u8> {
    let tunnel = Tunnel {
        teid: 0x11,
        src_ip: address("192.0.2.7"),
        dst_ip: address(OWN4),
    };
    let source = if destination.contains(':') {
        "2001:db8:45::2"
    } else {
        "10.45.0.2"
    };
    flow(source, destination)
        .frame_as(Protocol::Udp, Some(&tunnel), 150)
        .unwrap()
}

#[test]
fn users_do_not_reach_the_gateway_itself_through_their_tunnels() {
    let pfcp =
        "pfcp = { address = \"192.0.2.2\", node_id = \"2001:db8::2\", peers = [\"192.0.2.100\"] }";
    let mut gateway = Bench::new(&format!("bearers = 10\n{pfcp}"));
    gateway.add("0x11,decapsulate");
    let closed = [OWN4, OWN6, "192.0.2.2", "2001:db8::2"].map(from_user);
    assert_eq!(gateway.pass(&closed, 0), Vec::<Vec<u8>>::new());
    assert_eq!(gateway.count(Outcome::ToGateway), 4);
    let others = ["192.0.2.3", "2001:db8::3", "192.0.2.100"].map(from_user);
    assert_eq!(gateway.pass(&others, 0).len(), 3);
    // A relay does not inspect the packets in tunnels: a tunnel endpoint does.
    gateway.add("0x11,relay,0x20,192.0.2.9");
    assert_eq!(gateway.pass(&closed, 0).len(), 4);
}

#[test]
fn gtp_packets_on_ports_not_configured_for_tunnels_are_dropped() {
    let mut gateway = Bench::new("tunnels = [0]");
    gateway
        .add("0x10,relay,0x20,192.0.2.9\n0x11,decapsulate\n10.45.0.2,encapsulate,0x30,192.0.2.9");
    let mut echo = [0; 12];
    emit_echo_request(1, &mut echo).unwrap();
    let frames = [
        tunnelled(true, true, 0x10, 150),
        tunnelled(false, true, 0x10, 150),
        tunnelled(true, true, 0x11, 150),
        // The gateway sends no error indications for unknown tunnels, and no echo responses.
        tunnelled(true, true, 0x77, 150),
        message(&echo),
        message(&[0x30, 26, 0, 0, 0, 0, 0, 0]),
    ];
    assert!(gateway.pass(&frames, 1).is_empty());
    assert!(gateway.answers(1).is_empty());
    assert_eq!(gateway.count(Outcome::WrongPort), 6);
    let user = flow("198.19.0.1", "10.45.0.2").frame(100).unwrap();
    assert_eq!(gateway.pass(&[user], 1).len(), 1);
    assert_eq!(gateway.pass(&frames, 0).len(), 3);
    assert_eq!(gateway.answers(0).len(), 2);
    assert_eq!(gateway.count(Outcome::WrongPort), 6);
}

#[test]
fn ipv6_users_are_identified_by_their_64_bit_prefix() {
    let mut gateway = Bench::with("2001:db8:45::/64,encapsulate,0x20,192.0.2.9");
    let frames = [
        "2001:db8:45::2",
        "2001:db8:45:0:ffff::1",
        "2001:db8:45:1::2",
        "::1",
    ]
    .map(|user| flow("2001:db8:99::1", user).frame(100).unwrap());
    assert_eq!(gateway.pass(&frames, 1).len(), 2);
    assert_eq!(gateway.count(Outcome::UnknownUser), 2);
}

/// Returns a frame with a GTP-U message to the gateway.
fn message(bytes: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 42 + bytes.len()];
    frame[..14].copy_from_slice(&tunnelled(true, true, 1, 100)[..14]);
    frame[42..].copy_from_slice(bytes);
    let path = Path {
        local: address("192.0.2.7"),
        remote: address(OWN4),
    };
    rewrite::write_outer(&mut frame[14..], &path, 0).unwrap();
    frame
}

#[test]
fn echo_responses_leave_through_the_port_of_the_request() {
    let mut gateway = Bench::new("");
    let mut bytes = [0; 12];
    emit_echo_request(0x1234, &mut bytes).unwrap();
    let mut request = message(&bytes);
    // The request has a source port of its own, to which the response goes.
    request[34..36].copy_from_slice(&40_000_u16.to_be_bytes());
    assert!(gateway.pass(std::slice::from_ref(&request), 0).is_empty());
    assert!(gateway.answers(1).is_empty());
    let answers = gateway.answers(0);
    assert_eq!(answers.len(), 1);
    let ethernet = Ethernet::new(&answers[0][..]).unwrap();
    assert_eq!(ethernet.destination(), Mac([2, 0, 0, 0, 0, 1]));
    let ip = Ipv4::new(ethernet.payload()).unwrap();
    ip.verify_checksum().unwrap();
    assert_eq!(IpAddr::V4(ip.source()), address(OWN4));
    let udp = Udp::new(ip.payload()).unwrap();
    assert_eq!(
        (udp.source_port(), udp.destination_port()),
        (UDP_PORT, 40_000)
    );
    let want = [0x32, 2, 0, 6, 0, 0, 0, 0, 0x12, 0x34, 0, 0, 14, 0];
    assert_eq!(udp.payload(), want);
    assert_eq!(gateway.count(Outcome::EchoAnswered), 1);
}

#[test]
fn packets_of_an_unknown_tunnel_trigger_an_error_indication() {
    let mut gateway = Bench::with("0x10,relay,0x20,192.0.2.9");
    for outer_v4 in [true, false] {
        for teid in [0, 0x11] {
            let out = gateway.pass(&[tunnelled(outer_v4, true, teid, 150)], 1);
            assert!(out.is_empty());
            let opened = open(&gateway.answers(1)[0]);
            let (own, peer) = if outer_v4 {
                (OWN4, "192.0.2.7")
            } else {
                (OWN6, "2001:db8::7")
            };
            assert_eq!(
                (opened.source, opened.destination),
                (address(own), address(peer))
            );
            assert_eq!((opened.message, opened.teid), (26, 0));
            let indication = ErrorIndication::parse(&opened.payload).unwrap();
            assert_eq!(
                indication,
                ErrorIndication {
                    teid,
                    peer: address(own)
                }
            );
        }
    }
    assert_eq!(gateway.count(Outcome::UnknownTeid), 4);
    // A flood does not get an indication for each packet.
    for _ in 0..5 {
        gateway.pass(&vec![tunnelled(true, true, 0x11, 150); 64], 1);
    }
    assert_eq!(gateway.count(Outcome::UnknownTeid), 4 + 320);
    assert!((46..200).contains(&gateway.answers(1).len()));
    // Messages, and replies to them, cause no indication.
    let mut end_marker = [0x30, 254, 0, 0, 0, 0, 0, 0x77];
    let mut indication = [0; 36];
    let length = ErrorIndication {
        teid: 5,
        peer: address(OWN4),
    }
    .emit(&mut indication)
    .unwrap();
    gateway.pass(&[message(&end_marker), message(&indication[..length])], 0);
    end_marker[1] = 31;
    gateway.pass(&[message(&end_marker)], 0);
    assert!(gateway.answers(0).is_empty());
    assert_eq!(gateway.count(Outcome::UnknownTeidUntold), 1);
    assert_eq!(gateway.count(Outcome::ErrorIndication), 1);
    assert_eq!(gateway.count(Outcome::UnknownMessage), 1);
}

#[test]
fn oversized_packets_are_dropped_and_icmp_reports_the_tunnel_mtu() {
    let mut gateway = Bench::with(
        "10.45.0.2,encapsulate,0x20,192.0.2.9,9\n2001:db8:45::,encapsulate,0x21,2001:db8::9",
    );
    // The limits are the MTU of 1500 less 20 + 8 + 16 bytes of tunnel headers, and less 40 + 8 + 8 bytes.
    for (user, source, largest) in [
        ("10.45.0.2", "198.19.0.1", 1456),
        ("2001:db8:45::2", "2001:db8:99::1", 1444),
    ] {
        let frame = |packet: usize| {
            let mut frame = flow(source, user).frame(packet + 18).unwrap();
            if frame[12] == 8 {
                // The set bit is "don't fragment".
                frame[20] = 0x40;
                let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
                Ipv4::new(ethernet.payload_mut()).unwrap().fill_checksum();
            }
            frame
        };
        assert_eq!(gateway.pass(&[frame(largest)], 1).len(), 1, "{user}");
        assert!(gateway.answers(1).is_empty());
        assert!(gateway.pass(&[frame(largest + 1)], 1).is_empty());
        let answer = &gateway.answers(1)[0];
        let ethernet = Ethernet::new(&answer[..]).unwrap();
        if ethernet.ethertype() == EtherType::IPV4 {
            let ip = Ipv4::new(ethernet.payload()).unwrap();
            ip.verify_checksum().unwrap();
            assert_eq!(IpAddr::V4(ip.destination()), address(source));
            let icmp = taut_wire::Icmpv4::new(ip.payload()).unwrap();
            icmp.verify_checksum().unwrap();
            assert_eq!((icmp.kind(), icmp.code()), (3, 4));
            assert_eq!(icmp.rest(), [0, 0, 5, 0xb0]);
            // The error quotes as much as every host accepts.
            assert_eq!(icmp.payload(), &frame(largest + 1)[14..14 + 576 - 28]);
        } else {
            let ip = Ipv6::new(ethernet.payload()).unwrap();
            let pseudo = ip.pseudo_header(IpProtocol::ICMPV6, ip.payload().len() as u32);
            assert!(pseudo.combine(taut_wire::Sum::of(ip.payload())).is_valid());
            assert_eq!(ip.payload()[..2], [2, 0]);
            assert_eq!(ip.payload()[4..8], 1444_u32.to_be_bytes());
        }
    }
    // Without the bit no error is sent.
    let mut frame = flow("198.19.0.1", "10.45.0.2").frame(1490).unwrap();
    frame[20] = 0;
    let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
    Ipv4::new(ethernet.payload_mut()).unwrap().fill_checksum();
    gateway.pass(&[frame], 1);
    assert!(gateway.answers(1).is_empty());
    assert_eq!(gateway.count(Outcome::TooBig), 3);
}

#[test]
fn fragmented_tunnel_packets_are_dropped_and_fragmented_user_packets_pass() {
    let mut gateway = Bench::with("10.45.0.2,encapsulate,0x20,192.0.2.9\n0x10,decapsulate");
    let fragment = |mut frame: Vec<u8>, offset: [u8; 2]| {
        frame[20..22].copy_from_slice(&offset);
        let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
        Ipv4::new(ethernet.payload_mut()).unwrap().fill_checksum();
        frame
    };
    let outer = [[0x20, 0], [0, 9]].map(|at| fragment(tunnelled(true, true, 0x10, 120), at));
    assert!(gateway.pass(&outer, 0).is_empty());
    assert_eq!(gateway.count(Outcome::Fragment), 2);
    let user = flow("198.19.0.1", "10.45.0.2").frame(100).unwrap();
    let users = [[0x20, 0], [0, 9]].map(|at| fragment(user.clone(), at));
    assert_eq!(gateway.pass(&users, 1).len(), 2);
}

#[test]
fn every_packet_has_one_outcome_even_when_truncated_or_corrupted() {
    let mut gateway = Bench::with(
        "0x10,relay,0x20,192.0.2.9\n0x11,decapsulate\n0x12,drop\n0x13,hold\n10.45.0.2,encapsulate,1,192.0.2.9\n10.45.0.3,hold",
    );
    let mut frames = vec![
        decorated(MessageType::G_PDU, 0x80),
        tunnelled(false, true, 0x11, 150),
        tunnelled(true, false, 0x12, 150),
        tunnelled(true, true, 0x13, 110),
        flow("198.19.0.1", "10.45.0.2").frame(80).unwrap(),
        flow("198.19.0.1", "10.45.0.3").frame(80).unwrap(),
    ];
    let whole = frames.clone();
    for frame in &whole {
        frames.extend((0..frame.len()).map(|len| frame[..len].to_vec()));
    }
    let mut random = fastrand::Rng::with_seed(7);
    for _ in 0..30_000 {
        let mut frame = whole[random.usize(..whole.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(..frame.len());
            frame[at] = random.u8(..);
        }
        frames.push(frame);
    }
    let mut left = 0;
    for part in frames.chunks(64) {
        left += gateway.pass(part, 0).len() as u64;
        gateway.answers(0);
    }
    assert_eq!(gateway.counted(), frames.len() as u64);
    let passed = [
        Outcome::Relayed,
        Outcome::Encapsulated,
        Outcome::Decapsulated,
    ];
    let passed: u64 = passed
        .into_iter()
        .map(|outcome| gateway.count(outcome))
        .sum();
    assert_eq!(left, passed);
    for outcome in [
        Outcome::Malformed,
        Outcome::BadChecksum,
        Outcome::BadVersion,
        Outcome::ToldToDrop,
        Outcome::NotHeld,
    ] {
        assert!(gateway.count(outcome) > 0, "{outcome:?}");
    }
    assert_eq!(gateway.plane.pool.outstanding(), 0);
}

#[test]
fn packets_with_an_expired_ttl_are_dropped() {
    let mut gateway = Bench::with("0x10,relay,0x20,192.0.2.9");
    for (ttl, passes) in [(2, 1), (1, 0), (0, 0)] {
        let mut frame = tunnelled(true, true, 0x10, 100);
        frame[22] = ttl;
        let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
        Ipv4::new(ethernet.payload_mut()).unwrap().fill_checksum();
        assert_eq!(gateway.pass(&[frame], 0).len(), passes);
    }
    assert_eq!(gateway.count(Outcome::NoHopsLeft), 2);
}

#[test]
fn packets_at_a_closed_gate_are_counted_separately() {
    let mut gateway = Bench::with("0x10,block\n0x11,drop\n0x12,hold\n10.45.0.2,block");
    let mut frames = [0x10, 0x11, 0x12]
        .map(|teid| tunnelled(true, true, teid, 100))
        .to_vec();
    frames.push(flow("198.19.0.1", "10.45.0.2").frame(100).unwrap());
    assert!(gateway.pass(&frames, 0).is_empty());
    for (outcome, count) in [
        (Outcome::GateClosed, 2),
        (Outcome::ToldToDrop, 1),
        (Outcome::NotHeld, 1),
    ] {
        assert_eq!(gateway.count(outcome), count, "{outcome:?}");
    }
}

/// Returns a gateway with the bearers in `lines` (CSV), and with sessions, so that bearers may have rate limits.
fn limiting(lines: &str) -> Bench {
    let mut gateway =
        Bench::new("bearers = 100\npfcp = { address = \"192.0.2.1\", peers = [\"192.0.2.100\"] }");
    gateway.add(lines);
    gateway
}

/// Sets one rate limit, which the bearers of all `matches` share.
fn hold_to(gateway: &mut Bench, kbps: u64, rule: u32, matches: &[Match]) {
    let meter = MeterName {
        session: 1,
        rule,
        is_uplink: true,
    };
    let kbps = std::num::NonZeroU64::new(kbps).unwrap();
    let limits = [Some(Limit { meter, kbps }), None];
    let wishes: Vec<_> = matches.iter().map(|m| Wish::Limit(*m, limits)).collect();
    gateway.control.grant(&wishes).unwrap();
    while gateway.plane.take_changes() {}
}

#[test]
fn user_packets_above_the_rate_are_dropped_and_counted_separately() {
    let mut gateway = limiting(
        "0x10,relay,0x20,192.0.2.9\n0x11,decapsulate\n0x12,relay,0x21,2001:db8::9\n\
         10.45.0.2,encapsulate,0x30,192.0.2.9,9\n10.45.0.3,encapsulate,0x31,2001:db8::9\n0x13,decapsulate",
    );
    let users = ["10.45.0.2", "10.45.0.3"].map(|user| Match::User(address(user)));
    let tunnels = [0x10, 0x11, 0x12].map(Match::Teid);
    for (rule, matched) in users.into_iter().chain(tunnels).enumerate() {
        hold_to(&mut gateway, 1000, rule as u32, &[matched]);
    }
    // The packets have 1000 bytes each without the tunnel: 15000 bytes and one packet pass while time stands still.
    let in_tunnel = |teid| {
        let outer_and_gtpu = 14 + 20 + 8 + 8;
        tunnelled(true, true, teid, outer_and_gtpu + 1000)
    };
    let to_user = |user| flow("198.19.0.1", user).frame(14 + 1000 + 4).unwrap();
    for (frame, outcome) in [
        (in_tunnel(0x10), Outcome::Relayed),
        (in_tunnel(0x11), Outcome::Decapsulated),
        (in_tunnel(0x12), Outcome::Relayed),
        (to_user("10.45.0.2"), Outcome::Encapsulated),
        (to_user("10.45.0.3"), Outcome::Encapsulated),
    ] {
        let (over, left) = (gateway.count(Outcome::OverRate), gateway.count(outcome));
        // Padding is not counted.
        let padded = [&frame[..], &[0; 50]].concat();
        let frames: Vec<_> = (0..40).map(|i| [&frame, &padded][i % 2].clone()).collect();
        let passed = gateway.pass(&frames, 0).len();
        assert_eq!(passed, 16, "{outcome:?}");
        assert_eq!(gateway.count(outcome) - left, 16, "{outcome:?}");
        assert_eq!(gateway.count(Outcome::OverRate) - over, 24, "{outcome:?}");
    }
    // Other bearers are not limited, and an end marker passes.
    assert_eq!(gateway.pass(&vec![in_tunnel(0x13); 64], 0).len(), 64);
    let mut marker = in_tunnel(0x10);
    marker[43] = MessageType::END_MARKER.0;
    assert_eq!(gateway.pass(&[marker], 0).len(), 1);
    assert_eq!(gateway.counted(), 5 * 40 + 65);
    // The meter does not count packets that do not leave.
    hold_to(&mut gateway, 1000, 9, &[Match::Teid(0x10)]);
    let mut dying = in_tunnel(0x10);
    dying[22] = 1;
    let mut ethernet = Ethernet::new(&mut dying[..]).unwrap();
    Ipv4::new(ethernet.payload_mut()).unwrap().fill_checksum();
    assert!(gateway.pass(&vec![dying; 40], 0).is_empty());
    assert_eq!(gateway.pass(&vec![in_tunnel(0x10); 40], 0).len(), 16);
}

#[test]
fn bearers_that_share_a_meter_together_obey_its_rate() {
    let mut gateway = limiting("0x10,decapsulate\n0x11,decapsulate\n0x12,decapsulate");
    hold_to(&mut gateway, 8000, 1, &[0x10, 0x11].map(Match::Teid));
    let frame = |teid, bytes: usize| tunnelled(true, true, teid, 50 + bytes);
    gateway.now_ticks = taut_sys::ticks();
    let ticks_per_ms = taut_sys::Clock::calibrate(std::time::Duration::from_millis(20)).hz / 1e3;
    let begun = gateway.now_ticks as f64;
    let mut passed = 0;
    // 8000 kbit/s are 1000 bytes a millisecond. In each millisecond, 3000 bytes arrive in the two tunnels that share
    // the meter, and 1400 in the tunnel without a meter.
    for ms in 0..2000 {
        gateway.now_ticks = (begun + f64::from(ms) * ticks_per_ms) as u64;
        let mut frames = vec![frame(0x10, 500), frame(0x11, 1400), frame(0x10, 1100)];
        frames.push(frame(0x12, 1400));
        let left = gateway.pass(&frames, 0);
        assert_eq!(left.last().unwrap().len(), 14 + 1400);
        passed += left.iter().map(|frame| frame.len() - 14).sum::<usize>() - 1400;
    }
    // The burst passes in addition to the rate.
    let share = passed as f64 / (2_000_000.0 + 15_000.0);
    assert!((share - 1.0).abs() < 0.02, "{share}");
    // A changed rate applies immediately.
    hold_to(&mut gateway, 1_000_000, 1, &[0x10, 0x11].map(Match::Teid));
    let left = gateway.pass(&vec![frame(0x11, 1400); 64], 0);
    assert_eq!(left.len(), 64);
}

#[test]
fn unmatched_frames_are_forwarded_only_if_configured() {
    let arp = UdpFlow::default().frame(64).unwrap();
    let arp = [&arp[..12], &[8, 6], &arp[14..]].concat();
    let user = flow("198.19.0.1", "10.45.0.9").frame(64).unwrap();
    let mut gateway = Bench::new("others = \"forward\"");
    assert_eq!(
        gateway.pass(&[arp.clone(), user.clone()], 0),
        [arp.clone(), user.clone()]
    );
    assert_eq!(gateway.count(Outcome::Passed), 2);
    let mut gateway = Bench::new("");
    assert!(gateway.pass(&[arp, user], 0).is_empty());
    assert_eq!(
        (
            gateway.count(Outcome::Other),
            gateway.count(Outcome::UnknownUser)
        ),
        (1, 1)
    );
}

#[test]
fn slow_path_sends_end_markers_while_packets_switch_paths_immediately() {
    let mut gateway = Bench::with("10.45.0.2,encapsulate,0x20,192.0.2.8");
    let user = flow("198.19.0.1", "10.45.0.2").frame(100).unwrap();
    assert_eq!(
        open(&gateway.pass(std::slice::from_ref(&user), 1)[0]).teid,
        0x20
    );
    let old = gateway
        .control
        .get(Match::User(address("10.45.0.2")))
        .unwrap();
    let path = old.path().unwrap();
    let line = read_csv(
        "10.45.0.2,encapsulate,0x30,192.0.2.9",
        gateway.control.own(),
    )
    .unwrap();
    let wishes = [Wish::EndMarker { teid: 0x20, path }, Wish::Put(line[0].1)];
    gateway.control.grant(&wishes).unwrap();
    let mut left = gateway.pass(std::slice::from_ref(&user), 1);
    left.extend(gateway.pass(&[user], 1));
    let seen = |frame: &Vec<u8>| {
        let opened = open(frame);
        (opened.message, opened.teid, opened.destination)
    };
    let seen_left: Vec<_> = left.iter().map(seen).collect();
    assert_eq!(seen_left, [(255, 0x30, address("192.0.2.9")); 2]);
    let made: Vec<_> = gateway.answers(0).iter().map(seen).collect();
    assert_eq!(made, [(254, 0x20, address("192.0.2.8"))]);
}

/// Ends the tunnel of the user 10.45.0.2 to 192.0.2.7 with a batch from any port. Returns the egress port and MAC
/// addresses (destination, source) of its end marker.
fn way_of_end_marker(gateway: &mut Bench, from_port: usize) -> (usize, [u8; 12]) {
    let path = Path {
        local: address(OWN4),
        remote: address("192.0.2.7"),
    };
    let wishes = [Wish::EndMarker { teid: 0x20, path }];
    gateway.control.grant(&wishes).unwrap();
    assert!(gateway.pass(&[], from_port).is_empty());
    let made = std::mem::take(&mut gateway.made);
    let [(port, frame)] = &made[..] else {
        panic!("{made:?}");
    };
    let opened = open(frame);
    assert_eq!((opened.message, opened.teid), (254, 0x20));
    assert_eq!(opened.destination, path.remote);
    (*port, *frame.first_chunk().unwrap())
}

const PEERS_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xb0];
const OWN_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0xa0];
const NO_MACS: [u8; 12] = [0; 12];

/// Returns the frame with the peer 192.0.2.7 as its sender.
fn from_peer(mut frame: Vec<u8>) -> Vec<u8> {
    frame[..6].copy_from_slice(&OWN_MAC);
    frame[6..12].copy_from_slice(&PEERS_MAC);
    frame
}

#[test]
fn end_markers_leave_through_the_tunnel_port_of_their_peer() {
    let back = [PEERS_MAC, OWN_MAC].concat();
    let lines = "10.45.0.2,encapsulate,0x20,192.0.2.7\n0x10,decapsulate\n";
    let mut echo = [0; 12];
    emit_echo_request(1, &mut echo).unwrap();
    let heard = [
        from_peer(message(&echo)),
        from_peer(tunnelled(true, true, 0x10, 128)),
    ];
    let user = flow("198.19.0.1", "10.45.0.2").frame(100).unwrap();
    for tunnels in [0, 1] {
        for heard in &heard {
            let mut gateway = Bench::new(&format!("tunnels = [{tunnels}]"));
            gateway.add(lines);
            // No packet has passed yet. The result does not depend on the port of the batch.
            for from_port in [0, 1] {
                let way = way_of_end_marker(&mut gateway, from_port);
                assert_eq!(way, (tunnels, NO_MACS));
            }
            // Packets that leave or arrive through a port that is not for tunnels change nothing.
            gateway.pass(std::slice::from_ref(&user), tunnels);
            gateway.pass(std::slice::from_ref(heard), 1 - tunnels);
            assert_eq!(way_of_end_marker(&mut gateway, 0), (tunnels, NO_MACS));
            gateway.pass(std::slice::from_ref(heard), tunnels);
            gateway.made.clear();
            let (port, macs) = way_of_end_marker(&mut gateway, 1);
            assert_eq!((port, macs.to_vec()), (tunnels, back.clone()));
        }
    }
    // With several tunnel ports, the last egress port counts first, and then the port where the peer's last frame
    // arrived.
    let mut gateway = Bench::new("");
    gateway.add(lines);
    assert_eq!(way_of_end_marker(&mut gateway, 0), (0, NO_MACS));
    gateway.pass(&[user], 0);
    assert_eq!(way_of_end_marker(&mut gateway, 1), (1, NO_MACS));
    for port in [0, 1] {
        gateway.pass(&heard[..1], port);
        gateway.made.clear();
        let (left, macs) = way_of_end_marker(&mut gateway, port);
        assert_eq!((left, macs.to_vec()), (port, back.clone()));
    }
    // A frame in an unknown tunnel does not update its sender's location.
    gateway.pass(&[from_peer(tunnelled(true, true, 0x99, 128))], 0);
    gateway.made.clear();
    assert_eq!(way_of_end_marker(&mut gateway, 0).0, 1);
}

#[test]
fn generated_packets_leave_through_their_port_without_mac_addresses() {
    let mut gateway = Bench::with("10.45.0.2,encapsulate,0x20,192.0.2.7");
    let frame = message(&[0x30, 254, 0, 0, 0, 0, 0, 1]);
    let punted = Punted {
        frame: &frame,
        from_port: 0,
        cause: Punt::Made { port: 3 },
    };
    let mut sent = Vec::new();
    let mut send = |way: Passage, frame: &[u8]| {
        sent.push((way, frame.to_vec()));
        true
    };
    assert!(gateway.slow.handle(&punted, &mut send));
    let way = Passage {
        lacks_addresses: true,
        ..Passage::of_own(3)
    };
    assert_eq!(sent, [(way, frame)]);
}

#[test]
fn bearers_change_between_batches_and_no_packet_is_lost() {
    let mut gateway = Bench::new("bearers = 1000");
    let line = |teid: u32, to: u32| format!("{teid},relay,{to},192.0.2.9");
    for teid in 1..=64 {
        gateway.add(&line(teid, teid));
    }
    let frames: Vec<_> = (1..=64)
        .map(|teid| tunnelled(true, true, teid, 100))
        .collect();
    for round in 1..200 {
        let wishes: Vec<_> = (1..=5)
            .map(|i| {
                let text = line(i * 7 % 64 + 1, 1000 * round + i);
                Wish::Put(read_csv(&text, gateway.control.own()).unwrap()[0].1)
            })
            .collect();
        gateway.control.grant(&wishes).unwrap();
        assert_eq!(gateway.pass(&frames, 0).len(), 64);
    }
    assert_eq!(gateway.count(Outcome::Relayed), 199 * 64);
}

#[test]
fn invalid_settings_are_refused_with_the_reason() {
    for (text, part) in [
        ("", "the key `address` is missing"),
        ("address = []", "address: expected"),
        ("address = \"0.0.0.0\"", "address: expected"),
        ("address = \"here\"", "expected an IP address such as"),
        (
            "address = \"192.0.2.1\"\nbearers = 0",
            "bearers: expected 1 to 4000000",
        ),
        ("address = \"192.0.2.1\"\nmtu = 1279", "mtu: expected 1280"),
        (
            "address = \"192.0.2.1\"\nmatching = \"tree\"",
            "matching = \"tree\": expected \"hash\", \"linear\" or \"rules\"",
        ),
        ("address = \"192.0.2.1\"\nsped = 1", "unknown key `sped`"),
    ] {
        let error = (ENTRY.build)(text.parse().unwrap()).err().unwrap();
        assert!(error.0.contains(part), "{text}: {error}");
    }
}

#[test]
fn a_bearer_file_loads_or_the_error_names_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("bearers.csv");
    let gtpu = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let text = format!(
            "address = \"{OWN4}\"\nbearers = 3000\nload = \"{}\"",
            file.display()
        );
        let settings: Settings = text.parse::<toml::Table>().unwrap().try_into().unwrap();
        let mut gateway = Gateway::new(settings.check().map_err(|e| e.0).unwrap());
        gateway
            .start()
            .map(|control| (control.occupancy().0, gateway))
    };
    let lines: String = (1..=3000)
        .map(|i| format!("{i},relay,{i},192.0.2.9\n"))
        .collect();
    let (count, loaded) = gtpu(&lines).unwrap();
    assert_eq!((count, loaded.plane.unwrap().table.len()), (3000, 3000));
    let error = gtpu(&format!("{lines}3001,decapsulate"))
        .err()
        .unwrap()
        .to_string();
    assert!(
        error.contains("bearers.csv:3001: the table is full"),
        "{error}"
    );
    let error = gtpu("1,drop\n1,drop").err().unwrap().to_string();
    assert!(
        error.contains("bearers.csv:2: match 0x1 has a bearer already"),
        "{error}"
    );
}

/// A worker that only applies changes, and a client of its control socket.
struct Served {
    folder: tempfile::TempDir,
    worker: Option<std::thread::JoinHandle<()>>,
    stop: Arc<std::sync::atomic::AtomicBool>,
}

impl Served {
    fn start(bearers: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control.sock");
        let text = format!(
            "address = \"{OWN4}\"\nbearers = {bearers}\ncontrol = \"{}\"",
            path.display()
        );
        let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let worker = std::thread::spawn(move || {
            let mut function = (ENTRY.build)(text.parse().unwrap())
                .map_err(|e| e.0)
                .unwrap();
            function.prepare().unwrap();
            ready.send(()).unwrap();
            let mut batch = Batch::new();
            while !stopped.load(Ordering::Relaxed) {
                function.process(&mut batch, &Context::default());
                std::thread::yield_now();
            }
        });
        is_ready.recv().unwrap();
        Self {
            folder,
            worker: Some(worker),
            stop,
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Sends all requests, then reads `lines` lines.
    fn ask(&self, requests: &str, lines: usize) -> Vec<serde_json::Value> {
        let mut stream = UnixStream::connect(self.path()).unwrap();
        stream
            .set_read_timeout(Some(std::time::Duration::from_secs(20)))
            .unwrap();
        stream.write_all(requests.as_bytes()).unwrap();
        let answers = BufReader::new(stream).lines().take(lines);
        answers
            .map(|line| serde_json::from_str(&line.unwrap()).unwrap())
            .collect()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.worker.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok());
        assert!(std::thread::panicking() || !self.path().exists());
    }
}

#[test]
fn bearers_are_added_listed_and_removed_over_the_control_socket() {
    let served = Served::start(3);
    let add = r#"{"op":"add","bearers":[{"match":"0x10","action":"relay","teid":32,"remote":"192.0.2.9"},{"match":"10.45.0.2","action":"encapsulate","teid":33,"remote":"192.0.2.9","qfi":9}]}"#;
    let answers = served.ask(&format!("{add}\n{add}\n"), 2);
    assert_eq!(
        (answers[0]["ok"].as_bool(), answers[0]["bearers"].as_u64()),
        (Some(true), Some(2))
    );
    assert_eq!(
        answers[1]["error"],
        "match 0x10 has a bearer already; change it with --replace, or remove it first"
    );
    let list = served.ask("{\"op\":\"list\"}\n", 3);
    assert_eq!(list[0]["bearers"], 2);
    let mut matches: Vec<_> = list[1..]
        .iter()
        .map(|b| b["match"].as_str().unwrap())
        .collect();
    matches.sort_unstable();
    assert_eq!(matches, ["0x10", "10.45.0.2"]);
    let status = &served.ask("{\"op\":\"status\"}\n", 1)[0];
    assert_eq!(
        (status["bearers"].as_u64(), status["room"].as_u64()),
        (Some(2), Some(3))
    );
    assert_eq!(status["packets"]["relayed"], 0);
    let csv = "# two more\n0x11,decapsulate\n0x12,decapsulate\n";
    let load = format!("{{\"op\":\"load\",\"bytes\":{}}}\n{csv}", csv.len());
    let full = &served.ask(&load, 1)[0];
    assert_eq!(
        (full["ok"].as_bool(), full["line"].as_u64()),
        (Some(false), Some(3))
    );
    assert!(
        full["error"]
            .as_str()
            .unwrap()
            .contains("the maximum is 3 bearers")
    );
    let remove = "{\"op\":\"remove\",\"matches\":[\"16\",\"10.45.0.2\"]}\n";
    let answers = served.ask(&format!("{remove}{remove}{load}"), 3);
    assert_eq!(answers[0]["ok"], true);
    assert_eq!(answers[1]["error"], "match 0x10 has no bearer");
    assert_eq!(answers[2]["bearers"], 2);
}

#[test]
fn errors_name_the_invalid_bearer_or_report_an_empty_file() {
    let served = Served::start(3);
    let error = |request: &str| {
        let answer = &served.ask(request, 1)[0];
        assert_eq!(answer["ok"], false, "{request}");
        answer["error"].as_str().unwrap().to_string()
    };
    let bare = "{\"op\":\"add\",\"bearers\":[{\"match\":\"0x10\",\"action\":\"drop\"},\
                {\"match\":\"10.45.0.2\",\"action\":\"encapsulate\",\"teid\":33}]}\n";
    let said = "10.45.0.2,encapsulate,0x21: a tunnel needs teid (not 0) and remote";
    assert_eq!(error(bare), said);
    let nothing = "# no bearer\n\n";
    let load = |csv: &str| format!("{{\"op\":\"load\",\"bytes\":{}}}\n{csv}", csv.len());
    assert_eq!(error(&load(nothing)), "the file has no bearers");
    assert_eq!(error(&load("")), "the file has no bearers");
}

#[test]
fn invalid_control_requests_get_an_error_and_change_nothing() {
    let served = Served::start(3);
    for request in [
        "hello\n",
        "{}\n",
        "{\"op\":\"fly\"}\n",
        "{\"op\":\"add\"}\n",
        "{\"op\":\"add\",\"bearers\":[{\"match\":\"1\",\"action\":\"sing\"}]}\n",
        "{\"op\":\"add\",\"bearers\":[{\"match\":\"1\",\"action\":\"drop\",\"speed\":1}]}\n",
        "{\"op\":\"remove\",\"matches\":[\"nobody\"]}\n",
        "\u{1}\u{2}\n",
    ] {
        let answer = &served.ask(request, 1)[0];
        assert_eq!(answer["ok"], false, "{request}");
        assert!(answer["error"].as_str().unwrap().len() > 5);
    }
    // The inputs are half a request, a line without end, and a file that does not arrive.
    drop(served.ask("{\"op\":", 0));
    drop(served.ask("{\"op\":\"load\",\"bytes\":1000}\n1,drop", 0));
    let mut stream = UnixStream::connect(served.path()).unwrap();
    let long = vec![b'x'; 3 << 20];
    let _ = stream.write_all(&long);
    assert_eq!(served.ask("{\"op\":\"status\"}\n", 1)[0]["bearers"], 0);
}

#[test]
fn concurrently_loaded_files_share_one_memory_limit() {
    let served = Served::start(3);
    let whole = "{\"op\":\"load\",\"bytes\":1073741824}\n";
    let small = "{\"op\":\"load\",\"bytes\":6,\"replace\":true}\n1,drop";
    let more = "{\"op\":\"load\",\"bytes\":1073741825}\n";
    let refused = &served.ask(more, 1)[0];
    assert_eq!(
        refused["error"],
        "the file is too large: the maximum is 1073741824 bytes"
    );
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
    let ask = || {
        let answer = served.ask(small, 1).remove(0);
        assert!(std::time::Instant::now() < deadline, "{answer}");
        answer
    };
    let begin = || {
        let mut endless = UnixStream::connect(served.path()).unwrap();
        endless.write_all(whole.as_bytes()).unwrap();
        endless.set_nonblocking(true).unwrap();
        endless
    };
    let mut endless = begin();
    let refused = loop {
        let answer = ask();
        if answer["ok"] == false {
            break answer;
        }
        // An earlier small file may have caused a refusal of the large one: then there was a reply.
        if endless.read(&mut [0]).is_ok() {
            endless = begin();
        }
    };
    let error = refused["error"].as_str().unwrap();
    assert!(
        error.starts_with("other clients are loading 1073741824 bytes"),
        "{error}"
    );
    // The memory reserved for the client's file is free again when the client disconnects.
    drop(endless);
    while ask()["ok"] != true {}
}

#[test]
fn gateways_refuse_sockets_in_use_and_replace_stale_sockets() {
    let served = Served::start(3);
    let control = format!(
        "address = \"{OWN4}\"\ncontrol = \"{}\"",
        served.path().display()
    );
    let mut second = (ENTRY.build)(control.parse().unwrap())
        .map_err(|e| e.0)
        .unwrap();
    let error = second.prepare().unwrap_err().to_string();
    assert!(
        error.contains("another taut listens on this path"),
        "{error}"
    );
    assert!(served.path().exists());
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("left.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    let control = format!("address = \"{OWN4}\"\ncontrol = \"{}\"", path.display());
    let mut third = (ENTRY.build)(control.parse().unwrap())
        .map_err(|e| e.0)
        .unwrap();
    third.prepare().unwrap();
    drop(third);
    assert!(!path.exists());
    // A file that is no socket belongs to another program, and is not removed.
    std::fs::write(&path, "mine").unwrap();
    let mut fourth = (ENTRY.build)(control.parse().unwrap())
        .map_err(|e| e.0)
        .unwrap();
    assert!(fourth.prepare().is_err());
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

thread_local! {
    /// The gateways of a property test, which its cases share: creating a gateway takes longer than a case.
    static GATEWAYS: std::cell::RefCell<Option<[Bench; 2]>> = const { std::cell::RefCell::new(None) };
}

/// Returns two gateways without bearers: one with a `hash` table, one with a `rules` table.
fn gateways() -> [Bench; 2] {
    let settings = |matching| format!("bearers = 100\nmatching = \"{matching}\"");
    let made = || ["hash", "rules"].map(|it| Bench::new(&settings(it)));
    let mut gateways = GATEWAYS.take().unwrap_or_else(made);
    for gateway in &mut gateways {
        let bearers = gateway.control.bearers();
        let wishes: Vec<_> = bearers.map(|it| Wish::Remove(it.matched)).collect();
        gateway.control.grant(&wishes).unwrap();
        while gateway.plane.take_changes() {}
    }
    gateways
}

proptest! {
    /// For all addresses and contents, relaying keeps correct UDP checksums correct and wrong ones wrong.
    #[test]
    fn relaying_preserves_valid_and_invalid_udp_checksums(
        teid: u32, new in 1u32.., remote: u32, damage: bool, len in 92usize..400,
    ) {
        prop_assume!(teid != 0);
        let mut gateways = gateways();
        let gateway = &mut gateways[0];
        gateway.add(&format!("{teid},relay,{new},{}", std::net::Ipv4Addr::from_bits(remote)));
        let mut frame = with_checksum(tunnelled(true, true, teid, len));
        if damage {
            *frame.last_mut().unwrap() ^= 1;
        }
        let out = gateway.pass(&[frame], 0);
        let ethernet = Ethernet::new(&out[0][..]).unwrap();
        let ip = Ipv4::new(ethernet.payload()).unwrap();
        ip.verify_checksum().unwrap();
        let udp = Udp::new(ip.payload()).unwrap();
        let verified = udp.verify_checksum(ip.pseudo_header(udp.length()));
        prop_assert_eq!(verified.is_ok(), !damage);
        GATEWAYS.set(Some(gateways));
    }

    /// Under random changes of bearers and random frames, including damaged frames, a `rules` table gives the same
    /// frames and counts as a `hash` table.
    #[test]
    fn rules_and_hash_table_produce_equal_frames_and_counts(
        bearers in proptest::collection::vec((any::<bool>(), 1u32..6, 0u8..4), 1..16),
        frames in proptest::collection::vec(
            (any::<bool>(), any::<bool>(), 1u32..7, any::<bool>(), 0usize..4, (12usize..60, any::<u8>())), 1..16,
        ),
    ) {
        let mut gateways = gateways();
        for (is_kept, number, kind) in bearers {
            let line = match kind {
                0 => format!("{number},relay,{},192.0.2.9", number + 16),
                1 => format!("{number},decapsulate"),
                2 => format!("10.45.0.{number},encapsulate,{},192.0.2.9", number + 16),
                _ => format!("2001:db8:{number}::/64,encapsulate,{},2001:db8::9", number + 16),
            };
            for gateway in &mut gateways {
                gateway.add(&line);
                if !is_kept {
                    let matched = read_csv(&line, gateway.control.own()).unwrap()[0].1.matched;
                    gateway.control.grant(&[Wish::Remove(matched)]).unwrap();
                    while gateway.plane.take_changes() {}
                }
            }
        }
        let frames: Vec<_> = frames
            .into_iter()
            .map(|(is_tunnelled, is_v4, number, is_end, changes, (at, byte))| {
                let mut frame = match (is_tunnelled, is_v4) {
                    (true, _) => tunnelled(is_v4, true, number, 120),
                    (false, true) => flow("10.45.0.9", &format!("10.45.0.{number}")).frame(120).unwrap(),
                    (false, false) => flow("2001:db8:9::9", &format!("2001:db8:{number}::7")).frame(120).unwrap(),
                };
                if is_tunnelled && is_end {
                    frame[if is_v4 { 43 } else { 63 }] = MessageType::END_MARKER.0;
                }
                if changes == 0 {
                    frame[at] = byte;
                }
                frame
            })
            .collect();
        let [hash, rules] = &mut gateways;
        prop_assert_eq!(hash.pass(&frames, 0), rules.pass(&frames, 0));
        prop_assert_eq!(hash.plane.counts, rules.plane.counts);
        GATEWAYS.set(Some(gateways));
    }
}

#[test]
fn downlink_packets_have_a_pdu_session_container_with_their_qfi() {
    let mut gateway = Bench::with("10.45.0.2,encapsulate,1,192.0.2.9,7");
    let out = gateway.pass(&[flow("198.19.0.1", "10.45.0.2").frame(64).unwrap()], 1);
    let gtpu = Gtpu::new(&out[0][42..]).unwrap();
    let (uplink, qfi) = (false, 7);
    assert_eq!(gtpu.pdu_session(), Some(PduSession { uplink, qfi }));
}

/// Returns a gateway with the given settings on which `prepare` has not been called.
fn unprepared(text: &str) -> Gateway {
    let settings: Settings = settings(text.parse().unwrap()).unwrap();
    Gateway::new(settings.check().map_err(|e| e.0).unwrap())
}

/// Returns the gateways of two workers, made one after the other.
fn of_two_workers(settings_text: &str) -> impl FnMut() -> Gateway {
    let (shared, mut number) = (Shared::default(), 0);
    let text = format!("address = \"{OWN4}\"\n{settings_text}");
    move || {
        let mut gateway = unprepared(&text);
        gateway.join(Member { number, of: 2 }, &shared).unwrap();
        gateway.prepare().unwrap();
        number += 1;
        gateway
    }
}

fn grant(gateway: &Gateway, lines: &str) {
    let bearers = read_csv(lines, &[address(OWN4)]).unwrap();
    let wishes: Vec<_> = bearers.iter().map(|(_, b)| Wish::Put(*b)).collect();
    let control = gateway
        .shared
        .lock(|it: &mut Option<Deciding>| Arc::clone(&it.as_ref().unwrap().control));
    control.lock().unwrap().grant(&wishes).unwrap();
}

fn take(gateway: &mut Gateway) -> &mut Plane {
    let plane = gateway.plane.as_mut().unwrap();
    while plane.take_changes() {}
    plane
}

#[test]
fn a_worker_that_starts_later_has_all_earlier_bearers() {
    let line = |n: u32| format!("{n:#x},relay,{n:#x},198.18.0.{}\n", n % 200 + 1);
    let lines = |numbers: std::ops::Range<u32>| numbers.map(line).collect::<String>();
    let mut next = of_two_workers("bearers = 5000");
    let mut first = next();
    grant(&first, &lines(1..300));
    let mut second = next();
    grant(&second, &lines(200..600));
    let both = [&mut first, &mut second].map(|gateway| {
        let plane = take(gateway);
        let all = plane.table.entries();
        let mut all: Vec<_> = all
            .map(|slot| (slot.key, slot.teid, plane.paths.get(slot.path)))
            .collect();
        all.sort_unstable_by_key(|it| it.0);
        all
    });
    assert_eq!(both[0].len(), 599);
    assert!(both[0] == both[1]);
    // A worker that has ended blocks no other worker, whether it was the first or the second.
    drop(first);
    for part in 0..4 {
        grant(&second, &lines(600 + part * 1100..600 + (part + 1) * 1100));
        take(&mut second);
    }
    assert_eq!(take(&mut second).table.len(), 4999);
}

#[test]
fn one_end_marker_leaves_after_all_workers_switch_paths() {
    let mut next = of_two_workers("bearers = 10");
    let (mut first, mut second) = (next(), next());
    grant(&first, "0x1,relay,0x2,198.18.0.9\n");
    take(&mut first);
    take(&mut second);
    let path = Path {
        local: address(OWN4),
        remote: address("198.18.0.9"),
    };
    let control = first
        .shared
        .lock(|it: &mut Option<Deciding>| Arc::clone(&it.as_ref().unwrap().control));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let away = read_csv("0x1,relay,0x3,198.18.0.7\n", &[address(OWN4)]).unwrap();
            let wishes = [Wish::Put(away[0].1), Wish::EndMarker { teid: 2, path }];
            control.lock().unwrap().grant(&wishes).unwrap();
        });
        for _ in 0..50 {
            assert_eq!(take(&mut first).messages.len(), 0);
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        while take(&mut second).table.get(1).unwrap().teid != 3 {}
    });
    assert_eq!(take(&mut first).messages.len(), 1);
    assert_eq!(take(&mut second).messages.len(), 0);
}

#[test]
fn a_new_meter_works_despite_pending_changes_of_exited_workers() {
    let text = format!(
        "address = \"{OWN4}\"\nbearers = 10\npfcp = {{ address = \"{OWN4}\", peers = [\"192.0.2.100\"] }}"
    );
    let mut first = unprepared(&text);
    let control = first.start().unwrap();
    let control = Arc::new(Mutex::new(control));
    let deciding = Deciding {
        control: Arc::clone(&control),
        _server: None,
        _signalling: None,
    };
    let mut second = unprepared(&text);
    second.follow(&deciding).unwrap();
    let bearer = read_csv("0x1,relay,0x2,198.18.0.9\n", &[address(OWN4)]).unwrap()[0].1;
    let meter = MeterName {
        session: 1,
        rule: 1,
        is_uplink: true,
    };
    let kbps = std::num::NonZeroU64::new(1000).unwrap();
    let wishes = [
        Wish::Add(bearer),
        Wish::Limit(bearer.matched, [Some(Limit { meter, kbps }), None]),
    ];
    control.lock().unwrap().grant(&wishes).unwrap();
    drop(first);
    let policing = &take(&mut second).policing;
    let mut found = [Slot::default()];
    policing.look_up(&[bearer.matched.key()], &mut found);
    let passed = (0..1000).filter(|_| policing.admits(&found[0], 0, 1500));
    assert_eq!(passed.count(), 11);
}
