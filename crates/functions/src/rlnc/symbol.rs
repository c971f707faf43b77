//! The coded part of a packet: everything that its recovery needs, so that one code covers packets of many flows.
//!
//! ```text
//! version (1 byte: 4 or 6) | payload length (2) | source port (2) | destination port (2)
//! | source address (4 or 16) | destination address (4 or 16) | payload
//! ```

use std::net::{Ipv4Addr, Ipv6Addr};
use taut_function::datagram::Datagram;
use taut_wire::{IpProtocol, Ipv4Repr, Ipv6Repr, Udp, UdpRepr};

/// The maximum number of bytes of a symbol before the payload.
pub(super) const HEAD_BYTES: usize = 7 + 32;

/// The time to live of a recovered packet; the value of the lost packet is unknown.
const HOPS: u8 = 64;

/// Writes the symbol of a frame's datagram without the first `skipped` bytes of its payload; returns its length.
/// `symbol` has space for it.
pub(super) fn write(frame: &[u8], datagram: &Datagram, skipped: usize, symbol: &mut [u8]) -> usize {
    let payload = &frame[datagram.payload()][skipped..];
    let (version, addresses) = if datagram.is_v4 {
        (4, &frame[datagram.ip + 12..datagram.ip + 20])
    } else {
        (6, &frame[datagram.ip + 8..datagram.ip + 40])
    };
    symbol[0] = version;
    symbol[1..3].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    symbol[3..7].copy_from_slice(&frame[datagram.udp..datagram.udp + 4]);
    let head = 7 + addresses.len();
    symbol[7..head].copy_from_slice(addresses);
    symbol[head..head + payload.len()].copy_from_slice(payload);
    head + payload.len()
}

/// A packet's symbol after parsing: what is known of a recovered packet.
#[derive(Debug)]
pub(super) struct Recovered<'a> {
    is_v4: bool,
    ports: [u16; 2],
    addresses: &'a [u8],
    /// The payload without the zeros at its end that the symbol omits.
    payload: &'a [u8],
    payload_len_bytes: usize,
}

impl<'a> Recovered<'a> {
    /// Parses a symbol; none if no packet has such a symbol.
    pub(super) fn of(symbol: &'a [u8], most_payload_bytes: usize) -> Option<Self> {
        let (head, rest) = symbol.split_first_chunk::<7>()?;
        let [version, a, b, c, d, e, f] = *head;
        let is_v4 = version == 4;
        let addresses = match version {
            4 => 8,
            6 => 32,
            _ => return None,
        };
        let (addresses, payload) = rest.split_at_checked(addresses)?;
        let payload_len_bytes = usize::from(u16::from_be_bytes([a, b]));
        if payload_len_bytes > most_payload_bytes {
            return None;
        }
        Some(Self {
            is_v4,
            ports: [u16::from_be_bytes([c, d]), u16::from_be_bytes([e, f])],
            addresses,
            payload: &payload[..payload.len().min(payload_len_bytes)],
            payload_len_bytes,
        })
    }

    /// Returns the number of bytes of the packet after its Ethernet header.
    pub(super) fn len_bytes(&self) -> usize {
        let ip = if self.is_v4 { 20 } else { 40 };
        ip + 8 + self.payload_len_bytes
    }

    /// Returns true if the packet is IPv4.
    pub(super) fn is_v4(&self) -> bool {
        self.is_v4
    }

    /// Writes the bytes of the packet after its Ethernet header; their number is [`Self::len_bytes`].
    pub(super) fn write(&self, packet: &mut [u8]) -> Result<(), taut_wire::Error> {
        let udp_len = 8 + self.payload_len_bytes;
        let fill = |udp: &mut Udp<&mut [u8]>| {
            let payload = udp.payload_mut();
            let (there, zeros) = payload.split_at_mut(self.payload.len());
            there.copy_from_slice(self.payload);
            zeros.fill(0);
        };
        let repr = UdpRepr {
            source_port: self.ports[0],
            destination_port: self.ports[1],
            payload_len_bytes: self.payload_len_bytes,
        };
        let (source, destination) = self.addresses.split_at(self.addresses.len() / 2);
        if let (Ok(source), Ok(destination)) = (
            <[u8; 4]>::try_from(source),
            <[u8; 4]>::try_from(destination),
        ) {
            let ip = Ipv4Repr {
                source: Ipv4Addr::from(source),
                destination: Ipv4Addr::from(destination),
                protocol: IpProtocol::UDP,
                ttl: HOPS,
                payload_len_bytes: udp_len,
                traffic_class: 0,
                identification: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset_bytes: 0,
                options: &[],
            };
            let mut ip = ip.emit(packet)?;
            let pseudo_header = ip.pseudo_header(udp_len as u16);
            let mut udp = repr.emit(ip.payload_mut())?;
            fill(&mut udp);
            udp.fill_checksum(pseudo_header);
        } else if let (Ok(source), Ok(destination)) = (
            <[u8; 16]>::try_from(source),
            <[u8; 16]>::try_from(destination),
        ) {
            let ip = Ipv6Repr {
                source: Ipv6Addr::from(source),
                destination: Ipv6Addr::from(destination),
                next_header: IpProtocol::UDP,
                hop_limit: HOPS,
                payload_len_bytes: udp_len,
                traffic_class: 0,
                flow_label: 0,
            };
            let mut ip = ip.emit(packet)?;
            let pseudo_header = ip.pseudo_header(IpProtocol::UDP, udp_len as u32);
            let mut udp = repr.emit(ip.payload_mut())?;
            fill(&mut udp);
            udp.fill_checksum(pseudo_header);
        }
        Ok(())
    }
}
