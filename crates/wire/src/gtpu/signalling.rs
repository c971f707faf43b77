//! The GTP-U messages without a user packet (3GPP TS 29.281 section 7) and their information elements (section 8).

use super::{Gtpu, GtpuRepr, MessageType};
use crate::{Error, view};
use std::net::IpAddr;
use zerocopy::byteorder::big_endian::{U16, U32};

const ELEMENT: &str = "GTP-U information element";
/// The type of the recovery element: a restart counter, which has no meaning in GTP-U (TS 29.281 section 8.2).
const RECOVERY: u8 = 14;
const TEID_DATA_I: u8 = 16;
const PEER_ADDRESS: u8 = 133;
const EXTENSION_TYPE_LIST: u8 = 141;

/// One information element of a GTP-U message (TS 29.281 section 8.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Element<'a> {
    kind: u8,
    value: &'a [u8],
}

/// Returns the first element of `bytes` and the bytes after it. Types below 128 have a fixed length.
fn split_element(bytes: &[u8]) -> Result<(Element<'_>, &[u8]), Error> {
    let (kind, rest) = view::header::<_, u8>(bytes, ELEMENT)?;
    let kind = *kind;
    let (length, rest) = match kind {
        RECOVERY => (1, rest),
        TEID_DATA_I => (4, rest),
        EXTENSION_TYPE_LIST => {
            let (length, rest) = view::header::<_, u8>(rest, ELEMENT)?;
            (usize::from(*length), rest)
        }
        128.. => {
            let (length, rest) = view::header::<_, U16>(rest, ELEMENT)?;
            (usize::from(length.get()), rest)
        }
        // The element's length is unknown, so the next element cannot be found.
        other => {
            return Err(Error::BadValue {
                what: "GTP-U information element type",
                value: other.into(),
            });
        }
    };
    let (value, rest) = view::take(rest, length, ELEMENT)?;
    Ok((Element { kind, value }, rest))
}

/// An error indication: a peer reports that it does not know the tunnel of a user packet (TS 29.281 section 7.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ErrorIndication {
    /// TEID of the rejected user packet (TEID Data I, TS 29.281 section 8.3).
    pub teid: u32,
    /// Destination of the rejected user packet: the peer that does not know the tunnel (GTP-U peer address, TS 29.281
    /// section 8.4).
    pub peer: IpAddr,
}

impl ErrorIndication {
    /// Reads an error indication from the payload of a message of type [`MessageType::ERROR_INDICATION`]; unneeded
    /// elements are skipped.
    ///
    /// # Errors
    /// Returns `Truncated` if the payload is too short or an element is missing; `BadLength` for an address of invalid
    /// length; `BadValue` for an element of unknown length.
    pub fn parse(payload: &[u8]) -> Result<Self, Error> {
        let (mut teid, mut peer, mut rest) = (None, None, payload);
        while !rest.is_empty() {
            let (element, after) = split_element(rest)?;
            rest = after;
            match (element.kind, element.value) {
                (TEID_DATA_I, &[a, b, c, d]) => teid = Some(u32::from_be_bytes([a, b, c, d])),
                (PEER_ADDRESS, value) => {
                    let address = <[u8; 4]>::try_from(value).map(IpAddr::from);
                    let address =
                        address.or_else(|_| <[u8; 16]>::try_from(value).map(IpAddr::from));
                    peer = Some(address.map_err(|_| Error::BadLength {
                        what: "GTP-U peer address",
                        length: value.len(),
                        min: 4,
                        max: 16,
                    })?);
                }
                _ => {}
            }
        }
        teid.zip(peer)
            .map(|(teid, peer)| Self { teid, peer })
            .ok_or(Error::Truncated {
                what: "GTP-U error indication",
                need: 12,
                have: payload.len(),
            })
    }

    /// Writes the complete message, with a sequence number of 0 as TS 29.281 section 5.1 requires; returns the
    /// message's length in bytes.
    ///
    /// # Errors
    /// Returns `Truncated` if `buffer` is too short; 36 bytes are always enough.
    pub fn emit(&self, buffer: &mut [u8]) -> Result<usize, Error> {
        let mut elements = [0; 5 + 3 + 16];
        elements[0] = TEID_DATA_I;
        elements[1..5].copy_from_slice(&U32::new(self.teid).to_bytes());
        elements[5] = PEER_ADDRESS;
        let address_len = match self.peer {
            IpAddr::V4(address) => {
                elements[8..12].copy_from_slice(&address.octets());
                4
            }
            IpAddr::V6(address) => {
                elements[8..24].copy_from_slice(&address.octets());
                16
            }
        };
        elements[7] = address_len;
        let elements = &elements[..8 + usize::from(address_len)];
        emit(MessageType::ERROR_INDICATION, 0, Some(0), elements, buffer)
    }
}

