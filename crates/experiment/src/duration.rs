//! Parses times in an experiment file.

use crate::error::{ExperimentError, Source};
use std::time::Duration;

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
