//! The changes of a packet's bytes when it is encapsulated, decapsulated, or relayed between tunnels.

use super::outcome::Outcome;
use super::parser::{Own, Tunnelled};
use super::slot::{NO_QFI, Slot};
use super::{Path, Sources};
use std::net::IpAddr;
use taut_function::resize;
use taut_port::{Packet, PoolHandle};
use taut_wire::gtpu::{Extensions, MessageType, PDU_SESSION_CONTAINER, PduSession, UDP_PORT};
use taut_wire::{
    EtherType, GtpuRepr, IpProtocol, Ipv4, Ipv4Repr, Ipv6, Ipv6Repr, Sum, UdpRepr, udp,
};

/// The hop limit of new outer packets.
const HOPS: u8 = 64;

/// Returns the length of the outer IP and UDP headers in bytes.
pub(super) fn outer_len(path: &Path) -> usize {
    udp::HEADER_LEN_BYTES + if path.local.is_ipv4() { 20 } else { 40 }
}

/// Writes outer IP and UDP headers around the GTP-U packet that fills the rest of `bytes`.
///
/// The UDP checksum is 0 over IPv4; over IPv6, where receivers may refuse that, it is computed.
pub(super) fn write_outer(bytes: &mut [u8], path: &Path, traffic_class: u8) -> Option<()> {
    let ip_len = outer_len(path) - udp::HEADER_LEN_BYTES;
    let payload_len_bytes = bytes.len().checked_sub(ip_len)?;
    let repr = UdpRepr {
        source_port: UDP_PORT,
        destination_port: UDP_PORT,
        payload_len_bytes: payload_len_bytes.checked_sub(udp::HEADER_LEN_BYTES)?,
    };
    match (path.local, path.remote) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let ip = Ipv4Repr {
                traffic_class,
                identification: 0,
                dont_fragment: true,
                more_fragments: false,
                fragment_offset_bytes: 0,
                ttl: HOPS,
                protocol: IpProtocol::UDP,
                source,
                destination,
                options: &[],
                payload_len_bytes,
            };
            repr.emit(ip.emit(bytes).ok()?.payload_mut()).ok()?;
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            let ip = Ipv6Repr {
                traffic_class,
                flow_label: 0,
                next_header: IpProtocol::UDP,
                hop_limit: HOPS,
                source,
                destination,
                payload_len_bytes,
            };
            let mut ip = ip.emit(bytes).ok()?;
            let pseudo_header = ip.pseudo_header(IpProtocol::UDP, payload_len_bytes as u32);
            let mut udp = repr.emit(ip.payload_mut()).ok()?;
            udp.fill_checksum(pseudo_header);
        }
        _ => return None,
    }
    Some(())
}

