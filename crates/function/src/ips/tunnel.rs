//! What is inside a tunnel of GTP-U (3GPP TS 29.281): the headers of a user's packet, in the frame that carries it.

use taut_wire::gtpu::{MessageType, UDP_PORT};
use taut_wire::{Gtpu, Headers, IpProtocol, Layer3};

const UDP_BYTES: usize = 8;

/// Headers of the packet in a G-PDU, and the frame up to the end of that; none if the frame has none, or not all of it.
pub(super) fn inside<'a>(headers: &Headers, frame: &'a [u8]) -> Option<(Headers, &'a [u8])> {
    let is_tunnel = headers.protocol() == IpProtocol::UDP
        && headers.fault().is_none()
        && !headers.is_fragment()
        && headers.ports().is_some_and(|(_, to)| to == UDP_PORT);
    if !is_tunnel {
        return None;
    }
    let datagram = headers.transport_in(frame);
    let head = datagram.first_chunk::<UDP_BYTES>()?;
    let len = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let message = Gtpu::new(datagram.get(UDP_BYTES..len)?).ok()?;
    if message.message_type() != MessageType::G_PDU {
        return None;
    }
    let ip_at = headers.transport() + UDP_BYTES + message.header_len_bytes();
    let frame = frame.get(..ip_at + message.payload().len())?;
    let inside = Headers::inside(frame, ip_at);
    (inside.layer3() != Layer3::Other).then_some((inside, frame))
}

/// The same, if such are to be looked into; else, and of all other frames, what the frame itself has.
pub(super) fn looked_into<'a>(
    is_wanted: bool,
    headers: &Headers,
    frame: &'a [u8],
) -> (Headers, &'a [u8]) {
    let inside = is_wanted.then(|| inside(headers, frame)).flatten();
    inside.unwrap_or((*headers, frame))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_wire::{Protocol, Tunnel, UdpFlow};

    #[test]
    fn only_whole_packets_of_users_are_looked_into() {
        let flow = UdpFlow::default();
        let tunnel = Tunnel {
            teid: 9,
            src_ip: "192.0.2.1".parse().unwrap(),
            dst_ip: "192.0.2.2".parse().unwrap(),
        };
        let frame = flow.frame_as(Protocol::Udp, Some(&tunnel), 200).unwrap();
        let look = |frame: &[u8]| inside(&Headers::of(frame), frame).map(|it| (it.0, it.1.len()));
        let (headers, end) = look(&frame).unwrap();
        assert_eq!(headers.ports(), Some((flow.src_port, flow.dst_port)));
        assert_eq!((headers.ip(), headers.end(), end), (50, 196, 196));
        let changed = |at: usize, bytes: &[u8]| {
            let mut frame = frame.clone();
            frame[at..at + bytes.len()].copy_from_slice(bytes);
            frame
        };
        // Another port, an echo, another version, a length that leads out of the datagram, no IP, a fragment.
        for (at, bytes) in [
            (36, &[8, 105][..]),
            (43, &[1]),
            (42, &[0x50]),
            (44, &[255, 255]),
            (38, &[255, 255]),
            (50, &[0x15]),
            (20, &[0x20, 0]),
        ] {
            assert_eq!(look(&changed(at, bytes)), None, "{at}");
        }
        // A packet that says that it is longer than its tunnel lies.
        let (headers, _) = look(&changed(52, &[255, 255])).unwrap();
        assert!(headers.fault().is_some());
        for cut in 0..frame.len() {
            assert_eq!(look(&frame[..cut]), None, "{cut}");
        }
        assert_eq!(
            looked_into(false, &Headers::of(&frame), &frame).0,
            Headers::of(&frame)
        );
    }
}
