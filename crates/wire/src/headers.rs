//! The headers of a frame, parsed in one pass: offsets of layers 3 and 4, and the fields that identify its flow.

use crate::{EtherType, Ethernet, IpProtocol, Ipv4, Ipv6};
use std::fmt;
use std::net::Ipv4Addr;

const IPV6_LEN_BYTES: usize = crate::ipv6::HEADER_LEN_BYTES;

/// The network-layer protocol of an Ethernet frame, after up to two VLAN tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layer3 {
    /// The frame contains neither IPv4 nor IPv6.
    #[default]
    Other,
    /// The frame contains IPv4.
    Ipv4,
    /// The frame contains IPv6.
    Ipv6,
}

/// The header at which a frame is truncated or has a wrong length field. The headers before it were parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Fault in the Ethernet header or its tags, or a frame that exceeds the maximum length.
    Ethernet = 1,
    /// Fault in the IP header.
    Ip,
    /// Fault in an extension header of IPv6.
    Extension,
    /// Fault in the header after IP: the frame ends before the ports of a protocol that has ports.
    Ports,
}

/// The offsets of a frame's headers in bytes from its start, and the fields that identify its flow. Checksums are not
/// verified.
// The two words are assembled in registers. Separate fields would be written in small pieces, and a copy of the
// structure would have to wait for these stores.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers {
    /// Offsets and kinds in one word. From the lowest bit, 16 bits each: start of the IP header, start of layer 4, end
    /// of the IP packet. Then 8 bits each: layer 3 protocol, fault.
    places: u64,
    /// Fields that identify the flow in one word. From the lowest bit, 16 bits each: source and destination port. Then
    /// the protocol, and flags for the fields that exist.
    flow: u64,
}

const TRANSPORT_AT: u32 = 16;
const END_AT: u32 = 32;
const LAYER3_AT: u32 = 48;
const FAULT_AT: u32 = 56;
const DESTINATION_AT: u32 = 16;
const PROTOCOL_AT: u32 = 32;
const IS_FRAGMENT: u64 = 1 << 40;
const HAS_PORTS: u64 = 1 << 41;

impl Headers {
    /// Parses a frame of at most 65,535 bytes.
    #[inline(always)]
    pub fn of(frame: &[u8]) -> Self {
        Self::usual(frame).unwrap_or_else(|| Self::any(frame))
    }

    /// Parses the most frequent kind of frame: an untagged, complete IPv4 packet without options, long enough for
    /// ports. Returns None for any other frame. The function is inlined into callers that use the result directly, so
    /// that the compiler knows most of the result's values.
    #[inline(always)]
    pub fn usual(frame: &[u8]) -> Option<Self> {
        const IP_AT: usize = 14;
        const TRANSPORT: usize = IP_AT + 20;
        const FRAGMENT_MASK: u16 = 0x3fff;
        let head = frame.first_chunk::<{ TRANSPORT + 4 }>()?;
        let half = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let end = IP_AT + usize::from(half(IP_AT + 2));
        let is_usual = EtherType(half(IP_AT - 2)) == EtherType::IPV4
            && head[IP_AT] == 0x45
            && half(IP_AT + 6) & FRAGMENT_MASK == 0
            && (TRANSPORT + 4..=frame.len().min(usize::from(u16::MAX))).contains(&end);
        if !is_usual {
            return None;
        }
        let protocol = IpProtocol(head[IP_AT + 9]);
        let mut flow = u64::from(protocol.0) << PROTOCOL_AT;
        if protocol.has_ports() {
            let (source, destination) = (half(TRANSPORT), half(TRANSPORT + 2));
            flow |= u64::from(source) | u64::from(destination) << DESTINATION_AT | HAS_PORTS;
        }
        let places = IP_AT as u64
            | (TRANSPORT as u64) << TRANSPORT_AT
            | (end as u64) << END_AT
            | (Layer3::Ipv4 as u64) << LAYER3_AT;
        Some(Self { places, flow })
    }

    /// Parses a frame of any kind, in particular those that [`Headers::usual`] does not parse.
    #[inline(never)]
    fn any(frame: &[u8]) -> Self {
        let ethernet = match Ethernet::new(frame) {
            Ok(ethernet) if frame.len() <= usize::from(u16::MAX) => ethernet,
            _ => return Self::up_to(0, Layer3::Other, Some(Fault::Ethernet)),
        };
        let layer3 = match ethernet.ethertype() {
            EtherType::IPV4 => Layer3::Ipv4,
            EtherType::IPV6 => Layer3::Ipv6,
            _ => Layer3::Other,
        };
        Self::packet(frame, ethernet.header_len_bytes(), layer3)
    }

