//! Errors of forecasts.

use std::path::PathBuf;
use taut_model::estimate::WrongValue;
use taut_model::fit::FitError;
use taut_model::model_file::ModelError;
use taut_model::queueing::QueueingError;

/// Reason why there is no forecast. Its text is one line that states what is needed.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// A file or an option with invalid content.
    #[error("{0}")]
    Wrong(String),
    /// A model that cannot be fitted or evaluated.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A value that is invalid for its quantity.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// A fit that failed.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A queue for which the model has no result.
    #[error(transparent)]
    Queueing(#[from] QueueingError),
    /// A chain that cannot be measured on this machine.
    #[error(transparent)]
    Chain(#[from] taut_deploy::DeployError),
}
