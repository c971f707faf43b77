//! The gate: runs two commands in pairs until it is known whether the second one is worse than a limit.
//!
//! [`Settings`] say what is compared. [`run`] makes the pairs: each runs both commands once, in random order, and
//! [`taut_measure::sequential`] decides after each pair. [`Outcome`] is the result, and [`write()`] stores the result
//! in a folder. A [`Runner`] runs one command and returns its metrics; [`Commands`] does so with a shell.

mod commands;
mod metric;
mod write;

pub use commands::Commands;
pub use metric::Metric;
pub use write::{junit, markdown, write};

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use taut_measure::sequential::{Decision, POWER};
use taut_measure::{Interval, Sequential, median};

/// Confidence of the intervals of ratios.
const CONFIDENCE: f64 = 0.95;

/// Largest number of pairs that the outcome predicts as necessary for a decision; above it, the outcome predicts none.
const FORESEEN: usize = 2_000;

/// The comparison that a gate makes.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Command lines of the shell: the base, then the head.
    pub commands: [String; 2],
    /// The metrics that are compared; at least one.
    pub metrics: Vec<Metric>,
    /// The change that is worse than allowed.
    pub limit: Limit,
    /// Highest probability of a wrong "worse", and of a wrong "within", 0 to 1, both excluded. Several metrics share
    /// this probability.
    pub level: f64,
    /// Time after which no further pair begins.
    pub time: Duration,
    /// Maximum number of pairs.
    pub pairs: usize,
    /// Seed of the random order of the two commands in a pair.
    pub seed: u64,
}

/// The change of a metric up to which the head is not worse.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Fraction of the base's value, such as 0.03; at least 0.
    pub share: f64,
    /// True if a lower value is worse, as for rates.
    pub less_is_worse: bool,
}

impl Limit {
    /// Returns the ratio head / base at the limit.
    pub fn ratio(self) -> f64 {
        if self.less_is_worse {
            1.0 - self.share
        } else {
            1.0 + self.share
        }
    }
}

impl std::str::FromStr for Limit {
    type Err = String;

    /// Parses a limit such as `3%`, or `-5%` if a lower value is worse.
    fn from_str(text: &str) -> Result<Self, String> {
        let (less_is_worse, digits) = match text.strip_prefix('-') {
            Some(digits) => (true, digits),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let percent = digits
            .strip_suffix('%')
            .and_then(|it| it.trim().parse::<f64>().ok());
        let share = percent.map(|percent| percent / 100.0);
        let highest = if less_is_worse { 1.0 } else { f64::INFINITY };
        match share {
            Some(share) if (0.0..highest).contains(&share) => Ok(Self {
                share,
                less_is_worse,
            }),
            _ => Err(format!(
                "`{text}` is not a limit: give a change such as 3%, or -5% where a lower value is worse"
            )),
        }
    }
}

impl std::fmt::Display for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.less_is_worse { "-" } else { "+" };
        write!(f, "{sign}{} %", rounded(self.share * 100.0))
    }
}

/// One of the two commands that a gate compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The reference.
    Base,
    /// The command that must not be worse.
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
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Base => "base",
            Self::Head => "head",
        })
    }
}

/// The reason why a gate ended without an outcome.
#[derive(Debug, thiserror::Error)]
pub enum GateError {
    /// A command failed.
    #[error("the {which} command failed in run {run}: {reason}")]
    Failed {
        /// The command that failed: base or head.
        which: Which,
        /// Number of the command's run, from 1; the first one is the warm-up.
        run: u64,
        /// Exit status of the command, and the last line that the command printed.
        reason: String,
    },
    /// A file could not be written or read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder that could not be written or read.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The stop flag was set.
    #[error("stopped")]
    Stopped,
}

/// Runs commands and returns their metrics.
pub trait Runner {
    /// Runs a command once, and returns its metrics in the order of [`Settings::metrics`], each above zero.
    ///
    /// # Errors
    /// The command failed, took too long, printed no such metric or a value that is not above zero, or was stopped.
    fn run(&mut self, which: Which) -> Result<Vec<f64>, GateError>;

    /// Returns the time since the gate began.
    fn elapsed(&self) -> Duration;
}

/// One pair of runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Pair {
    /// The command that ran first.
    pub first: Which,
    /// The base's metrics, in the order of [`Settings::metrics`].
    pub base: Vec<f64>,
    /// The head's metrics, in the order of [`Settings::metrics`].
    pub head: Vec<f64>,
}

/// The verdict of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A metric of the head is worse than the limit.
    Worse,
    /// No metric is worse than the limit.
    Within,
    /// The time limit or the maximum number of pairs was reached before the comparison was decided.
    CannotTell,
}

