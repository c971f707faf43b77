//! Encoding of capture files: the start of a file, and the header and padding of a frame.
//!
//! pcap with times in nanoseconds, and pcapng with one interface and times in nanoseconds. Both are little endian on
//! every machine, since every reader accepts either byte order.

use super::format::{
    BYTE_ORDER_MAGIC, ENHANCED_HEADER_BYTES, ENHANCED_PACKET, ETHERNET, FILE_HEADER_BYTES,
    IF_TSRESOL, INTERFACE_DESCRIPTION, NANOSECOND_MAGIC, RECORD_HEADER_BYTES, SECTION_HEADER,
};
use crate::frame_copy;

/// The maximum frame length (snap length) that is written into the header of the file, bytes.
const SNAP_BYTES: u32 = 262_144;

/// The format of the written file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Pcap,
    Pcapng,
}

impl Format {
    /// Returns the bytes at the start of a file.
    pub(super) fn start(self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Self::Pcap => {
                put(&mut bytes, NANOSECOND_MAGIC);
                bytes.extend([2, 0, 4, 0]);
                // Time zone and accuracy, which are always 0 in practice.
                put(&mut bytes, 0);
                put(&mut bytes, 0);
                put(&mut bytes, SNAP_BYTES);
                put(&mut bytes, u32::from(ETHERNET));
                debug_assert_eq!(bytes.len(), FILE_HEADER_BYTES);
            }
            Self::Pcapng => {
                put(&mut bytes, SECTION_HEADER);
                put(&mut bytes, 28);
                put(&mut bytes, BYTE_ORDER_MAGIC);
                bytes.extend([1, 0, 0, 0]);
                // The section length is unspecified.
                bytes.extend([0xff; 8]);
                put(&mut bytes, 28);
                put(&mut bytes, INTERFACE_DESCRIPTION);
                put(&mut bytes, 32);
                bytes.extend(ETHERNET.to_le_bytes());
                bytes.extend([0, 0]);
                put(&mut bytes, SNAP_BYTES);
                // Times in units of 10^-9 seconds, and the end of the options.
                bytes.extend(IF_TSRESOL.to_le_bytes());
                bytes.extend([1, 0, 9, 0, 0, 0]);
                put(&mut bytes, 0);
                put(&mut bytes, 32);
            }
        }
        bytes
    }

    /// Returns the number of bytes that a frame of `len` bytes takes in the file.
    #[inline(always)]
    pub(super) fn record_bytes(self, len: usize) -> usize {
        match self {
            Self::Pcap => RECORD_HEADER_BYTES + len,
            Self::Pcapng => ENHANCED_HEADER_BYTES + len.next_multiple_of(4) + 4,
        }
    }

    /// Appends a frame captured at `time_ns` since 1970.
    #[inline(always)]
    pub(super) fn append(self, to: &mut Vec<u8>, frame: &[u8], time_ns: u64) {
        let len = frame.len() as u32;
        match self {
            Self::Pcap => {
                put(to, (time_ns / 1_000_000_000) as u32);
                put(to, (time_ns % 1_000_000_000) as u32);
                put(to, len);
                put(to, len);
                frame_copy::append(frame, to);
            }
            Self::Pcapng => {
                let total = self.record_bytes(frame.len()) as u32;
                put(to, ENHANCED_PACKET);
                put(to, total);
                // The file has only this interface.
                put(to, 0);
                put(to, (time_ns >> 32) as u32);
                put(to, time_ns as u32);
                put(to, len);
                put(to, len);
                frame_copy::append(frame, to);
                let padding = frame.len().next_multiple_of(4) - frame.len();
                to.extend_from_slice(&[0; 3][..padding]);
                put(to, total);
            }
        }
    }

    /// Returns the size of the complete records among the first `written` bytes of `records`, the number of their
    /// frames, and the sum of the frames' lengths.
    pub(super) fn whole(self, records: &[u8], written: usize) -> (usize, u64, u64) {
        let (mut at, mut frames, mut frame_bytes) = (0, 0, 0);
        let length_at = match self {
            Self::Pcap => 8,
            Self::Pcapng => 20,
        };
        while let Some(len) = records
            .get(at + length_at..)
            .and_then(|rest| rest.first_chunk())
        {
            let len = u32::from_le_bytes(*len) as usize;
            let next = at + self.record_bytes(len);
            if next > written {
                break;
            }
            (at, frames, frame_bytes) = (next, frames + 1, frame_bytes + len as u64);
        }
        (at, frames, frame_bytes)
    }
}

#[inline(always)]
fn put(to: &mut Vec<u8>, value: u32) {
    to.extend_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::format::{Scanner, Step};
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Written frames are read back with the same bytes and times.
        #[test]
        fn written_frames_are_read_back_unchanged(
            lengths in proptest::collection::vec(0_usize..3000, 0..20),
            start_ns in 0_u64..(1 << 62),
        ) {
            // Seconds in pcap have 32 bits.
            let start_ns = start_ns % (u64::from(u32::MAX) * 1_000_000_000);
            for format in [Format::Pcap, Format::Pcapng] {
                let mut file = format.start();
                let frames: Vec<Vec<u8>> = lengths.iter().map(|&n| vec![n as u8; n]).collect();
                for (i, frame) in frames.iter().enumerate() {
                    let before = file.len();
                    format.append(&mut file, frame, start_ns + i as u64);
                    prop_assert_eq!(file.len() - before, format.record_bytes(frame.len()));
                }
                let (mut scanner, mut at, mut found) = (Scanner::new(), 0, Vec::new());
                while at < file.len() {
                    match scanner.step(&file[at..]).unwrap() {
                        Step::Frame { before, len, time_ns, size } => {
                            found.push((file[at + before..at + before + len].to_vec(), time_ns));
                            at += size as usize;
                        }
                        Step::Pass { size, .. } => at += size as usize,
                        Step::More(n) => panic!("{n} more at {at}"),
                    }
                }
                let want: Vec<_> =
                    frames.into_iter().zip(start_ns..).map(|(f, t)| (f, Some(t))).collect();
                prop_assert!(found == want);
            }
        }

        /// For any number of written bytes, the complete part ends at a record boundary.
        #[test]
        fn a_partial_write_counts_only_complete_records(
            lengths in proptest::collection::vec(0_usize..200, 1..20),
            part in 0.0..1.0_f64,
        ) {
            for format in [Format::Pcap, Format::Pcapng] {
                let (mut records, mut ends) = (Vec::new(), vec![0]);
                for &n in &lengths {
                    format.append(&mut records, &vec![0xff; n], 1);
                    ends.push(records.len());
                }
                let written = (records.len() as f64 * part) as usize;
                let (bytes, frames, frame_bytes) = format.whole(&records, written);
                let want = ends.iter().rposition(|&end| end <= written).unwrap();
                prop_assert_eq!(bytes, ends[want]);
                prop_assert_eq!(frames as usize, want);
                prop_assert_eq!(frame_bytes as usize, lengths[..want].iter().sum::<usize>());
            }
        }
    }
}
