//! Decodes bodies in the codings of RFC 9110 section 8.4.1 as their bytes arrive. An announced coding is used if the
//! first bytes match its format. Invalid bytes, and bytes in another coding, are passed on unchanged.

use super::memory::Memory;
use brotli_decompressor::{BrotliDecompressStream, BrotliResult, BrotliState, StandardAlloc};
use flate2::{Decompress, FlushDecompress, Status};

/// Maximum number of codings of a body that are decoded. If more are announced, the outermost codings are decoded, and
/// the message is counted.
pub const MOST_CODINGS: usize = 2;
/// Maximum ratio of decoded to encoded bytes. The next constant is the decoded length from which the ratio is checked.
pub const MOST_RATIO: usize = 256;
const RATIO_FROM_BYTES: usize = 16 * 1024;
/// Number of decoded bytes that are passed on together.
const PIECE_BYTES: usize = 2048;
/// Capacity of the buffer for the encoded bytes before the first decoded byte. If these bytes turn out not to be
/// encoded, they are passed on unchanged.
const HELD_BYTES: usize = 16;

/// A content or transfer coding of a body that can be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Brotli,
}

impl Coding {
    /// Returns the coding with the given name.
    pub fn of_name(name: &[u8]) -> Option<Self> {
        let is = |other: &[u8]| name.eq_ignore_ascii_case(other);
        if is(b"gzip") || is(b"x-gzip") {
            return Some(Self::Gzip);
        }
        if is(b"deflate") || is(b"x-deflate") {
            return Some(Self::Deflate);
        }
        is(b"br").then_some(Self::Brotli)
    }
}

/// The reason why decoding of a body stopped; all later bytes are passed on unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stopped {
    /// The bytes of the body are invalid in their coding.
    Broken,
    /// The ratio of decoded to encoded bytes is too high.
    Ratio,
}

/// The part of an encoded body that the next byte belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    /// The first two bytes, which identify the format.
    #[default]
    Begin,
    /// The gzip header after its first two bytes (RFC 1952 section 2.3): its flags, and the current part.
    Gzip(u8, GzipPart),
    /// Deflate data, which is followed by a checksum; the value is the length of the checksum in bytes.
    Deflated(u8),
    Brotli,
    /// A checksum; the value is the number of remaining bytes. Another gzip member may follow.
    Checksum(u8),
    /// The encoded bytes are invalid.
    Broken,
    /// The bytes of the body are not encoded.
    Plain,
}

/// A part of the gzip header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GzipPart {
    /// Method, flags, time and operating system; the number of their bytes that were read.
    Fixed(u8),
    /// Length of the extra field; its first byte if that was read.
    ExtraLen(Option<u8>),
    Extra(u16),
    Name,
    Comment,
    /// The header checksum; the value is the number of remaining bytes.
    Check(u8),
}

type Brotli = BrotliState<StandardAlloc, StandardAlloc, StandardAlloc>;

/// The decoder of one of a body's codings.
#[derive(Default)]
struct Layer {
    coding: Option<Coding>,
    stage: Stage,
    /// First encoded bytes, buffered until there is output.
    held: [u8; HELD_BYTES],
    held_len: usize,
    /// True if the current gzip member has produced output.
    has_given: bool,
    /// True if the current gzip member follows another gzip member.
    is_again: bool,
    taken: usize,
    given: usize,
    /// Deflate decoder, reused for the next body.
    inflater: Option<Box<Decompress>>,
    brotli: Option<Box<Brotli>>,
}

/// The decoders of a body's codings, the outermost first.
#[derive(Default)]
pub(super) struct Unpacker {
    layers: [Layer; MOST_CODINGS],
    len: usize,
}

impl std::fmt::Debug for Unpacker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacker").field("len", &self.len).finish()
    }
}

impl Unpacker {
    /// Prepares for a body to which the sender applied `codings` in this order.
    pub fn begin(&mut self, codings: &[Coding]) {
        self.len = 0;
        for (layer, &coding) in self.layers.iter_mut().zip(codings.iter().rev()) {
            layer.begin(coding);
            self.len += 1;
        }
    }

    /// Returns true if bytes of the current body are to be decoded.
    pub fn is_packed(&self) -> bool {
        self.len > 0
    }

