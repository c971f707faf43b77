//! What settings have in common, in files and on command lines: how times are written, and how a mistake in a
//! file is told.

use std::path::{Path, PathBuf};
use std::time::Duration;

/// Longest time that settings can have: a day.
const LONGEST_S: f64 = 86_400.0;

/// Reads a time with its unit: `100us`, `1.5ms`, `20ns`, `1s`; µ is fine too. None for anything else, and for
/// more than a day.
///
/// ```
/// use std::time::Duration;
///
/// assert_eq!(taut_port::duration("1.5ms"), Some(Duration::from_micros(1500)));
/// assert_eq!(taut_port::duration("5"), None);
/// ```
pub fn duration(text: &str) -> Option<Duration> {
    let text = text.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let value: f64 = text[..at].parse().ok()?;
    let ns = value
        * match text[at..].trim() {
            "ns" => 1.0,
            // The micro sign and the Greek letter.
            "us" | "\u{b5}s" | "\u{3bc}s" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => return None,
        };
    (ns <= LONGEST_S * 1e9).then(|| Duration::from_nanos(ns.round() as u64))
}

/// Why a file of settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsFileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// It says something that cannot be.
    #[error("{place}: {reason}")]
    Wrong {
        /// File, and line where known.
        place: String,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl SettingsFileError {
    /// The text of the file.
    ///
    /// # Errors
    /// `Unreadable`.
    pub fn read(path: &Path) -> Result<String, Self> {
        std::fs::read_to_string(path).map_err(|source| Self::Unreadable {
            path: path.to_path_buf(),
            source,
        })
    }

    /// A mistake in `text`, the contents of file `name`, at this byte if it is known where.
    pub fn wrong(text: &str, name: &str, at: Option<usize>, reason: impl AsRef<str>) -> Self {
        let before = |at: usize| text.bytes().take(at);
        let line = at.map(|at| before(at).filter(|byte| *byte == b'\n').count() + 1);
        Self::Wrong {
            place: line.map_or_else(|| name.to_string(), |line| format!("{name}:{line}")),
            reason: reason.as_ref().trim().replace('\n', " "),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_take_a_unit() {
        for (text, ns) in [
            ("100us", Some(100_000)),
            (" 1.5 ms ", Some(1_500_000)),
            ("0s", Some(0)),
            ("7µs", Some(7_000)),
            ("20ns", Some(20)),
            ("86400s", Some(86_400_000_000_000)),
            ("86401s", None),
            ("1.2.3s", None),
            ("-1s", None),
            ("5", None),
            ("s", None),
            ("", None),
            ("9e999s", None),
        ] {
            assert_eq!(duration(text), ns.map(Duration::from_nanos), "{text}");
        }
    }

    #[test]
    fn a_mistake_is_told_in_one_line_with_its_place() {
        let wrong =
            |at| SettingsFileError::wrong("a\nb\nc", "x.toml", at, "two\nlines").to_string();
        assert_eq!(wrong(Some(4)), "x.toml:3: two lines");
        assert_eq!(wrong(None), "x.toml: two lines");
        let missing = SettingsFileError::read(Path::new("/nowhere/x.toml"));
        let message = missing.err().map(|e| e.to_string()).unwrap_or_default();
        assert!(message.starts_with("/nowhere/x.toml: "), "{message}");
    }
}
