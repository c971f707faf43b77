//! Filters for single flows of a user. A flow description names addresses, protocol and ports. Its syntax is the subset
//! of IPFilterRule (RFC 6733 section 4.3.1) that 3GPP TS 29.212 section 5.4.2 allows. A filter may also compare a few
//! other fields (TS 29.244 section 8.2.5).

use std::net::IpAddr;
use taut_function::tuple::{Tuple, mapped};
use taut_wire::{IpProtocol, Layer3};

/// The limit on port ranges for one endpoint of a flow description.
const MOST_PORTS: usize = 16;
/// The limit on the length of a flow description, bytes.
const MOST_TEXT_BYTES: usize = 512;

/// A filter that matches the packets of a flow in both directions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct FlowFilter {
    protocol: Option<u8>,
    remote: End,
    user: End,
    /// The type of service or traffic class, and the mask of its compared bits.
    pub(super) traffic_class: Option<(u8, u8)>,
    /// The security parameter index of IPsec; if it is none, the filter accepts every index.
    pub(super) security_parameters: Option<u32>,
    /// The flow label of IPv6; if it is none, the filter accepts every flow label.
    pub(super) flow_label: Option<u32>,
}

/// The addresses and ports of one endpoint of a flow; unset fields match everything.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct End {
    /// The IP version (true for IPv4), the address, and the mask of the compared bits; IPv4 addresses are mapped into
    /// IPv6.
    prefix: Option<(bool, u128, u128)>,
    ports: Vec<(u16, u16)>,
}

/// The fields of a user packet that filters compare.
#[derive(Debug, Clone, Copy)]
pub(super) struct Looked<'a> {
    pub tuple: Tuple,
    pub is_v4: bool,
    /// The packet from its IP header on.
    pub ip: &'a [u8],
    /// The packet from its transport header on.
    pub transport: &'a [u8],
    pub is_uplink: bool,
}

impl FlowFilter {
    /// Parses `permit out PROTOCOL from ADDRESS [PORTS] to ADDRESS [PORTS]`: the endpoint after `from` is the remote
    /// one, that after `to` the user's.
    ///
    /// # Errors
    /// Returns the part of the description that is invalid or not supported.
    pub fn described(text: &str) -> Result<Self, String> {
        if text.len() > MOST_TEXT_BYTES {
            return Err(format!("expected at most {MOST_TEXT_BYTES} bytes"));
        }
        let mut words = text.split_ascii_whitespace().peekable();
        want("permit", &mut words)?;
        want("out", &mut words)?;
        let protocol = match words.next() {
            Some("ip") => None,
            Some(number) => Some(number.parse().map_err(|_| format!("protocol {number}"))?),
            None => return Err("no protocol".to_string()),
        };
        want("from", &mut words)?;
        let remote = End::read(words.next(), words.next_if(|word| *word != "to"))?;
        want("to", &mut words)?;
        let user = End::read(words.next(), words.next())?;
        match words.next() {
            // Options are not allowed.
            Some(more) => Err(format!("{more}: expected nothing after the user's end")),
            None => Ok(Self {
                protocol,
                remote,
                user,
                ..Self::default()
            }),
        }
    }

    /// Returns true if every packet of the users with the given addresses matches.
    pub fn takes_all(&self, users: &[IpAddr]) -> bool {
        let Self {
            protocol: None,
            remote,
            user,
            traffic_class: None,
            security_parameters: None,
            flow_label: None,
        } = self
        else {
            return false;
        };
        let is_any = |end: &End, is_user: bool| {
            end.ports.is_empty()
                && end.prefix.is_none_or(|(is_v4, address, mask)| {
                    let of_version = users.iter().all(|user| user.is_ipv4() == is_v4);
                    let is_own = is_user && users.len() == 1 && mapped(users[0]) & mask == address;
                    !users.is_empty() && of_version && (mask == least_mask(is_v4) || is_own)
                })
        };
        is_any(remote, false) && is_any(user, true)
    }

