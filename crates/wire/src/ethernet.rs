//! Ethernet II frames with up to two VLAN tags (IEEE 802.3, 802.1Q), without the frame check sequence.

use std::{fmt, str::FromStr};

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, view};

/// A 48-bit MAC address; written and read as `02:00:00:00:00:01` (`-` is read too).
#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(transparent)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// The broadcast address.
    pub const BROADCAST: Self = Self([0xff; 6]);

    /// Returns true for a multicast or the broadcast address.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Mac {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut octets = [0; 6];
        let mut parts = text.split([':', '-']);
        for octet in &mut octets {
            let part = parts.next().ok_or(Error::BadMac)?;
            if part.len() != 2 || !part.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(Error::BadMac);
            }
            *octet = u8::from_str_radix(part, 16).map_err(|_| Error::BadMac)?;
        }
        match parts.next() {
            None => Ok(Self(octets)),
            Some(_) => Err(Error::BadMac),
        }
    }
}

/// The EtherType: the protocol in an Ethernet frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EtherType(pub u16);

impl EtherType {
    /// IPv4 (RFC 894).
    pub const IPV4: Self = Self(0x0800);
    /// ARP (RFC 826).
    pub const ARP: Self = Self(0x0806);
    /// IPv6 (RFC 2464).
    pub const IPV6: Self = Self(0x86dd);
}

/// The type of a VLAN tag, by its tag protocol identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum TagKind {
    /// Customer tag (C-tag), 0x8100: the only tag of a frame, or the inner one of two (802.1Q).
    Customer = 0x8100,
    /// Service tag (S-tag), 0x88a8: the outer one of two tags (802.1ad).
    Service = 0x88a8,
}

impl TagKind {
    #[inline]
    fn from_ethertype(ethertype: u16) -> Option<Self> {
        match ethertype {
            0x8100 => Some(Self::Customer),
            0x88a8 => Some(Self::Service),
            _ => None,
        }
    }
}

/// One VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VlanTag {
    /// Type of the tag: customer or service tag.
    pub kind: TagKind,
    /// Tag control information: priority (3 bits), drop eligible (1), VLAN identifier (12).
    pub control: u16,
}

impl VlanTag {
    /// The largest VLAN identifier (802.1Q reserves 4095).
    pub const MAX_ID: u16 = 4094;

    /// Returns a customer tag with VLAN identifier `id` and priority 0.
    ///
    /// # Errors
    /// Returns `BadValue` if `id` is over [`VlanTag::MAX_ID`].
    pub fn new(id: u16) -> Result<Self, Error> {
        if id > Self::MAX_ID {
            let value = u32::from(id);
            return Err(Error::BadValue {
                what: "VLAN identifier",
                value,
            });
        }
        Ok(Self {
            kind: TagKind::Customer,
            control: id,
        })
    }

    /// Returns the VLAN identifier, 0 to 4095 as found on the wire.
    pub fn id(self) -> u16 {
        self.control & 0x0fff
    }

    /// Returns the priority code point, 0 to 7.
    pub fn priority(self) -> u8 {
        (self.control >> 13) as u8
    }

    fn bytes(self) -> [u8; 4] {
        let [a, b] = (self.kind as u16).to_be_bytes();
        let [c, d] = self.control.to_be_bytes();
        [a, b, c, d]
    }
}

/// The VLAN tags of a frame; any after the second remain in the payload.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Vlan {
    /// The frame has no tag.
    #[default]
    Untagged,
    /// The frame has one tag.
    Single(VlanTag),
    /// The frame has two tags.
    Double {
        /// The first tag on the wire.
        outer: VlanTag,
        /// The second tag on the wire.
        inner: VlanTag,
    },
}

impl Vlan {
    /// Returns the length of the tags in bytes: 0, 4 or 8.
    pub fn len_bytes(self) -> usize {
        match self {
            Self::Untagged => 0,
            Self::Single(_) => 4,
            Self::Double { .. } => 8,
        }
    }
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    destination: Mac,
    source: Mac,
}

/// A typed reference ("view") to the bytes of an Ethernet frame.
#[derive(Debug)]
pub struct Ethernet<B: ByteSlice> {
    header: Ref<B, Header>,
    tags: B,
    ethertype: Ref<B, U16>,
    payload: B,
}

impl<B: SplitByteSlice> Ethernet<B> {
    /// Makes a view of the Ethernet frame `frame`.
    ///
    /// # Errors
    /// Returns `Truncated` if the frame ends before its payload.
    #[inline]
    pub fn new(frame: B) -> Result<Self, Error> {
        const WHAT: &str = "Ethernet header";
        let (header, rest) = view::header(frame, WHAT)?;
        let tags_len_bytes = match (tag_kind(&rest, 0), tag_kind(&rest, 4)) {
            (None, _) => 0,
            (Some(_), None) => 4,
            (Some(_), Some(_)) => 8,
        };
        let (tags, rest) = view::take(rest, tags_len_bytes, WHAT)?;
        let (ethertype, payload) = view::header(rest, WHAT)?;
        Ok(Self {
            header,
            tags,
            ethertype,
            payload,
        })
    }
}

