//! GTP-U version 1: user packets tunnelled between base stations and gateways (3GPP TS 29.281).

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, view};

mod pdu_session;
mod signalling;

pub use pdu_session::{MOST_QFI, PDU_SESSION_CONTAINER, PDU_SESSION_LEN_BYTES, PduSession};
pub use signalling::{ErrorIndication, emit_echo_request, emit_echo_response, emit_end_marker};

const WHAT: &str = "GTP-U header";
const EXTENSION: &str = "GTP-U extension header";
const FIXED_LEN_BYTES: usize = size_of::<Header>();
const OPTIONAL_LEN_BYTES: usize = size_of::<Optional>();

const VERSION_1_GTP: u8 = 0b0011_0000;
const VERSION_AND_TYPE: u8 = 0b1111_0000;
const HAS_EXTENSIONS: u8 = 0b100;
const HAS_SEQUENCE: u8 = 0b010;
const HAS_N_PDU: u8 = 0b001;
const HAS_ANY: u8 = HAS_EXTENSIONS | HAS_SEQUENCE | HAS_N_PDU;

/// The maximum number of extension headers in a chain. No sender needs as many, and a longer chain would only take the
/// reader's time.
pub const MOST_EXTENSIONS: usize = 16;

/// The UDP port that GTP-U uses (TS 29.281 section 4.4.2).
pub const UDP_PORT: u16 = 2152;

/// The type of a GTP-U message (TS 29.281 section 6.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageType(pub u8);

impl MessageType {
    /// Echo request: asks whether the peer is alive.
    pub const ECHO_REQUEST: Self = Self(1);
    /// Echo response: confirms that the sender is alive.
    pub const ECHO_RESPONSE: Self = Self(2);
    /// Error indication: the sender does not know the tunnel of a received packet.
    pub const ERROR_INDICATION: Self = Self(26);
    /// End marker: no more packets follow through this tunnel.
    pub const END_MARKER: Self = Self(254);
    /// A user packet.
    pub const G_PDU: Self = Self(255);
}

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    flags: u8,
    message_type: u8,
    length: U16,
    teid: U32,
}

/// The optional fields of a GTP-U header. All of them are present if any of their three flags is set; a field is valid
/// only if its own flag is set.
#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Optional {
    sequence: U16,
    n_pdu: u8,
    next_extension: u8,
}

/// A typed reference ("view") to the bytes of a GTP-U packet; bytes beyond the packet's length field are ignored.
#[derive(Debug)]
pub struct Gtpu<B: ByteSlice> {
    header: Ref<B, Header>,
    optional: Option<Ref<B, Optional>>,
    extensions: B,
    payload: B,
}

impl<B: SplitByteSlice> Gtpu<B> {
    /// Makes a view of a GTP-U packet in `bytes`.
    ///
    /// # Errors
    /// Returns `Truncated` if the header, its length field or an extension header goes past the end; `BadVersion` if
    /// the version is not 1; `BadValue` for GTP' (the charging protocol); `BadLength` for an extension header of length
    /// 0, or more than [`MOST_EXTENSIONS`] of them.
    #[inline]
    pub fn new(bytes: B) -> Result<Self, Error> {
        let (header, rest) = view::header::<B, Header>(bytes, WHAT)?;
        let version = header.flags >> 5;
        if version != 1 {
            return Err(Error::BadVersion {
                what: WHAT,
                version,
            });
        }
        if header.flags & VERSION_AND_TYPE != VERSION_1_GTP {
            return Err(Error::BadValue {
                what: "GTP-U protocol type",
                value: 0,
            });
        }
        let length = usize::from(header.length.get());
        let (rest, _) = view::take(rest, length, "GTP-U packet")?;
        if header.flags & HAS_ANY == 0 {
            let (extensions, payload) = view::take(rest, 0, WHAT)?;
            return Ok(Self {
                header,
                optional: None,
                extensions,
                payload,
            });
        }
        let (optional, rest) = view::header::<B, Optional>(rest, WHAT)?;
        let extensions_len = if header.flags & HAS_EXTENSIONS != 0 {
            let first = optional.next_extension;
            Extensions {
                first,
                bytes: &rest,
            }
            .chain_len_bytes()?
        } else {
            0
        };
        let (extensions, payload) = view::take(rest, extensions_len, EXTENSION)?;
        Ok(Self {
            header,
            optional: Some(optional),
            extensions,
            payload,
        })
    }
}

