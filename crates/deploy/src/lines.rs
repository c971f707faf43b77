//! Lines of what a process prints: whatever it prints, they go on until it ends.

use std::io::{BufRead, Read};

/// Longest line, bytes; what is longer comes in several.
const LONGEST: u64 = 16 << 20;

/// Reads the next line, without what ends it; none at the end. Bytes that are no text are shown as such.
pub(crate) fn next_line(reader: &mut impl BufRead) -> Option<String> {
    let mut line = Vec::new();
    match reader.by_ref().take(LONGEST).read_until(b'\n', &mut line) {
        Ok(0) | Err(_) => None,
        Ok(_) => Some(String::from_utf8_lossy(&line).trim_end().to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_text_or_no_line_ends_nothing() {
        let mut said = b"one\r\n\xff\xfe plugin\n".to_vec();
        said.resize(said.len() + LONGEST as usize + 3, b'x');
        said.extend(b"\nlast");
        let mut reader = &said[..];
        let lines: Vec<_> = std::iter::from_fn(|| next_line(&mut reader)).collect();
        assert_eq!(lines[..2], ["one", "\u{fffd}\u{fffd} plugin"]);
        assert_eq!(lines[2].len(), LONGEST as usize);
        assert_eq!(lines[3..], ["xxx", "last"]);
    }
}
