//! GTP-C version 2, the protocol between the nodes of an evolved packet core: MME, serving gateway, PDN gateway (3GPP
//! TS 29.274). Messages are read as views and written into vectors, because this is not the data path.

mod element;
mod filters;

pub use element::{
    Ambr, BearerQos, Cause, CauseValue, Element, ElementType, Elements, FTeid, Interface, Paa,
};
pub use filters::{Direction, PacketFilter, TrafficFlow, TrafficFlowOperation};

use crate::{Error, view};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const WHAT: &str = "GTP-C header";

/// The UDP port to which requests are sent (TS 29.274 section 4.2.1).
pub const UDP_PORT: u16 = 2123;

const VERSION: u8 = 2;
const HAS_PIGGYBACKED: u8 = 1 << 4;
const HAS_TEID: u8 = 1 << 3;
const HAS_PRIORITY: u8 = 1 << 2;
const LENGTH_STARTS_AT: usize = 4;

/// The type of a message (TS 29.274 section 6.1, table 6.1-1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageType(pub u8);

#[allow(missing_docs)] // their names are those of the specification
impl MessageType {
    pub const ECHO_REQUEST: Self = Self(1);
    pub const ECHO_RESPONSE: Self = Self(2);
    pub const VERSION_NOT_SUPPORTED: Self = Self(3);
    pub const CREATE_SESSION_REQUEST: Self = Self(32);
    pub const CREATE_SESSION_RESPONSE: Self = Self(33);
    pub const MODIFY_BEARER_REQUEST: Self = Self(34);
    pub const MODIFY_BEARER_RESPONSE: Self = Self(35);
    pub const DELETE_SESSION_REQUEST: Self = Self(36);
    pub const DELETE_SESSION_RESPONSE: Self = Self(37);
    pub const CHANGE_NOTIFICATION_REQUEST: Self = Self(38);
    pub const MODIFY_BEARER_COMMAND: Self = Self(64);
    pub const MODIFY_BEARER_FAILURE_INDICATION: Self = Self(65);
    pub const DELETE_BEARER_COMMAND: Self = Self(66);
    pub const DELETE_BEARER_FAILURE_INDICATION: Self = Self(67);
    pub const BEARER_RESOURCE_COMMAND: Self = Self(68);
    pub const BEARER_RESOURCE_FAILURE_INDICATION: Self = Self(69);
    pub const DOWNLINK_DATA_NOTIFICATION_FAILURE_INDICATION: Self = Self(70);
    pub const CREATE_BEARER_REQUEST: Self = Self(95);
    pub const CREATE_BEARER_RESPONSE: Self = Self(96);
    pub const UPDATE_BEARER_REQUEST: Self = Self(97);
    pub const UPDATE_BEARER_RESPONSE: Self = Self(98);
    pub const DELETE_BEARER_REQUEST: Self = Self(99);
    pub const DELETE_BEARER_RESPONSE: Self = Self(100);
    pub const SUSPEND_NOTIFICATION: Self = Self(162);
    pub const RESUME_NOTIFICATION: Self = Self(164);
    pub const CREATE_INDIRECT_FORWARDING_REQUEST: Self = Self(166);
    pub const DELETE_INDIRECT_FORWARDING_REQUEST: Self = Self(168);
    pub const RELEASE_ACCESS_BEARERS_REQUEST: Self = Self(170);
    pub const RELEASE_ACCESS_BEARERS_RESPONSE: Self = Self(171);
    pub const DOWNLINK_DATA_NOTIFICATION: Self = Self(176);
    pub const DOWNLINK_DATA_NOTIFICATION_ACKNOWLEDGE: Self = Self(177);
    pub const MODIFY_ACCESS_BEARERS_REQUEST: Self = Self(211);

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

/// A received GTP-C message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// Type of the message.
    pub message_type: MessageType,
    /// Tunnel endpoint identifier (TEID) that the receiver assigned to the session; None for messages about a node
    /// instead of a session. It is 0 if the sender does not know it yet.
    pub teid: Option<u32>,
    /// Sequence number, which pairs a request with its response, 24 bits.
    pub sequence: u32,
    /// True if another message follows in the same datagram (piggybacking, TS 29.274 section 5.5.1).
    pub has_piggybacked: bool,
    /// Information elements of the message, unparsed.
    pub elements: Elements<'a>,
}

impl<'a> Message<'a> {
    /// Reads the header of a message (TS 29.274 section 5.1). Returns the message and the bytes after it: a piggybacked
    /// message, if the message announces one.
    ///
    /// # Errors
    /// Returns `Truncated` if the header or its length field goes past the end; `BadVersion` if the version is not 2.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Error> {
        let (start, rest) = view::header::<_, Start>(bytes, WHAT)?;
        let version = start.flags >> 5;
        if version != VERSION {
            return Err(Error::BadVersion {
                what: WHAT,
                version,
            });
        }
        let (rest, behind) = view::take(rest, usize::from(start.length.get()), "GTP-C message")?;
        let (teid, rest) = if start.flags & HAS_TEID != 0 {
            let (teid, rest) = view::header::<_, U32>(rest, WHAT)?;
            (Some(teid.get()), rest)
        } else {
            (None, rest)
        };
        let (sequence, rest) = view::header::<_, U32>(rest, WHAT)?;
        let message = Self {
            message_type: MessageType(start.message_type),
            teid,
            sequence: sequence.get() >> 8,
            has_piggybacked: start.flags & HAS_PIGGYBACKED != 0,
            elements: Elements(rest),
        };
        Ok((message, behind))
    }

    /// Returns the sequence number of a message that cannot be parsed, for an error response; 0 if the message is too
    /// short to contain one.
    pub fn sequence_of_unparsed(bytes: &[u8]) -> u32 {
        let at = match bytes.first() {
            Some(flags) if flags & HAS_TEID != 0 => 8,
            _ => 4,
        };
        match bytes.get(at..) {
            Some([a, b, c, ..]) => u32::from_be_bytes([0, *a, *b, *c]),
            _ => 0,
        }
    }
}

