//! The measurement timestamp (stamp): the first 18 bytes of a UDP payload, with flow, sequence number and send time of
//! the packet.
//!
//! A 64-byte frame leaves 18 bytes for the payload. All fields are big-endian: magic (16 bits), flow (16), sequence
//! number (48), send timestamp (64). Every stamped packet has a correct UDP checksum, so the receiver can distinguish
//! damaged packets from foreign ones.

use crate::{
    Error, EtherType, Ethernet, Gtpu, IpProtocol, Ipv4, Ipv6, Sum, Udp, gtpu, ipv6,
    udp::{self, nonzero},
};

/// The magic number with which a measurement timestamp (stamp) begins.
pub const MAGIC: u16 = 0x7a07;
/// The length of a measurement timestamp (stamp) in bytes.
pub const STAMP_LEN_BYTES: usize = 18;
/// The modulus of sequence numbers, which have 48 bits: they repeat after 32 days at 100 million packets per second.
pub const SEQUENCE_MODULUS: u64 = 1 << 48;

/// The length of the UDP checksum in bytes. The checksum precedes the measurement timestamp, and both are written
/// together.
const CHECKSUM_LEN_BYTES: usize = 2;
const WRITTEN_LEN_BYTES: usize = CHECKSUM_LEN_BYTES + STAMP_LEN_BYTES;

/// The content of a measurement timestamp (stamp): flow, sequence number and send time of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Identifier of the flow, assigned by the sender.
    pub flow: u16,
    /// Sequence number of the packet in its flow, modulo [`SEQUENCE_MODULUS`].
    pub sequence: u64,
    /// Time at which the packet left, on the sender's clock, in raw cycles.
    pub stamp_ticks: u64,
}

impl Stamp {
    #[inline]
    fn from_payload(payload: &[u8]) -> Option<Self> {
        let bytes: &[u8; STAMP_LEN_BYTES] = payload.first_chunk()?;
        let [m0, m1, f0, f1, s0, s1, s2, s3, s4, s5, ticks @ ..] = *bytes;
        (u16::from_be_bytes([m0, m1]) == MAGIC).then_some(Self {
            flow: u16::from_be_bytes([f0, f1]),
            sequence: u64::from_be_bytes([0, 0, s0, s1, s2, s3, s4, s5]),
            stamp_ticks: u64::from_be_bytes(ticks),
        })
    }
}

/// The offset of the measurement timestamp (stamp) in frames made from one template, and the precomputed part of their
/// UDP checksum.
#[derive(Clone, Copy, Debug)]
pub struct StampLayout {
    payload_offset: usize,
    base_sum: Sum,
}

impl StampLayout {
    /// Makes the layout for copies of `template`, a complete frame such as [`UdpFlow::frame`](crate::UdpFlow::frame)
    /// builds. If `template` is a GTP-U packet, the stamp is written into the user packet in the tunnel.
    ///
    /// # Errors
    /// Returns the errors of the views of the template's headers; `BadValue` if `template` is not UDP over IPv4 or
    /// IPv6, or is a fragment; `BadLength` if the UDP payload is under 18 bytes.
    pub fn new(template: &[u8]) -> Result<Self, Error> {
        let ethernet = Ethernet::new(template)?;
        let offset = ethernet.header_len_bytes();
        if let Some((inside, ethertype)) = tunnelled(ethernet.payload(), ethernet.ethertype()) {
            let offset = offset + ethernet.payload().len() - inside.len();
            return Self::of_packet(offset, ethertype, inside);
        }
        Self::of_packet(offset, ethernet.ethertype(), ethernet.payload())
    }

