//! The bodies of the fuzz targets for `wire`; `cargo test` runs the same bodies over seeded noise.
#![allow(dead_code)] // each target uses one of the bodies

use taut_wire::{
    Arp, ArpRepr, EtherType, Ethernet, EthernetRepr, Fault, Gtpu, GtpuRepr, Headers, IcmpError,
    Icmpv4, Icmpv4Repr, IpProtocol, Ipv4, Ipv4Repr, Ipv6, Ipv6Repr, LinkProbe, Lldp, Mac,
    Neighbour, NeighbourRepr, Received, StampLayout, Tcp, TcpRepr, Udp, UdpRepr, checksum,
    claimed_stamp, classify,
    gtpu::{ErrorIndication, MOST_EXTENSIONS, MOST_QFI, UDP_PORT},
    icmp_error,
    stamp::{MAGIC, STAMP_LEN_BYTES},
};

/// Reads every view of the bytes, then parses the frame layer by layer as a receiver would.
pub fn parse(bytes: &[u8]) {
    walk_arp(bytes);
    walk_ipv4(bytes, 2);
    walk_ipv6(bytes, 2);
    walk_transport(IpProtocol::UDP, bytes, 2);
    walk_transport(IpProtocol::TCP, bytes, 2);
    walk_transport(IpProtocol::ICMP, bytes, 2);
    walk_gtpu(bytes, 2);

    headers(bytes);
    told(bytes);
    link(bytes);
    let Ok(view) = Ethernet::new(bytes) else {
        return;
    };
    let repr = EthernetRepr::parse(&view).expect("a view parses");
    let mut again = bytes.to_vec();
    let emitted = repr.emit(&mut again).expect("what was parsed is emitted");
    assert_eq!(EthernetRepr::parse(&emitted), Ok(repr));
    assert_eq!(again, bytes);
    match view.ethertype() {
        EtherType::ARP => walk_arp(view.payload()),
        EtherType::IPV4 => walk_ipv4(view.payload(), 2),
        EtherType::IPV6 => walk_ipv6(view.payload(), 2),
        _ => {}
    }
}

/// Parses the payload of a frame as an LLDP announcement and as a probe of a link. A parsed probe must be the same
/// after it is built and parsed again.
fn link(bytes: &[u8]) {
    if let Ok(found) = Lldp::parse(bytes) {
        let texts = [&found.chassis, &found.port, &found.system_name];
        assert!(texts.iter().all(|it| !it.contains(char::is_control)));
    }
    for probe in [LinkProbe::parse(bytes), LinkProbe::of_frame(bytes)]
        .into_iter()
        .flatten()
    {
        let frame = probe
            .frame(Mac([2; 6]), Mac::BROADCAST)
            .expect("what was parsed is built");
        assert_eq!(LinkProbe::of_frame(&frame), Ok(probe));
    }
}

/// Checks that the ICMP error about a packet is a complete frame, and that no further error is sent about that frame.
fn told(bytes: &[u8]) {
    for from in ["192.0.2.1", "2001:db8::1"].map(|it| it.parse().expect("an address")) {
        let mut reply = [0; icmp_error::LONGEST_BYTES];
        let error = IcmpError::TimeExceeded;
        if let Some(length) = icmp_error(bytes, error, from, &mut reply) {
            let frame = &reply[..length];
            assert_eq!(Headers::of(frame).fault(), None);
            assert_eq!(
                icmp_error(frame, error, from, &mut [0; icmp_error::LONGEST_BYTES]),
                None
            );
        }
    }
}

/// Checks that parsing all headers in one pass agrees with parsing each separately.
fn headers(bytes: &[u8]) {
    let found = Headers::of(bytes);
    if bytes.len() > usize::from(u16::MAX) {
        return assert_eq!(found.fault(), Some(Fault::Ethernet));
    }
    let (ip, transport, end) = (found.ip(), found.transport(), found.end());
    assert!(ip <= bytes.len() && transport <= end && end <= bytes.len());
    let Ok(view) = Ethernet::new(bytes) else {
        assert_eq!(found.fault(), Some(Fault::Ethernet));
        return;
    };
    let addresses = match view.ethertype() {
        EtherType::IPV4 => Ipv4::new(view.payload()).ok().map(|it| {
            assert_eq!(found.transport_in(bytes), it.payload());
            assert_eq!(
                (found.protocol(), found.is_fragment()),
                (it.protocol(), it.is_fragment())
            );
            let [source, destination] =
                [it.source(), it.destination()].map(|it| it.to_ipv6_mapped());
            (source, destination)
        }),
        EtherType::IPV6 => Ipv6::new(view.payload()).ok().map(|it| {
            if let Ok(transport) = it.transport() {
                assert_eq!(found.transport_in(bytes), transport.payload);
                assert_eq!(found.protocol(), transport.protocol);
                assert_eq!(found.is_fragment(), transport.fragment.is_some());
            } else {
                assert_eq!(found.fault(), Some(Fault::Extension));
            }
            (it.source(), it.destination())
        }),
        _ => return assert_eq!((found.fault(), transport, end), (None, 0, 0)),
    };
    assert_eq!(addresses.is_none(), found.fault() == Some(Fault::Ip));
    let (source, destination) = found.addresses_in(bytes);
    if let Some((from, to)) = addresses {
        assert_eq!((source, destination), (from.to_bits(), to.to_bits()));
    }
    if let Some((source, destination)) = found.ports() {
        let header = found.transport_in(bytes);
        assert_eq!(header[..2], source.to_be_bytes());
        assert_eq!(header[2..4], destination.to_be_bytes());
    }
}