/// One extension header of a GTP-U packet (TS 29.281 section 5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension<'a> {
    /// Type of the header; 0x85 is the PDU session container of 5G.
    pub kind: u8,
    /// Content of the header: 2 bytes, plus 4 for each unit of the length field above 1.
    pub content: &'a [u8],
}

/// The chain of extension headers of a GTP-U packet, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extensions<'a> {
    /// Type of the first extension header; 0 if there is none.
    pub first: u8,
    /// Bytes of all extension headers as they are on the wire; the length is a multiple of 4.
    pub bytes: &'a [u8],
}

impl<'a> Extensions<'a> {
    /// Returns the first extension header and the remaining chain; None if the chain is empty.
    #[inline]
    fn split_first(self) -> Result<Option<(Extension<'a>, Self)>, Error> {
        let kind = self.first;
        if kind == 0 {
            return Ok(None);
        }
        let (units, _) = view::header::<_, u8>(self.bytes, EXTENSION)?;
        let length = usize::from(*units) * 4;
        let (whole, bytes) = view::take(self.bytes, length, EXTENSION)?;
        let [_, content @ .., first] = whole else {
            let (min, max) = (4, 1020);
            return Err(Error::BadLength {
                what: EXTENSION,
                length,
                min,
                max,
            });
        };
        let rest = Self {
            first: *first,
            bytes,
        };
        Ok(Some((Extension { kind, content }, rest)))
    }

    /// Returns the length of the chain of extension headers in bytes; more bytes may follow it.
    fn chain_len_bytes(self) -> Result<usize, Error> {
        let mut rest = self;
        let mut length = 0;
        while let Some((_, after)) = rest.split_first()? {
            rest = after;
            length += 1;
            if length > MOST_EXTENSIONS {
                let (min, max) = (0, MOST_EXTENSIONS);
                return Err(Error::BadLength {
                    what: "chain of GTP-U extension headers",
                    length,
                    min,
                    max,
                });
            }
        }
        Ok(self.bytes.len() - rest.bytes.len())
    }
}

impl Extension<'_> {
    /// Returns true if a tunnel endpoint that does not understand this header must discard the packet. The highest two
    /// bits of the header's type are then 10 or 11 (TS 29.281 section 5.2.1, figure 5.2.1-2).
    #[inline]
    pub fn must_be_understood(&self) -> bool {
        self.kind & 0x80 != 0
    }
}

impl<'a> Iterator for Extensions<'a> {
    type Item = Extension<'a>;

    fn next(&mut self) -> Option<Extension<'a>> {
        let (extension, rest) = self.split_first().ok().flatten()?;
        *self = rest;
        Some(extension)
    }
}

impl<B: ByteSlice> Gtpu<B> {
    /// Returns the type of the message.
    pub fn message_type(&self) -> MessageType {
        MessageType(self.header.message_type)
    }

    /// Returns the tunnel endpoint identifier.
    #[inline]
    pub fn teid(&self) -> u32 {
        self.header.teid.get()
    }

    /// Returns the sequence number, if the packet has one.
    pub fn sequence(&self) -> Option<u16> {
        let optional = self.optional.as_ref()?;
        (self.header.flags & HAS_SEQUENCE != 0).then(|| optional.sequence.get())
    }

    /// Returns the N-PDU number, if the packet has one.
    pub fn n_pdu(&self) -> Option<u8> {
        let optional = self.optional.as_ref()?;
        (self.header.flags & HAS_N_PDU != 0).then_some(optional.n_pdu)
    }

