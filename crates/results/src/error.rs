//! Errors of writing and reading results folders: the file, the problem, and the remedy.

use std::path::{Path, PathBuf};

/// An error that names its file and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file system returned an error.
    #[error("{}: {source}; check the path, its permissions and the free space", path.display())]
    Io {
        /// Path of the file or folder of the failed operation.
        path: PathBuf,
        /// The error that the operating system returned.
        source: std::io::Error,
    },
    /// There are no results in the folder.
    #[error("{}: no results here; expected a folder that taut demo, bench, generate --out, probe client --out, \
            capture match --out, control run --out or experiment has written", path.display())]
    NoResults {
        /// Path of the folder.
        path: PathBuf,
    },
    /// The folder does not exist.
    #[error("{}: no such folder; expected one that taut demo, bench, generate --out, probe client --out, capture \
            match --out, control run --out or experiment has written", path.display())]
    NoFolder {
        /// Path of the folder.
        path: PathBuf,
    },
    /// A name in the results leads out of the folder.
    #[error("{}: {source}; the results are damaged", path.display())]
    NotInside {
        /// Path of the folder.
        path: PathBuf,
        /// The name that leads out of the folder.
        source: NotInside,
    },
    /// A JSON file cannot be parsed as the expected type.
    #[error("{}: line {}: {source}; the file is damaged or of another version, run the experiment again", path.display(), source.line())]
    Json {
        /// Path of the file.
        path: PathBuf,
        /// The error of the JSON parser, with its position in the file.
        source: serde_json::Error,
    },
    /// The folder was written by a version with another layout.
    #[error("{}: schema {found}, this taut reads {supported}; use the taut that wrote it", path.display())]
    Schema {
        /// Path of the folder's `experiment.json`.
        path: PathBuf,
        /// Layout version that the folder has.
        found: u32,
        /// Layout version that this program reads and writes.
        supported: u32,
    },
    /// A Parquet file is damaged or lacks a column.
    #[error("{}: {reason}; the file is damaged, run the experiment again", path.display())]
    Samples {
        /// Path of the file.
        path: PathBuf,
        /// Description of the problem in the file.
        reason: String,
    },
    /// The histogram log could not be written.
    #[error("{}: {source}", path.display())]
    Histogram {
        /// Path of the file.
        path: PathBuf,
        /// The error that occurred while the log was written.
        source: taut_measure::HlogError,
    },
    /// A run exists already; results are never overwritten.
    #[error("{}: exists already; choose a new results folder", path.display())]
    Exists {
        /// Path of the run's folder.
        path: PathBuf,
    },
    /// The folder claims an implausible number of runs.
    #[error("{}: more than {most} runs; the file is damaged", path.display())]
    TooMany {
        /// Path of the folder's `experiment.json`.
        path: PathBuf,
        /// Largest number of runs that is accepted.
        most: u64,
    },
    /// A device id that is not valid as the name of a folder.
    #[error("device id {id:?}: use letters, digits and any of -_.,:=(), not beginning with '.'")]
    DeviceId {
        /// The device id that is invalid.
        id: String,
    },
}

impl ResultsError {
    /// Returns [`Self::NoFolder`] if the folder does not exist, otherwise [`Self::NoResults`].
    pub(crate) fn none(path: &Path) -> Self {
        let path = path.to_owned();
        match path.is_dir() {
            true => Self::NoResults { path },
            false => Self::NoFolder { path },
        }
    }

    /// Returns a function for `map_err` that adds `path` to an error of the file system.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> ResultsError {
        let path = path.into();
        move |source| ResultsError::Io { path, source }
    }
}

/// Maximum length of a file name inside a results folder, bytes.
pub(crate) const LONGEST: usize = 1024;

/// A text that is not an [`InsidePath`](crate::InsidePath).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` cannot be the name of a file in the folder: it must be relative, without `.`, `..`, empty parts or control characters, and at most {LONGEST} bytes long"
)]
pub struct NotInside(String);

impl NotInside {
    /// Returns the error for `name`, which the message shows in printable form.
    pub fn of(name: &str) -> Self {
        let shown: String = name.chars().take(80).collect();
        Self(shown.escape_debug().to_string())
    }

    /// Returns `name` as a printable text, for messages.
    pub fn shown(name: &str) -> String {
        format!("`{}`", Self::of(name).0)
    }
}