/// Parses GTP-U as a gateway does: the user packet, and every message that it may carry.
pub fn gtpu(bytes: &[u8]) {
    walk_gtpu(bytes, 4);
    if let Ok(indication) = ErrorIndication::parse(bytes) {
        let mut again = [0; 36];
        let length = indication.emit(&mut again).expect("room for the longest");
        let view = Gtpu::new(&again[..length]).expect("what was emitted is one");
        assert_eq!(ErrorIndication::parse(view.payload()), Ok(indication));
    }
}

/// Classifies a frame. The first two bytes are the measured port; the rest is the frame.
pub fn stamp(bytes: &[u8]) {
    let Some((port, frame)) = bytes.split_first_chunk() else {
        return;
    };
    let port = u16::from_be_bytes(*port);
    if let Some((_, offset)) = claimed_stamp(frame) {
        assert!(frame.len() >= offset + STAMP_LEN_BYTES);
    }
    if let Some((repaired, port)) = repaired(frame) {
        let received = classify(&repaired, port);
        assert!(matches!(received, Received::Stamped(_)), "{received:?}");
    }
    if let Received::Stamped(stamp) = classify(frame, port) {
        assert!(frame.len() >= 14 + 20 + 8 + STAMP_LEN_BYTES);
        assert!(stamp.sequence < 1 << 48);
        // A frame recognised as stamped can be stamped again, and the new stamp is read back as written.
        if let Ok(layout) = StampLayout::new(frame) {
            let mut frame = frame.to_vec();
            let (flow, sequence, ticks) = (!stamp.flow, stamp.sequence ^ 1, !stamp.stamp_ticks);
            layout
                .write(&mut frame, flow, sequence, ticks)
                .expect("the template's own length");
            let Received::Stamped(read) = classify(&frame, port) else {
                panic!("what was stamped is not known again");
            };
            assert_eq!(
                (read.flow, read.sequence, read.stamp_ticks),
                (flow, sequence, ticks)
            );
        }
    } else if let Ok(layout) = StampLayout::new(frame) {
        let mut frame = frame.to_vec();
        layout
            .write(&mut frame, 1, 2, 3)
            .expect("the template's own length");
    }
}

/// Returns an unfragmented UDP/IPv4 frame with space for a stamp (the header of a measurement packet), with the magic
/// number and right checksums, and its port. A fuzzer alone seldom guesses a checksum.
fn repaired(frame: &[u8]) -> Option<(Vec<u8>, u16)> {
    let mut frame = frame.to_vec();
    let mut ethernet = Ethernet::new(&mut frame[..]).ok()?;
    if ethernet.ethertype() != EtherType::IPV4 {
        return None;
    }
    let mut ip = Ipv4::new(ethernet.payload_mut()).ok()?;
    ip.fill_checksum();
    if ip.protocol() != IpProtocol::UDP || ip.is_fragment() {
        return None;
    }
    let length = u16::try_from(ip.payload().len()).ok()?;
    let pseudo_header = ip.pseudo_header(length);
    let mut udp = Udp::new(ip.payload_mut()).ok()?;
    if udp.length() != length || udp.payload().len() < STAMP_LEN_BYTES {
        return None;
    }
    udp.payload_mut()[..2].copy_from_slice(&MAGIC.to_be_bytes());
    udp.fill_checksum(pseudo_header);
    let port = udp.destination_port();
    Some((frame, port))
}

/// Parses the same bytes by both protocols that map IP addresses to MAC addresses: ARP and neighbour discovery.
pub fn neighbour(bytes: &[u8]) {
    walk_arp(bytes);
    let mut reply = bytes.to_vec();
    if let Ok(mut view) = Arp::new(&mut reply[..]) {
        let asker = (view.sender_mac(), view.sender_ip());
        view.make_reply(Mac([2; 6]));
        assert_eq!((view.target_mac(), view.target_ip()), asker);
        assert_eq!(view.sender_mac(), Mac([2; 6]));
    }
    walk_neighbour(bytes);
    // A fuzzer seldom guesses a type that has options.
    for kind in [135, 136] {
        let mut message = bytes.to_vec();
        if let Some(start) = message.first_chunk_mut() {
            *start = [kind, 0];
        }
        walk_neighbour(&message);
    }
}

