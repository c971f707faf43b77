//! Writes pcapng files whose frames carry comments, for captures of chosen packets.
//!
//! draft-ietf-opsawg-pcapng sections 4.3 (enhanced packet block) and 3.5 (option `opt_comment`).

use super::format::{ENHANCED_HEADER_BYTES, ENHANCED_PACKET};
use super::record::Format;
use std::io::{self, Write};

/// Option of any block: text for people.
const OPT_COMMENT: u16 = 1;

/// A frame and what is said about it.
#[derive(Debug, Clone, Copy)]
pub struct Annotated<'a> {
    /// Time at which the frame passed, nanoseconds since 1970.
    pub time_ns: u64,
    /// The bytes kept of it.
    pub frame: &'a [u8],
    /// Length of the frame on the wire.
    pub len_bytes: usize,
    /// Comment; nothing where empty.
    pub comment: &'a str,
}

/// Writes a whole file.
///
/// # Errors
/// What the writer says.
pub fn write_annotated<'a>(
    out: &mut impl Write,
    frames: impl IntoIterator<Item = Annotated<'a>>,
) -> io::Result<()> {
    out.write_all(&Format::Pcapng.start())?;
    let mut block = Vec::new();
    for frame in frames {
        block.clear();
        append(&mut block, &frame);
        out.write_all(&block)?;
    }
    Ok(())
}

fn append(to: &mut Vec<u8>, annotated: &Annotated<'_>) {
    // An option's length has 16 bits.
    let comment = &annotated.comment.as_bytes()[..annotated.comment.len().min(1 << 12)];
    let options_len = match comment.len() {
        0 => 0,
        len => 4 + len.next_multiple_of(4) + 4,
    };
    let kept = annotated.frame.len();
    let total = ENHANCED_HEADER_BYTES + kept.next_multiple_of(4) + options_len + 4;
    let mut put = |value: u32| to.extend_from_slice(&value.to_le_bytes());
    put(ENHANCED_PACKET);
    put(total as u32);
    // The only interface.
    put(0);
    put((annotated.time_ns >> 32) as u32);
    put(annotated.time_ns as u32);
    put(kept as u32);
    put(annotated.len_bytes.max(kept) as u32);
    to.extend_from_slice(annotated.frame);
    to.resize(to.len().next_multiple_of(4), 0);
    if options_len > 0 {
        to.extend(OPT_COMMENT.to_le_bytes());
        to.extend((comment.len() as u16).to_le_bytes());
        to.extend_from_slice(comment);
        to.resize(to.len().next_multiple_of(4), 0);
        // The end of the options.
        to.extend([0; 4]);
    }
    to.extend_from_slice(&(total as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::format::{Scanner, Step};
    use super::*;

    #[test]
    fn frames_with_comments_read_back_and_cut_ones_are_known_as_cut() {
        let frames = [
            (vec![1; 60], 60, "worst 1: 20 us"),
            (vec![2; 61], 61, ""),
            (vec![3; 62], 9000, "cut"),
            (vec![4; 63], 63, "µs, odd length"),
        ];
        let mut file = Vec::new();
        let annotated = frames
            .iter()
            .enumerate()
            .map(|(i, (frame, len, comment))| Annotated {
                time_ns: 1_700_000_000_000_000_000 + i as u64,
                frame,
                len_bytes: *len,
                comment,
            });
        write_annotated(&mut file, annotated).unwrap();
        let (mut scanner, mut at, mut found) = (Scanner::new(), 0, Vec::new());
        while at < file.len() {
            match scanner.step(&file[at..]).unwrap() {
                Step::Frame {
                    before,
                    len,
                    time_ns,
                    size,
                } => {
                    found.push((file[at + before], len, time_ns.unwrap() % 10));
                    at += size as usize;
                }
                Step::Pass { size, .. } => at += size as usize,
                Step::More(n) => panic!("{n} more at {at}"),
            }
        }
        assert_eq!(found, [(1, 60, 0), (2, 61, 1), (4, 63, 3)]);
        assert!(String::from_utf8_lossy(&file).contains("worst 1: 20 us"));
    }
}
