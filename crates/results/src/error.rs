//! Why a results folder could not be written or read: the file, what is wrong, what to do.

use std::path::{Path, PathBuf};

/// An error that names its file and the way out.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The file system refused.
    #[error("{}: {source}; check the path, its permissions and the free space", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// There are no results in the folder.
    #[error("{}: no results here; want a folder that taut demo, bench, generate --out, probe client --out, capture match --out, control run --out or experiment has written", path.display())]
    NoResults {
        /// The folder.
        path: PathBuf,
    },
    /// There is no folder.
    #[error("{}: no such folder; want one that taut demo, bench, generate --out, probe client --out, capture match --out, control run --out or experiment has written", path.display())]
    NoFolder {
        /// The folder.
        path: PathBuf,
    },
    /// A name in the results leads out of them.
    #[error("{}: {source}; the results are damaged", path.display())]
    NotInside {
        /// The folder.
        path: PathBuf,
        /// The name.
        source: NotInside,
    },
    /// A JSON file does not have the form expected.
    #[error("{}: line {}: {source}; the file is damaged or of another version, run the experiment again", path.display(), source.line())]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and what.
        source: serde_json::Error,
    },
    /// The folder was written by a version with another layout.
    #[error("{}: schema {found}, this taut reads {supported}; use the taut that wrote it", path.display())]
    Schema {
        /// The experiment.json.
        path: PathBuf,
        /// Version found.
        found: u32,
        /// Version this program reads and writes.
        supported: u32,
    },
    /// A Parquet file is damaged or lacks a column.
    #[error("{}: {reason}; the file is damaged, run the experiment again", path.display())]
    Samples {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The histogram log could not be written.
    #[error("{}: {source}", path.display())]
    Histogram {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: taut_measure::HlogError,
    },
    /// A run is there already; results are never overwritten.
    #[error("{}: exists already; choose a new results folder", path.display())]
    Exists {
        /// The run's folder.
        path: PathBuf,
    },
    /// The folder claims more runs than anybody makes.
    #[error("{}: more than {most} runs; the file is damaged", path.display())]
    TooMany {
        /// The experiment.json.
        path: PathBuf,
        /// No more are read.
        most: u64,
    },
    /// A device id that cannot name a folder.
    #[error("device id {id:?}: use letters, digits and any of -_.,:=(), not beginning with '.'")]
    DeviceId {
        /// The id.
        id: String,
    },
}

impl ResultsError {
    /// Makes the error that a folder has no results, or is none.
    pub(crate) fn none(path: &Path) -> Self {
        let path = path.to_owned();
        match path.is_dir() {
            true => Self::NoResults { path },
            false => Self::NoFolder { path },
        }
    }

    /// Makes an error of what the file system said of `path`, for `map_err`.
    pub fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> ResultsError {
        let path = path.into();
        move |source| ResultsError::Io { path, source }
    }
}

/// The longest name of a file inside, bytes.
pub(crate) const LONGEST: usize = 1024;

/// A text that is no [`InsidePath`](crate::InsidePath).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no name of a file inside: it must be relative, without `.`, `..`, empty parts and control characters, at most {LONGEST} bytes long"
)]
pub struct NotInside(String);

impl NotInside {
    /// Makes the error that `name` is none, as a text that can be shown.
    pub fn of(name: &str) -> Self {
        let shown: String = name.chars().take(80).collect();
        Self(shown.escape_debug().to_string())
    }

    /// Returns any name as a text that can be shown.
    pub fn shown(name: &str) -> String {
        format!("`{}`", Self::of(name).0)
    }
}
