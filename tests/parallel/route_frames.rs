//! Frames with errors or anomalies in a router, each with its expected outcome, in user space and in the kernel. tshark
//! finds no error in the router's replies.

use crate::support::between::{decoded, is_about_neighbours};
use crate::support::in_kernel::InKernel;
use crate::support::{alone_and_root, scratch};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};
use taut_wire::arp::Operation;
use taut_wire::neighbour::solicited_node;
use taut_wire::{
    ArpRepr, EtherType, Ethernet, EthernetRepr, Ipv4, Ipv6, Mac, NeighbourRepr, Protocol, UdpFlow,
    Vlan, resolution,
};

const OWN: [Mac; 2] = [Mac([2, 0, 0, 0, 0, 0xa0]), Mac([2, 0, 0, 0, 0, 0xa1])];
const SENDER: Mac = Mac([2, 0, 0, 0, 0, 7]);
const NEXT: Mac = Mac([2, 0, 0, 0, 0, 9]);
/// The destination of packets that the router has to fragment.
const CUT: [u8; 4] = [10, 9, 9, 9];
/// The MTU of the router's second port, bytes.
const MTU: usize = 1300;

const INTERFACES: &str = "[[function.interface]]
mac = \"02:00:00:00:00:a0\"
addresses = [\"10.0.0.1/24\", \"2001:db8:0::1/64\"]
[[function.interface]]
mac = \"02:00:00:00:00:a1\"
addresses = [\"10.0.1.1/24\", \"2001:db8:1::1/64\"]
mtu = 1300
";
const ROUTES: &str = "10.9.0.0/16 via 10.0.1.9
2001:db8:9::/48 via 2001:db8:1::9
blackhole 10.66.0.0/16
unreachable 10.67.0.0/16
prohibit 10.68.0.0/16
blackhole 2001:db8:66::/48
unreachable 2001:db8:67::/48
prohibit 2001:db8:68::/48
";

const FORWARDED: &str = "forwarded";
const MALFORMED: &str = "dropped: malformed";
const CHECKSUM: &str = "dropped: wrong checksum";
const MARTIAN: &str = "dropped: from or to an address that nobody has";
const OTHERS: &str = "dropped: for another station";
const NO_IP: &str = "dropped: neither IP nor ARP";
const BLACKHOLE: &str = "dropped: blackhole route";
const NO_HOPS: &str = "slow path: no hops left";
const NO_ROUTE: &str = "slow path: no route";
const PROHIBITED: &str = "slow path: prohibited";
const UNANSWERED: &str = "slow path: the neighbour does not answer";
const TOO_BIG: &str = "slow path: too big";
const NO_PORT: &str = "slow path: no port listens";
const ECHO: &str = "slow path: echo answered";
const PUZZLE: &str = "slow path: not understood";
const IS_CUT: &str = "slow path: cut, and forwarded";
const UNTOLD: &str = "slow path: senders not told, beside the above";

/// A test case: a received frame, the counter of its outcome, and type and code of the ICMP reply to its sender.
struct Case {
    name: &'static str,
    frame: Vec<u8>,
    fate: &'static str,
    told: Option<(u8, u8)>,
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Builds a UDP datagram of `size` bytes to the router's first port.
fn datagram(to: &str, size: usize) -> Vec<u8> {
    let destination = ip(to);
    let flow = UdpFlow {
        src_mac: SENDER,
        dst_mac: OWN[0],
        src_ip: ip(if destination.is_ipv4() {
            "10.0.0.7"
        } else {
            "2001:db8::7"
        }),
        dst_ip: destination,
        ..UdpFlow::default()
    };
    // The length includes a check sequence, which is absent here.
    flow.frame(size + 4).unwrap()
}

/// Sets the correct checksum of an IPv4 header, over the length that the header states, or up to the end of the frame.
fn right(mut frame: Vec<u8>) -> Vec<u8> {
    let end = 14 + usize::from(frame[14] & 15) * 4;
    frame[24..26].fill(0);
    let sum = taut_wire::Sum::of(&frame[14..end.min(frame.len())]).checksum();
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Builds a normal packet, overwrites bytes at a position, and corrects the IPv4 checksum.
fn with(to: &str, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = datagram(to, 100);
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    if frame[12] == 8 { right(frame) } else { frame }
}

/// Builds an IPv6 packet with extension headers before UDP; `first` is the type of the first extension header.
fn extended(first: u8, headers: &[u8]) -> Vec<u8> {
    let frame = datagram("2001:db8:9::1", 100);
    let mut frame = [&frame[..54], headers, &frame[54..]].concat();
    let length = (frame.len() - 54) as u16;
    frame[18..20].copy_from_slice(&length.to_be_bytes());
    frame[20] = first;
    frame
}

/// Builds an IPv4 packet with options.
fn with_options(options: &[u8]) -> Vec<u8> {
    let frame = datagram("10.9.0.1", 100);
    let mut frame = [&frame[..34], options, &frame[34..]].concat();
    let length = (frame.len() - 14) as u16;
    frame[16..18].copy_from_slice(&length.to_be_bytes());
    frame[14] = 0x45 + (options.len() / 4) as u8;
    right(frame)
}

fn echo(to: &str, hops: u8) -> Vec<u8> {
    let flow = UdpFlow {
        src_mac: SENDER,
        dst_mac: OWN[0],
        src_ip: ip("10.0.0.7"),
        dst_ip: ip(to),
        ttl: hops,
        ..UdpFlow::default()
    };
    flow.frame_as(Protocol::IcmpEcho, None, 104).unwrap()
}

#[rustfmt::skip]
fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut case = |name, frame: Vec<u8>, fate, told| all.push(Case { name, frame, fate, told });
    let (v4, v6) = ("10.9.0.1", "2001:db8:9::1");
    // These cases are IPv4 packets with wrong lengths, versions and checksums.
    case("usual", datagram(v4, 100), FORWARDED, None);
    case("padded", [&datagram(v4, 60)[..], &[0xee; 9]].concat(), FORWARDED, None);
    case("of no bytes", with(v4, 16, &[0, 0]), MALFORMED, None);
    case("shorter than its header", with(v4, 16, &[0, 19]), MALFORMED, None);
    case("only a header", right({ let mut f = datagram(v4, 60)[..34].to_vec(); f[16..18].copy_from_slice(&[0, 20]); f }), FORWARDED, None);
    case("longer than its frame", with(v4, 16, &[0, 87]), MALFORMED, None);
    case("far longer than its frame", with(v4, 16, &[0xff, 0xff]), MALFORMED, None);
    case("cut in its header", datagram(v4, 100)[..33].to_vec(), MALFORMED, None);
    case("cut in its payload", datagram(v4, 100)[..60].to_vec(), MALFORMED, None);
    case("header of 16 bytes", with(v4, 14, &[0x44]), MALFORMED, None);
    case("header longer than the packet", right({ let mut f = with(v4, 14, &[0x4f]); f[16..18].copy_from_slice(&[0, 40]); f }), MALFORMED, None);
    case("version 6 in the type of 4", with(v4, 14, &[0x65]), MALFORMED, None);
    case("version 0", with(v4, 14, &[0x05]), MALFORMED, None);
    for sum in [[0, 0], [0xff, 0xff], [0x12, 0x34]] {
        let mut frame = datagram(v4, 100);
        frame[24..26].copy_from_slice(&sum);
        case("wrong checksum", frame, CHECKSUM, None);
    }
    // The router does not read options.
    case("no operation", with_options(&[1, 1, 1, 0]), FORWARDED, None);
    case("loose source route", with_options(&[131, 7, 4, 10, 9, 0, 2, 0]), FORWARDED, None);
    case("record route", with_options(&[&[7, 39, 4][..], &[0; 37]].concat()), FORWARDED, None);
    case("option of no length", with_options(&[7, 0, 0, 0]), FORWARDED, None);
    case("option beyond the header", with_options(&[7, 200, 4, 0]), FORWARDED, None);
    case("options and a wrong checksum", { let mut f = with_options(&[1, 1, 1, 0]); f[24] ^= 1; f }, CHECKSUM, None);
    // Fragments are not reassembled.
    case("first fragment", with(v4, 20, &[0x20, 0]), FORWARDED, None);
    case("fragment that overlaps it", with(v4, 20, &[0x20, 1]), FORWARDED, None);
    case("last fragment within it", with(v4, 20, &[0, 2]), FORWARDED, None);
    case("fragment beyond 64 KiB", with(v4, 20, &[0x1f, 0xff]), FORWARDED, None);
    case("fragment that must not be cut", with(v4, 20, &[0x60, 0]), FORWARDED, None);
    case("reserved bit", with(v4, 20, &[0x80, 0]), FORWARDED, None);
    // These cases have invalid sources and destinations.
    for source in [[0, 0, 0, 0], [0, 1, 2, 3], [127, 0, 0, 1], [224, 0, 0, 1], [240, 0, 0, 1], [255; 4]] {
        case("from nobody", with(v4, 26, &source), MARTIAN, None);
    }
    for to in ["0.1.2.3", "127.0.0.1", "240.0.0.1", "255.255.255.255"] {
        case("to nobody", datagram(to, 100), MARTIAN, None);
    }
    case("to a group", datagram("224.0.0.5", 100), OTHERS, None);
    case("to another station", { let mut f = datagram(v4, 100); f[5] ^= 1; f }, OTHERS, None);
    case("to all stations", { let mut f = datagram(v4, 100); f[..6].fill(0xff); f }, OTHERS, None);
    case("tagged", [&datagram(v4, 100)[..12], &[0x81, 0, 0, 5], &datagram(v4, 100)[12..]].concat(), NO_IP, None);
    case("of another type", { let mut f = datagram(v4, 100); f[12..14].copy_from_slice(&[0x88, 0x47]); f }, NO_IP, None);
    case("ARP that is cut", { let mut f = datagram(v4, 100); f[12..14].copy_from_slice(&[8, 6]); f }, OTHERS, None);
    // These errors are reported to senders.
    case("no hops", with(v4, 22, &[0]), NO_HOPS, Some((11, 0)));
    case("one hop", with(v4, 22, &[1]), NO_HOPS, Some((11, 0)));
    case("echo request with one hop", echo(v4, 1), NO_HOPS, Some((11, 0)));
    case("no route", datagram("192.0.2.1", 100), NO_ROUTE, Some((3, 0)));
    case("prohibited", datagram("10.68.0.1", 1400), PROHIBITED, Some((3, 13)));
    case("unreachable", datagram("10.67.0.1", 100), UNANSWERED, Some((3, 1)));
    case("blackhole", datagram("10.66.0.1", 100), BLACKHOLE, None);
    let must_not_be_cut = |mut frame: Vec<u8>| { frame[20] = 0x40; right(frame) };
    case("too big", must_not_be_cut(datagram(v4, 1400)), TOO_BIG, Some((3, 4)));
    case("as long as it fits", must_not_be_cut(datagram(v4, 14 + MTU)), FORWARDED, None);
    let may_be_cut = |mut frame: Vec<u8>| { frame[20] = 0; right(frame) };
    case("too big, and may be cut", may_be_cut(datagram("10.9.9.9", 1400)), IS_CUT, None);
    // These errors are not reported to senders.
    case("later fragment with one hop", right({ let mut f = with(v4, 20, &[0, 9]); f[22] = 1; f }), NO_HOPS, None);
    case("error with one hop", right({ let mut f = echo(v4, 1); f[34] = 3; f }), NO_HOPS, None);
    // The router itself is the destination.
    case("echo request to the router", echo("10.0.0.1", 64), ECHO, Some((0, 0)));
    case("to no port of the router", datagram("10.0.0.1", 100), NO_PORT, Some((3, 3)));
    case("to no port of its other side", datagram("10.0.1.1", 100), NO_PORT, Some((3, 3)));
    case("wrong UDP checksum to the router", { let mut f = datagram("10.0.0.1", 100); f[40..42].copy_from_slice(&[0x12, 0x34]); f }, PUZZLE, None);
    // These cases are IPv6 packets.
    case("usual IPv6", datagram(v6, 100), FORWARDED, None);
    case("IPv6 of no bytes", with(v6, 18, &[0, 0]), FORWARDED, None);
    case("IPv6 longer than its frame", with(v6, 18, &[0, 47]), MALFORMED, None);
    case("IPv6 cut in its header", datagram(v6, 100)[..53].to_vec(), MALFORMED, None);
    case("version 4 in the type of 6", with(v6, 14, &[0x45]), MALFORMED, None);
    for (name, first, header) in [
        ("hop-by-hop", 0, &[17, 0, 1, 4, 0, 0, 0, 0][..]),
        ("router alert", 0, &[17, 0, 5, 2, 0, 0, 1, 0]),
        ("jumbo payload", 0, &[17, 0, 0xc2, 4, 0, 1, 0, 0]),
        ("routing of type 0", 43, &[17, 0, 0, 1, 0, 0, 0, 0]),
        ("segment routing", 43, &[17, 0, 4, 0, 0, 0, 0, 0]),
        ("first fragment", 44, &[17, 0, 0, 1, 0, 0, 0, 7]),
        ("fragment that overlaps it", 44, &[17, 0, 0, 8, 0, 0, 0, 7]),
        ("atomic fragment", 44, &[17, 0, 0, 0, 0, 0, 0, 7]),
        ("encapsulated", 50, &[0; 8]),
        ("authenticated", 51, &[17, 4, 0, 0, 0, 0, 0, 1]),
        ("nothing behind", 59, &[0; 8]),
        ("destination options", 60, &[17, 0, 1, 4, 0, 0, 0, 0]),
        ("mobility", 135, &[59, 0, 0, 0, 0, 0, 0, 0]),
        ("host identity", 139, &[59, 0, 0, 0, 0, 0, 0, 0]),
        ("shim6", 140, &[59, 0, 0, 0, 0, 0, 0, 0]),
        ("experimental", 253, &[17, 0, 0, 0, 0, 0, 0, 0]),
        ("extension beyond the packet", 60, &[17, 255, 0, 0, 0, 0, 0, 0]),
        ("hop-by-hop that is not the first", 60, &[0, 0, 0, 0, 0, 0, 0, 0, 17, 0, 0, 0, 0, 0, 0, 0]),
    ] {
        case(name, extended(first, header), FORWARDED, None);
    }
    let address = |text: &str| match ip(text) { IpAddr::V6(it) => it.octets(), IpAddr::V4(_) => [0; 16] };
    for source in ["::", "::1", "ff02::1", "fe80::7"] {
        case("IPv6 from nobody", with(v6, 22, &address(source)), MARTIAN, None);
    }
    for to in ["::", "::1", "fe80::77"] {
        case("IPv6 to nobody", datagram(to, 100), MARTIAN, None);
    }
    case("IPv6 to a group", datagram("ff05::2", 100), OTHERS, None);
    case("IPv6 without hops", with(v6, 21, &[0]), NO_HOPS, Some((3, 0)));
    case("IPv6 with one hop", with(v6, 21, &[1]), NO_HOPS, Some((3, 0)));
    case("extensions and one hop", { let mut f = extended(60, &[17, 0, 1, 4, 0, 0, 0, 0]); f[21] = 1; f }, NO_HOPS, Some((3, 0)));
    case("no route of IPv6", datagram("2001:db8:99::1", 100), NO_ROUTE, Some((1, 0)));
    case("prohibited IPv6", datagram("2001:db8:68::1", 1400), PROHIBITED, Some((1, 1)));
    case("unreachable IPv6", datagram("2001:db8:67::1", 100), UNANSWERED, Some((1, 3)));
    case("blackhole of IPv6", datagram("2001:db8:66::1", 100), BLACKHOLE, None);
    case("IPv6 that is too big", datagram(v6, 1400), TOO_BIG, Some((2, 0)));
    case("IPv6 as long as it fits", datagram(v6, 14 + MTU), FORWARDED, None);
    case("IPv6 to no port of the router", datagram("2001:db8::1", 100), NO_PORT, Some((1, 4)));
    all
}

/// Builds a neighbour's request for the MAC address of the router on a port.
fn question(port: usize, who: IpAddr, at: Mac) -> Vec<u8> {
    let mut frame = [0; resolution::LONGEST_BYTES];
    let header = |destination, ethertype| EthernetRepr {
        destination,
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
            resolution::arp_frame(&header(Mac::BROADCAST, EtherType::ARP), &asked, &mut frame)
        }
        IpAddr::V6(who) => {
            let target = format!("2001:db8:{port}::1").parse().unwrap();
            let asked = NeighbourRepr::Solicitation { target, mac: at };
            let (group, to) = solicited_node(target);
            resolution::neighbour_frame(
                &header(to, EtherType::IPV6),
                (who, group),
                &asked,
                &mut frame,
            )
        }
    };
    frame[..length.unwrap()].to_vec()
}

/// Returns `frame` as the router must forward it: with the MAC addresses of the next hop and the second port, and one
/// hop less.
fn gone_on(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[..6].copy_from_slice(&NEXT.0);
    frame[6..12].copy_from_slice(&OWN[1].0);
    if frame[12] == 8 {
        // The header may have options, so the checksum covers a variable length.
        frame[22] -= 1;
        let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
        Ipv4::new(ethernet.payload_mut()).unwrap().fill_checksum();
    } else {
        let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
        Ipv6::new(ethernet.payload_mut())
            .unwrap()
            .decrement_hop_limit();
    }
    frame
}

/// Returns the type and the code of an ICMP message, and the offset of its quotation.
fn message(frame: &[u8]) -> ((u8, u8), usize) {
    let at = if frame[12] == 8 { 34 } else { 54 };
    ((frame[at], frame[at + 1]), at + 8)
}

/// Sends frames to the port `from`, and returns the frames that leave each port and for which `is_wanted` is true.
/// Waits until there are as many as `wanted`, but at most 20 s.
fn pass(
    router: &mut InKernel,
    frames: &[Vec<u8>],
    from: usize,
    wanted: [usize; 2],
    is_wanted: fn(&[u8]) -> bool,
) -> [Vec<Vec<u8>>; 2] {
    let mut out = router.pass(frames, from, [0, 0]);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        for frames in &mut out {
            frames.retain(|frame| is_wanted(frame));
        }
        let is_there = out[0].len() >= wanted[0] && out[1].len() >= wanted[1];
        if is_there || Instant::now() > deadline {
            return out;
        }
        let more = router.pass(
            &[],
            from,
            [0, 1].map(|port| usize::from(out[port].len() < wanted[port])),
        );
        for (out, more) in out.iter_mut().zip(more) {
            out.extend(more);
        }
    }
}

#[test]
fn unusual_and_malformed_frames_get_the_expected_outcome_or_error() {
    let Some(_turn) = alone_and_root() else {
        return;
    };
    let user = "wait = \"sleep(50us)\"\nports = [\"af_packet:dut0\", \"af_packet:dut1\"]\n";
    let kernel = "place = \"kernel\"\nports = [\"af_xdp:dut0\", \"af_xdp:dut1\"]\n";
    for head in [user, kernel] {
        let folder = scratch();
        let routes = folder.path().join("routes");
        std::fs::write(&routes, ROUTES).unwrap();
        let functions = format!(
            "[[function]]\nname = \"route\"\nroutes = \"{}\"\n{INTERFACES}",
            routes.display()
        );
        let mut router = InKernel::start_as(head, true, &functions, folder);
        for (port, who, at) in [
            (1, "10.0.1.9", NEXT),
            (1, "2001:db8:1::9", NEXT),
            (0, "10.0.0.7", SENDER),
            (0, "2001:db8::7", SENDER),
        ] {
            let asked = [question(port, ip(who), at)];
            let mut wanted = [0; 2];
            wanted[port] = 1;
            let answers = |frame: &[u8]| {
                is_about_neighbours(frame) && frame[..6] != [0xff; 6] && frame[..2] != [0x33, 0x33]
            };
            assert_eq!(
                pass(&mut router, &asked, port, wanted, answers)[port].len(),
                1,
                "{who}"
            );
        }
        let cases = cases();
        let frames: Vec<_> = cases.iter().map(|it| it.frame.clone()).collect();
        let mut fates = BTreeMap::new();
        let mut count = |fate| *fates.entry(fate).or_insert(0) += 1;
        for case in &cases {
            count(case.fate);
            if case.fate.starts_with("slow path") {
                count("to the slow path");
            }
            if case.fate == NO_HOPS && case.told.is_none() {
                count(UNTOLD);
            }
        }
        let forwarded = fates[FORWARDED];
        let told: Vec<_> = cases.iter().filter(|it| it.told.is_some()).collect();
        let is_packet = |frame: &[u8]| !is_about_neighbours(frame);
        let wanted = [told.len(), forwarded + 2];
        let [back, on] = pass(&mut router, &frames, 0, wanted, is_packet);
        let names = |frames: &[Vec<u8>]| -> Vec<&str> {
            // The replies are matched by their quotations.
            let quotes =
                |frame: &[u8], case: &Case| frame.windows(20).any(|it| it == &case.frame[14..34]);
            frames
                .iter()
                .filter_map(|frame| cases.iter().find(|it| quotes(frame, it)).map(|it| it.name))
                .collect()
        };
        assert_eq!(back.len(), told.len(), "{head}: told {:?}", names(&back));

        // A forwarded frame is unchanged except for its link header and hop count.
        let (pieces, on): (Vec<_>, Vec<_>) = on
            .into_iter()
            .partition(|it| it[12] == 8 && it[30..34] == CUT);
        assert_eq!(pieces.len(), 2, "{head}");
        let mut expected: Vec<_> = cases
            .iter()
            .filter(|it| it.fate == FORWARDED)
            .map(|it| gone_on(&it.frame))
            .collect();
        let mut on = on;
        expected.sort();
        on.sort();
        assert_eq!(on, expected, "{head}");

        // Each sender gets one reply about each wrong packet, in the order of the errors, from the router's address on
        // the sender's side.
        for (reply, case) in back.iter().zip(&told) {
            let (kind, quoted) = message(reply);
            assert_eq!(Some(kind), case.told, "{head}: {}", case.name);
            assert_eq!(
                (&reply[..6], &reply[6..12]),
                (&SENDER.0[..], &OWN[0].0[..]),
                "{}",
                case.name
            );
            if case.fate == ECHO {
                continue;
            }
            // The quotation is as long as allowed: RFC 1812 section 4.3.2.3, RFC 4443 section 3.
            let most = if reply[12] == 8 { 576 - 28 } else { 1280 - 48 };
            let sent = &case.frame[14..];
            let whole = sent.len().min(most);
            assert_eq!(reply[quoted..], sent[..whole], "{head}: {}", case.name);
        }
        let fields = [
            "icmp.type",
            "icmp.code",
            "icmp.checksum.status",
            "icmpv6.type",
            "icmpv6.code",
            "icmpv6.checksum.status",
            "icmp.mtu",
            "icmpv6.mtu",
            "ip.src",
            "ipv6.src",
        ];
        if let Some(decoded) = decoded(&back, &fields) {
            for (line, case) in decoded.iter().zip(&told) {
                let first = |at: usize| line[at].split(',').next().unwrap_or_default().to_string();
                let is_v4 = case.frame[12] == 8;
                let (base, own, mtu) = if is_v4 { (0, 8, 6) } else { (3, 9, 7) };
                let (kind, code) = case.told.unwrap();
                let wanted = [kind.to_string(), code.to_string(), "1".to_string()];
                assert_eq!(
                    [first(base), first(base + 1), first(base + 2)],
                    wanted,
                    "{}: {line:?}",
                    case.name
                );
                if case.fate == TOO_BIG {
                    assert_eq!(first(mtu), MTU.to_string(), "{line:?}");
                }
                if case.fate != NO_PORT && case.fate != ECHO {
                    let address = if is_v4 { "10.0.0.1" } else { "2001:db8::1" };
                    assert_eq!(first(own), address, "{}: {line:?}", case.name);
                }
            }
        }
        let summary = router.program.interrupt().success().last_json();
        let outcomes = summary["outcomes"].as_object().unwrap();
        for (name, count) in outcomes {
            // The counts of neighbour discovery may be higher on slow machines, where requests are repeated. Another
            // test checks them.
            let is_asking = name.contains("neighbours") || name == "to the slow path";
            let expected = fates.get(name.as_str()).copied().unwrap_or(0) as u64;
            let count = count.as_u64().unwrap();
            if is_asking {
                assert!(
                    count >= expected,
                    "{head}: {name}: {count}, not {expected} at least"
                );
            } else {
                assert_eq!(count, expected, "{head}: {name}: {summary}");
            }
        }
    }
}
