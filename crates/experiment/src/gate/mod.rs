//! Gate: runs two commands in pairs until it is decided whether the second command is worse than a limit.
//!
//! [`Settings`] define the commands, metrics and limits. [`run`] makes the pairs: each pair runs both commands once, in
//! random order, and [`taut_measure::sequential`] decides after each pair. [`Outcome`] is the result, and [`write()`]
//! stores the result in a folder. A [`Runner`] runs one command and returns its metrics; [`Commands`] does so with a
//! shell.

mod commands;
mod metric;
mod write;

pub use commands::Commands;
pub use metric::Metric;
pub use write::{junit, markdown, write};

use crate::error::ExperimentError;
use crate::limit::Limit;
use fastrand::Rng;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_measure::sequential::{Decision, POWER};
use taut_measure::{Interval, Sequential, median};

/// Confidence level of the intervals of ratios.
const CONFIDENCE: f64 = 0.95;

/// Largest number of pairs that a gate's outcome predicts as necessary for a decision; if more are necessary, the
/// outcome contains no prediction.
const FORESEEN: usize = 2_000;

/// The settings of a gate: the two commands to compare, their metrics and limits.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Command lines of the shell: the base, then the head.
    pub commands: [String; 2],
    /// The metrics that are compared; at least one.
    pub metrics: Vec<Metric>,
    /// Largest allowed deterioration of the head, compared with the base.
    pub limit: Limit,
    /// Highest probability that the verdict "worse" is wrong, and likewise that "within" is: above 0 and below 1. It is
    /// divided among the metrics.
    pub level: f64,
    /// Time after the start of the gate from which no further pair begins.
    pub time: Duration,
    /// Maximum number of pairs of runs.
    pub pairs: usize,
    /// Seed of the random order of the two commands in a pair.
    pub seed: u64,
}

/// One of the two commands that a gate compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The reference command, with which the other command is compared.
    Base,
    /// The command `head`, which must not be worse than `base`.
    Head,
}

impl Which {
    /// Returns the index of the command: 0 for the base, 1 for the head.
    pub fn index(self) -> usize {
        match self {
            Self::Base => 0,
            Self::Head => 1,
        }
    }

    /// Returns the other command.
    pub fn other(self) -> Self {
        match self {
            Self::Base => Self::Head,
            Self::Head => Self::Base,
        }
    }
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Base => "base",
            Self::Head => "head",
        })
    }
}

/// The reason why a run of a gate's command has no metrics.
#[derive(Debug)]
pub enum RunError {
    /// The command of the gate failed.
    Failed {
        /// End of the command, or the missing output, in words: `exit code 3`.
        reason: String,
        /// The last lines that the command wrote to standard error, or else to standard output.
        printed: Vec<String>,
    },
    /// The user requested a stop during the run.
    Stopped,
    /// A file of the gate could not be written.
    File(ExperimentError),
}

/// Runs commands and returns their metrics.
pub trait Runner {
    /// Runs a command once, and returns its metrics in the order of [`Settings::metrics`], each above zero.
    ///
    /// # Errors
    /// The command failed, took too long, printed no such metric or a value that is not above zero, or was stopped.
    fn run(&mut self, which: Which) -> Result<Vec<f64>, RunError>;

    /// Returns the time since the gate began.
    fn elapsed(&self) -> Duration;
}

/// The results of one run of each of the two commands of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Pair {
    /// The command that ran first.
    pub first: Which,
    /// The base's metrics, in the order of [`Settings::metrics`].
    pub base: Vec<f64>,
    /// The head's metrics, in the order of [`Settings::metrics`].
    pub head: Vec<f64>,
}

/// The verdict of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A metric of the head is worse than the limit.
    Worse,
    /// No metric is worse than the limit.
    Within,
    /// The time limit or the maximum number of pairs was reached before the comparison was decided.
    CannotTell,
    /// A command failed, or the gate was interrupted, before the comparison was decided. No single metric has this
    /// verdict.
    Stopped,
}

