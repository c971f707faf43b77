//! The reasons why a benchmark has no result at all.

use taut_results::ResultsError;

/// The reason why a benchmark has no result at all.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// The plan requests a subject, such as a framework, that does not exist.
    #[error("unknown {what} \"{asked}\"; available: {there}")]
    Unknown {
        /// The noun for a measured item, such as `framework`.
        what: &'static str,
        /// The id that the user requested and that does not exist.
        asked: String,
        /// The ids of the subjects that exist, separated by commas.
        there: String,
    },
    /// The plan requests a subject that this machine does not support; the string is the message.
    #[error("{0}")]
    Missing(String),
    /// Every single measurement failed.
    #[error("no {what} could be measured; the first failed: {why}")]
    Nothing {
        /// The noun for a measured item, such as `framework`.
        what: &'static str,
        /// The error of the first measurement that failed.
        why: String,
    },
    /// The benchmark's thread could not be pinned to its core.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
    /// The machine lacks something that the complete benchmark needs.
    #[error(transparent)]
    Port(#[from] taut_port::PortError),
}