    /// Makes the layout for the IP packet at offset `start` of the template.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "both lengths were read from fields of 16 bits"
    )]
    fn of_packet(start: usize, ethertype: EtherType, packet: &[u8]) -> Result<Self, Error> {
        match ethertype {
            EtherType::IPV4 => {
                let ip = Ipv4::new(packet)?;
                let offset = start + ip.header_len_bytes();
                let protocol = ip.protocol();
                let length = ip.payload().len();
                let pseudo_header = ip.pseudo_header(length as u16);
                Self::over_ip(
                    offset,
                    protocol,
                    ip.is_fragment(),
                    ip.payload(),
                    pseudo_header,
                )
            }
            EtherType::IPV6 => {
                let ip = Ipv6::new(packet)?;
                let transport = ip.transport()?;
                let payload = transport.payload;
                let offset = start + ipv6::HEADER_LEN_BYTES + transport.extensions_len_bytes;
                let protocol = transport.protocol;
                let is_fragment = transport.fragment.is_some();
                let pseudo_header = ip.pseudo_header(IpProtocol::UDP, payload.len() as u32);
                Self::over_ip(offset, protocol, is_fragment, payload, pseudo_header)
            }
            EtherType(other) => {
                let value = u32::from(other);
                Err(Error::BadValue {
                    what: "EtherType of a stamped frame",
                    value,
                })
            }
        }
    }

    fn over_ip(
        offset: usize,
        protocol: IpProtocol,
        is_fragment: bool,
        datagram: &[u8],
        pseudo_header: Sum,
    ) -> Result<Self, Error> {
        if protocol != IpProtocol::UDP {
            let value = u32::from(protocol.0);
            return Err(Error::BadValue {
                what: "IP protocol of a stamped frame",
                value,
            });
        }
        if is_fragment {
            return Err(Error::BadValue {
                what: "fragment flag of a stamped frame",
                value: 1,
            });
        }
        let udp = Udp::new(datagram)?;
        let payload = udp.payload();
        let Some((_, rest)) = payload.split_first_chunk::<STAMP_LEN_BYTES>() else {
            let (length, min, max) = (payload.len(), STAMP_LEN_BYTES, 0xffff);
            return Err(Error::BadLength {
                what: "UDP payload",
                length,
                min,
                max,
            });
        };
        if usize::from(udp.length()) != datagram.len() {
            let (length, min, max) = (udp.length().into(), datagram.len(), datagram.len());
            return Err(Error::BadLength {
                what: "UDP datagram",
                length,
                min,
                max,
            });
        }
        let base_sum = pseudo_header
            .add_u16(udp.source_port())
            .add_u16(udp.destination_port())
            .add_u16(udp.length())
            .combine(Sum::of(rest));
        let payload_offset = offset + udp::HEADER_LEN_BYTES;
        Ok(Self {
            payload_offset,
            base_sum,
        })
    }

    /// Returns the offset of the UDP payload, and so of the stamp, in bytes from the start of the frame.
    pub fn payload_offset(&self) -> usize {
        self.payload_offset
    }

    /// Writes the measurement timestamp (stamp) and the matching UDP checksum into a copy of the template.
    ///
    /// Only the low 48 bits of `sequence` are sent; `stamp_ticks` is the sender's clock in raw cycles.
    ///
    /// # Errors
    /// Returns `Truncated` if `frame` ends before the stamp does.
    #[inline]
    pub fn write(
        &self,
        frame: &mut [u8],
        flow: u16,
        sequence: u64,
        stamp_ticks: u64,
    ) -> Result<(), Error> {
        self.write_varied(frame, flow, sequence, stamp_ticks, Sum::ZERO)
    }

    /// Writes a measurement timestamp as [`StampLayout::write`] does, into a copy of the template in which fields that
    /// are 0 in the template have other values. `varied` is the sum of the changed fields, without fields that the UDP
    /// checksum does not cover.
    ///
    /// # Errors
    /// Returns `Truncated` if `frame` ends before the stamp does.
    #[inline]
    pub fn write_varied(
        &self,
        frame: &mut [u8],
        flow: u16,
        sequence: u64,
        stamp_ticks: u64,
        varied: Sum,
    ) -> Result<(), Error> {
        let start = self.payload_offset - CHECKSUM_LEN_BYTES;
        let have = frame.len();
        let Some(to) = frame
            .get_mut(start..)
            .and_then(|rest| rest.first_chunk_mut::<WRITTEN_LEN_BYTES>())
        else {
            let need = start + WRITTEN_LEN_BYTES;
            return Err(Error::Truncated {
                what: "frame to stamp",
                need,
                have,
            });
        };
        let magic_flow = u32::from(MAGIC) << 16 | u32::from(flow);
        let sequence = sequence % SEQUENCE_MODULUS;
        let checksum = self
            .base_sum
            .combine(varied)
            .add_u32(magic_flow)
            .add_u64(sequence)
            .add_u64(stamp_ticks)
            .checksum();
        let [c0, c1] = nonzero(checksum).to_be_bytes();
        let [m0, m1, f0, f1] = magic_flow.to_be_bytes();
        let [_, _, s0, s1, s2, s3, s4, s5] = sequence.to_be_bytes();
        let [t0, t1, t2, t3, t4, t5, t6, t7] = stamp_ticks.to_be_bytes();
        *to = [
            c0, c1, m0, m1, f0, f1, s0, s1, s2, s3, s4, s5, t0, t1, t2, t3, t4, t5, t6, t7,
        ];
        Ok(())
    }
}