    /// Returns true if a packet belongs to the flow. Fragments after the first one have no ports.
    #[inline]
    pub(super) fn fits(&self, packet: &Looked<'_>) -> bool {
        let Tuple {
            protocol,
            source,
            destination,
            ports,
            ..
        } = packet.tuple;
        if self.protocol.is_some_and(|wanted| wanted != protocol.0) {
            return false;
        }
        let (source_port, destination_port) = (ports.map(|it| it.0), ports.map(|it| it.1));
        let (from, to) = if packet.is_uplink {
            (&self.user, &self.remote)
        } else {
            (&self.remote, &self.user)
        };
        from.fits(source, source_port, packet.is_v4)
            && to.fits(destination, destination_port, packet.is_v4)
            && self
                .traffic_class
                .is_none_or(|(class, mask)| packet.traffic_class() & mask == class & mask)
            && self
                .flow_label
                .is_none_or(|label| packet.flow_label() == Some(label))
            && self
                .security_parameters
                .is_none_or(|index| packet.security_parameters() == Some(index))
    }
}

fn want<'a>(wanted: &str, words: &mut impl Iterator<Item = &'a str>) -> Result<(), String> {
    match words.next() {
        Some(word) if word == wanted => Ok(()),
        Some(other) => Err(format!("expected \"{wanted}\", not \"{other}\"")),
        None => Err(format!("expected \"{wanted}\"")),
    }
}

/// Returns the mask of the 96 bits that precede an IPv4 address in its IPv6-mapped form; 0 for an IPv6 address.
fn least_mask(is_v4: bool) -> u128 {
    match is_v4 {
        true => u128::MAX << 32,
        false => 0,
    }
}

impl End {
    fn read(address: Option<&str>, ports: Option<&str>) -> Result<Self, String> {
        let address = address.ok_or("no address")?;
        let prefix = match address {
            "any" | "assigned" => None,
            _ => Some(prefix(address).ok_or_else(|| format!("address {address}"))?),
        };
        let ports = match ports {
            None => Vec::new(),
            Some(text) => read_ports(text).ok_or_else(|| format!("ports {text}"))?,
        };
        Ok(Self { prefix, ports })
    }

    #[inline]
    fn fits(&self, address: u128, port: Option<u16>, is_v4: bool) -> bool {
        let of_prefix = self
            .prefix
            .is_none_or(|(wanted_v4, wanted, mask)| wanted_v4 == is_v4 && address & mask == wanted);
        of_prefix
            && (self.ports.is_empty()
                || port.is_some_and(|port| {
                    let mut ranges = self.ports.iter();
                    ranges.any(|(first, last)| (*first..=*last).contains(&port))
                }))
    }
}

fn prefix(text: &str) -> Option<(bool, u128, u128)> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse::<u32>().ok()?)),
        None => (text, None),
    };
    let address: IpAddr = address.parse().ok()?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let length = length.unwrap_or(bits);
    let host = bits.checked_sub(length)?;
    let mask = u128::MAX.checked_shl(host).unwrap_or(0);
    Some((address.is_ipv4(), mapped(address) & mask, mask))
}

/// Parses ports and ranges of them: `80,443,5000-5010`. Returns none if the text is invalid or has more than
/// [`MOST_PORTS`] ranges.
fn read_ports(text: &str) -> Option<Vec<(u16, u16)>> {
    let ranges = text.split(',').map(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse().ok()?, last.parse().ok()?);
        (first <= last).then_some((first, last))
    });
    let ranges: Vec<_> = ranges.take(MOST_PORTS + 1).collect::<Option<_>>()?;
    (ranges.len() <= MOST_PORTS).then_some(ranges)
}

impl<'a> Looked<'a> {
    /// Returns the packet of a frame from its parsed headers. Returns none unless the packet is a complete IP packet:
    /// incomplete packets could bypass the filters.
    #[inline]
    pub fn of(headers: &taut_wire::Headers, frame: &'a [u8], is_uplink: bool) -> Option<Self> {
        let taut_function::tuple::Seen::Tuple(tuple) =
            taut_function::tuple::Seen::of(headers, frame)
        else {
            return None;
        };
        Some(Self {
            tuple,
            is_v4: headers.layer3() == Layer3::Ipv4,
            ip: frame.get(headers.ip()..)?,
            transport: headers.transport_in(frame),
            is_uplink,
        })
    }

    fn traffic_class(&self) -> u8 {
        match *self.ip {
            [_, class, ..] if self.is_v4 => class,
            [a, b, ..] => a << 4 | b >> 4,
            _ => 0,
        }
    }

    fn flow_label(&self) -> Option<u32> {
        match *self.ip {
            [_, a, b, c, ..] if !self.is_v4 => Some(u32::from_be_bytes([0, a & 0xf, b, c])),
            _ => None,
        }
    }

