//! UDP datagrams in frames: the offsets of their headers and payloads, for functions that change payloads.

use crate::resize::move_start;
use taut_port::{Packet, PoolHandle};
use taut_wire::checksum::{Sum, update_u16};
use taut_wire::udp::{HEADER_LEN_BYTES, nonzero};
use taut_wire::{Fault, Headers, IpProtocol, Layer3, Udp};

/// The kind of a frame, for a function that changes UDP payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// A complete UDP datagram.
    Datagram(Datagram),
    /// Another packet than UDP, or a fragment of a datagram.
    Other,
    /// A frame with a header that is truncated or has a wrong length.
    Malformed,
}

/// The offsets of a UDP datagram in a frame, bytes from the frame's beginning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Datagram {
    /// The offset of the IP header.
    pub ip: usize,
    /// True if the datagram is in IPv4; otherwise it is in IPv6.
    pub is_v4: bool,
    /// The offset of the UDP header.
    pub udp: usize,
    /// The offset of the first byte after the payload.
    pub end: usize,
}

impl Seen {
    /// Finds the UDP datagram from the parsed headers of a frame.
    #[inline]
    pub fn of(headers: &Headers, frame: &[u8]) -> Self {
        match headers.fault() {
            None | Some(Fault::Ports) => {}
            Some(_) => return Self::Malformed,
        }
        if headers.layer3() == Layer3::Other || !is_udp(headers) || headers.is_fragment() {
            return Self::Other;
        }
        match Udp::new(headers.transport_in(frame)) {
            Ok(udp) => Self::Datagram(Datagram {
                ip: headers.ip(),
                is_v4: headers.layer3() == Layer3::Ipv4,
                udp: headers.transport(),
                // The end is derived from the length that the parser checked: a memif peer may have changed the length
                // in the frame since.
                end: headers.transport() + HEADER_LEN_BYTES + udp.payload().len(),
            }),
            Err(_) => Self::Malformed,
        }
    }
}

#[inline]
fn is_udp(headers: &Headers) -> bool {
    headers.protocol() == IpProtocol::UDP
}

/// Returns true if a frame has a fragment of a UDP datagram.
#[inline]
pub fn is_fragment(headers: &Headers) -> bool {
    is_udp(headers) && headers.is_fragment()
}

impl Datagram {
    /// Returns the range of the payload in the frame, bytes.
    #[inline]
    pub fn payload(&self) -> std::ops::Range<usize> {
        self.udp + HEADER_LEN_BYTES..self.end
    }

    /// Inserts an even number of bytes, `bytes`, before the payload of the datagram. Lengths are updated; checksums are
    /// updated rather than recomputed, so that a wrong checksum stays wrong. Returns false, without a change, if there
    /// is no memory for the longer packet.
    pub fn insert(&self, packet: &mut Packet, bytes: &[u8], pool: &PoolHandle) -> bool {
        let keep = self.udp + HEADER_LEN_BYTES;
        // Padding of a short frame is removed.
        packet.truncate(self.end as u16);
        if !move_start(packet, keep, 0, bytes.len(), pool) {
            return false;
        }
        let frame = packet.bytes_mut();
        frame[keep..keep + bytes.len()].copy_from_slice(bytes);
        self.grew_by(frame, Sum::of(bytes).fold());
        true
    }

    /// Removes the first `count` bytes of the payload; `count` is even and at most the payload's length.
    pub fn remove(&self, packet: &mut Packet, count: usize, pool: &PoolHandle) {
        let keep = self.udp + HEADER_LEN_BYTES;
        let gone = Sum::of(&packet.bytes()[keep..keep + count]).fold();
        packet.truncate(self.end as u16);
        move_start(packet, keep, count, 0, pool);
        self.grew_by(packet.bytes_mut(), !gone);
    }

    /// Returns the length of the UDP header and the payload, bytes.
    #[inline]
    pub fn length(&self) -> u16 {
        (self.end - self.udp) as u16
    }

    /// Extends the datagram to the end of the frame: writes the lengths into its headers, and updates the checksum of
    /// an IPv4 header. Returns the new offsets.
    pub fn ends_with(self, frame: &mut [u8]) -> Self {
        let now = Self {
            end: frame.len(),
            ..self
        };
        frame[self.udp + 4..self.udp + 6].copy_from_slice(&now.length().to_be_bytes());
        let ip = &mut frame[self.ip..];
        let total = ip.len() as u16;
        if self.is_v4 {
            let before = u16::from_be_bytes([ip[2], ip[3]]);
            let checksum = update_u16(u16::from_be_bytes([ip[10], ip[11]]), before, total);
            ip[2..4].copy_from_slice(&total.to_be_bytes());
            ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        } else {
            ip[4..6].copy_from_slice(&(total - 40).to_be_bytes());
        }
        now
    }

    /// Updates the lengths and checksums of a datagram after new bytes extended it to the end of the frame. `sum` is
    /// the amount by which the new bytes change the checksum of the contents.
    fn grew_by(self, frame: &mut [u8], sum: u16) {
        let now = self.ends_with(frame);
        let lengths = Sum::ZERO.add_u16(!self.length()).add_u16(now.length());
        let more = lengths.combine(lengths).combine(Sum::ZERO.add_u16(sum));
        now.add_to_checksum(frame, 0, more.fold());
    }

    /// Returns the contribution of the datagram's length and payload to the UDP checksum, as a ones-complement sum.
    #[inline]
    pub fn sum(&self, frame: &[u8]) -> u16 {
        // The length counts in the pseudo header and in the UDP header.
        Sum::of(&frame[self.payload()])
            .add_u16(self.length())
            .add_u16(self.length())
            .fold()
    }

