//! One look at a frame's headers: where those of layers 3 and 4 lie, and what tells its flow apart.

use crate::{EtherType, Ethernet, IpProtocol, Ipv4, Ipv6};
use std::net::Ipv4Addr;

const IPV6_LEN_BYTES: usize = crate::ipv6::HEADER_LEN_BYTES;

/// What an Ethernet frame carries, behind up to two VLAN tags.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Layer3 {
    /// Neither of the others.
    #[default]
    Other,
    /// IPv4.
    Ipv4,
    /// IPv6.
    Ipv6,
}

/// Where a frame is cut short, or lies about a length. What lies in front of it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// In the Ethernet header or its tags, or it is longer than any frame.
    Ethernet,
    /// In the IP header.
    Ip,
    /// In an extension header of IPv6.
    Extension,
    /// In front of the ports that its protocol has.
    Ports,
}

/// Where the headers of a frame lie, in bytes from its beginning, and what they say that tells flows apart. Nothing is said
/// about checksums.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Headers {
    layer3: Layer3,
    protocol: IpProtocol,
    fault: Option<Fault>,
    is_fragment: bool,
    has_ports: bool,
    ip: u16,
    transport: u16,
    end: u16,
    ports: (u16, u16),
}

impl Default for Headers {
    /// Of a frame that carries no IP.
    fn default() -> Self {
        Self {
            layer3: Layer3::Other,
            protocol: IpProtocol::NO_NEXT_HEADER,
            fault: None,
            is_fragment: false,
            has_ports: false,
            ip: 0,
            transport: 0,
            end: 0,
            ports: (0, 0),
        }
    }
}

impl Headers {
    /// Reads a frame, of 65,535 bytes at most.
    #[inline]
    pub fn of(frame: &[u8]) -> Self {
        let mut headers = Self::default();
        headers.fault = headers.read(frame).err();
        headers
    }

    #[inline]
    fn read(&mut self, frame: &[u8]) -> Result<(), Fault> {
        if frame.len() > usize::from(u16::MAX) {
            return Err(Fault::Ethernet);
        }
        let ethernet = Ethernet::new(frame).map_err(|_| Fault::Ethernet)?;
        let ip_at = ethernet.header_len_bytes();
        let ip_bytes = &frame[ip_at..];
        self.ip = ip_at as u16;
        let (transport, is_later) = match ethernet.ethertype() {
            EtherType::IPV4 => {
                self.layer3 = Layer3::Ipv4;
                let ip = Ipv4::new(ip_bytes).map_err(|_| Fault::Ip)?;
                self.protocol = ip.protocol();
                self.is_fragment = ip.is_fragment();
                let at = ip_at + ip.header_len_bytes();
                let length = ip.payload().len();
                (at..at + length, ip.fragment_offset_bytes() != 0)
            }
            EtherType::IPV6 => {
                self.layer3 = Layer3::Ipv6;
                let ip = Ipv6::new(ip_bytes).map_err(|_| Fault::Ip)?;
                let transport = ip.transport().map_err(|_| Fault::Extension)?;
                self.protocol = transport.protocol;
                self.is_fragment = transport.fragment.is_some();
                let at = ip_at + IPV6_LEN_BYTES + transport.extensions_len_bytes;
                let length = transport.payload.len();
                let is_later = transport.fragment.is_some_and(|it| it.offset_bytes != 0);
                (at..at + length, is_later)
            }
            _ => return Ok(()),
        };
        self.transport = transport.start as u16;
        self.end = transport.end as u16;
        if is_later || !self.protocol.has_ports() {
            return Ok(());
        }
        let ports = frame[transport].first_chunk().ok_or(Fault::Ports)?;
        let [a, b, c, d] = *ports;
        self.ports = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
        self.has_ports = true;
        Ok(())
    }

    /// What the frame carries, behind its tags.
    #[inline]
    pub fn layer3(&self) -> Layer3 {
        self.layer3
    }

    /// Where it is cut short or lies; none if nowhere up to its ports.
    #[inline]
    pub fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Where the IP header begins, or what else the frame carries.
    #[inline]
    pub fn ip(&self) -> usize {
        usize::from(self.ip)
    }

