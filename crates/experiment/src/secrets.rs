//! Secrets: values that commands of a run get through the environment and that must not appear in the results. They are
//! removed from the output of commands before the output is written, and from the files that commands leave.

use crate::error::ExperimentError;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::path::Path;
use taut_results::files_below;

/// Text that replaces the value of a secret in results.
const MARK: &[u8] = b"[secret]";
/// Minimum length of a secret's value, bytes: shorter values would match unrelated text.
const SHORTEST: usize = 4;
const PIECE: usize = 1 << 16;
/// Maximum length of the line that contains all secrets, bytes.
const LONGEST_LINE: u64 = 1 << 20;

/// The values of an experiment's secrets.
#[derive(Debug, Clone, Default)]
pub(crate) struct Secrets {
    /// Values of the secrets by name, as passed to commands.
    given: BTreeMap<String, String>,
    /// Byte strings to remove, the longest first. A value that JSON escapes is included both plain and escaped.
    values: Vec<Vec<u8>>,
    /// Names of the secrets that are not set in the environment.
    pub(crate) unset: Vec<String>,
}

impl Secrets {
    /// Reads the secrets with the given names from the environment.
    pub(crate) fn read<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<Self, String> {
        let mut found = Self::default();
        for name in names {
            match std::env::var(name) {
                Ok(value) if value.len() >= SHORTEST => {
                    found.add(&value);
                    found.given.insert(name.to_owned(), value);
                }
                Ok(value) if value.is_empty() => found.unset.push(name.to_owned()),
                Ok(_) => {
                    return Err(format!(
                        "the secret ${name} is shorter than {SHORTEST} characters: it cannot be told from other text"
                    ));
                }
                Err(_) => found.unset.push(name.to_owned()),
            }
        }
        Ok(found)
    }