/// The reason why a gate stopped before its verdict.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Stopped {
    /// The reason in words: `stopped: head failed in pair 12 (exit code 3)`.
    pub text: String,
    /// The command that failed; none if the gate was interrupted.
    pub command: Option<Which>,
    /// Number of the incomplete pair, from 1; 0 for the warm-up runs.
    pub pair: u64,
    /// End of the command, or the missing output, in words; empty if the gate was interrupted.
    pub reason: String,
    /// The last lines that the command printed.
    pub printed: Vec<String>,
}

impl Stopped {
    /// Describes the failure of a command in the pair with the given number; 0 means the warm-up runs.
    fn failed(which: Which, pair: u64, reason: String, printed: Vec<String>) -> Self {
        Self {
            text: format!("stopped: {which} failed in {} ({reason})", place(pair)),
            command: Some(which),
            pair,
            reason,
            printed,
        }
    }

    /// Describes an interruption in the pair with the given number; 0 means the warm-up runs.
    fn interrupted(pair: u64) -> Self {
        Self {
            text: format!("stopped: interrupted in {}", place(pair)),
            command: None,
            pair,
            reason: String::new(),
            printed: Vec::new(),
        }
    }
}

/// Returns the pair in words, from its number; 0 means the warm-up runs.
fn place(pair: u64) -> String {
    match pair {
        0 => "the warm-up".to_owned(),
        _ => format!("pair {pair}"),
    }
}

/// The result of the comparison of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MetricOutcome {
    /// The metric as given on the command line, such as `time`.
    pub metric: String,
    /// The verdict on this metric, regardless of the other metrics.
    pub verdict: Verdict,
    /// Median of the base's runs, in the metric's unit; seconds for `time`.
    pub base: f64,
    /// Median of the head's runs, in the metric's unit; seconds for `time`.
    pub head: f64,
    /// Median of the pairs' ratios head / base.
    pub ratio: f64,
    /// Always-valid confidence interval of the ratio: it stays valid although it is evaluated after every pair. None
    /// with six pairs or fewer.
    pub interval: Option<Interval>,
    /// Always-valid p-value of the hypothesis "the head is not worse than the limit": small if the head is worse.
    pub p_worse: f64,
    /// Always-valid p-value of the hypothesis "the head is worse than the limit": small if the head is within the
    /// limit.
    pub p_within: f64,
    /// Smallest change beyond the limit, as a fraction, that the same number of pairs would detect with the probability
    /// [`Outcome::power`]. None if these pairs would not detect a doubling (or a halving, if a lower value is worse).
    pub smallest_detectable: Option<f64>,
    /// Number of pairs within which the measured ratio would lead to a decision with the probability
    /// [`Outcome::power`]. None if the verdict is not [`Verdict::CannotTell`], or if 2,000 pairs do not suffice.
    pub pairs_needed: Option<u64>,
}

/// The result of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Outcome {
    /// Version of the format of the stored outcome.
    pub schema: u32,
    /// Version of taut that ran the gate.
    pub taut: String,
    /// Time at which the gate began, RFC 3339.
    pub started: String,
    /// Time from the start of the first pair to the end of the last one, s; the warm-up is not included.
    pub seconds: f64,
    /// The verdict of the gate over all metrics.
    pub verdict: Verdict,
    /// The base's command line.
    pub base: String,
    /// The head's command line.
    pub head: String,
    /// The limit with which the metrics were compared.
    pub limit: Limit,
    /// Highest accepted probability of a wrong verdict, 0 to 1.
    pub level: f64,
    /// Probability of a detection or decision to which [`MetricOutcome::smallest_detectable`] and
    /// [`MetricOutcome::pairs_needed`] refer.
    pub power: f64,
    /// Seed of the random order of the two commands in each pair.
    pub seed: u64,
    /// Model of the machine's CPU.
    pub cpu_model: Option<String>,
    /// True if the gate was interrupted before all metrics were decided.
    pub interrupted: bool,
    /// The reason why the gate was stopped before its verdict; none if it was not.
    #[serde(default)]
    pub stopped: Option<Stopped>,
    /// The result for each metric; empty without a complete pair.
    pub metrics: Vec<MetricOutcome>,
    /// All pairs, in their order.
    pub pairs: Vec<Pair>,
}

impl Outcome {
    /// Version of the layout of `gate.json`.
    pub const SCHEMA: u32 = 1;

