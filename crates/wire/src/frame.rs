//! Builders of complete Ethernet frames, the templates of generated traffic: UDP, TCP or ICMP over IP, plain or in a
//! GTP-U tunnel.

use std::net::{IpAddr, Ipv4Addr};

use crate::{
    Error, EtherType, EthernetRepr, GtpuRepr, Icmpv4Repr, IpProtocol, Ipv4Repr, Ipv6Repr, Mac, Sum,
    TcpFlags, TcpRepr, Udp, UdpRepr, Vlan, VlanTag, gtpu, icmp, ipv6, udp,
};

/// The size of the smallest Ethernet frame, including its frame check sequence.
pub const MIN_FRAME_SIZE_BYTES: usize = 64;
/// The size of the largest (jumbo) frame that is built, including its frame check sequence.
pub const MAX_FRAME_SIZE_BYTES: usize = 9216;
/// The length of the frame check sequence, which counts in a frame's size but is added by the NIC.
pub const FRAME_CHECK_SEQUENCE_BYTES: usize = 4;

/// The protocol that follows the IP header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// A UDP datagram.
    #[default]
    Udp,
    /// A TCP segment with ACK set, without a connection.
    Tcp,
    /// An ICMP echo request (IPv4 only); source and destination port of the flow become its identifier and sequence
    /// number.
    IcmpEcho,
}

/// A GTP-U tunnel over IPv4 or IPv6 into which a flow's packets are encapsulated (3GPP TS 29.281).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tunnel {
    /// Tunnel endpoint identifier.
    pub teid: u32,
    /// Source address of the outer packet.
    pub src_ip: IpAddr,
    /// Destination address of the outer packet, of the same IP version as `src_ip`.
    pub dst_ip: IpAddr,
}

const TCP_HEADER_LEN_BYTES: usize = 20;
const GTPU_HEADER_LEN_BYTES: usize = 8;

fn ip_header_len(address: IpAddr) -> usize {
    if address.is_ipv4() {
        20
    } else {
        ipv6::HEADER_LEN_BYTES
    }
}

/// One flow of UDP packets over IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow {
    /// Source MAC address.
    pub src_mac: Mac,
    /// Destination MAC address.
    pub dst_mac: Mac,
    /// Source IP address.
    pub src_ip: IpAddr,
    /// Destination IP address, of the same IP version as `src_ip`.
    pub dst_ip: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination UDP port.
    pub dst_port: u16,
    /// VLAN tag, if any; its 4 bytes are included in the frame's size.
    pub vlan: Option<VlanTag>,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
}

impl Default for UdpFlow {
    /// Returns locally administered MAC addresses, and IP addresses reserved for benchmarks (RFC 2544, 198.18.0.0/15).
    fn default() -> Self {
        Self {
            src_mac: Mac([2, 0, 0, 0, 0, 1]),
            dst_mac: Mac([2, 0, 0, 0, 0, 2]),
            src_ip: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
            dst_ip: IpAddr::V4(Ipv4Addr::new(198, 19, 0, 1)),
            src_port: 31_238,
            dst_port: 31_239,
            vlan: None,
            ttl: 64,
        }
    }
}

impl UdpFlow {
    /// Builds a complete frame of `frame_size_bytes`, which by convention includes the 4-byte frame check sequence: 64
    /// gives a buffer of 60 bytes. The UDP payload is zeros; all lengths and checksums are correct.
    ///
    /// # Errors
    /// Returns `BadLength` for a size outside 64 to 9216 bytes, or below the size of this flow's headers;
    /// `MixedIpVersions` if one address is IPv4 and the other IPv6.
    pub fn frame(&self, frame_size_bytes: usize) -> Result<Vec<u8>, Error> {
        self.frame_as(Protocol::Udp, None, frame_size_bytes)
    }

    /// Returns the length of all headers of a frame of this flow, bytes: from Ethernet to `transport`, including the
    /// headers of `tunnel`.
    pub fn header_bytes(&self, transport: Protocol, tunnel: Option<&Tunnel>) -> usize {
        let vlan = self.vlan.map_or(Vlan::Untagged, Vlan::Single);
        let tunnel_len = tunnel.map_or(0, |tunnel| {
            ip_header_len(tunnel.src_ip) + udp::HEADER_LEN_BYTES + GTPU_HEADER_LEN_BYTES
        });
        let transport_len = match transport {
            Protocol::Udp => udp::HEADER_LEN_BYTES,
            Protocol::Tcp => TCP_HEADER_LEN_BYTES,
            Protocol::IcmpEcho => icmp::HEADER_LEN_BYTES,
        };
        14 + vlan.len_bytes() + tunnel_len + ip_header_len(self.src_ip) + transport_len
    }

