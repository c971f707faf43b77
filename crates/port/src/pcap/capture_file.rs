//! A capture file, plain or compressed by zstd (RFC 8878), which is decompressed as it is read.
//!
//! Reads move forwards, with short steps back to a record that did not fit into a block. Therefore the last few MiB of
//! decompressed bytes stay in memory; a read further back restarts the decompression.

use super::index::Source;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, ErrorKind, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use zstd::stream::read::Decoder;

/// The magic number of a zstd frame, and the magic number of a skippable zstd frame without its lowest four bits.
const MAGIC: u32 = 0xfd2f_b528;
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;

/// The number of bytes decompressed at a time.
const STEP_BYTES: usize = 256 << 10;
/// The minimum number of decompressed bytes kept before the read position, and the maximum number kept in total.
const BACK_BYTES: usize = 2 << 20;
const KEPT_BYTES: usize = 8 << 20;

/// A capture file that is read as plain bytes, decompressed if necessary.
pub struct CaptureFile {
    content: Content,
    /// Position for sequential reads.
    at: u64,
}

enum Content {
    Plain(File),
    Zstd(RefCell<Unpacked>),
}

/// The most recently decompressed bytes.
struct Unpacked {
    file: File,
    decoder: Decoder<'static, BufReader<File>>,
    kept: Vec<u8>,
    /// Offset of the first stored byte in the decompressed file.
    start: u64,
    ended: bool,
}

impl std::fmt::Debug for CaptureFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CaptureFile").finish_non_exhaustive()
    }
}

/// Returns true if `start`, the first four bytes of a file, show that the file is compressed by zstd.
fn is_zstd(start: [u8; 4]) -> bool {
    let word = u32::from_le_bytes(start);
    word == MAGIC || word & !0xf == SKIPPABLE_MAGIC
}

impl CaptureFile {
    /// Opens a file, and detects its compression.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Self::of(File::open(path)?)
    }

    /// Makes a capture file from an open file, and detects its compression.
    ///
    /// # Errors
    /// The error that the operating system reported.
    pub fn of(file: File) -> io::Result<Self> {
        let mut start = [0; 4];
        let is_packed = match FileExt::read_exact_at(&file, &mut start, 0) {
            Ok(()) => is_zstd(start),
            // A file without random access, such as a pipe, is read sequentially; a file that is too short is not a
            // capture.
            Err(_) => false,
        };
        let content = match is_packed {
            true => Content::Zstd(RefCell::new(Unpacked::of(file)?)),
            false => Content::Plain(file),
        };
        Ok(Self { content, at: 0 })
    }
}

impl Source for CaptureFile {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        match &self.content {
            Content::Plain(file) => FileExt::read_at(file, bytes, offset),
            Content::Zstd(unpacked) => unpacked.borrow_mut().read_at(bytes, offset),
        }
    }
}

impl Read for CaptureFile {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.content {
            Content::Plain(file) => return file.read(bytes),
            Content::Zstd(unpacked) => unpacked.get_mut().read_at(bytes, self.at)?,
        };
        self.at += read as u64;
        Ok(read)
    }
}

impl Unpacked {
    fn of(file: File) -> io::Result<Self> {
        Ok(Self {
            decoder: Self::decoder(&file)?,
            file,
            kept: Vec::new(),
            start: 0,
            ended: false,
        })
    }