/// Returns the kind of the VLAN tag at offset `at`; none if no VLAN tag begins there.
#[inline]
fn tag_kind(bytes: &[u8], at: usize) -> Option<TagKind> {
    let ethertype = bytes.get(at..)?.first_chunk()?;
    TagKind::from_ethertype(u16::from_be_bytes(*ethertype))
}

/// Returns the VLAN tag at offset `at`; none if no complete VLAN tag is there.
fn tag(bytes: &[u8], at: usize) -> Option<VlanTag> {
    let kind = tag_kind(bytes, at)?;
    let control = u16::from_be_bytes(*bytes.get(at + 2..)?.first_chunk()?);
    Some(VlanTag { kind, control })
}

impl<B: ByteSlice> Ethernet<B> {
    /// Returns the destination MAC address.
    pub fn destination(&self) -> Mac {
        self.header.destination
    }

    /// Returns the source MAC address.
    pub fn source(&self) -> Mac {
        self.header.source
    }

    /// Returns the VLAN tags of the frame.
    pub fn vlan(&self) -> Vlan {
        match (tag(&self.tags, 0), tag(&self.tags, 4)) {
            (None, _) => Vlan::Untagged,
            (Some(tag), None) => Vlan::Single(tag),
            (Some(outer), Some(inner)) => Vlan::Double { outer, inner },
        }
    }

    /// Returns the protocol in the frame, after the tags.
    #[inline]
    pub fn ethertype(&self) -> EtherType {
        EtherType(self.ethertype.get())
    }

    /// Returns the number of bytes before the payload: 14, 18 or 22.
    #[inline]
    pub fn header_len_bytes(&self) -> usize {
        14 + self.tags.len()
    }

    /// Returns the payload after the Ethernet header and the tags, including any padding.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

impl<B: ByteSliceMut> Ethernet<B> {
    /// Sets the destination MAC address.
    #[inline]
    pub fn set_destination(&mut self, mac: Mac) {
        self.header.destination = mac;
    }

    /// Sets the source MAC address.
    #[inline]
    pub fn set_source(&mut self, mac: Mac) {
        self.header.source = mac;
    }

    /// Swaps the source and destination MAC addresses.
    #[inline]
    pub fn swap_addresses(&mut self) {
        let header = &mut *self.header;
        std::mem::swap(&mut header.source, &mut header.destination);
    }

    /// Returns the payload of the frame for writing.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
    }
}

/// The fields of an Ethernet header as a Rust value, independent of the frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EthernetRepr {
    /// Destination MAC address.
    pub destination: Mac,
    /// Source MAC address.
    pub source: Mac,
    /// VLAN tags.
    pub vlan: Vlan,
    /// Protocol in the frame, after the tags.
    pub ethertype: EtherType,
}

impl EthernetRepr {
    /// Reads the fields of an Ethernet header.
    ///
    /// # Errors
    /// Returns no errors at present; `parse` has this signature for all protocols of the crate.
    pub fn parse<B: ByteSlice>(view: &Ethernet<B>) -> Result<Self, Error> {
        Ok(Self {
            destination: view.destination(),
            source: view.source(),
            vlan: view.vlan(),
            ethertype: view.ethertype(),
        })
    }

    /// Returns the header's length: 14, 18 or 22 bytes.
    pub fn header_len_bytes(&self) -> usize {
        14 + self.vlan.len_bytes()
    }