    /// Builds a frame as [`UdpFlow::frame`] does, with another transport, or in a tunnel. The outer UDP checksum is 0,
    /// as is usual for tunnels (RFC 6935 for IPv6).
    ///
    /// # Errors
    /// Returns the errors of [`UdpFlow::frame`], and `BadValue` for an ICMP echo over IPv6.
    pub fn frame_as(
        &self,
        transport: Protocol,
        tunnel: Option<&Tunnel>,
        frame_size_bytes: usize,
    ) -> Result<Vec<u8>, Error> {
        let headers_len = self.header_bytes(transport, tunnel);
        let min = MIN_FRAME_SIZE_BYTES.max(headers_len + FRAME_CHECK_SEQUENCE_BYTES);
        let max = MAX_FRAME_SIZE_BYTES;
        if !(min..=max).contains(&frame_size_bytes) {
            let length = frame_size_bytes;
            return Err(Error::BadLength {
                what: "frame",
                length,
                min,
                max,
            });
        }

        let mut frame = vec![0; frame_size_bytes - FRAME_CHECK_SEQUENCE_BYTES];
        let outermost = tunnel.map_or(self.src_ip, |tunnel| tunnel.src_ip);
        let ethernet = EthernetRepr {
            destination: self.dst_mac,
            source: self.src_mac,
            vlan: self.vlan.map_or(Vlan::Untagged, Vlan::Single),
            ethertype: if outermost.is_ipv4() {
                EtherType::IPV4
            } else {
                EtherType::IPV6
            },
        };
        let mut ethernet = ethernet.emit(&mut frame)?;
        let packet = ethernet.payload_mut();
        match tunnel {
            None => self.fill_packet(transport, packet)?,
            Some(tunnel) => self.fill_tunnelled(transport, tunnel, packet)?,
        }
        Ok(frame)
    }

    fn fill_tunnelled(
        &self,
        transport: Protocol,
        tunnel: &Tunnel,
        packet: &mut [u8],
    ) -> Result<(), Error> {
        let (ends, ttl) = ((tunnel.src_ip, tunnel.dst_ip), self.ttl);
        fill_ip(ends, IpProtocol::UDP, ttl, packet, |datagram, _| {
            let udp = UdpRepr {
                source_port: gtpu::UDP_PORT,
                destination_port: gtpu::UDP_PORT,
                payload_len_bytes: datagram.len() - udp::HEADER_LEN_BYTES,
            };
            let mut udp = udp.emit(datagram)?;
            let gtpu = GtpuRepr {
                message_type: gtpu::MessageType::G_PDU,
                teid: tunnel.teid,
                sequence: None,
                n_pdu: None,
                extensions: None,
                payload_len_bytes: udp.payload().len() - GTPU_HEADER_LEN_BYTES,
            };
            self.fill_packet(transport, gtpu.emit(udp.payload_mut())?.payload_mut())
        })
    }

    fn fill_packet(&self, transport: Protocol, packet: &mut [u8]) -> Result<(), Error> {
        let protocol = match transport {
            Protocol::Udp => IpProtocol::UDP,
            Protocol::Tcp => IpProtocol::TCP,
            Protocol::IcmpEcho if self.src_ip.is_ipv4() => IpProtocol::ICMP,
            Protocol::IcmpEcho => {
                return Err(Error::BadValue {
                    what: "IP version of an ICMP echo",
                    value: 6,
                });
            }
        };
        let (ends, ttl) = ((self.src_ip, self.dst_ip), self.ttl);
        fill_ip(
            ends,
            protocol,
            ttl,
            packet,
            |inside, pseudo_header| match transport {
                Protocol::Udp => self.fill_udp(inside, pseudo_header),
                Protocol::Tcp => self.fill_tcp(inside, pseudo_header),
                Protocol::IcmpEcho => self.fill_icmp(inside),
            },
        )
    }

    fn fill_udp(&self, datagram: &mut [u8], pseudo_header: Sum) -> Result<(), Error> {
        let udp = UdpRepr {
            source_port: self.src_port,
            destination_port: self.dst_port,
            payload_len_bytes: datagram.len() - udp::HEADER_LEN_BYTES,
        };
        let mut udp: Udp<&mut [u8]> = udp.emit(datagram)?;
        udp.fill_checksum(pseudo_header);
        Ok(())
    }