/// The result of the comparison of one metric.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
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
    /// Always-valid confidence interval of the ratio, which remains valid however often it is read; none with six pairs
    /// or fewer.
    pub interval: Option<Interval>,
    /// Always-valid p-value of "the head is not worse than the limit": small if it is worse.
    pub p_worse: f64,
    /// Always-valid p-value of "the head is worse than the limit": small if it is within.
    pub p_within: f64,
    /// Smallest change beyond the limit, as a fraction, that as many pairs as were run would detect with the
    /// probability [`Outcome::power`]. None if they would not detect a doubling (or a halving, if a lower value is
    /// worse).
    pub smallest_detectable: Option<f64>,
    /// Number of pairs within which the measured ratio would lead to a decision with the probability
    /// [`Outcome::power`]. None unless the verdict is [`Verdict::CannotTell`], and if 2,000 pairs do not suffice.
    pub pairs_needed: Option<u64>,
}

/// The result of a gate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// Version of the format of the stored outcome.
    pub schema: u32,
    /// Version of taut.
    pub taut: String,
    /// Time at which the gate began, RFC 3339.
    pub started: String,
    /// Time from the start of the first pair to the end of the last one, s; the warm-up is not included.
    pub seconds: f64,
    /// The verdict over all metrics.
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
    /// True if the gate was stopped before all metrics were decided.
    pub interrupted: bool,
    /// The result for each metric.
    pub metrics: Vec<MetricOutcome>,
    /// All pairs, in their order.
    pub pairs: Vec<Pair>,
}

impl Outcome {
    const SCHEMA: u32 = 1;

    /// Returns the mean duration of a pair of runs, s.
    pub fn seconds_per_pair(&self) -> f64 {
        self.seconds / self.pairs.len().max(1) as f64
    }
}

/// Runs pairs until all metrics are decided, one is worse, the time or the pairs are used up, or `stop` is set. `seen`
/// is called after each pair with the number of pairs and a text with the median ratio of each metric.
///
/// # Errors
/// A command failed, or the gate was stopped before the first pair.
pub fn run(
    settings: &Settings,
    runner: &mut impl Runner,
    stop: &AtomicBool,
    mut seen: impl FnMut(usize, &str),
) -> Result<Outcome, GateError> {
    let started = taut_results::instant(std::time::SystemTime::now());
    // The warm-up shows at once whether both commands work and print the metrics.
    for which in [Which::Base, Which::Head] {
        runner.run(which)?;
    }
    let began = runner.elapsed();
    let mut coin = Rng::with_seed(settings.seed);
    let mut comparisons = begin(settings);
    let mut pairs: Vec<Pair> = Vec::new();
    let mut longest = Duration::ZERO;
    let mut interrupted = false;
    while verdict_of(&comparisons) == Verdict::CannotTell && pairs.len() < settings.pairs {
        let begins = runner.elapsed();
        if !pairs.is_empty() && begins + longest > settings.time {
            break;
        }
        let order = match coin.bool() {
            true => [Which::Base, Which::Head],
            false => [Which::Head, Which::Base],
        };
        let pair = match run_pair(order, runner) {
            Ok(pair) => pair,
            Err(GateError::Stopped) if !pairs.is_empty() => {
                interrupted = true;
                break;
            }
            Err(e) => return Err(e),
        };
        longest = longest.max(runner.elapsed().saturating_sub(begins));
        record(settings.limit, &mut comparisons, &pair);
        pairs.push(pair);
        seen(pairs.len(), &standing(settings, &comparisons));
        if stop.load(Ordering::Relaxed) {
            interrupted = verdict_of(&comparisons) == Verdict::CannotTell;
            break;
        }
    }
    let seconds = runner.elapsed().saturating_sub(began).as_secs_f64();
    let of = |(index, comparison)| metric_outcome(settings, index, comparison, &pairs);
    Ok(Outcome {
        schema: Outcome::SCHEMA,
        taut: env!("CARGO_PKG_VERSION").to_owned(),
        started,
        seconds,
        verdict: verdict_of(&comparisons),
        base: settings.commands[0].clone(),
        head: settings.commands[1].clone(),
        limit: settings.limit,
        level: settings.level,
        power: POWER,
        seed: settings.seed,
        cpu_model: taut_host::Machine::read().cpu_model.map(|fact| fact.value),
        interrupted,
        metrics: comparisons.iter().enumerate().map(of).collect(),
        pairs,
    })
}

/// Runs both commands once in the given order.
fn run_pair(order: [Which; 2], runner: &mut impl Runner) -> Result<Pair, GateError> {
    let mut values = [Vec::new(), Vec::new()];
    for which in order {
        values[which.index()] = runner.run(which)?;
    }
    let [base, head] = values;
    let first = order[0];
    Ok(Pair { first, base, head })
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

/// Returns one comparison for each metric. A metric for which less is worse is compared by its inverse. The metrics
/// share the probability of a wrong verdict (Bonferroni).
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

/// Returns a text with the median ratio of each metric in the pairs so far.
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

/// Returns a ratio as head / base. Metrics for which less is worse are compared as base / head, so their ratios are
/// inverted.
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

/// Returns a number with at most two decimals, without trailing zeros.
pub(crate) fn rounded(value: f64) -> String {
    let text = format!("{value:.2}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    text.to_owned()
}

#[cfg(test)]
mod tests;
