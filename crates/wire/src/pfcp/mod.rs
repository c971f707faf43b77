//! PFCP version 1, the protocol by which the control plane of a mobile core configures user planes (3GPP TS 29.244).
//! Messages are read as views and written into vectors, because this is not the data path.

mod element;

pub use element::{
    Cause, Element, ElementType, Elements, FTeid, FailedRule, Mbr, NodeId, OuterHeaderCreation,
    SdfFilter, Seid, UeAddress, Volumes, emit_gtpu_peer,
};

use crate::{Error, view};
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "PFCP header";

/// The UDP port to which PFCP requests are sent (TS 29.244 section 6.4.2).
pub const UDP_PORT: u16 = 8805;

const VERSION: u8 = 1;
const HAS_SEID: u8 = 0b1;
const LENGTH_STARTS_AT: usize = 4;

/// The type of a message (TS 29.244 section 7.3, table 7.3-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageType(pub u8);

#[allow(missing_docs)] // their names are those of the specification
impl MessageType {
    pub const HEARTBEAT_REQUEST: Self = Self(1);
    pub const HEARTBEAT_RESPONSE: Self = Self(2);
    pub const PFD_MANAGEMENT_REQUEST: Self = Self(3);
    pub const ASSOCIATION_SETUP_REQUEST: Self = Self(5);
    pub const ASSOCIATION_UPDATE_REQUEST: Self = Self(7);
    pub const ASSOCIATION_RELEASE_REQUEST: Self = Self(9);
    pub const VERSION_NOT_SUPPORTED: Self = Self(11);
    pub const NODE_REPORT_REQUEST: Self = Self(12);
    pub const NODE_REPORT_RESPONSE: Self = Self(13);
    pub const SESSION_SET_DELETION_REQUEST: Self = Self(14);
    pub const SESSION_ESTABLISHMENT_REQUEST: Self = Self(50);
    pub const SESSION_MODIFICATION_REQUEST: Self = Self(52);
    pub const SESSION_DELETION_REQUEST: Self = Self(54);
    pub const SESSION_REPORT_REQUEST: Self = Self(56);
    pub const SESSION_REPORT_RESPONSE: Self = Self(57);

    /// Returns the type of the response to a request of this type.
    pub fn response(self) -> Self {
        Self(self.0.wrapping_add(1))
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Start {
    flags: u8,
    message_type: u8,
    length: U16,
}

/// A received PFCP message; bytes after its length are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type of the message.
    pub message_type: MessageType,
    /// Session endpoint identifier (SEID) of the message; None for messages about a node instead of a session.
    pub seid: Option<u64>,
    /// Sequence number, which pairs a request with its response, 24 bits.
    pub sequence: u32,
    /// Information elements of the message, unparsed.
    pub elements: Elements<'a>,
}

impl<'a> Message<'a> {
    /// Reads the header of a message (TS 29.244 section 7.2.2).
    ///
    /// # Errors
    /// Returns `Truncated` if the header or its length field goes past the end; `BadVersion` if the version is not 1.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Error> {
        let (start, rest) = view::header::<_, Start>(bytes, WHAT)?;
        let version = start.flags >> 5;
        if version != VERSION {
            return Err(Error::BadVersion {
                what: WHAT,
                version,
            });
        }
        let (rest, _) = view::take(rest, usize::from(start.length.get()), "PFCP message")?;
        let (seid, rest) = if start.flags & HAS_SEID != 0 {
            let (seid, rest) = view::header::<_, U64>(rest, WHAT)?;
            (Some(seid.get()), rest)
        } else {
            (None, rest)
        };
        let (sequence, rest) = view::header::<_, U32>(rest, WHAT)?;
        Ok(Self {
            message_type: MessageType(start.message_type),
            seid,
            sequence: sequence.get() >> 8,
            elements: Elements(rest),
        })
    }

    /// Returns the sequence number of a message of another PFCP version, for the error response; 0 if the message is
    /// too short to contain one.
    pub fn sequence_of_other_version(bytes: &[u8]) -> u32 {
        match bytes {
            [_, _, _, _, a, b, c, ..] => u32::from_be_bytes([0, *a, *b, *c]),
            _ => 0,
        }
    }
}

