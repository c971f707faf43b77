//! Record: a packet as stored in memory.

/// Number of bytes of a stored record before its frame.
pub const HEADER_BYTES: usize = 16;
/// Maximum length of a frame in bytes, both on the wire and stored: a record has 20 bits for each of both lengths.
pub const LONGEST_BYTES: u32 = (1 << 20) - 1;
/// Maximum number of ports whose packets can be told apart in a capture.
pub const PORTS: usize = 256;

/// The properties of a packet, apart from its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Facts {
    /// Timestamp of the packet, nanoseconds since 1970.
    pub time_ns: u64,
    /// Length of the frame on the wire, bytes.
    pub wire_bytes: u32,
    /// Index of the packet's ingress port.
    pub port: u8,
    /// Flags of the packet: [`DROPPED`], [`PUNTED`].
    pub flags: u16,
}

/// Flag: a function before the capture has dropped the packet.
pub const DROPPED: u16 = 1;
/// Flag: a function before the capture has punted the packet to the slow path.
pub const PUNTED: u16 = 2;

/// A stored packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Record<'a> {
    /// Properties of the packet.
    pub facts: Facts,
    /// Stored bytes, from the start of the frame on.
    pub frame: &'a [u8],
}

/// Returns the length of a record with `kept` stored bytes, rounded up to a multiple of 8, in bytes.
#[inline(always)]
pub const fn record_bytes(kept: usize) -> usize {
    HEADER_BYTES + kept.next_multiple_of(8)
}

impl Facts {
    /// Returns the header of a record of this packet with `kept` stored bytes: two words.
    #[inline(always)]
    pub const fn words(&self, kept: u32) -> [u64; 2] {
        let lengths = self.wire_bytes as u64 | (kept as u64) << 20;
        [
            self.time_ns,
            lengths | (self.port as u64) << 40 | (self.flags as u64) << 48,
        ]
    }

    /// Returns the properties in a record's header, and the number of stored bytes of the frame.
    #[inline(always)]
    pub const fn of_words(words: [u64; 2]) -> (Self, u32) {
        let [time_ns, rest] = words;
        let facts = Self {
            time_ns,
            wire_bytes: rest as u32 & LONGEST_BYTES,
            port: (rest >> 40) as u8,
            flags: (rest >> 48) as u16,
        };
        (facts, (rest >> 20) as u32 & LONGEST_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_record_header_encodes_and_decodes_unchanged(
            time_ns: u64,
            wire_bytes in 0..=LONGEST_BYTES,
            kept in 0..=LONGEST_BYTES,
            port: u8,
            flags: u16,
        ) {
            let facts = Facts { time_ns, wire_bytes, port, flags };
            prop_assert_eq!(Facts::of_words(facts.words(kept)), (facts, kept));
        }
    }

    #[test]
    fn capture_records_occupy_multiples_of_eight_bytes() {
        for (kept, bytes) in [(0, 16), (1, 24), (60, 80), (64, 80), (65, 88)] {
            assert_eq!(record_bytes(kept), bytes);
        }
    }
}
