//! A results folder of a benchmark during the measurement: a manifest with the benchmark and the machine, and one file
//! per complete part.

use crate::error::ResultsError;
use crate::folder::refuse_results;
use crate::whole_file::write_json;
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The folder of a benchmark during the measurement: its manifest, and a file for each part.
pub struct PartsFolder {
    head: PathBuf,
    parts: PathBuf,
}

impl PartsFolder {
    /// Creates `dir` with the file `head` and the folder `parts`. A folder that contains results already is an error.
    ///
    /// # Errors
    /// The folder is not empty, or the file system returns an error.
    pub fn create(
        dir: &Path,
        (head_name, head): (&str, &impl Serialize),
        parts: &str,
    ) -> Result<Self, ResultsError> {
        refuse_results(dir)?;
        let parts = dir.join(parts);
        fs::create_dir_all(&parts).map_err(ResultsError::io(&parts))?;
        let folder = Self {
            head: dir.join(head_name),
            parts,
        };
        folder.update(head)?;
        Ok(folder)
    }

    /// Replaces the manifest, for example at the end of the experiment.
    ///
    /// # Errors
    /// The file system returns an error.
    pub fn update(&self, head: &impl Serialize) -> Result<(), ResultsError> {
        write_json(&self.head, head)
    }

    /// Writes a part to the file `name` in JSON.
    ///
    /// # Errors
    /// The file system returns an error.
    pub fn write(&self, name: &str, part: &impl Serialize) -> Result<(), ResultsError> {
        write_json(&self.parts.join(format!("{name}.json")), part)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::read_each;

    #[test]
    fn folders_with_results_of_any_command_are_not_overwritten() {
        for taken in [
            "experiment.json",
            "io.json",
            "generators.json",
            "bench.json",
            "state.json",
        ] {
            let dir = tempfile::tempdir().unwrap();
            fs::write(dir.path().join(taken), "{}").unwrap();
            for head in ["io.json", "generators.json"] {
                let refused = PartsFolder::create(dir.path(), (head, &1), "parts")
                    .err()
                    .unwrap();
                let said = refused.to_string();
                assert!(
                    said.contains(taken) && said.contains("choose a new results folder"),
                    "{said}"
                );
            }
            let left: Vec<_> = fs::read_dir(dir.path()).unwrap().collect();
            assert_eq!(left.len(), 1, "{left:?}");
        }
    }

    #[test]
    fn result_parts_are_read_in_alphabetical_order() {
        let dir = tempfile::tempdir().unwrap();
        let folder = PartsFolder::create(dir.path(), ("io.json", &1), "parts").unwrap();
        folder.write("b", &2).unwrap();
        folder.write("a", &1).unwrap();
        let read: (Vec<u32>, Vec<String>) = read_each(dir.path(), "parts").unwrap();
        assert_eq!(read, (vec![1, 2], Vec::new()));
    }
}
