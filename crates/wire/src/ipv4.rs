//! IPv4 packets (RFC 791; traffic class bits after RFC 2474 and RFC 3168).

use std::net::Ipv4Addr;

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, IpProtocol, Sum, checksum, view};

const WHAT: &str = "IPv4 header";
const FIXED_LEN_BYTES: usize = size_of::<Header>();
const DONT_FRAGMENT: u16 = 0x4000;
const MORE_FRAGMENTS: u16 = 0x2000;
const OFFSET_MASK: u16 = 0x1fff;

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version_and_words: u8,
    traffic_class: u8,
    total_len: U16,
    identification: U16,
    flags_and_offset: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    source: [u8; 4],
    destination: [u8; 4],
}

/// A typed reference ("view") to the bytes of an IPv4 packet; bytes after its total length (Ethernet padding) are
/// ignored.
#[derive(Debug)]
pub struct Ipv4<B: ByteSlice> {
    header: Ref<B, Header>,
    options: B,
    payload: B,
}

impl<B: SplitByteSlice> Ipv4<B> {
    /// Makes a view of an IPv4 packet in `bytes`. The header checksum is not verified.
    ///
    /// # Errors
    /// Returns `Truncated` if the header or the total length goes past the end; `BadVersion` if the version is not 4;
    /// and `BadLength` if the header length is under 20 bytes or over the total length.
    #[inline]
    pub fn new(bytes: B) -> Result<Self, Error> {
        let have = bytes.len();
        let (header, rest) = view::header::<B, Header>(bytes, WHAT)?;
        let version = header.version_and_words >> 4;
        if version != 4 {
            return Err(Error::BadVersion {
                what: WHAT,
                version,
            });
        }
        let header_len = usize::from(header.version_and_words & 0x0f) * 4;
        let total_len = usize::from(header.total_len.get());
        let Some(options_len) = header_len.checked_sub(FIXED_LEN_BYTES) else {
            let (length, min, max) = (header_len, FIXED_LEN_BYTES, 60);
            return Err(Error::BadLength {
                what: WHAT,
                length,
                min,
                max,
            });
        };
        let Some(payload_len) = total_len.checked_sub(header_len) else {
            let (length, min, max) = (total_len, header_len, 0xffff);
            return Err(Error::BadLength {
                what: "IPv4 packet",
                length,
                min,
                max,
            });
        };
        if have < total_len {
            return Err(Error::Truncated {
                what: "IPv4 packet",
                need: total_len,
                have,
            });
        }
        let (options, rest) = view::take(rest, options_len, WHAT)?;
        let (payload, _) = view::take(rest, payload_len, WHAT)?;
        Ok(Self {
            header,
            options,
            payload,
        })
    }
}

impl<B: ByteSlice> Ipv4<B> {
    /// Returns the traffic class: DSCP (6 bits) and ECN (2 bits).
    pub fn traffic_class(&self) -> u8 {
        self.header.traffic_class
    }

    /// Returns the header length: 20 to 60 bytes.
    #[inline]
    pub fn header_len_bytes(&self) -> usize {
        FIXED_LEN_BYTES + self.options.len()
    }

    /// Returns the identification, which all fragments of one packet have in common.
    pub fn identification(&self) -> u16 {
        self.header.identification.get()
    }

    /// Returns true if routers must not fragment the packet.
    pub fn dont_fragment(&self) -> bool {
        self.header.flags_and_offset.get() & DONT_FRAGMENT != 0
    }

    /// Returns true if further fragments of the packet follow this one.
    #[inline]
    pub fn more_fragments(&self) -> bool {
        self.header.flags_and_offset.get() & MORE_FRAGMENTS != 0
    }

    /// Returns the offset of this fragment in the payload of the original packet, in bytes.
    #[inline]
    pub fn fragment_offset_bytes(&self) -> usize {
        usize::from(self.header.flags_and_offset.get() & OFFSET_MASK) * 8
    }

    /// Returns true if this is a fragment of a larger packet.
    #[inline]
    pub fn is_fragment(&self) -> bool {
        self.header.flags_and_offset.get() & (MORE_FRAGMENTS | OFFSET_MASK) != 0
    }

