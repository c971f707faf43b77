//! A figure of a report, drawn, and its files.

use std::fs;
use std::path::Path;
use taut_results::{ResultsError, write_json, write_whole};

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
    let folder = dir.join("figures");
    fs::create_dir_all(&folder).map_err(ResultsError::io(folder.clone()))?;
    for figure in figures {
        let path = folder.join(format!("{}.svg", figure.name));
        write_whole(&path, figure.svg.as_bytes())?;
        if let Some(data) = &figure.data {
            write_json(&folder.join(format!("{}.json", figure.name)), data)?;
        }
    }
    Ok(())
}
