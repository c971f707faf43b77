//! Reads a capture block by block and notes where its frames lie, when they are due, and what was wrong.
//!
//! Each block starts with a record: what did not fit into the last one is read again, not copied.

use super::format::{Fault, Over, Scanner, Step};
use super::link::{NoFrame, as_ethernet};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Frames noted of one block at most: a block of the shortest Ethernet frames.
pub const ENTRIES: usize = 8192;

/// Bytes that can be read at any place.
pub trait Source {
    /// Reads at `offset`; 0 at the end.
    ///
    /// # Errors
    /// What the system says.
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

/// Entry of the index: where one frame lies and when it is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Bytes from the start of the block.
    pub at: u32,
    /// Bytes of the frame.
    pub len: u16,
    /// Bytes before it that are its record's header, which nobody needs any more.
    pub headroom: u16,
    /// Nanoseconds after the first frame of all; times that run backwards are due at once.
    pub due_ns: u64,
    /// Time of capture, ns since 1970; 0 where the file does not say.
    pub time_ns: u64,
}

/// End of a capture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The capture ends after its last record.
    Whole,
    /// The capture ends in the middle of a record, which starts at this byte.
    Truncated(u64),
    /// Something at this byte cannot be right.
    Damaged(u64, Fault),
    /// The system could not read at this byte.
    Unreadable(u64, String),
}

/// Content of one block.
#[derive(Debug, Default)]
pub struct Filled {
    /// Frames of the block, in order.
    pub entries: Vec<Entry>,
    /// Frames passed over because only their beginning was captured.
    pub cut_frames: u64,
    /// Frames passed over because they are too long.
    pub long_frames: u64,
    /// Packets passed over because they have no place in an Ethernet frame.
    pub other_frames: u64,
    /// End of the capture; set in the last block.
    pub end: Option<End>,
}

/// Goes through a source, `rounds` times.
#[derive(Debug)]
pub struct Index<S> {
    source: S,
    scanner: Scanner,
    /// Offset of the next record, in bytes from the start of the source.
    offset: u64,
    /// Offset of the record before it.
    last_record: u64,
    /// Rounds that are left, this one included.
    rounds: u64,
    /// Frames found in this round.
    found: u64,
    /// Time of the first frame of a round.
    first_ns: Option<u64>,
    /// Due time at which this round starts.
    round_ns: u64,
    /// Due time of the last frame.
    last_ns: u64,
}

impl<S: Source> Index<S> {
    /// The index of `source`, which is gone through `rounds` times, one after the other.
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

    /// Reads the next block and notes its frames in `entries`, which it empties first. `block` has to be
    /// at least [`super::format::WINDOW_BYTES`] long.
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

    /// Reads as much as there is, up to the end of `block`.
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

    /// Begins the next round after the last record, or returns the end.
    fn next_round(&mut self) -> Option<End> {
        // A record that was passed over may claim to reach further than the source.
        match self.source.read_at(&mut [0], self.offset - 1) {
            Ok(0) => return Some(End::Truncated(self.last_record)),
            Ok(_) => {}
            Err(error) => return Some(End::Unreadable(self.offset, error.to_string())),
        }
        self.rounds -= 1;
        // Nothing but passed-over records will not be more the next time.
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

    /// Returns every frame of `file` with its due time, found in blocks of `block_bytes`, and the end.
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
    fn times_count_from_the_first_frame_and_never_run_back() {
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
    fn what_cannot_be_read_is_the_end() {
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
        /// Where blocks begin and end makes no difference, to good files and to damaged ones.
        #[test]
        fn blocks_of_every_size_show_the_same_frames(
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