    /// Returns the extension headers, if the packet has any.
    pub fn extensions(&self) -> Option<Extensions<'_>> {
        let optional = self.optional.as_ref()?;
        (self.header.flags & HAS_EXTENSIONS != 0).then_some(Extensions {
            first: optional.next_extension,
            bytes: &self.extensions,
        })
    }

    /// Returns the number of bytes before the payload: 8, or 12 plus the extension headers.
    #[inline]
    pub fn header_len_bytes(&self) -> usize {
        let optional_len = if self.optional.is_some() {
            OPTIONAL_LEN_BYTES
        } else {
            0
        };
        FIXED_LEN_BYTES + optional_len + self.extensions.len()
    }

    /// Returns the user packet, or the information elements of a signalling message.
    #[inline]
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }
}

impl<B: ByteSliceMut> Gtpu<B> {
    /// Returns the payload for writing.
    #[inline]
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
    }
}

/// The fields of a GTP-U header as a Rust value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GtpuRepr<'a> {
    /// Type of the message.
    pub message_type: MessageType,
    /// Tunnel endpoint identifier.
    pub teid: u32,
    /// Sequence number, if the packet has one.
    pub sequence: Option<u16>,
    /// N-PDU number, if the packet has one.
    pub n_pdu: Option<u8>,
    /// Extension headers, if the packet has any.
    pub extensions: Option<Extensions<'a>>,
    /// Payload length in bytes.
    pub payload_len_bytes: usize,
}

impl<'a> GtpuRepr<'a> {
    /// Reads the header; the spare flag and optional fields without their flag are dropped, as TS 29.281 section 5.1
    /// requires of receivers.
    ///
    /// # Errors
    /// Returns no errors at present; `parse` has this signature for all protocols of the crate.
    pub fn parse<B: ByteSlice>(view: &'a Gtpu<B>) -> Result<Self, Error> {
        Ok(Self {
            message_type: view.message_type(),
            teid: view.teid(),
            sequence: view.sequence(),
            n_pdu: view.n_pdu(),
            extensions: view.extensions(),
            payload_len_bytes: view.payload().len(),
        })
    }

    /// Returns the number of bytes before the payload: 8, or 12 plus the extension headers.
    pub fn header_len_bytes(&self) -> usize {
        if self.sequence.is_none() && self.n_pdu.is_none() && self.extensions.is_none() {
            return FIXED_LEN_BYTES;
        }
        let extensions_len = self
            .extensions
            .map_or(0, |extensions| extensions.bytes.len());
        FIXED_LEN_BYTES + OPTIONAL_LEN_BYTES + extensions_len
    }

