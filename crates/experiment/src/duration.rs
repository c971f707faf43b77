//! Durations and times in experiment files and results.

use crate::error::{ExperimentError, Source};
use std::time::{Duration, SystemTime};

/// Parses `text`, the duration that the experiment file sets under `name`.
pub(crate) fn time(source: &Source, name: &str, text: &str) -> Result<Duration, ExperimentError> {
    taut_settings::duration(text)
        .filter(|time| !time.is_zero())
        .ok_or_else(|| {
            source.wrong_somewhere(format!(
                "{name}: `{text}` is not a time; write 500ms or 60s"
            ))
        })
}

/// Returns the current time as text, RFC 3339.
pub(crate) fn now() -> String {
    taut_results::instant(SystemTime::now())
}
