//! Files that an experiment file names: in the same folder, or built into this program.

use crate::error::ExperimentError;
use std::io;
use std::path::{Path, PathBuf};
use taut_results::InsidePath;

/// Files that several reference experiments use: names and contents.
const SHARED: &[(&str, &str)] = &[
    (
        "centralised.sh",
        include_str!("../../../experiments/centralised.sh"),
    ),
    (
        "distributed.sh",
        include_str!("../../../experiments/distributed.sh"),
    ),
    ("worst.sh", include_str!("../../../experiments/worst.sh")),
];

/// Maximum size of a file that an experiment names, bytes.
const MOST_BYTES: u64 = 64 << 20;

/// Location of the files that an experiment file names.
#[derive(Debug, Clone)]
pub(crate) enum Attachments {
    /// The files are in a folder; the value is its path.
    Folder(PathBuf),
    /// The files are built into this program, as for reference experiments.
    Program,
}

impl Attachments {
    /// Returns the text of a file.
    ///
    /// # Errors
    /// There is no file of this name, or it cannot be read.
    pub(crate) fn read(&self, name: &str) -> Result<String, ExperimentError> {
        match self {
            Self::Folder(folder) => {
                let path = folder.join(name);
                let text = InsidePath::new(name)?
                    .read(folder, MOST_BYTES)
                    .and_then(|bytes| {
                        String::from_utf8(bytes)
                            .map_err(|_| io::Error::other("not a text in UTF-8"))
                    });
                text.map_err(ExperimentError::io(path))
            }
            Self::Program => {
                let shared = SHARED.iter().find(|(shared, _)| *shared == name);
                let shared = shared.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
                shared
                    .map(|(_, text)| (*text).to_owned())
                    .map_err(ExperimentError::io(name))
            }
        }
    }
}

impl From<&Path> for Attachments {
    fn from(folder: &Path) -> Self {
        Self::Folder(folder.to_owned())
    }
}
