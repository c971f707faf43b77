//! Keys that two endpoints share, read from a private file, so that they appear in no settings and no list of
//! processes.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Reads a key of 16 or 32 bytes from a file that no other user may read: as bytes, or as 32 or 64 hexadecimal digits.
///
/// # Errors
/// The error names the fault of the file, and how to fix it.
pub fn shared_key(path: &Path) -> Result<Vec<u8>, String> {
    let shown = path.display();
    let cannot = |e: std::io::Error| format!("cannot read {shown}: {e}");
    let about = std::fs::metadata(path).map_err(cannot)?;
    if !about.is_file() || about.len() > 4096 {
        return Err(format!("{shown} contains no key"));
    }
    if about.permissions().mode() & 0o077 != 0 {
        return Err(format!("others may read {shown}: chmod 600 {shown}"));
    }
    let bytes = std::fs::read(path).map_err(cannot)?;
    let hex = std::str::from_utf8(&bytes).ok().and_then(key_of_hex);
    match hex {
        Some(key) => Ok(key),
        // A text of 16 or 32 characters is rejected, because it is probably hexadecimal digits of which some are
        // missing.
        None if matches!(bytes.len(), 16 | 32) && !is_text(&bytes) => Ok(bytes),
        None => Err(format!(
            "{shown} contains neither 32 or 64 hexadecimal digits nor 16 or 32 bytes"
        )),
    }
}

fn is_text(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .all(|c| c.is_ascii_graphic() || c.is_ascii_whitespace())
}

/// Parses a key of 32 or 64 hexadecimal digits.
pub fn key_of_hex(text: &str) -> Option<Vec<u8>> {
    let text = text.trim();
    if !matches!(text.len(), 32 | 64) || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return None;
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).ok())
        .collect()
}
