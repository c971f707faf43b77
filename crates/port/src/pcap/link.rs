//! Conversion of captures with other link types to Ethernet, so that functions can parse their packets as usual. An
//! Ethernet header replaces the link header. It may also overwrite the end of the record's header.
//!
//! Numbers and headers are those of the registry of link types (draft-ietf-opsawg-pcaplinktype) and of its pages at
//! tcpdump.org.

/// The link type of Ethernet frames, in both formats.
pub const ETHERNET: u16 = 1;

/// The length in bytes of the longest frame that a port delivers; longer ones are skipped.
pub const LONGEST_FRAME_BYTES: usize = 16384;

/// The supported link types, with their numbers, for error messages.
pub(super) const CARRIED: &str = "Ethernet (1), BSD loopback (0, 108), raw IP (12, 14, 101, 228, 229), PPP (9, 50), Cisco HDLC (104) and \
     Linux cooked (113, 276)";

/// The destination and source MAC address (locally administered) for frames whose capture had none.
const ADDRESSES: [u8; 12] = [0x02, 0, 0, 0, 0, 2, 0x02, 0, 0, 0, 0, 1];
const ETHERNET_BYTES: usize = ADDRESSES.len() + 2;

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
/// The lowest EtherType; lower values are the length of a frame.
const LEAST_ETHERTYPE: u16 = 0x0600;

/// The link header of each packet of a capture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkType {
    /// Ethernet.
    Ethernet,
    /// Address family, four bytes in the byte order of the capturing machine or in network byte order (NULL, LOOP).
    Loopback,
    /// No link header: the packet begins with IP.
    RawIp,
    /// PPP protocol number (RFC 1661), with or without address and control (RFC 1662).
    Ppp,
    /// Cisco HDLC: address, control and EtherType.
    CiscoHdlc,
    /// Sixteen bytes, the last two of which are the EtherType (SLL).
    LinuxCooked,
    /// Twenty bytes, the first two of which are the EtherType (SLL2).
    LinuxCooked2,
}

impl LinkType {
    /// Returns the link type with the given number of the registry; None if its packets cannot be converted to
    /// Ethernet.
    pub(super) fn of(number: u16) -> Option<Self> {
        Some(match number {
            ETHERNET => Self::Ethernet,
            0 | 108 => Self::Loopback,
            12 | 14 | 101 | 228 | 229 => Self::RawIp,
            9 | 50 => Self::Ppp,
            104 => Self::CiscoHdlc,
            113 => Self::LinuxCooked,
            276 => Self::LinuxCooked2,
            _ => return None,
        })
    }

    /// Returns the EtherType of a packet's payload, and the length of the packet's link header in bytes. None if the
    /// packet is too short, has another protocol than IP under PPP, or is an Ethernet frame already.
    fn read(self, packet: &[u8]) -> Option<(u16, usize)> {
        let half = |at: usize| {
            let bytes = packet.get(at..)?.first_chunk()?;
            Some(u16::from_be_bytes(*bytes))
        };
        match self {
            Self::Ethernet => None,
            Self::Loopback => Some((ip_version(packet.get(4..)?)?, 4)),
            Self::RawIp => Some((ip_version(packet)?, 0)),
            Self::Ppp => {
                // Address and control are optional.
                let at = if packet.starts_with(&[0xff, 0x03]) {
                    2
                } else {
                    0
                };
                let (protocol, len) = match packet.get(at)? {
                    // Numbers of one byte are odd (RFC 1661 section 6.5).
                    short if short & 1 == 1 => (u16::from(*short), 1),
                    _ => (half(at)?, 2),
                };
                match protocol {
                    0x0021 => Some((IPV4, at + len)),
                    0x0057 => Some((IPV6, at + len)),
                    _ => None,
                }
            }
            Self::CiscoHdlc => Some((half(2)?, 4)),
            Self::LinuxCooked => Some((half(14)?, 16)),
            Self::LinuxCooked2 => (packet.len() >= 20).then_some((half(0)?, 20)),
        }
    }
}

/// Returns the EtherType of an IP packet, by its version; None if it is neither IPv4 nor IPv6.
fn ip_version(packet: &[u8]) -> Option<u16> {
    match packet.first()? >> 4 {
        4 => Some(IPV4),
        6 => Some(IPV6),
        _ => None,
    }
}

/// The reason why a packet cannot be converted to a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NoFrame {
    /// The payload has no EtherType, or there is no space for an Ethernet header in its record.
    Other,
    /// The packet is too long.
    TooLong,
}

