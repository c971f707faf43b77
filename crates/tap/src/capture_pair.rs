//! Reads two captures that cover the same time, in place of a wiretap at two places.

use super::{PlaceCounts, Seen};
use std::io::Read;
use std::path::{Path, PathBuf};
use taut_capture::filter::Filter;
use taut_capture::matching::Identify;
use taut_port::pcap::CaptureFile;
use taut_port::pcap::format::{Fault, Over, Scanner, Step};

/// Minimum number of bytes per read call.
const BLOCK_BYTES: usize = 1 << 20;

/// The reason why a capture cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RecordingError {
    /// A file cannot be read.
    #[error("{path}: {source}")]
    File {
        /// Path of the capture file.
        path: PathBuf,
        /// The error that the operating system reported.
        source: std::io::Error,
    },
    /// The file is no capture, or it is damaged.
    #[error("{path}: damaged after packet {number}: {fault}")]
    Damaged {
        /// Path of the capture file.
        path: PathBuf,
        /// Number of packets before the fault.
        number: u64,
        /// The fault in the file.
        fault: Fault,
    },
    /// The file ends within a packet, or before its first packet.
    #[error("{path}: truncated after packet {number}")]
    CutOff {
        /// Path of the capture file.
        path: PathBuf,
        /// Number of packets before the end of the file.
        number: u64,
    },
    /// A packet of a capture has no timestamp.
    #[error("{path}: packet {number} has no time stamp")]
    NoTime {
        /// Path of the capture file.
        path: PathBuf,
        /// Number of the packet, from 1.
        number: u64,
    },
}

/// Two captures that are read together, in time order.
pub struct RecordedTap {
    files: [Reader; 2],
    identify: Identify,
    filter: Option<Filter>,
    others: PlaceCounts,
}

impl RecordedTap {
    /// Opens two capture files of any format that taut reads: pcap and pcapng, of either byte order. A packet that is
    /// out of order by more than the uncertainty of the clock is matched as if it had been captured at another time.
    ///
    /// # Errors
    /// A file cannot be opened.
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

    /// Returns the packets of both files, in time order. `is_over` is called regularly, and ends the reading if it
    /// returns true.
    ///
    /// # Errors
    /// A file cannot be read or is no capture.
    pub fn each(
        &mut self,
        mut each: impl FnMut(Seen),
        is_over: impl Fn() -> bool,
    ) -> Result<(), RecordingError> {
        let mut next = [self.next(0)?, self.next(1)?];
        while !is_over() {
            let [a, b] = &next;
            // At equal times A is first, as packets pass it first.
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

    /// Returns the counts of frames that were not matched.
    pub fn others(&self) -> PlaceCounts {
        self.others
    }

    /// Returns the next packet to match from the file at index `place`; none at the end of the file.
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

/// A capture file that is read record by record.
pub(super) struct Reader {
    path: PathBuf,
    file: CaptureFile,
    scanner: Scanner,
    block: Vec<u8>,
    at: usize,
    /// Number of bytes to skip after the bytes in the block.
    skip: u64,
    number: u64,
    /// True if any byte of the file was read.
    begun: bool,
}

/// A frame, its length on the link in bytes, and its time in ns since 1970; none for a frame that is too long.
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

    /// Reads more bytes into the block; returns false at the end of the file.
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

    /// Returns the next frame; none at the end of the file.
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
                        // The scanner passes over a truncated frame from its header on, so the captured bytes must be
                        // in the block first.
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