    /// Writes the header to the front of `frame` and returns a view of the frame.
    ///
    /// # Errors
    /// Returns `Truncated` if the header does not fit.
    pub fn emit<'a>(&self, frame: &'a mut [u8]) -> Result<Ethernet<&'a mut [u8]>, Error> {
        const WHAT: &str = "room for the Ethernet header";
        let (mut header, rest) = view::header::<_, Header>(&mut *frame, WHAT)?;
        header.destination = self.destination;
        header.source = self.source;
        let (tags, rest) = view::take(rest, self.vlan.len_bytes(), WHAT)?;
        let (mut ethertype, _) = view::header::<_, U16>(rest, WHAT)?;
        ethertype.set(self.ethertype.0);
        match self.vlan {
            Vlan::Untagged => {}
            Vlan::Single(tag) => tags.copy_from_slice(&tag.bytes()),
            Vlan::Double { outer, inner } => {
                tags[..4].copy_from_slice(&outer.bytes());
                tags[4..].copy_from_slice(&inner.bytes());
            }
        }
        Ethernet::new(frame)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    fn any_tag() -> impl Strategy<Value = VlanTag> {
        (any::<bool>(), any::<u16>()).prop_map(|(service, control)| VlanTag {
            kind: if service {
                TagKind::Service
            } else {
                TagKind::Customer
            },
            control,
        })
    }

    fn any_vlan() -> impl Strategy<Value = Vlan> {
        prop_oneof![
            Just(Vlan::Untagged),
            any_tag().prop_map(Vlan::Single),
            (any_tag(), any_tag()).prop_map(|(outer, inner)| Vlan::Double { outer, inner }),
        ]
    }

    #[test]
    fn a_printed_mac_address_parses_to_the_same_address() {
        let mac = Mac([2, 0, 0xab, 0xcd, 0xef, 0x01]);
        assert_eq!(mac.to_string(), "02:00:ab:cd:ef:01");
        assert_eq!("02:00:AB:cd:ef:01".parse(), Ok(mac));
        assert_eq!("02-00-ab-cd-ef-01".parse(), Ok(mac));
    }

    #[test]
    fn malformed_mac_addresses_are_refused() {
        for text in [
            "",
            "02:00:00:00:00",
            "02:00:00:00:00:00:00",
            "2:0:0:0:0:0",
            "+2:00:00:00:00:00",
            "0g:00:00:00:00:00",
        ] {
            assert_eq!(text.parse::<Mac>(), Err(Error::BadMac), "{text}");
        }
    }

    #[test]
    fn vlan_identifier_4095_is_refused() {
        assert_eq!(VlanTag::new(4094).unwrap().id(), 4094);
        assert!(VlanTag::new(4095).is_err());
    }

    #[test]
    fn ethernet_headers_truncated_at_any_length_are_refused() {
        let mut frame = [0; 22];
        frame[12..14].copy_from_slice(&[0x88, 0xa8]);
        frame[16..18].copy_from_slice(&[0x81, 0x00]);
        frame[20..22].copy_from_slice(&[0x08, 0x00]);
        assert_eq!(
            Ethernet::new(&frame[..]).unwrap().ethertype(),
            EtherType::IPV4
        );
        for length in 0..22 {
            assert!(Ethernet::new(&frame[..length]).is_err(), "{length}");
        }
    }

    #[test]
    fn mac_addresses_are_set_and_swapped_in_place() {
        let mut frame = [0xaa; 15];
        let mut view = Ethernet::new(&mut frame[..]).unwrap();
        view.set_source(Mac([1; 6]));
        view.set_destination(Mac([2; 6]));
        view.swap_addresses();
        assert_eq!(
            (view.source(), view.destination()),
            (Mac([2; 6]), Mac([1; 6]))
        );
        assert_eq!(
            frame,
            [1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 0xaa, 0xaa, 0xaa]
        );
    }

    #[test]
    fn a_third_vlan_tag_is_part_of_the_payload() {
        let mut frame = [0; 26];
        for at in [12, 16, 20] {
            frame[at..at + 2].copy_from_slice(&[0x81, 0x00]);
        }
        let view = Ethernet::new(&frame[..]).unwrap();
        assert_eq!(view.ethertype(), EtherType(0x8100));
        assert_eq!(view.payload().len(), 4);
    }

    proptest! {
        #[test]
        fn emitted_ethernet_headers_parse_to_the_same_fields(d: [u8; 6], s: [u8; 6], vlan in any_vlan(), ethertype in 0u16..0x8100) {
            let repr = EthernetRepr { destination: Mac(d), source: Mac(s), vlan, ethertype: EtherType(ethertype) };
            let mut frame = [0xaa; 64];
            let view = repr.emit(&mut frame).unwrap();
            prop_assert_eq!(view.payload().len(), 64 - repr.header_len_bytes());
            prop_assert_eq!(EthernetRepr::parse(&view).unwrap(), repr);
        }

        #[test]
        fn parsed_ethernet_headers_are_emitted_unchanged(mut frame in proptest::collection::vec(any::<u8>(), 14..64), tags in 0usize..3) {
            let length = frame.len();
            for at in [12, 16].into_iter().take(tags).filter(|at| at + 6 <= length) {
                frame[at..at + 2].copy_from_slice(&[0x81, 0x00]);
            }
            if let Ok(view) = Ethernet::new(&frame[..]) {
                let repr = EthernetRepr::parse(&view).unwrap();
                let mut again = frame.clone();
                again[..repr.header_len_bytes()].fill(0);
                repr.emit(&mut again).unwrap();
                prop_assert_eq!(again, frame);
            }
        }
    }
}
