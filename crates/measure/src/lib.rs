//! Evaluation of measurements: latency histograms, jitter, sequence counting, quantiles with confidence intervals, rate
//! searches. No I/O.
//!
//! Values are integer nanoseconds (`u64`) unless a name says otherwise. The two functions that run once per packet,
//! [`LatencyHistogram::record`] and [`SequenceTracker::record`], neither allocate nor fail.
//!
//! The types to know:
//!
//! - [`LatencyHistogram`]: all latencies of a trial, with a known error, and the [`Summary`] that tables show.
//! - [`SequenceTracker`]: which packets were lost, duplicated or reordered.
//! - [`Interval`]: an estimate with its confidence interval and the confidence. Every claim of an experiment has one.
//!
//! The generator records packets; the other types evaluate the recorded data. [`ThroughputSearch`] and [`BurstSearch`]
//! run no trials themselves: the caller gets the next trial from them and reports its outcome. [`compare()`] and
//! [`judge()`] decide whether two groups of values differ, [`ratio_interval`] by how much, and [`Sequential`] decides
//! during the runs. [`screening`] finds the effects of many settings at once. [`Bounded`] is a value that other programs
//! may have changed. [`Crossings`] matches two observations of a packet, for wiretaps. [`quantity`] formats numbers for
//! users.
//!
//! Readers begin with `latency.rs`, then `interval.rs`, then `throughput.rs`.
//!
//! ```
//! use taut_measure::{LatencyHistogram, SequenceTracker};
//!
//! let mut latency = LatencyHistogram::new();
//! let mut seen = SequenceTracker::new();
//! for sequence in (0..1000).filter(|it| it % 100 != 7) {
//!     latency.record(500 + sequence % 10);
//!     seen.record(sequence);
//! }
//! assert_eq!(seen.finish(1000).lost, 10);
//! assert!((500..520).contains(&latency.quantile(0.99).unwrap()));
//! ```

#![forbid(unsafe_code)]
// Silent truncation of numbers causes errors in packets and statistics. Tests may truncate.
#![cfg_attr(
    not(test),
    warn(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_possible_wrap
    )
)]

pub mod burst;
pub mod compare;
pub mod crossing;
pub mod disturbed;
pub mod gaps;
pub mod goal;
mod goals;
pub mod interval;
pub mod jitter;
pub mod latency;
mod moments;
pub mod precision;
pub mod quantity;
pub mod rank;
pub mod screening;
pub mod search;
mod selector;
pub mod sequence;
pub mod sequential;
pub mod stop;
pub mod summary;
pub mod throughput;

pub use burst::{BURST_PRECISION, BufferTime, BurstSearch};
pub use compare::{Comparison, Finding, Judged, compare, holm, judge, mann_whitney, runs_needed};
pub use crossing::{Crossed, CrossingAccount, Crossings};
pub use disturbed::{Bounded, bounded_ratio_interval, disturbed_share};
pub use gaps::{GapRecorder, GapSummary};
pub use goal::{EXCEED_RATIO, Goal, GoalResult};
pub use interval::{
    Interval, IntervalMethod, LEAST_PAIRS, PairedRatio, Ranks, mean_beside_median, median_interval,
    quantile_interval, quantile_interval_ranks, ratio_interval,
};
pub use jitter::{JitterRecorder, JitterSummary};
pub use latency::{Bucket, HlogError, HlogReadError, LatencyHistogram};
pub use precision::Precision;
pub use rank::median;
pub use search::{
    LadderSearch, Limit, SearchResult, SearchSettings, SearchSettingsError, Trial, TrialOutcome,
    Verdict,
};
pub use sequence::{Arrival, SequenceReport, SequenceTracker};
pub use sequential::{Decision, Sequential};
pub use stop::{Progress, StopRule};
pub use summary::Summary;
pub use throughput::{
    METHODS, Method, ThroughputResult, ThroughputSearch, ThroughputSettings,
    ThroughputSettingsError, TimedTrial, Wanted,
};
