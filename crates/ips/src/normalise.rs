//! The first step of the inspection. It finds the packet in a frame that a receiver would accept, and parses the header
//! fields that rules test.

use super::key::Key;
use super::outcome::Outcome;
use taut_inspect::anomaly::Anomaly;
use taut_inspect::evaluate::{Packet, Vlans};
use taut_inspect::tcp::{SegmentHead, scale_of, timestamp_of};
use taut_sys::sum_of_halves;
use taut_wire::checksum::update_u16;
use taut_wire::{Headers, Layer3, Sum};

/// Protocol number of TCP.
pub(super) const TCP: u8 = 6;
/// Protocol number of UDP.
pub(super) const UDP: u8 = 17;
/// Port of DNS.
pub(super) const DNS: u16 = 53;
const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// The parsed fields of a packet. The structure is large, so the steps fill it in and read it without copying it.
#[derive(Default)]
pub(super) struct Facts<'a> {
    pub packet: Packet<'a>,
    /// The fields of a TCP segment that the TCP state needs; none for other protocols.
    pub segment: Option<SegmentHead>,
    pub payload: &'a [u8],
}

/// The class of a frame, which decides how it is inspected.
pub(super) enum Look {
    /// The frame is not inspected; the outcome determines whether it passes.
    Done(Outcome),
    /// The packet has a wrong checksum, so its receiver drops it.
    Damaged(Anomaly),
    /// The frame is a fragment with a correct header checksum.
    Fragment,
    Packet,
}

/// Classifies a frame by its headers; `checks` is true if checksums are verified. A frame that an end host would refuse
/// does not count as a packet. Fills in the facts of a packet, even if its checksum is wrong.
pub(super) fn look<'a>(
    headers: &Headers,
    frame: &'a [u8],
    checks: bool,
    facts: &mut Facts<'a>,
) -> Look {
    if headers.layer3() == Layer3::Other && headers.fault().is_none() {
        return Look::Done(Outcome::NotIp);
    }
    if headers.fault().is_some() {
        return Look::Done(Outcome::Malformed);
    }
    if checks && !has_right_header(headers, frame) {
        let is_read = !headers.is_fragment() && facts.read(headers, frame).is_some();
        return match is_read {
            true => Look::Damaged(Anomaly::HeaderChecksum),
            false => Look::Done(Outcome::DroppedChecksum),
        };
    }
    if headers.is_fragment() {
        return Look::Fragment;
    }
    match facts.read(headers, frame) {
        None => Look::Done(Outcome::Malformed),
        Some(()) if checks && !has_right_checksum(headers, frame) => {
            Look::Damaged(Anomaly::Checksum)
        }
        Some(()) => Look::Packet,
    }
}

/// Returns true if the checksum of an IPv4 header is correct, or if the header is not IPv4 and has no checksum.
fn has_right_header(headers: &Headers, frame: &[u8]) -> bool {
    if headers.layer3() != Layer3::Ipv4 {
        return true;
    }
    let header = frame.get(headers.ip()..headers.transport());
    header.is_some_and(|header| Sum::of(header).is_valid())
}

