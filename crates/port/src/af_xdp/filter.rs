//! The filter that selects the frames that a port takes from the kernel, such as `udp:2152+ether:0x88f7`.

use std::fmt;
use std::str::FromStr;

/// The maximum number of rules in the XDP program (`RULES` in crates/xdp/ebpf/xdp_to_socket.bpf.c).
const MOST_RULES: usize = 8;

/// The length of one filter rule in the XDP program's constants, bytes.
const RULE_BYTES: usize = 8;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const TCP: u8 = 6;
const UDP: u8 = 17;

/// The lowest EtherType; lower values of the EtherType field are lengths.
const LOWEST_ETHER_TYPE: u16 = 0x0600;
/// The EtherTypes of VLAN tags, which the XDP program skips.
const TAGS: [u16; 2] = [0x8100, 0x88a8];

const GRAMMAR: &str = "expected all, or up to 8 of ip, ip4, ip6, udp[:PORT[-PORT]], tcp[:PORT[-PORT]], \
                       ether:0xTYPE, joined by +";

/// The conditions that one rule sets on a frame; a condition of None matches every frame.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Rule {
    /// EtherType, after a VLAN tag if there is one.
    ether_type: Option<u16>,
    /// True if the rule matches IPv4 and IPv6.
    any_ip: bool,
    /// IP protocol; fragments do not match a rule with a protocol.
    protocol: Option<u8>,
    /// First and last of the TCP or UDP destination ports that match.
    ports: Option<(u16, u16)>,
}

/// The rules of a port. A frame passes if it matches any of them; without rules, every frame passes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Filter {
    rules: Vec<Rule>,
    text: String,
}

impl Filter {
    /// Returns the rules in the format of the XDP program's constants.
    pub(super) fn constants(&self) -> Vec<u8> {
        let mut bytes = (self.rules.len() as u32).to_ne_bytes().to_vec();
        for rule in &self.rules {
            let (first, last) = rule.ports.unwrap_or_default();
            bytes.extend(rule.ether_type.unwrap_or_default().to_ne_bytes());
            bytes.extend([u8::from(rule.any_ip), rule.protocol.unwrap_or_default()]);
            bytes.extend(first.to_ne_bytes());
            bytes.extend(last.to_ne_bytes());
        }
        bytes.resize(size_of::<u32>() + MOST_RULES * RULE_BYTES, 0);
        bytes
    }

    /// Returns true if the filter has no rules, so that every frame passes.
    pub(super) fn is_all(&self) -> bool {
        self.rules.is_empty()
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Filter {
    /// Text that says what is wrong with the filter, and what would be valid.
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::default());
        }
        let rules = text
            .split('+')
            .map(|rule| parse_rule(rule).ok_or_else(|| format!("filter: \"{rule}\": {GRAMMAR}")))
            .collect::<Result<Vec<_>, _>>()?;
        if rules.len() > MOST_RULES {
            return Err(format!("filter: {} rules: {GRAMMAR}", rules.len()));
        }
        Ok(Self {
            rules,
            text: text.to_string(),
        })
    }
}

fn parse_rule(text: &str) -> Option<Rule> {
    let (name, value) = match text.split_once(':') {
        Some((name, value)) => (name, Some(value)),
        None => (text, None),
    };
    let any = Rule::default();
    match (name, value) {
        ("ip", None) => Some(Rule {
            any_ip: true,
            ..any
        }),
        ("ip4", None) => Some(Rule {
            ether_type: Some(IPV4),
            ..any
        }),
        ("ip6", None) => Some(Rule {
            ether_type: Some(IPV6),
            ..any
        }),
        ("udp" | "tcp", ports) => Some(Rule {
            protocol: Some(if name == "udp" { UDP } else { TCP }),
            ports: match ports {
                Some(ports) => Some(parse_ports(ports)?),
                None => None,
            },
            ..any
        }),
        ("ether", Some(kind)) => {
            let kind = u16::from_str_radix(kind.strip_prefix("0x")?, 16).ok()?;
            (kind >= LOWEST_ETHER_TYPE && !TAGS.contains(&kind)).then_some(Rule {
                ether_type: Some(kind),
                ..any
            })
        }
        _ => None,
    }
}

fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (first.parse().ok()?, last.parse().ok()?);
    (first <= last && last != 0).then_some((first, last))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::program::{Program, Settings, redirect};
    use super::super::socket::XdpSocket;
    use super::*;
    use crate::PoolHandle;
    use libbpf_rs::ProgramInput;
    use proptest::prelude::*;
    use std::cell::Cell;

    #[test]
    fn filter_rules_joined_by_plus_parse_and_print_unchanged() {
        for text in [
            "udp",
            "udp:2152",
            "tcp:80-443+ether:0x88f7",
            "ip+ip4+ip6+udp:0-65535",
        ] {
            assert_eq!(text.parse::<Filter>().unwrap().to_string(), text);
        }
        assert!("all".parse::<Filter>().unwrap().is_all());
    }

    #[test]
    fn errors_quote_the_invalid_filter_and_explain_the_syntax() {
        for (text, part) in [
            ("", "\"\""),
            ("udp+", "\"\""),
            ("udp:", "\"udp:\""),
            ("udp:65536", "udp:65536"),
            ("udp:0", "udp:0"),
            ("tcp:9-3", "tcp:9-3"),
            ("ip:17", "ip:17"),
            ("ether", "ether"),
            ("ether:88f7", "ether:88f7"),
            ("ether:0x5ff", "ether:0x5ff"),
            ("ether:0x8100", "ether:0x8100"),
            ("icmp", "icmp"),
            ("ip+ip+ip+ip+ip+ip+ip+ip+ip", "9 rules"),
        ] {
            let message = text.parse::<Filter>().unwrap_err();
            assert!(message.contains(part), "{text}: {message}");
            assert!(message.contains("joined by +"), "{message}");
        }
    }

    /// Decides whether a frame passes the filter, as an independent implementation of the XDP program's rules.
    fn wants(filter: &Filter, frame: &[u8]) -> bool {
        let half = |at: usize| Some(u16::from_be_bytes([*frame.get(at)?, *frame.get(at + 1)?]));
        let Some(mut kind) = half(12) else {
            return false;
        };
        let mut at = 14;
        if TAGS.contains(&kind) {
            match half(16) {
                Some(inner) => kind = inner,
                None => return false,
            }
            at = 18;
        }
        let transport = match kind {
            IPV4 => transport_of_ipv4(&frame[at..]).map(|(p, n)| (p, at + n)),
            IPV6 => transport_of_ipv6(&frame[at..]).map(|(p, n)| (p, at + n)),
            _ => None,
        };
        let port = transport
            .filter(|(protocol, at)| [TCP, UDP].contains(protocol) && at + 4 <= frame.len())
            .and_then(|(_, at)| half(at + 2));
        filter.rules.iter().any(|rule| {
            rule.ether_type.is_none_or(|wanted| wanted == kind)
                && (!rule.any_ip || [IPV4, IPV6].contains(&kind))
                && rule
                    .protocol
                    .is_none_or(|wanted| transport.is_some_and(|(p, _)| p == wanted))
                && rule
                    .ports
                    .is_none_or(|(first, last)| port.is_some_and(|p| (first..=last).contains(&p)))
        })
    }

    /// Returns the transport protocol of an IPv4 packet, and the offset of the transport header; None for a fragment, a
    /// truncated header, or another IP version.
    fn transport_of_ipv4(ip: &[u8]) -> Option<(u8, usize)> {
        let length = usize::from(*ip.first()? & 15) * 4;
        let whole = ip.len() >= 20 && u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff == 0;
        (ip[0] >> 4 == 4 && length >= 20 && whole).then(|| (ip[9], length))
    }

    fn transport_of_ipv6(ip: &[u8]) -> Option<(u8, usize)> {
        if ip.len() < 40 || ip[0] >> 4 != 6 {
            return None;
        }
        let (mut next, mut at) = (ip[6], 40);
        for _ in 0..6 {
            if ![0, 43, 60].contains(&next) {
                break;
            }
            let extension = ip.get(at..at + 8)?;
            (next, at) = (extension[0], at + (usize::from(extension[1]) + 1) * 8);
        }
        (![0, 43, 44, 60].contains(&next)).then_some((next, at))
    }

    const DISSIMILAR: [&str; 6] = [
        "ip",
        "udp",
        "udp:2152",
        "tcp:80-90+ip6",
        "ether:0x88f7+udp:1-5",
        "ip4+tcp",
    ];

    /// Returns frames that a rule might match, some of them truncated.
    fn frames() -> impl Strategy<Value = Vec<u8>> {
        let kinds =
            prop::sample::select(vec![IPV4, IPV4, IPV4, IPV6, IPV6, 0x88f7, 0x0806, 0x8100]);
        let next = prop::sample::select(vec![0u8, 1, TCP, TCP, TCP, UDP, UDP, UDP, 43, 44, 58, 60]);
        let port = prop::sample::select(vec![0u16, 3, 80, 90, 91, 2151, 2152, 2152, 2152, 2153]);
        let version = prop::sample::select(vec![0x45u8, 0x45, 0x46, 0x4f, 0x44, 0x60, 0x60, 0x65]);
        let fragment = prop::sample::select(vec![0u16, 0, 0, 0x4000, 0x2000, 0x0001, 0x8000]);
        let filling = prop::collection::vec(prop::sample::select(vec![0u8, 6, 17, 43, 60]), 120);
        (
            prop::option::of(prop::sample::select(TAGS.to_vec())),
            (kinds, version, fragment, next, port),
            (prop::bool::weighted(0.7), filling),
            prop_oneof![14usize..120, Just(120)],
        )
            .prop_map(
                |(tag, (kind, mut version, mut fragment, next, port), (right, filling), len)| {
                    if right {
                        version = if kind == IPV6 { 0x60 } else { 0x45 };
                        fragment = 0;
                    }
                    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2];
                    if let Some(tag) = tag {
                        frame.extend(tag.to_be_bytes());
                        frame.extend([0, 7]);
                    }
                    frame.extend(kind.to_be_bytes());
                    let ip = frame.len();
                    frame.extend(filling);
                    frame[ip] = version;
                    if kind == IPV4 {
                        frame[ip + 6..ip + 8].copy_from_slice(&fragment.to_be_bytes());
                        frame[ip + 9] = next;
                    } else if kind == IPV6 {
                        frame[ip + 6] = next;
                    }
                    let header = if kind == IPV6 {
                        40
                    } else {
                        usize::from(version & 15) * 4
                    };
                    frame[ip + header + 2..ip + header + 4].copy_from_slice(&port.to_be_bytes());
                    frame.truncate(len);
                    frame
                },
            )
    }

    /// A loaded program with a socket for the frames of queue 0, to test its decision for a frame.
    struct Loaded {
        object: libbpf_rs::Object,
        _socket: XdpSocket,
        _rings: super::super::socket::Rings,
        _pool: PoolHandle,
    }

    impl Loaded {
        fn new(filter: &Filter) -> Self {
            let settings = Settings {
                filter: filter.clone(),
                stamped: false,
            };
            let object = Program::load("testing", &settings).unwrap();
            let pool = PoolHandle::new(64, true).unwrap();
            let socket = XdpSocket::new().unwrap();
            // SAFETY: the pool outlives the socket, and nobody uses its memory.
            unsafe { socket.register(pool.memory().unwrap(), pool.stride_bytes()) }.unwrap();
            let rings = socket.map_rings(64).unwrap();
            redirect(&object, 0, &socket).unwrap();
            Self {
                object,
                _socket: socket,
                _rings: rings,
                _pool: pool,
            }
        }

        fn takes(&self, frame: &[u8]) -> bool {
            const PASS: u32 = 2;
            const REDIRECT: u32 = 4;
            let program = self.object.progs_mut().next().unwrap();
            let output = program
                .test_run(ProgramInput {
                    data_in: Some(frame),
                    ..Default::default()
                })
                .unwrap();
            assert!([PASS, REDIRECT].contains(&output.return_value));
            output.return_value == REDIRECT
        }
    }

    #[test]
    fn every_filter_in_the_kernel_agrees_with_a_reference_implementation() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: needs root");
            return;
        }
        for text in DISSIMILAR {
            let filter: Filter = text.parse().unwrap();
            let loaded = Loaded::new(&filter);
            let (yes, no) = (Cell::new(0), Cell::new(0));
            proptest!(ProptestConfig::with_cases(2000), |(frame in frames())| {
                let wanted = wants(&filter, &frame);
                prop_assert_eq!(loaded.takes(&frame), wanted, "{} {:02x?}", text, frame);
                let count = if wanted { &yes } else { &no };
                count.set(count.get() + 1);
            });
            assert!(yes.get() > 10 && no.get() > 10, "{text}: {yes:?} {no:?}");
        }
        assert!(Loaded::new(&Filter::default()).takes(&[0; 14]));
    }
}