    /// Where the header of layer 4 begins, or what a later fragment has of it: behind options and extension headers. 0 where
    /// there is none, by [`Headers::fault`] or [`Headers::layer3`].
    #[inline]
    pub fn transport(&self) -> usize {
        usize::from(self.transport)
    }

    /// Where the IP packet ends: a short frame goes on behind it. 0 as of [`Headers::transport`].
    #[inline]
    pub fn end(&self) -> usize {
        usize::from(self.end)
    }

    /// What the header of layer 4 is of.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        self.protocol
    }

    /// Whether it is a part of a packet, the first one among them.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.is_fragment
    }

    /// Ports of source and destination: of TCP, UDP and SCTP but in later fragments.
    #[inline]
    pub fn ports(&self) -> Option<(u16, u16)> {
        self.has_ports.then_some(self.ports)
    }

    /// Header and payload of layer 4 in the frame that was read; nothing where there is none.
    #[inline]
    pub fn transport_in<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.transport()..self.end()).unwrap_or_default()
    }

    /// The addresses of source and destination in the frame that was read, IPv4 ones among those of IPv6
    /// (RFC 4291 section 2.5.5.2); 0 where there are none.
    #[inline]
    pub fn addresses_in(&self, frame: &[u8]) -> (u128, u128) {
        let ip = frame.get(self.ip()..).unwrap_or_default();
        match (self.layer3, self.fault) {
            (_, Some(Fault::Ethernet | Fault::Ip)) | (Layer3::Other, _) => (0, 0),
            (Layer3::Ipv4, _) => (mapped(ip, 12), mapped(ip, 16)),
            (Layer3::Ipv6, _) => (number(ip, 8), number(ip, 24)),
        }
    }
}

/// The IPv4 address at that place.
#[inline]
fn mapped(bytes: &[u8], at: usize) -> u128 {
    let address = bytes.get(at..).and_then(|it| it.first_chunk::<4>());
    address.map_or(0, |it| Ipv4Addr::from(*it).to_ipv6_mapped().to_bits())
}

/// The IPv6 address at that place.
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
        // And a check sequence of 4.
        flow.frame(104).unwrap()
    }

    fn v4() -> Vec<u8> {
        flow("198.18.0.1", "198.18.0.2")
    }

    fn v6() -> Vec<u8> {
        flow("2001:db8::1", "2001:db8::2")
    }

    /// With bytes put in at a place.
    fn with(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
        frame.splice(at..at, bytes.iter().copied());
        frame
    }

    /// With other bytes at a place.
    fn but(mut frame: Vec<u8>, at: usize, bytes: &[u8]) -> Vec<u8> {
        frame[at..at + bytes.len()].copy_from_slice(bytes);
        frame
    }

    /// An IPv6 frame with these extension headers, the first of which is `first`.
    fn extended(first: u8, extensions: &[u8]) -> Vec<u8> {
        let length = 46 + extensions.len() as u16;
        let frame = but(v6(), 18, &length.to_be_bytes());
        with(but(frame, 20, &[first]), 54, extensions)
    }

    #[test]
    fn odd_frames() {
        const UDP: u8 = 17;
        let tag = [0x81, 0, 0, 5];
        let service = [0x88, 0xa8, 0, 6, 0x81, 0, 0, 5];
        let hop_by_hop = [UDP, 0, 1, 4, 0, 0, 0, 0];
        let fragment = |offset_and_more: u16| {
            let [a, b] = offset_and_more.to_be_bytes();
            [UDP, 0, a, b, 0, 0, 0, 7]
        };
        // Routing, then destination options of 16 bytes, then the first fragment.
        let mut three = vec![60, 0, 0, 0, 0, 0, 0, 0, 44, 1];
        three.extend([0; 14]);
        three.extend(fragment(1));
        // Layer 3, fault, places of IP header, transport and end, fragment, ports.
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

    #[test]
    fn addresses_of_both_versions_are_numbers_of_one_kind() {
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
            // Of another frame there may be none.
            assert_eq!(it.addresses_in(&frame[..20]), (0, 0));
            assert!(it.transport_in(&frame[..20]).is_empty());
        }
        assert_eq!(Headers::of(&[0; 60]).addresses_in(&[7; 60]), (0, 0));
    }

    #[test]
    fn headers_of_a_packet_take_no_more_than_a_quarter_of_a_cache_line() {
        assert!(size_of::<Headers>() <= 16);
    }
}
