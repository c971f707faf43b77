//! Cuts packets of IPv4 that are longer than what a link takes. (RFC 791 section 3.2, RFC 1812 section 4.2.2.7.)

use super::fast::ETHERNET_BYTES;
use taut_wire::Ipv4;

/// Option numbers with this bit stand in every fragment, others in the first one only.
const COPIED: u8 = 0x80;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;

/// Calls `each` with the fragments of the packet in `frame`, each as a frame whose packet has `mtu` bytes at most, in order.
/// False if the packet must not be cut, or cannot be.
pub(super) fn cut(frame: &[u8], mtu: u16, mut each: impl FnMut(&[u8])) -> bool {
    let Ok(ip) = Ipv4::new(&frame[ETHERNET_BYTES.min(frame.len())..]) else {
        return false;
    };
    let header_bytes = ip.header_len_bytes();
    let room = usize::from(mtu).saturating_sub(header_bytes) & !7;
    if ip.dont_fragment() || room == 0 {
        return false;
    }
    let (payload, begins) = (ip.payload(), ip.fragment_offset_bytes());
    let header = &frame[ETHERNET_BYTES..ETHERNET_BYTES + header_bytes];
    let later = later_header(header);
    let mut at = 0;
    while at < payload.len() {
        let header = if at == 0 { header } else { &later[..] };
        let rest = payload.len() - at;
        let bytes = rest.min(usize::from(mtu).saturating_sub(header.len()) & !7);
        let more = bytes < rest || ip.more_fragments();
        let mut fragment = Vec::with_capacity(ETHERNET_BYTES + header.len() + bytes);
        fragment.extend_from_slice(&frame[..ETHERNET_BYTES]);
        fragment.extend_from_slice(header);
        fragment.extend_from_slice(&payload[at..at + bytes]);
        let total = (header.len() + bytes) as u16;
        let offset = ((begins + at) / 8) as u16 | u16::from(more) << 13;
        let packet = &mut fragment[ETHERNET_BYTES..];
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[6..8].copy_from_slice(&offset.to_be_bytes());
        if let Ok(mut ip) = Ipv4::new(packet) {
            ip.fill_checksum();
        }
        each(&fragment);
        at += bytes;
    }
    true
}

/// The header of fragments but the first: with those options that stand in every one.
fn later_header(header: &[u8]) -> Vec<u8> {
    let mut later = header[..20].to_vec();
    let mut options = &header[20..];
    while let [kind, rest @ ..] = options {
        match *kind {
            END_OF_OPTIONS => break,
            NO_OPERATION => options = rest,
            kind => {
                let Some(bytes) = rest.first().map(|length| usize::from(*length)) else {
                    break;
                };
                if bytes < 2 || bytes > options.len() {
                    break;
                }
                if kind & COPIED != 0 {
                    later.extend_from_slice(&options[..bytes]);
                }
                options = &options[bytes..];
            }
        }
    }
    later.resize(later.len().next_multiple_of(4), END_OF_OPTIONS);
    later[0] = 0x40 | (later.len() / 4) as u8;
    later
}
