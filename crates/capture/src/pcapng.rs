//! Blocks of pcapng files as captures write and read them: draft-ietf-opsawg-pcapng.
//!
//! Numbers are little-endian, times are in nanoseconds, and links are Ethernet. The port of a record is the number of
//! its interface, and its flags are written as comments. `taut_port::pcap` reads files of other programs.

use crate::record::{DROPPED, Facts, LONGEST_BYTES, PORTS, PUNTED, Record};
use taut_port::pcap::annotated::{
    self, OPT_COMMENT, append_option, append_packet, append_text, cut,
};
use taut_port::pcap::format::{
    BYTE_ORDER_MAGIC, ENHANCED_HEADER_BYTES, ENHANCED_PACKET, ETHERNET, IF_TSRESOL,
    INTERFACE_DESCRIPTION, SECTION_HEADER,
};

/// Maximum number of bytes that are stored of a frame: readers treat a longer one as damaged (libpcap's
/// `MAXIMUM_SNAPLEN`).
pub const LONGEST_KEPT_BYTES: usize = 262_144;
/// Minimum number of bytes of a pcapng block: its type and its length twice (draft-ietf-opsawg-pcapng, section 3.1).
pub const LEAST_BLOCK_BYTES: usize = 12;
/// Number of bytes of an interface statistics block as this module writes it.
pub const STATISTICS_BYTES: usize = 24 + 3 * 12 + 4;

/// Type of an interface statistics block (draft-ietf-opsawg-pcapng, section 4.6).
const INTERFACE_STATISTICS: u32 = 5;
/// Type of a padding block, which fills the space before the next one. Types with the highest bit are for local use
/// (draft-ietf-opsawg-pcapng, section "Standardized Block Type Codes"), and readers skip them. Wireshark would show a
/// custom block as a packet.
const PADDING: u32 = 0x8000_0000 | u32::from_le_bytes(*b"taut");

/// Code of the section header option for the hardware (draft-ietf-opsawg-pcapng, section 4.1); the next constant is
/// that for the application.
const SHB_HARDWARE: u16 = 2;
const SHB_USERAPPL: u16 = 4;
/// Code of the interface description option for the interface's name (draft-ietf-opsawg-pcapng, section 4.2).
const IF_NAME: u16 = 2;
/// Code of the statistics block option for received packets (draft-ietf-opsawg-pcapng, section 4.6). The next two are
/// those for packets dropped by the interface and by the operating system.
const ISB_IFRECV: u16 = 4;
const ISB_IFDROP: u16 = 5;
const ISB_OSDROP: u16 = 7;

/// Maximum length of an interface name in bytes; a longer one is truncated.
const LONGEST_NAME_BYTES: usize = 255;

/// Comments that packets get for the flags of their records.
const FLAGS: [(u16, &str); 2] = [(DROPPED, "dropped"), (PUNTED, "punted")];

/// The texts in the header of a section; empty ones are omitted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Section {
    /// Comment for readers of the file.
    pub comment: String,
    /// Hardware that captured the packets.
    pub hardware: String,
    /// Program that captured the packets.
    pub application: String,
}

impl Section {
    /// Returns the texts that name taut as the application, with a comment for readers of the file.
    pub fn ours(comment: &str) -> Self {
        Self {
            comment: comment.to_string(),
            application: concat!("taut ", env!("CARGO_PKG_VERSION")).to_string(),
            ..Self::default()
        }
    }
}

/// The packet counts of an interface since the capture began.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Packets received, including the packets dropped later.
    pub received: u64,
    /// Packets that the interface dropped for lack of space.
    pub dropped_by_interface: u64,
    /// Packets that the operating system or this program dropped.
    pub dropped_by_system: u64,
}

/// Appends a section header block (draft-ietf-opsawg-pcapng, section 4.1) of unspecified length.
pub fn section(to: &mut Vec<u8>, section: &Section) {
    let at = begin(to, SECTION_HEADER);
    put(to, BYTE_ORDER_MAGIC);
    // Version 1.0.
    to.extend([1, 0, 0, 0]);
    to.extend([0xff; 8]);
    append_text(to, OPT_COMMENT, &section.comment);
    append_text(to, SHB_HARDWARE, &section.hardware);
    append_text(to, SHB_USERAPPL, &section.application);
    put(to, 0);
    end(to, at);
}

/// Appends an interface description block (draft-ietf-opsawg-pcapng, section 4.2). `snap_bytes` is the snap length.
pub fn interface(to: &mut Vec<u8>, name: &str, snap_bytes: u32) {
    let at = begin(to, INTERFACE_DESCRIPTION);
    to.extend(ETHERNET.to_le_bytes());
    to.extend([0, 0]);
    put(to, snap_bytes);
    append_text(to, IF_NAME, cut(name, LONGEST_NAME_BYTES));
    // Times have units of 10^-9 seconds.
    append_option(to, IF_TSRESOL, &[9]);
    put(to, 0);
    end(to, at);
}