    /// Returns the time to live: the remaining hops.
    #[inline]
    pub fn ttl(&self) -> u8 {
        self.header.ttl
    }

    /// Returns the protocol of the payload.
    #[inline]
    pub fn protocol(&self) -> IpProtocol {
        IpProtocol(self.header.protocol)
    }

    /// Returns the header checksum as it is in the packet.
    pub fn checksum(&self) -> u16 {
        self.header.checksum.get()
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> Ipv4Addr {
        self.header.source.into()
    }

    /// Returns the destination address.
    #[inline]
    pub fn destination(&self) -> Ipv4Addr {
        self.header.destination.into()
    }

    /// Returns the options of the header, undecoded: 0 to 40 bytes.
    pub fn options(&self) -> &[u8] {
        &self.options
    }

    /// Returns the payload of the packet, which ends at the total length.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the sum of the pseudo header for a transport header and payload of `length_bytes` together.
    #[inline]
    pub fn pseudo_header(&self, length_bytes: u16) -> Sum {
        let protocol = self.protocol();
        checksum::pseudo_header_v4(self.source(), self.destination(), protocol, length_bytes)
    }

    #[inline]
    fn header_sum(&self) -> Sum {
        let fixed = Sum::of(self.header.as_bytes());
        if self.options.is_empty() {
            return fixed;
        }
        fixed.combine(Sum::of(&self.options))
    }

    /// Verifies the checksum of the IPv4 header.
    ///
    /// # Errors
    /// Returns `BadChecksum` if the checksum is wrong.
    #[inline]
    pub fn verify_checksum(&self) -> Result<(), Error> {
        if self.header_sum().is_valid() {
            Ok(())
        } else {
            Err(Error::BadChecksum { what: WHAT })
        }
    }
}

impl<B: ByteSliceMut> Ipv4<B> {
    /// Sets the source address. The header checksum is not updated.
    #[inline]
    pub fn set_source(&mut self, address: Ipv4Addr) {
        self.header.source = address.octets();
    }

    /// Sets the destination address. The header checksum is not updated.
    #[inline]
    pub fn set_destination(&mut self, address: Ipv4Addr) {
        self.header.destination = address.octets();
    }

    /// Decrements the time to live and updates the checksum (RFC 1624); returns the remaining hops.
    ///
    /// A packet that arrives with 0 hops stays at 0.
    #[inline]
    pub fn decrement_ttl(&mut self) -> u8 {
        let header = &mut *self.header;
        // The bytes are read once, because a memif peer may change them during this call.
        let (ttl, protocol) = (header.ttl, header.protocol);
        let left = ttl.saturating_sub(1);
        if ttl > 0 {
            let (old, new) = ([ttl, protocol], [left, protocol]);
            let (old, new) = (u16::from_be_bytes(old), u16::from_be_bytes(new));
            let updated = checksum::update_u16(header.checksum.get(), old, new);
            header.checksum.set(updated);
            header.ttl = left;
        }
        left
    }

    /// Computes the header checksum and writes it into the header.
    #[inline]
    pub fn fill_checksum(&mut self) {
        self.header.checksum.set(0);
        let checksum = self.header_sum().checksum();
        self.header.checksum.set(checksum);
    }

    /// Returns the payload for writing.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
    }
}

/// The fields of an IPv4 header as a Rust value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv4Repr<'a> {
    /// Traffic class: DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Identification, which all fragments of one packet have in common.
    pub identification: u16,
    /// True if routers must not fragment the packet.
    pub dont_fragment: bool,
    /// True if further fragments of the packet follow this one.
    pub more_fragments: bool,
    /// Offset of this fragment in the payload of the original packet: a multiple of 8 bytes up to 65528.
    pub fragment_offset_bytes: u16,
    /// Time to live: remaining hops.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: IpProtocol,
    /// Source address.
    pub source: Ipv4Addr,
    /// Destination address.
    pub destination: Ipv4Addr,
    /// Options: 0 to 40 bytes, a multiple of 4.
    pub options: &'a [u8],
    /// Payload length in bytes.
    pub payload_len_bytes: usize,
}

