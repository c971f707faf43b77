//! Offsets of a packet's headers, by which a script accesses named fields.

use taut_wire::{EtherType, Ethernet, Gtpu, IpProtocol, Ipv4, Ipv6, gtpu, icmp, ipv6, udp};

/// Number of headers that a script can name.
pub const HEADERS: usize = 16;

/// Offset that marks a missing header: it is after the end of every packet.
pub const ABSENT: u16 = u16::MAX;

// Indices in the array; `packet.lua` has the same numbers.
const ETHERNET: usize = 0;
const VLAN: usize = 1;
const IP4: usize = 2;
const IP6: usize = 3;
const UDP: usize = 4;
const TCP: usize = 5;
const ICMP: usize = 6;
const ARP: usize = 7;
const GTPU: usize = 8;
const PAYLOAD: usize = 9;
const USER_PAYLOAD: usize = 15;
/// Value added to a header's index if the header belongs to the user packet in a tunnel. User packets have no Ethernet
/// or VLAN header, so no such index is below `IP4 + USER`.
const USER: usize = 8;

/// Length of the Ethernet header without VLAN tag.
const ETHERNET_LEN_BYTES: usize = 14;

/// Returns the offsets of the headers of `frame`.
pub fn locate(frame: &[u8]) -> [u16; HEADERS] {
    let mut at = [ABSENT; HEADERS];
    let _ = ethernet(frame, &mut at);
    at
}

fn ethernet(frame: &[u8], at: &mut [u16; HEADERS]) -> Option<()> {
    let ethernet = Ethernet::new(frame).ok()?;
    let start = ethernet.header_len_bytes();
    at[ETHERNET] = 0;
    if start > ETHERNET_LEN_BYTES {
        at[VLAN] = ETHERNET_LEN_BYTES as u16;
    }
    match ethernet.ethertype() {
        EtherType::ARP => {
            at[ARP] = start as u16;
            Some(())
        }
        EtherType::IPV4 | EtherType::IPV6 => ip(frame, start, 0, at),
        _ => None,
    }
}

/// Locates the headers of the IP packet at `start`, and stores their offsets in `at`, at the headers' indices plus
/// `shift`. Returns none if a header cannot be located.
fn ip(frame: &[u8], start: usize, shift: usize, at: &mut [u16; HEADERS]) -> Option<()> {
    let packet = frame.get(start..)?;
    let (place, protocol, header_len) = if packet.first()? >> 4 == 4 {
        let ip = Ipv4::new(packet).ok()?;
        if ip.fragment_offset_bytes() > 0 {
            at[IP4 + shift] = start as u16;
            return None;
        }
        (IP4, ip.protocol(), ip.header_len_bytes())
    } else {
        let ip = Ipv6::new(packet).ok()?;
        (IP6, ip.next_header(), ipv6::HEADER_LEN_BYTES)
    };
    at[place + shift] = start as u16;
    let transport = start + header_len;
    let (place, header_len) = match protocol {
        IpProtocol::UDP => (UDP, udp::HEADER_LEN_BYTES),
        IpProtocol::TCP => {
            let words = frame.get(transport + 12)? >> 4;
            (TCP, usize::from(words).max(5) * 4)
        }
        IpProtocol::ICMP => (ICMP, icmp::HEADER_LEN_BYTES),
        _ => return None,
    };
    at[place + shift] = transport as u16;
    let payload = transport + header_len;
    let place = if shift == 0 { PAYLOAD } else { USER_PAYLOAD };
    at[place] = payload as u16;
    if shift > 0 || protocol != IpProtocol::UDP {
        return None;
    }
    if frame.get(transport + 2..transport + 4)? != gtpu::UDP_PORT.to_be_bytes() {
        return None;
    }
    let tunnel = Gtpu::new(frame.get(payload..)?).ok()?;
    at[GTPU] = payload as u16;
    ip(frame, payload + tunnel.header_len_bytes(), USER, at)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::{Protocol, Tunnel, UdpFlow, VlanTag};

    #[test]
    fn headers_are_located_in_tagged_and_tunnelled_frames() {
        let tagged = UdpFlow {
            vlan: Some(VlanTag::new(5).unwrap()),
            ..UdpFlow::default()
        };
        let at = locate(&tagged.frame(100).unwrap());
        assert_eq!(
            (at[VLAN], at[IP4], at[IP6], at[UDP], at[PAYLOAD]),
            (14, 18, ABSENT, 38, 46)
        );
        let at = locate(
            &UdpFlow::default()
                .frame_as(Protocol::Tcp, None, 100)
                .unwrap(),
        );
        assert_eq!((at[TCP], at[UDP], at[PAYLOAD]), (34, ABSENT, 54));
        let tunnel = Tunnel {
            teid: 7,
            src_ip: "10.0.0.1".parse().unwrap(),
            dst_ip: "10.0.0.2".parse().unwrap(),
        };
        let flow = UdpFlow::default();
        let at = locate(&flow.frame_as(Protocol::Udp, Some(&tunnel), 120).unwrap());
        assert_eq!((at[GTPU], at[IP4 + USER], at[UDP + USER]), (42, 50, 70));
        assert_eq!(at[USER_PAYLOAD], 78);
        assert_eq!(locate(&[0; 9]), [ABSENT; HEADERS]);
    }
}