    /// Returns the security parameter index (SPI) of an IPsec packet: the first word of ESP, the second one of AH; none
    /// for other packets.
    fn security_parameters(&self) -> Option<u32> {
        let at = match self.tuple.protocol {
            IpProtocol(50) => 0,
            IpProtocol(51) => 4,
            _ => return None,
        };
        let bytes = self.transport.get(at..)?.first_chunk()?;
        Some(u32::from_be_bytes(*bytes))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use taut_wire::{Headers, UdpFlow};

    fn fits(text: &str, frame: &[u8], is_uplink: bool) -> bool {
        let filter = FlowFilter::described(text).unwrap();
        let packet = Looked::of(&Headers::of(frame), frame, is_uplink).unwrap();
        filter.fits(&packet)
    }

    fn frame(source: (&str, u16), destination: (&str, u16)) -> Vec<u8> {
        let flow = UdpFlow {
            src_ip: source.0.parse().unwrap(),
            dst_ip: destination.0.parse().unwrap(),
            src_port: source.1,
            dst_port: destination.1,
            ..UdpFlow::default()
        };
        flow.frame(104).unwrap()
    }

    #[test]
    fn flow_descriptions_name_the_remote_address_before_the_user_address() {
        let (far, user) = (("198.51.100.7", 5060), ("10.45.0.2", 7000));
        let (down, up) = (frame(far, user), frame(user, far));
        for (text, wanted) in [
            ("permit out ip from any to assigned", true),
            ("permit out 17 from any to assigned", true),
            ("permit out 6 from any to assigned", false),
            ("permit out 17 from 198.51.100.7 5060 to assigned", true),
            (
                "permit out 17 from 198.51.100.7/32 5060 to 10.45.0.2 7000",
                true,
            ),
            ("permit out ip from 198.51.100.0/24 to any", true),
            ("permit out ip from 198.51.101.0/24 to any", false),
            ("permit out 17 from any 80,443,5000-5100 to assigned", true),
            ("permit out 17 from any 80,443,5061-5100 to assigned", false),
            ("permit out 17 from any to assigned 6999-7001", true),
            ("permit out 17 from any to assigned 7001", false),
            ("permit out ip from 10.45.0.2 to assigned", false),
            ("permit out ip from 0.0.0.0/0 to assigned", true),
            ("permit out ip from ::/0 to assigned", false),
        ] {
            assert_eq!(fits(text, &down, false), wanted, "{text}");
            assert_eq!(fits(text, &up, true), wanted, "{text}");
        }
        // The other direction is another flow, unless both endpoints are equal.
        assert!(!fits(
            "permit out 17 from 198.51.100.7 to assigned",
            &down,
            true
        ));
        let (far, user) = (("2001:db8:99::1", 53), ("2001:db8:45::2", 7000));
        let down = frame(far, user);
        assert!(fits(
            "permit out 17 from 2001:db8:99::/48 53 to any",
            &down,
            false
        ));
        assert!(!fits("permit out ip from 0.0.0.0/0 to any", &down, false));
    }

    #[test]
    fn errors_for_invalid_flow_descriptions_quote_the_invalid_part() {
        for (text, part) in [
            ("", "expected \"permit\""),
            ("deny out ip from any to any", "expected \"permit\""),
            ("permit in ip from any to any", "expected \"out\""),
            ("permit out tcp from any to any", "protocol tcp"),
            ("permit out 256 from any to any", "protocol 256"),
            ("permit out ip any to any", "expected \"from\""),
            (
                "permit out ip from !10.0.0.0/8 to any",
                "address !10.0.0.0/8",
            ),
            (
                "permit out ip from 10.0.0.0/33 to any",
                "address 10.0.0.0/33",
            ),
            ("permit out ip from any to", "no address"),
            ("permit out ip from any", "expected \"to\""),
            ("permit out 17 from any 9-8 to any", "ports 9-8"),
            ("permit out 17 from any 65536 to any", "ports 65536"),
            ("permit out 17 from any , to any", "ports ,"),
            ("permit out 6 from any to any 80 established", "established"),
        ] {
            let error = FlowFilter::described(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
        let many = vec!["1"; MOST_PORTS + 1].join(",");
        let text = format!("permit out 17 from any {many} to any");
        assert!(FlowFilter::described(&text).is_err());
        let long = format!(
            "permit out 17 from any to any{}",
            " ".repeat(MOST_TEXT_BYTES)
        );
        assert!(FlowFilter::described(&long).is_err());
    }

    #[test]
    fn a_filter_also_compares_traffic_class_spi_and_flow_label() {
        let mut esp = frame(("198.51.100.7", 1), ("10.45.0.2", 2));
        (esp[15], esp[23]) = (0xb9, 50);
        esp[34..38].copy_from_slice(&[0, 0, 1, 2]);
        let packet = |frame| Looked::of(&Headers::of(frame), frame, false).unwrap();
        let with = |change: fn(&mut FlowFilter)| {
            let mut filter = FlowFilter::default();
            change(&mut filter);
            filter
        };
        assert!(with(|it| it.traffic_class = Some((0xb8, 0xfc))).fits(&packet(&esp)));
        assert!(!with(|it| it.traffic_class = Some((0xb8, 0xff))).fits(&packet(&esp)));
        assert!(with(|it| it.security_parameters = Some(0x102)).fits(&packet(&esp)));
        assert!(!with(|it| it.security_parameters = Some(0x103)).fits(&packet(&esp)));
        assert!(!with(|it| it.flow_label = Some(0)).fits(&packet(&esp)));
        let mut v6 = frame(("2001:db8:99::1", 53), ("2001:db8:45::2", 7000));
        v6[14..18].copy_from_slice(&[0x6b, 0x81, 0x23, 0x45]);
        assert!(with(|it| it.flow_label = Some(0x1_2345)).fits(&packet(&v6)));
        assert!(with(|it| it.traffic_class = Some((0xb8, 0xff))).fits(&packet(&v6)));
        assert!(!with(|it| it.security_parameters = Some(0)).fits(&packet(&v6)));
    }

    #[test]
    fn filters_that_match_all_packets_of_a_user_are_recognised() {
        let v4: IpAddr = "10.45.0.2".parse().unwrap();
        let v6: IpAddr = "2001:db8:45::2".parse().unwrap();
        for (text, users, wanted) in [
            ("permit out ip from any to assigned", &[v4][..], true),
            ("permit out ip from any to any ", &[], true),
            ("permit out ip from assigned to any", &[v4, v6], true),
            ("permit out ip from any to 10.45.0.2", &[v4], true),
            ("permit out ip from any to 10.45.0.2/32", &[v4], true),
            ("permit out ip from 0.0.0.0/0 to assigned", &[v4], true),
            ("permit out ip from ::/0 to assigned", &[v6], true),
            ("permit out ip from ::/0 to assigned", &[v4], false),
            ("permit out ip from 0.0.0.0/0 to assigned", &[v4, v6], false),
            ("permit out ip from any to 10.45.0.3", &[v4], false),
            ("permit out ip from 10.45.0.2 to any", &[v4], false),
            ("permit out ip from any to assigned 80", &[v4], false),
            ("permit out 17 from any to assigned", &[v4], false),
        ] {
            let filter = FlowFilter::described(text).unwrap();
            assert_eq!(filter.takes_all(users), wanted, "{text} {users:?}");
        }
    }

    proptest! {
        /// A packet matches the description of its own addresses and ports, and no description that differs in one bit.
        #[test]
        fn a_flow_description_matches_packets_of_equal_addresses_and_ports(
            far: [u8; 4], user: [u8; 4], ports: (u16, u16), bit in 0..32_u32, length in 1..=32_u32, is_uplink: bool,
        ) {
            let text = |address: [u8; 4]| IpAddr::from(address).to_string();
            let ends = ((&text(far)[..], ports.0), (&text(user)[..], ports.1));
            let frame = if is_uplink { frame(ends.1, ends.0) } else { frame(ends.0, ends.1) };
            let described = |far: [u8; 4], length: u32| {
                format!("permit out 17 from {}/{length} {} to {} {}", text(far), ports.0, text(user), ports.1)
            };
            prop_assert!(fits(&described(far, length), &frame, is_uplink));
            let other = (u32::from_be_bytes(far) ^ 1 << (31 - bit)).to_be_bytes();
            prop_assert_eq!(fits(&described(other, length), &frame, is_uplink), bit >= length);
        }

        #[test]
        fn random_flow_descriptions_are_parsed_without_a_panic(text in ".{0,80}", words in proptest::collection::vec(
            prop_oneof![
                Just("permit"), Just("out"), Just("ip"), Just("from"), Just("any"), Just("to"), Just("1-2"),
            ],
            0..9,
        )) {
            let _ = FlowFilter::described(&text);
            let _ = FlowFilter::described(&words.join(" "));
        }
    }
}
