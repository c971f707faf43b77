//! Recorded interruptions: reads `interruptions.json` in a results folder of `taut generate --out`, in which the
//! interruptions of generator and device have one clock.

use crate::ForecastError;
use serde::Deserialize;
use std::path::Path;
use taut_model::queueing::Vacations;
use taut_results::{CoreInterruptions, MeasuredInterruptions, RECORDED_INTERRUPTIONS, read_json};

/// The interruptions of the cores in a measurement, recorded by the loops that run on these cores.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// Length of the recording, ns.
    pub span_ns: f64,
    /// Interruptions of the device's core.
    pub device: Vacations,
    /// Interruptions of the generator's core, which sends and receives.
    pub generator: Vacations,
}

/// The fields of `summary.json` that this module uses.
#[derive(Deserialize)]
struct Summary {
    streams: Vec<Stream>,
}

#[derive(Deserialize)]
struct Stream {
    tally: Tally,
}

#[derive(Deserialize)]
struct Tally {
    seconds: f64,
}

impl Recorded {
    /// Reads the results folder of a measurement.
    ///
    /// # Errors
    /// The folder has no recorded interruptions, the device records none, or the recorder had no space for all of them.
    pub fn read(folder: &Path) -> Result<Self, ForecastError> {
        let wrong = |what: &str| ForecastError::Wrong(format!("{}: {what}", folder.display()));
        let other = "expected a folder of taut generate --out with a device that notes its interruptions, such as --device memif";
        let summary: Option<Summary> = read_json(folder, "summary.json").ok();
        let noted: Option<MeasuredInterruptions> = read_json(folder, RECORDED_INTERRUPTIONS).ok();
        let seconds = summary.and_then(|it| Some(it.streams.first()?.tally.seconds));
        let (Some(seconds), Some(noted)) = (seconds, noted) else {
            return Err(wrong(other));
        };
        let device = noted.device.ok_or_else(|| wrong(other))?;
        if noted.generator.unkept + device.unkept > 0 {
            return Err(wrong(
                "the log of interruptions overflowed: measure for a shorter time",
            ));
        }
        let span_ns = seconds * 1e9;
        Ok(Self {
            span_ns,
            device: vacations(&device, span_ns)?,
            generator: vacations(&noted.generator, span_ns)?,
        })
    }
}

/// Returns the interruptions during the measurement, which lasts from 0 to `span_ns`; parts before and after this
/// period are removed.
fn vacations(core: &CoreInterruptions, span_ns: f64) -> Result<Vacations, ForecastError> {
    let within = |&(start, length): &(i64, u64)| {
        let start_ns = (start as f64).max(0.0);
        let end_ns = (start as f64 + length as f64).min(span_ns);
        (end_ns > start_ns).then_some((start_ns, end_ns - start_ns))
    };
    let each: Vec<(f64, f64)> = core.each.iter().filter_map(within).collect();
    Ok(Vacations::none().with_recorded(&each, span_ns)?)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SUMMARY: &str = r#"{"streams": [{"tally": {"seconds": 0.001}}]}"#;

    fn read(summary: &str, interruptions: &str) -> Result<Recorded, ForecastError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("summary.json"), summary).unwrap();
        std::fs::write(folder.path().join(RECORDED_INTERRUPTIONS), interruptions).unwrap();
        Recorded::read(folder.path())
    }

    #[test]
    fn interruptions_of_both_cores_are_clipped_to_the_measured_period() {
        // The first interruption began before the intended send time of the first packet, the third ended after the
        // last packet, and the fourth began after it.
        let device = "[[-500, 1500], [200000, 50000], [990000, 30000], [1200000, 5000]]";
        let noted = format!(
            r#"{{"generator": {{"unkept": 0, "each": []}}, "device": {{"unkept": 0, "each": {device}}}}}"#
        );
        let found = read(SUMMARY, &noted).unwrap();
        assert_eq!((found.span_ns, found.generator), (1e6, Vacations::none()));
        assert!((found.device.availability() - (1.0 - 0.061)).abs() < 1e-12);
        assert!((found.device.per_second() - 3_000.0).abs() < 1e-9);
    }

    #[test]
    fn recordings_without_complete_interruptions_cause_a_one_line_error() {
        let of = |generator: u64, device: &str| {
            format!(r#"{{"generator": {{"unkept": {generator}, "each": []}}, "device": {device}}}"#)
        };
        let kept = r#"{"unkept": 0, "each": []}"#;
        for (summary, noted, says) in [
            (
                "{}",
                of(0, kept),
                "expected a folder of taut generate --out",
            ),
            (SUMMARY, "{}".to_owned(), "expected a folder"),
            (SUMMARY, of(0, "null"), "that notes its interruptions"),
            (SUMMARY, of(3, kept), "overflowed"),
        ] {
            let error = read(summary, &noted).unwrap_err().to_string();
            assert!(
                error.contains(says) && error.lines().count() == 1,
                "{error}"
            );
        }
        assert!(read(SUMMARY, &of(0, kept)).is_ok());
    }
}
