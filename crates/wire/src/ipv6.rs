//! IPv6 packets, and parsing of their extension headers up to the transport (RFC 8200).

use std::net::Ipv6Addr;

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, IpProtocol, Sum, checksum, view};

const WHAT: &str = "IPv6 header";
const EXTENSION: &str = "IPv6 extension header";

/// The length of the fixed IPv6 header in bytes.
pub const HEADER_LEN_BYTES: usize = size_of::<Header>();

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    version_class_label: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    source: [u8; 16],
    destination: [u8; 16],
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct FragmentHeader {
    next_header: u8,
    reserved: u8,
    offset_and_more: U16,
    identification: U32,
}

/// A typed reference ("view") to the bytes of an IPv6 packet; bytes after its payload length (Ethernet padding) are
/// ignored.
#[derive(Debug)]
pub struct Ipv6<B: ByteSlice> {
    header: Ref<B, Header>,
    payload: B,
}

/// The fragment header: the position of a fragment in the original packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Offset of this fragment in the fragmentable part of the original packet, in bytes.
    pub offset_bytes: usize,
    /// True if further fragments of the packet follow this one.
    pub more: bool,
    /// Identification, which all fragments of one packet have in common.
    pub identification: u32,
}

/// The part of an IPv6 packet after the extension headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transport<'a> {
    /// Protocol of `payload`. In a fragment with offset > 0, `payload` is a later part of that protocol's data.
    pub protocol: IpProtocol,
    /// Total length of the extension headers, bytes.
    pub extensions_len_bytes: usize,
    /// Content of the fragment header, if there is one.
    pub fragment: Option<Fragment>,
    /// Transport header and its payload.
    pub payload: &'a [u8],
}

impl<B: SplitByteSlice> Ipv6<B> {
    /// Makes a view of an IPv6 packet in `bytes`.
    ///
    /// # Errors
    /// Returns `Truncated` if the header or the payload length goes past the end; `BadVersion` if the version is not 6.
    #[inline]
    pub fn new(bytes: B) -> Result<Self, Error> {
        let (header, rest) = view::header::<B, Header>(bytes, WHAT)?;
        let version = (header.version_class_label.get() >> 28) as u8;
        if version != 6 {
            return Err(Error::BadVersion {
                what: WHAT,
                version,
            });
        }
        let payload_len = usize::from(header.payload_len.get());
        let (payload, _) = view::take(rest, payload_len, "IPv6 payload")?;
        Ok(Self { header, payload })
    }
}

impl<B: ByteSlice> Ipv6<B> {
    /// Returns the traffic class: DSCP (6 bits) and ECN (2 bits).
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the version above is cut off"
    )]
    pub fn traffic_class(&self) -> u8 {
        (self.header.version_class_label.get() >> 20) as u8
    }

    /// Returns the flow label, 20 bits.
    pub fn flow_label(&self) -> u32 {
        self.header.version_class_label.get() & 0x000f_ffff
    }

    /// Returns the type of the first extension header, or the transport protocol if there is none.
    pub fn next_header(&self) -> IpProtocol {
        IpProtocol(self.header.next_header)
    }

    /// Returns the hop limit: the remaining hops.
    pub fn hop_limit(&self) -> u8 {
        self.header.hop_limit
    }

    /// Returns the source address.
    #[inline]
    pub fn source(&self) -> Ipv6Addr {
        self.header.source.into()
    }

    /// Returns the destination address.
    #[inline]
    pub fn destination(&self) -> Ipv6Addr {
        self.header.destination.into()
    }

    /// Returns the bytes after the fixed header: extension headers, transport header and its payload.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// Returns the sum of the pseudo header for a transport header and payload of `length_bytes` together.
    ///
    /// `protocol` is the transport protocol. The destination is that of the fixed header, which is correct unless a
    /// routing header has remaining hops (RFC 8200 section 8.1).
    #[inline]
    pub fn pseudo_header(&self, protocol: IpProtocol, length_bytes: u32) -> Sum {
        checksum::pseudo_header_v6(self.source(), self.destination(), protocol, length_bytes)
    }

    /// Parses hop-by-hop, routing, fragment and destination headers, and returns what follows them.
    ///
    /// The parser stops at any other header, and after the fragment header of a fragment other than the first.
    ///
    /// # Errors
    /// Returns `Truncated` if an extension header goes past the payload.
    pub fn transport(&self) -> Result<Transport<'_>, Error> {
        let mut protocol = self.next_header();
        let mut rest = self.payload();
        let mut fragment = None;
        while fragment.is_none_or(|fragment: Fragment| fragment.offset_bytes == 0) {
            let length = match protocol {
                IpProtocol::HOP_BY_HOP | IpProtocol::ROUTING | IpProtocol::DESTINATION => {
                    let (&[_, units], _) = view::header::<_, [u8; 2]>(rest, EXTENSION)
                        .map(|(start, rest)| (Ref::into_ref(start), rest))?;
                    8 + usize::from(units) * 8
                }
                IpProtocol::FRAGMENT => {
                    let (header, _) = view::header::<_, FragmentHeader>(rest, EXTENSION)?;
                    let offset_and_more = header.offset_and_more.get();
                    fragment = Some(Fragment {
                        offset_bytes: usize::from(offset_and_more & 0xfff8),
                        more: offset_and_more & 1 == 1,
                        identification: header.identification.get(),
                    });
                    size_of::<FragmentHeader>()
                }
                _ => break,
            };
            let (extension, after) = view::take(rest, length, EXTENSION)?;
            // Every extension header begins with the type of the next one, and has at least 8 bytes.
            protocol = IpProtocol(extension.first().copied().unwrap_or(protocol.0));
            rest = after;
        }
        let extensions_len_bytes = self.payload().len() - rest.len();
        Ok(Transport {
            protocol,
            extensions_len_bytes,
            fragment,
            payload: rest,
        })
    }
}

