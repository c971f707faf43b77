//! Searches the highest rate without loss and reordering.

use super::{ProbeSession, Train, TrainResult};
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_measure::{ThroughputResult, ThroughputSearch, TrialOutcome, Wanted};

/// Time to wait for replies after the last probe of a trial, in addition to the longest measured round trip.
const PATIENCE: Duration = Duration::from_millis(200);

/// A client is too slow if sending takes longer than `MOST_LATE` times the intended time plus `LATE_AT_LEAST_SECONDS`.
const MOST_LATE: f64 = 1.02;
const LATE_AT_LEAST_SECONDS: f64 = 0.002;

/// Result of a search for the highest rate without loss and reordering.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct SearchedRate {
    /// The highest rate and all trials. In the trials, reordered probes count as not received.
    #[serde(flatten)]
    pub found: ThroughputResult,
    /// Number of reordered probes in all trials.
    pub reordered: u64,
}

/// Searches the highest rate without loss and reordering, with probes of `size_bytes`; `progress` is called before
/// every trial.
///
/// # Errors
/// The socket fails permanently.
pub fn search_rate(
    session: &mut ProbeSession,
    mut search: ThroughputSearch,
    size_bytes: usize,
    stop: &AtomicBool,
    mut progress: impl FnMut(Wanted),
) -> std::io::Result<SearchedRate> {
    let mut reordered = 0;
    while let Some(wanted) = search.next().filter(|_| !stop.load(Ordering::Relaxed)) {
        progress(wanted);
        let count = (wanted.rate_pps * wanted.seconds).ceil().max(1.0) as u32;
        let train = Train {
            interval: Duration::from_secs_f64(1.0 / wanted.rate_pps),
            size_bytes,
            count,
            patience: PATIENCE + session.longest_round_trip(),
        };
        let result = session.send_train(&train, stop)?;
        if result.stopped {
            break;
        }
        reordered += result.sequence.reordered;
        search.report(wanted, outcome(&train, &result));
    }
    Ok(SearchedRate {
        found: search.result(),
        reordered,
    })
}

fn outcome(train: &Train, result: &TrainResult) -> TrialOutcome {
    let sequence = &result.sequence;
    let planned = train.interval.as_secs_f64() * f64::from(train.count - 1);
    TrialOutcome {
        offered_pps: match sequence.sent {
            ..=1 => 1.0 / train.interval.as_secs_f64(),
            sent => (sent - 1) as f64 / result.seconds.max(planned),
        },
        sent: sequence.sent,
        received: sequence.received_unique.saturating_sub(sequence.reordered),
        refused: result.refused,
        generator_behind: result.seconds > planned * MOST_LATE + LATE_AT_LEAST_SECONDS,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_measure::{SequenceTracker, Verdict};

    const TRAIN: Train = Train {
        interval: Duration::from_millis(1),
        size_bytes: 64,
        count: 4,
        patience: PATIENCE,
    };

    fn result(arrivals: &[u64], seconds: f64) -> TrainResult {
        let mut tracker = SequenceTracker::with_window(64);
        arrivals.iter().for_each(|sequence| {
            tracker.record(*sequence);
        });
        TrainResult {
            probes: Vec::new(),
            sequence: tracker.finish(4),
            refused: 0,
            late: 0,
            malformed: 0,
            unreachable: 0,
            seconds,
            stopped: false,
        }
    }

    #[test]
    fn reordered_packets_fail_a_trial_like_lost_packets() {
        let verdict =
            |arrivals: &[u64], seconds| outcome(&TRAIN, &result(arrivals, seconds)).verdict();
        assert_eq!(verdict(&[0, 1, 2, 3], 0.003), Verdict::LossFree);
        assert_eq!(verdict(&[0, 2, 1, 3], 0.003), Verdict::Lossy);
        assert_eq!(verdict(&[0, 1, 3], 0.003), Verdict::Lossy);
        assert_eq!(verdict(&[0, 1, 1, 2, 3], 0.003), Verdict::LossFree);
        assert_eq!(verdict(&[0, 1, 2, 3], 0.02), Verdict::GeneratorBehind);
    }
}
