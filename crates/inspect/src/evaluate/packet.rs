//! The properties of a packet that rules test in addition to its buffers, and the tests of them: addresses, ports,
//! header fields, and flow bits.

use crate::buffer::Application;
use crate::flow_bits::FlowBits;
use crate::rule::*;

/// The properties of a packet that rules test in addition to its buffers.
#[derive(Debug, Clone, Copy, Default)]
pub struct Packet<'a> {
    /// Protocol number after the IP header.
    pub protocol: u8,
    /// Address of the sender; IPv4 addresses are mapped into IPv6.
    pub source: u128,
    /// Address of the receiver; IPv4 addresses are mapped into IPv6.
    pub destination: u128,
    /// Port of the sender; 0 for protocols without ports.
    pub source_port: u16,
    /// Port of the receiver; 0 for protocols without ports.
    pub destination_port: u16,
    /// Number of payload bytes of this packet.
    pub payload_len: usize,
    /// Time to live, or hop limit.
    pub ttl: u8,
    /// Type of service, or traffic class.
    pub tos: u8,
    /// Identification of IPv4.
    pub ip_id: u16,
    /// Fragment flags of IPv4: 1 for more fragments, 2 for do not fragment, 4 for the reserved flag.
    pub fragment_bits: u8,
    /// Offset of the fragment, in units of eight bytes.
    pub fragment_offset: u16,
    /// Options of the IPv4 header.
    pub ip_options: &'a [u8],
    /// Flags of TCP.
    pub tcp_flags: u8,
    /// Sequence number of TCP.
    pub tcp_sequence: u32,
    /// Acknowledgement number of TCP.
    pub tcp_acknowledgement: u32,
    /// Window of TCP.
    pub tcp_window: u16,
    /// Type and code of ICMP.
    pub icmp: (u8, u8),
    /// Identifier and sequence number of an ICMP echo; none for other packets.
    pub icmp_echo: Option<(u16, u16)>,
    /// Kinds of TLS messages that begin in this packet, as bits with the indices of [`crate::read::TLS_STATES`].
    pub tls: u8,
    /// Version of the TLS records in this packet, 0 if there are none.
    pub tls_version: u16,
    /// Number of bytes of the TCP stream up to and including this packet, plus one for a SYN, by direction: to the
    /// server, then to the client.
    pub stream_bytes: [u32; 2],
    /// Header of IP, with its options or extension headers.
    pub ip_header: &'a [u8],
    /// Header of TCP, UDP or ICMP.
    pub transport_header: &'a [u8],
    /// Identifier of the packet's flow.
    pub flow: u64,
    /// Number of packets of the flow up to and including this packet, by direction: to the server, then to the client.
    pub flow_packets: [u32; 2],
    /// Number of bytes of the flow's packets up to and including this packet, by direction: to the server, then to the
    /// client.
    pub flow_bytes: [u64; 2],
    /// VLAN tags of the packet's frame.
    pub vlans: Vlans,
    /// Anomalies of the packet, one bit of [`crate::anomaly::Anomaly`] each.
    pub anomalies: u64,
    /// True if the payload is inspected as part of its stream.
    pub is_in_stream: bool,
    /// True if the packet is sent to the server of its flow.
    pub to_server: bool,
    /// True if both endpoints of the flow have sent packets.
    pub established: bool,
    /// Application protocol of the flow, if taut has an inspector for it.
    pub application: Option<Application>,
    /// True if the first bytes of the flow identify no protocol.
    pub is_unrecognised: bool,
}

/// Maximum number of VLAN tags of a frame.
pub const MOST_VLANS: usize = 2;

/// The VLAN identifiers of a frame, the outermost in the lowest bits, and the number of tags in the highest bits. They
/// are packed into one word because it is copied with each packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Vlans(u32);

const VLAN_BITS: usize = 12;
const LEN_AT: usize = 24;

impl Vlans {
    /// Adds the VLAN identifier of the next inner tag; tags beyond [`MOST_VLANS`] are ignored.
    pub fn push(&mut self, id: u16) {
        let len = self.len();
        if len < MOST_VLANS {
            self.0 |= u32::from(id & 0xfff) << (VLAN_BITS * len);
            self.0 += 1 << LEN_AT;
        }
    }

    fn len(self) -> usize {
        (self.0 >> LEN_AT) as usize
    }

    /// Returns the VLAN identifiers, the outermost first.
    pub fn ids(self) -> impl Iterator<Item = u16> {
        (0..self.len()).map(move |at| (self.0 >> (VLAN_BITS * at)) as u16 & 0xfff)
    }

    /// Returns true if the tags that `of` selects have identifiers that match `id`.
    fn fit(self, id: &Within, of: VlanTags) -> bool {
        let fits = |it: u16| id.fits(it.into());
        match of {
            VlanTags::Any => self.ids().any(fits),
            VlanTags::All => self.len() > 0 && self.ids().all(fits),
            VlanTags::At(place) => {
                let from = if place < 0 { self.len() as i8 } else { 0 };
                let place = usize::try_from(from + place).ok();
                place.and_then(|it| self.ids().nth(it)).is_some_and(fits)
            }
        }
    }
}

