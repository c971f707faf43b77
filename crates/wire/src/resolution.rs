//! Address resolution as complete frames: requests for an address, and replies, by ARP (RFC 826) and neighbour
//! discovery (RFC 4861).

use std::net::{IpAddr, Ipv6Addr};

use crate::arp::Operation;
use crate::{
    Arp, ArpRepr, EtherType, Ethernet, EthernetRepr, IpProtocol, Ipv6, Ipv6Repr, Mac, Neighbour,
    NeighbourRepr, checksum, neighbour,
};

/// The length of the shortest Ethernet frame without its frame check sequence, in bytes.
pub(crate) const SHORTEST_BYTES: usize = 60;

/// The length of the longest frame that this module writes, in bytes: a neighbour message with two VLAN tags.
pub const LONGEST_BYTES: usize = 96;

/// Returns the IP address whose MAC address the frame requests; None if `frame` is not a request by ARP or neighbour
/// discovery.
pub fn asked(frame: &[u8]) -> Option<IpAddr> {
    let ethernet = Ethernet::new(frame).ok()?;
    match ethernet.ethertype() {
        EtherType::ARP => {
            let arp = Arp::new(ethernet.payload()).ok()?;
            let asks = arp.operation() == Operation::REQUEST && arp.sender_ip() != arp.target_ip();
            asks.then(|| arp.target_ip().into())
        }
        EtherType::IPV6 => {
            let (_, message) = neighbour_message(&ethernet)?;
            let asks = message.is_solicitation();
            asks.then(|| message.target().into())
        }
        _ => None,
    }
}

/// Writes the reply to the request `frame` into `reply`, if `mac_of` returns a MAC address for the requested IP
/// address. Returns the length of the reply in bytes; None if there is no reply.
pub fn answer(
    frame: &[u8],
    mac_of: impl Fn(IpAddr) -> Option<Mac>,
    reply: &mut [u8; LONGEST_BYTES],
) -> Option<usize> {
    let mac = mac_of(asked(frame)?)?;
    let question = Ethernet::new(frame).ok()?;
    let mut header = EthernetRepr::parse(&question).ok()?;
    match question.ethertype() {
        EtherType::ARP => {
            let arp = Arp::new(question.payload()).ok()?;
            header.destination = arp.sender_mac();
            header.source = mac;
            let answer = ArpRepr {
                operation: Operation::REPLY,
                sender_mac: mac,
                sender_ip: arp.target_ip(),
                target_mac: arp.sender_mac(),
                target_ip: arp.sender_ip(),
            };
            arp_frame(&header, &answer, reply)
        }
        EtherType::IPV6 => {
            let (asker, message) = neighbour_message(&question)?;
            // A sender without an address gets the reply by multicast (RFC 4861 section 7.2.4).
            let solicited = !asker.is_unspecified();
            let (to_ip, to_mac) = if solicited {
                (asker, message.mac().unwrap_or(question.source()))
            } else {
                let all_nodes = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
                (all_nodes, Mac([0x33, 0x33, 0, 0, 0, 1]))
            };
            header.destination = to_mac;
            header.source = mac;
            let answer = NeighbourRepr::Advertisement {
                target: message.target(),
                mac,
                solicited,
            };
            neighbour_frame(&header, (message.target(), to_ip), &answer, reply)
        }
        _ => None,
    }
}

/// Returns true for frames that may be requests for MAC addresses or replies: ARP and IPv6, also with a VLAN tag. The
/// check is cheap, and does not parse the message.
#[inline(always)]
pub fn may_be_about_neighbours(frame: &[u8]) -> bool {
    matches!(
        frame.get(12..14),
        Some([0x08, 0x06] | [0x86, 0xdd] | [0x81, 0x00] | [0x88, 0xa8])
    )
}

/// Writes an Ethernet frame with an ARP packet; returns the frame's length in bytes.
pub fn arp_frame(
    header: &EthernetRepr,
    packet: &ArpRepr,
    frame: &mut [u8; LONGEST_BYTES],
) -> Option<usize> {
    frame.fill(0);
    let mut ethernet = header.emit(frame).ok()?;
    packet.emit(ethernet.payload_mut()).ok()?;
    let len = header.header_len_bytes() + ArpRepr::LEN_BYTES;
    Some(len.max(SHORTEST_BYTES))
}