/// Returns the measurement timestamp (stamp) in `frame` and its offset, without verification, to identify a damaged
/// packet. None if there is no UDP datagram that begins with [`MAGIC`].
pub fn claimed_stamp(frame: &[u8]) -> Option<(Stamp, usize)> {
    let offset = StampLayout::new(frame).ok()?.payload_offset();
    Some((Stamp::from_payload(frame.get(offset..)?)?, offset))
}

/// The class of a received frame in a measurement: part of it, damaged, or foreign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// An undamaged frame of the measurement.
    Stamped(Stamp),
    /// A frame with the protocol and a destination UDP port of the measurement, but with a wrong length or checksum.
    Corrupt,
    /// A frame that does not belong to the measurement.
    Foreign,
}

/// The destination UDP ports of the measured flows, from `low` to `high`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortRange {
    /// Lowest port of the range.
    pub low: u16,
    /// Highest port of the range.
    pub high: u16,
}

impl PortRange {
    /// Returns true if `port` is in the range.
    #[inline(always)]
    pub fn contains(self, port: u16) -> bool {
        (self.low..=self.high).contains(&port)
    }
}

impl From<u16> for PortRange {
    fn from(port: u16) -> Self {
        Self {
            low: port,
            high: port,
        }
    }
}

/// Returns the user packet in a GTP-U packet to the registered port, and the IP version of the user packet.
#[inline]
fn tunnelled(packet: &[u8], ethertype: EtherType) -> Option<(&[u8], EtherType)> {
    let header_len = match ethertype {
        EtherType::IPV4 => usize::from(packet.first()? & 0x0f) * 4,
        EtherType::IPV6 => ipv6::HEADER_LEN_BYTES,
        _ => return None,
    };
    let datagram = packet.get(header_len..)?;
    if destination_port(datagram) != Some(gtpu::UDP_PORT) {
        return None;
    }
    let gtpu = Gtpu::new(datagram.get(udp::HEADER_LEN_BYTES..)?).ok()?;
    let start = header_len + udp::HEADER_LEN_BYTES + gtpu.header_len_bytes();
    let inside = packet.get(start..start + gtpu.payload().len())?;
    let ethertype = match inside.first()? >> 4 {
        4 => EtherType::IPV4,
        6 => EtherType::IPV6,
        _ => return None,
    };
    Some((inside, ethertype))
}

/// Classifies `frame`; `ports` are the destination ports of the measured flows.
///
/// MAC addresses, VLAN tags, hop count, bytes after the IP packet, GTP-U tunnels and outer headers are ignored, so
/// frames are recognised after bridges, routers and tunnels. IP header and UDP checksums are verified; a UDP checksum
/// of 0 counts as wrong, since every stamp is written with one. A fragment other than the first is foreign, since its
/// port cannot be read.
#[inline]
pub fn classify(frame: &[u8], ports: impl Into<PortRange>) -> Received {
    let ports = ports.into();
    let Ok(ethernet) = Ethernet::new(frame) else {
        return Received::Foreign;
    };
    if let Some((inside, ethertype)) = tunnelled(ethernet.payload(), ethernet.ethertype()) {
        let found = classify_packet(inside, ethertype, ports);
        if found != Received::Foreign {
            return found;
        }
    }
    classify_packet(ethernet.payload(), ethernet.ethertype(), ports)
}

