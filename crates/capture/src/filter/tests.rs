//! Tests on random expressions, programs and frames: filters against libpcap's own interpreter, needs against the
//! frames that match, and many filters against each one alone.

#![allow(clippy::unwrap_used)]

use super::*;
use etherparse::PacketBuilder;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const ADDRESSES: u8 = 4;
const PORTS: [u16; 4] = [53, 80, 443, 5060];

fn ipv4(random: &mut fastrand::Rng) -> Ipv4Addr {
    [10, 0, random.u8(..2), random.u8(1..=ADDRESSES)].into()
}

fn ipv6(random: &mut fastrand::Rng) -> Ipv6Addr {
    let last = random.u8(1..=ADDRESSES).into();
    [0x2001, 0xdb8, 0, 0, 0, 0, 0, last].into()
}

/// Returns a random element of a list of words.
fn one_of<'a>(random: &mut fastrand::Rng, all: &'a str) -> &'a str {
    let all: Vec<_> = all.split(';').collect();
    all[random.usize(..all.len())]
}

/// Returns a random filter expression without operators. (No geneve: libpcap's program may read scratch memory that it
/// has not written.)
fn simple(random: &mut fastrand::Rng) -> String {
    let port = PORTS[random.usize(..PORTS.len())];
    let direction = one_of(random, ";src ;dst ;src or dst ;src and dst ");
    let small = random.u8(..40);
    match random.u8(..16) {
        0..=2 => format!("{direction}host {}", ipv4(random)),
        3 => format!("{direction}host {}", ipv6(random)),
        4..=6 => {
            let protocol = one_of(random, ";tcp ;udp ;sctp ");
            format!("{protocol}{direction}port {port}")
        }
        7 => one_of(random, "tcp;udp;icmp;arp;ip;ip6;icmp6;igmp;rarp").into(),
        8 => one_of(
            random,
            "vlan;vlan 5;mpls;pppoes;broadcast;multicast;ip6 multicast",
        )
        .into(),
        9 => format!("{direction}net 10.0.{}.0/24", random.u8(..2)),
        10 => format!("{direction}portrange 80-{}", 80 + u16::from(small) * 10),
        11 => {
            let relation = one_of(random, "less;greater");
            format!("{relation} {}", 60 + u16::from(small))
        }
        12 => format!("ether {direction}host 2:2:2:2:2:{}", random.u8(..4)),
        13 => {
            let bytes = "tcp[tcpflags] & (tcp-syn|tcp-ack) != 0;tcp[13] = 2;udp[4:2] > 30;ip[8] & 0x3f >= 20";
            one_of(random, bytes).into()
        }
        14 => {
            let (at, size) = (random.u8(..30), one_of(random, "1;2;4"));
            let operation = one_of(random, "+;-;*;/;&;|;<<;>>;%;^");
            let relation = one_of(random, "=;!=;>;<=;<;>=");
            let base = one_of(random, "ip;ether;udp;tcp;ip6");
            format!(
                "{base}[{at}:{size}] {operation} {} {relation} {small}",
                1 + small % 31
            )
        }
        _ => {
            let (base, relation) = (one_of(random, "ip;ether"), one_of(random, "=;>;<"));
            format!("{base}[ip[{small}] & 0x1f] {relation} len - ip[2:2] * 2")
        }
    }
}

fn expression(random: &mut fastrand::Rng, depth: u8) -> String {
    if depth == 0 || random.u8(..4) == 0 {
        return simple(random);
    }
    let first = expression(random, depth - 1);
    match random.u8(..8) {
        0 => format!("not ({first})"),
        1..=4 => format!("({first}) and ({})", expression(random, depth - 1)),
        _ => format!("({first}) or ({})", expression(random, depth - 1)),
    }
}

