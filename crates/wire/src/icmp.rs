//! ICMP for IPv4: echo, time exceeded, destination unreachable (RFC 792).

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{
    ByteSlice, ByteSliceMut, FromBytes, Immutable, IntoBytes, KnownLayout, Ref, SplitByteSlice,
    Unaligned,
};

use crate::{Error, Sum, view};

const WHAT: &str = "ICMP header";
const ECHO_REPLY: u8 = 0;
const UNREACHABLE: u8 = 3;
const ECHO_REQUEST: u8 = 8;
const TIME_EXCEEDED: u8 = 11;

/// The length of an ICMP header in bytes.
pub const HEADER_LEN_BYTES: usize = size_of::<Header>();

#[derive(Debug, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Header {
    kind: u8,
    code: u8,
    checksum: U16,
    rest: [u8; 4],
}

/// A typed reference ("view") to the bytes of an ICMP message.
#[derive(Debug)]
pub struct Icmpv4<B: ByteSlice> {
    header: Ref<B, Header>,
    payload: B,
}

impl<B: SplitByteSlice> Icmpv4<B> {
    /// Makes a view of the ICMP message `message`. The checksum is not verified.
    ///
    /// # Errors
    /// Returns `Truncated` for fewer than 8 bytes.
    pub fn new(message: B) -> Result<Self, Error> {
        let (header, payload) = view::header(message, WHAT)?;
        Ok(Self { header, payload })
    }
}

impl<B: ByteSlice> Icmpv4<B> {
    /// Returns the message type.
    pub fn kind(&self) -> u8 {
        self.header.kind
    }

    /// Returns the message code, which refines the message type.
    pub fn code(&self) -> u8 {
        self.header.code
    }

    /// Returns the last four header bytes; their meaning depends on the message type.
    pub fn rest(&self) -> [u8; 4] {
        self.header.rest
    }

    /// Returns the bytes after the header: echo data, or the start of the packet that caused the message.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn sum(&self) -> Sum {
        Sum::of(self.header.as_bytes()).combine(Sum::of(&self.payload))
    }

    /// Verifies the checksum of the ICMP message.
    ///
    /// # Errors
    /// Returns `BadChecksum` if the checksum is wrong.
    pub fn verify_checksum(&self) -> Result<(), Error> {
        if self.sum().is_valid() {
            Ok(())
        } else {
            Err(Error::BadChecksum { what: WHAT })
        }
    }
}

impl<B: ByteSliceMut> Icmpv4<B> {
    /// Computes the checksum of the ICMP message and writes it into the header.
    pub fn fill_checksum(&mut self) {
        self.header.checksum.set(0);
        let checksum = self.sum().checksum();
        self.header.checksum.set(checksum);
    }

    /// Returns the bytes after the header, for writing.
    pub fn payload_mut(&mut self) -> &mut [u8] {
        &mut self.payload
    }
}

/// The fields of an ICMP header as a Rust value, independent of the packet's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icmpv4Repr {
    /// Echo request.
    EchoRequest {
        /// Identifier of the session of echo requests.
        identifier: u16,
        /// Sequence number of the request in the session.
        sequence: u16,
    },
    /// Echo reply.
    EchoReply {
        /// Identifier of the session of echo requests.
        identifier: u16,
        /// Sequence number of the answered request in the session.
        sequence: u16,
    },
    /// A packet could not be delivered.
    DestinationUnreachable {
        /// Code: the reason why the packet could not be delivered.
        code: u8,
        /// Last four header bytes: zero, or quoted length (RFC 4884) and next-hop MTU (RFC 1191).
        rest: [u8; 4],
    },
    /// The hop limit of a packet was exceeded (code 0), or its reassembly time (code 1).
    TimeExceeded {
        /// Code: which limit was exceeded.
        code: u8,
        /// Last four header bytes: zero, or quoted length (RFC 4884).
        rest: [u8; 4],
    },
    /// Any message of another type.
    Other {
        /// Message type.
        kind: u8,
        /// Message code, which refines the message type.
        code: u8,
        /// Last four header bytes.
        rest: [u8; 4],
    },
}

