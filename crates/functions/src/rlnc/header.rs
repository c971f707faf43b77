//! The header before a coded packet's payload.
//!
//! ```text
//!  0               1               2               3
//! +---------------+---------------+---------------+---------------+
//! |     0x7A      |     0xC5      |     kind      |     count     |
//! +---------------+---------------+---------------+---------------+
//! |                            session                            |
//! +---------------------------------------------------------------+
//! |                        number (64 bits)                       |
//! |                                                               |
//! +---------------------------------------------------------------+
//! ```
//! Kind 1, source packet: count is 0, and number is the packet's own; the payload follows. Kind 2, repair packet:
//! number is that of the first combined source packet, and count is how many are combined. One coefficient for each
//! follows, then the sum of the symbols.

use super::outcome::{Counts, Verdict};

/// The length of the coding header in bytes.
pub(super) const LEN_BYTES: usize = 16;

const MAGIC: [u8; 2] = [0x7A, 0xC5];

/// The limit on numbers, so that sums with them never overflow; no sender reaches it.
const MOST_NUMBER: u64 = u64::MAX >> 1;

/// The kind of a coded packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Source,
    /// A repair packet; the value is the number of source packets that the packet combines.
    Repair(u8),
}

/// The coding header, which precedes the payload of a coded packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// The session: a random number that the encoder chooses at its start.
    pub(super) session: u32,
    pub(super) number: u64,
}

/// The result of parsing the beginning of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Front {
    Coded(Header),
    NotCoded,
    /// The payload is a coded packet with an invalid header.
    Broken,
}

impl Front {
    fn of(payload: &[u8]) -> Self {
        if !payload.starts_with(&MAGIC) {
            return Self::NotCoded;
        }
        let Some((header, rest)) = payload.split_first_chunk::<LEN_BYTES>() else {
            return Self::Broken;
        };
        let [_, _, kind, count, a, b, c, d, number @ ..] = *header;
        let kind = match (kind, count) {
            (1, 0) => Kind::Source,
            (2, count) if count > 0 && rest.len() > usize::from(count) => Kind::Repair(count),
            _ => return Self::Broken,
        };
        let number = u64::from_be_bytes(number);
        if number > MOST_NUMBER {
            return Self::Broken;
        }
        Self::Coded(Header {
            kind,
            session: u32::from_be_bytes([a, b, c, d]),
            number,
        })
    }
}

impl Header {
    /// Parses the header of a payload. Without a usable header, counts the packet and returns its verdict.
    pub(super) fn of(payload: &[u8], counts: &mut Counts) -> Result<Self, Verdict> {
        match Front::of(payload) {
            Front::Coded(header) => Ok(header),
            Front::NotCoded => {
                counts.not_coded += 1;
                Err(Verdict::Goes)
            }
            Front::Broken => {
                counts.broken += 1;
                Err(Verdict::Ends)
            }
        }
    }

    /// Returns one more than the number of the last source packet that this packet contains or combines.
    pub(super) fn end(&self) -> u64 {
        self.number
            + match self.kind {
                Kind::Source => 1,
                Kind::Repair(count) => u64::from(count),
            }
    }

    pub(super) fn bytes(&self) -> [u8; LEN_BYTES] {
        let (kind, count) = match self.kind {
            Kind::Source => (1, 0),
            Kind::Repair(count) => (2, count),
        };
        let mut bytes = [0; LEN_BYTES];
        bytes[..2].copy_from_slice(&MAGIC);
        bytes[2..4].copy_from_slice(&[kind, count]);
        bytes[4..8].copy_from_slice(&self.session.to_be_bytes());
        bytes[8..].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn emitted_rlnc_headers_parse_unchanged_and_truncated_headers_are_invalid() {
        for kind in [Kind::Source, Kind::Repair(3)] {
            let header = Header {
                kind,
                session: 0x1234_5678,
                number: MOST_NUMBER - 5,
            };
            let mut payload = header.bytes().to_vec();
            payload.extend([7; 9]);
            assert_eq!(Front::of(&payload), Front::Coded(header));
            for length in 0..payload.len() {
                let front = Front::of(&payload[..length]);
                match length {
                    0 | 1 => assert_eq!(front, Front::NotCoded),
                    2..16 => assert_eq!(front, Front::Broken),
                    // A repair packet has coefficients, and a sum of at least one byte.
                    16..20 if kind != Kind::Source => assert_eq!(front, Front::Broken),
                    _ => assert_eq!(front, Front::Coded(header)),
                }
            }
            payload[8] |= 0x80;
            assert_eq!(Front::of(&payload), Front::Broken);
            payload[8] &= 0x7F;
            payload[2] = 3;
            assert_eq!(Front::of(&payload), Front::Broken);
            payload[1] = 0;
            assert_eq!(Front::of(&payload), Front::NotCoded);
        }
    }
}
