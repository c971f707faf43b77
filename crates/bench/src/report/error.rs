//! The reasons why a report could not be written.

use taut_results::ResultsError;

/// The reason why a report could not be written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The results folder cannot be read or written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The template of the report page failed.
    #[error("report.html: {0}")]
    Page(#[from] askama::Error),
}
