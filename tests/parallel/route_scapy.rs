//! Packets of scapy in a router: options, wrong lengths, wrong versions, overlapping fragments, every extension header.
//! Each has its expected outcome and counter. (tests/parallel/route_frames.rs has such packets of our own, and checks
//! them with tshark.)

use crate::support::between::{Between, is_about_neighbours};
use crate::support::{by_scapy, bytes_of, scratch};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

const INTERFACES: &str = "[[function.interface]]
mac = \"02:00:00:00:00:a0\"
addresses = [\"10.0.0.1/24\", \"2001:db8:0::1/64\"]
[[function.interface]]
mac = \"02:00:00:00:00:a1\"
addresses = [\"10.0.1.1/24\", \"2001:db8:1::1/64\"]
";
const ROUTES: &str = "10.9.0.0/16 via 10.0.1.9\n2001:db8:9::/48 via 2001:db8:1::9\n";

const FORWARDED: &str = "forwarded";
const NO_HOPS: &str = "slow path: no hops left";
const UNTOLD: &str = "slow path: senders not told, beside the above";
const ECHO: &str = "slow path: echo answered";

/// An expected outcome: its name, type and code of the ICMP error to the sender, and the names of the packets with this
/// outcome.
type Fate = (&'static str, Option<(u8, u8)>, &'static [&'static str]);

#[rustfmt::skip]
const FATES: &[Fate] = &[
    // The router does not read options, and payloads concern only the receiver.
    (FORWARDED, None, &[
        "option: no operation", "option: end of list first", "option: loose source route",
        "option: strict source route",
        "option: record route", "option: timestamp", "option: security", "option: router alert", "option: stream",
        "option: MTU probe", "option: traceroute", "option: directed broadcast", "option: address extension",
        "option: unknown option", "option: option of no length", "option: option of one byte",
        "option: option beyond the header",
        "option: 40 bytes of options",
        // The packet is shorter than its frame: the rest is padding.
        "length: 20 of 68", "length: 27 of 68", "length: 67 of 68", "length: nothing behind the header",
        "UDP that is longer than its packet", "UDP of no bytes", "UDP with a wrong checksum",
        "TCP whose header is longer than its packet", "TCP without a header", "TCP with all flags", "protocol 255",
        "GRE in a loop", "20 packets in each other", "reserved flag",
    ]),
    // Fragments are not reassembled.
    (FORWARDED, None, &[
        "fragment 0", "fragment 1", "fragment 2", "overlapping fragment 0", "overlapping fragment 1",
        "overlapping fragment 2",
        "overlapping fragment 3", "overlapping fragment 4", "overlapping fragment 5", "fragment within the first",
        "fragment of no bytes", "fragment of odd length with more to come", "fragment beyond 64 KiB",
        "tiny first fragment",
        "fragment of a TCP header's rest", "fragment that must not be cut", "fragment of IPv6 0", "fragment of IPv6 1",
        "overlapping fragment of IPv6 at 0, more", "overlapping fragment of IPv6 at 1, more",
        "overlapping fragment of IPv6 at 2, last", "overlapping fragment of IPv6 at 8191, more",
        "overlapping fragment of IPv6 at 8191, last",
    ]),
    // Extension headers are not read either (RFC 8200 section 4).
    (FORWARDED, None, &[
        "extension: hop-by-hop", "extension: router alert", "extension: destination options", "extension: home address",
        "extension: routing of type 0", "extension: routing of type 2", "extension: routing of type 253",
        "extension: segment routing", "extension: atomic fragment", "extension: first fragment",
        "extension: reserved bits of a fragment", "extension: authenticated", "extension: encapsulated",
        "extension: mobility",
        "extension: nothing behind", "extension: number 139", "extension: number 140", "extension: number 253",
        "extension: number 254", "extension: number 255", "extension: all", "extension: all, the last one first",
        "extension: 60 of a kind", "extension: beyond the packet", "extension: option beyond its header",
        "extension: option to be told of", "extension: jumbo of no length", "extension: jumbo with a length",
        "payload: 0 of 48", "payload: 1 of 48", "payload: 47 of 48", "payload: none", "traffic class and flow label",
    ]),
    ("dropped: malformed", None, &[
        "length: 0 of 68", "length: 1 of 68", "length: 19 of 68", "length: 69 of 68", "length: 32768 of 68",
        "length: 65535 of 68",
        "header length: 0", "header length: 1", "header length: 2", "header length: 3", "header length: 4",
        "header length: 15, beyond the packet",
        "cut after 20 bytes", "cut after 33 bytes", "cut after 34 bytes", "cut after 60 bytes",
        "version 0", "version 1", "version 2", "version 3", "version 5", "version 6", "version 7", "version 15",
        "version 4 in the type of 6", "version 6 in the type of 4",
        "payload: 49 of 48", "payload: 65535 of 48",
        "IPv6 cut after 20 bytes", "IPv6 cut after 53 bytes", "IPv6 cut after 54 bytes", "IPv6 cut after 60 bytes",
        "IPv6 of version 0", "IPv6 of version 1", "IPv6 of version 4", "IPv6 of version 5", "IPv6 of version 7",
        "IPv6 of version 15",
    ]),
    // A wrong header length is reported as a wrong checksum, as the checksum is computed over that length.
    ("dropped: wrong checksum", None, &[
        "checksum 0x0000", "checksum 0xffff", "checksum 0x1234", "option: wrong checksum", "option: header says none",
        "option: header ends in one", "header length: 6, without options", "header length: 15, without options",
    ]),
    ("dropped: from or to an address that nobody has", None, &[
        "from 0.0.0.0", "from 0.1.2.3", "from 127.0.0.1", "from 224.0.0.1", "from 239.255.255.255", "from 240.0.0.1",
        "from 255.255.255.255", "to 0.0.0.0", "to 127.0.0.1", "to 240.0.0.1", "to 255.255.255.255",
        "from ::", "from ::1", "from ff02::1", "from fe80::7", "to ::", "to ::1", "to fe80::77",
    ]),
    ("dropped: for another station", None, &["to a group", "to a group of IPv6"]),
    ("dropped: neither IP nor ARP", None, &["tagged twice"]),
    (NO_HOPS, Some((11, 0)), &["option: one hop left", "no hops", "one hop", "echo request with one hop"]),
    (NO_HOPS, Some((3, 0)), &[
        "extension: one hop left", "IPv6 without hops", "IPv6 with one hop", "echo request of IPv6 with one hop",
    ]),
    // A later fragment or an ICMP error causes no ICMP error (RFC 1812 section 4.3.2.7, RFC 4443 section 2.4).
    (NO_HOPS, None, &["fragment with no hops left", "error with one hop", "error of IPv6 with one hop"]),
    ("slow path: no route", Some((3, 0)), &["no route"]),
    ("slow path: no route", Some((1, 0)), &["no route of IPv6"]),
    (ECHO, Some((0, 0)), &["longest echo request to the router"]),
    ("slow path: not understood", None, &["echo request with a wrong checksum"]),
];

/// A frame made by scapy, and the frame that the router forwards for it.
struct Frame {
    name: String,
    bytes: Vec<u8>,
    gone_on: Vec<u8>,
}

fn frames() -> Option<Vec<Frame>> {
    let printed = by_scapy("scapy_packets.py", &[])?;
    let frame = |line: &str| {
        let [name, sent, gone_on] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        Frame {
            name: name.to_string(),
            bytes: bytes_of(sent),
            gone_on: bytes_of(gone_on),
        }
    };
    Some(printed.lines().map(frame).collect())
}

/// Receives `count` frames of a port, without those of neighbour discovery.
fn packets(between: &mut Between, port: usize, count: usize) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    let deadline = Instant::now() + Duration::from_secs(20);
    while packets.len() < count && Instant::now() < deadline {
        let frames = between.receive_all(port, 1, Duration::ZERO);
        packets.extend(frames.into_iter().filter(|it| !is_about_neighbours(it)));
    }
    assert_eq!(packets.len(), count, "of port {port}");
    packets
}

#[test]
fn packets_built_by_scapy_have_the_expected_outcomes() {
    let Some(frames) = frames() else { return };
    let (questions, frames): (Vec<_>, Vec<_>) = frames
        .into_iter()
        .partition(|it| it.name.starts_with("neighbour"));
    let fate_of: BTreeMap<&str, _> = FATES
        .iter()
        .flat_map(|(fate, told, names)| names.iter().map(|name| (*name, (*fate, *told))))
        .collect();
    let made: BTreeSet<&str> = frames.iter().map(|it| it.name.as_str()).collect();
    assert_eq!(made.len(), frames.len());
    assert_eq!(made, fate_of.keys().copied().collect());

    let folder = scratch();
    let routes = folder.path().join("routes");
    fs::write(&routes, ROUTES).unwrap();
    let mut router = Between::start(&format!(
        "[[function]]\nname = \"route\"\nroutes = \"{}\"\n{INTERFACES}",
        routes.display()
    ));
    // The router replies to these requests and learns the sender's address from them.
    for question in &questions {
        let port = usize::from(question.name.starts_with("neighbour next"));
        router.send(port, std::slice::from_ref(&question.bytes));
        let is_answer = |frame: &Vec<u8>| frame[..6] == question.bytes[6..12];
        while !router
            .receive_all(port, 1, Duration::ZERO)
            .iter()
            .any(is_answer)
        {}
    }
    let fates = frames.iter().map(|it| (it, fate_of[it.name.as_str()]));
    let mut counts = BTreeMap::new();
    let (mut expected, mut told) = (Vec::new(), Vec::new());
    for (frame, (fate, answer)) in fates {
        *counts.entry(fate).or_insert(0) += 1;
        match (fate, answer) {
            (FORWARDED, _) => expected.push(frame.gone_on.clone()),
            (NO_HOPS, None) => *counts.entry(UNTOLD).or_insert(0) += 1,
            _ => {}
        }
        told.extend(answer.map(|answer| (frame, fate, answer)));
    }
    let all: Vec<_> = frames.iter().map(|it| it.bytes.clone()).collect();
    router.send(0, &all);
    // The forwarded packets are in order, with only the changes of a router.
    let gone_on = packets(&mut router, 1, expected.len());
    for ((got, wanted), name) in gone_on.iter().zip(&expected).zip(
        frames
            .iter()
            .filter(|it| fate_of[it.name.as_str()].0 == FORWARDED)
            .map(|it| &it.name),
    ) {
        assert_eq!(got, wanted, "{name}");
    }
    let answers = packets(&mut router, 0, told.len());
    for (answer, (frame, fate, wanted)) in answers.iter().zip(&told) {
        let at = if answer[12] == 8 { 34 } else { 54 };
        assert_eq!((answer[at], answer[at + 1]), *wanted, "{}", frame.name);
        if *fate != ECHO {
            // The quotation begins with the packet's header, as it arrived.
            let quoted = &answer[at + 8..];
            assert_eq!(quoted, &frame.bytes[14..][..quoted.len()], "{}", frame.name);
        }
    }
    let outcomes = router.outcomes();
    for (name, count) in outcomes.as_object().unwrap() {
        // Another test covers neighbour discovery.
        if name.contains("neighbours") || name == "to the slow path" {
            continue;
        }
        let expected = counts.get(name.as_str()).copied().unwrap_or(0);
        assert_eq!(count.as_u64(), Some(expected), "{name}: {outcomes}");
    }
}