impl Icmpv4Repr {
    /// Reads the header; its checksum is verified only by [`Icmpv4::verify_checksum`].
    ///
    /// # Errors
    /// Returns no errors at present; `parse` has this signature for all protocols of the crate.
    pub fn parse<B: ByteSlice>(view: &Icmpv4<B>) -> Result<Self, Error> {
        let rest @ [a, b, c, d] = view.rest();
        let identifier = u16::from_be_bytes([a, b]);
        let sequence = u16::from_be_bytes([c, d]);
        Ok(match (view.kind(), view.code()) {
            (ECHO_REQUEST, 0) => Self::EchoRequest {
                identifier,
                sequence,
            },
            (ECHO_REPLY, 0) => Self::EchoReply {
                identifier,
                sequence,
            },
            (UNREACHABLE, code) => Self::DestinationUnreachable { code, rest },
            (TIME_EXCEEDED, code) => Self::TimeExceeded { code, rest },
            (kind, code) => Self::Other { kind, code, rest },
        })
    }

    /// Writes the header with a checksum of 0 to the front of `message`; the remaining bytes are the payload.
    ///
    /// Once the payload is written, [`Icmpv4::fill_checksum`] completes the message.
    ///
    /// # Errors
    /// Returns `Truncated` if the header does not fit.
    pub fn emit<'a>(&self, message: &'a mut [u8]) -> Result<Icmpv4<&'a mut [u8]>, Error> {
        let echo = |identifier: u16, sequence: u16| {
            let ([a, b], [c, d]) = (identifier.to_be_bytes(), sequence.to_be_bytes());
            [a, b, c, d]
        };
        let (kind, code, rest) = match *self {
            Self::EchoRequest {
                identifier,
                sequence,
            } => (ECHO_REQUEST, 0, echo(identifier, sequence)),
            Self::EchoReply {
                identifier,
                sequence,
            } => (ECHO_REPLY, 0, echo(identifier, sequence)),
            Self::DestinationUnreachable { code, rest } => (UNREACHABLE, code, rest),
            Self::TimeExceeded { code, rest } => (TIME_EXCEEDED, code, rest),
            Self::Other { kind, code, rest } => (kind, code, rest),
        };
        let (mut header, payload) = view::header::<_, Header>(message, "room for the ICMP header")?;
        *header = Header {
            kind,
            code,
            checksum: 0.into(),
            rest,
        };
        Ok(Icmpv4 { header, payload })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn etherparse_parses_emitted_echo_requests() {
        let mut message = *b"--------echo data";
        let repr = Icmpv4Repr::EchoRequest {
            identifier: 0x1234,
            sequence: 7,
        };
        repr.emit(&mut message).unwrap().fill_checksum();
        let (theirs, data) = etherparse::Icmpv4Header::from_slice(&message).unwrap();
        let expected = etherparse::IcmpEchoHeader { id: 0x1234, seq: 7 };
        assert_eq!(
            theirs.icmp_type,
            etherparse::Icmpv4Type::EchoRequest(expected)
        );
        assert_eq!(theirs.checksum, theirs.icmp_type.calc_checksum(data));
        message[12] ^= 4;
        let wrong = Icmpv4::new(&message[..]).unwrap().verify_checksum();
        assert_eq!(wrong, Err(Error::BadChecksum { what: WHAT }));
    }

    proptest! {
        #[test]
        fn parsed_icmp_messages_are_emitted_unchanged(
            mut message in proptest::collection::vec(any::<u8>(), 0..40),
            kind in prop_oneof![Just(0u8), Just(3), Just(8), Just(11), any::<u8>()],
            code in prop_oneof![Just(0u8), any::<u8>()],
        ) {
            if message.len() < 8 {
                prop_assert!(Icmpv4::new(&message[..]).is_err());
                return Ok(());
            }
            message[..2].copy_from_slice(&[kind, code]);
            Icmpv4::new(&mut message[..]).unwrap().fill_checksum();
            let view = Icmpv4::new(&message[..]).unwrap();
            view.verify_checksum().unwrap();
            let repr = Icmpv4Repr::parse(&view).unwrap();
            let mut again = message.clone();
            again[..8].fill(0xaa);
            repr.emit(&mut again).unwrap().fill_checksum();
            prop_assert_eq!(again, message);
        }
    }
}
