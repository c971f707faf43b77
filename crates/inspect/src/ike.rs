//! IKE 1 and IKE 2 over UDP (RFC 2408 section 3, RFC 7296 section 3). Each datagram is a message.
//!
//! For IKE 1, unencrypted payloads are read; for IKE 2, the attributes that the responder chooses. On port 4500, four
//! zero bytes precede a message (RFC 3948 section 2.2).

use crate::buffer::{Buffer, BufferSet};
use crate::cursor::Cursor;
use crate::findings::Findings;
use crate::fingerprint::hex;
use crate::record::Record;
use std::io::{self, Write};

/// The UDP port of IKE.
pub(crate) const PORT: u16 = 500;
/// The port of IKE and ESP behind NAT.
pub(crate) const PORT_BEHIND_NAT: u16 = 4500;
/// Bytes before a message on port 4500, which distinguish it from ESP.
const NO_ESP: &[u8] = &[0; 4];
const HEADER: usize = 28;
const ENCRYPTED: u8 = 1;

// The constants are payload types of IKE 1, payload types within a security association, and payload types of IKE 2.
const ASSOCIATION: u8 = 1;
const KEY_EXCHANGE: u8 = 4;
const NONCE: u8 = 10;
const VENDOR: u8 = 13;
const ASSOCIATION_2: u8 = 33;
const ENCRYPTED_2: u8 = 46;
const ENCRYPTED_FRAGMENT_2: u8 = 53;
/// Exchange types of IKE 2.
const EXCHANGES_2: std::ops::RangeInclusive<u8> = 34..=37;
/// The number of IPsec as domain of interpretation.
const IPSEC: u64 = 1;

/// Attributes of a security association, each with its name in rules and its attribute type in IKE 1.
pub const ATTRIBUTES: [(&str, u16); 10] = [
    ("alg_enc", 1),
    ("alg_hash", 2),
    ("alg_auth", 3),
    ("alg_dh", 4),
    ("sa_group_type", 5),
    ("sa_life_type", 11),
    ("sa_life_duration", 12),
    ("alg_prf", 13),
    ("sa_key_length", 14),
    ("sa_field_size", 15),
];
/// Maximum length of the text of an attribute in bytes.
const MOST_ATTRIBUTE: usize = 32;
/// Names of the transform types of IKE 2, which are numbered from 1.
const TRANSFORMS_2: [&str; 4] = ["alg_enc", "alg_prf", "alg_auth", "alg_dh"];

/// The parser of IKE messages, which are independent of each other.
#[derive(Debug, Default)]
pub struct Ike {
    record: Record,
}

/// The header of an IKE message.
struct Header {
    next: u8,
    version: u8,
    exchange: u8,
    flags: u8,
    len: usize,
}

impl Ike {
    /// Parses a datagram and reports the message in it.
    pub fn datagram(
        &mut self,
        to_server: bool,
        data: &[u8],
        found: &mut Findings<impl FnMut(&Record, BufferSet)>,
    ) {
        let behind_zeros = data.strip_prefix(NO_ESP);
        let message = behind_zeros.filter(|it| header(it).is_some());
        let message = message.unwrap_or(data);
        let Some(header) = header(message) else {
            return found.faults(1);
        };
        let record = &mut self.record;
        record.clear();
        let exchange = header.exchange.into();
        record.put_number(Buffer::IkeExchangeType, exchange);
        match to_server {
            true => put_digits(record, Buffer::IkeInitiatorSpi, &message[..8]),
            false => put_digits(record, Buffer::IkeResponderSpi, &message[8..16]),
        }
        let is_good = payloads(record, to_server, &header, message).is_some();
        found.faults(u64::from(!is_good));
        found.tell(record, record.has());
    }
}

/// Writes an attribute in the form of [`Buffer::IkeChosen`].
///
/// # Errors
/// Returns an error if `into` has no space for the attribute.
pub(crate) fn write_attribute(into: &mut impl Write, name: &str, value: u32) -> io::Result<()> {
    write!(into, ";{name}={value};")
}

/// Returns true if a datagram between `ports` contains an IKE message.
pub(crate) fn is_message(ports: [u16; 2], bytes: &[u8]) -> bool {
    match ports.contains(&PORT_BEHIND_NAT) {
        true => bytes
            .strip_prefix(NO_ESP)
            .is_some_and(|it| header(it).is_some()),
        false => header(bytes).is_some(),
    }
}