    /// Writes the header to the front of `buffer` and returns a view of the packet.
    ///
    /// # Errors
    /// Returns `Truncated` if header and payload do not fit; `BadLength` if they are over 65543 bytes or the extension
    /// headers are not a complete chain.
    pub fn emit<'b>(&self, buffer: &'b mut [u8]) -> Result<Gtpu<&'b mut [u8]>, Error> {
        let header_len = self.header_len_bytes();
        let total_len = header_len.saturating_add(self.payload_len_bytes);
        let Ok(length) = u16::try_from(total_len - FIXED_LEN_BYTES) else {
            let (length, min, max) = (total_len, header_len, 0xffff + FIXED_LEN_BYTES);
            return Err(Error::BadLength {
                what: "GTP-U packet",
                length,
                min,
                max,
            });
        };
        if let Some(extensions) = self.extensions {
            let max = extensions.chain_len_bytes()?;
            let length = extensions.bytes.len();
            if length != max {
                let min = max;
                return Err(Error::BadLength {
                    what: EXTENSION,
                    length,
                    min,
                    max,
                });
            }
        }
        let buffer = view::room(buffer, total_len, "room for the GTP-U packet")?;
        let (mut header, rest) = view::header::<_, Header>(&mut *buffer, WHAT)?;
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let flags = VERSION_1_GTP
            | flag(self.extensions.is_some(), HAS_EXTENSIONS)
            | flag(self.sequence.is_some(), HAS_SEQUENCE)
            | flag(self.n_pdu.is_some(), HAS_N_PDU);
        *header = Header {
            flags,
            message_type: self.message_type.0,
            length: length.into(),
            teid: self.teid.into(),
        };
        if flags & HAS_ANY != 0 {
            let (mut optional, rest) = view::header::<_, Optional>(rest, WHAT)?;
            let extensions = self.extensions.unwrap_or(Extensions {
                first: 0,
                bytes: &[],
            });
            *optional = Optional {
                sequence: self.sequence.unwrap_or(0).into(),
                n_pdu: self.n_pdu.unwrap_or(0),
                next_extension: extensions.first,
            };
            let (room, _) = view::take(rest, extensions.bytes.len(), WHAT)?;
            room.copy_from_slice(extensions.bytes);
        }
        Gtpu::new(buffer)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    /// A G-PDU with two extension headers (a PDU session container, then one of 8 bytes) and the payload "user".
    const WITH_EXTENSIONS: [u8; 28] = [
        0x36, 255, 0, 20, 0, 0, 0x12, 0x34, 0, 9, 0, 0x85, //
        1, 0x10, 0x01, 0xc0, 2, 1, 2, 3, 4, 5, 6, 0, b'u', b's', b'e', b'r',
    ];

    fn any_chain() -> impl Strategy<Value = Option<(u8, Vec<u8>)>> {
        let extension = (1u8..=255, 1u8..5);
        let chain = proptest::collection::vec(extension, 0..4).prop_map(|extensions| {
            let kinds: Vec<u8> = extensions.iter().map(|e| e.0).chain([0]).collect();
            let mut bytes = Vec::new();
            for (i, (_, units)) in extensions.iter().enumerate() {
                let end = bytes.len() + usize::from(*units) * 4;
                bytes.push(*units);
                bytes.resize(end - 1, 0x5a);
                bytes.push(kinds[i + 1]);
            }
            (kinds[0], bytes)
        });
        proptest::option::of(chain)
    }

    #[test]
    fn gtpu_extension_headers_are_skipped_to_the_user_packet() {
        let view = Gtpu::new(&WITH_EXTENSIONS[..]).unwrap();
        assert_eq!(view.payload(), b"user");
        assert_eq!(view.teid(), 0x1234);
        assert_eq!(view.sequence(), Some(9));
        assert_eq!(view.n_pdu(), None);
        assert_eq!(view.header_len_bytes(), 24);
        let all: Vec<_> = view.extensions().unwrap().collect();
        let first = Extension {
            kind: 0x85,
            content: &[0x10, 0x01],
        };
        let second = Extension {
            kind: 0xc0,
            content: &[1, 2, 3, 4, 5, 6],
        };
        assert_eq!(all, [first, second]);
    }

    #[test]
    fn wrong_gtpu_extension_header_lengths_are_refused() {
        for (at, value) in [(12, 0), (12, 200), (12, 5), (16, 0), (16, 4), (23, 1)] {
            let mut bytes = WITH_EXTENSIONS;
            bytes[at] = value;
            assert!(Gtpu::new(&bytes[..]).is_err(), "byte {at} = {value}");
        }
    }

    #[test]
    fn gtpu_extension_chains_longer_than_the_limit_are_refused() {
        let packet = |extensions: usize| {
            let mut bytes = vec![0x34, 255, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0x20];
            for left in (0..extensions).rev() {
                bytes.extend([1, 0, 0, if left == 0 { 0 } else { 0x20 }]);
            }
            let length = (bytes.len() - 8) as u16;
            bytes[2..4].copy_from_slice(&length.to_be_bytes());
            bytes
        };
        assert!(Gtpu::new(&packet(MOST_EXTENSIONS)[..]).is_ok());
        assert!(matches!(
            Gtpu::new(&packet(MOST_EXTENSIONS + 1)[..]),
            Err(Error::BadLength { .. })
        ));
        let long = packet(16_000);
        assert!(matches!(
            Gtpu::new(&long[..]),
            Err(Error::BadLength { length: 17, .. })
        ));
    }

    #[test]
    fn a_nested_tunnel_is_the_payload_of_the_outer_tunnel() {
        let outer = GtpuRepr {
            message_type: MessageType::G_PDU,
            teid: 1,
            sequence: None,
            n_pdu: None,
            extensions: None,
            payload_len_bytes: WITH_EXTENSIONS.len(),
        };
        let mut buffer = [0; 64];
        let mut view = outer.emit(&mut buffer).unwrap();
        view.payload_mut().copy_from_slice(&WITH_EXTENSIONS);
        assert_eq!((view.teid(), view.extensions()), (1, None));
        let inner = Gtpu::new(view.payload()).unwrap();
        assert_eq!((inner.teid(), inner.payload()), (0x1234, &b"user"[..]));
    }

    #[test]
    fn gtpu_packets_truncated_at_any_length_are_refused() {
        for length in 0..WITH_EXTENSIONS.len() {
            let cut = Gtpu::new(&WITH_EXTENSIONS[..length]);
            assert!(matches!(cut, Err(Error::Truncated { .. })), "{length}");
        }
        // The chain must end within the packet's length field, although the buffer is longer.
        for length in 0..16 {
            let mut bytes = WITH_EXTENSIONS;
            bytes[3] = length;
            assert!(
                matches!(Gtpu::new(&bytes[..]), Err(Error::Truncated { .. })),
                "{length}"
            );
        }
    }

    #[test]
    fn unsupported_gtp_versions_and_charging_packets_are_refused() {
        let mut bytes = WITH_EXTENSIONS;
        for version in [0, 2, 3, 7] {
            bytes[0] = version << 5 | 0x16;
            assert!(matches!(
                Gtpu::new(&bytes[..]),
                Err(Error::BadVersion { version: found, .. }) if found == version
            ));
        }
        bytes[0] = 0x26;
        assert!(matches!(Gtpu::new(&bytes[..]), Err(Error::BadValue { .. })));
    }

    #[test]
    fn malformed_extension_chains_are_not_emitted() {
        let view = Gtpu::new(&WITH_EXTENSIONS[..]).unwrap();
        let repr = GtpuRepr::parse(&view).unwrap();
        for (first, bytes) in [
            (0, &[1, 0, 0, 0][..]),
            (1, &[]),
            (1, &[2, 0, 0, 0]),
            (1, &[1, 0, 0, 0, 0]),
        ] {
            let repr = GtpuRepr {
                extensions: Some(Extensions { first, bytes }),
                ..repr
            };
            assert!(repr.emit(&mut [0; 99]).is_err(), "{first} {bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn emitted_gtpu_headers_are_unchanged_after_parsing_and_emitting_again(
            message_type: u8, teid: u32, sequence: Option<u16>, n_pdu: Option<u8>, chain in any_chain(),
            payload_len_bytes in 0usize..40,
        ) {
            let extensions = chain.as_ref().map(|(first, bytes)| Extensions { first: *first, bytes });
            let repr = GtpuRepr {
                message_type: MessageType(message_type), teid, sequence, n_pdu, extensions, payload_len_bytes,
            };
            let mut first = [0x77; 128];
            let view = repr.emit(&mut first).unwrap();
            let parsed = GtpuRepr::parse(&view).unwrap();
            prop_assert_eq!(parsed, repr);
            prop_assert_eq!(view.header_len_bytes(), repr.header_len_bytes());
            let mut second = [0x77; 128];
            parsed.emit(&mut second).unwrap();
            prop_assert_eq!(first, second);
        }
    }
}
