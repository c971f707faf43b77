//! Capture files compressed by zstd (RFC 8878): each write is a frame of its own. A file is complete up to the last
//! frame that was written, even if the writer is killed.

use std::io;
use std::path::Path;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{
    CParameter, compress_bound, find_frame_compressed_size, get_frame_content_size,
};

/// Suffix of the names of compressed files.
pub(crate) const ENDING: &str = ".zst";
/// Compression level: the fastest of zstd's positive levels, as captured packets must be written as fast as they
/// arrive.
const LEVEL: i32 = 1;

/// Returns true if the file name ends in [`ENDING`], so that the file is compressed.
pub(crate) fn is_wanted(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == &ENDING[1..])
}

/// A compressor that makes zstd frames.
pub(crate) struct Packer {
    compressor: Compressor<'static>,
    frame: Vec<u8>,
}

impl std::fmt::Debug for Packer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packer").finish_non_exhaustive()
    }
}

impl Packer {
    /// Creates a compressor.
    ///
    /// # Errors
    /// Returns an error if there is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        let mut compressor = Compressor::new(LEVEL)?;
        // The checksum is needed because nothing else in a capture file detects damage.
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(Self {
            compressor,
            frame: Vec::new(),
        })
    }

    /// Compresses all bytes into one frame, whose header contains the number of bytes.
    ///
    /// # Errors
    /// Returns an error if there is no memory.
    pub(crate) fn pack(&mut self, bytes: &[u8]) -> io::Result<&[u8]> {
        self.frame.clear();
        self.frame.reserve(compress_bound(bytes.len()));
        self.compressor.compress_to_buffer(bytes, &mut self.frame)?;
        Ok(&self.frame)
    }
}

/// A decompressor of zstd frames. The compressed bytes are untrusted.
pub(crate) struct Unpacker(Decompressor<'static>);

impl Unpacker {
    /// Creates a decompressor.
    ///
    /// # Errors
    /// Returns an error if there is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        Decompressor::new().map(Self)
    }

    /// Decompresses successive frames to the start of `to`; returns the number of decompressed bytes.
    ///
    /// # Errors
    /// Returns an error if the frames are damaged, or do not fit `to`.
    pub(crate) fn unpack(&mut self, frames: &[u8], to: &mut [u8]) -> io::Result<usize> {
        self.0.decompress_to_buffer(frames, to)
    }
}

/// Returns the length of the zstd frame at the start of `bytes`; `None` if there is no frame, or the frame is
/// incomplete.
pub(crate) fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    find_frame_compressed_size(bytes).ok()
}

/// Returns the number of content bytes that a zstd frame's header states; `None` if there is none.
pub(crate) fn content_bytes(frame: &[u8]) -> Option<usize> {
    let bytes = get_frame_content_size(frame).ok().flatten()?;
    usize::try_from(bytes).ok()
}

/// Returns the maximum length of a zstd frame with the given number of content bytes.
pub(crate) fn most_frame_bytes(bytes: usize) -> usize {
    compress_bound(bytes)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn zstd_frames_decompress_correctly_or_fail_when_damaged(
            parts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 1..3000), 1..5),
            flip: prop::sample::Index,
            bit in 0_u32..8,
        ) {
            let mut packer = Packer::new().unwrap();
            let mut file = Vec::new();
            for part in &parts {
                let frame = packer.pack(part).unwrap();
                prop_assert_eq!(content_bytes(frame), Some(part.len()));
                prop_assert!(frame.len() <= most_frame_bytes(part.len()));
                file.extend(frame);
            }
            let whole = parts.concat();
            let mut unpacker = Unpacker::new().unwrap();
            let mut to = vec![0; whole.len()];
            prop_assert_eq!(unpacker.unpack(&file, &mut to).unwrap(), whole.len());
            prop_assert!(to == whole);
            to.pop();
            prop_assert!(unpacker.unpack(&file, &mut to).is_err());
            let (mut at, mut frames) = (0, 0);
            while let Some(size) = frame_bytes(&file[at..]) {
                prop_assert!(size == 1 || frame_bytes(&file[at..at + size - 1]).is_none());
                (at, frames) = (at + size, frames + 1);
            }
            prop_assert_eq!((at, frames), (file.len(), parts.len()));
            let flip = flip.index(file.len());
            file[flip] ^= 1_u8 << bit;
            to.push(0);
            // A changed bit may have no effect, such as the unused bit of a frame's descriptor (RFC 8878, 3.1.1.1.1.3).
            let unpacked = unpacker.unpack(&file, &mut to).ok();
            prop_assert!(unpacked.is_none_or(|it| it == whole.len() && to == whole));
        }

        #[test]
        fn untrusted_bytes_cause_an_error_and_no_panic(bytes: Vec<u8>, has_magic: bool) {
            let mut bytes = bytes;
            if has_magic {
                bytes.splice(..0, [0x28, 0xb5, 0x2f, 0xfd]);
            }
            let _ = (frame_bytes(&bytes), content_bytes(&bytes));
            let _ = Unpacker::new().unwrap().unpack(&bytes, &mut [0; 1000]);
        }
    }

    #[test]
    fn a_file_name_that_ends_in_zst_selects_compression() {
        for (name, wanted) in [
            ("a.pcapng.zst", true),
            ("a.zst", true),
            ("a.pcapng", false),
            ("zst", false),
        ] {
            assert_eq!(is_wanted(Path::new(name)), wanted, "{name}");
        }
    }
}