/// Reads the header of a message; returns none if it is not IKE.
fn header(bytes: &[u8]) -> Option<Header> {
    let mut from = Cursor(bytes);
    from.take(16)?;
    let [next, version, exchange, flags] = *from.take(4)?.first_chunk()?;
    from.take(4)?;
    let len = usize::try_from(from.number(4)?).ok()?;
    let is_message = match version >> 4 {
        1 => (HEADER..=bytes.len()).contains(&len),
        2 => version == 0x20 && EXCHANGES_2.contains(&exchange) && len == bytes.len(),
        _ => false,
    };
    is_message.then_some(Header {
        next,
        version,
        exchange,
        flags,
        len,
    })
}

/// Stores bytes in a record as lower-case hexadecimal digits.
fn put_digits(record: &mut Record, buffer: Buffer, bytes: &[u8]) {
    record.put(buffer, &[]);
    for byte in bytes {
        record.extend(&hex(*byte));
    }
}

/// Reads the payloads of a message; returns none if one is invalid.
fn payloads(record: &mut Record, to_server: bool, header: &Header, message: &[u8]) -> Option<()> {
    let is_first_version = header.version >> 4 == 1;
    if is_first_version && header.flags & ENCRYPTED != 0 {
        return Some(());
    }
    let mut from = Cursor(message.get(HEADER..header.len)?);
    let mut kind = header.next;
    let is_last = |kind| match is_first_version {
        true => kind == 0,
        false => matches!(kind, 0 | ENCRYPTED_2 | ENCRYPTED_FRAGMENT_2),
    };
    while !is_last(kind) {
        let (next, body) = payload(&mut from)?;
        match (is_first_version, kind) {
            (true, ASSOCIATION) if !to_server => chosen(record, body)?,
            (false, ASSOCIATION_2) if !to_server => chosen_2(record, body)?,
            (true, KEY_EXCHANGE) if !body.is_empty() => record.put(Buffer::IkeKeyExchange, &[body]),
            (true, NONCE) if !body.is_empty() => record.put(Buffer::IkeNonce, &[body]),
            (true, VENDOR) if to_server => put_digits(record, Buffer::IkeVendor, body),
            _ => {}
        }
        kind = next;
    }
    Some(())
}

/// Removes the first payload from `from`. Returns the type of the payload after it, and the content of the removed
/// payload; none if the payload is invalid.
fn payload<'a>(from: &mut Cursor<'a>) -> Option<(u8, &'a [u8])> {
    let next = from.number(1)? as u8;
    from.take(1)?;
    let len = usize::try_from(from.number(2)?).ok()?;
    Some((next, from.take(len.checked_sub(4)?)?))
}

/// Removes the first proposal from `from` and returns its transforms; none if the proposal is invalid.
fn proposal<'a>(from: &mut Cursor<'a>) -> Option<Cursor<'a>> {
    let mut proposal = Cursor(payload(from)?.1);
    proposal.take(2)?;
    let spi_len = proposal.number(1)? as usize;
    proposal.take(1 + spi_len)?;
    Some(proposal)
}

/// The attributes that the responder chose. Only the first attribute of each name is stored in the record.
struct Chosen<'a> {
    record: &'a mut Record,
    known: u32,
}

impl<'a> Chosen<'a> {
    fn new(record: &'a mut Record) -> Self {
        Self { record, known: 0 }
    }

    fn put(&mut self, kind: u16, value: u32) {
        let place = ATTRIBUTES.iter().position(|it| it.1 == kind);
        let Some(place) = place.filter(|place| self.known & 1 << place == 0) else {
            return;
        };
        if self.known == 0 {
            self.record.put(Buffer::IkeChosen, &[]);
        }
        self.known |= 1 << place;
        let mut text = [0; MOST_ATTRIBUTE];
        let mut rest = &mut text[..];
        // There is space for the longest name and number.
        let _ = write_attribute(&mut rest, ATTRIBUTES[place].0, value);
        let len = MOST_ATTRIBUTE - rest.len();
        self.record.extend(&text[..len]);
    }
}