    /// Decodes bytes and appends the output to `into`, until `into` is full.
    pub fn push(&mut self, data: &[u8], into: &mut Memory) -> Result<(), Stopped> {
        push(&mut self.layers[..self.len], data, into)
    }

    /// Ends the body: bytes that were buffered to identify their format are passed on unchanged.
    pub fn finish(&mut self, into: &mut Memory) {
        for at in 0..self.len {
            let (layer, inner) = self.layers[at..self.len].split_at_mut(1);
            let (held, len) = layer[0].give_up();
            // A fault in these bytes was reported when they arrived.
            let _ = push(inner, &held[..len], into);
        }
        self.len = 0;
    }
}

/// Decodes the outermost coding of `layers`, and passes the output to the decoder of the next coding, or to `into`
/// after the last one.
fn push(layers: &mut [Layer], mut data: &[u8], into: &mut Memory) -> Result<(), Stopped> {
    let Some((layer, inner)) = layers.split_first_mut() else {
        into.push(data);
        return Ok(());
    };
    let mut piece = [0; PIECE_BYTES];
    let mut all = Ok(());
    while into.room() > 0 && layer.stage != Stage::Plain {
        let before = layer.stage;
        match layer.step(data, &mut piece) {
            Ok((taken, given)) => {
                data = &data[taken..];
                all = all.and(push(inner, &piece[..given], into));
                if (taken, given) == (0, 0) && layer.stage == before {
                    return all;
                }
            }
            Err(stopped) => {
                let (held, len) = layer.give_up();
                let inside = push(inner, &held[..len], into);
                all = all.and(inside).and(Err(stopped));
            }
        }
    }
    all.and(push(inner, data, into))
}

impl Layer {
    fn begin(&mut self, coding: Coding) {
        *self = Self {
            coding: Some(coding),
            stage: match coding {
                Coding::Brotli => Stage::Brotli,
                Coding::Gzip | Coding::Deflate => Stage::Begin,
            },
            inflater: self.inflater.take(),
            ..Self::default()
        };
    }

    /// Stops decoding: later bytes are passed on unchanged. Returns the buffered bytes.
    fn give_up(&mut self) -> ([u8; HELD_BYTES], usize) {
        self.stage = Stage::Plain;
        self.brotli = None;
        (self.held, std::mem::take(&mut self.held_len))
    }

    /// Decodes some of the bytes: returns the number of bytes consumed and the number of bytes produced. Both are 0
    /// when nothing is left to do.
    fn step(&mut self, data: &[u8], piece: &mut [u8]) -> Result<(usize, usize), Stopped> {
        let before = self.stage;
        let (taken, given) = match (before, data.first()) {
            (Stage::Broken, _) => return Err(Stopped::Broken),
            (Stage::Deflated(checksum), _) => self.inflate(data, piece, checksum),
            (Stage::Brotli, _) => self.unbrotli(data, piece),
            (Stage::Begin, Some(&byte)) => (usize::from(self.begin_with(byte)?), 0),
            (Stage::Gzip(flags, part), Some(&byte)) => {
                self.gzip_head(flags, part, byte);
                (1, 0)
            }
            (Stage::Checksum(left), Some(_)) => {
                self.stage = match left {
                    0 | 1 => Stage::Begin,
                    left => Stage::Checksum(left - 1),
                };
                (self.is_again, self.has_given) = (true, false);
                (1, 0)
            }
            _ => (0, 0),
        };
        self.taken += taken;
        self.given += given;
        self.has_given |= given > 0;
        if self.given > RATIO_FROM_BYTES && self.given / MOST_RATIO > self.taken {
            return Err(Stopped::Ratio);
        }
        if self.has_given || matches!(before, Stage::Checksum(_)) {
            self.held_len = 0;
        } else {
            let more = taken.min(HELD_BYTES - self.held_len);
            self.held[self.held_len..][..more].copy_from_slice(&data[..more]);
            self.held_len += more;
        }
        Ok((taken, given))
    }

