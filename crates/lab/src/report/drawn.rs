//! A figure of a report, drawn, and its files.

use std::path::Path;
use taut_results::{ResultsError, write};

/// A figure with its name (of its files too), caption and SVG text.
pub struct Drawn {
    /// File name without its ending.
    pub name: &'static str,
    /// Short title.
    pub title: &'static str,
    /// What to see in it.
    pub caption: String,
    /// The whole SVG document.
    pub svg: String,
    /// What it shows, for a file beside it.
    pub data: Option<serde_json::Value>,
}

/// Writes `figures/` into the results folder `dir`.
pub(crate) fn write_figures(dir: &Path, figures: &[Drawn]) -> Result<(), ResultsError> {
    for figure in figures {
        let name = format!("figures/{}", figure.name);
        write(dir, &format!("{name}.svg"), figure.svg.as_bytes())?;
        if let Some(data) = &figure.data {
            let text = format!("{data:#}\n");
            write(dir, &format!("{name}.json"), text.as_bytes())?;
        }
    }
    Ok(())
}