    fn add(&mut self, value: &str) {
        let quoted = serde_json::to_string(value).unwrap_or_default();
        let in_json = quoted.trim_start_matches('"');
        let in_json = in_json.strip_suffix('"').unwrap_or(in_json);
        for form in [value, in_json] {
            if !self.values.iter().any(|known| known == form.as_bytes()) {
                self.values.push(form.as_bytes().to_vec());
            }
        }
        self.values
            .sort_by_key(|value| std::cmp::Reverse(value.len()));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Returns a line with all secrets, for the standard input of the process that runs a command on a node. No list of
    /// processes and no file thus contains the secrets.
    pub(crate) fn line(&self) -> Vec<u8> {
        let mut line = serde_json::to_vec(&self.given).unwrap_or_default();
        line.push(b'\n');
        line
    }

    /// Parses a line made by [`Secrets::line`].
    pub(crate) fn of_line(input: &mut impl BufRead) -> io::Result<BTreeMap<String, String>> {
        let mut line = String::new();
        input.take(LONGEST_LINE).read_line(&mut line)?;
        serde_json::from_str(&line).map_err(|_| io::Error::other("the secrets did not arrive"))
    }

    /// Returns a text with all values of secrets replaced by [`MARK`].
    pub(crate) fn text(&self, text: &str) -> String {
        let mut out = Vec::new();
        let mut scrubber = Scrubber::new(self, &mut out);
        // Writing to memory cannot fail.
        let _ = scrubber
            .write(text.as_bytes())
            .and_then(|()| scrubber.end());
        String::from_utf8_lossy(&out).into_owned()
    }

    /// Copies `from` to `to` with all values of secrets replaced by [`MARK`]. Returns the number of replaced values.
    pub(crate) fn copy(&self, mut from: impl Read, to: impl Write) -> io::Result<u64> {
        let mut scrubber = Scrubber::new(self, to);
        let mut piece = vec![0; PIECE];
        loop {
            match from.read(&mut piece) {
                Ok(0) => return scrubber.end(),
                Ok(read) => scrubber.write(&piece[..read])?,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Returns true if a file contains the value of a secret.
    pub(crate) fn are_in(&self, path: &Path) -> Result<bool, ExperimentError> {
        if self.is_empty() {
            return Ok(false);
        }
        File::open(path)
            .and_then(|file| self.copy(file, io::sink()))
            .map(|found| found > 0)
            .map_err(ExperimentError::io(path))
    }

    /// Replaces the values of secrets in the files of a folder, and returns the names of the files that contained the
    /// value of a secret.
    pub(crate) fn scrub(&self, folder: &Path) -> Result<Vec<String>, ExperimentError> {
        let mut scrubbed = Vec::new();
        if self.is_empty() {
            return Ok(scrubbed);
        }
        for file in files_below(folder).map_err(ExperimentError::io(folder))? {
            let path = folder.join(&file);
            if self.are_in(&path)? {
                let clean = path.with_extension("scrubbed");
                File::open(&path)
                    .and_then(|from| self.copy(from, File::create(&clean)?))
                    .and_then(|_| fs::rename(&clean, &path))
                    .map_err(ExperimentError::io(&path))?;
                scrubbed.push(file.display().to_string());
            }
        }
        Ok(scrubbed)
    }
}

/// Writer that replaces the values of secrets, including values that are split over several writes: it buffers text
/// that may be the beginning of a value.
struct Scrubber<'a, W> {
    secrets: &'a Secrets,
    held: Vec<u8>,
    found: u64,
    out: W,
}

impl<'a, W: Write> Scrubber<'a, W> {
    fn new(secrets: &'a Secrets, out: W) -> Self {
        Self {
            secrets,
            held: Vec::new(),
            found: 0,
            out,
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.held.extend_from_slice(bytes);
        self.pass_on(false)
    }

    fn end(&mut self) -> io::Result<u64> {
        self.pass_on(true)?;
        self.out.flush()?;
        Ok(self.found)
    }

    fn pass_on(&mut self, last: bool) -> io::Result<()> {
        let values = &self.secrets.values;
        let (mut at, mut clean_from) = (0, 0);
        while at < self.held.len() {
            let rest = &self.held[at..];
            let first = rest[0];
            let mut candidates = values.iter().filter(|value| value[0] == first).peekable();
            if candidates.peek().is_none() {
                at += 1;
                continue;
            }
            let mut candidates: Vec<&Vec<u8>> = candidates.collect();
            if !last
                && candidates
                    .iter()
                    .any(|value| value.len() > rest.len() && value.starts_with(rest))
            {
                break;
            }
            candidates.retain(|value| rest.starts_with(value));
            match candidates.first() {
                Some(value) => {
                    let length = value.len();
                    self.out.write_all(&self.held[clean_from..at])?;
                    self.out.write_all(MARK)?;
                    self.found += 1;
                    at += length;
                    clean_from = at;
                }
                None => at += 1,
            }
        }
        self.out.write_all(&self.held[clean_from..at])?;
        self.held.drain(..at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn secrets(values: &[&str]) -> Secrets {
        let mut secrets = Secrets::default();
        values.iter().for_each(|value| secrets.add(value));
        secrets
    }

    /// Returns the scrubber's output for a text that is written in pieces of `size` bytes.
    fn in_pieces(secrets: &Secrets, text: &str, size: usize) -> String {
        let mut out = Vec::new();
        let mut scrubber = Scrubber::new(secrets, &mut out);
        for piece in text.as_bytes().chunks(size) {
            scrubber.write(piece).unwrap();
        }
        scrubber.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn secrets_are_removed_even_when_split_across_chunks() {
        let secrets = secrets(&["hunter2", "hunter2-and-more", "aab"]);
        let text = "a hunter2 b hunter2-and-more c hunter2-and-mor d aaab hunterhunter2 hunter";
        let clean = "a [secret] b [secret] c [secret]-and-mor d a[secret] hunter[secret] hunter";
        for size in 1..=text.len() {
            assert_eq!(in_pieces(&secrets, text, size), clean, "{size}");
        }
    }

    #[test]
    fn output_that_cannot_begin_a_secret_is_passed_immediately() {
        let secrets = secrets(&["hunter2"]);
        let mut out = Vec::new();
        Scrubber::new(&secrets, &mut out)
            .write(b"ready hun")
            .unwrap();
        assert_eq!(out, b"ready ");
    }

    #[test]
    fn secrets_are_removed_from_json_with_escapes() {
        let secrets = secrets(&["pa\"ss\\word"]);
        let json = serde_json::to_string(&["pa\"ss\\word"]).unwrap();
        assert_eq!(secrets.text(&json), "[\"[secret]\"]");
        assert_eq!(secrets.text("pa\"ss\\word"), "[secret]");
    }

    #[test]
    fn secrets_with_any_characters_reach_a_command_on_one_line() {
        let given = BTreeMap::from([("TOKEN".to_owned(), "two\nlines \"and\" more".to_owned())]);
        let secrets = Secrets {
            given: given.clone(),
            ..Secrets::default()
        };
        let line = secrets.line();
        assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
        let mut input = &[&line[..], b"rest"].concat()[..];
        assert_eq!(Secrets::of_line(&mut input).unwrap(), given);
        assert_eq!(input, b"rest");
        assert!(Secrets::of_line(&mut &line[..9]).is_err());
        assert!(Secrets::of_line(&mut &b""[..]).is_err());
    }

    #[test]
    fn files_with_secrets_are_scrubbed_and_listed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("below")).unwrap();
        fs::write(folder.path().join("below/a.txt"), "x hunter2").unwrap();
        fs::write(folder.path().join("b.bin"), [0, 255]).unwrap();
        let found = secrets(&["hunter2"]).scrub(folder.path()).unwrap();
        assert_eq!(found, ["below/a.txt"]);
        let text = fs::read_to_string(folder.path().join("below/a.txt")).unwrap();
        assert_eq!(text, "x [secret]");
        assert_eq!(fs::read(folder.path().join("b.bin")).unwrap(), [0, 255]);
    }
}