/// Returns the final receiver of a packet, whose address the TCP or UDP checksum covers (RFC 9293 section 3.1). With a
/// source route, that is the last address of the route (RFC 791 section 3.1). Returns none for an IPv6 routing header
/// with further segments, which is not parsed.
fn last_receiver<'a>(headers: &Headers, frame: &'a [u8]) -> Option<&'a [u8]> {
    const LOOSE: u8 = 131;
    const STRICT: u8 = 137;
    const ROUTING: u8 = 43;
    let ip = frame.get(headers.ip()..headers.transport())?;
    if headers.layer3() == Layer3::Ipv6 {
        let (mut next, mut at) = (*ip.get(6)?, 40);
        while let Some(&[following, units, _, segments_left]) = ip.get(at..at + 4) {
            if next == ROUTING && segments_left > 0 {
                return None;
            }
            // Extension header lengths are in units of eight bytes, except in the fragment header and the
            // authentication header.
            at += match next {
                44 => 8,
                51 => usize::from(units) * 4 + 8,
                _ => usize::from(units) * 8 + 8,
            };
            next = following;
        }
        return ip.get(24..40);
    }
    let mut options = ip.get(20..)?;
    while let [kind, rest @ ..] = options {
        options = match (kind, rest) {
            (0, _) => break,
            (1, _) => rest,
            (_, [len, ..]) if *len >= 2 => {
                let option = options.get(..usize::from(*len)).unwrap_or_default();
                let leads_on = option.get(2).is_some_and(|place| place < len);
                if matches!(*kind, LOOSE | STRICT) && leads_on {
                    return option.last_chunk::<4>().map(|it| &it[..]);
                }
                options.get(usize::from(*len)..).unwrap_or_default()
            }
            _ => break,
        };
    }
    ip.get(16..20)
}

/// Returns true if the checksum of the layer-4 header is correct, or if UDP over IPv4 omits it (RFC 768).
fn has_right_checksum(headers: &Headers, frame: &[u8]) -> bool {
    let protocol = headers.protocol().0;
    let mut transport = headers.transport_in(frame);
    let has_addresses = match (protocol, headers.layer3()) {
        (ICMP, Layer3::Ipv4) => false,
        (TCP, _) | (ICMPV6, Layer3::Ipv6) => true,
        (UDP, layer3) => {
            let Some(&[_, _, _, _, high, low, sum, more]) = transport.first_chunk() else {
                return false;
            };
            if (sum, more) == (0, 0) {
                return layer3 == Layer3::Ipv4;
            }
            let len = usize::from(u16::from_be_bytes([high, low]));
            let Some(datagram) = transport.get(..len) else {
                return false;
            };
            transport = datagram;
            true
        }
        _ => return true,
    };
    let mut sum = Sum::by(transport, sum_of_halves);
    if has_addresses {
        let ip = frame.get(headers.ip()..).unwrap_or_default();
        // If the two addresses are adjacent in the header, one call covers both.
        let (both, sender) = match headers.layer3() == Layer3::Ipv4 {
            true => (12..20, 12..16),
            false => (8..40, 8..24),
        };
        let addresses = match headers.transport() - headers.ip() == both.end {
            true => Sum::of(ip.get(both).unwrap_or_default()),
            false => match last_receiver(headers, frame) {
                None => return true,
                Some(last) => Sum::of(ip.get(sender).unwrap_or_default()).combine(Sum::of(last)),
            },
        };
        sum = sum
            .combine(addresses)
            .add_u16(u16::from(protocol))
            .add_u32(transport.len() as u32);
    }
    sum.is_valid()
}

impl<'a> Facts<'a> {
    /// Returns the facts of a frame of which only the VLANs have been parsed.
    pub fn of_vlans(vlans: Vlans) -> Self {
        let mut facts = Self::default();
        facts.packet.vlans = vlans;
        facts
    }

    /// Returns the key of the packet's flow in a network, and true if the flow's lower endpoint sent the packet.
    #[inline]
    pub fn key(&self, network: u32) -> (Key, bool) {
        let packet = &self.packet;
        let source = (packet.source, packet.source_port);
        let destination = (packet.destination, packet.destination_port);
        Key::of(source, destination, packet.protocol, network)
    }

    /// Parses those fields of a single fragment that rules test; returns none if the IP header is invalid.
    pub fn read_fragment(&mut self, headers: &Headers, frame: &'a [u8]) -> Option<()> {
        self.read_network(headers, frame)?;
        self.payload = headers.transport_in(frame);
        self.packet.payload_len = self.payload.len();
        Some(())
    }

