//! Printing for people and pipes: a reader that has gone away is no reason to die.

use std::fmt::Display;
use std::io::Write;

/// Prints a line on standard output at once.
pub fn line(text: impl Display) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