    /// Updates the UDP checksum after a change of the datagram; `before` is the value of [`Datagram::sum`] before the
    /// change. A wrong checksum stays wrong, and a missing one stays missing. (RFC 1624.)
    #[inline]
    pub fn update_checksum(&self, frame: &mut [u8], before: u16) {
        let after = self.sum(frame);
        self.add_to_checksum(frame, before, after);
    }

    /// Updates the UDP checksum after a change of covered bytes from `before` to `after`.
    #[inline]
    fn add_to_checksum(self, frame: &mut [u8], before: u16, after: u16) {
        let field = &mut frame[self.udp + 6..self.udp + 8];
        let found = u16::from_be_bytes([field[0], field[1]]);
        if found != 0 {
            field.copy_from_slice(&nonzero(update_u16(found, before, after)).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::seen;
    use taut_wire::{Ethernet, Ipv4, Ipv6, UdpFlow};

    #[test]
    fn udp_datagrams_are_distinguished_from_truncated_and_other_packets() {
        for (v6, udp) in [(false, 34), (true, 54)] {
            let mut flow = UdpFlow::default();
            if v6 {
                flow.src_ip = "2001:db8::1".parse().unwrap();
                flow.dst_ip = "2001:db8::2".parse().unwrap();
            }
            let frame = flow.frame(100).unwrap();
            let end = frame.len();
            let found = Datagram {
                ip: 14,
                is_v4: !v6,
                udp,
                end,
            };
            assert_eq!(seen(&frame), Seen::Datagram(found));
            // A frame may be padded.
            let mut padded = frame.clone();
            padded.extend([0; 7]);
            assert_eq!(seen(&padded), Seen::Datagram(found));
            for length in 0..end {
                assert_eq!(seen(&frame[..length]), Seen::Malformed, "{length}");
            }
            let mut lying = frame.clone();
            lying[udp + 5] += 1;
            assert_eq!(seen(&lying), Seen::Malformed);
            let mut other = frame.clone();
            other[if v6 { 20 } else { 23 }] = 6;
            assert_eq!(seen(&other), Seen::Other);
        }
        let mut fragment = UdpFlow::default().frame(100).unwrap();
        fragment[20] = 0x20;
        assert_eq!(seen(&fragment), Seen::Other);
        let mut arp = UdpFlow::default().frame(64).unwrap();
        arp[12..14].copy_from_slice(&[8, 6]);
        assert_eq!(seen(&arp), Seen::Other);
    }

    /// Returns true if the checksums of the IPv4 header and of UDP in a frame are correct.
    fn is_right(frame: &[u8], v6: bool) -> bool {
        let bytes = &frame[14..];
        if v6 {
            let ip = Ipv6::new(bytes).unwrap();
            let udp = Udp::new(ip.payload()).unwrap();
            let pseudo_header = ip.pseudo_header(IpProtocol::UDP, udp.length().into());
            return udp.verify_checksum(pseudo_header).is_ok();
        }
        let ip = Ipv4::new(bytes).unwrap();
        let udp = Udp::new(ip.payload()).unwrap();
        let udp_right = udp.verify_checksum(ip.pseudo_header(udp.length()));
        ip.verify_checksum().is_ok() && udp_right.is_ok()
    }

    #[test]
    fn inserting_and_removing_bytes_preserves_checksum_validity() {
        let pool = PoolHandle::new(8, false).unwrap();
        for (v6, is_tight, spoil) in [
            (false, false, false),
            (true, false, false),
            (false, true, false),
            (true, true, true),
            (false, false, true),
        ] {
            let mut flow = UdpFlow::default();
            if v6 {
                flow.src_ip = "2001:db8::1".parse().unwrap();
                flow.dst_ip = "2001:db8::2".parse().unwrap();
            }
            let mut frame = flow.frame(100).unwrap();
            let udp = if v6 { 54 } else { 34 };
            let length = frame.len();
            frame[length - 10..].copy_from_slice(b"0123456789");
            let datagram = match seen(&frame) {
                Seen::Datagram(datagram) => datagram,
                other => panic!("{other:?}"),
            };
            if v6 {
                let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
                let mut ip = Ipv6::new(ethernet.payload_mut()).unwrap();
                let length = ip.payload().len() as u32;
                let pseudo_header = ip.pseudo_header(IpProtocol::UDP, length);
                Udp::new(ip.payload_mut())
                    .unwrap()
                    .fill_checksum(pseudo_header);
            } else {
                let mut ethernet = Ethernet::new(&mut frame[..]).unwrap();
                let mut ip = Ipv4::new(ethernet.payload_mut()).unwrap();
                let length = ip.payload().len() as u16;
                let pseudo_header = ip.pseudo_header(length);
                Udp::new(ip.payload_mut())
                    .unwrap()
                    .fill_checksum(pseudo_header);
            }
            if spoil {
                frame[udp + 7] ^= 0x10;
            }
            let mut packet = pool.take(length as u16).unwrap();
            if is_tight {
                // The packet's whole headroom is used up.
                let room = packet.headroom() as u16;
                assert!(packet.prepend(room));
                packet.truncate(length as u16);
            }
            packet.bytes_mut().copy_from_slice(&frame);
            assert!(datagram.insert(&mut packet, &[0xAB; 16], &pool));
            assert_eq!(packet.len(), length + 16);
            assert_eq!(is_right(packet.bytes(), v6), !spoil);
            assert_eq!(packet.bytes()[udp + 8..udp + 24], [0xAB; 16]);
            let Seen::Datagram(longer) = seen(packet.bytes()) else {
                panic!("no datagram");
            };
            assert_eq!(longer.end, length + 16);
            longer.remove(&mut packet, 16, &pool);
            assert_eq!(packet.bytes(), frame);
        }
    }
}