    /// Returns the mean duration of a pair of runs, s.
    pub fn seconds_per_pair(&self) -> f64 {
        self.seconds / self.pairs.len().max(1) as f64
    }
}

/// Runs pairs until all metrics are decided, one metric is worse, time or pairs are used up, a command fails, or `stop`
/// is set. `seen` is called after each pair with the number of pairs and a text with the median ratio of each metric.
///
/// # Errors
/// A file could not be written. The failure of a command is no error but part of the outcome, because the pairs before
/// the failure count.
pub fn run(
    settings: &Settings,
    runner: &mut impl Runner,
    stop: &AtomicBool,
    mut seen: impl FnMut(usize, &str),
) -> Result<Outcome, ExperimentError> {
    let started = taut_results::instant(std::time::SystemTime::now());
    // The warm-up shows before the first pair whether both commands work and print the metrics.
    let mut stopped = run_pair(0, [Which::Base, Which::Head], runner)?.err();
    let began = runner.elapsed();
    let mut coin = Rng::with_seed(settings.seed);
    let mut comparisons = begin(settings);
    let mut pairs: Vec<Pair> = Vec::new();
    let mut longest = Duration::ZERO;
    while stopped.is_none()
        && verdict_of(&comparisons) == Verdict::CannotTell
        && pairs.len() < settings.pairs
    {
        let begins = runner.elapsed();
        if !pairs.is_empty() && begins + longest > settings.time {
            break;
        }
        let order = match coin.bool() {
            true => [Which::Base, Which::Head],
            false => [Which::Head, Which::Base],
        };
        let next = pairs.len() as u64 + 1;
        let pair = match run_pair(next, order, runner)? {
            Ok(pair) => pair,
            Err(end) => {
                stopped = Some(end);
                break;
            }
        };
        longest = longest.max(runner.elapsed().saturating_sub(begins));
        record(settings.limit, &mut comparisons, &pair);
        pairs.push(pair);
        seen(pairs.len(), &standing(settings, &comparisons));
        if stop.load(Ordering::Relaxed) && verdict_of(&comparisons) == Verdict::CannotTell {
            stopped = Some(Stopped::interrupted(next + 1));
        }
    }
    let seconds = runner.elapsed().saturating_sub(began).as_secs_f64();
    let times = (started, seconds);
    Ok(outcome(settings, &comparisons, times, pairs, stopped))
}

/// Returns the outcome of a gate. `started` is the start of the gate (RFC 3339), and `seconds` the duration of its
/// pairs.
fn outcome(
    settings: &Settings,
    comparisons: &[Sequential],
    (started, seconds): (String, f64),
    pairs: Vec<Pair>,
    stopped: Option<Stopped>,
) -> Outcome {
    let of = |(index, comparison)| metric_outcome(settings, index, comparison, &pairs);
    // Without a complete pair, no metric has a result.
    let compared = comparisons.iter().enumerate().filter(|_| !pairs.is_empty());
    Outcome {
        schema: Outcome::SCHEMA,
        taut: env!("CARGO_PKG_VERSION").to_owned(),
        started,
        seconds,
        verdict: match &stopped {
            Some(_) => Verdict::Stopped,
            None => verdict_of(comparisons),
        },
        base: settings.commands[0].clone(),
        head: settings.commands[1].clone(),
        limit: settings.limit,
        level: settings.level,
        power: POWER,
        seed: settings.seed,
        cpu_model: taut_host::Machine::read().cpu_model.map(|fact| fact.value),
        interrupted: stopped.as_ref().is_some_and(|it| it.command.is_none()),
        metrics: compared.map(of).collect(),
        stopped,
        pairs,
    }
}

/// Runs both commands once in the given order, in the pair with the given number. The inner error is the reason why the
/// pair is incomplete.
///
/// # Errors
/// A file could not be written.
fn run_pair(
    pair: u64,
    order: [Which; 2],
    runner: &mut impl Runner,
) -> Result<Result<Pair, Stopped>, ExperimentError> {
    let mut values = [Vec::new(), Vec::new()];
    for which in order {
        values[which.index()] = match runner.run(which) {
            Ok(values) => values,
            Err(RunError::Failed { reason, printed }) => {
                return Ok(Err(Stopped::failed(which, pair, reason, printed)));
            }
            Err(RunError::Stopped) => return Ok(Err(Stopped::interrupted(pair))),
            Err(RunError::File(e)) => return Err(e),
        };
    }
    let [base, head] = values;
    let first = order[0];
    Ok(Ok(Pair { first, base, head }))
}

