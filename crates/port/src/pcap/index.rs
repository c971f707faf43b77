//! The index of a capture, made block by block: the positions of frames, their intended send times, and errors.
//!
//! Each block starts at the start of a record: a record that did not fit into the previous block is read again, not
//! copied.

use super::format::{Fault, Over, Scanner, Step};
use super::link::{NoFrame, as_ethernet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The maximum number of frames indexed per block: the number of shortest Ethernet frames in a block.
pub const ENTRIES: usize = 8192;

/// A source of bytes that can be read at any offset.
pub trait Source {
    /// Reads bytes from `offset` on into `bytes`; returns their number, 0 at the end of the source.
    ///
    /// # Errors
    /// The error that the operating system reported.
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize>;
}

impl Source for File {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(self, bytes, offset)
    }
}

impl Source for &[u8] {
    fn read_at(&self, bytes: &mut [u8], offset: u64) -> io::Result<usize> {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..))
            .unwrap_or_default();
        let n = rest.len().min(bytes.len());
        bytes[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }
}

/// An entry of the index: the position of one frame and its intended send time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Offset of the frame from the start of the block, bytes.
    pub at: u32,
    /// Length of the frame, bytes.
    pub len: u16,
    /// Length of the record's header in front of the frame, which may be overwritten, bytes.
    pub headroom: u16,
    /// Intended send time, ns after the first frame of the file. A frame with a capture time before that of an earlier
    /// frame is sent immediately after that frame.
    pub due_ns: u64,
    /// Capture time, ns since 1970; 0 if the file has none.
    pub time_ns: u64,
}

/// The reason why a capture ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The capture ends after its last record, which is complete.
    Whole,
    /// The capture ends within a record; the value is the offset at which the record starts.
    Truncated(u64),
    /// The capture contains invalid bytes; the value is their offset.
    Damaged(u64, Fault),
    /// The system could not read from the capture; the value is the offset at which it failed.
    Unreadable(u64, String),
}

/// The content of one block.
#[derive(Debug, Default)]
pub struct Filled {
    /// Frames of the block, in order.
    pub entries: Vec<Entry>,
    /// Number of frames skipped because they are truncated.
    pub cut_frames: u64,
    /// Number of frames skipped because they are too long.
    pub long_frames: u64,
    /// Number of packets skipped because they cannot be converted to Ethernet.
    pub other_frames: u64,
    /// Reason why the capture ends; None in all blocks but the last.
    pub end: Option<End>,
}

/// An index over a source that is read `rounds` times.
#[derive(Debug)]
pub struct Index<S> {
    source: S,
    scanner: Scanner,
    /// Offset of the next record, in bytes from the start of the source.
    offset: u64,
    /// Offset of the previous record, in bytes from the start of the source.
    last_record: u64,
    /// Number of remaining passes over the source, including the current one.
    rounds: u64,
    /// Number of frames found in the current pass.
    found: u64,
    /// Capture time of the first frame of a pass; None before that frame.
    first_ns: Option<u64>,
    /// Send time at which this pass starts, ns after the first frame of the first pass.
    round_ns: u64,
    /// Send time of the last frame, ns after the first frame of the first pass.
    last_ns: u64,
}

impl<S: Source> Index<S> {
    /// Makes an index of `source`, which is read `rounds` times.
    pub fn new(source: S, rounds: u64) -> Self {
        Self {
            source,
            scanner: Scanner::of_packets(),
            offset: 0,
            last_record: 0,
            rounds,
            found: 0,
            first_ns: None,
            round_ns: 0,
            last_ns: 0,
        }
    }

    /// Reads the next part of the source into `block`, and replaces `entries` by the frames found there. `block` must
    /// be at least [`super::format::WINDOW_BYTES`] long.
    pub fn fill(&mut self, block: &mut [u8], mut entries: Vec<Entry>) -> Filled {
        entries.clear();
        let mut filled = Filled {
            entries,
            ..Filled::default()
        };
        let have = match self.read(block) {
            Ok(have) => have,
            Err(error) => {
                filled.end = Some(End::Unreadable(self.offset, error.to_string()));
                return filled;
            }
        };
        let at_end = have < block.len();
        let mut at = 0;
        while filled.entries.len() < ENTRIES {
            let rest = &block[at.min(have)..have];
            if at_end && rest.is_empty() && self.offset > 0 {
                filled.end = self.next_round();
                break;
            }
            let step = match self.scanner.step(rest) {
                Ok(step) => step,
                Err(fault) => {
                    filled.end = Some(End::Damaged(self.offset, fault));
                    break;
                }
            };
            let size = match step {
                Step::More(_) if at_end => {
                    filled.end = Some(End::Truncated(self.offset));
                    break;
                }
                Step::More(_) => break,
                Step::Frame {
                    before,
                    len,
                    time_ns,
                    size,
                } => {
                    let due_ns = self.due(time_ns);
                    let record = &mut block[at..at + before + len];
                    match as_ethernet(self.scanner.link(), record, before) {
                        Ok((before, len)) => {
                            self.found += 1;
                            filled.entries.push(Entry {
                                at: (at + before) as u32,
                                len: len as u16,
                                headroom: before as u16,
                                due_ns,
                                time_ns: time_ns.unwrap_or_default(),
                            });
                        }
                        Err(NoFrame::Other) => filled.other_frames += 1,
                        Err(NoFrame::TooLong) => filled.long_frames += 1,
                    }
                    size
                }
                Step::Pass { over, size } => {
                    filled.cut_frames += u64::from(matches!(over, Over::CutFrame { .. }));
                    filled.long_frames += u64::from(over == Over::LongFrame);
                    size
                }
            };
            self.last_record = self.offset;
            self.offset += size;
            at += size as usize;
            if at >= have && !at_end {
                break;
            }
        }
        filled
    }

