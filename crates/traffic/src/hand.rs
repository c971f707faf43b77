//! Hand of a script on the packets of a trial: whole batches of them, made ahead and seen on arrival.

use std::collections::VecDeque;
use taut_port::{BATCH_CAPACITY, Packet};
use taut_wire::{EtherType, Ethernet, Gtpu, IpProtocol, Ipv4, Ipv6, StampLayout, Tcp, Udp, gtpu};

/// Makes packets of a trial's streams and sees what arrives.
pub trait Hand {
    /// False where there is no hand at all, so that its code is left out.
    const ACTIVE: bool = true;
    /// Whether packets of the stream of this index pass through [`Hand::craft`].
    fn crafts(&self, stream: usize) -> bool;
    /// Whether the stream's packets get stamps, if they can carry them.
    fn stamps(&self, stream: usize) -> bool;
    /// Changes packets that are complete but for checksums and stamps, which follow by themselves. Their
    /// order is the one in which they will be sent.
    fn craft(&mut self, stream: usize, packets: &mut [Packet]);
    /// Sees packets that arrived, and may change them; returns a bit for each that is to be sent back
    /// through the port it came on.
    fn arrived(&mut self, packets: &mut [Packet], arrivals: &[Arrival]) -> u64;
    /// True once the trial is to end.
    fn is_stopped(&self) -> bool;
}

/// Absence of a hand.
pub(crate) struct NoHand;

impl Hand for NoHand {
    const ACTIVE: bool = false;

    fn crafts(&self, _: usize) -> bool {
        false
    }

    fn stamps(&self, _: usize) -> bool {
        true
    }

    fn craft(&mut self, _: usize, _: &mut [Packet]) {}

    fn arrived(&mut self, _: &mut [Packet], _: &[Arrival]) -> u64 {
        0
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

/// Content of the stamp of a packet that arrived; nothing for one without stamp.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Arrival {
    /// Index of the stream in its sender's traffic, sequence number, and ns from stamp to arrival (the
    /// sender's clock must be the receiver's).
    pub stamp: Option<(u16, u64, f64)>,
}

/// A packet that waits to be sent.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) packet: Packet,
    /// Layout of the stamp, if the packet is to have one.
    pub(crate) layout: Option<StampLayout>,
}

/// Packets of one stream that a hand made ahead, in memory set aside before the trial.
#[derive(Debug)]
pub(crate) struct Crafted {
    packets: VecDeque<Made>,
}

impl Default for Crafted {
    fn default() -> Self {
        Self {
            packets: VecDeque::with_capacity(BATCH_CAPACITY),
        }
    }
}

impl Crafted {
    pub(crate) fn len(&self) -> usize {
        self.packets.len()
    }

    pub(crate) fn push(&mut self, mut packet: Packet, measured: bool) {
        let layout = complete(packet.bytes_mut(), measured);
        self.packets.push_back(Made { packet, layout });
    }

    pub(crate) fn pop(&mut self) -> Option<Made> {
        self.packets.pop_front()
    }
}

/// Writes the checksums that belong to what a hand wrote, but for the one that a stamp brings with it;
/// returns where the stamp goes. Leaves alone what it does not know.
fn complete(frame: &mut [u8], measured: bool) -> Option<StampLayout> {
    let layout = fill_ip_checksums(frame)
        .filter(|_| measured)
        .and_then(|()| StampLayout::new(frame).ok());
    if layout.is_none() {
        fill_checksums(frame);
    }
    layout
}

/// Writes the checksums of the IPv4 headers; None where there is no IP packet.
fn fill_ip_checksums(frame: &mut [u8]) -> Option<()> {
    let packet = ip_packet(frame)?;
    fill_ip_checksum(packet);
    if let Some(inner) = tunnelled(packet) {
        fill_ip_checksum(inner);
    }
    Some(())
}

/// Writes the checksums of IPv4, UDP, TCP and ICMP (version 4) as the contents demand; inside a GTP-U tunnel
/// those of the user's packet, whose outer UDP has none.
pub fn fill_checksums(frame: &mut [u8]) {
    let _ = fill_ip_checksums(frame);
    let Some(packet) = ip_packet(frame) else {
        return;
    };
    match tunnelled(packet) {
        Some(inner) => fill_transport_checksum(inner),
        None => fill_transport_checksum(packet),
    };
}

