//! Model files: TOML, checked when they are read.

use crate::ForecastError;
use crate::machine::one_line;
use std::path::Path;
use taut_model::model_file::Model;

/// Reads a model from a file.
///
/// # Errors
/// The file cannot be read, or is not a model.
pub fn load(path: &Path) -> Result<Model, ForecastError> {
    let text = std::fs::read_to_string(path).map_err(|source| ForecastError::File {
        path: path.to_owned(),
        source,
    })?;
    toml::from_str(&text)
        .map_err(|e| ForecastError::Wrong(format!("{}: {}", path.display(), one_line(&e))))
}

/// Writes a model atomically: at any time the file has either the complete old or the complete new content.
///
/// # Errors
/// The file cannot be written.
pub fn keep(model: &Model, path: &Path) -> Result<(), ForecastError> {
    let text = toml::to_string(model).map_err(|e| ForecastError::Wrong(e.to_string()))?;
    taut_results::write_whole(path, text.as_bytes())
        .map_err(|e| ForecastError::Wrong(e.to_string()))
}
