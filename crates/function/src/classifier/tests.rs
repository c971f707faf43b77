//! Tests of the classifier: against rules tried one by one, and against the fields that scapy parses.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use std::net::IpAddr;
use taut_wire::UdpFlow;

/// Compiles rules for chains `a` and `b` on four ports.
fn classifier(rules: &str, default: &str) -> Result<Classifier, SettingsError> {
    #[derive(Deserialize)]
    struct File {
        rules: Vec<toml::Table>,
    }
    let File { rules } = toml::from_str(&format!("rules = [{rules}]")).unwrap();
    Classifier::new(rules, default, &["a".to_string(), "b".to_string()], 4)
}

fn class(classifier: &Classifier, port: usize, frame: &[u8]) -> &'static str {
    ["a", "b", "forward", "drop"][usize::from(classifier.class(port, &Headers::of(frame), frame))]
}

fn udp(source: &str, destination: &str, ports: (u16, u16)) -> Vec<u8> {
    let flow = UdpFlow {
        src_ip: source.parse().unwrap(),
        dst_ip: destination.parse().unwrap(),
        src_port: ports.0,
        dst_port: ports.1,
        ..UdpFlow::default()
    };
    flow.frame(100).unwrap()
}

fn tagged(mut frame: Vec<u8>, ids: &[u16]) -> Vec<u8> {
    for id in ids {
        let [a, b] = id.to_be_bytes();
        frame.splice(12..12, [0x81, 0, a, b]);
    }
    frame
}

#[test]
fn the_first_matching_rule_selects_the_chain() {
    let all = classifier(
        "{ chain = 'drop', source = '10.0.0.66' },
         { chain = 'a', protocol = 'udp', destination_port = '5000-5999', dscp = 'ef', port = 0 },
         { chain = 'b', ethertype = 'ipv6' }, { chain = 'b', ethertype = 0x88f7 }",
        "forward",
    )
    .unwrap();
    let mut voice = udp("10.0.0.1", "10.0.0.2", (1, 5001));
    assert_eq!(class(&all, 0, &voice), "forward");
    voice[15] = 46 << 2 | 1;
    assert_eq!(class(&all, 0, &voice), "a");
    assert_eq!(class(&all, 1, &voice), "forward");
    assert_eq!(
        class(&all, 0, &udp("10.0.0.66", "10.0.0.2", (1, 5001))),
        "drop"
    );
    assert_eq!(
        class(&all, 3, &udp("2001:db8::1", "2001:db8::2", (1, 2))),
        "b"
    );
    let mut time = voice.clone();
    time[12..14].copy_from_slice(&[0x88, 0xf7]);
    assert_eq!(class(&all, 2, &time), "b");
}

#[test]
fn all_fragments_of_a_datagram_have_the_same_class() {
    let all = classifier(
        "{ chain = 'a', destination_port = 53 }, { chain = 'b', protocol = 'udp' }",
        "drop",
    )
    .unwrap();
    let whole = udp("10.0.0.1", "10.0.0.2", (1, 53));
    assert_eq!(class(&all, 0, &whole), "a");
    for (flags, offset) in [(0x20, 0), (0x20, 9), (0, 9)] {
        let mut fragment = whole.clone();
        fragment[20..22].copy_from_slice(&[flags, offset]);
        assert_eq!(class(&all, 0, &fragment), "b", "{flags} {offset}");
    }
}

#[test]
fn rules_compare_the_outer_vlan_tag_and_the_inner_ethertype() {
    let all = classifier(
        "{ chain = 'a', vlan = 7, ethertype = 'ipv4' }, { chain = 'b', vlan = 'none' }",
        "drop",
    )
    .unwrap();
    let plain = udp("10.0.0.1", "10.0.0.2", (1, 53));
    assert_eq!(class(&all, 0, &plain), "b");
    assert_eq!(class(&all, 0, &tagged(plain.clone(), &[7])), "a");
    assert_eq!(class(&all, 0, &tagged(plain.clone(), &[9, 7])), "a");
    assert_eq!(class(&all, 0, &tagged(plain.clone(), &[7, 9])), "drop");
    // The ethertype after two tags is a third tag.
    assert_eq!(class(&all, 0, &tagged(plain, &[1, 1, 7])), "drop");
}

#[test]
fn a_symmetric_rule_matches_both_directions_of_a_flow() {
    let rule = "{ chain = 'a', source = '10.0.0.0/24', destination_port = 80, symmetric = true }";
    let all = classifier(rule, "drop").unwrap();
    assert_eq!(class(&all, 0, &udp("10.0.0.5", "192.0.2.1", (9, 80))), "a");
    assert_eq!(class(&all, 1, &udp("192.0.2.1", "10.0.0.5", (80, 9))), "a");
    assert_eq!(
        class(&all, 1, &udp("192.0.2.1", "10.0.0.5", (9, 80))),
        "drop"
    );
}

