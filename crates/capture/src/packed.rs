//! Bytes of captures compressed by zstd (RFC 8878): what is written in one go is a frame of its own, so that a file is
//! whole up to the frame that was written last, whoever is killed.

use std::io;
use std::path::Path;
use zstd::bulk::{Compressor, Decompressor};
use zstd::zstd_safe::{
    CParameter, compress_bound, find_frame_compressed_size, get_frame_content_size,
};

/// Ending of files of frames.
pub(crate) const ENDING: &str = ".zst";
/// The fastest of zstd's usual levels: what is captured has to be written as fast as it comes.
const LEVEL: i32 = 1;

/// Whether a file of that name is to be compressed.
pub(crate) fn is_wanted(path: &Path) -> bool {
    path.extension().is_some_and(|it| it == &ENDING[1..])
}

/// Makes frames.
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
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        let mut compressor = Compressor::new(LEVEL)?;
        // Damage is found by it, which nothing else in a capture does.
        compressor.set_parameter(CParameter::ChecksumFlag(true))?;
        Ok(Self {
            compressor,
            frame: Vec::new(),
        })
    }

    /// Makes a frame of all these bytes, which says how many they are.
    ///
    /// # Errors
    /// When there is no memory.
    pub(crate) fn pack(&mut self, bytes: &[u8]) -> io::Result<&[u8]> {
        self.frame.clear();
        self.frame.reserve(compress_bound(bytes.len()));
        self.compressor.compress_to_buffer(bytes, &mut self.frame)?;
        Ok(&self.frame)
    }
}

/// Reads frames. Comes from outside: nothing is believed.
pub(crate) struct Unpacker(Decompressor<'static>);

impl Unpacker {
    /// # Errors
    /// When there is no memory.
    pub(crate) fn new() -> io::Result<Self> {
        Decompressor::new().map(Self)
    }

    /// Unpacks frames, one after the other, to the start of `to`; how many bytes they hold.
    ///
    /// # Errors
    /// When they are damaged, or `to` has no room for them.
    pub(crate) fn unpack(&mut self, frames: &[u8], to: &mut [u8]) -> io::Result<usize> {
        self.0.decompress_to_buffer(frames, to)
    }
}

/// Bytes of the frame that begins there; none if none does, or it is not all there.
pub(crate) fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    find_frame_compressed_size(bytes).ok()
}

/// Bytes that a frame says it holds.
pub(crate) fn content_bytes(frame: &[u8]) -> Option<usize> {
    let bytes = get_frame_content_size(frame).ok().flatten()?;
    usize::try_from(bytes).ok()
}

/// Bytes that a frame of so many bytes takes at most.
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
        fn frames_read_back_and_none_that_is_cut_or_damaged_reads_as_other_bytes(
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
            // Some bits mean nothing, such as the unused one of a frame's descriptor (RFC 8878, 3.1.1.1.1.3).
            let unpacked = unpacker.unpack(&file, &mut to).ok();
            prop_assert!(unpacked.is_none_or(|it| it == whole.len() && to == whole));
        }

        #[test]
        fn bytes_from_outside_end_in_an_error_at_most(bytes: Vec<u8>, has_magic: bool) {
            let mut bytes = bytes;
            if has_magic {
                bytes.splice(..0, [0x28, 0xb5, 0x2f, 0xfd]);
            }
            let _ = (frame_bytes(&bytes), content_bytes(&bytes));
            let _ = Unpacker::new().unwrap().unpack(&bytes, &mut [0; 1000]);
        }
    }

    #[test]
    fn what_is_compressed_is_told_by_its_name() {
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