    /// Parses the fields of the IP header that rules test; returns none if the header is invalid.
    fn read_network(&mut self, headers: &Headers, frame: &'a [u8]) -> Option<()> {
        let packet = &mut self.packet;
        (packet.source, packet.destination) = headers.addresses_in(frame);
        packet.protocol = headers.protocol().0;
        packet.ip_header = frame.get(headers.ip()..headers.transport())?;
        of_ip(headers, frame, packet)
    }

    /// Parses the header fields that rules test, and the payload; returns none if a header is invalid.
    fn read(&mut self, headers: &Headers, frame: &'a [u8]) -> Option<()> {
        self.read_network(headers, frame)?;
        let packet = &mut self.packet;
        (packet.source_port, packet.destination_port) = headers.ports().unwrap_or_default();
        let transport = headers.transport_in(frame);
        self.payload = match packet.protocol {
            TCP => {
                let (head, payload) = of_tcp(transport, packet)?;
                self.segment = Some(head);
                payload
            }
            UDP => {
                let udp = transport.first_chunk::<8>()?;
                let len = usize::from(u16::from_be_bytes([udp[4], udp[5]]));
                packet.transport_header = udp;
                transport.get(8..len)?
            }
            ICMP | ICMPV6 => {
                let icmp = transport.first_chunk::<4>()?;
                packet.icmp = (icmp[0], icmp[1]);
                let is_echo = matches!(
                    (packet.protocol, icmp[0]),
                    (ICMP, 0 | 8) | (ICMPV6, 128 | 129)
                );
                packet.icmp_echo = transport.get(4..8).filter(|_| is_echo).map(|it| {
                    (
                        u16::from_be_bytes([it[0], it[1]]),
                        u16::from_be_bytes([it[2], it[3]]),
                    )
                });
                packet.transport_header = transport.get(..8).unwrap_or(icmp);
                transport.get(8..).or_else(|| transport.get(4..))?
            }
            _ => transport,
        };
        packet.payload_len = self.payload.len();
        Some(())
    }
}

fn of_ip<'a>(headers: &Headers, frame: &'a [u8], packet: &mut Packet<'a>) -> Option<()> {
    match headers.layer3() {
        Layer3::Ipv4 => {
            let ip = frame.get(headers.ip()..headers.transport())?;
            let fixed = ip.first_chunk::<20>()?;
            packet.tos = fixed[1];
            packet.ip_id = u16::from_be_bytes([fixed[4], fixed[5]]);
            let fragment = u16::from_be_bytes([fixed[6], fixed[7]]);
            // The bits are in the order of Snort's letters: more, do not fragment, reserved.
            packet.fragment_bits =
                (fragment >> 13 & 1 | (fragment >> 14 & 1) << 1 | (fragment >> 15) << 2) as u8;
            packet.fragment_offset = fragment & 0x1fff;
            packet.ttl = fixed[8];
            packet.ip_options = &ip[20..];
        }
        _ => {
            let fixed = frame.get(headers.ip()..)?.first_chunk::<40>()?;
            packet.tos = fixed[0] << 4 | fixed[1] >> 4;
            packet.ttl = fixed[7];
        }
    }
    Some(())
}

fn of_tcp<'a>(transport: &'a [u8], packet: &mut Packet<'a>) -> Option<(SegmentHead, &'a [u8])> {
    let tcp = transport.first_chunk::<20>()?;
    let header = usize::from(tcp[12] >> 4) * 4;
    let options = transport.get(20..header)?;
    let payload = &transport[header..];
    packet.transport_header = &transport[..header];
    packet.tcp_sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]);
    packet.tcp_acknowledgement = u32::from_be_bytes([tcp[8], tcp[9], tcp[10], tcp[11]]);
    packet.tcp_flags = tcp[13];
    packet.tcp_window = u16::from_be_bytes([tcp[14], tcp[15]]);
    let is_syn = tcp[13] & taut_inspect::tcp::SYN != 0;
    let head = SegmentHead {
        flags: tcp[13],
        sequence: packet.tcp_sequence,
        acknowledgement: packet.tcp_acknowledgement,
        window: packet.tcp_window,
        scale: scale_of(options).filter(|_| is_syn),
        timestamp: timestamp_of(options),
        len: payload.len(),
    };
    Some((head, payload))
}

