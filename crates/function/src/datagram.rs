//! Where in a frame a UDP datagram and its payload lie, for functions that change payloads.

use taut_wire::{EtherType, Ethernet, IpProtocol, Ipv4, Ipv6, Udp};

/// What a frame is to a function that changes UDP payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Seen {
    /// A whole UDP datagram.
    Datagram(Datagram),
    /// Something else, or a part of a datagram.
    Other,
    /// A header that lies about a length or is cut short.
    Malformed,
}

/// Places in a frame, bytes from its beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Datagram {
    /// Of the UDP header.
    pub(crate) udp: usize,
    /// Behind the last byte of the payload.
    pub(crate) end: usize,
}

impl Seen {
    /// Reads a frame.
    #[inline]
    pub(crate) fn of(frame: &[u8]) -> Self {
        let Ok(ethernet) = Ethernet::new(frame) else {
            return Self::Malformed;
        };
        let ip_at = ethernet.header_len_bytes();
        let (udp_at, udp) = match ethernet.ethertype() {
            EtherType::IPV4 => {
                let Ok(ip) = Ipv4::new(&frame[ip_at..]) else {
                    return Self::Malformed;
                };
                if ip.protocol() != IpProtocol::UDP || ip.is_fragment() {
                    return Self::Other;
                }
                (
                    ip_at + ip.header_len_bytes(),
                    Udp::new(ip.payload()).map(|it| it.length()),
                )
            }
            EtherType::IPV6 => {
                let Ok(ip) = Ipv6::new(&frame[ip_at..]) else {
                    return Self::Malformed;
                };
                let Ok(transport) = ip.transport() else {
                    return Self::Malformed;
                };
                if transport.protocol != IpProtocol::UDP || transport.fragment.is_some() {
                    return Self::Other;
                }
                let at = ip_at + 40 + transport.extensions_len_bytes;
                (at, Udp::new(transport.payload).map(|it| it.length()))
            }
            _ => return Self::Other,
        };
        match udp {
            Ok(length) => Self::Datagram(Datagram {
                udp: udp_at,
                end: udp_at + usize::from(length),
            }),
            Err(_) => Self::Malformed,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::UdpFlow;

    #[test]
    fn a_datagram_is_found_and_what_is_cut_short_or_something_else_is_told_apart() {
        for (v6, udp) in [(false, 34), (true, 54)] {
            let mut flow = UdpFlow::default();
            if v6 {
                flow.src_ip = "2001:db8::1".parse().unwrap();
                flow.dst_ip = "2001:db8::2".parse().unwrap();
            }
            let frame = flow.frame(100).unwrap();
            let end = frame.len();
            assert_eq!(Seen::of(&frame), Seen::Datagram(Datagram { udp, end }));
            // A frame may be padded.
            let mut padded = frame.clone();
            padded.extend([0; 7]);
            assert_eq!(Seen::of(&padded), Seen::Datagram(Datagram { udp, end }));
            for length in 0..end {
                assert_eq!(Seen::of(&frame[..length]), Seen::Malformed, "{length}");
            }
            let mut lying = frame.clone();
            lying[udp + 5] += 1;
            assert_eq!(Seen::of(&lying), Seen::Malformed);
            let mut other = frame.clone();
            other[if v6 { 20 } else { 23 }] = 6;
            assert_eq!(Seen::of(&other), Seen::Other);
        }
        let mut fragment = UdpFlow::default().frame(100).unwrap();
        fragment[20] = 0x20;
        assert_eq!(Seen::of(&fragment), Seen::Other);
        let mut arp = UdpFlow::default().frame(64).unwrap();
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(Seen::of(&arp), Seen::Other);
    }
}