#[inline]
fn classify_packet(packet: &[u8], ethertype: EtherType, ports: PortRange) -> Received {
    match ethertype {
        EtherType::IPV4 => classify_v4(packet, ports),
        EtherType::IPV6 => classify_v6(packet, ports),
        _ => Received::Foreign,
    }
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the length was read from a field of 16 bits"
)]
fn classify_v4(packet: &[u8], ports: PortRange) -> Received {
    let Ok(ip) = Ipv4::new(packet) else {
        let words = packet.first().copied().unwrap_or_default() & 0x0f;
        return classify_broken(packet, 9, usize::from(words) * 4, ports);
    };
    if ip.protocol() != IpProtocol::UDP
        || ip.fragment_offset_bytes() != 0
        || !destination_port(ip.payload()).is_some_and(|port| ports.contains(port))
    {
        return Received::Foreign;
    }
    if ip.verify_checksum().is_err() {
        return Received::Corrupt;
    }
    classify_udp(ip.payload(), ip.pseudo_header(ip.payload().len() as u16))
}

#[inline]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the length was read from a field of 16 bits"
)]
fn classify_v6(packet: &[u8], ports: PortRange) -> Received {
    let Ok(ip) = Ipv6::new(packet) else {
        return classify_broken(packet, 6, ipv6::HEADER_LEN_BYTES, ports);
    };
    let Ok(transport) = ip.transport() else {
        return Received::Foreign;
    };
    let is_later_fragment = transport.fragment.is_some_and(|f| f.offset_bytes != 0);
    if transport.protocol != IpProtocol::UDP
        || is_later_fragment
        || !destination_port(transport.payload).is_some_and(|port| ports.contains(port))
    {
        return Received::Foreign;
    }
    let length = transport.payload.len() as u32;
    classify_udp(transport.payload, ip.pseudo_header(IpProtocol::UDP, length))
}

/// Classifies a UDP datagram. The datagram must fill the IP payload, so that every bit error in its length field is
/// detected.
#[inline]
fn classify_udp(datagram: &[u8], pseudo_header: Sum) -> Received {
    match Udp::new(datagram) {
        Ok(udp)
            if usize::from(udp.length()) == datagram.len()
                && udp.checksum() != 0
                && pseudo_header.combine(Sum::of(datagram)).is_valid() =>
        {
            Stamp::from_payload(udp.payload()).map_or(Received::Foreign, Received::Stamped)
        }
        _ => Received::Corrupt,
    }
}

#[inline]
fn destination_port(datagram: &[u8]) -> Option<u16> {
    let &[_, _, high, low, ..] = datagram else {
        return None;
    };
    Some(u16::from_be_bytes([high, low]))
}

