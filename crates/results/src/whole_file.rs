//! Atomic file writes: a file appears under its name only when it is complete.

use crate::error::ResultsError;
use serde::Serialize;
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

/// Writes a pretty-printed JSON file atomically.
///
/// # Errors
/// The file system returns an error.
pub fn write_json(path: &Path, value: &impl Serialize) -> Result<(), ResultsError> {
    let mut text = serde_json::to_vec_pretty(value).map_err(|source| ResultsError::Json {
        path: path.to_owned(),
        source,
    })?;
    text.push(b'\n');
    write_whole(path, &text)
}

/// Writes a file atomically: at any time, the file is either the old one or the complete new one.
///
/// # Errors
/// The file system returns an error.
pub fn write_whole(path: &Path, text: &[u8]) -> Result<(), ResultsError> {
    write_whole_with(path, |mut file| file.write_all(text))
}

/// Writes a file atomically as [`write_whole`] does, but `write` writes its content piece by piece. If `write` fails,
/// the partial file is removed.
///
/// # Errors
/// The file system returns an error, or `write` fails.
pub fn write_whole_with(
    path: &Path,
    write: impl FnOnce(File) -> io::Result<()>,
) -> Result<(), ResultsError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    let partial = path.with_file_name(name);
    // An existing entry of that name is left from an earlier attempt, or is a link that another user has placed there.
    match fs::remove_file(&partial) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(ResultsError::io(partial)(e)),
        _ => {}
    }
    File::create_new(&partial)
        .and_then(write)
        .and_then(|()| fs::rename(&partial, path))
        .map_err(|e| {
            let _ = fs::remove_file(&partial);
            ResultsError::io(path)(e)
        })
}