/// Returns the comments of a packet block: those that state the record's flags, followed by `comment`; unused entries
/// are empty.
#[inline]
fn comments<'a>(record: &Record<'_>, comment: &'a str) -> [&'a str; FLAGS.len() + 1] {
    let [dropped, punted] = FLAGS.map(|(flag, said)| match record.facts.flags & flag {
        0 => "",
        _ => said,
    });
    [dropped, punted, comment]
}

/// Returns the number of bytes that [`packet`] appends for a record.
#[inline]
pub fn packet_bytes(record: &Record<'_>, comment: &str) -> usize {
    let kept = record.frame.len().min(LONGEST_KEPT_BYTES);
    annotated::packet_bytes(kept, &comments(record, comment))
}

/// Appends an enhanced packet block (draft-ietf-opsawg-pcapng, section 4.3).
#[inline]
pub fn packet(to: &mut Vec<u8>, record: &Record<'_>, comment: &str) {
    let facts = &record.facts;
    append_packet(
        to,
        u32::from(facts.port),
        facts.time_ns,
        &record.frame[..record.frame.len().min(LONGEST_KEPT_BYTES)],
        facts.wire_bytes,
        &comments(record, comment),
    );
}

/// Appends an interface statistics block (draft-ietf-opsawg-pcapng, section 4.6), of [`STATISTICS_BYTES`].
pub fn statistics(to: &mut Vec<u8>, port: u8, time_ns: u64, statistics: &Statistics) {
    let at = begin(to, INTERFACE_STATISTICS);
    put(to, u32::from(port));
    put(to, (time_ns >> 32) as u32);
    put(to, time_ns as u32);
    let values = [
        (ISB_IFRECV, statistics.received),
        (ISB_IFDROP, statistics.dropped_by_interface),
        (ISB_OSDROP, statistics.dropped_by_system),
    ];
    for (code, value) in values {
        append_option(to, code, &value.to_le_bytes());
    }
    put(to, 0);
    end(to, at);
}

/// Appends a padding block of `bytes` bytes, a multiple of 4; appends nothing for fewer than [`LEAST_BLOCK_BYTES`].
pub fn padding(to: &mut Vec<u8>, bytes: usize) {
    debug_assert!(bytes.is_multiple_of(4));
    if bytes < LEAST_BLOCK_BYTES {
        return;
    }
    let at = begin(to, PADDING);
    to.resize(at + bytes - 4, 0);
    end(to, at);
}

/// Appends the start of a pcapng block; returns the block's offset, which [`end`] needs.
fn begin(to: &mut Vec<u8>, kind: u32) -> usize {
    let at = to.len();
    put(to, kind);
    put(to, 0);
    at
}

/// Writes the length of the pcapng block that begins at `at`, at the block's start and its end.
fn end(to: &mut Vec<u8>, at: usize) {
    let total = ((to.len() + 4 - at) as u32).to_le_bytes();
    to[at + 4..at + 8].copy_from_slice(&total);
    to.extend(total);
}

fn put(to: &mut Vec<u8>, value: u32) {
    to.extend_from_slice(&value.to_le_bytes());
}

/// A block of a pcapng file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Block<'a> {
    /// A block with a packet.
    Packet(Record<'a>),
    /// A block of [`padding`].
    Padding,
    /// A block of another type.
    Other,
}

/// Reads the block at the start of `bytes`; returns the block and its length. Returns `None` if there is no complete
/// block in the form that this module writes. The bytes are untrusted.
#[inline]
pub fn read(bytes: &[u8]) -> Option<(Block<'_>, usize)> {
    let total = word(bytes, 4)? as usize;
    if total < LEAST_BLOCK_BYTES || !total.is_multiple_of(4) {
        return None;
    }
    let bytes = bytes.get(..total)?;
    if word(bytes, total - 4)? as usize != total {
        return None;
    }
    let block = match word(bytes, 0)? {
        ENHANCED_PACKET => Block::Packet(enhanced(bytes)?),
        PADDING => Block::Padding,
        SECTION_HEADER if word(bytes, 8)? != BYTE_ORDER_MAGIC => return None,
        _ => Block::Other,
    };
    Some((block, total))
}