/// Returns a number for the network of a flow. It consists of the VLANs of a frame, the outer one in the higher bits,
/// and the pair of ports to which the ingress port belongs.
pub(super) fn network_of(vlans: Vlans, from_port: usize) -> u32 {
    let mut ids = vlans.ids().map(u32::from);
    let [outer, inner] = [0; 2].map(|none| ids.next().unwrap_or(none));
    (from_port as u32 / 2) << 24 | outer << 12 | inner
}

/// Returns the VLAN identifiers in the link header of a frame.
pub(super) fn vlans_of(link: &[u8]) -> Vlans {
    let mut vlans = Vlans::default();
    let tags = link.get(12..).unwrap_or_default();
    for tag in tags.chunks_exact(4) {
        vlans.push(u16::from_be_bytes([tag[2] & 0x0f, tag[3]]));
    }
    vlans
}

/// Raises the time to live, or the hop limit, of a packet to `least` if it is lower.
pub(super) fn raise_ttl(headers: &Headers, frame: &mut [u8], least: u8) {
    let ip = headers.ip();
    match headers.layer3() {
        Layer3::Ipv4 => {
            let Some(fixed) = frame
                .get_mut(ip..)
                .and_then(|it| it.first_chunk_mut::<20>())
            else {
                return;
            };
            if fixed[8] < least {
                let word = |ttl: u8| u16::from_be_bytes([ttl, fixed[9]]);
                let sum = u16::from_be_bytes([fixed[10], fixed[11]]);
                let sum = update_u16(sum, word(fixed[8]), word(least));
                fixed[10..12].copy_from_slice(&sum.to_be_bytes());
                fixed[8] = least;
            }
        }
        Layer3::Ipv6 => {
            if let Some(hops) = frame.get_mut(ip + 7) {
                *hops = (*hops).max(least);
            }
        }
        Layer3::Other => {}
    }
}