/// Writes an echo request (TS 29.281 section 7.2.1); returns its length in bytes.
///
/// # Errors
/// Returns `Truncated` if `buffer` is too short; 12 bytes are enough.
pub fn emit_echo_request(sequence: u16, buffer: &mut [u8]) -> Result<usize, Error> {
    emit(MessageType::ECHO_REQUEST, 0, Some(sequence), &[], buffer)
}

/// Writes the response to the echo request of the given sequence number (TS 29.281 section 7.2.2); returns the
/// response's length in bytes.
///
/// # Errors
/// Returns `Truncated` if `buffer` is too short; 14 bytes are enough.
pub fn emit_echo_response(sequence: u16, buffer: &mut [u8]) -> Result<usize, Error> {
    let elements = [RECOVERY, 0];
    emit(
        MessageType::ECHO_RESPONSE,
        0,
        Some(sequence),
        &elements,
        buffer,
    )
}

/// Writes the end marker of a tunnel (TS 29.281 section 7.3.2); returns its length in bytes.
///
/// # Errors
/// Returns `Truncated` if `buffer` is too short; 8 bytes are enough.
pub fn emit_end_marker(teid: u32, buffer: &mut [u8]) -> Result<usize, Error> {
    emit(MessageType::END_MARKER, teid, None, &[], buffer)
}

fn emit(
    message_type: MessageType,
    teid: u32,
    sequence: Option<u16>,
    elements: &[u8],
    buffer: &mut [u8],
) -> Result<usize, Error> {
    let repr = GtpuRepr {
        message_type,
        teid,
        sequence,
        n_pdu: None,
        extensions: None,
        payload_len_bytes: elements.len(),
    };
    let mut message: Gtpu<&mut [u8]> = repr.emit(buffer)?;
    message.payload_mut().copy_from_slice(elements);
    Ok(repr.header_len_bytes() + elements.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn emitted_messages_match_the_specification_byte_for_byte() {
        let mut buffer = [0xee; 64];
        let length = emit_echo_response(0x0102, &mut buffer).unwrap();
        let want = [0x32, 2, 0, 6, 0, 0, 0, 0, 1, 2, 0, 0, 14, 0];
        assert_eq!(buffer[..length], want);
        let length = emit_echo_request(7, &mut buffer).unwrap();
        assert_eq!(buffer[..length], [0x32, 1, 0, 4, 0, 0, 0, 0, 0, 7, 0, 0]);
        let length = emit_end_marker(9, &mut buffer).unwrap();
        assert_eq!(buffer[..length], [0x30, 254, 0, 0, 0, 0, 0, 9]);
        let indication = ErrorIndication {
            teid: 0x0a0b_0c0d,
            peer: [192, 0, 2, 1].into(),
        };
        let length = indication.emit(&mut buffer).unwrap();
        let want = [
            0x32, 26, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0x0a, 0x0b, 0x0c, 0x0d, 133, 0, 4, 192, 0,
            2, 1,
        ];
        assert_eq!(buffer[..length], want);
    }

    #[test]
    fn malformed_error_indications_are_refused() {
        let good = [16, 0, 0, 0, 5, 133, 0, 4, 192, 0, 2, 1];
        assert_eq!(ErrorIndication::parse(&good).unwrap().teid, 5);
        for length in 0..good.len() {
            assert!(ErrorIndication::parse(&good[..length]).is_err(), "{length}");
        }
        for (at, value) in [(0, 15), (5, 132), (7, 3), (7, 5), (6, 1)] {
            let mut bytes = good;
            bytes[at] = value;
            assert!(
                ErrorIndication::parse(&bytes).is_err(),
                "byte {at} = {value}"
            );
        }
        // A restart counter precedes the elements; a list of extension header types and a private extension follow
        // them.
        let more = [&[14, 3][..], &good, &[141, 1, 0x85, 255, 0, 2, 1, 2]].concat();
        assert_eq!(ErrorIndication::parse(&more).unwrap().teid, 5);
    }

    proptest! {
        #[test]
        fn emitted_error_indications_parse_to_the_same_fields(teid: u32, address: [u8; 16], four: bool) {
            let peer = if four {
                IpAddr::from([address[0], address[1], address[2], address[3]])
            } else {
                IpAddr::from(address)
            };
            let indication = ErrorIndication { teid, peer };
            let mut buffer = [0; 36];
            let length = indication.emit(&mut buffer).unwrap();
            let view = Gtpu::new(&buffer[..length]).unwrap();
            prop_assert_eq!(view.message_type(), MessageType::ERROR_INDICATION);
            prop_assert_eq!(ErrorIndication::parse(view.payload()), Ok(indication));
        }

        #[test]
        fn random_bytes_do_not_crash_the_error_indication_parser(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            let _ = ErrorIndication::parse(&bytes);
        }
    }
}
