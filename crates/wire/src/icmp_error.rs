//! ICMP errors (RFC 792, RFC 1812) and ICMPv6 errors (RFC 4443) as complete frames for the sender of an undeliverable
//! packet. The module also decides when no error may be sent.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::resolution::SHORTEST_BYTES;
use crate::{
    EtherType, Ethernet, EthernetRepr, Headers, Icmpv4, IpProtocol, Ipv4, Ipv4Repr, Ipv6, Ipv6Repr,
    Layer3, Sum, checksum,
};

/// The length of the longest frame that [`icmp_error`] writes, with two VLAN tags, in bytes.
pub const LONGEST_BYTES: usize = 22 + LONGEST_V6_BYTES;
/// The maximum lengths in bytes of ICMP error packets over IPv4 and IPv6: the sizes that every host accepts (RFC 1812
/// section 4.3.2.3, RFC 4443 section 2.4 c).
const LONGEST_V4_BYTES: usize = 576;
const LONGEST_V6_BYTES: usize = 1280;
const HEADER_BYTES: usize = 8;
/// The traffic class of ICMP errors: the precedence "internetwork control" (RFC 1812 section 4.3.2.5).
const CONTROL: u8 = 0xc0;
const HOPS: u8 = 64;
/// The lowest type of ICMPv6 messages that are not errors (RFC 4443 section 2.1).
const FIRST_NO_ERROR_V6: u8 = 128;
const REDIRECT_V6: u8 = 137;
const ERRORS_V4: [u8; 5] = [3, 4, 5, 11, 12];

/// The reason why a packet is not forwarded or delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IcmpError {
    /// The packet's hop limit is exceeded.
    TimeExceeded,
    /// There is no route to the destination.
    NoRoute,
    /// The destination host, or the next hop, does not answer ARP or neighbour discovery.
    NoNeighbour,
    /// Forwarding the packet is prohibited.
    Prohibited,
    /// No program listens at the destination port.
    NoPort,
    /// The packet must not be fragmented and is longer than this MTU: a number of bytes, counted from the IP header.
    TooBig(u16),
}

impl IcmpError {
    /// Returns the type, the code, and the four bytes after the checksum of the ICMP error.
    fn head(self, is_v4: bool) -> (u8, u8, [u8; 4]) {
        let none = [0; 4];
        match (self, is_v4) {
            (Self::TimeExceeded, true) => (11, 0, none),
            (Self::NoRoute, true) => (3, 0, none),
            (Self::NoNeighbour, true) => (3, 1, none),
            (Self::Prohibited, true) => (3, 13, none),
            (Self::NoPort, true) => (3, 3, none),
            (Self::TooBig(fits), true) => {
                let [a, b] = fits.to_be_bytes();
                // The next-hop MTU follows two zero bytes (RFC 1191 section 4).
                (3, 4, [0, 0, a, b])
            }
            (Self::TimeExceeded, false) => (3, 0, none),
            (Self::NoRoute, false) => (1, 0, none),
            (Self::NoNeighbour, false) => (1, 3, none),
            (Self::Prohibited, false) => (1, 1, none),
            (Self::NoPort, false) => (1, 4, none),
            (Self::TooBig(fits), false) => (2, 0, u32::from(fits).to_be_bytes()),
        }
    }
}

/// Writes an ICMP error from address `from` to the sender of `frame`. The error is addressed to the device from which
/// the frame came. Returns the length of the error frame in bytes.
///
/// Returns None if no error may be sent: about ICMP errors and redirects, fragments other than the first, and packets
/// that are not from one sender to one receiver. Nor is an error sent about IPv4 packets that are too big but may be
/// fragmented (RFC 1122 section 3.2.2, RFC 1812 section 4.3.2.7, RFC 4443 section 2.4 e). Also returns None if the IP
/// version of `from` is not that of the frame, or if the frame's IP header is invalid.
pub fn icmp_error(
    frame: &[u8],
    error: IcmpError,
    from: IpAddr,
    reply: &mut [u8; LONGEST_BYTES],
) -> Option<usize> {
    let headers = Headers::of(frame);
    let came = Ethernet::new(frame).ok()?;
    let mut ethernet = EthernetRepr::parse(&came).ok()?;
    let is_for_one = !ethernet.destination.is_multicast();
    (ethernet.destination, ethernet.source) = (ethernet.source, ethernet.destination);
    let packet = frame.get(headers.ip()..)?;
    let is_written = match (headers.layer3(), from) {
        (Layer3::Ipv4, IpAddr::V4(from)) if is_for_one => {
            v4(&headers, packet, error, from, &ethernet, reply)
        }
        (Layer3::Ipv6, IpAddr::V6(from)) if is_for_one || matches!(error, IcmpError::TooBig(_)) => {
            v6(packet, error, from, &ethernet, reply)
        }
        _ => None,
    };
    let length = ethernet.header_len_bytes() + is_written?;
    Some(length.max(SHORTEST_BYTES))
}

