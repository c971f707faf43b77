//! The headers of a packet inside a tunnel. Supported tunnels over IP are IP in IP (RFC 2003, 2473, 4213), and GRE (RFC
//! 2784, 2890) that carries IP, Ethernet or ERSPAN II (draft-foschiano-erspan). Supported tunnels over UDP are GTP-U
//! (3GPP TS 29.281), VXLAN (RFC 7348) and Teredo (RFC 4380). NSH (RFC 8300) may be between Ethernet and IP.

use taut_wire::gtpu::{MessageType, UDP_PORT};
use taut_wire::{EtherType, Ethernet, Gtpu, Headers, IpProtocol, Layer3};

/// The limit on nested tunnels that are parsed.
const MOST_LEVELS: usize = 3;
/// The limit on Ethernet and NSH headers between two IP headers.
const MOST_LINK_HEADERS: usize = 3;

const IPV4_IN_IP: IpProtocol = IpProtocol(4);
const IPV6_IN_IP: IpProtocol = IpProtocol(41);
const GRE: IpProtocol = IpProtocol(47);
const VXLAN_PORT: u16 = 4789;
const TEREDO_PORT: u16 = 3544;

const TRANSPARENT_ETHERNET: EtherType = EtherType(0x6558);
const ERSPAN_2: EtherType = EtherType(0x88be);
const NSH: EtherType = EtherType(0x894f);

const UDP_BYTES: usize = 8;
const VXLAN_BYTES: usize = 8;
const ERSPAN_BYTES: usize = 8;
/// The total length of nonce and confirmation byte in a Teredo authentication, bytes. The next constant is the length
/// of an origin indication.
const TEREDO_NONCE_BYTES: usize = 9;
const TEREDO_ORIGIN_BYTES: usize = 8;

/// The content of a tunnel, and its offset in the frame.
#[derive(Debug, Clone, Copy)]
enum Carried {
    Ip(usize),
    Ethernet(usize),
    Nsh(usize),
}

/// Returns the headers of the innermost packet in tunnels, and the frame up to the end of that packet; none if there is
/// no complete packet.
pub(super) fn inside<'a>(headers: &Headers, frame: &'a [u8]) -> Option<(Headers, &'a [u8])> {
    let mut found = None;
    for _ in 0..MOST_LEVELS {
        let (headers, frame) = found.unwrap_or((*headers, frame));
        match next(&headers, frame) {
            None => break,
            further => found = further,
        }
    }
    found
}

/// Returns the headers of the innermost packet as [`inside`] does, if tunnels are to be inspected. Otherwise, and for
/// frames without a tunnel, returns the frame's outer headers.
pub(super) fn looked_into<'a>(
    is_wanted: bool,
    headers: &Headers,
    frame: &'a [u8],
) -> (Headers, &'a [u8]) {
    let inside = is_wanted.then(|| inside(headers, frame)).flatten();
    inside.unwrap_or((*headers, frame))
}

/// Returns the headers of the packet in one tunnel; none without a tunnel or a valid packet in it. Only GTP-U may carry
/// a packet with an inconsistent length. In other tunnels such bytes may resemble a packet by chance, so the outer
/// packet is inspected instead.
fn next<'a>(headers: &Headers, frame: &'a [u8]) -> Option<(Headers, &'a [u8])> {
    if headers.fault().is_some() || headers.is_fragment() {
        return None;
    }
    if headers.layer3() == Layer3::Other {
        let kind = frame.get(headers.ip().checked_sub(2)?..headers.ip())?;
        let is_nsh = kind == NSH.0.to_be_bytes();
        return is_nsh
            .then(|| read(frame, Carried::Nsh(headers.ip())))
            .flatten();
    }
    let at = headers.transport();
    let frame = frame.get(..headers.end())?;
    let carried = match headers.protocol() {
        IPV4_IN_IP if version(frame, at) == 4 => Carried::Ip(at),
        IPV6_IN_IP if version(frame, at) == 6 => Carried::Ip(at),
        GRE => gre(frame, at)?,
        IpProtocol::UDP => return udp(headers, frame, at),
        _ => return None,
    };
    read(frame, carried)
}