    /// Parses the IP packet at an offset of a frame, such as in a tunnel; offsets are relative to the frame. A packet
    /// that is neither IPv4 nor IPv6 is [`Layer3::Other`].
    pub fn inside(frame: &[u8], ip_at: usize) -> Self {
        // The offsets cannot represent longer frames.
        let is_too_long = frame.len() > usize::from(u16::MAX);
        match frame.get(ip_at).map(|byte| byte >> 4) {
            Some(4) if !is_too_long => Self::packet(frame, ip_at, Layer3::Ipv4),
            Some(6) if !is_too_long => Self::packet(frame, ip_at, Layer3::Ipv6),
            _ => Self::up_to(0, Layer3::Other, None),
        }
    }

    /// Parses the IP packet, or another payload, at the offset `ip_at` of the frame.
    fn packet(frame: &[u8], ip_at: usize, layer3: Layer3) -> Self {
        let ip_bytes = &frame[ip_at..];
        match layer3 {
            Layer3::Ipv4 => {
                let Ok(ip) = Ipv4::new(ip_bytes) else {
                    return Self::up_to(ip_at, Layer3::Ipv4, Some(Fault::Ip));
                };
                let is_later = ip.fragment_offset_bytes() != 0;
                let fragment = ip.is_fragment().then_some(is_later);
                Self::up_to(ip_at, Layer3::Ipv4, None).and(
                    ip_at + ip.header_len_bytes(),
                    ip.payload(),
                    ip.protocol(),
                    fragment,
                )
            }
            Layer3::Ipv6 => {
                let Ok(ip) = Ipv6::new(ip_bytes) else {
                    return Self::up_to(ip_at, Layer3::Ipv6, Some(Fault::Ip));
                };
                let Ok(transport) = ip.transport() else {
                    return Self::up_to(ip_at, Layer3::Ipv6, Some(Fault::Extension));
                };
                Self::up_to(ip_at, Layer3::Ipv6, None).and(
                    ip_at + IPV6_LEN_BYTES + transport.extensions_len_bytes,
                    transport.payload,
                    transport.protocol,
                    transport.fragment.map(|it| it.offset_bytes != 0),
                )
            }
            Layer3::Other => Self::up_to(ip_at, Layer3::Other, None),
        }
    }

    /// Returns headers without layer 4; the IP header, or another payload, begins at `ip_at`.
    #[inline(always)]
    fn up_to(ip_at: usize, layer3: Layer3, fault: Option<Fault>) -> Self {
        let fault = fault.map_or(0, |fault| fault as u64);
        Self {
            places: ip_at as u64 | (layer3 as u64) << LAYER3_AT | fault << FAULT_AT,
            flow: u64::from(IpProtocol::NO_NEXT_HEADER.0) << PROTOCOL_AT,
        }
    }