#[test]
fn frames_with_wrong_headers_match_no_rule_with_ip_fields() {
    let all = classifier(
        "{ chain = 'a', source = '0.0.0.0/0' }, { chain = 'b', ethertype = 'ipv4' }",
        "drop",
    )
    .unwrap();
    let frame = udp("10.0.0.1", "10.0.0.2", (1, 2));
    assert_eq!(class(&all, 0, &frame), "a");
    for length in 0..frame.len() {
        let expected = if length < 14 { "drop" } else { "b" };
        assert_eq!(class(&all, 0, &frame[..length]), expected, "{length}");
    }
}

/// The rules by which tests/data/scapy_classes.py has classified its frames.
const RULES: &str = "
    { chain = 'drop', ethertype = 'arp', port = 1 },
    { chain = 'a', port = 0, dscp = 'ef', protocol = 'udp', destination_port = '5000-5999' },
    { chain = 'forward', vlan = 6, ethertype = 'ipv6' },
    { chain = 'b', source = '10.1.0.0/16', symmetric = true },
    { chain = 'drop', protocol = 'sctp' },
    { chain = 'a', source_port = 53 },
    { chain = 'b', source = '2001:db8::/32' },
";

#[test]
fn classes_agree_with_the_fields_that_scapy_sees() {
    let all = classifier(RULES, "forward").unwrap();
    let frames = include_str!("../../../../tests/data/scapy_classes.txt");
    for (number, line) in frames.lines().enumerate() {
        let [port, expected, hex] = *line.split(' ').collect::<Vec<_>>() else {
            panic!("{line}")
        };
        let digits = hex.as_bytes().chunks(2);
        let byte = |two: &[u8]| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap();
        let frame: Vec<u8> = digits.map(byte).collect();
        let expected = match expected {
            "voice" => "a",
            "bulk" => "b",
            other => other,
        };
        let found = class(&all, port.parse().unwrap(), &frame);
        assert_eq!(found, expected, "line {}", number + 1);
    }
    assert_eq!(frames.lines().count(), 160);
}

#[test]
fn dscp_names_are_those_of_their_standards() {
    let number = |name: &str| dscp_of(DscpText::Name(name.to_string())).unwrap();
    let names = ["ef", "cs0", "cs6", "af11", "af23", "af41", "af43"];
    assert_eq!(names.map(number), [46, 0, 48, 10, 22, 34, 38]);
}

#[test]
fn errors_name_the_rule_and_its_wrong_key() {
    let wrong = |rule: &str, default| {
        let rules = format!("{{ chain = 'a' }}, {{ {rule} }}");
        classifier(&rules, default).err().unwrap().0
    };
    for (rule, part) in [
        (
            "chain = 'aa'",
            "classifier 2: chain = \"aa\": expected a, b, forward, drop",
        ),
        (
            "chain = 'a', port = 4",
            "port = 4: this chain has ports 0 to 3",
        ),
        ("chain = 'a', vlan = 4095", "vlan = 4095"),
        ("chain = 'a', dscp = 64", "dscp = 64"),
        ("chain = 'a', dscp = 'af14'", "dscp = \"af14\""),
        ("chain = 'a', ethertype = 'ipx'", "ethertype = \"ipx\""),
        (
            "chain = 'a', source = '10.0.0.1/8'",
            "source = \"10.0.0.1/8\"",
        ),
        (
            "chain = 'a', protocol = 'icmp', source_port = 5",
            "has none",
        ),
        (
            "chain = 'a', symmetric = true, port = 1",
            "leave either out",
        ),
        ("chain = 'a', sorce = '10.0.0.1'", "unknown key `sorce`"),
        ("source = '10.0.0.1'", "chain"),
    ] {
        let message = wrong(rule, "drop");
        assert!(message.contains(part), "{message}");
    }
    let message = wrong("chain = 'b'", "dorp");
    assert!(
        message.starts_with("default = \"dorp\"") && message.contains("did you mean `drop`"),
        "{message}"
    );
}

/// The header fields of a generated frame.
#[derive(Debug, Clone)]
struct Made {
    port: usize,
    vlan: Option<u16>,
    v6: bool,
    hosts: (u8, u8),
    ports: (u16, u16),
    protocol: u8,
    dscp: u8,
    fragment: bool,
}

impl Made {
    fn address(&self, host: u8) -> IpAddr {
        match self.v6 {
            false => IpAddr::from([10, 0, host / 4, host % 4]),
            true => IpAddr::from([
                0x2001,
                0xdb8,
                0,
                0,
                0,
                0,
                (host / 4).into(),
                (host % 4).into(),
            ]),
        }
    }

    fn frame(&self) -> Vec<u8> {
        let [source, destination] =
            [self.hosts.0, self.hosts.1].map(|host| self.address(host).to_string());
        let mut frame = udp(&source, &destination, self.ports);
        if self.v6 {
            frame[14] = 0x60 | self.dscp >> 2;
            frame[15] = self.dscp << 6;
            frame[20] = self.protocol;
        } else {
            frame[15] = self.dscp << 2;
            frame[23] = self.protocol;
            frame[20] |= if self.fragment { 0x20 } else { 0 };
        }
        self.vlan.map_or(frame.clone(), |id| tagged(frame, &[id]))
    }

