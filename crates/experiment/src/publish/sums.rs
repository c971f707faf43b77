//! Checksums of a publication: written into the published folder, and verified when it is opened.

use crate::agent::{checksum, checksum_of};
use crate::error::ExperimentError;
use crate::folder::each_line;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use taut_results::{InsidePath, files_below, write_whole};

/// Name of the list of all files with their SHA-256, in the format of `sha256sum -c`.
pub(crate) const SUMS: &str = "SHA256SUMS";

pub(super) fn write_sums(folder: &Path) -> Result<(), ExperimentError> {
    let mut text = String::new();
    for file in files_below(folder).map_err(ExperimentError::io(folder))? {
        let path = folder.join(&file);
        let sum = checksum(&path).map_err(ExperimentError::io(&path))?;
        text += &format!("{sum}  {}\n", InsidePath::of(&file)?);
    }
    Ok(write_whole(&folder.join(SUMS), text.as_bytes())?)
}

/// Checks that every file in a published folder is listed and unchanged. The error names the first file that fails the
/// check.
pub(crate) fn check_sums(folder: &Path) -> Result<(), ExperimentError> {
    let path = folder.join(SUMS);
    let list = InsidePath::new(SUMS)?.open(folder);
    let mut listed = BTreeSet::new();
    each_line(
        &path,
        list.map_err(ExperimentError::io(&path))?,
        |_, line| {
            let pair = std::str::from_utf8(line)
                .ok()
                .and_then(|line| line.split_once("  "));
            let (expected, name) = pair.ok_or_else(|| {
                ExperimentError::results(&path, "damaged: a line is not a checksum and a file name")
            })?;
            let name = InsidePath::new(name)
                .map_err(|e| ExperimentError::results(&path, e.to_string()))?;
            let file = name.in_folder(folder);
            match name.open(folder).and_then(checksum_of) {
                Ok(sum) if sum == expected => {
                    listed.insert(PathBuf::from(name.as_str()));
                    Ok(())
                }
                Ok(_) => Err(ExperimentError::results(
                    file,
                    "changed since it was published",
                )),
                Err(e) => Err(ExperimentError::io(file)(e)),
            }
        },
    )?;
    let found = files_below(folder).map_err(ExperimentError::io(folder))?;
    match found
        .iter()
        .find(|file| !listed.contains(*file) && file.as_os_str() != SUMS)
    {
        None => Ok(()),
        Some(file) => Err(ExperimentError::results(
            folder.join(file),
            "differs from what was published",
        )),
    }
}
