//! What to show of a results folder when its report is written, beside the page.

use std::path::PathBuf;
use taut_results::{Completion, LeftOut};

/// What to show of a results folder when its report is written.
#[derive(Debug)]
pub struct Shown {
    /// Path of the page.
    pub page: PathBuf,
    /// Tables and findings, for a terminal.
    pub text: String,
    /// What could not be measured.
    pub left_out: Vec<LeftOut>,
    /// What else a reader has to know: warnings, and files that cannot be read.
    pub problems: Vec<String>,
    /// How far it came.
    pub completion: Completion,
    /// Limits that the device missed, one sentence each.
    pub missed: Vec<String>,
    /// Whether something left out makes the whole a failure.
    pub wants_all: bool,
}

impl Shown {
    /// Shows a page that says everything.
    pub(crate) fn page(page: PathBuf) -> Self {
        Self {
            page,
            text: String::new(),
            left_out: Vec::new(),
            problems: Vec::new(),
            completion: Completion::Finished,
            missed: Vec::new(),
            wants_all: false,
        }
    }
}
