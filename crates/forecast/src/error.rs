//! Why there is no forecast.

use std::path::PathBuf;
use taut_model::estimate::WrongValue;
use taut_model::fit::FitError;
use taut_model::model_file::ModelError;
use taut_model::queueing::QueueingError;

/// Why there is no forecast. Each is one line that says what is needed.
#[derive(Debug, thiserror::Error)]
pub enum ForecastError {
    /// A file that cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file or an option with something wrong in it.
    #[error("{0}")]
    Wrong(String),
    /// A model that cannot be fitted or asked.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A value that cannot be.
    #[error(transparent)]
    Value(#[from] WrongValue),
    /// A fit that cannot be.
    #[error(transparent)]
    Fit(#[from] FitError),
    /// A queue without an answer.
    #[error(transparent)]
    Queueing(#[from] QueueingError),
    /// A chain that cannot be measured here.
    #[error(transparent)]
    Chain(#[from] taut_deploy::DeployError),
}
