//! Reads the lines of a process's output until the output ends; invalid UTF-8 and long lines cause no error.

use std::io::{BufRead, Read};

/// Longest line, bytes; longer ones are split.
const LONGEST: u64 = 16 << 20;

/// Reads the next line, without its line end; none at the end of the output. Invalid UTF-8 is replaced.
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
    fn the_line_reader_continues_after_invalid_utf8_and_long_lines() {
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
