//! Writing of packets with comments to pcapng files, and of files of selected packets.
//!
//! draft-ietf-opsawg-pcapng sections 4.3 (enhanced packet block) and 3.5 (option `opt_comment`).

use super::format::{ENHANCED_HEADER_BYTES, ENHANCED_PACKET};
use super::record::Format;
use std::io::{self, Write};

/// The code of the option that adds a comment to any pcapng block (draft-ietf-opsawg-pcapng section 3.5).
pub const OPT_COMMENT: u16 = 1;
/// The maximum length in bytes of the text of a pcapng option; longer texts are truncated.
const LONGEST_TEXT_BYTES: usize = 4096;

/// A frame and its comment.
#[derive(Debug, Clone, Copy)]
pub struct Annotated<'a> {
    /// Capture time of the frame, nanoseconds since 1970.
    pub time_ns: u64,
    /// Captured bytes of the frame.
    pub frame: &'a [u8],
    /// Length of the frame on the wire.
    pub len_bytes: usize,
    /// Comment on the frame; an empty one is not written.
    pub comment: &'a str,
}

/// Writes a pcapng file with the given frames and their comments.
///
/// # Errors
/// The error with which writing to `out` failed.
pub fn write_annotated<'a>(
    out: &mut impl Write,
    frames: impl IntoIterator<Item = Annotated<'a>>,
) -> io::Result<()> {
    out.write_all(&Format::Pcapng.start())?;
    let mut block = Vec::new();
    for frame in frames {
        block.clear();
        let wire_bytes = frame.len_bytes as u32;
        // The file has only this interface.
        append_packet(
            &mut block,
            0,
            frame.time_ns,
            frame.frame,
            wire_bytes,
            &[frame.comment],
        );
        out.write_all(&block)?;
    }
    Ok(())
}

/// Returns the number of bytes that [`append_packet`] writes for a frame with `kept` captured bytes.
#[inline]
pub fn packet_bytes(kept: usize, comments: &[&str]) -> usize {
    let comments = comments.iter().map(|it| cut(it, LONGEST_TEXT_BYTES));
    let options: usize = comments
        .filter(|it| !it.is_empty())
        .map(|it| 4 + it.len().next_multiple_of(4))
        .sum();
    // A list of options ends with an end marker of 4 bytes.
    let end = if options == 0 { 0 } else { 4 };
    ENHANCED_HEADER_BYTES + kept.next_multiple_of(4) + options + end + 4
}

/// Appends an enhanced packet block (draft-ietf-opsawg-pcapng section 4.3) of the interface with the given number.
/// Empty comments are skipped.
#[inline]
pub fn append_packet(
    to: &mut Vec<u8>,
    interface: u32,
    time_ns: u64,
    frame: &[u8],
    wire_bytes: u32,
    comments: &[&str],
) {
    let kept = frame.len() as u32;
    let total = packet_bytes(frame.len(), comments) as u32;
    let mut head = [0; ENHANCED_HEADER_BYTES];
    let words = [
        ENHANCED_PACKET,
        total,
        interface,
        (time_ns >> 32) as u32,
        time_ns as u32,
        kept,
        wire_bytes.max(kept),
    ];
    for (place, word) in head.chunks_exact_mut(4).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
    to.extend_from_slice(&head);
    to.extend_from_slice(frame);
    to.extend_from_slice(&[0; 3][..frame.len().next_multiple_of(4) - frame.len()]);
    if total as usize > packet_bytes(frame.len(), &[]) {
        for comment in comments {
            append_text(to, OPT_COMMENT, comment);
        }
        // The end marker of the options.
        to.extend_from_slice(&[0; 4]);
    }
    to.extend_from_slice(&total.to_le_bytes());
}

/// Appends a text option of a pcapng block (draft-ietf-opsawg-pcapng section 3.5), truncated to the maximum length; an
/// empty text is skipped.
pub fn append_text(to: &mut Vec<u8>, code: u16, text: &str) {
    if !text.is_empty() {
        append_option(to, code, cut(text, LONGEST_TEXT_BYTES).as_bytes());
    }
}

/// Appends an option of a pcapng block (draft-ietf-opsawg-pcapng section 3.5). Its value has at most 65,535 bytes.
pub fn append_option(to: &mut Vec<u8>, code: u16, value: &[u8]) {
    to.extend(code.to_le_bytes());
    to.extend((value.len() as u16).to_le_bytes());
    to.extend_from_slice(value);
    to.extend_from_slice(&[0; 3][..value.len().next_multiple_of(4) - value.len()]);
}

/// Returns the start of a text, truncated to at most `most_bytes` bytes.
pub fn cut(text: &str, most_bytes: usize) -> &str {
    let mut len = text.len().min(most_bytes);
    while !text.is_char_boundary(len) {
        len -= 1;
    }
    &text[..len]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::format::{Scanner, Step};
    use super::*;

    #[test]
    fn commented_frames_are_read_back_and_truncated_frames_are_marked() {
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