/// Writes an IPv4 packet with the ICMP error. Returns the length of the packet in bytes, without the Ethernet header;
/// None if no error may be sent.
fn v4(
    headers: &Headers,
    packet: &[u8],
    error: IcmpError,
    from: Ipv4Addr,
    ethernet: &EthernetRepr,
    reply: &mut [u8; LONGEST_BYTES],
) -> Option<usize> {
    let ip = Ipv4::new(packet).ok()?;
    let is_one = |it: Ipv4Addr| !it.is_multicast() && !it.is_broadcast() && !it.is_unspecified();
    let sender = ip.source();
    let kind = ip.payload().first();
    let is_error =
        headers.protocol() == IpProtocol::ICMP && kind.is_none_or(|kind| ERRORS_V4.contains(kind));
    let may_be_cut = matches!(error, IcmpError::TooBig(_)) && !ip.dont_fragment();
    if is_error
        || may_be_cut
        || ip.fragment_offset_bytes() != 0
        || !is_one(sender)
        || sender.is_loopback()
        || !is_one(ip.destination())
    {
        return None;
    }
    let whole = ip.header_len_bytes() + ip.payload().len();
    let quoted = &packet[..whole.min(LONGEST_V4_BYTES - 20 - HEADER_BYTES)];
    let repr = Ipv4Repr {
        traffic_class: CONTROL,
        identification: 0,
        dont_fragment: true,
        more_fragments: false,
        fragment_offset_bytes: 0,
        ttl: HOPS,
        protocol: IpProtocol::ICMP,
        source: from,
        destination: sender,
        options: &[],
        payload_len_bytes: HEADER_BYTES + quoted.len(),
    };
    let mut ethernet = begun(ethernet, EtherType::IPV4, reply)?;
    let mut ip = repr.emit(ethernet.payload_mut()).ok()?;
    let message = ip.payload_mut();
    write(message, error.head(true), quoted);
    Icmpv4::new(message).ok()?.fill_checksum();
    Some(20 + HEADER_BYTES + quoted.len())
}

/// Writes an IPv6 packet with the ICMP error. Returns the length of the packet in bytes, without the Ethernet header;
/// None if no error may be sent.
#[expect(
    clippy::cast_possible_truncation,
    reason = "an error is at most as long as the least MTU"
)]
fn v6(
    packet: &[u8],
    error: IcmpError,
    from: Ipv6Addr,
    ethernet: &EthernetRepr,
    reply: &mut [u8; LONGEST_BYTES],
) -> Option<usize> {
    let ip = Ipv6::new(packet).ok()?;
    let sender = ip.source();
    let transport = ip.transport().ok()?;
    let kind = transport.payload.first();
    let is_error = transport.protocol == IpProtocol::ICMPV6
        && kind.is_none_or(|kind| *kind < FIRST_NO_ERROR_V6 || *kind == REDIRECT_V6);
    let is_later = transport.fragment.is_some_and(|it| it.offset_bytes != 0);
    let is_for_many = ip.destination().is_multicast() && !matches!(error, IcmpError::TooBig(_));
    if is_error
        || is_later
        || is_for_many
        || sender.is_unspecified()
        || sender.is_multicast()
        || sender.is_loopback()
    {
        return None;
    }
    let header = crate::ipv6::HEADER_LEN_BYTES;
    let whole = header + ip.payload().len();
    let quoted = &packet[..whole.min(LONGEST_V6_BYTES - header - HEADER_BYTES)];
    let length = HEADER_BYTES + quoted.len();
    let repr = Ipv6Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: IpProtocol::ICMPV6,
        hop_limit: HOPS,
        source: from,
        destination: sender,
        payload_len_bytes: length,
    };
    let mut ethernet = begun(ethernet, EtherType::IPV6, reply)?;
    let mut ip = repr.emit(ethernet.payload_mut()).ok()?;
    let message = ip.payload_mut();
    write(message, error.head(false), quoted);
    let pseudo = checksum::pseudo_header_v6(from, sender, IpProtocol::ICMPV6, length as u32);
    let checksum = pseudo.combine(Sum::of(message)).checksum();
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    Some(header + length)
}

