//! Frames with which two implementations of a function are compared.

// Each test program uses only some of these items.
#![allow(dead_code, clippy::unwrap_used)]

use taut_wire::checksum::update_u16;
use taut_wire::{EtherType, Ethernet, IpProtocol, Ipv4, Ipv4Repr, Ipv6, Protocol, UdpFlow};

pub const FRAMES: usize = 10_000;
/// The shortest frame that the kernel accepts in a test run of a program, bytes.
pub const LEAST: usize = 14;
/// The length of the timestamps of the function `ats`, at the end of payloads, bytes.
pub const STAMPS: usize = 16;

fn flow(v6: bool, number: u16) -> UdpFlow {
    let [a, b] = number.to_be_bytes();
    let mut flow = UdpFlow {
        src_ip: [10, 0, a, b].into(),
        dst_ip: [192, 0, 2, b].into(),
        src_port: 1000 + number,
        dst_port: 50 + u16::from(b % 8),
        ..UdpFlow::default()
    };
    if v6 {
        flow.src_ip = format!("2001:db8::{number:x}").parse().unwrap();
        flow.dst_ip = format!("2001:db8:1::{b:x}").parse().unwrap();
    }
    flow
}

/// Returns the frame with further headers between the IPv6 header and its payload; the last of them names the next
/// protocol.
fn extended(frame: &[u8], first: u8, extensions: &[u8]) -> Vec<u8> {
    let mut frame = [&frame[..54], extensions, &frame[54..]].concat();
    let length = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame[20] = first;
    frame
}

fn with_options(frame: &[u8]) -> Vec<u8> {
    let ip = Ipv4::new(&frame[14..]).unwrap();
    let repr = Ipv4Repr {
        traffic_class: 0,
        identification: 1,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: 64,
        protocol: IpProtocol::UDP,
        source: ip.source(),
        destination: ip.destination(),
        options: &[1, 1, 1, 1, 1, 1, 1, 0],
        payload_len_bytes: ip.payload().len(),
    };
    let mut longer = vec![0; frame.len() + 8];
    longer[..14].copy_from_slice(&frame[..14]);
    let mut emitted = repr.emit(&mut longer[14..]).unwrap();
    emitted.payload_mut().copy_from_slice(ip.payload());
    longer
}

/// Returns frames of every kind, complete and undamaged.
fn whole(random: &mut fastrand::Rng) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for number in 0..40 {
        for v6 in [false, true] {
            for size in [
                68,
                69,
                90 + usize::from(number),
                511,
                1400,
                1483,
                1484,
                1500,
                1518,
            ] {
                let mut frame = flow(v6, number).frame(size).unwrap();
                let from = if v6 { 62 } else { 42 };
                // A wrong checksum has to stay wrong.
                random.fill(&mut frame[from..]);
                all.push(frame);
            }
            let tcp = flow(v6, number).frame_as(Protocol::Tcp, None, 120);
            all.push(tcp.unwrap());
        }
        let echo = flow(false, number).frame_as(Protocol::IcmpEcho, None, 120);
        all.push(echo.unwrap());
    }
    let v4 = || flow(false, 7).frame(110).unwrap();
    let v6 = || flow(true, 7).frame(110).unwrap();
    for (frame, udp) in [(v4(), 34), (v6(), 54)] {
        let mut bare = frame.clone();
        bare[udp + 6..udp + 8].fill(0);
        all.push(bare);
        all.push([&frame[..], &[0xee; 9]].concat());
        all.push([&frame[..12], &[0x81, 0, 0, 5], &frame[12..]].concat());
        let two = [0x88, 0xa8, 0, 6, 0x81, 0, 0, 5];
        all.push([&frame[..12], &two, &frame[12..]].concat());
        all.push([&frame[..12], &two, &two, &frame[12..]].concat());
        let mut multicast = frame.clone();
        multicast[0] |= 1;
        all.push(multicast);
        all.push([&frame[..12], &[8, 6], &[0; 40][..]].concat());
        for protocol in [6, 132, 50, 1, 58] {
            let mut other = frame.clone();
            other[if udp == 34 { 23 } else { 20 }] = protocol;
            all.push(other);
        }
    }
    for fragment in [[0x20, 0], [0, 1], [0x20, 9], [0x40, 0]] {
        let mut frame = v4();
        frame[20..22].copy_from_slice(&fragment);
        all.push(frame);
    }
    all.push(with_options(&v4()));
    let long = [&[17, 150][..], &[0; 1206]].concat();
    for (first, extensions) in [
        (0, &[17, 0, 0, 0, 0, 0, 0, 0][..]),
        (43, &[17, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        (44, &[17, 0, 0, 1, 0, 0, 0, 7]),
        (44, &[17, 0, 0, 8, 0, 0, 0, 7]),
        (44, &[60, 0, 0, 8, 0, 0, 0, 7]),
        (44, &[44, 0, 0, 0, 0, 0, 0, 7, 17, 0, 0, 9, 0, 0, 0, 7]),
        (
            60,
            &[
                0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0,
            ],
        ),
        (60, &[17, 255, 0, 0, 0, 0, 0, 0]),
        (60, &long),
    ] {
        all.push(extended(&v6(), first, extensions));
    }
    // The chain of extension headers is long, and each header names the next one.
    all.push(extended(&v6(), 60, &[60, 0, 0, 0, 0, 0, 0, 0].repeat(120)));
    all
}

/// Returns ten thousand frames: complete, truncated and damaged ones, the same every time.
pub fn frames() -> Vec<Vec<u8>> {
    let mut random = fastrand::Rng::with_seed(7);
    let whole = whole(&mut random);
    let mut all = whole.clone();
    for frame in whole.iter().filter(|it| it.len() < 300) {
        all.extend((LEAST..frame.len().min(80)).map(|len| frame[..len].to_vec()));
    }
    all.truncate(FRAMES * 6 / 10);
    while all.len() < FRAMES {
        let mut frame = whole[random.usize(..whole.len())].clone();
        for _ in 0..random.usize(1..4) {
            let at = random.usize(12..frame.len().min(90));
            frame[at] = random.u8(..);
        }
        all.push(frame);
    }
    all
}

/// Returns the frame with zeros in place of its timestamps and with the matching checksum, and the timestamps.
pub fn without_stamps(frame: &[u8]) -> (Vec<u8>, [u64; 2]) {
    let ethernet = Ethernet::new(frame).unwrap();
    let ip_at = ethernet.header_len_bytes();
    let udp = match ethernet.ethertype() {
        EtherType::IPV4 => ip_at + Ipv4::new(&frame[ip_at..]).unwrap().header_len_bytes(),
        _ => {
            let ip = Ipv6::new(&frame[ip_at..]).unwrap();
            ip_at + 40 + ip.transport().unwrap().extensions_len_bytes
        }
    };
    let mut frame = frame.to_vec();
    let at = frame.len() - STAMPS;
    let stamp = |at: usize| u64::from_be_bytes(*frame[at..].first_chunk().unwrap());
    let stamps = [stamp(at), stamp(at + 8)];
    for place in at..frame.len() {
        let byte = u16::from(std::mem::take(&mut frame[place]));
        let word = if (place - udp).is_multiple_of(2) {
            byte << 8
        } else {
            byte
        };
        let checksum = u16::from_be_bytes([frame[udp + 6], frame[udp + 7]]);
        if checksum != 0 {
            let checksum = match update_u16(checksum, word, 0) {
                0 => 0xffff,
                it => it,
            };
            frame[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        }
    }
    (frame, stamps)
}
