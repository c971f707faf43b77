//! The format of capture files: finds the frames in pcap and pcapng. This file only parses memory, and accesses no
//! file.
//!
//! pcap as in draft-ietf-opsawg-pcap, pcapng as in draft-ietf-opsawg-pcapng.

use super::link::{CARRIED, LinkType};
pub use super::link::{ETHERNET, LONGEST_FRAME_BYTES};
use std::fmt;

/// The maximum number of captured bytes per frame (libpcap's limit); a longer record is an error.
const LONGEST_CAPTURE_BYTES: u32 = 262_144;

/// The maximum size of a pcapng block that is checked as a whole, including the copy of its length at its end.
const LONGEST_WHOLE_BLOCK_BYTES: usize = LONGEST_FRAME_BYTES + 4096;

/// The maximum number of bytes that [`Scanner::step`] requests. A window of this length is always sufficient.
pub const WINDOW_BYTES: usize = LONGEST_WHOLE_BLOCK_BYTES;

/// The first word of a pcap file with times in microseconds.
const MICROSECOND_MAGIC: u32 = 0xa1b2_c3d4;
/// The first word of a pcap file with times in nanoseconds.
pub(super) const NANOSECOND_MAGIC: u32 = 0xa1b2_3c4d;
/// The number of bytes of a pcap file before its first record.
pub(super) const FILE_HEADER_BYTES: usize = 24;
/// The number of bytes of a pcap record before its frame.
pub(super) const RECORD_HEADER_BYTES: usize = 16;

/// The pcapng block type of a section header; it reads the same in both byte orders.
pub const SECTION_HEADER: u32 = 0x0a0d_0d0a;
/// The pcapng block type of an interface description.
pub const INTERFACE_DESCRIPTION: u32 = 1;
/// The pcapng block type of a frame, as older programs wrote it.
const OLD_PACKET: u32 = 2;
/// The pcapng block type of a frame without a time.
const SIMPLE_PACKET: u32 = 3;
/// The pcapng block type of a frame.
pub const ENHANCED_PACKET: u32 = 6;
/// The byte-order magic of a pcapng section header, in the section's own byte order.
pub const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// The number of bytes of a pcapng enhanced packet block before its frame.
pub const ENHANCED_HEADER_BYTES: usize = 28;
/// The number of bytes of a pcapng simple packet block before its frame.
const SIMPLE_HEADER_BYTES: usize = 12;
/// The pcapng interface option for the unit of the interface's timestamps.
pub const IF_TSRESOL: u16 = 9;
/// The pcapng interface option for the seconds to add to the interface's timestamps.
const IF_TSOFFSET: u16 = 14;

/// The reason why a capture file cannot be read any further.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    reason: String,
    /// True if the file is a valid capture of an unsupported kind.
    pub(super) is_of_its_kind: bool,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

fn fault<T>(reason: impl Into<String>) -> Result<T, Fault> {
    Err(Fault {
        reason: reason.into(),
        is_of_its_kind: false,
    })
}

/// The item (frame, header or other block) at the start of the bytes given to [`Scanner::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A complete frame of `len` bytes, which follows `before` bytes of header. The next record starts `size` bytes
    /// after this one.
    Frame {
        /// Number of bytes of the record before the frame.
        before: usize,
        /// Number of bytes of the frame.
        len: usize,
        /// Capture time, ns since 1970; None if the format has none.
        time_ns: Option<u64>,
        /// Number of bytes from the start of this record to the next one.
        size: u64,
    },
    /// Another item, or a frame that cannot be delivered, to be skipped. The next record starts `size` bytes after this
    /// one.
    Pass {
        /// Kind of the skipped item.
        over: Over,
        /// Number of bytes from the start of this record to the next one.
        size: u64,
    },
    /// More bytes are needed. The value is the total number of bytes required, counted from the start of the given
    /// bytes.
    More(usize),
}

