//! The text and the notices about a results folder that the terminal shows when its report is written.

use std::path::PathBuf;
use taut_results::{Completion, LeftOut};

/// The content to show after a report was written.
#[derive(Debug)]
pub struct Shown {
    /// Path of the page.
    pub page: PathBuf,
    /// Tables and results for a terminal.
    pub text: String,
    /// The devices and parts that the measurement skipped.
    pub left_out: Vec<LeftOut>,
    /// Further notices about the report: warnings, and files that cannot be read.
    pub problems: Vec<String>,
    /// The completion state of the measurement.
    pub completion: Completion,
    /// Limits that the device violated, one sentence each.
    pub missed: Vec<String>,
    /// True if the result is a failure whenever a device or part was skipped.
    pub wants_all: bool,
}

impl Shown {
    /// Returns the content for a page without text on the terminal.
    pub fn page(page: PathBuf) -> Self {
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
