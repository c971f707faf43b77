//! Runs the bodies of the fuzz targets on seeded random bytes and damaged frames, on the stable toolchain.
#![allow(clippy::unwrap_used)]

#[path = "../../../fuzz/bodies/corpus.rs"]
mod corpus;
#[path = "../../../fuzz/bodies/gtpc.rs"]
mod gtpc;
#[path = "../../../fuzz/bodies/pfcp.rs"]
mod pfcp;
#[path = "../../../fuzz/bodies/wire.rs"]
mod wire;

use taut_wire::{LinkEnd, LinkProbe, Mac, StampLayout, UdpFlow, VlanTag};

const SEED: u64 = 0x7a07;

/// Returns valid frames of several kinds. Damaged copies of them reach deeper code than random bytes do.
fn frames() -> Vec<Vec<u8>> {
    let v4 = UdpFlow::default();
    let v6 = UdpFlow {
        src_ip: "2001:2::1".parse().unwrap(),
        dst_ip: "2001:2::2".parse().unwrap(),
        ..v4
    };
    let tagged = UdpFlow {
        vlan: Some(VlanTag::new(9).unwrap()),
        ..v4
    };
    let gtpu = UdpFlow {
        dst_port: taut_wire::gtpu::UDP_PORT,
        ..v4
    };
    let mut frames: Vec<_> = [(v4, 64), (tagged, 68), (v6, 84), (v6, 130), (gtpu, 120)]
        .into_iter()
        .map(|(flow, size)| {
            let mut frame = flow.frame(size).unwrap();
            let layout = StampLayout::new(&frame).unwrap();
            layout.write(&mut frame, 1, 2, 3).unwrap();
            frame
        })
        .collect();
    let tunnelled = [
        0x36, 255, 0, 20, 0, 0, 0, 1, 0, 9, 0, 0x85, 1, 0, 0, 0xc0, 2, 0, 0, 0, 0, 0, 0, 0,
    ];
    frames[4][42..42 + tunnelled.len()].copy_from_slice(&tunnelled);
    // A neighbour message with two options before the address, and an ARP request.
    let mut options = vec![0; 24];
    options.extend([5, 1, 0, 0, 0, 0, 5, 220, 3, 2, 0, 0, 0, 0, 0, 0]);
    options.extend([0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 0, 0, 0, 0, 9]);
    frames.push(options);
    let mut arp = vec![0, 1, 8, 0, 6, 4, 0, 1];
    arp.extend(0..20);
    frames.push(arp);
    // A link probe, and an LLDP announcement.
    let end = |interface| LinkEnd {
        node: "gen",
        interface,
    };
    let probe = LinkProbe {
        token: [7; 16],
        from: end("eth1"),
        hears: Some(end("eth2")),
    };
    frames.push(probe.frame(Mac([2; 6]), Mac::BROADCAST).unwrap());
    frames.push(b"\x02\x04\x07sw1\x04\x04\x05p10\x06\x02\x00\x78\x0a\x03sw1\x00\x00".to_vec());
    frames
}

#[test]
fn randomly_damaged_frames_do_not_crash_the_parsers() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let frames = frames();
    let port = UdpFlow::default().dst_port.to_be_bytes();
    for _ in 0..60_000 {
        let mut bytes = match random.usize(..=frames.len()) {
            0 => (0..random.usize(..160)).map(|_| random.u8(..)).collect(),
            i => frames[i - 1].clone(),
        };
        for _ in 0..random.usize(..4) {
            if !bytes.is_empty() {
                let at = random.usize(..bytes.len());
                bytes[at] = random.u8(..);
            }
        }
        if random.u8(..4) == 0 {
            bytes.truncate(random.usize(..=bytes.len()));
        }
        wire::parse(&bytes);
        wire::parse(bytes.get(14..).unwrap_or_default());
        wire::neighbour(&bytes);
        wire::neighbour(bytes.get(14..).unwrap_or_default());
        wire::gtpu(bytes.get(42..).unwrap_or_default());
        wire::stamp(&[&port[..], &bytes].concat());
    }
}

/// Returns a session establishment message. It has a rule in a group within a group, and an element with each kind of
/// address.
fn establishment() -> Vec<u8> {
    use taut_wire::pfcp::{ElementType, MessageType, Writer};
    let mut pdi = Writer::group();
    pdi.element(ElementType::SOURCE_INTERFACE, &[0])
        .element(ElementType::F_TEID, &[5, 7])
        .element(ElementType::UE_IP_ADDRESS, &[2, 10, 45, 0, 2]);
    let mut rule = Writer::group();
    rule.element(ElementType::PDR_ID, &[0, 1])
        .grouped(ElementType::PDI, &pdi);
    let mut message = Writer::message(MessageType::SESSION_ESTABLISHMENT_REQUEST, Some(0), 5);
    message
        .element(ElementType::NODE_ID, &[0, 192, 0, 2, 1])
        .element(
            ElementType::F_SEID,
            &[2, 0, 0, 0, 0, 0, 0, 0, 9, 192, 0, 2, 1],
        )
        .grouped(ElementType::CREATE_PDR, &rule)
        .element(
            ElementType::OUTER_HEADER_CREATION,
            &[1, 0, 0, 0, 0, 7, 192, 0, 2, 1],
        );
    message.finish().unwrap()
}