    /// Returns a decoder for the start of the file. It accepts a window of at most 128 MiB, as `zstd` does.
    fn decoder(file: &File) -> io::Result<Decoder<'static, BufReader<File>>> {
        let mut file = file.try_clone()?;
        file.rewind()?;
        Decoder::new(file)
    }

    fn read_at(&mut self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        if offset < self.start {
            self.decoder = Self::decoder(&self.file)?;
            self.kept.clear();
            (self.start, self.ended) = (0, false);
        }
        loop {
            let at = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
            if let Some(rest) = self.kept.get(at..)
                && (!rest.is_empty() || bytes.is_empty())
            {
                let n = rest.len().min(bytes.len());
                bytes[..n].copy_from_slice(&rest[..n]);
                return Ok(n);
            }
            if self.ended {
                return Ok(0);
            }
            self.forget_before(at);
            self.go_on()?;
        }
    }

    /// Removes buffered bytes that are far before the read position. `at` is the offset of this position from the first
    /// buffered byte.
    fn forget_before(&mut self, at: usize) {
        if self.kept.len() < KEPT_BYTES {
            return;
        }
        let surplus = at.saturating_sub(BACK_BYTES).min(self.kept.len());
        self.kept.drain(..surplus);
        self.start += surplus as u64;
    }

    fn go_on(&mut self) -> io::Result<()> {
        let before = self.kept.len();
        self.kept.resize(before + STEP_BYTES, 0);
        let read = loop {
            match self.decoder.read(&mut self.kept[before..]) {
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                read => break read,
            }
        };
        let read = match read {
            // The writer was killed within a frame, or is still writing.
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(0),
            read => read,
        };
        self.kept.truncate(before + *read.as_ref().unwrap_or(&0));
        self.ended = matches!(read, Ok(0));
        read.map(drop)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;
    use std::io::Write;

    /// Returns `bytes` as zstd frames, each of at most `part` bytes of input, one after the other.
    fn packed(bytes: &[u8], part: usize) -> Vec<u8> {
        let parts = bytes.chunks(part);
        parts
            .flat_map(|it| zstd::encode_all(it, 1).unwrap())
            .collect()
    }

    fn file_of(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file.rewind().unwrap();
        file
    }

    #[test]
    fn compressed_frames_are_concatenated_up_to_a_truncated_frame() {
        let bytes: Vec<u8> = (0..300_000_u32).flat_map(|it| it.to_le_bytes()).collect();
        let whole = packed(&bytes, 100_000);
        let mut read = Vec::new();
        let mut capture = CaptureFile::of(file_of(&whole)).unwrap();
        capture.read_to_end(&mut read).unwrap();
        assert!(read == bytes);
        read.clear();
        let cut = &whole[..whole.len() - 5];
        let mut capture = CaptureFile::of(file_of(cut)).unwrap();
        capture.read_to_end(&mut read).unwrap();
        assert!(
            read.len() >= 1_100_000 && bytes.starts_with(&read),
            "{}",
            read.len()
        );
        let mut wrong = whole;
        wrong[20] ^= 0xff;
        let mut capture = CaptureFile::of(file_of(&wrong)).unwrap();
        assert!(capture.read_to_end(&mut Vec::new()).is_err());
        for other in [&b""[..], b"abc", b"\n\r\r\nabcd"] {
            let mut capture = CaptureFile::of(file_of(other)).unwrap();
            let mut read = Vec::new();
            capture.read_to_end(&mut read).unwrap();
            assert_eq!(read, other);
        }
    }

    /// Reads at any offset and in any order return the bytes of the file.
    #[test]
    fn reads_at_any_offset_return_the_uncompressed_bytes() {
        let bytes: Vec<u8> = (0..3_000_000_u32)
            .flat_map(|it| it.wrapping_mul(77).to_le_bytes())
            .collect();
        let (plain, file) = (&bytes[..], file_of(&packed(&bytes, 1 << 20)));
        let place = (0..14_000_000_u64, 0..600_000_usize);
        let several = proptest::collection::vec(place, 1..12);
        proptest!(ProptestConfig::with_cases(12), |(places in several)| {
            let capture = CaptureFile::of(file.try_clone().unwrap()).unwrap();
            for (offset, len) in places {
                let (mut here, mut there) = (vec![0; len], vec![0; len]);
                let mut have = 0;
                while have < len {
                    match capture.read_at(&mut here[have..], offset + have as u64).unwrap() {
                        0 => break,
                        n => have += n,
                    }
                }
                prop_assert_eq!(have, plain.read_at(&mut there, offset).unwrap());
                prop_assert!(here == there);
            }
        });
    }
}