    /// Adds the layer 4 header, which begins at offset `at` of the frame. `fragment` is none for a packet that is no
    /// fragment, false for a first fragment, and true for any other fragment.
    #[inline(always)]
    fn and(
        mut self,
        at: usize,
        transport: &[u8],
        protocol: IpProtocol,
        fragment: Option<bool>,
    ) -> Self {
        let end = at + transport.len();
        self.places |= (at as u64) << TRANSPORT_AT | (end as u64) << END_AT;
        self.flow = u64::from(protocol.0) << PROTOCOL_AT;
        if fragment.is_some() {
            self.flow |= IS_FRAGMENT;
        }
        if fragment == Some(true) || !protocol.has_ports() {
            return self;
        }
        match transport.first_chunk() {
            Some(&[a, b, c, d]) => {
                let (source, destination) =
                    (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
                self.flow |=
                    u64::from(source) | u64::from(destination) << DESTINATION_AT | HAS_PORTS;
            }
            None => self.places |= (Fault::Ports as u64) << FAULT_AT,
        }
        self
    }

    /// Returns the layer 3 protocol of the frame, which follows the VLAN tags.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value lies in these bits of the word"
    )]
    pub fn layer3(&self) -> Layer3 {
        match (self.places >> LAYER3_AT) as u8 {
            1 => Layer3::Ipv4,
            2 => Layer3::Ipv6,
            _ => Layer3::Other,
        }
    }

    /// Returns the header at which the frame is truncated or wrong; None if the frame is correct up to its ports.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        match (self.places >> FAULT_AT) as u8 {
            1 => Some(Fault::Ethernet),
            2 => Some(Fault::Ip),
            3 => Some(Fault::Extension),
            4 => Some(Fault::Ports),
            _ => None,
        }
    }

    /// Returns the offset of the IP header, or of the Ethernet payload if that is not IP.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value lies in these bits of the word"
    )]
    pub fn ip(&self) -> usize {
        usize::from(self.places as u16)
    }

    /// Returns the offset of the layer 4 header, after options and extension headers, or of the payload of a fragment
    /// other than the first. It is 0 if an earlier header has a fault, or the frame is not IP.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value lies in these bits of the word"
    )]
    pub fn transport(&self) -> usize {
        usize::from((self.places >> TRANSPORT_AT) as u16)
    }

    /// Returns the offset of the end of the IP packet; padding may follow. It is 0 if [`Headers::transport`] is 0.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value lies in these bits of the word"
    )]
    pub fn end(&self) -> usize {
        usize::from((self.places >> END_AT) as u16)
    }

    /// Returns the protocol of the layer 4 header.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the value lies in these bits of the word"
    )]
    pub fn protocol(&self) -> IpProtocol {
        IpProtocol((self.flow >> PROTOCOL_AT) as u8)
    }

    /// Returns true if the packet is a fragment, including the first one.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.flow & IS_FRAGMENT != 0
    }

    /// Returns the source and destination ports of TCP, UDP and SCTP; None for other protocols and for fragments other
    /// than the first.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the values lie in these bits of the word"
    )]
    pub fn ports(&self) -> Option<(u16, u16)> {
        let ports = (self.flow as u16, (self.flow >> DESTINATION_AT) as u16);
        (self.flow & HAS_PORTS != 0).then_some(ports)
    }

    /// Returns the layer 4 header and payload in `frame`, which is the parsed frame; empty if there is no layer 4
    /// header.
    #[inline]
    pub fn transport_in<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.transport()..self.end()).unwrap_or_default()
    }

    /// Returns the source and destination addresses in the parsed frame; IPv4 addresses are mapped to IPv6 (RFC 4291
    /// section 2.5.5.2). Both are 0 if there is no valid IP header.
    #[inline]
    pub fn addresses_in(&self, frame: &[u8]) -> (u128, u128) {
        let ip = frame.get(self.ip()..).unwrap_or_default();
        match (self.layer3(), self.fault()) {
            (_, Some(Fault::Ethernet | Fault::Ip)) | (Layer3::Other, _) => (0, 0),
            (Layer3::Ipv4, _) => (mapped(ip, 12), mapped(ip, 16)),
            (Layer3::Ipv6, _) => (number(ip, 8), number(ip, 24)),
        }
    }
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Headers")
            .field("layer3", &self.layer3())
            .field("fault", &self.fault())
            .field("places", &[self.ip(), self.transport(), self.end()])
            .field("protocol", &self.protocol())
            .field("is_fragment", &self.is_fragment())
            .field("ports", &self.ports())
            .finish()
    }
}

/// Returns the IPv4 address at offset `at` of `bytes`, mapped to IPv6.
#[inline]
fn mapped(bytes: &[u8], at: usize) -> u128 {
    let address = bytes.get(at..).and_then(|it| it.first_chunk::<4>());
    address.map_or(0, |it| Ipv4Addr::from(*it).to_ipv6_mapped().to_bits())
}