/// Checks that a message is emitted again and read back, with a valid checksum.
fn walk_neighbour(bytes: &[u8]) {
    let Ok(view) = Neighbour::new(bytes) else {
        return;
    };
    let target = view.target();
    let Some(mac) = view.mac() else {
        return;
    };
    // The MAC address of an option is among the bytes after the message.
    assert!(bytes[24..].windows(6).any(|there| there == mac.0));
    let repr = if view.is_solicitation() {
        NeighbourRepr::Solicitation { target, mac }
    } else {
        let solicited = bytes[4] & 0x40 != 0;
        NeighbourRepr::Advertisement {
            target,
            mac,
            solicited,
        }
    };
    let len = u16::try_from(NeighbourRepr::LEN_BYTES).expect("a short message");
    let sum = checksum::pseudo_header_v6(target, target, IpProtocol::ICMPV6, len.into());
    let mut again = [0; NeighbourRepr::LEN_BYTES];
    repr.emit(&mut again, sum)
        .expect("the message's own length");
    let read = Neighbour::new(&again[..]).expect("what was written is read");
    read.verify_checksum(sum).expect("it was just written");
    assert_eq!(
        (read.is_solicitation(), read.target(), read.mac()),
        (view.is_solicitation(), target, Some(mac))
    );
}

fn walk_arp(bytes: &[u8]) {
    if let Ok(view) = Arp::new(bytes) {
        let repr = ArpRepr::parse(&view).expect("a view parses");
        let mut again = [0; ArpRepr::LEN_BYTES];
        repr.emit(&mut again).expect("what was parsed is emitted");
        assert_eq!(again, bytes[..ArpRepr::LEN_BYTES]);
    }
}

fn walk_ipv4(bytes: &[u8], depth: usize) {
    let Ok(view) = Ipv4::new(bytes) else {
        return;
    };
    if let Ok(repr) = Ipv4Repr::parse(&view) {
        let mut again = vec![0; view.header_len_bytes() + view.payload().len()];
        let emitted = repr.emit(&mut again).expect("what was parsed is emitted");
        assert_eq!(Ipv4Repr::parse(&emitted), Ok(repr));
    }
    let mut routed = bytes.to_vec();
    let mut routed = Ipv4::new(&mut routed[..]).expect("the same bytes");
    routed.decrement_ttl();
    if view.header_len_bytes() == 20 && view.verify_checksum().is_ok() {
        routed
            .verify_checksum()
            .expect("the update keeps the checksum right");
    }
    if !view.is_fragment() {
        walk_transport(view.protocol(), view.payload(), depth);
    }
}

fn walk_ipv6(bytes: &[u8], depth: usize) {
    let Ok(view) = Ipv6::new(bytes) else {
        return;
    };
    let repr = Ipv6Repr::parse(&view).expect("a view parses");
    let mut again = bytes.to_vec();
    repr.emit(&mut again).expect("what was parsed is emitted");
    assert_eq!(again, bytes);
    if let Ok(transport) = view.transport() {
        let rest = &view.payload()[transport.extensions_len_bytes..];
        assert_eq!(rest, transport.payload);
        if transport.fragment.is_none() {
            walk_transport(transport.protocol, rest, depth);
        }
    }
}

fn walk_transport(protocol: IpProtocol, bytes: &[u8], depth: usize) {
    match protocol {
        IpProtocol::UDP => {
            if let Ok(view) = Udp::new(bytes) {
                let repr = UdpRepr::parse(&view).expect("a view parses");
                let mut again = bytes.to_vec();
                let emitted = repr.emit(&mut again).expect("what was parsed is emitted");
                assert_eq!(emitted.payload(), view.payload());
                if view.destination_port() == UDP_PORT {
                    walk_gtpu(view.payload(), depth);
                }
            }
        }
        IpProtocol::TCP => {
            if let Ok(view) = Tcp::new(bytes) {
                let repr = TcpRepr::parse(&view).expect("a view parses");
                let mut again = bytes.to_vec();
                repr.emit(&mut again).expect("what was parsed is emitted");
                again[16..18].copy_from_slice(&bytes[16..18]);
                assert_eq!(again, bytes);
            }
        }
        IpProtocol::ICMP => {
            if let Ok(view) = Icmpv4::new(bytes) {
                let repr = Icmpv4Repr::parse(&view).expect("a view parses");
                let mut again = bytes.to_vec();
                repr.emit(&mut again).expect("what was parsed is emitted");
                again[2..4].copy_from_slice(&bytes[2..4]);
                assert_eq!(again, bytes);
            }
        }
        _ => {}
    }
}

fn walk_gtpu(bytes: &[u8], depth: usize) {
    let Ok(view) = Gtpu::new(bytes) else {
        return;
    };
    let repr = GtpuRepr::parse(&view).expect("a view parses");
    let mut again = vec![0; view.header_len_bytes() + view.payload().len()];
    let emitted = repr.emit(&mut again).expect("what was parsed is emitted");
    assert_eq!(GtpuRepr::parse(&emitted), Ok(repr));
    assert!(view.pdu_session().is_none_or(|s| s.qfi <= MOST_QFI));
    if let Some(extensions) = view.extensions() {
        assert!(extensions.count() <= MOST_EXTENSIONS);
        let walked: usize = extensions
            .map(|extension| extension.content.len() + 2)
            .sum();
        assert_eq!(walked, extensions.bytes.len());
    }
    if let Some(depth) = depth.checked_sub(1) {
        walk_ipv4(view.payload(), depth);
        walk_ipv6(view.payload(), depth);
    }
}