/// A PFCP message or grouped element that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Starts a message with the given header fields.
    pub fn message(message_type: MessageType, seid: Option<u64>, sequence: u32) -> Self {
        let flags = VERSION << 5 | u8::from(seid.is_some());
        let mut bytes = vec![flags, message_type.0, 0, 0];
        if let Some(seid) = seid {
            bytes.extend(seid.to_be_bytes());
        }
        bytes.extend((sequence << 8).to_be_bytes());
        Self(bytes)
    }

    /// Starts a grouped element's value.
    pub fn group() -> Self {
        Self::default()
    }

    /// Appends an information element.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "callers put in elements of known, short lengths"
    )]
    pub fn element(&mut self, element_type: ElementType, value: &[u8]) -> &mut Self {
        debug_assert!(value.len() <= usize::from(u16::MAX));
        self.0.extend(element_type.0.to_be_bytes());
        self.0.extend((value.len() as u16).to_be_bytes());
        self.0.extend(value);
        self
    }

    /// Appends a grouped element.
    pub fn grouped(&mut self, element_type: ElementType, group: &Self) -> &mut Self {
        self.element(element_type, &group.0)
    }

    /// Returns the elements of the group that this writer has written. The elements of the message or group that the
    /// group is put into are not included.
    pub fn elements(&self) -> Elements<'_> {
        Elements(&self.0)
    }

    /// Completes the message and returns its bytes.
    ///
    /// # Errors
    /// Returns `BadLength` if the elements are longer than the message's length field can represent.
    pub fn finish(mut self) -> Result<Vec<u8>, Error> {
        let length = self.0.len() - LENGTH_STARTS_AT;
        let Ok(field) = u16::try_from(length) else {
            let (min, max) = (4, 0xffff);
            return Err(Error::BadLength {
                what: "PFCP message",
                length,
                min,
                max,
            });
        };
        self.0[2..4].copy_from_slice(&field.to_be_bytes());
        Ok(self.0)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// A heartbeat request with a recovery time stamp, in the layout of TS 29.244.
    const HEARTBEAT: [u8; 16] = [
        0x20, 1, 0, 12, 0, 0, 7, 0, 0, 96, 0, 4, 0xe0, 0x11, 0x22, 0x33,
    ];

    #[test]
    fn a_heartbeat_is_read_and_written() {
        let message = Message::parse(&HEARTBEAT).unwrap();
        assert_eq!(message.message_type, MessageType::HEARTBEAT_REQUEST);
        assert_eq!((message.seid, message.sequence), (None, 7));
        let elements: Vec<_> = message.elements.map(Result::unwrap).collect();
        assert_eq!(elements[0].element_type, ElementType::RECOVERY_TIME_STAMP);
        assert_eq!(elements[0].value, [0xe0, 0x11, 0x22, 0x33]);
        let mut writer = Writer::message(MessageType::HEARTBEAT_REQUEST, None, 7);
        writer.element(ElementType::RECOVERY_TIME_STAMP, elements[0].value);
        assert_eq!(writer.finish().unwrap(), HEARTBEAT);
    }

    #[test]
    fn truncated_messages_and_other_pfcp_versions_are_refused() {
        for length in 0..HEARTBEAT.len() {
            let cut = Message::parse(&HEARTBEAT[..length]);
            assert!(matches!(cut, Err(Error::Truncated { .. })), "{length}");
        }
        for version in [0, 2, 7] {
            let mut bytes = HEARTBEAT;
            bytes[0] = version << 5;
            let refused = Message::parse(&bytes);
            assert!(matches!(refused, Err(Error::BadVersion { version: v, .. }) if v == version));
            assert_eq!(Message::sequence_of_other_version(&bytes), 7);
        }
        for lie in 0..12 {
            let mut bytes = HEARTBEAT;
            bytes[3] = lie;
            let read = Message::parse(&bytes);
            let whole = read.map(|m| m.elements.collect::<Result<Vec<_>, _>>());
            // With a length of 4, the message is a header without elements.
            assert_eq!(matches!(whole, Ok(Ok(_))), lie == 4, "{lie}");
        }
    }

    proptest! {
        #[test]
        fn emitted_pfcp_messages_parse_to_the_same_elements(
            kind: u8, seid: Option<u64>, sequence in 0u32..1 << 24,
            elements in proptest::collection::vec((any::<u16>(), proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let mut writer = Writer::message(MessageType(kind), seid, sequence);
            for (kind, value) in &elements {
                writer.element(ElementType(*kind), value);
            }
            let bytes = writer.finish().unwrap();
            let message = Message::parse(&bytes).unwrap();
            prop_assert_eq!((message.message_type.0, message.seid, message.sequence), (kind, seid, sequence));
            let read: Vec<_> = message.elements.map(|e| e.map(|e| (e.element_type.0, e.value.to_vec())).unwrap()).collect();
            prop_assert_eq!(read, elements);
        }
    }
}
