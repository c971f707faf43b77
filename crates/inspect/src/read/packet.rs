//! Options about the headers of a packet, its anomalies, and the state of its connection.

use super::header::application;
use super::reader::Reader;
use crate::anomaly::{self, Anomaly};
use crate::evaluate::MOST_VLANS;
use crate::form;
use crate::number::{negated, number, within};
use crate::refusal::{Read, Refusal, unable, wrong};
use crate::rule::*;
use crate::syntax::{WrittenOption, parts};

/// Maximum number of VLAN tags in Suricata; rules about frames with more than [`MOST_VLANS`] are not supported here.
const MOST_LAYERS: i64 = 3;

/// Names of the kinds of TLS messages, by their bits ([`crate::evaluate::Packet::tls`]).
pub const TLS_STATES: [&str; 5] = [
    "client_hello",
    "server_hello",
    "client_keyx",
    "server_keyx",
    "unknown",
];

impl Reader<'_> {
    /// Reads an option about packet headers, or about the state of a connection. Returns false for other options.
    pub(super) fn about_headers(
        &mut self,
        option: &WrittenOption<'_>,
        rule: &mut Rule,
    ) -> Read<bool> {
        let value = option.value.unwrap_or_default();
        match option.name {
            "dsize" => rule
                .headers
                .push(HeaderTest::PayloadLen(self.up_to(form::SHORT, value)?)),
            "ttl" => rule
                .headers
                .push(HeaderTest::Ttl(self.up_to(form::BYTE, value)?)),
            "id" => rule
                .headers
                .push(HeaderTest::IpId(self.up_to(form::SHORT, value)?)),
            "tos" => rule
                .headers
                .push(HeaderTest::Tos(self.up_to(form::BYTE, value)?)),
            "window" | "tcp.window" => rule
                .headers
                .push(HeaderTest::TcpWindow(self.up_to(form::SHORT, value)?)),
            "seq" => rule.headers.push(HeaderTest::TcpSequence(number(value)?)),
            "ack" => rule
                .headers
                .push(HeaderTest::TcpAcknowledgement(number(value)?)),
            "itype" => rule
                .headers
                .push(HeaderTest::IcmpType(self.up_to(form::BYTE, value)?)),
            "icode" => rule
                .headers
                .push(HeaderTest::IcmpCode(self.up_to(form::BYTE, value)?)),
            "icmp_id" => rule.headers.push(HeaderTest::IcmpId(number(value)?)),
            "icmp_seq" => rule.headers.push(HeaderTest::IcmpSequence(number(value)?)),
            "fragoffset" => rule.headers.push(HeaderTest::FragmentOffset(
                self.up_to(form::FRAGMENT_OFFSET, value)?,
            )),
            "sameip" => rule.headers.push(HeaderTest::SameAddresses),
            "ip_proto" => rule
                .headers
                .push(HeaderTest::IpProtocol(ip_protocol(value)?)),
            "flags" | "tcp.flags" => rule.headers.push(HeaderTest::TcpFlags(tcp_flags(value)?)),
            "fragbits" => rule
                .headers
                .push(HeaderTest::FragmentBits(bits(value, "MDR")?)),
            "ipopts" => rule.headers.push(HeaderTest::IpOption(ip_option(value)?)),
            "ssl_state" => rule.headers.push(HeaderTest::TlsState(tls_state(value)?)),
            "ssl_version" | "tls.version" => rule
                .headers
                .push(HeaderTest::TlsVersion(tls_version(value)?)),
            "stream_size" => rule.headers.push(self.stream_size(value)?),
            "flow.pkts" | "flow.bytes" => self.flow_size(option.name, value, rule)?,
            "vlan.id" => self.vlan_id(value, rule)?,
            "vlan.layers" => rule.headers.push(self.vlan_layers(value)?),
            "app-layer-protocol" => application(value, rule)?,
            "stream-event" | "decode-event" => event(option.name, value, rule)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads `flow.pkts` or `flow.bytes`: the endpoints, and a comparison of the count.
    fn flow_size(&self, name: &str, value: &str, rule: &mut Rule) -> Read<()> {
        let (ends, count) = value.split_once(',').unwrap_or((value, ""));
        let ends = match ends.trim() {
            "toserver" => Ends::Client,
            "toclient" => Ends::Server,
            "either" => Ends::Either,
            other => return wrong(format!("{other:?}: expected toserver, toclient or either")),
        };
        let count = self.up_to(i64::MAX, count)?;
        rule.headers.push(match name {
            "flow.pkts" => HeaderTest::FlowPackets {
                ends,
                packets: count,
            },
            _ => HeaderTest::FlowBytes { ends, bytes: count },
        });
        Ok(())
    }

    /// Reads `vlan.id`: a comparison of VLAN identifiers, and the tags that it applies to.
    fn vlan_id(&self, value: &str, rule: &mut Rule) -> Read<()> {
        let (id, of) = value.split_once(',').unwrap_or((value, "any"));
        let of = match of.trim() {
            "any" => VlanTags::Any,
            "all" => VlanTags::All,
            place => {
                let place: i8 = number(place)?;
                if !(-MOST_LAYERS..MOST_LAYERS).contains(&place.into()) {
                    return wrong(format!("tag {place}: expected -3 to 2, any or all"));
                }
                if !(-(MOST_VLANS as i8)..MOST_VLANS as i8).contains(&place) {
                    return unable("vlan.id of a third tag");
                }
                VlanTags::At(place)
            }
        };
        let id = self.up_to(form::VLAN, id)?;
        rule.headers.push(HeaderTest::VlanId { id, of });
        Ok(())
    }

    /// Reads `vlan.layers`: a comparison of the number of VLAN tags.
    fn vlan_layers(&self, value: &str) -> Read<HeaderTest> {
        let layers = self.up_to(MOST_LAYERS, value)?;
        if !(0..=MOST_VLANS as i64).any(|it| layers.fits(it)) {
            return unable("vlan.layers of frames with three tags");
        }
        Ok(HeaderTest::VlanLayers(layers))
    }

    /// Parses the rule option `stream_size`.
    fn stream_size(&self, value: &str) -> Read<HeaderTest> {
        let [ends, how, bytes] = parts(value)[..] else {
            return wrong("expected the sender, the comparison, and the number of bytes");
        };
        let ends = match ends {
            "client" => Ends::Client,
            "server" => Ends::Server,
            "both" => Ends::Both,
            "either" => Ends::Either,
            _ => return wrong(format!("{ends:?}: expected client, server, both or either")),
        };
        let bytes = self.up_to(i64::MAX, &format!("{how}{bytes}"))?;
        Ok(HeaderTest::StreamBytes { ends, bytes })
    }
}

/// Returns a test for the protocol number after the IP header.
pub(super) fn is_protocol(number: u8) -> HeaderTest {
    HeaderTest::IpProtocol(Within {
        least: number.into(),
        most: number.into(),
        not: false,
    })
}

/// Returns a test for an anomaly of the packet, or for its absence if `not`.
fn is_odd(anomaly: Anomaly, not: bool) -> HeaderTest {
    HeaderTest::Anomaly {
        bits: anomaly.bit(),
        not,
    }
}

/// Reads `stream-event` or `decode-event`: the name of an anomaly.
fn event(name: &str, value: &str, rule: &mut Rule) -> Read<()> {
    let Some((anomaly, version)) = anomaly::event(name, value) else {
        return unable(format!("{name}:{value}"));
    };
    rule.headers.extend(version.map(HeaderTest::IpVersion));
    rule.headers.push(is_odd(anomaly, false));
    Ok(())
}

/// Reads a checksum keyword: a test for a correct or a wrong checksum in packets that have such a checksum.
pub(super) fn checksum(
    version: u8,
    protocol: Option<u8>,
    value: &str,
    rule: &mut Rule,
) -> Read<()> {
    let not = match value.trim_matches('"') {
        "invalid" => false,
        "valid" => true,
        _ => return wrong(format!("{value:?}: expected valid or invalid")),
    };
    let anomaly = match protocol {
        None => Anomaly::HeaderChecksum,
        Some(_) => Anomaly::Checksum,
    };
    rule.headers.push(HeaderTest::IpVersion(version));
    rule.headers.extend(protocol.map(is_protocol));
    rule.headers.push(is_odd(anomaly, not));
    Ok(())
}

fn ip_protocol(value: &str) -> Read<Within> {
    let names = [
        ("icmp", 1),
        ("igmp", 2),
        ("tcp", 6),
        ("udp", 17),
        ("gre", 47),
        ("esp", 50),
        ("ah", 51),
        ("sctp", 132),
        ("ipv6-icmp", 58),
    ];
    let (not, name) = negated(value);
    match names.iter().find(|it| it.0.eq_ignore_ascii_case(name)) {
        Some(&(_, number)) => Ok(Within {
            least: number,
            most: number,
            not,
        }),
        None => form::up_to(form::BYTE, within(value, true)?),
    }
}

fn tcp_flags(value: &str) -> Read<Bits> {
    let (value, but) = value.split_once(',').unwrap_or((value, ""));
    // The letters are in the order of the header bits; `C` and `E` are the modern names of `1` and `2`.
    let letters = |text: &str| text.replace(['1', 'c'], "C").replace(['2', 'e'], "E");
    let mut bits = bits(&letters(value).replace('0', ""), "FSRPAUEC")?;
    for letter in letters(but).trim().chars() {
        match "FSRPAUEC".find(letter) {
            Some(bit) => bits.looked_at &= !(1 << bit),
            None => return wrong(format!("no flag {letter:?}")),
        }
    }
    Ok(bits)
}

/// Reads header bits by their letters in `letters`, the lowest bit first; `+`, `*` or `!` before or after them selects
/// the comparison.
fn bits(value: &str, letters: &str) -> Read<Bits> {
    let mut is = Bits {
        bits: 0,
        looked_at: 0xff,
        how: BitsHow::Exactly,
    };
    for letter in value.trim().chars() {
        match letter {
            '+' => is.how = BitsHow::All,
            '*' => is.how = BitsHow::Any,
            '!' => is.how = BitsHow::None,
            _ => match letters.find(letter) {
                Some(bit) => is.bits |= 1 << bit,
                None => return wrong(format!("no flag {letter:?}")),
            },
        }
    }
    Ok(is)
}

fn ip_option(value: &str) -> Read<Option<u8>> {
    let names = [
        ("rr", 7),
        ("eol", 0),
        ("nop", 1),
        ("ts", 68),
        ("sec", 130),
        ("esec", 133),
        ("lsrr", 131),
        ("lsrre", 131),
        ("ssrr", 137),
        ("satid", 136),
    ];
    match names.iter().find(|it| it.0 == value) {
        Some(&(_, number)) => Ok(Some(number)),
        None if value == "any" => Ok(None),
        None => wrong(format!("unknown IP option {value:?}")),
    }
}

fn tls_state(value: &str) -> Read<Bits> {
    let (not, value) = negated(value);
    let mut is = Bits {
        bits: 0,
        looked_at: 0xff,
        how: if not { BitsHow::None } else { BitsHow::Any },
    };
    for name in value.split([',', '|']) {
        match TLS_STATES.iter().position(|known| *known == name.trim()) {
            Some(bit) => is.bits |= 1 << bit,
            None => {
                return wrong(format!(
                    "{name:?}: expected one of {}",
                    TLS_STATES.join(", ")
                ));
            }
        }
    }
    Ok(is)
}

fn tls_version(value: &str) -> Read<u16> {
    Ok(match value {
        "sslv2" => 0x0200,
        "sslv3" => 0x0300,
        "tls1.0" | "1.0" => 0x0301,
        "tls1.1" | "1.1" => 0x0302,
        "tls1.2" | "1.2" => 0x0303,
        "tls1.3" | "1.3" => 0x0304,
        _ => return Err(Refusal::NotUnderstood),
    })
}