/// A GTP-C message or grouped element that is being written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Starts a message with the given header fields. The message priority is never written.
    pub fn message(message_type: MessageType, teid: Option<u32>, sequence: u32) -> Self {
        let flags = VERSION << 5 | if teid.is_some() { HAS_TEID } else { 0 };
        debug_assert!(flags & HAS_PRIORITY == 0);
        let mut bytes = Vec::with_capacity(128);
        bytes.extend([flags, message_type.0, 0, 0]);
        if let Some(teid) = teid {
            bytes.extend(teid.to_be_bytes());
        }
        bytes.extend((sequence << 8).to_be_bytes());
        Self(bytes)
    }

    /// Starts a grouped element's value.
    pub fn group() -> Self {
        Self::default()
    }

    /// Appends an information element of instance 0.
    pub fn element(&mut self, element_type: ElementType, value: &[u8]) -> &mut Self {
        self.instance(element_type, 0, value)
    }

    /// Appends an information element with the given instance, 0 to 15.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "callers put in elements of known, short lengths"
    )]
    pub fn instance(&mut self, kind: ElementType, instance: u8, value: &[u8]) -> &mut Self {
        debug_assert!(value.len() <= usize::from(u16::MAX));
        self.0.push(kind.0);
        self.0.extend((value.len() as u16).to_be_bytes());
        self.0.push(instance & 0xf);
        self.0.extend(value);
        self
    }

    /// Appends a grouped element with the given instance, 0 to 15.
    pub fn grouped(&mut self, kind: ElementType, instance: u8, group: &Self) -> &mut Self {
        self.instance(kind, instance, &group.0)
    }

    /// Appends a copy of a received element, with its instance.
    pub fn copied(&mut self, element: &Element<'_>) -> &mut Self {
        self.instance(element.element_type, element.instance, element.value)
    }

    /// Returns the finished message.
    ///
    /// # Errors
    /// Returns `BadLength` if the elements are longer than the message's length field can represent.
    pub fn finish(mut self) -> Result<Vec<u8>, Error> {
        let length = self.0.len() - LENGTH_STARTS_AT;
        let Ok(field) = u16::try_from(length) else {
            let (min, max) = (4, 0xffff);
            return Err(Error::BadLength {
                what: "GTP-C message",
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

    /// An echo request with a recovery counter; its header is that of TS 29.274 figure 5.1-1.
    const ECHO: [u8; 13] = [0x40, 1, 0, 9, 0, 0, 7, 0, 3, 0, 1, 0, 42];

    #[test]
    fn an_echo_request_is_read_and_written() {
        let (message, behind) = Message::parse(&ECHO).unwrap();
        assert!(behind.is_empty());
        assert_eq!(message.message_type, MessageType::ECHO_REQUEST);
        assert_eq!((message.teid, message.sequence), (None, 7));
        let recovery = message.elements.find(ElementType::RECOVERY, 0).unwrap();
        assert_eq!(recovery.unwrap().value, [42]);
        let mut writer = Writer::message(MessageType::ECHO_REQUEST, None, 7);
        writer.element(ElementType::RECOVERY, &[42]);
        assert_eq!(writer.finish().unwrap(), ECHO);
    }

    #[test]
    fn truncated_messages_and_other_versions_are_refused() {
        for length in 0..ECHO.len() {
            let cut = Message::parse(&ECHO[..length]);
            assert!(matches!(cut, Err(Error::Truncated { .. })), "{length}");
        }
        for version in [0, 1, 3, 7] {
            let mut bytes = ECHO;
            bytes[0] = version << 5;
            let refused = Message::parse(&bytes);
            assert!(matches!(refused, Err(Error::BadVersion { version: v, .. }) if v == version));
            assert_eq!(Message::sequence_of_unparsed(&bytes), 7);
        }
        for lie in 0..9 {
            let mut bytes = ECHO;
            bytes[3] = lie;
            let read = Message::parse(&bytes);
            let whole = read.map(|(m, _)| m.elements.collect::<Result<Vec<_>, _>>());
            // With a length of 4, the message is a header without elements.
            assert_eq!(matches!(whole, Ok(Ok(_))), lie == 4, "{lie}");
        }
    }

    #[test]
    fn a_piggybacked_message_is_what_remains_of_the_datagram() {
        let mut bytes = ECHO.to_vec();
        bytes[0] |= HAS_PIGGYBACKED;
        bytes.extend(ECHO);
        let (message, behind) = Message::parse(&bytes).unwrap();
        assert!(message.has_piggybacked);
        assert_eq!(behind, ECHO);
    }

    proptest! {
        #[test]
        fn emitted_gtpc_messages_parse_to_the_same_elements(
            kind: u8, teid: Option<u32>, sequence in 0u32..1 << 24,
            elements in proptest::collection::vec(
                (any::<u8>(), 0u8..16, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
        ) {
            let mut writer = Writer::message(MessageType(kind), teid, sequence);
            for (kind, instance, value) in &elements {
                writer.instance(ElementType(*kind), *instance, value);
            }
            let bytes = writer.finish().unwrap();
            let (message, behind) = Message::parse(&bytes).unwrap();
            prop_assert!(behind.is_empty());
            prop_assert_eq!((message.message_type.0, message.teid, message.sequence), (kind, teid, sequence));
            let read: Vec<_> = message.elements
                .map(|e| e.map(|e| (e.element_type.0, e.instance, e.value.to_vec())).unwrap()).collect();
            prop_assert_eq!(read, elements);
        }
    }
}