    fn has_ports(&self) -> bool {
        [6, 17, 132].contains(&self.protocol) && (self.v6 || !self.fragment)
    }
}

fn made() -> impl Strategy<Value = Made> {
    let ip = (any::<bool>(), (0_u8..8, 0_u8..8), (0_u16..4, 0_u16..4));
    let protocol = prop::sample::select(vec![1_u8, 6, 17, 132, 47]);
    let rest = (protocol, 0_u8..4, any::<bool>());
    (0_usize..4, prop::option::of(0_u16..3), ip, rest).prop_map(
        |(port, vlan, (v6, hosts, ports), (protocol, dscp, fragment))| Made {
            port,
            vlan,
            v6,
            hosts,
            ports,
            protocol,
            dscp,
            fragment,
        },
    )
}

/// A generated rule: each field that it compares, with the value.
#[derive(Debug, Clone)]
struct Asked {
    chain: usize,
    port: Option<usize>,
    vlan: Option<u16>,
    v6: Option<bool>,
    /// The subnet of the source address: the upper bits of its host number.
    source: Option<u8>,
    destination_port: Option<(u16, u16)>,
    protocol: Option<u8>,
    dscp: Option<u8>,
}

impl Asked {
    fn text(&self) -> String {
        let mut text = format!("{{ chain = '{}'", ["a", "b", "forward", "drop"][self.chain]);
        let mut say = |key: &str, value: Option<String>| {
            text += &value.map_or(String::new(), |value| format!(", {key} = {value}"));
        };
        say("port", self.port.map(|it| format!("[{it}]")));
        say("vlan", self.vlan.map(|it| it.to_string()));
        say(
            "ethertype",
            self.v6
                .map(|v6| if v6 { "'ipv6'" } else { "0x0800" }.to_string()),
        );
        say("source", self.source.map(|it| format!("'10.0.{it}.0/24'")));
        say(
            "destination_port",
            self.destination_port.map(|(a, b)| format!("'{a}-{b}'")),
        );
        say("protocol", self.protocol.map(|it| it.to_string()));
        say("dscp", self.dscp.map(|it| it.to_string()));
        text + " }"
    }

    /// Returns true if the rule matches, by the values from which the frame was made, without parsing the frame.
    fn matches(&self, made: &Made) -> bool {
        self.port.is_none_or(|it| it == made.port)
            && self.vlan.is_none_or(|it| made.vlan == Some(it))
            && self.v6.is_none_or(|it| it == made.v6)
            && self
                .source
                .is_none_or(|it| !made.v6 && made.hosts.0 / 4 == it)
            && self.protocol.is_none_or(|it| it == made.protocol)
            && self.dscp.is_none_or(|it| it == made.dscp)
            && self.destination_port.is_none_or(|(first, last)| {
                made.has_ports() && (first..=last).contains(&made.ports.1)
            })
    }
}

fn asked() -> impl Strategy<Value = Asked> {
    let maybe = prop::option::weighted::<std::ops::Range<u8>>;
    let frame = (
        0_usize..4,
        maybe(0.3, 0..4),
        maybe(0.2, 0..3),
        maybe(0.3, 0..2),
    );
    let ip = (
        maybe(0.3, 0..2),
        maybe(0.3, 0..3),
        maybe(0.3, 0..2),
        maybe(0.2, 0..4),
    );
    (frame, ip).prop_map(
        |((chain, port, vlan, v6), (source, ports, protocol, dscp))| Asked {
            chain,
            port: port.map(usize::from),
            vlan: vlan.map(u16::from),
            v6: v6.map(|it| it == 1),
            source,
            destination_port: ports.map(|it| (it.into(), u16::from(it) + 1)),
            protocol: protocol.map(|it| if it == 0 { 6 } else { 17 }),
            dscp,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn classes_agree_with_rules_tried_one_by_one(
        rules in prop::collection::vec(asked(), 0..12),
        packets in prop::collection::vec(made(), 1..20),
        default in 0_usize..4,
    ) {
        let texts: Vec<_> = rules.iter().map(Asked::text).collect();
        let names = ["a", "b", "forward", "drop"];
        let all = classifier(&texts.join(","), names[default]).unwrap();
        for made in packets {
            let first = rules.iter().find(|rule| rule.matches(&made));
            let expected = names[first.map_or(default, |rule| rule.chain)];
            prop_assert_eq!(class(&all, made.port, &made.frame()), expected, "{:?}", made);
        }
    }

    #[test]
    fn any_bytes_have_a_class(frame in prop::collection::vec(any::<u8>(), 0..120), port in 0_usize..300) {
        let all = classifier("{ chain = 'a', vlan = 1, dscp = 3 }, { chain = 'b', port = 2 }", "drop");
        class(&all.unwrap(), port, &frame);
    }
}
