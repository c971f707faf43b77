//! Reports: the files of a page with its figures, the elements that several pages share, and the report of a recording.

pub mod causes;
mod display;
pub(crate) mod drawn;
pub(crate) mod error;
pub(crate) mod rawdata;
pub(crate) mod recording;

pub use display::Shown;
pub use drawn::Drawn;
pub use error::ReportError;
pub use rawdata::flatten;
pub use recording::{LEAST_SENT, histogram, is_recording, write_recording};

/// The CSS of all reports.
pub const STYLE: &str = include_str!("report.css");

/// The JavaScript of reports that shows the values of the point under the mouse pointer.
pub const HOVER: &str = include_str!("hover.js");