/// Returns a random frame of a kind that the expressions are about, sometimes damaged.
fn frame(random: &mut fastrand::Rng) -> Vec<u8> {
    let port = |random: &mut fastrand::Rng| PORTS[random.usize(..PORTS.len())];
    let mac = |random: &mut fastrand::Rng| [2, 2, 2, 2, 2, random.u8(..4)];
    let ethernet = PacketBuilder::ethernet2(mac(random), mac(random));
    let payload: Vec<u8> = (0..random.usize(..64)).map(|_| random.u8(..)).collect();
    let mut bytes = Vec::new();
    let from = (port(random), port(random));
    let tag = random.u16(4..7);
    let (v4, v6) = ((ipv4(random), ipv4(random)), (ipv6(random), ipv6(random)));
    let tagged = |at: u16| etherparse::VlanId::try_new(at).unwrap();
    let network = match (random.u8(..8), random.bool()) {
        (0, _) => ethernet
            .single_vlan(tagged(tag))
            .ipv4(v4.0.octets(), v4.1.octets(), 64),
        (1, _) => {
            ethernet
                .double_vlan(tagged(tag), tagged(5))
                .ipv4(v4.0.octets(), v4.1.octets(), 64)
        }
        (2, _) => ethernet
            .single_vlan(tagged(tag))
            .ipv6(v6.0.octets(), v6.1.octets(), 64),
        (3..=4, _) => ethernet.ipv6(v6.0.octets(), v6.1.octets(), 64),
        (5, true) => {
            let arp = etherparse::ArpPacket::new(
                etherparse::ArpHardwareId::ETHERNET,
                etherparse::EtherType::IPV4,
                etherparse::ArpOperation::REQUEST,
                &[2; 6],
                &v4.0.octets(),
                &[0; 6],
                &v4.1.octets(),
            );
            ethernet.arp(arp.unwrap()).write(&mut bytes).unwrap();
            return bytes;
        }
        _ => ethernet.ipv4(v4.0.octets(), v4.1.octets(), random.u8(..)),
    };
    match random.u8(..6) {
        0..=2 => network
            .udp(from.0, from.1)
            .write(&mut bytes, &payload)
            .unwrap(),
        3..=4 => network
            .tcp(from.0, from.1, 7, 100)
            .syn()
            .write(&mut bytes, &payload)
            .unwrap(),
        _ => network
            .write(&mut bytes, etherparse::IpNumber::ICMP, &payload)
            .unwrap(),
    }
    if random.u8(..4) == 0 {
        let at = random.usize(..bytes.len());
        bytes[at] = random.u8(..);
    }
    if random.u8(..8) == 0 {
        bytes.truncate(random.usize(..bytes.len()));
    }
    bytes
}

/// Returns a random program that may have any existing instruction. It writes all scratch memory first, because that of
/// libpcap's interpreter is not initialised.
fn program(random: &mut fastrand::Rng) -> Vec<FilterInstruction> {
    const CODES: [u16; 44] = [
        0x00, 0x20, 0x28, 0x30, 0x40, 0x48, 0x50, 0x60, 0x80, 0x01, 0x61, 0x81, 0xb1, 0x02, 0x03,
        0x04, 0x14, 0x24, 0x34, 0x44, 0x54, 0x64, 0x74, 0x94, 0xa4, 0x0c, 0x1c, 0x2c, 0x3c, 0x4c,
        0x5c, 0x6c, 0x7c, 0x9c, 0xac, 0x84, 0x05, 0x15, 0x25, 0x35, 0x45, 0x1d, 0x07, 0x87,
    ];
    let zero = |k| FilterInstruction {
        code: 2,
        k,
        ..Default::default()
    };
    let mut program: Vec<_> = (0..16).map(zero).collect();
    let body = random.usize(1..40);
    for left in (0..body).rev() {
        let code = CODES[random.usize(..CODES.len())];
        let k = match code {
            0x60 | 0x61 | 0x02 | 0x03 => random.u32(..16),
            0x05 => random.usize(..=left) as u32,
            0x64 | 0x74 => random.u32(..32),
            0x34 | 0x94 => random.u32(1..),
            0x20 | 0x28 | 0x30 | 0xb1 if random.u8(..8) == 0 => random.u32(..1 << 31),
            0x20 | 0x28 | 0x30 | 0xb1 => random.u32(..64),
            _ if random.u8(..8) == 0 => random.u32(..),
            _ => random.u32(..64),
        };
        let mut skip = || random.usize(..=left.min(255)) as u8;
        program.push(FilterInstruction {
            code,
            jt: skip(),
            jf: skip(),
            k,
        });
    }
    let code = if random.bool() { 0x16 } else { 0x06 };
    program.push(FilterInstruction {
        code,
        k: random.u32(..),
        ..Default::default()
    });
    program
}