/// Moves a packet from one tunnel into another one. Sequence number, extension headers, UDP ports and traffic class
/// stay; the hop limit is decremented. An existing UDP checksum is updated rather than recomputed, so that the receiver
/// still detects earlier corruption of the packet.
#[inline]
pub(super) fn relay(
    packet: &mut Packet,
    seen: &Tunnelled,
    slot: &Slot,
    path: &Path,
    pool: &PoolHandle,
) -> Result<(), Outcome> {
    if seen.puzzles_all {
        return Err(Outcome::UnknownExtension);
    }
    let bytes = packet.bytes_mut();
    let (ip_at, udp_at, gtpu_at) = (
        usize::from(seen.ip),
        usize::from(seen.udp),
        usize::from(seen.gtpu),
    );
    let (Some(ip), Some(transport)) = (bytes.get(ip_at..udp_at), bytes.get(udp_at..gtpu_at + 8))
    else {
        return Err(Outcome::Malformed);
    };
    let hops = ip[if seen.is_v4 { 8 } else { 7 }];
    if hops <= 1 {
        return Err(Outcome::NoHopsLeft);
    }
    // The new value is derived from the checked value: a memif peer may have changed the frame since.
    let hops_left = hops - 1;
    let Some(udp_and_gtpu) = transport.first_chunk::<16>() else {
        return Err(Outcome::Malformed);
    };
    let old_teid = seen.teid;
    let old_checksum = u16::from_be_bytes([udp_and_gtpu[6], udp_and_gtpu[7]]);
    // This is the difference that new addresses and identifier make to the UDP checksum.
    let mut change = Sum::ZERO.add_u32(!old_teid).add_u32(slot.teid);
    match (path.local, path.remote) {
        (IpAddr::V4(local), IpAddr::V4(remote)) if seen.is_v4 => {
            let Some(ip) = bytes[ip_at..].first_chunk_mut::<20>() else {
                return Err(Outcome::Malformed);
            };
            let old: [u8; 8] = [
                ip[12], ip[13], ip[14], ip[15], ip[16], ip[17], ip[18], ip[19],
            ];
            let (local, remote) = (local.to_bits(), remote.to_bits());
            let addresses = Sum::ZERO
                .add_u64(!u64::from_be_bytes(old))
                .add_u32(local)
                .add_u32(remote);
            change = change.combine(addresses);
            let old_checksum = u16::from_be_bytes([ip[10], ip[11]]);
            let updated = Sum::ZERO
                .add_u16(!old_checksum)
                .add_u16(!u16::from_be_bytes([hops, ip[9]]))
                .add_u16(u16::from_be_bytes([hops_left, ip[9]]))
                .combine(addresses)
                .checksum();
            ip[8] = hops_left;
            ip[10..12].copy_from_slice(&updated.to_be_bytes());
            ip[12..16].copy_from_slice(&local.to_be_bytes());
            ip[16..20].copy_from_slice(&remote.to_be_bytes());
        }
        (IpAddr::V6(local), IpAddr::V6(remote)) if !seen.is_v4 => {
            let Some(ip) = bytes[ip_at..].first_chunk_mut::<40>() else {
                return Err(Outcome::Malformed);
            };
            let old = Sum::of(&ip[8..40]);
            ip[7] = hops_left;
            ip[8..24].copy_from_slice(&local.octets());
            ip[24..40].copy_from_slice(&remote.octets());
            change = change.add_u16(!old.fold()).combine(Sum::of(&ip[8..40]));
        }
        _ => {
            // If the outer IP version differs, the tunnel continues in a new packet.
            let traffic_class = traffic_class(&bytes[ip_at..], seen.is_v4);
            bytes[gtpu_at + 4..gtpu_at + 8].copy_from_slice(&slot.teid.to_be_bytes());
            return outside_anew(packet, seen, path, traffic_class, pool);
        }
    }
    let Some(transport) = bytes[udp_at..].first_chunk_mut::<16>() else {
        return Err(Outcome::Malformed);
    };
    transport[12..16].copy_from_slice(&slot.teid.to_be_bytes());
    // A checksum of 0 means that there is no checksum.
    if old_checksum != 0 {
        let updated = Sum::ZERO.add_u16(!old_checksum).combine(change).checksum();
        transport[6..8].copy_from_slice(&udp::nonzero(updated).to_be_bytes());
    }
    Ok(())
}

/// Replaces the outer IP and UDP headers of a packet by those of `path`.
fn outside_anew(
    packet: &mut Packet,
    seen: &Tunnelled,
    path: &Path,
    traffic_class: u8,
    pool: &PoolHandle,
) -> Result<(), Outcome> {
    let (ip_at, gtpu_at) = (usize::from(seen.ip), usize::from(seen.gtpu));
    packet.truncate(seen.end);
    let (old_len, new_len) = (gtpu_at - ip_at, outer_len(path));
    move_start(packet, ip_at, old_len, new_len, pool)?;
    set_ethertype(packet.bytes_mut(), ip_at, path.local.is_ipv4());
    write_outer(&mut packet.bytes_mut()[ip_at..], path, traffic_class).ok_or(Outcome::Malformed)
}

/// Encapsulates a packet into a tunnel (TS 29.281 section 5.1). The user packet's traffic class becomes the outer one
/// as well (RFC 2983 section 3.1, RFC 6040 section 4.1).
#[inline]
pub(super) fn encapsulate(
    packet: &mut Packet,
    ip_at: usize,
    slot: &Slot,
    path: &Path,
    mtu: usize,
    pool: &PoolHandle,
) -> Result<(), Outcome> {
    let Some((user_len, traffic_class)) = user_packet(&packet.bytes()[ip_at..]) else {
        return Err(Outcome::NotIp);
    };
    let container = PduSession {
        uplink: false,
        qfi: slot.qfi,
    }
    .emit();
    let extensions = (slot.qfi != NO_QFI).then_some(Extensions {
        first: PDU_SESSION_CONTAINER,
        bytes: &container,
    });
    let repr = GtpuRepr {
        message_type: MessageType::G_PDU,
        teid: slot.teid,
        sequence: None,
        n_pdu: None,
        extensions,
        payload_len_bytes: user_len,
    };
    let outer_len = outer_len(path);
    let added = outer_len + repr.header_len_bytes();
    if added + user_len > mtu {
        return Err(Outcome::TooBig);
    }
    packet.truncate((ip_at + user_len) as u16);
    move_start(packet, ip_at, 0, added, pool)?;
    let bytes = packet.bytes_mut();
    set_ethertype(bytes, ip_at, path.local.is_ipv4());
    if repr.emit(&mut bytes[ip_at + outer_len..]).is_err() {
        return Err(Outcome::Malformed);
    }
    write_outer(&mut bytes[ip_at..], path, traffic_class).ok_or(Outcome::Malformed)
}

