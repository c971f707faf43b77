//! Builds complete Ethernet frames with a UDP datagram in them, the templates of generated traffic.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{
    Error, EtherType, Ethernet, EthernetRepr, IpProtocol, Ipv4Repr, Ipv6Repr, Mac, Sum, Udp,
    UdpRepr, Vlan, VlanTag, ipv6, udp,
};

/// The smallest Ethernet frame, with its frame check sequence.
pub const MIN_FRAME_SIZE_BYTES: usize = 64;
/// The largest (jumbo) frame built, with its frame check sequence.
pub const MAX_FRAME_SIZE_BYTES: usize = 9216;
/// The frame check sequence, which counts in a frame's size but is the network card's to add.
pub const FRAME_CHECK_SEQUENCE_BYTES: usize = 4;

/// One flow of UDP packets over IPv4 or IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpFlow {
    /// Source MAC address.
    pub src_mac: Mac,
    /// Destination MAC address.
    pub dst_mac: Mac,
    /// Source IP address.
    pub src_ip: IpAddr,
    /// Destination IP address, of the same version.
    pub dst_ip: IpAddr,
    /// Source UDP port.
    pub src_port: u16,
    /// Destination UDP port.
    pub dst_port: u16,
    /// VLAN tag, if any; it counts in the frame's size.
    pub vlan: Option<VlanTag>,
    /// IPv4 time to live or IPv6 hop limit.
    pub ttl: u8,
}

impl Default for UdpFlow {
    /// Locally administered MAC addresses, and IP addresses set aside for benchmarks (RFC 2544, 198.18.0.0/15).
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
    /// A complete frame of `frame_size_bytes`, which includes the 4-byte frame check sequence as is the
    /// field's custom: 64 gives a buffer of 60 bytes. The UDP payload is zeros; all lengths and
    /// checksums are right.
    ///
    /// # Errors
    /// `BadLength` outside 64 to 9216 bytes, or under what this flow's headers need; `MixedIpVersions`.
    pub fn frame(&self, frame_size_bytes: usize) -> Result<Vec<u8>, Error> {
        let vlan = self.vlan.map_or(Vlan::Untagged, Vlan::Single);
        let ip_header_len = if self.src_ip.is_ipv4() {
            20
        } else {
            ipv6::HEADER_LEN_BYTES
        };
        let headers_len = 14 + vlan.len_bytes() + ip_header_len + udp::HEADER_LEN_BYTES;
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
        let udp_len = frame.len() - headers_len + udp::HEADER_LEN_BYTES;
        let ethernet = EthernetRepr {
            destination: self.dst_mac,
            source: self.src_mac,
            vlan,
            ethertype: if self.src_ip.is_ipv4() {
                EtherType::IPV4
            } else {
                EtherType::IPV6
            },
        };
        let mut ethernet = ethernet.emit(&mut frame)?;
        match (self.src_ip, self.dst_ip) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                self.fill_v4(&mut ethernet, source, destination, udp_len)?;
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                self.fill_v6(&mut ethernet, source, destination, udp_len)?;
            }
            _ => return Err(Error::MixedIpVersions),
        }
        Ok(frame)
    }

    fn fill_v4(
        &self,
        ethernet: &mut Ethernet<&mut [u8]>,
        source: Ipv4Addr,
        destination: Ipv4Addr,
        udp_len: usize,
    ) -> Result<(), Error> {
        let ip = Ipv4Repr {
            traffic_class: 0,
            identification: 0,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset_bytes: 0,
            ttl: self.ttl,
            protocol: IpProtocol::UDP,
            source,
            destination,
            options: &[],
            payload_len_bytes: udp_len,
        };
        let mut ip = ip.emit(ethernet.payload_mut())?;
        let pseudo_header = ip.pseudo_header(udp_len as u16);
        self.fill_udp(ip.payload_mut(), pseudo_header)
    }

    fn fill_v6(
        &self,
        ethernet: &mut Ethernet<&mut [u8]>,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        udp_len: usize,
    ) -> Result<(), Error> {
        let ip = Ipv6Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header: IpProtocol::UDP,
            hop_limit: self.ttl,
            source,
            destination,
            payload_len_bytes: udp_len,
        };
        let mut ip = ip.emit(ethernet.payload_mut())?;
        let pseudo_header = ip.pseudo_header(IpProtocol::UDP, udp_len as u32);
        self.fill_udp(ip.payload_mut(), pseudo_header)
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
    fn size_64_is_60_bytes_with_room_for_18_of_payload() {
        let frame = UdpFlow::default().frame(64).unwrap();
        assert_eq!(frame.len(), 60);
        let ethernet = Ethernet::new(&frame[..]).unwrap();
        let ip = crate::Ipv4::new(ethernet.payload()).unwrap();
        assert_eq!(Udp::new(ip.payload()).unwrap().payload(), [0; 18]);
    }

    #[test]
    fn sizes_outside_the_limits_are_refused() {
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
        fn etherparse_reads_what_we_build(
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
