//! What two captures of the same time have recorded, as a tap at two places would have seen it.

use super::{PlaceCounts, Seen};
use std::io::Read;
use std::path::{Path, PathBuf};
use taut_capture::filter::Filter;
use taut_capture::matching::Identify;
use taut_port::pcap::CaptureFile;
use taut_port::pcap::format::{Fault, Over, Scanner, Step};

/// Bytes that are read at a time at least.
const BLOCK_BYTES: usize = 1 << 20;

/// Why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// The file system's reason.
    #[error("{path}: {source}")]
    File {
        /// Capture file.
        path: PathBuf,
        /// What is wrong.
        source: std::io::Error,
    },
    /// No capture, or a damaged one.
    #[error("{path}: damaged behind packet {number}: {fault}")]
    Damaged {
        /// Capture file.
        path: PathBuf,
        /// Packets before that.
        number: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// It ends within a packet, or in front of its first one.
    #[error("{path}: cut off behind packet {number}")]
    CutOff {
        /// Capture file.
        path: PathBuf,
        /// Packets before that.
        number: u64,
    },
    /// Packets without times.
    #[error("{path}: packet {number} has no time")]
    NoTime {
        /// Capture file.
        path: PathBuf,
        /// Its number, from 1.
        number: u64,
    },
}

/// Two captures read side by side.
pub struct RecordedTap {
    files: [Reader; 2],
    identify: Identify,
    filter: Option<Filter>,
    others: PlaceCounts,
}

impl RecordedTap {
    /// Opens two capture files of any format that taut reads: pcap and pcapng, of either byte order. What is written out of order by more
    /// than the clock is unsure by is matched as if it were of another time.
    ///
    /// # Errors
    /// When one cannot be opened.
    pub fn open(
        files: [&Path; 2],
        identify: Identify,
        filter: Option<Filter>,
    ) -> Result<Self, RecordingError> {
        let [a, b] = files;
        Ok(Self {
            files: [Reader::open(a)?, Reader::open(b)?],
            identify,
            filter,
            others: PlaceCounts::default(),
        })
    }

    /// Hands over all that both have, in the order of times. `is_over` is asked now and then whether that is enough.
    ///
    /// # Errors
    /// When a file cannot be read or is no capture.
    pub fn each(
        &mut self,
        mut each: impl FnMut(Seen),
        is_over: impl Fn() -> bool,
    ) -> Result<(), RecordingError> {
        let mut next = [self.next(0)?, self.next(1)?];
        while !is_over() {
            let [a, b] = &next;
            // At one moment A comes first, as packets do.
            let place = match (a, b) {
                (None, None) => return Ok(()),
                (Some(a), Some(b)) => usize::from(b.time_ns < a.time_ns),
                (a, _) => usize::from(a.is_none()),
            };
            if let Some(seen) = next[place].take() {
                each(seen);
            }
            next[place] = self.next(place)?;
        }
        Ok(())
    }

    /// Frames that took no part so far.
    pub fn others(&self) -> PlaceCounts {
        self.others
    }

    /// The next packet of a file that takes part.
    fn next(&mut self, place: usize) -> Result<Option<Seen>, RecordingError> {
        while let Some(found) = self.files[place].next()? {
            let Some((frame, wire_bytes, time_ns)) = found else {
                self.others.unidentified += 1;
                continue;
            };
            if let Some(filter) = &self.filter
                && !filter.matches(frame, wire_bytes)
            {
                self.others.filtered += 1;
                continue;
            }
            match self.identify.of(frame, wire_bytes) {
                Some(identity) => {
                    return Ok(Some(Seen {
                        identity,
                        time_ns,
                        at_b: place == 1,
                    }));
                }
                None => self.others.unidentified += 1,
            }
        }
        Ok(None)
    }
}

/// One capture, read record by record.
pub(super) struct Reader {
    path: PathBuf,
    file: CaptureFile,
    scanner: Scanner,
    block: Vec<u8>,
    at: usize,
    /// Bytes to pass over that are not in the block.
    skip: u64,
    number: u64,
    /// Something of it was read.
    begun: bool,
}

/// A frame, its length on the wire, its time; none of a frame that is too long to be looked at.
pub(super) type Found<'a> = Option<(&'a [u8], u32, u64)>;

impl Reader {
    pub(super) fn open(path: &Path) -> Result<Self, RecordingError> {
        let wrong = |source| RecordingError::File {
            path: path.to_path_buf(),
            source,
        };
        Ok(Self {
            path: path.to_path_buf(),
            file: CaptureFile::open(path).map_err(wrong)?,
            scanner: Scanner::new(),
            block: Vec::new(),
            at: 0,
            skip: 0,
            number: 0,
            begun: false,
        })
    }

    fn cut_off(&self) -> RecordingError {
        RecordingError::CutOff {
            path: self.path.clone(),
            number: self.number,
        }
    }

    /// Reads on; false at the end of the file.
    fn fill(&mut self) -> Result<bool, RecordingError> {
        self.block.drain(..self.at);
        self.at = 0;
        let mut part = (&mut self.file).take(BLOCK_BYTES as u64);
        let read = part.read_to_end(&mut self.block);
        let read = read.map_err(|source| RecordingError::File {
            path: self.path.clone(),
            source,
        })?;
        let passed = (self.skip as usize).min(self.block.len());
        self.at = passed;
        self.skip -= passed as u64;
        Ok(read > 0)
    }

    /// The next frame.
    pub(super) fn next(&mut self) -> Result<Option<Found<'_>>, RecordingError> {
        let (at, len, wire_bytes, time_ns) = loop {
            if self.skip > 0 || self.at == self.block.len() {
                if !self.fill()? {
                    return match self.begun && self.skip == 0 {
                        true => Ok(None),
                        false => Err(self.cut_off()),
                    };
                }
                continue;
            }
            let bytes = &self.block[self.at..];
            let step = self.scanner.step(bytes);
            let step = step.map_err(|fault| RecordingError::Damaged {
                path: self.path.clone(),
                number: self.number,
                fault,
            })?;
            let (size, found) = match step {
                Step::More(_) => {
                    if !self.fill()? {
                        return Err(self.cut_off());
                    }
                    continue;
                }
                Step::Frame {
                    before,
                    len,
                    time_ns,
                    size,
                } => (size, Some((before, len, len as u32, time_ns))),
                Step::Pass { over, size } => match over {
                    Over::NoFrame => (size, None),
                    Over::LongFrame => {
                        self.number += 1;
                        self.pass(size);
                        return Ok(Some(None));
                    }
                    Over::CutFrame {
                        before,
                        len,
                        whole_bytes,
                        time_ns,
                    } => {
                        // The scanner passes over it from its header on.
                        if bytes.len() < before + len {
                            if !self.fill()? {
                                return Err(self.cut_off());
                            }
                            continue;
                        }
                        (size, Some((before, len, whole_bytes, time_ns)))
                    }
                },
            };
            self.begun = true;
            let at = self.at;
            self.pass(size);
            let Some((before, len, wire_bytes, time_ns)) = found else {
                continue;
            };
            self.number += 1;
            let Some(time_ns) = time_ns else {
                return Err(RecordingError::NoTime {
                    path: self.path.clone(),
                    number: self.number,
                });
            };
            break (at + before, len, wire_bytes, time_ns);
        };
        Ok(Some(Some((&self.block[at..at + len], wire_bytes, time_ns))))
    }

    fn pass(&mut self, size: u64) {
        let here = size.min((self.block.len() - self.at) as u64);
        self.at += here as usize;
        self.skip = size - here;
    }
}
