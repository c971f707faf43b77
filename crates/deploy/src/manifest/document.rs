//! One of the YAML files that together form a manifest.

use crate::error::DeployError;
use serde_json::Value;

/// A file of a manifest.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Name of the file, with its extension.
    pub name: String,
    /// Content of the file.
    pub content: Value,
}

impl Document {
    /// Returns the document's text, YAML.
    ///
    /// # Errors
    /// The content cannot be written as YAML. The contents that this crate creates can always be written.
    pub fn text(&self) -> Result<String, DeployError> {
        serde_norway::to_string(&self.content)
            .map_err(|e| DeployError::system(self.name.clone(), std::io::Error::other(e)))
    }
}