/// Converts the packet of a record, which begins at offset `before`, to an Ethernet frame. Returns the frame's offset
/// and its length.
pub(super) fn as_ethernet(
    link: LinkType,
    record: &mut [u8],
    before: usize,
) -> Result<(usize, usize), NoFrame> {
    let packet = record.get(before..).unwrap_or_default();
    if link == LinkType::Ethernet {
        return Ok((before, packet.len()));
    }
    let (ethertype, header_bytes) = link.read(packet).ok_or(NoFrame::Other)?;
    if ethertype < LEAST_ETHERTYPE {
        return Err(NoFrame::Other);
    }
    let payload = before + header_bytes;
    let start = payload.checked_sub(ETHERNET_BYTES).ok_or(NoFrame::Other)?;
    let frame = record.get_mut(start..).unwrap_or_default();
    if frame.len() > LONGEST_FRAME_BYTES {
        return Err(NoFrame::TooLong);
    }
    let (addresses, rest) = frame.split_at_mut(ADDRESSES.len());
    addresses.copy_from_slice(&ADDRESSES);
    rest[..2].copy_from_slice(&ethertype.to_be_bytes());
    Ok((start, frame.len()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Returns the Ethernet frame made from a packet that follows a record header of `before` bytes.
    fn made(number: u16, packet: &[u8], before: usize) -> Result<Vec<u8>, NoFrame> {
        let mut record = [&vec![7; before][..], packet].concat();
        let (at, len) = as_ethernet(LinkType::of(number).unwrap(), &mut record, before)?;
        assert_eq!(at + len, record.len());
        Ok(record[at..].to_vec())
    }

    #[test]
    fn packets_of_all_link_types_become_ethernet_frames() {
        let (four, six) = (&[0x45, 1, 2, 3][..], &[0x60, 1, 2, 3][..]);
        let cooked =
            |kind: [u8; 2]| [&[0, 4, 3, 4, 0, 6, 1, 1, 1, 1, 1, 1, 0, 0][..], &kind].concat();
        let cooked2 = |kind: [u8; 2]| [&kind[..], &[0; 18]].concat();
        for (number, header, packet, want) in [
            (0, vec![2, 0, 0, 0], four, IPV4),
            (0, vec![0, 0, 0, 30], six, IPV6),
            (108, vec![0, 0, 0, 24], six, IPV6),
            (12, vec![], four, IPV4),
            (14, vec![], four, IPV4),
            (101, vec![], six, IPV6),
            (228, vec![], four, IPV4),
            (229, vec![], six, IPV6),
            (9, vec![0xff, 3, 0, 0x21], four, IPV4),
            (9, vec![0x21], four, IPV4),
            (50, vec![0, 0x57], six, IPV6),
            (104, vec![0x0f, 0, 8, 0], four, IPV4),
            (113, cooked([0x08, 0x06]), &[0, 1, 8, 0][..], 0x0806),
            (113, cooked([0x81, 0x00]), &[0, 7, 8, 0, 0x45][..], 0x8100),
            (276, cooked2([0x86, 0xdd]), six, IPV6),
        ] {
            let whole = [&header[..], packet].concat();
            for before in [16, 28] {
                let frame = made(number, &whole, before).unwrap();
                assert_eq!(frame[..12], ADDRESSES);
                assert_eq!(frame[12..14], want.to_be_bytes(), "{number}");
                assert_eq!(frame[14..], *packet, "{number}");
            }
        }
        assert_eq!(made(ETHERNET, four, 12).unwrap(), four);
    }

    #[test]
    fn packets_that_yield_no_ethernet_frame_are_skipped() {
        for (number, packet, before) in [
            (0, &[2, 0, 0, 0, 0x12][..], 16),
            (101, &[0x55][..], 16),
            (101, &[][..], 16),
            // There is no space before the packet.
            (101, &[0x45, 0][..], 12),
            (9, &[0xff, 3, 0xc0, 0x21][..], 16),
            (
                113,
                &[0, 4, 3, 4, 0, 6, 1, 1, 1, 1, 1, 1, 0, 0, 0, 4, 1, 1][..],
                16,
            ),
            (276, &[8, 0, 0, 0][..], 28),
        ] {
            assert_eq!(
                made(number, packet, before),
                Err(NoFrame::Other),
                "{number}"
            );
        }
        let long = vec![0x45; LONGEST_FRAME_BYTES];
        assert_eq!(made(101, &long, 16), Err(NoFrame::TooLong));
        assert!(made(101, &long[14..], 16).is_ok());
        assert!(LinkType::of(105).is_none() && CARRIED.contains("276"));
    }

    proptest! {
        /// The resulting frame never extends beyond its record.
        #[test]
        fn no_converted_frame_extends_beyond_its_record(
            number in 0..300_u16,
            packet in proptest::collection::vec(any::<u8>(), 0..60),
            before in 12..29_usize,
        ) {
            if LinkType::of(number).is_some()
                && let Ok(frame) = made(number, &packet, before)
            {
                prop_assert!(frame.len() <= before + packet.len());
            }
        }
    }
}