fn begun<'a>(
    header: &EthernetRepr,
    ethertype: EtherType,
    reply: &'a mut [u8; LONGEST_BYTES],
) -> Option<Ethernet<&'a mut [u8]>> {
    reply.fill(0);
    let header = EthernetRepr {
        ethertype,
        ..*header
    };
    header.emit(reply).ok()
}

fn write(message: &mut [u8], (kind, code, rest): (u8, u8, [u8; 4]), quoted: &[u8]) {
    message[..2].copy_from_slice(&[kind, code]);
    message[4..HEADER_BYTES].copy_from_slice(&rest);
    message[HEADER_BYTES..HEADER_BYTES + quoted.len()].copy_from_slice(quoted);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{Mac, Protocol, UdpFlow};

    const ALL: [IcmpError; 6] = [
        IcmpError::TimeExceeded,
        IcmpError::NoRoute,
        IcmpError::NoNeighbour,
        IcmpError::Prohibited,
        IcmpError::NoPort,
        IcmpError::TooBig(1400),
    ];

    fn own(v6: bool) -> IpAddr {
        let text = if v6 { "2001:db8::fe" } else { "192.0.2.254" };
        text.parse().unwrap()
    }

    fn from_to(source: &str, destination: &str, size: usize) -> Vec<u8> {
        let flow = UdpFlow {
            src_ip: source.parse().unwrap(),
            dst_ip: destination.parse().unwrap(),
            ..UdpFlow::default()
        };
        let mut frame = flow.frame(size).unwrap();
        if frame[12] == 8 {
            // The flag "don't fragment".
            frame[20] = 0x40;
        }
        frame
    }

    fn packet(v6: bool, size: usize) -> Vec<u8> {
        match v6 {
            false => from_to("198.18.0.1", "198.18.0.2", size),
            true => from_to("2001:db8::1", "2001:db8::2", size),
        }
    }

    fn told(frame: &[u8], error: IcmpError) -> Option<Vec<u8>> {
        let v6 = Headers::of(frame).layer3() == Layer3::Ipv6;
        let mut reply = [7; LONGEST_BYTES];
        let length = icmp_error(frame, error, own(v6), &mut reply)?;
        Some(reply[..length].to_vec())
    }

    #[test]
    fn icmp_errors_contain_a_maximum_of_576_or_1280_bytes() {
        for (v6, size, error) in [false, true].into_iter().flat_map(|v6| {
            let sizes = [80, 600, 1300, 1518];
            sizes
                .into_iter()
                .flat_map(move |size| ALL.map(|error| (v6, size, error)))
        }) {
            let frame = packet(v6, size);
            let reply = told(&frame, error).unwrap();
            let (came, went) = (
                Ethernet::new(&frame[..]).unwrap(),
                Ethernet::new(&reply[..]).unwrap(),
            );
            assert_eq!(
                (went.source(), went.destination()),
                (came.destination(), came.source())
            );
            let (kind, code, rest) = error.head(!v6);
            let message = if v6 {
                let ip = Ipv6::new(went.payload()).unwrap();
                assert_eq!(IpAddr::V6(ip.source()), own(true));
                assert_eq!(ip.destination(), "2001:db8::1".parse::<Ipv6Addr>().unwrap());
                let pseudo = ip.pseudo_header(IpProtocol::ICMPV6, ip.payload().len() as u32);
                assert!(pseudo.combine(Sum::of(ip.payload())).is_valid());
                assert!(40 + ip.payload().len() <= 1280);
                ip.payload().to_vec()
            } else {
                let ip = Ipv4::new(went.payload()).unwrap();
                ip.verify_checksum().unwrap();
                assert_eq!(IpAddr::V4(ip.source()), own(false));
                assert_eq!(ip.destination(), Ipv4Addr::new(198, 18, 0, 1));
                assert!(Sum::of(ip.payload()).is_valid());
                assert!(20 + ip.payload().len() <= 576);
                ip.payload().to_vec()
            };
            assert_eq!(
                (message[0], message[1], &message[4..8]),
                (kind, code, &rest[..])
            );
            let quoted = &message[8..];
            assert_eq!(quoted, &came.payload()[..quoted.len()]);
            let most = if v6 { 1280 - 48 } else { 576 - 28 };
            assert_eq!(
                quoted.len(),
                came.payload().len().min(most),
                "{v6} {size} {error:?}"
            );
        }
    }

    #[test]
    fn an_icmp_error_keeps_vlan_tags_and_omits_padding() {
        let mut frame = packet(false, 64);
        frame.extend([0; 20]);
        frame.splice(12..12, [0x81, 0, 0, 5]);
        let reply = told(&frame, IcmpError::NoRoute).unwrap();
        assert_eq!(reply[12..18], [0x81, 0, 0, 5, 8, 0]);
        // 46 bytes of a packet, after 28 bytes of headers.
        assert_eq!(reply.len(), 18 + 28 + 46);
    }

    #[test]
    fn no_icmp_error_is_sent_for_multicast_or_icmp_errors() {
        let icmp = |kind: u8| {
            let flow = UdpFlow::default();
            let mut frame = flow.frame_as(Protocol::IcmpEcho, None, 100).unwrap();
            frame[34] = kind;
            frame
        };
        let icmpv6 = |kind: u8| {
            let mut frame = packet(true, 100);
            frame[20] = 58;
            frame[54] = kind;
            frame
        };
        let but = |v6: bool, at: usize, bytes: &[u8]| {
            let mut frame = packet(v6, 100);
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        let broadcast = Mac([0xff; 6]);
        let never = [
            ("to all stations", but(false, 0, &broadcast.0)),
            ("an unreachable", icmp(3)),
            ("a redirect", icmp(5)),
            ("a time exceeded", icmp(11)),
            ("a later fragment", but(false, 20, &[0x20, 9])),
            ("from nobody", from_to("0.0.0.0", "198.18.0.2", 100)),
            ("from all", from_to("255.255.255.255", "198.18.0.2", 100)),
            ("from a group", from_to("224.0.0.9", "198.18.0.2", 100)),
            ("from itself", from_to("127.0.0.1", "198.18.0.2", 100)),
            ("to a group", from_to("198.18.0.1", "224.0.0.9", 100)),
            ("to all", from_to("198.18.0.1", "255.255.255.255", 100)),
            ("an ICMPv6 error", icmpv6(1)),
            ("an ICMPv6 redirect", icmpv6(137)),
            ("from nobody, IPv6", from_to("::", "2001:db8::2", 100)),
            ("from a group, IPv6", from_to("ff02::5", "2001:db8::2", 100)),
            ("of a wrong length", but(false, 16, &[0xff, 0xff])),
            ("no IP", but(false, 12, &[8, 6])),
            ("cut short", packet(false, 100)[..20].to_vec()),
        ];
        for (name, frame) in never {
            for error in ALL {
                assert_eq!(told(&frame, error), None, "{name}, {error:?}");
            }
        }
        // Errors may be sent about these messages, which are not errors themselves.
        for frame in [icmp(8), icmp(0), icmpv6(128)] {
            assert!(told(&frame, IcmpError::TimeExceeded).is_some());
        }
        // Multicast senders get this error for path MTU discovery, but only over IPv6, where routers do not fragment.
        let group = from_to("2001:db8::1", "ff05::9", 100);
        assert!(told(&group, IcmpError::TooBig(1280)).is_some());
        assert_eq!(told(&group, IcmpError::TimeExceeded), None);
        // A packet that may be fragmented causes no error.
        let may_be_cut = but(false, 20, &[0, 0]);
        assert_eq!(told(&may_be_cut, IcmpError::TooBig(576)), None);
        assert!(told(&may_be_cut, IcmpError::NoRoute).is_some());
        // An address of the other IP version.
        let mut reply = [0; LONGEST_BYTES];
        let other = icmp_error(
            &packet(false, 100),
            IcmpError::NoRoute,
            own(true),
            &mut reply,
        );
        assert_eq!(other, None);
    }
}
