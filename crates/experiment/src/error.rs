//! Errors of reading, running and evaluating experiments: the location, the problem, and the remedy.

use std::borrow::Cow;
use std::ops::Range;
use std::path::PathBuf;

/// An error in an experiment: its location, the reason, and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// The experiment file has an invalid value.
    #[error("{place}: {}", one_line(reason))]
    Wrong {
        /// File, line and column of the value.
        place: String,
        /// Reason why the value is invalid, and a description of valid values.
        reason: String,
    },
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder on which the operation failed.
        path: PathBuf,
        /// The error that the operating system reported.
        source: std::io::Error,
    },
    /// A node is unreachable, or not in the required state.
    #[error("node {node}: {}", one_line(reason))]
    Node {
        /// Role of the node.
        node: String,
        /// The reason why the node is unusable, and the remedy.
        reason: String,
    },
    /// Results are damaged, or were not written by taut.
    #[error("{}: {}", path.display(), one_line(reason))]
    Results {
        /// The path of the damaged file or folder.
        path: PathBuf,
        /// The reason why the results are refused, and the remedy.
        reason: String,
    },
    /// There is no experiment of this name.
    #[error("{0}")]
    Unknown(String),
    /// A name refers to a file outside the results folder.
    #[error(transparent)]
    NotInside(#[from] taut_results::NotInside),
    /// The results folder is invalid.
    #[error(transparent)]
    Lab(#[from] taut_results::ResultsError),
}

/// Returns a reason as one line, because it may quote an untrusted file.
fn one_line(reason: &str) -> Cow<'_, str> {
    if !reason.contains(char::is_control) {
        return Cow::Borrowed(reason);
    }
    let mut line = String::with_capacity(reason.len());
    for c in reason.chars() {
        if c.is_control() {
            line.extend(c.escape_debug());
        } else {
            line.push(c);
        }
    }
    Cow::Owned(line)
}

impl ExperimentError {
    pub(crate) fn io(path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { path, source }
    }

    pub(crate) fn node(node: &str, reason: impl Into<String>) -> Self {
        Self::Node {
            node: node.to_owned(),
            reason: reason.into(),
        }
    }

    pub(crate) fn results(path: impl Into<PathBuf>, reason: impl Into<String>) -> Self {
        Self::Results {
            path: path.into(),
            reason: reason.into(),
        }
    }
}

/// The text and name of an experiment file, for errors with a location in it.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    pub(crate) name: String,
    pub(crate) text: String,
}

impl Source {
    /// Returns an error whose location is the byte range `span` of the file.
    pub(crate) fn wrong(&self, span: Range<usize>, reason: impl AsRef<str>) -> ExperimentError {
        let before = &self.text[..span.start.min(self.text.len())];
        let line = before.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let column = before.chars().rev().take_while(|c| *c != '\n').count() + 1;
        ExperimentError::Wrong {
            place: format!("{}:{line}:{column}", self.name),
            reason: reason.as_ref().trim().replace('\n', " "),
        }
    }

    /// Returns an error that concerns the complete file, without line and column.
    pub(crate) fn wrong_somewhere(&self, reason: impl Into<String>) -> ExperimentError {
        ExperimentError::Wrong {
            place: self.name.clone(),
            reason: reason.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_text_from_untrusted_files_stays_on_one_line() {
        let reason = "step `a\nb\u{1b}[2J`: the name of `c\r\nd`";
        let results = ExperimentError::results("x.tar.gz", reason);
        let node = ExperimentError::node("n", reason);
        let wrong = ExperimentError::Wrong {
            place: "x:1:2".to_owned(),
            reason: reason.to_owned(),
        };
        for error in [results, node, wrong] {
            let told = error.to_string();
            assert!(told.ends_with("the name of `c\\r\\nd`"), "{told}");
            assert!(!told.contains(char::is_control), "{told}");
        }
    }
}