    fn fill_tcp(&self, segment: &mut [u8], pseudo_header: Sum) -> Result<(), Error> {
        let tcp = TcpRepr {
            source_port: self.src_port,
            destination_port: self.dst_port,
            sequence: 1,
            acknowledgement: 1,
            flags: TcpFlags::ACK,
            window: 0xffff,
            urgent: 0,
            options: &[],
        };
        tcp.emit(segment)?.fill_checksum(pseudo_header);
        Ok(())
    }

    fn fill_icmp(&self, message: &mut [u8]) -> Result<(), Error> {
        let echo = Icmpv4Repr::EchoRequest {
            identifier: self.src_port,
            sequence: self.dst_port,
        };
        echo.emit(message)?.fill_checksum();
        Ok(())
    }
}

/// Writes an IP header to the front of `packet`; `fill` gets the sum of the pseudo header and writes the payload, which
/// is the rest of `packet`.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a payload is no longer than its frame, and frames are shorter than 65,536 bytes"
)]
fn fill_ip(
    ends: (IpAddr, IpAddr),
    protocol: IpProtocol,
    ttl: u8,
    packet: &mut [u8],
    fill: impl FnOnce(&mut [u8], Sum) -> Result<(), Error>,
) -> Result<(), Error> {
    let payload_len_bytes = packet.len() - ip_header_len(ends.0);
    match ends {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let ip = Ipv4Repr {
                traffic_class: 0,
                identification: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset_bytes: 0,
                ttl,
                protocol,
                source,
                destination,
                options: &[],
                payload_len_bytes,
            };
            let mut ip = ip.emit(packet)?;
            let pseudo_header = ip.pseudo_header(payload_len_bytes as u16);
            fill(ip.payload_mut(), pseudo_header)
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ip = Ipv6Repr {
                traffic_class: 0,
                flow_label: 0,
                next_header: protocol,
                hop_limit: ttl,
                source,
                destination,
                payload_len_bytes,
            };
            let mut ip = ip.emit(packet)?;
            let pseudo_header = ip.pseudo_header(protocol, payload_len_bytes as u32);
            fill(ip.payload_mut(), pseudo_header)
        }
        _ => Err(Error::MixedIpVersions),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use etherparse::{NetSlice, SlicedPacket, TransportSlice};
    use proptest::prelude::*;

    use super::*;

    fn v6() -> UdpFlow {
        UdpFlow {
            src_ip: "2001:2::1".parse().unwrap(),
            dst_ip: "2001:2::2".parse().unwrap(),
            ..UdpFlow::default()
        }
    }

    #[test]
    fn a_frame_of_size_64_has_60_bytes_without_fcs() {
        let frame = UdpFlow::default().frame(64).unwrap();
        assert_eq!(frame.len(), 60);
        let ethernet = crate::Ethernet::new(&frame[..]).unwrap();
        let ip = crate::Ipv4::new(ethernet.payload()).unwrap();
        assert_eq!(Udp::new(ip.payload()).unwrap().payload(), [0; 18]);
    }

    #[test]
    fn frame_sizes_outside_the_limits_are_refused() {
        let tagged = UdpFlow {
            vlan: Some(VlanTag::new(7).unwrap()),
            ..v6()
        };
        for (flow, size, good) in [
            (UdpFlow::default(), 0, false),
            (UdpFlow::default(), 63, false),
            (UdpFlow::default(), 9216, true),
            (UdpFlow::default(), 9217, false),
            (v6(), 65, false),
            (v6(), 66, true),
            (tagged, 69, false),
            (tagged, 70, true),
        ] {
            let frame = flow.frame(size);
            assert_eq!(frame.is_ok(), good, "{size}: {frame:?}");
        }
    }

    #[test]
    fn built_tcp_icmp_and_gtpu_frames_have_the_requested_fields() {
        let flow = UdpFlow::default();
        let tcp = flow.frame_as(Protocol::Tcp, None, 64).unwrap();
        let sliced = SlicedPacket::from_ethernet(&tcp).unwrap();
        let Some(TransportSlice::Tcp(header)) = sliced.transport else {
            panic!("{sliced:?}");
        };
        assert_eq!(header.destination_port(), 31_239);
        let icmp = flow.frame_as(Protocol::IcmpEcho, None, 64).unwrap();
        let sliced = SlicedPacket::from_ethernet(&icmp).unwrap();
        assert!(matches!(sliced.transport, Some(TransportSlice::Icmpv4(_))));
        assert!(v6().frame_as(Protocol::IcmpEcho, None, 80).is_err());

        let tunnel = Tunnel {
            teid: 77,
            src_ip: "10.0.0.1".parse().unwrap(),
            dst_ip: "10.0.0.2".parse().unwrap(),
        };
        assert!(flow.frame_as(Protocol::Udp, Some(&tunnel), 64).is_err());
        let frame = flow.frame_as(Protocol::Udp, Some(&tunnel), 128).unwrap();
        let ethernet = crate::Ethernet::new(&frame[..]).unwrap();
        let outer = crate::Ipv4::new(ethernet.payload()).unwrap();
        outer.verify_checksum().unwrap();
        let udp = Udp::new(outer.payload()).unwrap();
        let gtpu = crate::Gtpu::new(udp.payload()).unwrap();
        assert_eq!((udp.checksum(), gtpu.teid()), (0, 77));
        let inner = crate::Ipv4::new(gtpu.payload()).unwrap();
        inner.verify_checksum().unwrap();
        let pseudo_header = inner.pseudo_header(inner.payload().len() as u16);
        let datagram = Udp::new(inner.payload()).unwrap();
        datagram.verify_checksum(pseudo_header).unwrap();
    }

    #[test]
    fn mixed_ip_versions_are_refused() {
        for flow in [
            UdpFlow {
                src_ip: v6().src_ip,
                ..UdpFlow::default()
            },
            UdpFlow {
                dst_ip: v6().dst_ip,
                ..UdpFlow::default()
            },
        ] {
            assert_eq!(flow.frame(128), Err(Error::MixedIpVersions));
        }
    }

    fn any_ips() -> impl Strategy<Value = (IpAddr, IpAddr)> {
        prop_oneof![
            any::<([u8; 4], [u8; 4])>().prop_map(|(a, b)| (a.into(), b.into())),
            any::<([u8; 16], [u8; 16])>().prop_map(|(a, b)| (a.into(), b.into())),
        ]
    }

    proptest! {
        #[test]
        fn etherparse_finds_the_requested_fields_in_built_udp_frames(
            src_mac: [u8; 6], dst_mac: [u8; 6], ips in any_ips(), src_port: u16, dst_port: u16,
            id in proptest::option::of(0u16..4095), ttl: u8, size in 70usize..=9216,
        ) {
            let flow = UdpFlow {
                src_mac: Mac(src_mac), dst_mac: Mac(dst_mac), src_ip: ips.0, dst_ip: ips.1, src_port, dst_port,
                vlan: id.map(|id| VlanTag::new(id).unwrap()), ttl,
            };
            let frame = flow.frame(size).unwrap();
            prop_assert_eq!(frame.len(), size - 4);
            let theirs = SlicedPacket::from_ethernet(&frame).unwrap();
            let Some(etherparse::LinkSlice::Ethernet2(link)) = &theirs.link else { panic!("no Ethernet") };
            prop_assert_eq!((link.source(), link.destination()), (src_mac, dst_mac));
            let their_id = theirs.vlan_ids().first().map(|id| id.value());
            prop_assert_eq!(their_id, id);
            let Some(TransportSlice::Udp(udp)) = &theirs.transport else { panic!("no UDP") };
            prop_assert_eq!((udp.source_port(), udp.destination_port()), (src_port, dst_port));
            let header = udp.to_header();
            let checksum = match &theirs.net {
                Some(NetSlice::Ipv4(ip)) => {
                    let ip = ip.header();
                    prop_assert_eq!(ip.header_checksum(), ip.to_header().calc_header_checksum());
                    prop_assert_eq!((ip.source_addr().into(), ip.destination_addr().into()), ips);
                    prop_assert_eq!(ip.ttl(), ttl);
                    header.calc_checksum_ipv4_raw(ip.source(), ip.destination(), udp.payload())
                }
                Some(NetSlice::Ipv6(ip)) => {
                    let ip = ip.header();
                    prop_assert_eq!((ip.source_addr().into(), ip.destination_addr().into()), ips);
                    prop_assert_eq!(ip.hop_limit(), ttl);
                    header.calc_checksum_ipv6_raw(ip.source(), ip.destination(), udp.payload())
                }
                other => panic!("no IP: {other:?}"),
            };
            prop_assert_eq!(udp.checksum(), checksum.unwrap());
        }
    }
}