/// The kind of item of a capture file that [`Step::Pass`] skips.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Over {
    /// A header, or a block without a frame.
    NoFrame,
    /// A truncated frame, of which only the first bytes were captured.
    CutFrame {
        /// Number of bytes of the record before the frame.
        before: usize,
        /// Number of captured bytes of the frame.
        len: usize,
        /// Number of bytes that the complete frame had on the wire.
        whole_bytes: u32,
        /// Capture time, ns since 1970; None if the format has none.
        time_ns: Option<u64>,
    },
    /// A frame longer than [`LONGEST_FRAME_BYTES`].
    LongFrame,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    /// Returns the byte order in which `bytes` encode `magic`; None if there is no such byte order.
    fn in_which(bytes: [u8; 4], magic: u32) -> Option<Self> {
        if bytes == magic.to_le_bytes() {
            Some(Self::Little)
        } else if bytes == magic.to_be_bytes() {
            Some(Self::Big)
        } else {
            None
        }
    }

    /// Returns the 32-bit number at offset `at`, which the caller has checked; 0 past the end.
    fn u32(self, bytes: &[u8], at: usize) -> u32 {
        let word = word(bytes, at);
        match self {
            Self::Little => u32::from_le_bytes(word),
            Self::Big => u32::from_be_bytes(word),
        }
    }

    fn u16(self, bytes: &[u8], at: usize) -> u16 {
        let pair = bytes
            .get(at..at + 2)
            .map_or([0; 2], |pair| [pair[0], pair[1]]);
        match self {
            Self::Little => u16::from_le_bytes(pair),
            Self::Big => u16::from_be_bytes(pair),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> [u8; 4] {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk())
        .copied()
        .unwrap_or_default()
}

/// The unit of an interface's timestamps, and the offset to add to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Times {
    resolution: Resolution,
    offset_seconds: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Resolution {
    /// Number of timestamp units per second.
    Decimal(u128),
    /// Logarithm to base 2 of the number of timestamp units per second.
    Binary(u32),
}

impl Times {
    const MICROSECONDS: Self = Self {
        resolution: Resolution::Decimal(1_000_000),
        offset_seconds: 0,
    };

    fn ns(self, units: u64) -> u64 {
        let scaled = u128::from(units) * 1_000_000_000;
        let ns = match self.resolution {
            Resolution::Decimal(per_second) => scaled / per_second,
            Resolution::Binary(power) => scaled >> power,
        };
        let offset_ns = i128::from(self.offset_seconds) * 1_000_000_000;
        let ns = i128::try_from(ns).unwrap_or(i128::MAX);
        ns.saturating_add(offset_ns).clamp(0, u64::MAX.into()) as u64
    }
}

/// An interface of a pcapng section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Source {
    link_type: u16,
    /// Maximum number of captured bytes per frame; 0 is no limit.
    snap_bytes: u32,
    times: Times,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Format {
    /// The format is unknown: the first bytes have not been read yet.
    Unknown,
    Pcap {
        order: Order,
        nanoseconds: bool,
    },
    Pcapng {
        order: Order,
        sources: Vec<Source>,
    },
}

/// A scanner that reads a capture file of either format record by record.
///
/// ```
/// use taut_port::pcap::format::{Scanner, Step};
///
/// let mut scanner = Scanner::new();
/// assert_eq!(scanner.step(&[0xd4, 0xc3]), Ok(Step::More(4)));
/// assert!(scanner.step(b"GIF89a").is_err());
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanner {
    format: Format,
    /// True if link types that can be converted to Ethernet are accepted.
    of_packets: bool,
    /// Link type of the last frame.
    link: LinkType,
}

impl Default for Scanner {
    fn default() -> Self {
        Self::new()
    }
}

impl Scanner {
    /// Makes a scanner for the start of a file, which accepts only Ethernet frames.
    pub fn new() -> Self {
        Self {
            format: Format::Unknown,
            of_packets: false,
            link: LinkType::Ethernet,
        }
    }

    /// Makes a scanner for the start of a file, which accepts all link types of [`super::link`].
    pub(super) fn of_packets() -> Self {
        Self {
            of_packets: true,
            ..Self::new()
        }
    }

    /// Returns the link type of the frame that the last step found.
    pub(super) fn link(&self) -> LinkType {
        self.link
    }

    /// Parses the item at the start of `bytes`. The first byte is the one after the last record. [`Step::More`] changes
    /// nothing: call again with more bytes.
    ///
    /// # Errors
    /// The item is invalid; the error says in which way.
    pub fn step(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        match &mut self.format {
            Format::Unknown => self.first(bytes),
            Format::Pcap { order, nanoseconds } => record(*order, *nanoseconds, bytes),
            Format::Pcapng { order, sources } => {
                let mut found = None;
                let step = block(order, sources, bytes, &mut found)?;
                if let Some(link_type) = found {
                    self.link = self.carried(link_type)?;
                }
                Ok(step)
            }
        }
    }

    /// Parses the start of the file, which tells the format.
    fn first(&mut self, bytes: &[u8]) -> Result<Step, Fault> {
        let Some(&magic) = bytes.first_chunk() else {
            return Ok(Step::More(4));
        };
        if magic == SECTION_HEADER.to_le_bytes() {
            let (mut order, mut sources) = (Order::Little, Vec::new());
            let step = block(&mut order, &mut sources, bytes, &mut None)?;
            if !matches!(step, Step::More(_)) {
                self.format = Format::Pcapng { order, sources };
            }
            return Ok(step);
        }
        let kinds = [(MICROSECOND_MAGIC, false), (NANOSECOND_MAGIC, true)];
        let found = kinds.iter().find_map(|&(number, nanoseconds)| {
            Order::in_which(magic, number).map(|order| (order, nanoseconds))
        });
        let Some((order, nanoseconds)) = found else {
            return fault(what_else(bytes));
        };
        if bytes.len() < FILE_HEADER_BYTES {
            return Ok(Step::More(FILE_HEADER_BYTES));
        }
        let major = order.u16(bytes, 4);
        if major != 2 {
            return fault(format!("unknown pcap version {major}"));
        }
        // The upper half may describe frame check sequences.
        let link_type = order.u32(bytes, 20) as u16;
        self.link = self.carried(link_type)?;
        self.format = Format::Pcap { order, nanoseconds };
        Ok(no_frame(FILE_HEADER_BYTES as u64))
    }

    /// Returns the link type with the given number, or an error if its frames are not accepted.
    fn carried(&self, link_type: u16) -> Result<LinkType, Fault> {
        let known = LinkType::of(link_type);
        known
            .filter(|it| self.of_packets || *it == LinkType::Ethernet)
            .ok_or_else(|| Fault {
                reason: match self.of_packets {
                    true => format!("a capture of link type {link_type}; carried are {CARRIED}"),
                    false => format!(
                        "a capture of link type {link_type}, and only Ethernet ({ETHERNET}) is carried"
                    ),
                },
                is_of_its_kind: true,
            })
    }
}

fn no_frame(size: u64) -> Step {
    Step::Pass {
        over: Over::NoFrame,
        size,
    }
}

/// Returns a guess of the type of a file that is not a capture.
fn what_else(bytes: &[u8]) -> String {
    let compressed: [(&[u8], &str, &str); 3] = [
        (&[0x1f, 0x8b], "gzip", "gunzip"),
        (&[0x28, 0xb5, 0x2f, 0xfd], "zstd", "unzstd"),
        (&[0xfd, b'7', b'z', b'X'], "xz", "unxz"),
    ];
    match compressed
        .iter()
        .find(|(start, ..)| bytes.starts_with(start))
    {
        Some((_, with, undo)) => format!("compressed with {with}; unpack it first: {undo}"),
        None => "neither pcap nor pcapng".to_string(),
    }
}

/// Returns the step that skips a frame if the frame cannot be delivered, because it is truncated or too long; None if
/// it can be delivered. `captured` is the number of captured bytes, `whole` the number on the wire, and `size` the
/// number of bytes to the next record.
fn judge(
    before: usize,
    (captured, whole): (u32, u32),
    time_ns: Option<u64>,
    size: u64,
) -> Option<Step> {
    let over = if captured < whole {
        Over::CutFrame {
            before,
            len: captured as usize,
            whole_bytes: whole,
            time_ns,
        }
    } else if captured as usize > LONGEST_FRAME_BYTES {
        Over::LongFrame
    } else {
        return None;
    };
    Some(Step::Pass { over, size })
}

fn check_captured(captured: u32) -> Result<(), Fault> {
    if captured > LONGEST_CAPTURE_BYTES {
        return fault(format!(
            "a frame of {captured} bytes, more than anything captures"
        ));
    }
    Ok(())
}

/// Parses one record of a pcap file.
fn record(order: Order, nanoseconds: bool, bytes: &[u8]) -> Result<Step, Fault> {
    if bytes.len() < RECORD_HEADER_BYTES {
        return Ok(Step::More(RECORD_HEADER_BYTES));
    }
    let (captured, whole) = (order.u32(bytes, 8), order.u32(bytes, 12));
    check_captured(captured)?;
    let len = captured as usize;
    let end = RECORD_HEADER_BYTES + len;
    let size = end as u64;
    let unit_ns = if nanoseconds { 1 } else { 1000 };
    let seconds = u64::from(order.u32(bytes, 0));
    let time_ns = Some(seconds * 1_000_000_000 + u64::from(order.u32(bytes, 4)) * unit_ns);
    if let Some(pass) = judge(RECORD_HEADER_BYTES, (captured, whole), time_ns, size) {
        return Ok(pass);
    }
    if bytes.len() < end {
        return Ok(Step::More(end));
    }
    Ok(Step::Frame {
        before: RECORD_HEADER_BYTES,
        len,
        time_ns,
        size,
    })
}

/// Parses one block of a pcapng file. For a block with a frame, it also returns the number of the frame's link type.
fn block(
    order: &mut Order,
    sources: &mut Vec<Source>,
    bytes: &[u8],
    link_type: &mut Option<u16>,
) -> Result<Step, Fault> {
    if bytes.len() < 12 {
        return Ok(Step::More(12));
    }
    let begins_section = word(bytes, 0) == SECTION_HEADER.to_le_bytes();
    let order_here = if begins_section {
        match Order::in_which(word(bytes, 8), BYTE_ORDER_MAGIC) {
            Some(order) => order,
            None => return fault("a pcapng section without a byte order"),
        }
    } else {
        *order
    };
    let kind = order_here.u32(bytes, 0);
    let total = order_here.u32(bytes, 4);
    if total < 12 || !total.is_multiple_of(4) {
        return fault(format!("a pcapng block of {total} bytes: invalid length"));
    }
    let size = u64::from(total);
    let total = total as usize;
    match kind {
        SECTION_HEADER => {
            if total < 28 {
                return fault(format!("a pcapng section header of {total} bytes"));
            }
            if bytes.len() < 28 {
                return Ok(Step::More(28));
            }
            let major = order_here.u16(bytes, 12);
            if major != 1 {
                return fault(format!("unknown pcapng version {major}"));
            }
            *order = order_here;
            sources.clear();
            Ok(no_frame(size))
        }
        INTERFACE_DESCRIPTION => {
            let Some(body) = whole_block(order_here, bytes, total)? else {
                return Ok(Step::More(total));
            };
            sources.push(source(order_here, body)?);
            Ok(no_frame(size))
        }
        ENHANCED_PACKET | OLD_PACKET | SIMPLE_PACKET => {
            packet(order_here, kind, sources, bytes, total, link_type)
        }
        _ => Ok(no_frame(size)),
    }
}

/// Returns the body of the pcapng block at the start of `bytes`: the block without its type and its two length fields.
/// None if the block is incomplete.
fn whole_block(order: Order, bytes: &[u8], total: usize) -> Result<Option<&[u8]>, Fault> {
    if total > LONGEST_WHOLE_BLOCK_BYTES {
        return fault(format!("a pcapng interface described by {total} bytes"));
    }
    if bytes.len() < total {
        return Ok(None);
    }
    check_end(order, bytes, total)?;
    Ok(Some(&bytes[8..total - 4]))
}

fn check_end(order: Order, bytes: &[u8], total: usize) -> Result<(), Fault> {
    let again = order.u32(bytes, total - 4);
    if again as usize != total {
        return fault(format!(
            "a pcapng block of {total} bytes with a trailing length of {again}"
        ));
    }
    Ok(())
}

/// Parses the body of an interface description.
fn source(order: Order, body: &[u8]) -> Result<Source, Fault> {
    if body.len() < 8 {
        return fault("a pcapng interface without a link type");
    }
    let mut source = Source {
        link_type: order.u16(body, 0),
        snap_bytes: order.u32(body, 4),
        times: Times::MICROSECONDS,
    };
    let mut at = 8;
    while at + 4 <= body.len() {
        let (code, len) = (order.u16(body, at), usize::from(order.u16(body, at + 2)));
        let value = at + 4..at + 4 + len;
        let Some(value) = body.get(value) else {
            return fault("a pcapng option that is longer than its block");
        };
        match (code, value) {
            (0, _) => break,
            (IF_TSRESOL, &[unit]) => source.times.resolution = resolution(unit)?,
            (IF_TSOFFSET, _) if len == 8 => {
                let (low, high) = match order {
                    Order::Little => (0, 4),
                    Order::Big => (4, 0),
                };
                let low = u64::from(order.u32(value, low));
                let high = u64::from(order.u32(value, high));
                source.times.offset_seconds = (high << 32 | low) as i64;
            }
            _ => {}
        }
        at += 4 + len.next_multiple_of(4);
    }
    Ok(source)
}

/// Parses the value of `if_tsresol`: a power of ten or, with its top bit, of two.
fn resolution(unit: u8) -> Result<Resolution, Fault> {
    let power = u32::from(unit & 0x7f);
    match (unit & 0x80 != 0, power) {
        (false, 0..=30) => Ok(Resolution::Decimal(10_u128.pow(power))),
        (true, 0..=96) => Ok(Resolution::Binary(power)),
        _ => fault(format!("unsupported time unit (if_tsresol {unit})")),
    }
}

/// Parses a pcapng block with a frame.
fn packet(
    order: Order,
    kind: u32,
    sources: &[Source],
    bytes: &[u8],
    total: usize,
    link_type: &mut Option<u16>,
) -> Result<Step, Fault> {
    let before = if kind == SIMPLE_PACKET {
        SIMPLE_HEADER_BYTES
    } else {
        ENHANCED_HEADER_BYTES
    };
    if total < before + 4 {
        return fault(format!(
            "a pcapng packet block of {total} bytes: invalid length"
        ));
    }
    if bytes.len() < before {
        return Ok(Step::More(before));
    }
    let number = match kind {
        ENHANCED_PACKET => order.u32(bytes, 8),
        OLD_PACKET => u32::from(order.u16(bytes, 8)),
        _ => 0,
    };
    let Some(source) = sources.get(number as usize) else {
        return fault(format!(
            "a frame of interface {number}, which is not described"
        ));
    };
    *link_type = Some(source.link_type);
    let (captured, whole) = if kind == SIMPLE_PACKET {
        let whole = order.u32(bytes, 8);
        let limit = match source.snap_bytes {
            0 => u32::MAX,
            limit => limit,
        };
        (whole.min(limit), whole)
    } else {
        (order.u32(bytes, 20), order.u32(bytes, 24))
    };
    check_captured(captured)?;
    let len = captured as usize;
    if before + len.next_multiple_of(4) + 4 > total {
        return fault(format!(
            "a frame of {len} bytes in a pcapng block of {total}"
        ));
    }
    let size = total as u64;
    let time_ns = (kind != SIMPLE_PACKET).then(|| {
        let units = u64::from(order.u32(bytes, 12)) << 32 | u64::from(order.u32(bytes, 16));
        source.times.ns(units)
    });
    if let Some(pass) = judge(before, (captured, whole), time_ns, size) {
        return Ok(pass);
    }
    let needed = if total <= LONGEST_WHOLE_BLOCK_BYTES {
        total
    } else {
        before + len
    };
    if bytes.len() < needed {
        return Ok(Step::More(needed));
    }
    if needed == total {
        check_end(order, bytes, total)?;
    }
    Ok(Step::Frame {
        before,
        len,
        time_ns,
        size,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns all steps through `bytes`, as a reader with the whole file in memory makes them.
    fn steps(bytes: &[u8]) -> Result<Vec<Step>, (usize, Fault)> {
        let (mut scanner, mut at, mut steps) = (Scanner::new(), 0, Vec::new());
        while at < bytes.len() {
            let step = scanner.step(&bytes[at..]).map_err(|fault| (at, fault))?;
            steps.push(step);
            match step {
                Step::Frame { size, .. } | Step::Pass { size, .. } => at += size as usize,
                Step::More(_) => break,
            }
        }
        Ok(steps)
    }

    /// A writer of capture files for tests, in either byte order.
    struct Writer {
        big: bool,
        bytes: Vec<u8>,
    }

    impl Writer {
        fn new(big: bool) -> Self {
            Self {
                big,
                bytes: Vec::new(),
            }
        }

        fn u32(mut self, value: u32) -> Self {
            let bytes = value.to_le_bytes();
            if self.big {
                self.bytes.extend(bytes.iter().rev());
            } else {
                self.bytes.extend(bytes);
            }
            self
        }

        fn u16(mut self, value: u16) -> Self {
            let bytes = value.to_le_bytes();
            if self.big {
                self.bytes.extend(bytes.iter().rev());
            } else {
                self.bytes.extend(bytes);
            }
            self
        }

        fn raw(mut self, bytes: &[u8]) -> Self {
            self.bytes.extend(bytes);
            self
        }

        /// Returns a pcapng block around `body`.
        fn block(self, kind: u32, body: &[u8]) -> Self {
            let padding = vec![0; body.len().next_multiple_of(4) - body.len()];
            let total = (body.len() + padding.len() + 12) as u32;
            self.u32(kind).u32(total).raw(body).raw(&padding).u32(total)
        }

        fn section(self) -> Self {
            let big = self.big;
            let body = Self::new(big)
                .u32(BYTE_ORDER_MAGIC)
                .u16(1)
                .u16(0)
                .u32(u32::MAX)
                .u32(u32::MAX);
            self.block(SECTION_HEADER, &body.bytes)
        }

        fn interface(self, link_type: u16, snap: u32, options: &[(u16, &[u8])]) -> Self {
            let mut body = Self::new(self.big).u16(link_type).u16(0).u32(snap);
            for (code, value) in options {
                let padding = vec![0; value.len().next_multiple_of(4) - value.len()];
                body = body
                    .u16(*code)
                    .u16(value.len() as u16)
                    .raw(value)
                    .raw(&padding);
            }
            self.block(INTERFACE_DESCRIPTION, &body.bytes)
        }

        fn enhanced(self, interface: u32, units: u64, frame: &[u8], whole: u32) -> Self {
            let body = Self::new(self.big)
                .u32(interface)
                .u32((units >> 32) as u32)
                .u32(units as u32)
                .u32(frame.len() as u32)
                .u32(whole)
                .raw(frame);
            self.block(ENHANCED_PACKET, &body.bytes)
        }

        fn pcap(self, magic: u32, link_type: u32) -> Self {
            self.u32(magic)
                .u16(2)
                .u16(4)
                .u32(0)
                .u32(0)
                .u32(65535)
                .u32(link_type)
        }

        fn record(self, seconds: u32, fraction: u32, frame: &[u8], whole: u32) -> Self {
            self.u32(seconds)
                .u32(fraction)
                .u32(frame.len() as u32)
                .u32(whole)
                .raw(frame)
        }
    }

    fn frame(before: usize, len: usize, time_ns: impl Into<Option<u64>>, size: u64) -> Step {
        Step::Frame {
            before,
            len,
            time_ns: time_ns.into(),
            size,
        }
    }

    #[test]
    fn pcap_files_parse_in_both_byte_orders_and_timestamp_units() {
        for big in [false, true] {
            for (magic, unit_ns) in [(MICROSECOND_MAGIC, 1000), (NANOSECOND_MAGIC, 1)] {
                let file = Writer::new(big)
                    .pcap(magic, 1)
                    .record(7, 5, &[1; 60], 60)
                    .record(8, 6, &[2; 61], 61);
                assert_eq!(
                    steps(&file.bytes).unwrap(),
                    [
                        no_frame(24),
                        frame(16, 60, 7_000_000_000 + 5 * unit_ns, 76),
                        frame(16, 61, 8_000_000_000 + 6 * unit_ns, 77),
                    ]
                );
            }
        }
    }

    fn cut(before: usize, len: usize, whole_bytes: u32, time_ns: Option<u64>) -> Over {
        Over::CutFrame {
            before,
            len,
            whole_bytes,
            time_ns,
        }
    }

    #[test]
    fn truncated_and_oversized_frames_are_skipped() {
        let file = Writer::new(false)
            .pcap(MICROSECOND_MAGIC, 1)
            .record(0, 0, &[0; 60], 1500)
            .record(0, 0, &[0; LONGEST_FRAME_BYTES + 1], 16385)
            .record(0, 0, &[0; LONGEST_FRAME_BYTES], 16384);
        let pass = |over, size| Step::Pass { over, size };
        assert_eq!(
            steps(&file.bytes).unwrap()[1..],
            [
                pass(cut(16, 60, 1500, Some(0)), 76),
                pass(Over::LongFrame, 16401),
                frame(16, 16384, 0, 16400),
            ]
        );
    }

    #[test]
    fn pcapng_files_parse_identically_in_both_byte_orders() {
        for big in [false, true] {
            let eight = |value: i64| {
                if big {
                    value.to_be_bytes()
                } else {
                    value.to_le_bytes()
                }
            };
            let file = Writer::new(big)
                .section()
                .interface(1, 0, &[])
                .interface(1, 64, &[(2, b"eth1"), (IF_TSRESOL, &[9])])
                .interface(
                    1,
                    0,
                    &[(IF_TSRESOL, &[0x80 | 10]), (IF_TSOFFSET, &eight(3))],
                )
                .block(0x0bad_cafe, &[9; 40])
                .enhanced(0, 5_000_001, &[1; 61], 61)
                .enhanced(1, 6_000_000_001, &[2; 60], 60)
                .enhanced(2, 512, &[3; 60], 60)
                .enhanced(1, 0, &[3; 60], 61);
            let found = steps(&file.bytes).unwrap();
            assert_eq!(
                found[4..],
                [
                    no_frame(52),
                    frame(28, 61, 5_000_001_000, 96),
                    frame(28, 60, 6_000_000_001, 92),
                    frame(28, 60, 3_500_000_000, 92),
                    Step::Pass {
                        over: cut(28, 60, 61, Some(0)),
                        size: 92
                    },
                ]
            );
        }
    }

    #[test]
    fn simple_and_obsolete_packet_blocks_are_read_as_frames() {
        let old = Writer::new(false)
            .u16(0)
            .u16(3)
            .u32(0)
            .u32(9)
            .u32(60)
            .u32(60)
            .raw(&[1; 60]);
        let simple = Writer::new(false).u32(60).raw(&[2; 60]);
        let limited = Writer::new(false).u32(80).raw(&[2; 64]);
        let file = Writer::new(false)
            .section()
            .interface(1, 64, &[])
            .block(OLD_PACKET, &old.bytes)
            .block(SIMPLE_PACKET, &simple.bytes)
            .block(SIMPLE_PACKET, &limited.bytes);
        assert_eq!(
            steps(&file.bytes).unwrap()[2..],
            [
                frame(28, 60, 9000, 92),
                frame(12, 60, None, 76),
                Step::Pass {
                    over: cut(12, 64, 80, None),
                    size: 80
                },
            ]
        );
    }

    #[test]
    fn a_new_section_may_change_byte_order_and_resets_interfaces() {
        let first = Writer::new(false).section().interface(1, 0, &[]);
        let second = Writer::new(true)
            .section()
            .interface(1, 0, &[])
            .enhanced(0, 1, &[1; 60], 60);
        let both = [first.bytes.clone(), second.bytes].concat();
        assert_eq!(steps(&both).unwrap().last(), Some(&frame(28, 60, 1000, 92)));
        let orphan = Writer::new(true).section().enhanced(0, 1, &[1; 60], 60);
        let (at, fault) = steps(&[first.bytes.clone(), orphan.bytes].concat()).unwrap_err();
        assert_eq!(at, first.bytes.len() + 28);
        assert!(fault.to_string().contains("not described"), "{fault}");
    }

    #[test]
    fn a_damaged_capture_is_refused_with_the_cause() {
        let pcap = || Writer::new(false).pcap(MICROSECOND_MAGIC, 1);
        let section = || Writer::new(false).section();
        let lying_end = |mut writer: Writer| {
            let last = writer.bytes.len() - 4;
            writer.bytes[last] ^= 4;
            writer
        };
        let mut inner = section().interface(1, 0, &[]).enhanced(0, 0, &[1; 60], 60);
        let captured = inner.bytes.len() - 92 + 20;
        inner.bytes[captured] = 61;
        for (file, want) in [
            (Writer::new(false).raw(b"GIF89a"), "neither pcap nor pcapng"),
            (Writer::new(false).raw(&[0x1f, 0x8b, 8, 0]), "gunzip"),
            (
                Writer::new(false).pcap(MICROSECOND_MAGIC, 113),
                "link type 113",
            ),
            (
                pcap().u32(0).u32(0).u32(262_145).u32(262_145),
                "262145 bytes",
            ),
            (pcap().u32(0).u32(0).u32(u32::MAX).u32(1), "4294967295"),
            (section().u32(6).u32(13).u32(0), "block of 13 bytes"),
            (section().u32(99).u32(0).u32(0), "block of 0 bytes"),
            (
                Writer::new(false).u32(SECTION_HEADER).u32(28).u32(7),
                "byte order",
            ),
            (
                lying_end(section().interface(1, 0, &[])),
                "trailing length of",
            ),
            (
                section()
                    .interface(113, 0, &[])
                    .enhanced(0, 0, &[0; 60], 60),
                "link type 113",
            ),
            (
                section().interface(1, 0, &[(IF_TSRESOL, &[77])]),
                "if_tsresol 77",
            ),
            (inner, "61 bytes in a pcapng block of 92"),
            (
                lying_end(section().interface(1, 0, &[]).enhanced(0, 0, &[1; 60], 60)),
                "trailing length of",
            ),
        ] {
            let (_, fault) = steps(&file.bytes).unwrap_err();
            assert!(fault.to_string().contains(want), "{want}: {fault}");
        }
    }

    #[test]
    fn an_unsupported_interface_without_frames_is_accepted() {
        let file = Writer::new(false)
            .section()
            .interface(113, 0, &[])
            .interface(1, 0, &[])
            .enhanced(1, 0, &[1; 60], 60);
        assert_eq!(
            steps(&file.bytes).unwrap().last(),
            Some(&frame(28, 60, 0, 92))
        );
    }

    #[test]
    fn the_parser_requests_more_bytes_when_a_record_is_incomplete() {
        let pcap = Writer::new(false)
            .pcap(NANOSECOND_MAGIC, 1)
            .record(1, 2, &[3; 60], 60);
        let ng = Writer::new(true)
            .section()
            .interface(1, 0, &[(IF_TSRESOL, &[9])])
            .enhanced(0, 5, &[3; 61], 61);
        for file in [pcap.bytes, ng.bytes] {
            let (mut patient, mut hasty, mut at) = (Scanner::new(), Scanner::new(), 0);
            while at < file.len() {
                let want = patient.step(&file[at..]).unwrap();
                let (Step::Frame { size, .. } | Step::Pass { size, .. }) = want else {
                    panic!("{want:?}")
                };
                let mut given = 0;
                loop {
                    match hasty.step(&file[at..at + given]).unwrap() {
                        Step::More(needed) => {
                            assert!(needed > given && needed <= WINDOW_BYTES);
                            given += 1;
                        }
                        step => break assert_eq!(step, want),
                    }
                }
                at += size as usize;
            }
        }
    }
}
