//! Copies data, and reports whether reading or writing failed, because a full disk is not an error of the source file.

use crate::error::ExperimentError;
use std::io::{self, Read, Write};
use std::path::Path;

/// The operation of a copy that failed.
#[derive(Debug)]
pub(crate) enum Failed {
    /// Reading the source failed.
    Reading(io::Error),
    /// Writing the destination failed.
    Writing(io::Error),
}

impl Failed {
    /// Returns the error with the path of the file on which the copy failed.
    pub(crate) fn of(self, from: &Path, to: &Path) -> ExperimentError {
        match self {
            Self::Reading(e) => ExperimentError::io(from)(e),
            Self::Writing(e) => ExperimentError::io(to)(e),
        }
    }
}

/// Copies until the end of the input; returns the number of copied bytes.
pub(crate) fn copy(from: &mut impl Read, to: &mut impl Write) -> Result<u64, Failed> {
    let mut piece = vec![0; 1 << 16];
    let mut copied = 0;
    loop {
        match from.read(&mut piece) {
            Ok(0) => return to.flush().map(|()| copied).map_err(Failed::Writing),
            Ok(read) => {
                to.write_all(&piece[..read]).map_err(Failed::Writing)?;
                copied += read as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Failed::Reading(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn a_copy_error_names_the_failed_source_or_destination() {
        let (from, to) = (Path::new("from"), Path::new("to"));
        let said = |failed: Failed| failed.of(from, to).to_string();
        let mut out = Vec::new();
        assert_eq!(copy(&mut &b"abc"[..], &mut out).ok(), Some(3));
        assert_eq!(out, b"abc");
        if let Ok(mut full) = File::options().write(true).open("/dev/full") {
            let failed = copy(&mut &b"abc"[..], &mut full).err().map(said);
            assert!(failed.is_some_and(|it| it.starts_with("to: ")));
        }
        if let Ok(mut folder) = File::open("/") {
            let failed = copy(&mut folder, &mut out).err().map(said);
            assert!(failed.is_some_and(|it| it.starts_with("from: ")));
        }
    }
}