    /// Identifies the format by its first two bytes; returns true if `byte` was consumed.
    fn begin_with(&mut self, byte: u8) -> Result<bool, Stopped> {
        if self.held_len == 0 {
            return Ok(true);
        }
        let first = [self.held[0], byte];
        let is_zlib = first[0] & 0x8f == 8 && u16::from_be_bytes(first).is_multiple_of(31);
        let (stage, is_taken) = match first {
            [0x1f, 0x8b] => (Stage::Gzip(0, GzipPart::Fixed(0)), true),
            _ if self.is_again => return Err(Stopped::Broken),
            _ if is_zlib => (Stage::Deflated(4), true),
            _ if self.coding == Some(Coding::Deflate) => (Stage::Deflated(0), false),
            _ => return Err(Stopped::Broken),
        };
        self.stage = stage;
        let inflater = self
            .inflater
            .get_or_insert_with(|| Box::new(Decompress::new(false)));
        inflater.reset(false);
        if !is_taken {
            // The first eight bits produce no output.
            let _ = inflater.decompress(&first[..1], &mut [], FlushDecompress::None);
        }
        Ok(is_taken)
    }

    /// Skips a byte of the gzip header.
    fn gzip_head(&mut self, mut flags: u8, part: GzipPart, byte: u8) {
        let next = match part {
            GzipPart::Fixed(7) => None,
            GzipPart::Fixed(at) => {
                if at == 1 {
                    flags = byte;
                }
                Some(GzipPart::Fixed(at + 1))
            }
            GzipPart::ExtraLen(None) => Some(GzipPart::ExtraLen(Some(byte))),
            GzipPart::ExtraLen(Some(low)) => match u16::from_le_bytes([low, byte]) {
                0 => None,
                len => Some(GzipPart::Extra(len)),
            },
            GzipPart::Extra(left) if left > 1 => Some(GzipPart::Extra(left - 1)),
            GzipPart::Name | GzipPart::Comment if byte != 0 => Some(part),
            GzipPart::Check(left) if left > 1 => Some(GzipPart::Check(left - 1)),
            _ => None,
        };
        if let Some(next) = next {
            self.stage = Stage::Gzip(flags, next);
            return;
        }
        // Each part that the flags announce appears once, in this order.
        let parts = [
            (4, GzipPart::ExtraLen(None)),
            (8, GzipPart::Name),
            (16, GzipPart::Comment),
            (2, GzipPart::Check(2)),
        ];
        let following = parts.into_iter().find(|(flag, _)| flags & flag != 0);
        self.stage = match following {
            Some((flag, part)) => Stage::Gzip(flags & !flag, part),
            None => Stage::Deflated(8),
        };
    }

    fn inflate(&mut self, data: &[u8], piece: &mut [u8], checksum: u8) -> (usize, usize) {
        let Some(inflater) = &mut self.inflater else {
            self.stage = Stage::Broken;
            return (0, 0);
        };
        let before = (inflater.total_in(), inflater.total_out());
        let status = inflater.decompress(data, piece, FlushDecompress::None);
        let taken = (inflater.total_in() - before.0) as usize;
        let given = (inflater.total_out() - before.1) as usize;
        match status {
            Ok(Status::StreamEnd) if checksum == 0 => self.stage = Stage::Plain,
            Ok(Status::StreamEnd) => self.stage = Stage::Checksum(checksum),
            Ok(Status::Ok | Status::BufError) => {}
            // The rest of the input is passed on unchanged, after the output of the bytes before it.
            Err(_) => {
                self.stage = Stage::Broken;
                return (0, given);
            }
        }
        (taken, given)
    }

    fn unbrotli(&mut self, data: &[u8], piece: &mut [u8]) -> (usize, usize) {
        let state = self.brotli.get_or_insert_with(|| {
            let memory = StandardAlloc::default;
            Box::new(BrotliState::new_strict(memory(), memory(), memory()))
        });
        let (mut taken, mut given, mut all) = (0, 0, 0);
        let (mut left, mut room) = (data.len(), piece.len());
        let result = BrotliDecompressStream(
            &mut left, &mut taken, data, &mut room, &mut given, piece, &mut all, state,
        );
        match result {
            BrotliResult::ResultSuccess => {
                self.stage = Stage::Plain;
                self.brotli = None;
            }
            BrotliResult::NeedsMoreInput | BrotliResult::NeedsMoreOutput => {}
            BrotliResult::ResultFailure => {
                self.stage = Stage::Broken;
                return (0, given);
            }
        }
        (taken, given)
    }
}
