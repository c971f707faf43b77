//! The replacement of addresses and ports in packets. Checksums are updated, so that a wrong one stays wrong and a
//! missing one stays missing. (RFC 1624; RFC 5508 for packets that ICMP errors quote.)

use super::parser::{Class, Endpoint, Flow};
use taut_wire::checksum::Sum;
use taut_wire::udp::nonzero;

/// The endpoint of a flow whose address and port are replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Source,
    Destination,
}

/// Replaces one endpoint of a flow. Returns the difference between the checksums of the new and the old bytes of the
/// endpoint.
#[inline]
pub(super) fn replace(frame: &mut [u8], flow: &Flow, end: End, to: Endpoint) -> Sum {
    let (from, address_at, port_at) = match end {
        End::Source => (flow.source, 12, 0),
        End::Destination => (flow.destination, 16, 2),
    };
    let address = change32(from.0, to.0);
    let transport = usize::from(flow.transport);
    let all = address.combine(set_address(frame, flow.ip, address_at, address, to.0));
    let port_at = transport
        + match flow.class {
            Class::Icmp => 4,
            _ => port_at,
        };
    let port = change16(from.1, to.1);
    frame[port_at..port_at + 2].copy_from_slice(&to.1.to_be_bytes());
    let all = all.combine(port);
    let at = transport + flow.class.checksum_at();
    // A quoted packet may end before its checksum.
    if at + 2 > usize::from(flow.end) {
        return all;
    }
    let before = u16::from_be_bytes([frame[at], frame[at + 1]]);
    let checksum = match flow.class {
        // ICMP has no pseudo header, so its checksum does not cover the address.
        Class::Icmp => update(before, port),
        Class::Tcp => update(before, address.combine(port)),
        Class::Udp if before == 0 => 0,
        Class::Udp => nonzero(update(before, address.combine(port))),
    };
    frame[at..at + 2].copy_from_slice(&checksum.to_be_bytes());
    all.combine(change16(before, checksum))
}

/// Replaces one address of an IPv4 header; `change` is the difference that the new address makes to a checksum. Returns
/// the difference between the header's new and old checksum field.
#[inline]
fn set_address(frame: &mut [u8], ip: u16, at: usize, change: Sum, to: u32) -> Sum {
    let ip = usize::from(ip);
    let header = &mut frame[ip..ip + 20];
    let before = u16::from_be_bytes([header[10], header[11]]);
    let checksum = update(before, change);
    header[10..12].copy_from_slice(&checksum.to_be_bytes());
    header[at..at + 4].copy_from_slice(&to.to_be_bytes());
    change16(before, checksum)
}

/// Replaces the source or destination of an ICMP error, and updates the error's checksum for the change of the quoted
/// packet.
#[inline]
pub(super) fn replace_error(
    frame: &mut [u8],
    (ip, icmp): (u16, u16),
    end: End,
    (from, to): (u32, u32),
    about: Sum,
) {
    let at = match end {
        End::Source => 12,
        End::Destination => 16,
    };
    set_address(frame, ip, at, change32(from, to), to);
    let icmp = usize::from(icmp);
    let field = &mut frame[icmp + 2..icmp + 4];
    let checksum = update(u16::from_be_bytes([field[0], field[1]]), about);
    field.copy_from_slice(&checksum.to_be_bytes());
}

fn change16(from: u16, to: u16) -> Sum {
    Sum::ZERO.add_u16(!from).add_u16(to)
}

fn change32(from: u32, to: u32) -> Sum {
    Sum::ZERO.add_u32(!from).add_u32(to)
}

fn update(checksum: u16, change: Sum) -> u16 {
    Sum::ZERO.add_u16(!checksum).combine(change).checksum()
}