/// Returns the IPv6 address at offset `at` of `bytes` as a number.
#[inline]
fn number(bytes: &[u8], at: usize) -> u128 {
    let address = bytes.get(at..).and_then(|it| it.first_chunk());
    address.map_or(0, |it| u128::from_be_bytes(*it))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::UdpFlow;
    use std::net::IpAddr;

    fn flow(source: &str, destination: &str) -> Vec<u8> {
        let flow = UdpFlow {
            src_ip: source.parse().unwrap(),
            dst_ip: destination.parse().unwrap(),
            src_port: 1000,
            dst_port: 2000,
            ..UdpFlow::default()
        };
        // The size includes a frame check sequence of 4 bytes.
        flow.frame(104).unwrap()
    }

    fn v4() -> Vec<u8> {
        flow("198.18.0.1", "198.18.0.2")
    }

    fn v6() -> Vec<u8> {
        flow("2001:db8::1", "2001:db8::2")
    }

    /// Returns `frame` with `bytes` inserted at offset `at`.
    fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
        frame.splice(at..at, bytes.iter().copied());
        frame
    }

    /// Returns `frame` with its bytes from offset `at` on replaced by `bytes`.
    fn but(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    }

    /// Returns an IPv6 frame with the given extension headers, the first of which is `first`.
    fn extended(first: u8, extensions: &[u8]) -> Vec<u8> {
        let length = 46 + extensions.len() as u16;
        let frame = but(v6(), 18, &length.to_be_bytes());
        with(but(frame, 20, &[first]), 54, extensions)
    }

    #[test]
    fn offsets_of_a_tunnelled_packet_count_from_the_outer_frame() {
        let tunnel = crate::Tunnel {
            teid: 7,
            src_ip: "2001:db8::a".parse().unwrap(),
            dst_ip: "2001:db8::b".parse().unwrap(),
        };
        for (source, destination) in [("198.18.0.1", "198.18.0.2"), ("2001:db8::1", "2001:db8::2")]
        {
            let plain = flow(source, destination);
            // The offset after an IPv6 header and the headers of UDP and GTP-U.
            let ip_at = 14 + 40 + 8 + 8;
            let frame = [&vec![0xff; ip_at][..], &plain[14..]].concat();
            let (outside, inside) = (Headers::of(&plain), Headers::inside(&frame, ip_at));
            let by = ip_at - 14;
            assert_eq!(
                [inside.ip(), inside.transport(), inside.end()],
                [
                    outside.ip() + by,
                    outside.transport() + by,
                    outside.end() + by
                ]
            );
            assert_eq!(
                (inside.layer3(), inside.ports()),
                (outside.layer3(), outside.ports())
            );
            assert_eq!(inside.addresses_in(&frame), outside.addresses_in(&plain));
            let made = UdpFlow {
                src_ip: source.parse().unwrap(),
                dst_ip: destination.parse().unwrap(),
                ..UdpFlow::default()
            };
            let made = made
                .frame_as(crate::Protocol::Udp, Some(&tunnel), 200)
                .unwrap();
            assert_eq!(Headers::inside(&made, ip_at).layer3(), outside.layer3());
            for cut in 0..frame.len() {
                let cut = Headers::inside(&frame[..cut], ip_at);
                assert!(cut.fault().is_some() || cut.layer3() == Layer3::Other);
            }
        }
        assert_eq!(Headers::inside(&[0x45; 9], 9).layer3(), Layer3::Other);
        assert_eq!(
            Headers::inside(&vec![0x45; 70_000], 14).layer3(),
            Layer3::Other
        );
    }

    #[test]
    fn tagged_fragmented_and_malformed_frames_parse_to_expected_headers() {
        const UDP: u8 = 17;
        let tag = [0x81, 0, 0, 5];
        let service = [0x88, 0xa8, 0, 6, 0x81, 0, 0, 5];
        let hop_by_hop = [UDP, 0, 1, 4, 0, 0, 0, 0];
        let fragment = |offset_and_more: u16| {
            let [a, b] = offset_and_more.to_be_bytes();
            [UDP, 0, a, b, 0, 0, 0, 7]
        };
        // A routing header, then destination options of 16 bytes, then the first fragment.
        let mut three = vec![60, 0, 0, 0, 0, 0, 0, 0, 44, 1];
        three.extend([0; 14]);
        three.extend(fragment(1));
        // The columns are layer 3, fault, the offsets of IP header, transport and end, fragment, and ports.
        let some = Some((1000, 2000));
        let (ip4, ip6, other) = (Layer3::Ipv4, Layer3::Ipv6, Layer3::Other);
        #[rustfmt::skip]
        let cases = [
            ("IPv4", v4(), ip4, None, [14, 34, 100], false, some),
            ("IPv6", v6(), ip6, None, [14, 54, 100], false, some),
            ("longer than its packet", with(v4(), 100, &[0; 20]), ip4, None, [14, 34, 100], false, some),
            ("tag", with(v4(), 12, &tag), ip4, None, [18, 38, 104], false, some),
            ("two tags", with(v6(), 12, &service), ip6, None, [22, 62, 108], false, some),
            ("three tags", with(with(v4(), 12, &service), 12, &tag), other, None, [22, 0, 0], false, None),
            ("ARP", but(v4(), 12, &[8, 6]), other, None, [14, 0, 0], false, None),
            ("options", with(but(v4(), 14, &[0x46]), 34, &[1; 4]), ip4, None, [14, 38, 100], false, Some((1000, 2000))),
            ("TCP", but(v4(), 23, &[6]), ip4, None, [14, 34, 100], false, some),
            ("SCTP", but(v4(), 23, &[132]), ip4, None, [14, 34, 100], false, some),
            ("ICMP", but(v4(), 23, &[1]), ip4, None, [14, 34, 100], false, None),
            ("first fragment", but(v4(), 20, &[0x20, 0]), ip4, None, [14, 34, 100], true, some),
            ("later fragment", but(v4(), 20, &[0, 9]), ip4, None, [14, 34, 100], true, None),
            ("do not fragment", but(v4(), 20, &[0x40, 0]), ip4, None, [14, 34, 100], false, some),
            ("hop by hop", extended(0, &hop_by_hop), ip6, None, [14, 62, 108], false, some),
            ("three extensions", extended(43, &three), ip6, None, [14, 86, 132], true, some),
            ("later fragment of IPv6", extended(44, &fragment(8)), ip6, None, [14, 62, 108], true, None),
            ("extension beyond its end", extended(0, &[UDP, 255, 0, 0, 0, 0, 0, 0]), ip6, Some(Fault::Extension), [14, 0, 0], false, None),
            ("no frame", vec![0; 13], other, Some(Fault::Ethernet), [0, 0, 0], false, None),
            ("cut in a tag", with(v4(), 12, &tag)[..16].to_vec(), other, Some(Fault::Ethernet), [0, 0, 0], false, None),
            ("another version", but(v4(), 14, &[0x65]), ip4, Some(Fault::Ip), [14, 0, 0], false, None),
            ("header length of 16", but(v4(), 14, &[0x44]), ip4, Some(Fault::Ip), [14, 0, 0], false, None),
            ("total length over the frame's", but(v4(), 16, &[0xff, 0xff]), ip4, Some(Fault::Ip), [14, 0, 0], false, None),
            ("payload length over the frame's", but(v6(), 18, &[0, 47]), ip6, Some(Fault::Ip), [14, 0, 0], false, None),
            ("no room for ports", but(v4(), 16, &[0, 23]), ip4, Some(Fault::Ports), [14, 34, 37], false, None),
            ("longer than any frame", vec![0; 65_536], other, Some(Fault::Ethernet), [0, 0, 0], false, None),
        ];
        for (name, frame, layer3, fault, places, is_fragment, ports) in cases {
            let it = Headers::of(&frame);
            assert_eq!((it.layer3(), it.fault()), (layer3, fault), "{name}");
            assert_eq!([it.ip(), it.transport(), it.end()], places, "{name}");
            assert_eq!(
                (it.is_fragment(), it.ports()),
                (is_fragment, ports),
                "{name}"
            );
        }
    }

    proptest::proptest! {
        /// Parses frames with bytes replaced, truncated or extended.
        #[test]
        fn the_fast_parser_agrees_with_the_general_parser(
            len in 0_usize..130, changes in proptest::collection::vec((12_usize..40, 0_u8..), 0..4),
        ) {
            let mut frame = v4();
            for (at, byte) in changes {
                frame[at] = byte;
            }
            frame.resize(len, 0);
            if let Some(found) = Headers::usual(&frame) {
                proptest::prop_assert_eq!(found, Headers::any(&frame));
            }
        }
    }

    #[test]
    fn addresses_of_both_ip_versions_are_128_bit_numbers() {
        let number = |text: &str| match text.parse().unwrap() {
            IpAddr::V4(it) => it.to_ipv6_mapped().to_bits(),
            IpAddr::V6(it) => it.to_bits(),
        };
        for (frame, source, destination) in [
            (v4(), "198.18.0.1", "198.18.0.2"),
            (v6(), "2001:db8::1", "2001:db8::2"),
        ] {
            let it = Headers::of(&frame);
            let found = it.addresses_in(&frame);
            assert_eq!(found, (number(source), number(destination)));
            assert_eq!(it.transport_in(&frame).len(), it.end() - it.transport());
            // If a caller passes a shorter frame than the parsed one, there are no addresses and no layer 4.
            assert_eq!(it.addresses_in(&frame[..20]), (0, 0));
            assert!(it.transport_in(&frame[..20]).is_empty());
        }
        assert_eq!(Headers::of(&[0; 60]).addresses_in(&[7; 60]), (0, 0));
    }

    #[test]
    fn parsed_headers_fit_in_a_quarter_of_a_cache_line() {
        assert!(size_of::<Headers>() <= 16);
    }
}
