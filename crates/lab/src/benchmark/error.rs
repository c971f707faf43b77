//! Why a benchmark has no result at all.

use taut_results::ResultsError;

/// Why a benchmark has no result at all.
#[derive(Debug, thiserror::Error)]
pub enum BenchmarkError {
    /// The results cannot be written.
    #[error(transparent)]
    Results(#[from] ResultsError),
    /// A subject was asked for that there is not.
    #[error("no {what} \"{asked}\" here; there are {there}")]
    Unknown {
        /// What a subject is called.
        what: &'static str,
        /// Id that was asked for.
        asked: String,
        /// Ids that there are.
        there: String,
    },
    /// A subject was asked for that the machine lacks something for.
    #[error("{0}")]
    Missing(String),
    /// Nothing could be measured.
    #[error("no {what} could be measured; the first said: {why}")]
    Nothing {
        /// What a subject is called.
        what: &'static str,
        /// What the first one that failed said.
        why: String,
    },
    /// A core cannot be used.
    #[error(transparent)]
    Affinity(#[from] taut_host::AffinityError),
    /// The machine lacks something that all of it needs.
    #[error(transparent)]
    Port(#[from] taut_port::PortError),
}