    /// Reads from the current offset until `block` is full or the source ends; returns the number of bytes.
    fn read(&self, block: &mut [u8]) -> io::Result<usize> {
        let mut have = 0;
        while have < block.len() {
            match self
                .source
                .read_at(&mut block[have..], self.offset + have as u64)
            {
                Ok(0) => break,
                Ok(n) => have += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(have)
    }

    /// Begins another pass over the source, after its last record was read; returns the reason for the end if no pass
    /// is left.
    fn next_round(&mut self) -> Option<End> {
        // A skipped record may claim to extend beyond the source.
        match self.source.read_at(&mut [0], self.offset - 1) {
            Ok(0) => return Some(End::Truncated(self.last_record)),
            Ok(_) => {}
            Err(error) => return Some(End::Unreadable(self.offset, error.to_string())),
        }
        self.rounds -= 1;
        // A source with only skipped records has no frames in the next round either.
        if self.rounds == 0 || self.found == 0 {
            return Some(End::Whole);
        }
        self.scanner = Scanner::of_packets();
        self.offset = 0;
        self.last_record = 0;
        self.found = 0;
        self.first_ns = None;
        self.round_ns = self.last_ns;
        None
    }

    fn due(&mut self, time_ns: Option<u64>) -> u64 {
        if let Some(time) = time_ns {
            let first = *self.first_ns.get_or_insert(time);
            let due = self.round_ns.saturating_add(time.saturating_sub(first));
            self.last_ns = self.last_ns.max(due);
        }
        self.last_ns
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::format::WINDOW_BYTES;
    use super::super::record::Format;
    use super::*;
    use proptest::prelude::*;

    /// Returns every frame of `file` with its send time, found in blocks of `block_bytes`, and the reason why the
    /// capture ends.
    fn frames(file: &[u8], rounds: u64, block_bytes: usize) -> (Vec<(Vec<u8>, u64)>, End) {
        let mut index = Index::new(file, rounds);
        let (mut block, mut found) = (vec![0; block_bytes], Vec::new());
        loop {
            let filled = index.fill(&mut block, Vec::new());
            for entry in &filled.entries {
                let at = entry.at as usize;
                let bytes = block[at..at + usize::from(entry.len)].to_vec();
                found.push((bytes, entry.due_ns));
            }
            if let Some(end) = filled.end {
                return (found, end);
            }
        }
    }

    #[test]
    fn send_times_start_at_the_first_frame_and_never_decrease() {
        let mut file = Format::Pcap.start();
        for time_ns in [5_000, 5_100, 4_000, 5_300] {
            Format::Pcap.append(&mut file, &[1; 60], time_ns);
        }
        let (found, end) = frames(&file, 2, WINDOW_BYTES);
        let due: Vec<_> = found.iter().map(|(_, due_ns)| *due_ns).collect();
        assert_eq!(due, [0, 100, 100, 300, 300, 400, 400, 600]);
        assert_eq!(end, End::Whole);
    }

    #[test]
    fn a_read_error_ends_the_capture() {
        struct Broken;
        impl Source for Broken {
            fn read_at(&self, _: &mut [u8], _: u64) -> io::Result<usize> {
                Err(io::Error::other("worn out"))
            }
        }
        let filled = Index::new(Broken, 1).fill(&mut [0; WINDOW_BYTES], Vec::new());
        assert_eq!(filled.end, Some(End::Unreadable(0, "worn out".to_string())));
    }

    proptest! {
        /// Block boundaries make no difference, for valid and for damaged files.
        #[test]
        fn the_block_size_does_not_change_the_frames_read(
            lengths in proptest::collection::vec(0_usize..16_384, 1..40),
            pcapng: bool,
            rounds in 1_u64..3,
            cut in 0.0..1.2_f64,
            damage in proptest::option::of((0.0..1.0_f64, any::<u8>())),
            block_bytes in WINDOW_BYTES..4 * WINDOW_BYTES,
        ) {
            let format = if pcapng { Format::Pcapng } else { Format::Pcap };
            let mut file = format.start();
            for (i, &len) in lengths.iter().enumerate() {
                format.append(&mut file, &vec![i as u8; len], i as u64 * 1000);
            }
            let whole = file.len();
            file.truncate((whole as f64 * cut) as usize);
            if let Some((at, value)) = damage && !file.is_empty() {
                let at = (file.len() as f64 * at) as usize;
                file[at] = value;
            }
            let (found, end) = frames(&file, rounds, block_bytes);
            let (at_once, same_end) = frames(&file, rounds, 4 << 20);
            prop_assert!(found == at_once);
            prop_assert_eq!(&end, &same_end);
            if file.len() == whole && damage.is_none() {
                prop_assert_eq!(end, End::Whole);
                prop_assert_eq!(found.len() as u64, lengths.len() as u64 * rounds);
                for ((bytes, _), (i, &len)) in found.iter().zip(lengths.iter().enumerate()) {
                    prop_assert!(*bytes == vec![i as u8; len]);
                }
            }
        }
    }
}