/// Clears the URG flag of a segment. Its receiver then reads urgent data as part of the stream, as the rules do.
pub(super) fn clear_urgent(headers: &Headers, frame: &mut [u8]) {
    let at = headers.transport();
    let Some(tcp) = frame
        .get_mut(at..)
        .and_then(|it| it.first_chunk_mut::<20>())
    else {
        return;
    };
    let flags = u16::from_be_bytes([tcp[12], tcp[13]]);
    let urgent = u16::from_be_bytes([tcp[18], tcp[19]]);
    let cleared = flags & !u16::from(taut_inspect::tcp::URG);
    let sum = u16::from_be_bytes([tcp[16], tcp[17]]);
    let sum = update_u16(update_u16(sum, flags, cleared), urgent, 0);
    tcp[12..14].copy_from_slice(&cleared.to_be_bytes());
    tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    tcp[18..20].fill(0);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::{Protocol, UdpFlow};

    fn outcome(frame: &[u8], checks: bool) -> Option<Outcome> {
        match look(&Headers::of(frame), frame, checks, &mut Facts::default()) {
            Look::Done(outcome) => Some(outcome),
            Look::Damaged(..) => Some(Outcome::DroppedChecksum),
            _ => None,
        }
    }

    #[test]
    fn the_normaliser_refuses_packets_with_any_flipped_bit() {
        for protocol in [Protocol::Udp, Protocol::Tcp] {
            let frame = UdpFlow::default().frame_as(protocol, None, 100).unwrap();
            assert_eq!(outcome(&frame, true), None);
            let end = Headers::of(&frame).end();
            for bit in 14 * 8..end * 8 {
                let mut frame = frame.clone();
                frame[bit / 8] ^= 1 << (bit % 8);
                // A flipped fragment bit changes the class of the packet, and its checksum is wrong as well.
                assert!(outcome(&frame, true).is_some(), "{protocol:?} {bit}");
            }
        }
    }

    #[test]
    fn udp_checksums_use_the_final_destination_of_a_source_route() {
        let plain = UdpFlow::default()
            .frame_as(Protocol::Udp, None, 100)
            .unwrap();
        let last = [198, 51, 100, 9];
        for options in [8, 20, 40] {
            let mut route = vec![131, 7, 4, last[0], last[1], last[2], last[3]];
            route.resize(options, 0);
            let mut frame = [&plain[..34], &route, &plain[34..]].concat();
            frame[14] = 0x40 | (5 + options as u8 / 4);
            let total = u16::from_be_bytes([frame[16], frame[17]]) + options as u16;
            frame[16..18].copy_from_slice(&total.to_be_bytes());
            frame[24..26].fill(0);
            let at = 34 + options;
            let sum = Sum::of(&frame[14..at]).checksum();
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
            let len = usize::from(u16::from_be_bytes([frame[at + 4], frame[at + 5]]));
            for (receiver, is_right) in [
                (last, true),
                ([frame[30], frame[31], frame[32], frame[33]], false),
            ] {
                frame[at + 6..at + 8].fill(0);
                let sum = Sum::of(&frame[at..at + len])
                    .combine(Sum::of(&frame[26..30]))
                    .combine(Sum::of(&receiver))
                    .add_u16(UDP.into())
                    .add_u16(len as u16);
                frame[at + 6..at + 8].copy_from_slice(&sum.checksum().to_be_bytes());
                assert_eq!(
                    outcome(&frame, true).is_none(),
                    is_right,
                    "{options} {receiver:?}"
                );
            }
        }
    }

    #[test]
    fn normalised_packets_keep_valid_checksums() {
        let mut frame = UdpFlow::default()
            .frame_as(Protocol::Tcp, None, 100)
            .unwrap();
        let headers = Headers::of(&frame);
        let at = headers.transport();
        let marked = u16::from_be_bytes([frame[at + 12], frame[at + 13]]);
        let sum = u16::from_be_bytes([frame[at + 16], frame[at + 17]]);
        let sum = update_u16(update_u16(sum, marked, marked | 0x20), 0, 7);
        frame[at + 13] |= 0x20;
        frame[at + 19] = 7;
        frame[at + 16..at + 18].copy_from_slice(&sum.to_be_bytes());
        assert_eq!(outcome(&frame, true), None);
        clear_urgent(&headers, &mut frame);
        raise_ttl(&headers, &mut frame, 200);
        assert_eq!(outcome(&frame, true), None);
        assert_eq!(
            (frame[at + 13] & 0x20, frame[at + 19], frame[14 + 8]),
            (0, 0, 200)
        );
        raise_ttl(&headers, &mut frame, 100);
        assert_eq!(frame[14 + 8], 200);
    }

    #[test]
    fn networks_are_distinguished_by_vlan_tags_and_port_pairs() {
        let plain = UdpFlow::default()
            .frame_as(Protocol::Udp, None, 64)
            .unwrap();
        let tagged = |tags: &[u8]| [&plain[..12], tags, &plain[12..]].concat();
        let one = tagged(&[0x81, 0, 0x20, 5]);
        let two = tagged(&[0x88, 0xa8, 0, 7, 0x81, 0, 0, 5]);
        let of = |frame: &[u8]| vlans_of(&frame[..Headers::of(frame).ip()]);
        let network = |frame: &[u8], port| network_of(of(frame), port);
        assert_eq!(network(&plain, 1), 0);
        assert_eq!(network(&plain, 2), 1 << 24);
        assert_eq!(network(&one, 0), 5 << 12);
        assert_eq!(network(&two, 0), 7 << 12 | 5);
        let vlans = |frame: &[u8]| of(frame).ids().collect::<Vec<_>>();
        assert_eq!(
            (vlans(&plain), vlans(&one), vlans(&two)),
            (vec![], vec![5], vec![7, 5])
        );
    }
}