/// Classifies a packet with wrong IP lengths or version. The packet belongs to the measurement if its protocol and
/// destination port, read at their usual offsets, are those of the measurement.
#[cold]
fn classify_broken(
    packet: &[u8],
    protocol_offset: usize,
    header_len_bytes: usize,
    ports: PortRange,
) -> Received {
    let is_udp = packet.get(protocol_offset) == Some(&IpProtocol::UDP.0);
    let datagram = packet.get(header_len_bytes..).unwrap_or_default();
    if is_udp && destination_port(datagram).is_some_and(|port| ports.contains(port)) {
        Received::Corrupt
    } else {
        Received::Foreign
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;
    use crate::{UdpFlow, VlanTag};

    const PORT: u16 = 31_239;
    #[test]
    fn timestamps_of_tunnelled_packets_are_in_the_inner_packet() {
        let tunnel = crate::Tunnel {
            teid: 5,
            src_ip: "10.0.0.1".parse().unwrap(),
            dst_ip: "10.0.0.2".parse().unwrap(),
        };
        let udp = crate::Protocol::Udp;
        for flow in [v4(), v6()] {
            let mut frame = flow.frame_as(udp, Some(&tunnel), 150).unwrap();
            let layout = StampLayout::new(&frame).unwrap();
            layout.write(&mut frame, 3, 9, 77).unwrap();
            let Received::Stamped(stamp) = classify(&frame, PORT) else {
                panic!("{frame:?}");
            };
            assert_eq!((stamp.flow, stamp.sequence, stamp.stamp_ticks), (3, 9, 77));
            frame[140] ^= 1;
            assert_eq!(classify(&frame, PORT), Received::Corrupt);
            assert_eq!(classify(&frame, PORT + 1), Received::Foreign);
        }
    }

    #[test]
    fn the_checksum_covers_fields_changed_after_the_template_was_built() {
        let blank = UdpFlow {
            src_port: 0,
            ..v4()
        };
        let mut frame = blank.frame(64).unwrap();
        let layout = StampLayout::new(&frame).unwrap();
        let port = layout.payload_offset() - 8;
        frame[port..port + 2].copy_from_slice(&4_321_u16.to_be_bytes());
        let varied = Sum::ZERO.add_u16(4_321);
        layout.write_varied(&mut frame, 1, 2, 3, varied).unwrap();
        assert!(matches!(classify(&frame, PORT), Received::Stamped(_)));
    }

    const STAMP: Stamp = Stamp {
        flow: 3,
        sequence: 0x1234_5678_9abc,
        stamp_ticks: 0xfedc_ba98_7654_3210,
    };

    fn v4() -> UdpFlow {
        UdpFlow {
            dst_port: PORT,
            ..UdpFlow::default()
        }
    }

    fn v6() -> UdpFlow {
        UdpFlow {
            src_ip: "2001:2::1".parse().unwrap(),
            dst_ip: "2001:2::2".parse().unwrap(),
            ..v4()
        }
    }

    fn tagged(flow: UdpFlow) -> UdpFlow {
        UdpFlow {
            vlan: Some(VlanTag::new(5).unwrap()),
            ..flow
        }
    }

    /// Returns a frame of `size` bytes of `flow`, with the measurement timestamp `stamp`.
    fn stamped(flow: UdpFlow, size: usize, stamp: Stamp) -> Vec<u8> {
        let mut frame = flow.frame(size).unwrap();
        let layout = StampLayout::new(&frame).unwrap();
        let Stamp {
            flow,
            sequence,
            stamp_ticks,
        } = stamp;
        layout
            .write(&mut frame, flow, sequence, stamp_ticks)
            .unwrap();
        frame
    }

    fn every_kind() -> [(UdpFlow, usize); 6] {
        [
            (v4(), 64),
            (tagged(v4()), 68),
            (v6(), 84),
            (tagged(v6()), 88),
            (v4(), 65),
            (v4(), 1518),
        ]
    }

    #[test]
    fn timestamps_written_into_any_supported_frame_are_read_correctly() {
        for (flow, size) in every_kind() {
            let frame = stamped(flow, size, STAMP);
            assert_eq!(
                classify(&frame, PORT),
                Received::Stamped(STAMP),
                "{flow:?} {size}"
            );
        }
    }

    #[test]
    fn sequence_number_wraps_at_48_bits() {
        let frame = stamped(
            v4(),
            64,
            Stamp {
                sequence: u64::MAX,
                ..STAMP
            },
        );
        let expected = Stamp {
            sequence: SEQUENCE_MODULUS - 1,
            ..STAMP
        };
        assert_eq!(classify(&frame, PORT), Received::Stamped(expected));
    }

    #[test]
    fn timestamps_are_big_endian_at_the_start_of_the_payload() {
        let frame = stamped(v4(), 64, STAMP);
        let expected = [
            0x7a, 0x07, 0, 3, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xfe, 0xdc, 0xba, 0x98, 0x76,
            0x54, 0x32, 0x10,
        ];
        assert_eq!(frame[42..60], expected);
        assert_eq!(StampLayout::new(&frame).unwrap().payload_offset(), 42);
    }

    #[test]
    fn a_flipped_bit_in_the_udp_part_invalidates_the_timestamp() {
        for (flow, size) in every_kind() {
            let mut frame = stamped(flow, size, STAMP);
            let udp_start = StampLayout::new(&frame).unwrap().payload_offset() - 8;
            for bit in udp_start * 8..frame.len() * 8 {
                frame[bit / 8] ^= 0x80 >> (bit % 8);
                let in_port = (udp_start + 2..udp_start + 4).contains(&(bit / 8));
                let expected = if in_port {
                    Received::Foreign
                } else {
                    Received::Corrupt
                };
                assert_eq!(
                    classify(&frame, PORT),
                    expected,
                    "{flow:?} {size} bit {bit}"
                );
                frame[bit / 8] ^= 0x80 >> (bit % 8);
            }
        }
    }

    #[test]
    fn a_flipped_bit_in_the_ip_header_invalidates_the_timestamp() {
        let mut frame = stamped(v4(), 64, STAMP);
        for bit in 14 * 8..34 * 8 {
            frame[bit / 8] ^= 0x80 >> (bit % 8);
            let received = classify(&frame, PORT);
            assert!(
                !matches!(received, Received::Stamped(_)),
                "bit {bit}: {received:?}"
            );
            frame[bit / 8] ^= 0x80 >> (bit % 8);
        }
    }

    #[test]
    fn timestamps_stay_valid_after_forwarding_and_padding() {
        for (flow, size) in every_kind() {
            let mut frame = stamped(flow, size, STAMP);
            let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
            ethernet.swap_addresses();
            if flow.src_ip.is_ipv4() {
                Ipv4::new(ethernet.payload_mut()).unwrap().decrement_ttl();
            } else {
                Ipv6::new(ethernet.payload_mut())
                    .unwrap()
                    .decrement_hop_limit();
            }
            frame.extend([0xee; 7]);
            assert_eq!(
                classify(&frame, PORT),
                Received::Stamped(STAMP),
                "{flow:?} {size}"
            );
        }
    }

    #[test]
    fn truncated_frames_with_a_destination_port_count_as_corrupt() {
        for (flow, size) in every_kind() {
            let frame = stamped(flow, size, STAMP);
            let port_end = StampLayout::new(&frame).unwrap().payload_offset() - 4;
            for length in 0..frame.len() {
                let expected = if length < port_end {
                    Received::Foreign
                } else {
                    Received::Corrupt
                };
                assert_eq!(
                    classify(&frame[..length], PORT),
                    expected,
                    "{flow:?} {length}"
                );
            }
        }
    }

    #[test]
    fn packets_without_timestamp_or_with_other_ports_are_foreign() {
        let frame = stamped(v4(), 64, STAMP);
        assert_eq!(classify(&frame, PORT + 1), Received::Foreign);
        // The frame is undamaged and has a destination port of the measurement, but no stamp.
        assert_eq!(classify(&v4().frame(64).unwrap(), PORT), Received::Foreign);
        assert_eq!(
            classify(&tagged(v4()).frame(64).unwrap(), PORT),
            Received::Foreign
        );
        let mut arp = frame.clone();
        arp[12..14].copy_from_slice(&EtherType::ARP.0.to_be_bytes());
        assert_eq!(classify(&arp, PORT), Received::Foreign);
        let mut later_fragment = frame.clone();
        later_fragment[21] = 1;
        assert_eq!(classify(&later_fragment, PORT), Received::Foreign);
        let mut tcp = frame;
        tcp[23] = IpProtocol::TCP.0;
        assert_eq!(classify(&tcp, PORT), Received::Foreign);
    }

    #[test]
    fn zero_checksums_are_sent_as_ffff_and_refused_when_received() {
        let mut frame = v4().frame(64).unwrap();
        let layout = StampLayout::new(&frame).unwrap();
        let mut ones_seen = false;
        // For one flow number, the computed checksum is 0.
        for flow in 0..=u16::MAX {
            layout.write(&mut frame, flow, 0, 0).unwrap();
            assert_ne!(frame[40..42], [0, 0], "{flow}");
            if frame[40..42] == [0xff, 0xff] {
                ones_seen = true;
                assert!(matches!(classify(&frame, PORT), Received::Stamped(_)));
                frame[40..42].fill(0);
                assert_eq!(classify(&frame, PORT), Received::Corrupt);
            }
        }
        assert!(ones_seen);
    }

    #[test]
    fn datagrams_shorter_than_the_ip_payload_are_corrupt() {
        let mut frame = stamped(v4(), 66, STAMP);
        // The length is lowered by two, and the two bytes after it are raised by two, so the sum stays correct.
        frame[39] -= 2;
        frame[61] += 2;
        assert_eq!(classify(&frame, PORT), Received::Corrupt);
    }

    #[test]
    fn only_first_ipv6_fragments_may_contain_a_timestamp() {
        let mut frame = stamped(v6(), 84, STAMP);
        frame[19] += 8;
        frame[20] = IpProtocol::FRAGMENT.0;
        frame.splice(54..54, [IpProtocol::UDP.0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(classify(&frame, PORT), Received::Stamped(STAMP));
        frame[57] = 8;
        assert_eq!(classify(&frame, PORT), Received::Foreign);
    }

    #[test]
    fn frame_templates_without_space_for_a_timestamp_are_refused() {
        let good = v4().frame(64).unwrap();
        let too_small = tagged(v4()).frame(64).unwrap();
        assert!(matches!(
            StampLayout::new(&too_small),
            Err(Error::BadLength { .. })
        ));
        for (at, value) in [(12, 9), (14, 0x65), (20, 0x20), (23, 6), (39, 25), (39, 27)] {
            let mut template = good.clone();
            template[at] = value;
            assert!(StampLayout::new(&template).is_err(), "byte {at} = {value}");
        }
    }

    #[test]
    fn no_timestamp_is_written_into_frames_shorter_than_the_template() {
        let mut frame = v4().frame(64).unwrap();
        let layout = StampLayout::new(&frame).unwrap();
        let before = frame.clone();
        let written = layout.write(&mut frame[..59], 1, 2, 3);
        let need_60 = Error::Truncated {
            what: "frame to stamp",
            need: 60,
            have: 59,
        };
        assert_eq!(written, Err(need_60));
        assert_eq!(frame, before);
    }

    proptest! {
        #[test]
        fn the_incremental_udp_checksum_equals_a_recomputed_checksum(
            flow: u16, sequence: u64, stamp_ticks: u64, src_port: u16, is_v6: bool, size in 84usize..400,
        ) {
            let base = if is_v6 { v6() } else { v4() };
            let stamp = Stamp { flow, sequence, stamp_ticks };
            let frame = stamped(UdpFlow { src_port, ..base }, size, stamp);
            let mut again = frame.clone();
            let mut ethernet = Ethernet::new(&mut again[..]).unwrap();
            if is_v6 {
                let mut ip = Ipv6::new(ethernet.payload_mut()).unwrap();
                let pseudo_header = ip.pseudo_header(IpProtocol::UDP, ip.payload().len() as u32);
                Udp::new(ip.payload_mut()).unwrap().fill_checksum(pseudo_header);
            } else {
                let mut ip = Ipv4::new(ethernet.payload_mut()).unwrap();
                let pseudo_header = ip.pseudo_header(ip.payload().len() as u16);
                Udp::new(ip.payload_mut()).unwrap().fill_checksum(pseudo_header);
            }
            prop_assert_eq!(&again, &frame);
            let expected = Stamp { sequence: sequence % SEQUENCE_MODULUS, ..stamp };
            prop_assert_eq!(classify(&frame, PORT), Received::Stamped(expected));

            let theirs = etherparse::SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::TransportSlice::Udp(udp)) = theirs.transport else { panic!("no UDP") };
            prop_assert_eq!(&udp.payload()[10..18], &stamp_ticks.to_be_bytes()[..]);
        }

        #[test]
        fn the_checksum_covers_template_payload_after_the_timestamp(
            tail in proptest::collection::vec(any::<u8>(), 1..90), ticks: u64,
        ) {
            let mut frame = v4().frame(64 + tail.len()).unwrap();
            frame[60..].copy_from_slice(&tail);
            let layout = StampLayout::new(&frame).unwrap();
            layout.write(&mut frame, 1, 2, ticks).unwrap();
            let expected = Stamp { flow: 1, sequence: 2, stamp_ticks: ticks };
            prop_assert_eq!(classify(&frame, PORT), Received::Stamped(expected));
        }
    }
}