#[test]
fn randomly_damaged_pfcp_messages_do_not_crash_the_parser() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let good = establishment();
    for _ in 0..60_000 {
        let mut bytes = good.clone();
        for _ in 0..random.usize(..5) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        if random.u8(..4) == 0 {
            bytes.truncate(random.usize(..=bytes.len()));
        }
        pfcp::message(&bytes);
    }
}

/// Returns a create session request with a group, a filter, and elements of every parsed kind.
fn session_request() -> Vec<u8> {
    use taut_wire::gtpc::{
        Ambr, BearerQos, ElementType, FTeid, Interface, MessageType, Paa, Writer,
    };
    let teid = FTeid::new(Interface::S11_MME, 7, [192, 0, 2, 9].into());
    let paa = Paa {
        v4: Some([10, 45, 0, 2].into()),
        v6: Some((64, "2001:db8::1".parse().unwrap())),
    };
    let mut bearer = Writer::group();
    bearer
        .element(ElementType::EBI, &[5])
        .element(ElementType::BEARER_QOS, &BearerQos::default().emit())
        .element(
            ElementType::BEARER_TFT,
            &[0x21, 0x31, 7, 9, 0x10, 198, 51, 100, 0, 255, 255, 255, 0],
        );
    let mut message = Writer::message(MessageType::CREATE_SESSION_REQUEST, Some(0), 5);
    message
        .element(ElementType::IMSI, &[0, 1, 2, 3, 4, 5, 6, 0xf7])
        .element(ElementType::F_TEID, &teid.emit())
        .element(ElementType::PAA, &paa.emit())
        .element(ElementType::AMBR, &Ambr::default().emit())
        .element(ElementType::CAUSE, &[16, 0])
        .grouped(ElementType::BEARER_CONTEXT, 0, &bearer);
    message.finish().unwrap()
}

#[test]
fn randomly_damaged_gtpc_messages_do_not_crash_the_parser() {
    let mut random = fastrand::Rng::with_seed(SEED);
    let good = session_request();
    for _ in 0..30_000 {
        let mut bytes = good.clone();
        for _ in 0..random.usize(..5) {
            let at = random.usize(..bytes.len());
            bytes[at] = random.u8(..);
        }
        if random.u8(..4) == 0 {
            bytes.truncate(random.usize(..=bytes.len()));
        }
        gtpc::message(&bytes);
    }
}

#[test]
fn the_fuzzing_corpus_replays_without_panics() {
    corpus::replay("wire_gtpc", gtpc::message);
    corpus::replay("wire_gtpu", wire::gtpu);
    corpus::replay("wire_neighbour", wire::neighbour);
    corpus::replay("wire_parse", wire::parse);
    corpus::replay("wire_pfcp", pfcp::message);
    corpus::replay("wire_stamp", wire::stamp);
}

/// Tests frames truncated or extended to every length up to 128 bytes. Each byte that contains a length, a type or an
/// offset takes every value, one byte at a time, while all other bytes are correct. A parser's bounds depend on no
/// other bytes.
#[test]
fn no_frame_up_to_128_bytes_makes_a_parser_overrun() {
    let all = frames();
    let extended = {
        // Hop-by-hop options, a routing header, a fragment header, then UDP.
        let mut frame = all[3].clone();
        frame[20] = 0;
        let headers = [
            43, 0, 1, 4, 0, 0, 0, 0, 44, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 9,
        ];
        frame.splice(54..54, headers);
        let length = (frame.len() - 54) as u16;
        frame[18..20].copy_from_slice(&length.to_be_bytes());
        frame
    };
    let arp = [&[0xff; 6][..], &[2; 6], &[8, 6], &all[6]].concat();
    // Types, versions and header lengths, total lengths, fragments, protocols, extensions, and fields of layer 4 and
    // above.
    let kinds: [(&[u8], &[usize]); 7] = [
        (&all[0], &[12, 13, 14, 16, 17, 20, 21, 23, 38, 39, 46]),
        (&all[1], &[12, 13, 16, 17, 18, 20, 21, 24, 25, 27, 42, 43]),
        (&all[2], &[12, 13, 14, 18, 19, 20, 58, 59]),
        (
            &extended,
            &[18, 19, 20, 54, 55, 62, 63, 70, 71, 72, 73, 82, 83],
        ),
        (
            &all[4],
            &[
                14, 16, 17, 23, 38, 39, 42, 43, 44, 45, 52, 53, 54, 55, 57, 58,
            ],
        ),
        (&all[5], &[24, 25, 40, 41, 48, 49]),
        (&arp, &[12, 13, 14, 16, 18, 19, 20]),
    ];
    let read_all = |(frame, places): (&[u8], &[usize])| {
        let mut read = 0_u32;
        for length in 0..=128 {
            let mut bytes = frame.to_vec();
            bytes.resize(length, 0);
            for place in places.iter().filter(|place| **place < length) {
                let kept = bytes[*place];
                for value in 0..=u8::MAX {
                    bytes[*place] = value;
                    wire::parse(&bytes);
                    wire::gtpu(bytes.get(42..).unwrap_or_default());
                    read += 1;
                }
                bytes[*place] = kept;
            }
        }
        read
    };
    // The other tests finish long before this one, so their cores are free.
    let read: u32 = std::thread::scope(|scope| {
        let threads = kinds.map(|kind| scope.spawn(move || read_all(kind)));
        threads.map(|it| it.join().unwrap()).into_iter().sum()
    });
    assert!(read > 1_000_000, "{read}");
}