#[inline]
pub(super) fn header_fits(rule: &Rule, packet: &Packet<'_>) -> bool {
    if rule.flow.to_server.is_some_and(|it| it != packet.to_server)
        || rule
            .flow
            .established
            .is_some_and(|it| it != packet.established)
        || (rule.flow.only_stream && !packet.is_in_stream)
    {
        return false;
    }
    if !rule.applications.is_empty()
        && !packet
            .application
            .is_some_and(|it| rule.applications.contains(&it))
    {
        return false;
    }
    if !rule.not_applications.is_empty()
        && match packet.application {
            Some(application) => rule.not_applications.contains(&application),
            None => !packet.is_unrecognised,
        }
    {
        return false;
    }
    let protocol_fits = match rule.protocol {
        Protocol::Ip => true,
        Protocol::Tcp => packet.protocol == 6,
        Protocol::Udp => packet.protocol == 17,
        Protocol::Icmp => matches!(packet.protocol, 1 | 58),
    };
    let any_port = packet
        .application
        .is_some_and(|it| rule.services.contains(&it));
    let side_fits = |side: &Side, address: u128, port: u16| {
        side.addresses.has(address) && (any_port || side.ports.has(u128::from(port)))
    };
    let one_way = side_fits(&rule.source, packet.source, packet.source_port)
        && side_fits(
            &rule.destination,
            packet.destination,
            packet.destination_port,
        );
    let way_fits = one_way
        || (rule.both_ways
            && side_fits(&rule.source, packet.destination, packet.destination_port)
            && side_fits(&rule.destination, packet.source, packet.source_port));
    protocol_fits && way_fits && rule.headers.iter().all(|test| test_fits(test, packet))
}

fn test_fits(test: &HeaderTest, packet: &Packet<'_>) -> bool {
    let is_tcp = packet.protocol == 6;
    let is_icmp = matches!(packet.protocol, 1 | 58);
    match test {
        HeaderTest::PayloadLen(within) => within.fits(packet.payload_len as i64),
        HeaderTest::TcpFlags(bits) => is_tcp && bits.fits(packet.tcp_flags),
        HeaderTest::TcpSequence(number) => is_tcp && packet.tcp_sequence == *number,
        HeaderTest::TcpAcknowledgement(number) => is_tcp && packet.tcp_acknowledgement == *number,
        HeaderTest::TcpWindow(within) => is_tcp && within.fits(packet.tcp_window.into()),
        HeaderTest::Ttl(within) => within.fits(packet.ttl.into()),
        HeaderTest::IpId(within) => within.fits(packet.ip_id.into()),
        HeaderTest::Tos(within) => within.fits(packet.tos.into()),
        HeaderTest::IpProtocol(within) => within.fits(packet.protocol.into()),
        HeaderTest::IpVersion(version) => {
            let is_mapped = packet.source >> 32 == 0xffff;
            is_mapped == (*version == 4)
        }
        HeaderTest::Anomaly { bits, not } => (packet.anomalies & bits != 0) != *not,
        HeaderTest::FragmentBits(bits) => Bits {
            looked_at: bits.looked_at & 7,
            ..*bits
        }
        .fits(packet.fragment_bits),
        HeaderTest::FragmentOffset(within) => within.fits(packet.fragment_offset.into()),
        HeaderTest::IpOption(wanted) => has_option(packet.ip_options, *wanted),
        HeaderTest::SameAddresses => packet.source == packet.destination,
        HeaderTest::IcmpType(within) => is_icmp && within.fits(packet.icmp.0.into()),
        HeaderTest::IcmpCode(within) => is_icmp && within.fits(packet.icmp.1.into()),
        HeaderTest::IcmpId(number) => packet.icmp_echo.is_some_and(|it| it.0 == *number),
        HeaderTest::IcmpSequence(number) => packet.icmp_echo.is_some_and(|it| it.1 == *number),
        HeaderTest::TlsState(bits) => packet.tls_version != 0 && bits.fits(packet.tls),
        HeaderTest::TlsVersion(version) => packet.tls_version == *version,
        HeaderTest::VlanId { id, of } => packet.vlans.fit(id, *of),
        HeaderTest::VlanLayers(within) => within.fits(packet.vlans.len() as i64),
        HeaderTest::StreamBytes { ends, bytes } => {
            is_tcp && ends.fit(packet.stream_bytes.map(|it| bytes.fits(it.into())))
        }
        HeaderTest::FlowPackets { ends, packets } => {
            ends.fit(packet.flow_packets.map(|it| packets.fits(it.into())))
        }
        HeaderTest::FlowBytes { ends, bytes } => {
            ends.fit(packet.flow_bytes.map(|it| bytes.fits(it as i64)))
        }
    }
}

/// Returns true if the options of an IPv4 header include one of the type `wanted`, or any option if `wanted` is none
/// (RFC 791 section 3.1).
fn has_option(mut options: &[u8], wanted: Option<u8>) -> bool {
    while let Some((&kind, rest)) = options.split_first() {
        if wanted.is_none_or(|it| it == kind) {
            return true;
        }
        options = match (kind, rest.first()) {
            (0, _) => return false,
            (1, _) => rest,
            (_, Some(&len)) if len >= 2 => options.get(usize::from(len)..).unwrap_or_default(),
            _ => return false,
        };
    }
    false
}

pub(super) fn bits_fit(rule: &Rule, bits: &FlowBits) -> bool {
    rule.bits.iter().all(|test| match test {
        FlowBit::IsSet {
            bits: wanted,
            any: true,
        } => wanted.iter().any(|&bit| bits.has(bit)),
        FlowBit::IsSet {
            bits: wanted,
            any: false,
        } => wanted.iter().all(|&bit| bits.has(bit)),
        FlowBit::IsNotSet(wanted) => !wanted.iter().any(|&bit| bits.has(bit)),
        _ => true,
    })
}