fn version(frame: &[u8], at: usize) -> u8 {
    frame.get(at).map_or(0, |byte| byte >> 4)
}

/// Returns the headers of the packet that a datagram to or from a tunnel port carries, and the frame up to the end of
/// that packet. Returns none without such a packet.
fn udp<'a>(headers: &Headers, frame: &'a [u8], at: usize) -> Option<(Headers, &'a [u8])> {
    let (from, to) = headers.ports()?;
    let datagram = frame.get(at..)?;
    let head = datagram.first_chunk::<UDP_BYTES>()?;
    let len = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let payload = datagram.get(UDP_BYTES..len)?;
    let (frame, at) = (frame.get(..at + len)?, at + UDP_BYTES);
    match (from, to) {
        (_, UDP_PORT) => gtpu(frame, at, payload),
        (_, VXLAN_PORT) => {
            let has_network = payload.first_chunk::<VXLAN_BYTES>()?[0] & 0x08 != 0;
            let carried = has_network.then_some(Carried::Ethernet(at + VXLAN_BYTES));
            read(frame, carried?)
        }
        (TEREDO_PORT, _) | (_, TEREDO_PORT) => read(frame, Carried::Ip(at + teredo(payload)?)),
        _ => None,
    }
}

/// Returns the headers of the user's packet in a G-PDU of GTP-U, and the frame up to the end of that packet; none for
/// other messages.
fn gtpu<'a>(frame: &'a [u8], at: usize, payload: &[u8]) -> Option<(Headers, &'a [u8])> {
    let message = Gtpu::new(payload).ok()?;
    if message.message_type() != MessageType::G_PDU {
        return None;
    }
    let ip_at = at + message.header_len_bytes();
    let frame = frame.get(..ip_at + message.payload().len())?;
    let inside = Headers::inside(frame, ip_at);
    (inside.layer3() != Layer3::Other).then_some((inside, frame))
}

/// Returns the number of bytes before the packet in a Teredo datagram, where an authentication and an origin may
/// precede it (RFC 4380 section 5.1.1). Returns none without an IPv6 packet.
fn teredo(payload: &[u8]) -> Option<usize> {
    let mut at = 0;
    if let [0, 1, identifier, authentication, ..] = payload {
        at = 4 + usize::from(*identifier) + usize::from(*authentication) + TEREDO_NONCE_BYTES;
    }
    if payload.get(at..)?.starts_with(&[0, 0]) {
        at += TEREDO_ORIGIN_BYTES;
    }
    (version(payload, at) == 6).then_some(at)
}

/// Returns the content after a GRE header of version 0, without the optional checksum, key and sequence number. Returns
/// none for an unsupported content, and for a header with routes.
fn gre(frame: &[u8], at: usize) -> Option<Carried> {
    const HAS_CHECKSUM: u16 = 0x8000;
    const HAS_KEY: u16 = 0x2000;
    const HAS_SEQUENCE: u16 = 0x1000;
    const OPTIONAL: [u16; 3] = [HAS_CHECKSUM, HAS_KEY, HAS_SEQUENCE];
    let &[a, b, c, d] = frame.get(at..)?.first_chunk()?;
    let flags = u16::from_be_bytes([a, b]);
    if flags & !(HAS_CHECKSUM | HAS_KEY | HAS_SEQUENCE) != 0 {
        return None;
    }
    let optional = OPTIONAL.iter().filter(|it| flags & **it != 0).count();
    let at = at + 4 + 4 * optional;
    match EtherType(u16::from_be_bytes([c, d])) {
        EtherType::IPV4 if version(frame, at) == 4 => Some(Carried::Ip(at)),
        EtherType::IPV6 if version(frame, at) == 6 => Some(Carried::Ip(at)),
        TRANSPARENT_ETHERNET => Some(Carried::Ethernet(at)),
        NSH => Some(Carried::Nsh(at)),
        // The type II header is present if GRE has a sequence number. Its version field holds 1.
        ERSPAN_2 if flags & HAS_SEQUENCE != 0 && version(frame, at) == 1 => {
            Some(Carried::Ethernet(at + ERSPAN_BYTES))
        }
        _ => None,
    }
}

