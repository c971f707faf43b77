//! Printing for people and pipes: a reader that has gone away is no reason to die.

use std::fmt::Display;
use std::io::Write;
use std::path::Path;

use crate::exit::Failure;

/// Prints a line on standard output at once.
pub fn line(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// Prints the `summary.json` of a results folder.
pub fn summary(folder: &Path) -> Result<(), Failure> {
    let path = folder.join("summary.json");
    let summary = std::fs::read_to_string(&path)
        .map_err(|e| Failure::Input(format!("{}: {e}", path.display())))?;
    line(summary.trim_end());
    Ok(())
}