/// Returns the record in an enhanced packet block.
#[inline]
fn enhanced(block: &[u8]) -> Option<Record<'_>> {
    let head = block.first_chunk::<ENHANCED_HEADER_BYTES>()?;
    let field = |at| word(head, at).unwrap_or_default();
    let (kept, wire_bytes) = (field(20) as usize, field(24));
    let port = u8::try_from(field(8))
        .ok()
        .filter(|port| usize::from(*port) < PORTS)?;
    if kept > LONGEST_KEPT_BYTES || wire_bytes > LONGEST_BYTES || kept > wire_bytes as usize {
        return None;
    }
    let options_at = ENHANCED_HEADER_BYTES + kept.next_multiple_of(4);
    let options = block.get(options_at..block.len() - 4)?;
    Some(Record {
        facts: Facts {
            time_ns: u64::from(field(12)) << 32 | u64::from(field(16)),
            wire_bytes,
            port,
            flags: if options.is_empty() {
                0
            } else {
                flags(options)
            },
        },
        frame: &block[ENHANCED_HEADER_BYTES..ENHANCED_HEADER_BYTES + kept],
    })
}

/// Returns the record's flags that the comments among the options of a packet block state.
fn flags(mut options: &[u8]) -> u16 {
    let mut flags = 0;
    while let Some(&[a, b, c, d]) = options.first_chunk() {
        let (code, len) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        let len = usize::from(len);
        let Some(value) = options.get(4..4 + len) else {
            break;
        };
        for (flag, said) in FLAGS {
            if code == OPT_COMMENT && value == said.as_bytes() {
                flags |= flag;
            }
        }
        options = options
            .get(4 + len.next_multiple_of(4)..)
            .unwrap_or_default();
    }
    flags
}

#[inline]
fn word(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..at + 4)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    /// Returns all pcapng blocks in `bytes`, up to the end or an invalid block.
    fn blocks(mut bytes: &[u8]) -> Vec<Block<'_>> {
        let mut found = Vec::new();
        while let Some((block, size)) = read(bytes) {
            found.push(block);
            bytes = &bytes[size..];
        }
        found
    }

    proptest! {
        #[test]
        fn written_packets_are_parsed_unchanged_and_truncated_blocks_are_rejected(
            time_ns: u64,
            frame in proptest::collection::vec(any::<u8>(), 0..200),
            cut_off in 0..2000_u32,
            port: u8,
            flags in 0..4_u16,
            comment in "[a-zµ]{0,9}",
        ) {
            let wire_bytes = frame.len() as u32 + cut_off;
            let record = Record { facts: Facts { time_ns, wire_bytes, port, flags }, frame: &frame };
            let mut bytes = Vec::new();
            packet(&mut bytes, &record, &comment);
            prop_assert_eq!(bytes.len(), packet_bytes(&record, &comment));
            prop_assert_eq!(read(&bytes), Some((Block::Packet(record), bytes.len())));
            for len in 0..bytes.len() {
                prop_assert_eq!(read(&bytes[..len]), None);
            }
        }

        #[test]
        fn random_bytes_are_parsed_as_blocks_without_a_panic(mut bytes: Vec<u8>, kind in 0..8_u32) {
            let total = bytes.len() as u32;
            for (at, value) in [(0, kind), (4, total), (bytes.len().saturating_sub(4), total)] {
                if let Some(place) = bytes.get_mut(at..at + 4) {
                    place.copy_from_slice(&value.to_le_bytes());
                }
            }
            if let Some((_, size)) = read(&bytes) {
                prop_assert!(size >= LEAST_BLOCK_BYTES && size <= bytes.len());
            }
        }
    }

    #[test]
    fn sections_interfaces_padding_and_statistics_are_written_as_valid_blocks() {
        let mut bytes = Vec::new();
        let texts = Section {
            comment: "µ".repeat(5000),
            hardware: "a machine".into(),
            application: String::new(),
        };
        section(&mut bytes, &texts);
        interface(&mut bytes, "eth0", 1500);
        padding(&mut bytes, 12);
        padding(&mut bytes, 64);
        let before = bytes.len();
        statistics(&mut bytes, 0, 1, &Statistics::default());
        assert_eq!(bytes.len() - before, STATISTICS_BYTES);
        let (other, padding) = (Block::Other, Block::Padding);
        assert_eq!(blocks(&bytes), [other, other, padding, padding, other]);
        assert!(bytes.len() < 4500);
    }

    #[test]
    fn a_frame_longer_than_the_readers_limit_is_truncated() {
        let frame = vec![1; LONGEST_KEPT_BYTES + 1];
        let facts = Facts::default();
        let mut bytes = Vec::new();
        packet(
            &mut bytes,
            &Record {
                facts,
                frame: &frame,
            },
            "",
        );
        let Some((Block::Packet(found), _)) = read(&bytes) else {
            panic!("no packet")
        };
        assert_eq!(found.frame.len(), LONGEST_KEPT_BYTES);
        assert_eq!(found.facts.wire_bytes as usize, LONGEST_KEPT_BYTES);
    }
}
