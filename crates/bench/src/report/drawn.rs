//! A drawn figure of a report, and its files.

use std::path::Path;
use taut_results::{ResultsError, write};

/// A figure of a report, with its texts, its SVG document and its data.
pub struct Drawn {
    /// File name without its extension.
    pub name: &'static str,
    /// Short title of the figure.
    pub title: &'static str,
    /// The text below the figure, which describes it.
    pub caption: String,
    /// The SVG document.
    pub svg: String,
    /// The data of the figure, for a separate file; none for a figure without such a file.
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