impl<B: ByteSliceMut> Ipv6<B> {
    /// Decrements the hop limit; returns the remaining hops. A packet that arrives with 0 hops stays at 0.
    #[inline]
    pub fn decrement_hop_limit(&mut self) -> u8 {
        self.header.hop_limit = self.header.hop_limit.saturating_sub(1);
        self.header.hop_limit
    }

    /// Returns the bytes after the fixed header (extension headers, transport header and its payload) for writing.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
    }
}

/// The fields of a fixed IPv6 header as a Rust value, independent of the packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ipv6Repr {
    /// Traffic class: DSCP (6 bits) and ECN (2 bits).
    pub traffic_class: u8,
    /// Flow label; its low 20 bits are written.
    pub flow_label: u32,
    /// Type of the first extension header, or the transport protocol if there is none.
    pub next_header: IpProtocol,
    /// Hop limit: remaining hops.
    pub hop_limit: u8,
    /// Source address.
    pub source: Ipv6Addr,
    /// Destination address.
    pub destination: Ipv6Addr,
    /// Length of extension headers, transport header and payload in bytes.
    pub payload_len_bytes: usize,
}

impl Ipv6Repr {
    /// Reads the fields of an IPv6 header.
    ///
    /// # Errors
    /// Returns no errors at present; `parse` has this signature for all protocols of the crate.
    pub fn parse<B: ByteSlice>(view: &Ipv6<B>) -> Result<Self, Error> {
        Ok(Self {
            traffic_class: view.traffic_class(),
            flow_label: view.flow_label(),
            next_header: view.next_header(),
            hop_limit: view.hop_limit(),
            source: view.source(),
            destination: view.destination(),
            payload_len_bytes: view.payload().len(),
        })
    }