/// Returns a filter of a random expression that libpcap accepts, and its program; none without libpcap.
fn made(random: &mut fastrand::Rng) -> Option<(Filter, Vec<FilterInstruction>)> {
    loop {
        let text = expression(random, 3);
        match compile_packet_filter(&text, true) {
            Ok(instructions) => match Filter::of_program(&text, &instructions) {
                Ok(filter) => return Some((filter, instructions)),
                // The expression contains an offset such as `ip[5 - 20]`.
                Err(e) => assert!(e.to_string().contains("before the frame"), "{e}: {text}"),
            },
            Err(PacketFilterError::Missing(_)) => {
                println!("skipped: needs libpcap");
                return None;
            }
            Err(PacketFilterError::Refused(_)) => {}
        }
    }
}

/// Checks that libpcap's interpreter gives the same result as the filter, and that a matching frame satisfies the
/// filter's needs.
fn agrees(filter: &Filter, instructions: &[FilterInstruction], frame: &[u8], wire: u32) {
    let (text, ours) = (filter.text(), filter.program.run(frame, wire));
    let theirs = taut_sys::ask_libpcap(instructions, frame, wire).unwrap();
    assert_eq!(ours, theirs, "{text}, {instructions:?}, {frame:02x?}");
    let needs = filter.needs();
    assert!(
        ours == 0 || needs.are_met_by(frame),
        "{text}: {needs:?}, {frame:02x?}"
    );
}

proptest! {
    #[test]
    fn filter_expressions_match_the_same_packets_as_in_libpcap(seed: u64) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let Some((filter, instructions)) = made(random) else { return Ok(()) };
        for _ in 0..32 {
            let frame = frame(random);
            let wire = frame.len() as u32 + random.u32(..2) * 1000;
            agrees(&filter, &instructions, &frame, wire);
        }
    }

    #[test]
    fn random_filter_programs_give_the_same_result_as_in_libpcap(seed: u64) {
        let random = &mut fastrand::Rng::with_seed(seed);
        if matches!(compile_packet_filter("", false), Err(PacketFilterError::Missing(_))) {
            println!("skipped: needs libpcap");
            return Ok(());
        }
        for _ in 0..16 {
            let instructions = program(random);
            let filter = Filter::of_program("made up", &instructions).unwrap();
            for _ in 0..8 {
                let frame = frame(random);
                agrees(&filter, &instructions, &frame, frame.len() as u32);
            }
        }
    }
}

proptest! {
    // Compiling the filters takes long.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn combined_filters_match_the_same_packets_as_separate_filters(seed: u64) {
        let random = &mut fastrand::Rng::with_seed(seed);
        let filters: Vec<_> = (0..random.usize(..100)).map_while(|_| made(random)).map(|(filter, _)| filter).collect();
        let many = Many::new(filters).unwrap();
        let mut matches = Matches::default();
        for _ in 0..32 {
            let frame = frame(random);
            let wire = frame.len() as u32;
            many.matches(&frame, wire, &mut matches);
            let accepts = |at: &usize| many.filters()[*at].matches(&frame, wire);
            let each: Vec<_> = (0..many.filters().len()).filter(accepts).collect();
            prop_assert_eq!(matches.iter().collect::<Vec<_>>(), &each[..]);
            prop_assert_eq!(matches.is_empty(), each.is_empty());
            prop_assert!(each.iter().all(|at| matches.contains(*at)) && !matches.contains(MOST_FILTERS));
        }
    }
}

/// Returns a short text for each alternative of a filter with the addresses, ports and protocols that it requires; none
/// without libpcap.
fn pinned(text: &str) -> Option<Vec<String>> {
    let filter = match Filter::new(text) {
        Err(e) if e.is_missing => return None,
        other => other.unwrap(),
    };
    let word = |name: &str, number: Option<String>| number.map(|number| format!("{name} {number}"));
    let all = filter.needs().addresses().into_iter().map(|one| {
        let Some(one) = one else {
            return "nothing".to_string();
        };
        let address = |address: Option<IpAddr>| address.map(|a| a.to_string());
        let words = [
            word("type", one.ethertype.map(|e| format!("{e:x}"))),
            word("from", address(one.source)),
            word("to", address(one.destination)),
            word("protocol", one.protocol.map(|p| p.to_string())),
            word("from port", one.source_port.map(|p| p.to_string())),
            word("to port", one.destination_port.map(|p| p.to_string())),
        ];
        words.into_iter().flatten().collect::<Vec<_>>().join(", ")
    });
    Some(all.collect())
}