fn record(limit: Limit, comparisons: &mut [Sequential], pair: &Pair) {
    for (index, comparison) in comparisons.iter_mut().enumerate() {
        let (base, head) = (pair.base[index], pair.head[index]);
        if limit.less_is_worse {
            comparison.record(head, base);
        } else {
            comparison.record(base, head);
        }
    }
}

/// Returns one comparison for each metric. A metric for which a lower value is worse is compared by its inverse. The
/// metrics share the probability of a wrong verdict (Bonferroni).
fn begin(settings: &Settings) -> Vec<Sequential> {
    let level = settings.level / settings.metrics.len().max(1) as f64;
    let limit = settings.limit.ratio();
    let limit = if settings.limit.less_is_worse {
        1.0 / limit
    } else {
        limit
    };
    vec![Sequential::new(limit, level); settings.metrics.len()]
}

fn verdict_of(comparisons: &[Sequential]) -> Verdict {
    let has = |wanted: Decision| comparisons.iter().any(|it| it.decision() == wanted);
    if has(Decision::Worse) {
        Verdict::Worse
    } else if has(Decision::Open) {
        Verdict::CannotTell
    } else {
        Verdict::Within
    }
}

/// Returns a text with the median ratio of each metric over the complete pairs.
fn standing(settings: &Settings, comparisons: &[Sequential]) -> String {
    let ratios = settings.metrics.iter().zip(comparisons);
    let texts: Vec<String> = ratios
        .filter_map(|(metric, comparison)| {
            let ratio = upright(settings.limit, comparison.median_ratio()?);
            Some(format!("{metric} {ratio:.3}"))
        })
        .collect();
    texts.join(", ")
}

/// Returns a ratio as head / base. Metrics for which a lower value is worse are compared as base / head, so their
/// ratios are inverted.
fn upright(limit: Limit, ratio: f64) -> f64 {
    if limit.less_is_worse {
        1.0 / ratio
    } else {
        ratio
    }
}

fn metric_outcome(
    settings: &Settings,
    index: usize,
    comparison: &Sequential,
    pairs: &[Pair],
) -> MetricOutcome {
    let limit = settings.limit;
    let values = |of: fn(&Pair) -> &Vec<f64>| {
        let values: Vec<f64> = pairs.iter().map(|pair| of(pair)[index]).collect();
        median(&values).unwrap_or(f64::NAN)
    };
    let ratio = comparison.median_ratio().unwrap_or(f64::NAN);
    let interval = comparison.ratio(CONFIDENCE).map(|interval| {
        let (low, high) = (upright(limit, interval.low), upright(limit, interval.high));
        Interval {
            low: low.min(high),
            point: upright(limit, interval.point),
            high: low.max(high),
            ..interval
        }
    });
    let verdict = match comparison.decision() {
        Decision::Worse => Verdict::Worse,
        Decision::Within => Verdict::Within,
        Decision::Open => Verdict::CannotTell,
    };
    let beyond = upright(limit, ratio) / limit.ratio();
    let needed = (verdict == Verdict::CannotTell)
        .then(|| comparison.pairs_needed(upright(limit, beyond), FORESEEN))
        .flatten();
    let detectable = comparison.smallest_detectable(pairs.len());
    MetricOutcome {
        metric: settings.metrics[index].to_string(),
        verdict,
        base: values(|pair| &pair.base),
        head: values(|pair| &pair.head),
        ratio: upright(limit, ratio),
        interval,
        p_worse: comparison.p_worse(),
        p_within: comparison.p_within(),
        smallest_detectable: detectable.map(|factor| (upright(limit, factor) - 1.0).abs()),
        pairs_needed: needed.map(|pairs| pairs as u64),
    }
}

#[cfg(test)]
mod tests;