fn ip_packet(frame: &mut [u8]) -> Option<&mut [u8]> {
    let ethernet = Ethernet::new(&*frame).ok()?;
    let start = ethernet.header_len_bytes();
    let known = [EtherType::IPV4, EtherType::IPV6].contains(&ethernet.ethertype());
    known.then_some(frame.get_mut(start..)?)
}

fn fill_ip_checksum(packet: &mut [u8]) {
    if packet.first().is_some_and(|b| b >> 4 == 4)
        && let Ok(mut ip) = Ipv4::new(packet)
    {
        ip.fill_checksum();
    }
}

/// Protocol, and from where to where the payload lies.
fn payload(packet: &[u8]) -> Option<(IpProtocol, usize, usize)> {
    if packet.first()? >> 4 == 4 {
        let ip = Ipv4::new(packet).ok()?;
        let start = ip.header_len_bytes();
        return Some((ip.protocol(), start, start + ip.payload().len()));
    }
    let ip = Ipv6::new(packet).ok()?;
    let start = taut_wire::ipv6::HEADER_LEN_BYTES;
    Some((ip.next_header(), start, start + ip.payload().len()))
}

fn tunnelled(packet: &mut [u8]) -> Option<&mut [u8]> {
    let (protocol, start, end) = payload(packet)?;
    if protocol != IpProtocol::UDP {
        return None;
    }
    let udp = Udp::new(packet.get(start..end)?).ok()?;
    if udp.destination_port() != gtpu::UDP_PORT {
        return None;
    }
    let tunnel = Gtpu::new(udp.payload()).ok()?;
    let start = start + taut_wire::udp::HEADER_LEN_BYTES + tunnel.header_len_bytes();
    packet.get_mut(start..end)
}

fn fill_transport_checksum(packet: &mut [u8]) -> Option<()> {
    let (protocol, start, end) = payload(packet)?;
    let length = end - start;
    let pseudo_header = if packet[0] >> 4 == 4 {
        Ipv4::new(&*packet).ok()?.pseudo_header(length as u16)
    } else {
        let ip = Ipv6::new(&*packet).ok()?;
        ip.pseudo_header(protocol, length as u32)
    };
    let inside = packet.get_mut(start..end)?;
    match protocol {
        IpProtocol::UDP => Udp::new(inside).ok()?.fill_checksum(pseudo_header),
        IpProtocol::TCP => Tcp::new(inside).ok()?.fill_checksum(pseudo_header),
        IpProtocol::ICMP => taut_wire::Icmpv4::new(inside).ok()?.fill_checksum(),
        _ => {}
    }
    Some(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::{Protocol, Tunnel, UdpFlow};

    #[test]
    fn checksums_follow_what_was_written() {
        let tunnel = Tunnel {
            teid: 1,
            src_ip: "10.0.0.1".parse().unwrap(),
            dst_ip: "10.0.0.2".parse().unwrap(),
        };
        let flow = UdpFlow::default();
        for (protocol, tunnel) in [
            (Protocol::Udp, None),
            (Protocol::Udp, Some(&tunnel)),
            (Protocol::Tcp, None),
            (Protocol::IcmpEcho, None),
        ] {
            let want = flow.frame_as(protocol, tunnel, 120).unwrap();
            let mut right = want.clone();
            fill_checksums(&mut right);
            let start = if tunnel.is_some() { 14 + 36 } else { 14 };
            let mut harmed = right.clone();
            // The address and the last byte of the payload: what lies under both checksums.
            harmed[start + 12] ^= 0x55;
            let last = harmed.len() - 1;
            harmed[last] ^= 0xaa;
            fill_checksums(&mut harmed);
            let ip = Ipv4::new(&harmed[start..]).unwrap();
            ip.verify_checksum().unwrap();
            let pseudo_header = ip.pseudo_header(ip.payload().len() as u16);
            match protocol {
                Protocol::Udp => {
                    let udp = Udp::new(ip.payload()).unwrap();
                    udp.verify_checksum(pseudo_header).unwrap();
                }
                Protocol::Tcp => {
                    let tcp = Tcp::new(ip.payload()).unwrap();
                    tcp.verify_checksum(pseudo_header).unwrap();
                }
                Protocol::IcmpEcho => {
                    let icmp = taut_wire::Icmpv4::new(ip.payload()).unwrap();
                    icmp.verify_checksum().unwrap();
                }
            }
        }
    }

    #[test]
    fn what_is_not_ip_stays_as_it_is() {
        let mut frame = vec![7; 60];
        fill_checksums(&mut frame);
        assert_eq!(frame, vec![7; 60]);
        assert!(complete(&mut frame, true).is_none());
    }
}