/// Parses the headers in a tunnel up to IP. Returns them and the frame; none without a valid IP packet.
fn read(frame: &[u8], mut carried: Carried) -> Option<(Headers, &[u8])> {
    for _ in 0..MOST_LINK_HEADERS {
        carried = match carried {
            Carried::Ip(at) => {
                let inside = Headers::inside(frame, at);
                let is_whole = inside.layer3() != Layer3::Other && inside.fault().is_none();
                return is_whole.then_some((inside, frame));
            }
            Carried::Ethernet(at) => {
                let ethernet = Ethernet::new(frame.get(at..)?).ok()?;
                let at = at + ethernet.header_len_bytes();
                match ethernet.ethertype() {
                    EtherType::IPV4 | EtherType::IPV6 => Carried::Ip(at),
                    NSH => Carried::Nsh(at),
                    _ => return None,
                }
            }
            Carried::Nsh(at) => nsh(frame, at)?,
        };
    }
    None
}

/// Returns the content after an NSH header of version 0; none if it is neither IP nor Ethernet.
fn nsh(frame: &[u8], at: usize) -> Option<Carried> {
    const WORD_BYTES: usize = 4;
    const LEAST_WORDS: usize = 2;
    const IPV4: u8 = 1;
    const IPV6: u8 = 2;
    const ETHERNET: u8 = 3;
    let &[first, second, _, protocol] = frame.get(at..)?.first_chunk()?;
    let words = usize::from(second & 0x3f);
    if first >> 6 != 0 || words < LEAST_WORDS {
        return None;
    }
    let at = at + words * WORD_BYTES;
    match protocol {
        IPV4 | IPV6 => Some(Carried::Ip(at)),
        ETHERNET => Some(Carried::Ethernet(at)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;
    use taut_wire::{Protocol, Tunnel, UdpFlow};

    #[test]
    fn only_complete_unfragmented_gtp_user_packets_are_inspected() {
        let flow = UdpFlow::default();
        let tunnel = Tunnel {
            teid: 9,
            src_ip: "192.0.2.1".parse().unwrap(),
            dst_ip: "192.0.2.2".parse().unwrap(),
        };
        let frame = flow.frame_as(Protocol::Udp, Some(&tunnel), 200).unwrap();
        let look = |frame: &[u8]| inside(&Headers::of(frame), frame).map(|it| (it.0, it.1.len()));
        let (headers, end) = look(&frame).unwrap();
        assert_eq!(headers.ports(), Some((flow.src_port, flow.dst_port)));
        assert_eq!((headers.ip(), headers.end(), end), (50, 196, 196));
        let changed = |at: usize, bytes: &[u8]| {
            let mut frame = frame.clone();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        // The cases are: another port, an echo, another version, a length beyond the datagram, no IP, and a fragment.
        for (at, bytes) in [
            (36, &[8, 105][..]),
            (43, &[1]),
            (42, &[0x50]),
            (44, &[255, 255]),
            (38, &[255, 255]),
            (50, &[0x15]),
            (20, &[0x20, 0]),
        ] {
            assert_eq!(look(&changed(at, bytes)), None, "{at}");
        }
        // This packet claims a length beyond its tunnel.
        let (headers, _) = look(&changed(52, &[255, 255])).unwrap();
        assert!(headers.fault().is_some());
        for cut in 0..frame.len() {
            assert_eq!(look(&frame[..cut]), None, "{cut}");
        }
        assert_eq!(
            looked_into(false, &Headers::of(&frame), &frame).0,
            Headers::of(&frame)
        );
    }

    const PORTS: (u16, u16) = (1111, 2222);

    /// Returns an IP packet of the given version and protocol.
    fn ip(version: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
        let builder = match version {
            4 => PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64),
            _ => PacketBuilder::ipv6([1; 16], [2; 16], 64),
        };
        let mut packet = Vec::new();
        builder
            .write(&mut packet, etherparse::IpNumber(protocol), payload)
            .unwrap();
        packet
    }

    fn udp(version: u8, to: u16, payload: &[u8]) -> Vec<u8> {
        let builder = match version {
            4 => PacketBuilder::ipv4([10, 0, 0, 1], [10, 0, 0, 2], 64).udp(PORTS.0, to),
            _ => PacketBuilder::ipv6([1; 16], [2; 16], 64).udp(PORTS.0, to),
        };
        let mut packet = Vec::new();
        builder.write(&mut packet, payload).unwrap();
        packet
    }

    fn ethertype(packet: &[u8]) -> [u8; 2] {
        match packet[0] >> 4 {
            4 => [0x08, 0],
            _ => [0x86, 0xdd],
        }
    }

    fn ethernet(packet: &[u8], tags: usize) -> Vec<u8> {
        let tags = [0x81, 0, 0, 7].repeat(tags);
        [&[2; 12][..], &tags, &ethertype(packet), packet].concat()
    }

    fn with(header: &[u8], packet: &[u8]) -> Vec<u8> {
        [header, packet].concat()
    }

    /// Returns a tunnel of the given kind around a packet; the tunnel's own IP version is `version`.
    fn tunnelled(kind: usize, version: u8, packet: &[u8]) -> Vec<u8> {
        let is_six = packet[0] >> 4 == 6;
        let [high, low] = ethertype(packet);
        let gre = |header: &[u8], packet: &[u8]| ip(version, 47, &with(header, packet));
        match kind {
            0 => ip(version, if is_six { 41 } else { 4 }, packet),
            1 => gre(&[0, 0, high, low], packet),
            2 => gre(&[&[0xb0, 0, high, low][..], &[9; 12]].concat(), packet),
            3 => gre(&[0x20, 0, 0x65, 0x58, 0, 0, 0, 5], &ethernet(packet, 1)),
            4 => gre(
                &[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x10, 0, 0, 0, 0, 0, 0, 0],
                &ethernet(packet, 0),
            ),
            5 => udp(
                version,
                VXLAN_PORT,
                &with(&[8, 0, 0, 0, 0, 0, 9, 0], &ethernet(packet, 2)),
            ),
            6 => {
                let len = (packet.len() as u16).to_be_bytes();
                let header = [0x30, 0xff, len[0], len[1], 0, 0, 0, 7];
                udp(version, UDP_PORT, &with(&header, packet))
            }
            7 => {
                let next = if is_six { 2 } else { 1 };
                let header = [0x0f, 0xc2, 1, next, 0, 0, 1, 0xff];
                gre(&[0, 0, 0x89, 0x4f], &with(&header, packet))
            }
            // The other kinds of tunnels carry only IPv6.
            _ if !is_six => ip(version, 4, packet),
            8 => udp(version, TEREDO_PORT, packet),
            _ => {
                let authentication = [&[0, 1, 2, 3][..], &[7; 2 + 3 + 9], &[0; 8]].concat();
                udp(version, TEREDO_PORT, &with(&authentication, packet))
            }
        }
    }

    fn look(frame: &[u8]) -> Option<(Headers, &[u8])> {
        inside(&Headers::of(frame), frame)
    }

    proptest! {
        /// For any nesting of tunnels, the innermost packet is found complete.
        #[test]
        fn the_innermost_packet_of_up_to_three_tunnels_is_found(
            tunnels in proptest::collection::vec((0..10_usize, prop_oneof![Just(4_u8), Just(6)]), 1..=3),
            version in prop_oneof![Just(4_u8), Just(6)],
            payload in proptest::collection::vec(any::<u8>(), 0..40),
            padding in 0..20_usize,
            cut in any::<proptest::sample::Index>(),
        ) {
            let mut packet = udp(version, PORTS.1, &payload);
            for (kind, outer) in &tunnels {
                packet = tunnelled(*kind, *outer, &packet);
            }
            let mut frame = ethernet(&packet, 0);
            let whole = frame.len();
            frame.resize(whole + padding, 0);
            let (headers, inner) = look(&frame).unwrap();
            prop_assert_eq!(headers.ports(), Some(PORTS), "{:?}", headers);
            prop_assert!(headers.transport_in(inner).ends_with(&payload));
            prop_assert!(inner.len() <= whole);
            // A further level is not parsed.
            if tunnels.len() == MOST_LEVELS {
                let frame = ethernet(&ip(4, if packet[0] >> 4 == 6 { 41 } else { 4 }, &packet), 0);
                prop_assert_ne!(look(&frame).unwrap().0.ports(), Some(PORTS));
            }
            let cut = &frame[..cut.index(whole)];
            prop_assert!(look(cut).is_none());
        }

        /// With arbitrary bytes in place of tunnel headers, a packet that is found ends within the frame.
        #[test]
        fn inner_packets_found_in_arbitrary_bytes_end_within_the_frame(
            kind in 0..10_usize,
            bytes in proptest::collection::vec(any::<u8>(), 0..80),
            places in proptest::collection::vec((34..140_usize, any::<u8>()), 0..6),
        ) {
            let mut frame = ethernet(&tunnelled(kind, 4, &udp(6, PORTS.1, &bytes)), 0);
            for (at, byte) in places {
                if let Some(there) = frame.get_mut(at) {
                    *there = byte;
                }
            }
            if let Some((headers, inner)) = look(&frame) {
                prop_assert!(headers.end() <= inner.len() && inner.len() <= frame.len());
            }
        }
    }

    #[test]
    fn packets_that_only_resemble_a_tunnel_are_not_decapsulated() {
        let inner = udp(4, PORTS.1, b"inner");
        let gre = |header: &[u8], packet: &[u8]| ethernet(&ip(4, 47, &with(header, packet)), 0);
        let erspan = ethernet(&inner, 0);
        let mut fragment = ethernet(&ip(4, 4, &inner), 0);
        fragment[20] = 0x20;
        for (what, frame) in [
            ("version 1", gre(&[0, 1, 8, 0], &inner)),
            ("routes", gre(&[0x40, 0, 8, 0, 0, 0, 0, 0], &inner)),
            ("other version", gre(&[0, 0, 0x86, 0xdd], &inner)),
            ("no number", gre(&[0, 0, 0x88, 0xbe], &erspan)),
            (
                "other ERSPAN",
                gre(&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1, 0x20], &erspan),
            ),
            (
                "no network",
                ethernet(&udp(4, VXLAN_PORT, &with(&[0; 8], &erspan)), 0),
            ),
            ("IPv4", ethernet(&udp(4, TEREDO_PORT, &inner), 0)),
            ("other IP", ethernet(&ip(4, 41, &inner), 0)),
            ("a fragment", fragment),
            ("no tunnel", ethernet(&inner, 0)),
            ("nothing", Vec::new()),
        ] {
            assert_eq!(look(&frame), None, "{what}");
        }
        // NSH directly follows Ethernet.
        let header = [0x0f, 0xc2, 1, 1, 0, 0, 1, 0xff];
        let mut frame = ethernet(&with(&header, &inner), 0);
        frame[12..14].copy_from_slice(&NSH.0.to_be_bytes());
        assert_eq!(look(&frame).unwrap().0.ports(), Some(PORTS));
        frame[15] = 1;
        assert_eq!(look(&frame), None);
    }
}