impl<'a> Ipv4Repr<'a> {
    /// Reads and verifies the header; the reserved flag is dropped.
    ///
    /// # Errors
    /// Returns `BadChecksum` if the checksum is wrong.
    #[expect(clippy::cast_possible_truncation, reason = "13 bits times 8")]
    pub fn parse<B: ByteSlice>(view: &'a Ipv4<B>) -> Result<Self, Error> {
        view.verify_checksum()?;
        Ok(Self {
            traffic_class: view.traffic_class(),
            identification: view.identification(),
            dont_fragment: view.dont_fragment(),
            more_fragments: view.more_fragments(),
            fragment_offset_bytes: view.fragment_offset_bytes() as u16,
            ttl: view.ttl(),
            protocol: view.protocol(),
            source: view.source(),
            destination: view.destination(),
            options: view.options(),
            payload_len_bytes: view.payload().len(),
        })
    }

    /// Returns the header's length: 20 to 60 bytes.
    pub fn header_len_bytes(&self) -> usize {
        FIXED_LEN_BYTES + self.options.len()
    }

    /// Writes the header with its checksum to the front of `buffer` and returns a view of the packet.
    ///
    /// # Errors
    /// Returns `Truncated` if header and payload do not fit; `BadLength` if the options are over 40 bytes or no
    /// multiple of 4, the fragment offset is no multiple of 8, or the packet is over 65535 bytes.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "a header has at most 60 bytes"
    )]
    pub fn emit<'b>(&self, buffer: &'b mut [u8]) -> Result<Ipv4<&'b mut [u8]>, Error> {
        let options_len = self.options.len();
        if options_len > 40 || !options_len.is_multiple_of(4) {
            let (length, min, max) = (options_len, 0, 40);
            return Err(Error::BadLength {
                what: "IPv4 options",
                length,
                min,
                max,
            });
        }
        if !self.fragment_offset_bytes.is_multiple_of(8) {
            let (length, min, max) = (self.fragment_offset_bytes.into(), 0, 65_528);
            return Err(Error::BadLength {
                what: "IPv4 fragment offset",
                length,
                min,
                max,
            });
        }
        let header_len = self.header_len_bytes();
        let total_len = header_len.saturating_add(self.payload_len_bytes);
        let Ok(total_len_field) = u16::try_from(total_len) else {
            let (length, min, max) = (total_len, header_len, 0xffff);
            return Err(Error::BadLength {
                what: "IPv4 packet",
                length,
                min,
                max,
            });
        };
        let buffer = view::room(buffer, total_len, "room for the IPv4 packet")?;
        let (mut header, rest) = view::header::<_, Header>(&mut *buffer, WHAT)?;
        let mut flags_and_offset = self.fragment_offset_bytes / 8;
        if self.dont_fragment {
            flags_and_offset |= DONT_FRAGMENT;
        }
        if self.more_fragments {
            flags_and_offset |= MORE_FRAGMENTS;
        }
        *header = Header {
            version_and_words: 0x40 | (header_len / 4) as u8,
            traffic_class: self.traffic_class,
            total_len: total_len_field.into(),
            identification: self.identification.into(),
            flags_and_offset: flags_and_offset.into(),
            ttl: self.ttl,
            protocol: self.protocol.0,
            checksum: 0.into(),
            source: self.source.octets(),
            destination: self.destination.octets(),
        };
        let (options, _) = view::take(rest, options_len, WHAT)?;
        options.copy_from_slice(self.options);
        let mut view = Ipv4::new(buffer)?;
        view.fill_checksum();
        Ok(view)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn repr(options: &[u8]) -> Ipv4Repr<'_> {
        Ipv4Repr {
            traffic_class: 0xb8,
            identification: 7,
            dont_fragment: true,
            more_fragments: false,
            fragment_offset_bytes: 0,
            ttl: 64,
            protocol: IpProtocol::UDP,
            source: Ipv4Addr::new(10, 0, 0, 1),
            destination: Ipv4Addr::new(10, 0, 0, 2),
            options,
            payload_len_bytes: 8,
        }
    }

    #[test]
    fn wrong_ipv4_header_and_total_lengths_are_refused() {
        let mut bytes = [0; 28];
        repr(&[]).emit(&mut bytes).unwrap();
        for (at, value) in [(0, 0x55), (0, 0x44), (0, 0x48), (3, 19), (3, 29), (2, 1)] {
            let mut bytes = bytes;
            bytes[at] = value;
            assert!(Ipv4::new(&bytes[..]).is_err(), "byte {at} = {value}");
        }
        for length in 0..28 {
            assert!(
                matches!(Ipv4::new(&bytes[..length]), Err(Error::Truncated { .. })),
                "{length}"
            );
        }
    }

    #[test]
    fn padding_after_an_ipv4_packet_is_not_payload() {
        let mut bytes = [0xaa; 46];
        assert_eq!(repr(&[]).emit(&mut bytes).unwrap().payload().len(), 8);
        assert_eq!(Ipv4::new(&bytes[..]).unwrap().payload().len(), 8);
    }

    #[test]
    fn a_wrong_ipv4_header_checksum_is_refused() {
        let mut bytes = [0; 28];
        repr(&[]).emit(&mut bytes).unwrap();
        bytes[15] ^= 1;
        let view = Ipv4::new(&bytes[..]).unwrap();
        assert_eq!(
            Ipv4Repr::parse(&view),
            Err(Error::BadChecksum { what: WHAT })
        );
    }

    #[test]
    fn decremented_ttl_stops_at_zero_and_the_checksum_stays_correct() {
        let mut bytes = [0; 28];
        let mut view = Ipv4Repr {
            ttl: 2,
            ..repr(&[])
        }
        .emit(&mut bytes)
        .unwrap();
        for left in [1, 0, 0] {
            assert_eq!(view.decrement_ttl(), left);
            view.verify_checksum().unwrap();
        }
    }

    #[test]
    fn ipv4_headers_that_cannot_be_emitted_are_refused() {
        let mut buffer = vec![0; 70_000];
        for repr in [
            repr(&[0; 44]),
            repr(&[0; 3]),
            Ipv4Repr {
                payload_len_bytes: 65_516,
                ..repr(&[])
            },
            Ipv4Repr {
                payload_len_bytes: usize::MAX,
                ..repr(&[])
            },
            Ipv4Repr {
                fragment_offset_bytes: 4,
                ..repr(&[])
            },
        ] {
            assert!(
                matches!(repr.emit(&mut buffer), Err(Error::BadLength { .. })),
                "{repr:?}"
            );
        }
        assert!(matches!(
            repr(&[]).emit(&mut buffer[..27]),
            Err(Error::Truncated { .. })
        ));
    }

    proptest! {
        #[test]
        fn parsed_ipv4_headers_are_emitted_unchanged(
            mut bytes in proptest::collection::vec(any::<u8>(), 60..120), words in 5u8..16, total in 60u8..120,
        ) {
            bytes[0] = 0x40 | words;
            bytes[2] = 0;
            bytes[3] = total.min(bytes.len() as u8);
            bytes[6] &= 0x7f;
            Ipv4::new(&mut bytes[..]).unwrap().fill_checksum();
            let view = Ipv4::new(&bytes[..]).unwrap();
            let repr = Ipv4Repr::parse(&view).unwrap();
            prop_assert_eq!(repr.header_len_bytes(), view.header_len_bytes());
            let mut again = bytes.clone();
            again[..repr.header_len_bytes()].fill(0);
            repr.emit(&mut again).unwrap();
            prop_assert_eq!(&again, &bytes);

            let (theirs, _) = etherparse::Ipv4Header::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.header_checksum, theirs.calc_header_checksum());
            prop_assert_eq!(theirs.source, repr.source.octets());
            prop_assert_eq!(theirs.destination, repr.destination.octets());
            prop_assert_eq!(theirs.time_to_live, repr.ttl);
            prop_assert_eq!(usize::from(theirs.fragment_offset.value()) * 8, view.fragment_offset_bytes());
            prop_assert_eq!(theirs.is_fragmenting_payload(), view.is_fragment());
            prop_assert_eq!(usize::from(theirs.total_len), repr.header_len_bytes() + repr.payload_len_bytes);
        }
    }
}