/// Writes an Ethernet frame with a neighbour message from the first of the given addresses to the second; returns the
/// frame's length in bytes.
#[expect(clippy::cast_possible_truncation, reason = "a length of 32")]
pub fn neighbour_frame(
    header: &EthernetRepr,
    (from, to): (Ipv6Addr, Ipv6Addr),
    message: &NeighbourRepr,
    frame: &mut [u8; LONGEST_BYTES],
) -> Option<usize> {
    frame.fill(0);
    let ip = Ipv6Repr {
        traffic_class: 0,
        flow_label: 0,
        next_header: IpProtocol::ICMPV6,
        hop_limit: neighbour::HOP_LIMIT,
        source: from,
        destination: to,
        payload_len_bytes: NeighbourRepr::LEN_BYTES,
    };
    let mut ethernet = header.emit(frame).ok()?;
    let mut ip = ip.emit(ethernet.payload_mut()).ok()?;
    let length = NeighbourRepr::LEN_BYTES as u32;
    let pseudo_header = checksum::pseudo_header_v6(from, to, IpProtocol::ICMPV6, length);
    message.emit(ip.payload_mut(), pseudo_header).ok()?;
    let packet = crate::ipv6::HEADER_LEN_BYTES + NeighbourRepr::LEN_BYTES;
    Some(header.header_len_bytes() + packet)
}

/// Returns the sender's address and the neighbour message in a frame. Returns None if the message is invalid, or its
/// hop limit does not prove that it comes from this link.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a message is no longer than the payload length, of 16 bits"
)]
pub fn neighbour_message<'a>(
    ethernet: &'a Ethernet<&[u8]>,
) -> Option<(Ipv6Addr, Neighbour<&'a [u8]>)> {
    let packet = ethernet.payload();
    let ip = Ipv6::new(packet).ok()?;
    if ip.next_header() != IpProtocol::ICMPV6 || ip.hop_limit() != neighbour::HOP_LIMIT {
        return None;
    }
    let start = crate::ipv6::HEADER_LEN_BYTES;
    let length = ip.payload().len();
    let message = Neighbour::new(packet.get(start..start + length)?).ok()?;
    let pseudo_header = ip.pseudo_header(IpProtocol::ICMPV6, length as u32);
    message.verify_checksum(pseudo_header).ok()?;
    Some((ip.source(), message))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const OWN: Mac = Mac([2, 0, 0, 0, 0, 0xa0]);
    const ASKER: Mac = Mac([2, 0, 0, 0, 0, 7]);

    fn asked(header: &EthernetRepr, v6: bool) -> Vec<u8> {
        let mut frame = [0; LONGEST_BYTES];
        let length = if v6 {
            let question = NeighbourRepr::Solicitation {
                target: "2001:db8::1".parse().unwrap(),
                mac: ASKER,
            };
            let ends = (
                "2001:db8::7".parse().unwrap(),
                "ff02::1:ff00:1".parse().unwrap(),
            );
            neighbour_frame(header, ends, &question, &mut frame)
        } else {
            let question = ArpRepr {
                operation: Operation::REQUEST,
                sender_mac: ASKER,
                sender_ip: "192.0.2.7".parse().unwrap(),
                target_mac: Mac::default(),
                target_ip: "192.0.2.1".parse().unwrap(),
            };
            arp_frame(header, &question, &mut frame)
        };
        frame[..length.unwrap()].to_vec()
    }

    #[test]
    fn only_the_owner_of_an_address_replies_to_requests() {
        for (v6, own) in [(false, "192.0.2.1"), (true, "2001:db8::1")] {
            let header = EthernetRepr {
                destination: Mac::BROADCAST,
                source: ASKER,
                vlan: crate::Vlan::Untagged,
                ethertype: if v6 { EtherType::IPV6 } else { EtherType::ARP },
            };
            let frame = asked(&header, v6);
            assert!(may_be_about_neighbours(&frame));
            let own: IpAddr = own.parse().unwrap();
            let mut reply = [0; LONGEST_BYTES];
            let length = answer(&frame, |ip| (ip == own).then_some(OWN), &mut reply).unwrap();
            let answered = Ethernet::new(&reply[..length]).unwrap();
            assert_eq!((answered.destination(), answered.source()), (ASKER, OWN));
            if v6 {
                let (from, message) = neighbour_message(&answered).unwrap();
                assert_eq!((IpAddr::from(from), message.mac()), (own, Some(OWN)));
                assert!(!message.is_solicitation());
            } else {
                let arp = Arp::new(answered.payload()).unwrap();
                assert_eq!(
                    (IpAddr::from(arp.sender_ip()), arp.sender_mac()),
                    (own, OWN)
                );
                assert_eq!(
                    (arp.operation(), arp.target_mac()),
                    (Operation::REPLY, ASKER)
                );
            }
            assert_eq!(answer(&frame, |_| None, &mut reply), None);
            // A reply is not a request.
            let answered = reply[..length].to_vec();
            assert_eq!(answer(&answered, |_| Some(OWN), &mut reply), None);
            for cut in 0..frame.len().min(40) {
                answer(&frame[..cut], |_| Some(OWN), &mut reply);
            }
        }
    }
}