    /// Writes the header to the front of `buffer` and returns a view of the packet.
    ///
    /// # Errors
    /// Returns `Truncated` if header and payload do not fit; `BadLength` if the payload is over 65535 bytes.
    pub fn emit<'a>(&self, buffer: &'a mut [u8]) -> Result<Ipv6<&'a mut [u8]>, Error> {
        let Ok(payload_len) = u16::try_from(self.payload_len_bytes) else {
            let (length, min, max) = (self.payload_len_bytes, 0, 0xffff);
            return Err(Error::BadLength {
                what: "IPv6 payload",
                length,
                min,
                max,
            });
        };
        let total_len = HEADER_LEN_BYTES + self.payload_len_bytes;
        let buffer = view::room(buffer, total_len, "room for the IPv6 packet")?;
        let (mut header, payload) = view::header::<_, Header>(buffer, WHAT)?;
        let class_label = u32::from(self.traffic_class) << 20 | self.flow_label & 0x000f_ffff;
        *header = Header {
            version_class_label: (6 << 28 | class_label).into(),
            payload_len: payload_len.into(),
            next_header: self.next_header.0,
            hop_limit: self.hop_limit,
            source: self.source.octets(),
            destination: self.destination.octets(),
        };
        Ok(Ipv6 { header, payload })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn packet(next_header: IpProtocol, payload: &[u8]) -> Vec<u8> {
        let repr = Ipv6Repr {
            traffic_class: 0,
            flow_label: 0,
            next_header,
            hop_limit: 64,
            source: Ipv6Addr::LOCALHOST,
            destination: Ipv6Addr::LOCALHOST,
            payload_len_bytes: payload.len(),
        };
        let mut bytes = vec![0; 40 + payload.len()];
        repr.emit(&mut bytes)
            .unwrap()
            .payload_mut()
            .copy_from_slice(payload);
        bytes
    }

    /// Returns an IPv6 packet's extension headers: hop-by-hop (8 bytes), routing (16), destination (8), fragment (8),
    /// then two bytes of UDP.
    fn chain(fragment_offset_and_more: u16) -> Vec<u8> {
        let mut payload = vec![43, 0, 0, 0, 0, 0, 0, 0];
        payload.extend([60, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend([44, 0, 0, 0, 0, 0, 0, 0]);
        payload.extend([17, 0]);
        payload.extend(fragment_offset_and_more.to_be_bytes());
        payload.extend([0, 0, 0, 9, 0xab, 0xcd]);
        packet(IpProtocol::HOP_BY_HOP, &payload)
    }

    #[test]
    fn the_extension_walk_finds_the_transport_after_all_extensions() {
        let bytes = chain(1);
        let view = Ipv6::new(&bytes[..]).unwrap();
        let transport = view.transport().unwrap();
        assert_eq!(transport.protocol, IpProtocol::UDP);
        assert_eq!(transport.payload, [0xab, 0xcd]);
        assert_eq!(transport.extensions_len_bytes, 40);
        let fragment = Fragment {
            offset_bytes: 0,
            more: true,
            identification: 9,
        };
        assert_eq!(transport.fragment, Some(fragment));
    }

    #[test]
    fn the_extension_walk_ends_at_the_header_of_later_fragments() {
        // The fragment's data would parse as one more extension header.
        let piece = [60, 0, 0, 8 << 3, 0, 0, 0, 1, 17, 0, 0, 0, 0, 0, 0, 0];
        let bytes = packet(IpProtocol::FRAGMENT, &piece);
        let view = Ipv6::new(&bytes[..]).unwrap();
        let transport = view.transport().unwrap();
        assert_eq!(transport.protocol, IpProtocol::DESTINATION);
        assert_eq!(transport.fragment.unwrap().offset_bytes, 64);
        assert_eq!(transport.extensions_len_bytes, 8);
    }

    #[test]
    fn extensions_longer_than_the_packet_are_refused_as_truncated() {
        for at in [41, 49, 65] {
            let mut bytes = chain(0);
            bytes[at] = 200;
            let view = Ipv6::new(&bytes[..]).unwrap();
            assert!(
                matches!(view.transport(), Err(Error::Truncated { .. })),
                "{at}"
            );
        }
        for length in [0, 1, 7] {
            for first in [IpProtocol::HOP_BY_HOP, IpProtocol::FRAGMENT] {
                let bytes = packet(first, &vec![0; length]);
                assert!(Ipv6::new(&bytes[..]).unwrap().transport().is_err());
            }
        }
    }

    #[test]
    fn truncated_ipv6_packets_and_other_versions_are_refused() {
        let mut bytes = packet(IpProtocol::UDP, &[0; 8]);
        for length in 0..48 {
            assert!(matches!(
                Ipv6::new(&bytes[..length]),
                Err(Error::Truncated { .. })
            ));
        }
        bytes[0] = 0x45;
        assert!(matches!(
            Ipv6::new(&bytes[..]),
            Err(Error::BadVersion { version: 4, .. })
        ));
    }

    #[test]
    fn the_ipv6_hop_limit_is_not_decremented_below_zero() {
        let mut bytes = packet(IpProtocol::UDP, &[]);
        bytes[7] = 1;
        let mut view = Ipv6::new(&mut bytes[..]).unwrap();
        assert_eq!(view.decrement_hop_limit(), 0);
        assert_eq!(view.decrement_hop_limit(), 0);
    }

    proptest! {
        #[test]
        fn parsed_ipv6_headers_are_emitted_unchanged_and_agree_with_etherparse(
            mut bytes in proptest::collection::vec(any::<u8>(), 40..90),
        ) {
            let payload_len = bytes.len() as u8 - 40;
            bytes[0] = 0x60 | bytes[0] & 0x0f;
            bytes[4..6].copy_from_slice(&[0, payload_len]);
            let repr = Ipv6Repr::parse(&Ipv6::new(&bytes[..]).unwrap()).unwrap();
            let mut again = bytes.clone();
            again[..40].fill(0xaa);
            repr.emit(&mut again).unwrap();
            prop_assert_eq!(&again, &bytes);

            let (theirs, _) = etherparse::Ipv6Header::from_slice(&bytes).unwrap();
            prop_assert_eq!(theirs.traffic_class, repr.traffic_class);
            prop_assert_eq!(theirs.flow_label.value(), repr.flow_label);
            prop_assert_eq!(theirs.hop_limit, repr.hop_limit);
            prop_assert_eq!(theirs.destination, repr.destination.octets());
        }
    }
}