/// Returns the number of bytes that `encapsulate` adds to a user packet of the given bearer.
pub(super) fn overhead(slot: &Slot, path: &Path) -> usize {
    outer_len(path) + if slot.qfi == NO_QFI { 8 } else { 16 }
}

/// Decapsulates a packet; bytes of the outer packet after the user packet are removed. A packet to an address in
/// `closed` is refused, and so is a packet from an address other than those in `sources`, if there are any.
#[inline]
pub(super) fn decapsulate(
    packet: &mut Packet,
    seen: &Tunnelled,
    closed: &Own,
    sources: Option<&Sources>,
) -> Result<(), Outcome> {
    if seen.puzzles_end {
        return Err(Outcome::UnknownExtension);
    }
    let (ip_at, payload_at) = (usize::from(seen.ip), usize::from(seen.payload));
    let user = &packet.bytes()[payload_at..usize::from(seen.end)];
    let Some((user_len, _)) = user_packet(user) else {
        return Err(Outcome::NotIp);
    };
    if sources.is_some_and(|sources| !sources.has(user)) {
        return Err(Outcome::WrongSource);
    }
    if destination(user).is_some_and(|destination| closed.has(destination)) {
        return Err(Outcome::ToGateway);
    }
    let is_v4 = user[0] >> 4 == 4;
    packet.truncate((payload_at + user_len) as u16);
    let bytes = packet.bytes_mut();
    bytes.copy_within(..ip_at, payload_at - ip_at);
    packet.drop_front((payload_at - ip_at) as u16);
    set_ethertype(packet.bytes_mut(), ip_at, is_v4);
    Ok(())
}

/// Returns the length and traffic class of the IP packet at the start of `bytes`; none if its header is invalid.
#[inline]
fn user_packet(bytes: &[u8]) -> Option<(usize, u8)> {
    match bytes.first()? >> 4 {
        4 => {
            let ip = Ipv4::new(bytes).ok()?;
            let length = ip.header_len_bytes() + ip.payload().len();
            Some((length, ip.traffic_class()))
        }
        6 => {
            let ip = Ipv6::new(bytes).ok()?;
            Some((40 + ip.payload().len(), ip.traffic_class()))
        }
        _ => None,
    }
}

/// Returns the destination address of the IP packet at the start of `bytes`; none if its header is invalid.
#[inline]
fn destination(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.first()? >> 4 {
        4 => Some(IpAddr::from(*bytes.get(16..)?.first_chunk::<4>()?)),
        _ => Some(IpAddr::from(*bytes.get(24..)?.first_chunk::<16>()?)),
    }
}

fn traffic_class(ip: &[u8], is_v4: bool) -> u8 {
    match ip {
        [_, class, ..] if is_v4 => *class,
        [a, b, ..] => a << 4 | b >> 4,
        _ => 0,
    }
}

/// Moves the start of a packet as [`resize::move_start`] does.
fn move_start(
    packet: &mut Packet,
    keep: usize,
    old: usize,
    new: usize,
    pool: &PoolHandle,
) -> Result<(), Outcome> {
    if resize::move_start(packet, keep, old, new, pool) {
        Ok(())
    } else {
        Err(Outcome::NoRoom)
    }
}

/// Sets the EtherType, the last two bytes of an Ethernet header of the given length, tags included.
#[inline]
fn set_ethertype(frame: &mut [u8], header_len: usize, is_v4: bool) {
    let kind = if is_v4 {
        EtherType::IPV4
    } else {
        EtherType::IPV6
    };
    frame[header_len - 2..header_len].copy_from_slice(&kind.0.to_be_bytes());
}
