//! The interface of a script to the packets of a trial. The script makes batches of packets in advance, and gets the
//! packets that arrive.

use std::collections::VecDeque;
use taut_port::{BATCH_CAPACITY, Packet};
use taut_wire::{EtherType, Ethernet, Gtpu, IpProtocol, Ipv4, Ipv6, StampLayout, Tcp, Udp, gtpu};

/// A script that makes packets of a trial's streams, and gets the packets that arrive.
pub trait Hand {
    /// True if there is a script. False lets the compiler remove the calls of the methods below.
    const ACTIVE: bool = true;
    /// Returns true if packets of the stream with index `stream` pass through [`Hand::craft`].
    fn crafts(&self, stream: usize) -> bool;
    /// Returns true if the stream's packets get timestamps; packets that cannot carry a timestamp get none.
    fn stamps(&self, stream: usize) -> bool;
    /// Changes packets before they are sent. They are complete except for checksums and timestamps, which are written
    /// afterwards. They are sent in the order of the slice.
    fn craft(&mut self, stream: usize, packets: &mut [Packet]);
    /// Gets packets that arrived, and may change them. Returns those to send.
    fn arrived(&mut self, packets: &mut [Packet], arrivals: &[Arrival]) -> Replies;
    /// Returns true when the trial must end.
    fn is_stopped(&self) -> bool;
    /// Returns true if the other load generators that end together with this one have also sent all their packets. The
    /// trial calls the method after this generator has sent all packets, and receives until the result is true.
    fn all_have_sent(&mut self) -> bool {
        true
    }
    /// Returns true if the script gets the packets that arrive. Their buffers then need space, because the script may
    /// lengthen them.
    fn listens(&self) -> bool {
        false
    }
}

/// Arrived packets that a script sends, as bitmaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Replies {
    /// Packets that leave through their ingress port.
    pub back: u64,
    /// Packets that leave through the port that sends.
    pub on: u64,
}

/// The implementation of [`Hand`] without a script.
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

    fn arrived(&mut self, _: &mut [Packet], _: &[Arrival]) -> Replies {
        Replies::default()
    }

    fn is_stopped(&self) -> bool {
        false
    }
}

/// The data of a packet that arrived.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Arrival {
    /// Content of the packet's stamp: index of the stream in the sender's traffic, sequence number, and time from
    /// timestamp to arrival, ns. The time is valid only if sender and receiver use the same clock. None if the packet
    /// has no stamp.
    pub stamp: Option<(u16, u64, f64)>,
    /// Time of the receive call, ns of the clock of timestamps.
    pub at_ns: f64,
    /// Timestamp of the packet by the receiving port, relative to the port's first timestamp, in the port's unit; none
    /// if the port has no timestamps.
    pub port_stamp: Option<u64>,
}

/// A packet that a script made and that waits to be sent.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) packet: Packet,
    /// Layout of the packet's stamp (flow, sequence number and send timestamp); none if the packet gets no stamp.
    pub(crate) layout: Option<StampLayout>,
}

/// Packets of one stream that a script made in advance, in memory allocated before the trial.
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

/// Writes the checksums of a frame that a script wrote, except for the checksum that the stamp updates. Returns the
/// layout of the stamp; none if `measured` is false, or the frame cannot carry a stamp. Ignores unknown protocols.
fn complete(frame: &mut [u8], measured: bool) -> Option<StampLayout> {
    let layout = fill_ip_checksums(frame)
        .filter(|_| measured)
        .and_then(|()| StampLayout::new(frame).ok());
    if layout.is_none() {
        fill_checksums(frame);
    }
    layout
}

/// Writes the checksums of the IPv4 headers; returns none if the frame contains no IP packet.
fn fill_ip_checksums(frame: &mut [u8]) -> Option<()> {
    let packet = ip_packet(frame)?;
    fill_ip_checksum(packet);
    if let Some(inner) = tunnelled(packet) {
        fill_ip_checksum(inner);
    }
    Some(())
}

/// Writes the checksums of IPv4, UDP, TCP and ICMP (version 4). In a GTP-U tunnel, these are the checksums of the user
/// packet, and the outer UDP header gets no checksum.
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

/// Returns the protocol after the IP header, and the start and end offset of the IP payload; none for an invalid
/// packet.
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
    fn checksums_are_recalculated_after_the_frame_is_changed() {
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
            // The changed bytes are the address and the last byte of the payload, which both checksums cover.
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
    fn frames_other_than_ip_stay_unchanged() {
        let mut frame = vec![7; 60];
        fill_checksums(&mut frame);
        assert_eq!(frame, vec![7; 60]);
        assert!(complete(&mut frame, true).is_none());
    }
}