/// Reads the first transform of a security association of IKE 1; a reply has no others. Returns none if the association
/// is invalid.
fn chosen(record: &mut Record, association: &[u8]) -> Option<()> {
    let mut from = Cursor(association);
    if from.number(4)? != IPSEC {
        return Some(());
    }
    // The caller has read the domain of interpretation; these four bytes are the situation.
    from.take(4)?;
    let (_, transform) = payload(&mut proposal(&mut from)?)?;
    let mut from = Cursor(transform);
    from.take(4)?;
    let mut chosen = Chosen::new(record);
    while !from.0.is_empty() {
        let kind = from.number(2)? as u16;
        let short = from.number(2)?;
        // If the highest bit is set, the value is in the length field.
        let value = match kind & 0x8000 != 0 {
            true => Some(short),
            false => match from.take(short as usize)? {
                long if long.len() == 4 => Cursor(long).number(4),
                _ => None,
            },
        };
        if let Some(value) = value {
            chosen.put(kind & 0x7fff, value as u32);
        }
    }
    Some(())
}

/// Reads the transforms of a security association of IKE 2; returns none if the association is invalid.
fn chosen_2(record: &mut Record, association: &[u8]) -> Option<()> {
    let mut from = Cursor(association);
    let mut chosen = Chosen::new(record);
    while !from.0.is_empty() {
        let mut transforms = proposal(&mut from)?;
        while !transforms.0.is_empty() {
            let mut transform = Cursor(payload(&mut transforms)?.1);
            let kind = transform.number(1)? as usize;
            transform.take(1)?;
            let value = transform.number(2)? as u32;
            let name = kind.checked_sub(1).and_then(|at| TRANSFORMS_2.get(at));
            let number = ATTRIBUTES.iter().find(|it| Some(&it.0) == name);
            if let Some((_, number)) = number {
                chosen.put(*number, value);
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::Application;
    use crate::findings::Counts;
    use crate::protocols::testing::{Said, numbers, read_datagrams, texts};

    /// Returns the messages found in a datagram, first if it is sent to the server, then if it is sent to the client.
    fn read_both_ways(bytes: &[u8]) -> [(Vec<Said>, Counts); 2] {
        [true, false].map(|it| read_datagrams(Application::Ike, it, &[bytes.to_vec()]))
    }

    fn message(version: u8, exchange: u8, flags: u8, payloads: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let first = payloads.first().map_or(0, |it| it.0);
        let mut message = (1..17).collect::<Vec<u8>>();
        message.extend([first, version, exchange, flags, 0, 0, 0, 0, 0, 0, 0, 0]);
        message.extend(chain(payloads));
        let len = message.len() as u32;
        message[24..28].copy_from_slice(&len.to_be_bytes());
        message
    }

    /// Returns IKE payloads, each with the type of the next payload.
    fn chain(payloads: &[(u8, Vec<u8>)]) -> Vec<u8> {
        let mut all = Vec::new();
        for (place, (_, body)) in payloads.iter().enumerate() {
            let next = payloads.get(place + 1).map_or(0, |it| it.0);
            all.extend([next, 0]);
            all.extend((body.len() as u16 + 4).to_be_bytes());
            all.extend(body);
        }
        all
    }

    /// Returns a proposal with an SPI of two bytes.
    fn proposal_of(transforms: &[Vec<u8>]) -> (u8, Vec<u8>) {
        let all: Vec<_> = transforms.iter().map(|it| (3, it.clone())).collect();
        (2, [&[1, 1, 2, 1, 9, 9][..], &chain(&all)].concat())
    }

    #[test]
    fn payloads_of_ike_version_1_are_parsed() {
        let attributes = b"\x80\x02\0\x02\x80\x02\0\x05\0\x0c\0\x04\0\x01\x51\x80\0\x0e\0\x02ab";
        let transform = [&[1, 1, 0, 0][..], attributes].concat();
        let proposals = chain(&[proposal_of(&[transform])]);
        let association = [&[0, 0, 0, 1, 0, 0, 0, 1][..], &proposals].concat();
        let all = [
            (ASSOCIATION, association),
            (KEY_EXCHANGE, b"key".to_vec()),
            (NONCE, b"nonce".to_vec()),
            (VENDOR, vec![0x4a, 0x13]),
            (VENDOR, vec![0xff]),
        ];
        let [(to, of_to), (back, of_back)] = read_both_ways(&message(0x10, 2, 0, &all));
        assert_eq!(
            (to.len(), of_to.faults, back.len(), of_back.faults),
            (1, 0, 1, 0)
        );
        assert_eq!(texts(&to[0], Buffer::IkeInitiatorSpi), ["0102030405060708"]);
        assert_eq!(texts(&to[0], Buffer::IkeVendor), ["4a13", "ff"]);
        assert!(texts(&to[0], Buffer::IkeChosen).is_empty());
        assert_eq!(
            texts(&back[0], Buffer::IkeResponderSpi),
            ["090a0b0c0d0e0f10"]
        );
        assert_eq!(
            texts(&back[0], Buffer::IkeChosen),
            [";alg_hash=2;;sa_life_duration=86400;"]
        );
        for said in [&to[0], &back[0]] {
            assert_eq!(numbers(said, Buffer::IkeExchangeType), [2]);
            assert_eq!(texts(said, Buffer::IkeKeyExchange), ["key"]);
            assert_eq!(texts(said, Buffer::IkeNonce), ["nonce"]);
        }
        let encrypted = message(0x10, 5, ENCRYPTED, &[(NONCE, b"nonce".to_vec())]);
        let [(to, _), _] = read_both_ways(&encrypted);
        assert!(texts(&to[0], Buffer::IkeNonce).is_empty());
    }

    #[test]
    fn the_chosen_algorithms_of_ike_version_2_are_parsed() {
        let transform = |kind: u8, id: u8| vec![kind, 0, 0, id];
        let first = proposal_of(&[transform(1, 12), transform(4, 14), transform(9, 9)]);
        let second = proposal_of(&[transform(1, 3), transform(2, 5), transform(3, 2)]);
        let all = [
            (ASSOCIATION_2, chain(&[first, second])),
            (40, b"nonce".to_vec()),
            (ENCRYPTED_2, b"whatever".to_vec()),
        ];
        let bytes = message(0x20, 34, 0x20, &all);
        let behind_zeros = [NO_ESP, &bytes].concat();
        for bytes in [bytes, behind_zeros] {
            let [(to, of_to), (back, _)] = read_both_ways(&bytes);
            assert_eq!((to.len(), of_to.faults), (1, 0));
            assert!(texts(&to[0], Buffer::IkeChosen).is_empty());
            assert_eq!(
                texts(&back[0], Buffer::IkeChosen),
                [";alg_enc=12;;alg_dh=14;;alg_prf=5;;alg_auth=2;"]
            );
            assert!(texts(&back[0], Buffer::IkeNonce).is_empty());
        }
    }

    #[test]
    fn a_message_truncated_at_any_length_is_a_fault() {
        let association = [
            &[0, 0, 0, 1, 0, 0, 0, 1][..],
            &chain(&[proposal_of(&[vec![0; 9]])]),
        ];
        let whole = message(0x10, 2, 0, &[(ASSOCIATION, association.concat())]);
        for len in 0..=whole.len() {
            let mut bytes = whole[..len].to_vec();
            if let Some(place) = bytes.get_mut(24..28) {
                place.copy_from_slice(&(len as u32).to_be_bytes());
            }
            let [_, (back, counts)] = read_both_ways(&bytes);
            assert_eq!(back.len(), usize::from(len >= HEADER));
            // Nine zeros are a truncated attribute.
            assert_eq!(counts.faults, 1, "{len}");
        }
    }

    #[test]
    fn ike_messages_are_recognised_by_version_exchange_and_length() {
        let message_of = |version, exchange| message(version, exchange, 0, &[]);
        let (one, two) = (message_of(0x10, 2), message_of(0x20, 34));
        let natted = [NO_ESP, &two].concat();
        for (ports, bytes, is) in [
            ([500, 500], &one, true),
            ([500, 500], &two, true),
            ([1, 500], &message_of(0x20, 33), false),
            ([1, 500], &message_of(0x30, 34), false),
            ([1, 500], &message_of(0x21, 34), false),
            ([1, 500], &two[..27].to_vec(), false),
            ([1, 500], &[&two[..], b"x"].concat(), false),
            ([1, 500], &[&one[..], b"x"].concat(), true),
            ([4500, 1], &two, false),
            ([4500, 1], &natted, true),
            ([1, 500], &natted, false),
        ] {
            assert_eq!(is_message(ports, bytes), is, "{ports:?} {bytes:?}");
        }
    }
}