#[test]
fn required_addresses_and_ports_are_derived_from_a_filter() {
    let table: [(&str, &[&str]); 12] = [
        ("", &["nothing"]),
        ("tcp or len > 100", &["nothing"]),
        (
            "src host 10.0.0.1 and dst host 10.0.0.2 and udp src port 5 and dst port 7",
            &["type 800, from 10.0.0.1, to 10.0.0.2, protocol 17, from port 5, to port 7"],
        ),
        (
            "host 10.0.0.1",
            &[
                "type 800, from 10.0.0.1",
                "type 800, to 10.0.0.1",
                "type 806, from 10.0.0.1",
                "type 806, to 10.0.0.1",
                "type 8035, from 10.0.0.1",
                "type 8035, to 10.0.0.1",
            ],
        ),
        (
            "ip6 src host 2001:db8::1 and tcp dst port 80",
            &["type 86dd, from 2001:db8::1, protocol 6, to port 80"],
        ),
        (
            "ip dst host 10.0.0.1 and not tcp",
            &["type 800, to 10.0.0.1"],
        ),
        (
            "vlan 5 and ip src 10.0.0.1",
            &["type 800, from 10.0.0.1"; 3],
        ),
        (
            "vlan and vlan and udp dst port 53 and ip",
            &["type 800, protocol 17, to port 53"; 9],
        ),
        (
            "udp port 53 and ip",
            &[
                "type 800, protocol 17, from port 53",
                "type 800, protocol 17, to port 53",
            ],
        ),
        ("net 10.0.0.0/8 and ip", &["nothing", "nothing"]),
        ("ether host 2:2:2:2:2:2", &["nothing", "nothing"]),
        ("tcp portrange 80-90 and ip", &["type 800, protocol 6"]),
    ];
    for (text, expected) in table {
        match pinned(text) {
            None => return println!("skipped: needs libpcap"),
            Some(found) => assert_eq!(found, expected, "{text}"),
        }
    }
}

#[test]
fn the_address_check_of_an_oversized_filter_passes_all_packets() {
    let list = |length: u32, direction: &str, about: &str| {
        let host = |host| {
            format!(
                "({direction}host {}{about})",
                Ipv4Addr::from(0x0a00_0000 + host)
            )
        };
        (1..=length).map(host).collect::<Vec<_>>().join(" or ")
    };
    let filter = match Filter::new(&list(300, "src ", "")) {
        Err(e) if e.is_missing => return println!("skipped: needs libpcap"),
        other => other.unwrap(),
    };
    // ARP and RARP are included.
    assert_eq!(filter.needs().alternatives().len(), 900);
    assert!(!filter.needs().are_met_by_all());
    assert!(!filter.needs().are_met_by(&[0; 60]));
    // The expression has more alternatives than are stored.
    assert!(
        Filter::new(&list(350, "src ", ""))
            .unwrap()
            .needs()
            .are_met_by_all()
    );
    let too_long = Filter::new(&list(300, "", " and port 80")).unwrap_err();
    assert_eq!(too_long.column, None);
    assert!(
        too_long.to_string().contains("4096 instructions"),
        "{too_long}"
    );
}

#[test]
fn filters_beyond_the_maximum_number_are_refused() {
    let filter = Filter::new("").unwrap();
    let mut matches = Matches::default();
    let many = Many::new(vec![filter.clone(); MOST_FILTERS]).unwrap();
    many.matches(&[], 0, &mut matches);
    assert_eq!(matches.iter().count(), MOST_FILTERS);
    Many::new(vec![filter.clone()])
        .unwrap()
        .matches(&[], 0, &mut matches);
    assert_eq!(matches.iter().collect::<Vec<_>>(), [0]);
    let error = Many::new(vec![filter; MOST_FILTERS + 1]).unwrap_err();
    assert_eq!(error, TooManyFilters(MOST_FILTERS + 1));
}
