//! Fragmentation of IPv4 packets that are longer than the MTU of a link. (RFC 791 section 3.2, RFC 1812 section
//! 4.2.2.7.)

use taut_wire::{Headers, Ipv4, Layer3, checksum};

/// The bit of an IPv4 option's number that requires a copy of the option in every fragment; options without it are in
/// the first fragment only.
const COPIED: u8 = 0x80;
const END_OF_OPTIONS: u8 = 0;
const NO_OPERATION: u8 = 1;
/// The length in bytes of the longest link header that is copied to fragments: Ethernet with its tags.
const LINK_BYTES: usize = 22;
const LONGEST_HEADER_BYTES: usize = 60;
/// The length of the longest IPv4 packet, in bytes; offsets of fragments count in units of 8.
const LONGEST_PACKET_BYTES: usize = 65_535;

/// The reason why a packet above the MTU is not fragmented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Uncut {
    /// The packet forbids fragmentation, or cannot be fragmented, for example because it is not IPv4.
    Not,
    /// The packet is a fragment of a datagram that would exceed the maximum length.
    Malformed,
}

/// Checks whether the frame's packet may be fragmented into packets of `mtu` bytes.
///
/// # Errors
/// Fails with the reason if the packet must not or cannot be fragmented.
pub fn may_be_cut(frame: &[u8], mtu: u16) -> Result<(), Uncut> {
    shape(frame, mtu).map(|_| ())
}

/// Returns the IPv4 packet of a frame and the packet's offset, if the packet may be cut into fragments of at most `mtu`
/// bytes.
fn shape(frame: &[u8], mtu: u16) -> Result<(Ipv4<&[u8]>, usize), Uncut> {
    let headers = Headers::of(frame);
    let ip_at = headers.ip();
    let ip = Ipv4::new(frame.get(ip_at..).unwrap_or_default());
    let (Layer3::Ipv4, Ok(ip), ..=LINK_BYTES) = (headers.layer3(), ip, ip_at) else {
        return Err(Uncut::Not);
    };
    let header_bytes = ip.header_len_bytes();
    let room = usize::from(mtu).saturating_sub(header_bytes) & !7;
    if ip.dont_fragment() || room == 0 {
        return Err(Uncut::Not);
    }
    // A datagram that ends after the longest packet cannot be fragmented: the offsets of its last fragments would
    // overflow into the flags.
    let end = header_bytes + ip.fragment_offset_bytes() + ip.payload().len();
    match end {
        ..=LONGEST_PACKET_BYTES => Ok((ip, ip_at)),
        _ => Err(Uncut::Malformed),
    }
}

/// Calls `each` with the bytes before the payload and the payload of each fragment of the packet in `frame`, in order.
/// The IP packet of each fragment has at most `mtu` bytes. Returns false if the packet must not or cannot be
/// fragmented: it is not IPv4, forbids fragmentation, or is itself a fragment that ends after the longest packet.
pub fn cut(frame: &[u8], mtu: u16, mut each: impl FnMut(&[u8], &[u8])) -> bool {
    let Ok((ip, ip_at)) = shape(frame, mtu) else {
        return false;
    };
    let (payload, begins) = (ip.payload(), ip.fragment_offset_bytes());
    let header = &frame[ip_at..ip_at + ip.header_len_bytes()];
    let (later, later_bytes) = later_header(header);
    let mut head = [0; LINK_BYTES + LONGEST_HEADER_BYTES];
    head[..ip_at].copy_from_slice(&frame[..ip_at]);
    let mut at = 0;
    while at < payload.len() {
        let header = if at == 0 {
            header
        } else {
            &later[..later_bytes]
        };
        let rest = payload.len() - at;
        let bytes = rest.min(usize::from(mtu).saturating_sub(header.len()) & !7);
        let more = bytes < rest || ip.more_fragments();
        let total = (header.len() + bytes) as u16;
        let offset = ((begins + at) / 8) as u16 | u16::from(more) << 13;
        let end = ip_at + header.len();
        let packet = &mut head[ip_at..end];
        packet.copy_from_slice(header);
        packet[2..4].copy_from_slice(&total.to_be_bytes());
        packet[6..8].copy_from_slice(&offset.to_be_bytes());
        packet[10..12].fill(0);
        let checksum = checksum::Sum::of(packet).checksum();
        packet[10..12].copy_from_slice(&checksum.to_be_bytes());
        each(&head[..end], &payload[at..at + bytes]);
        at += bytes;
    }
    true
}

/// Returns the header of all fragments except the first, and its length in bytes. The header has only the options that
/// must be copied into every fragment.
fn later_header(header: &[u8]) -> ([u8; LONGEST_HEADER_BYTES], usize) {
    let mut later = [END_OF_OPTIONS; LONGEST_HEADER_BYTES];
    later[..20].copy_from_slice(&header[..20]);
    let mut length = 20;
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
                    later[length..length + bytes].copy_from_slice(&options[..bytes]);
                    length += bytes;
                }
                options = &options[bytes..];
            }
        }
    }
    let length = length.next_multiple_of(4);
    later[0] = 0x40 | (length / 4) as u8;
    (later, length)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const ETHERNET_BYTES: usize = 14;

    /// Returns a fragment at offset `begins` with `payload_bytes` bytes after the header.
    fn fragment(begins: u16, payload_bytes: u16) -> Vec<u8> {
        let mut frame = vec![0; ETHERNET_BYTES + 20 + usize::from(payload_bytes)];
        frame[ETHERNET_BYTES - 2] = 8;
        frame[ETHERNET_BYTES] = 0x45;
        frame[ETHERNET_BYTES + 2..][..2].copy_from_slice(&(20 + payload_bytes).to_be_bytes());
        frame[ETHERNET_BYTES + 6..][..2].copy_from_slice(&(begins / 8).to_be_bytes());
        frame
    }

    #[test]
    fn a_fragment_beyond_the_maximum_datagram_is_refused_as_malformed() {
        for (begins, payload_bytes, is_right) in [
            (65_528, 7, false),
            (65_528, 1_480, false),
            (64_048, 1_480, false),
            (64_032, 1_480, true),
            (64_032, 1_484, false),
            (0, 1_480, true),
        ] {
            let mut offsets = Vec::new();
            let frame = fragment(begins, payload_bytes);
            let is_cut = cut(&frame, 576, |head, payload| {
                let frame = [head, payload].concat();
                let ip = Ipv4::new(&frame[ETHERNET_BYTES..]).unwrap();
                assert!(!ip.dont_fragment() && ip.verify_checksum().is_ok());
                offsets.push(ip.fragment_offset_bytes());
            });
            assert_eq!(is_cut, is_right, "{begins} {payload_bytes}");
            let expected = if is_right {
                Ok(())
            } else {
                Err(Uncut::Malformed)
            };
            assert_eq!(may_be_cut(&frame, 576), expected);
            let begins = usize::from(begins);
            let places = [begins, begins + 552, begins + 1_104];
            assert_eq!(offsets[..], places[..if is_right { 3 } else { 0 }]);
        }
        assert_eq!(may_be_cut(&[0; 20], 576), Err(Uncut::Not));
    }
}
