//! The search for the throughput of a device, by three methods: plain bisection, bisection with loss verification, and
//! repeated trials that vote. In a vote, several full trials at one rate decide together whether the rate passes.
//!
//! RFC 2544 section 26.1; ETSI GS NFV-TST 009 clause 12.3.3; RFC 9971, whose classification of loads (appendix A) and
//! Conditional Throughput (appendix B) [`Method::Mlr`] follows. [`crate::selector`] chooses its loads, and
//! [`crate::goals`] searches for several goals of RFC 9971.

use crate::goal::{EXCEED_RATIO, Goal, GoalResult};
use crate::search::{Limit, TrialOutcome, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Length of a short trial as a fraction of a full one.
pub(crate) const SHORT: f64 = 0.25;

/// The method of a throughput search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Method {
    /// Bisection; one trial decides (RFC 2544 section 26.1).
    Binary,
    /// Bisection; a trial that fails is verified by one more, which decides (TST 009 clause 12.3.3).
    Tst009,
    /// Single trials narrow the range of rates; full trials at its two ends then vote (MLRsearch).
    #[default]
    Mlr,
}

/// Names of all methods, as [`Method::from_str`] reads them.
///
/// [`Method::from_str`]: std::str::FromStr::from_str
pub const METHODS: [(&str, Method); 3] = [
    ("binary", Method::Binary),
    ("tst009", Method::Tst009),
    ("mlr", Method::Mlr),
];

impl Method {
    /// Returns the name of the method.
    pub fn name(self) -> &'static str {
        METHODS
            .iter()
            .find(|(_, m)| *m == self)
            .map_or("mlr", |(name, _)| name)
    }
}

impl std::str::FromStr for Method {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = METHODS.iter().find(|(name, _)| *name == text);
        found.map(|(_, method)| *method).ok_or_else(|| {
            format!("unknown search method \"{text}\"; expected binary, tst009 or mlr")
        })
    }
}

/// The settings of a throughput search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ThroughputSettings {
    /// Method of the search.
    pub method: Method,
    /// Lowest rate that is tried, packets per second.
    pub min_pps: f64,
    /// Highest rate that is tried, packets per second.
    pub max_pps: f64,
    /// Difference between the lowest failing and the highest passing rate at which the search ends, as a fraction of
    /// the failing rate (the Goal Width of MLRsearch).
    pub precision: f64,
    /// Fraction of packets that may be lost at a passing rate; 0 is RFC 2544's throughput.
    pub loss_tolerance: f64,
    /// Length of a full trial, s.
    pub trial_seconds: f64,
    /// Number of full trials of a complete vote; only MLRsearch uses it (its Goal Duration Sum, counted in trials).
    pub votes: u32,
    /// Fraction of the trials of a vote that may fail at a passing rate; only MLRsearch uses it (its Goal Exceed
    /// Ratio).
    #[serde(default = "exceed_ratio")]
    pub exceed_ratio: f64,
}

/// A reason why [`ThroughputSettings`] are invalid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum ThroughputSettingsError {
    /// The range of rates is empty or invalid.
    #[error(
        "rates from {0} to {1} packets per second: both must be above 0, the first below the second"
    )]
    Range(f64, f64),
    /// A fraction is invalid: its name, its value, and the smallest allowed value.
    #[error("{0} is {1}: must be a fraction of at least {2} and less than 1")]
    Share(&'static str, f64, f64),
    /// The length of a trial is invalid.
    #[error("trial duration {0} s: must be above 0")]
    Trial(f64),
    /// The number of votes is 0.
    #[error("0 votes: must be 1 or more")]
    Votes,
    /// There are several goals, and the method is not MLRsearch.
    #[error("several goals need the search method mlr")]
    Goals,
}

/// The next trial that the search requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wanted {
    /// Rate of the trial, packets per second.
    pub rate_pps: f64,
    /// Length of the trial, s.
    pub seconds: f64,
}

/// A trial of a throughput search, with its result.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TimedTrial {
    /// Requested length of the trial, s.
    pub seconds: f64,
    /// Result of the trial.
    pub outcome: TrialOutcome,
    /// Verdict of the trial on its rate.
    pub verdict: Verdict,
    /// Rate of the trial, packets per second; `None` in results that contain only the offered rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_pps: Option<f64>,
}

impl TimedTrial {
    /// Returns the rate of the trial, packets per second; the offered rate if the requested one is unknown.
    pub(crate) fn asked_pps(&self) -> f64 {
        self.asked_pps.unwrap_or(self.outcome.offered_pps)
    }
}

/// The result of a complete or unfinished search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ThroughputResult {
    /// Highest offered rate that passed, packets per second; `None` if none did.
    pub rate_pps: Option<f64>,
    /// `rate_pps` minus the tolerated loss, packets per second: Conditional Throughput (RFC 9971 appendix B). `None` if
    /// no rate passed.
    pub conditional_pps: Option<f64>,
    /// Lowest failing rate above `rate_pps`, packets per second; `None` if no rate failed.
    pub failing_pps: Option<f64>,
    /// Reason why no higher passing rate was found.
    pub limited_by: Limit,
    /// False if a rate below a passing rate failed: a single figure then does not describe the device.
    pub monotonic: bool,
    /// True if the search is complete.
    pub complete: bool,
    /// All trials in the order in which they ran.
    pub trials: Vec<TimedTrial>,
    /// Results by the names of RFC 9971, in the order of the goals; empty unless MLRsearch was used, and in results of
    /// versions before 0.3.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub goals: Vec<GoalResult>,
}

fn exceed_ratio() -> f64 {
    EXCEED_RATIO
}

/// Number of additional trials at a rate that the generator did not reach, as such a trial shows nothing about the
/// device. If the generator falls behind in these trials too, it counts as the limit.
const SECOND_CHANCES: usize = 2;

/// Maximum number of trials of a search. Without it, a search on a device with random results might never end.
const MOST_TRIALS: usize = 400;

/// The combined result of all trials at a rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Holds,
    Fails,
    GeneratorFails,
    Undecided,
}

/// A throughput search that runs no trials itself. The caller gets a trial from [`ThroughputSearch::next`], runs it and
/// reports its outcome, until there are no more.
///
/// ```
/// use taut_measure::{Method, ThroughputSearch, ThroughputSettings, TrialOutcome};
/// let mut search = ThroughputSearch::new(ThroughputSettings {
///     method: Method::Mlr, min_pps: 1e3, max_pps: 1e7, precision: 0.01, loss_tolerance: 0.0,
///     trial_seconds: 1.0, votes: 3, exceed_ratio: 0.5,
/// }).unwrap();
/// while let Some(wanted) = search.next() {
///     let sent = (wanted.rate_pps * wanted.seconds) as u64;
///     // A device that forwards a million a second.
///     let received = sent.min((1e6 * wanted.seconds) as u64);
///     search.report(wanted, TrialOutcome {
///         offered_pps: wanted.rate_pps, sent, received, refused: 0, generator_behind: false,
///     });
/// }
/// let found = search.result().rate_pps.unwrap();
/// assert!((0.98e6..=1.0e6).contains(&found), "{found}");
/// ```
#[derive(Debug, Clone)]
pub struct ThroughputSearch {
    pub(crate) settings: ThroughputSettings,
    pub(crate) trials: Vec<TimedTrial>,
    /// Goals of MLRsearch in addition to the goal of the settings.
    pub(crate) goals: Vec<Goal>,
    /// Goal Duration Sum of MLRsearch, s.
    pub(crate) duration_sum: f64,
}

impl ThroughputSearch {
    /// Creates a search that has run no trials.
    ///
    /// # Errors
    /// Returns an error for invalid settings.
    pub fn new(settings: ThroughputSettings) -> Result<Self, ThroughputSettingsError> {
        let ThroughputSettings {
            min_pps, max_pps, ..
        } = settings;
        if !(min_pps > 0.0 && max_pps.is_finite() && max_pps >= min_pps) {
            return Err(ThroughputSettingsError::Range(min_pps, max_pps));
        }
        if !(1e-6..1.0).contains(&settings.precision) {
            let share = ThroughputSettingsError::Share("precision", settings.precision, 1e-6);
            return Err(share);
        }
        if !(0.0..1.0).contains(&settings.loss_tolerance) {
            let tolerance = settings.loss_tolerance;
            return Err(ThroughputSettingsError::Share(
                "loss tolerance",
                tolerance,
                0.0,
            ));
        }
        if !(0.0..1.0).contains(&settings.exceed_ratio) {
            let share = settings.exceed_ratio;
            return Err(ThroughputSettingsError::Share("exceed ratio", share, 0.0));
        }
        if !(settings.trial_seconds > 0.0 && settings.trial_seconds.is_finite()) {
            return Err(ThroughputSettingsError::Trial(settings.trial_seconds));
        }
        if settings.votes == 0 {
            return Err(ThroughputSettingsError::Votes);
        }
        Ok(Self {
            settings,
            trials: Vec::new(),
            goals: Vec::new(),
            duration_sum: settings.trial_seconds * f64::from(settings.votes),
        })
    }

    /// Returns the next trial; `None` if the search is complete.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&self) -> Option<Wanted> {
        if self.trials.len() >= self.most_trials() {
            return None;
        }
        self.next_of_first_goal().or_else(|| self.next_of_goals())
    }

    /// Returns the maximum number of trials of the search.
    fn most_trials(&self) -> usize {
        MOST_TRIALS * (1 + self.goals.len())
    }

    pub(crate) fn next_of_first_goal(&self) -> Option<Wanted> {
        match self.settings.method {
            Method::Binary | Method::Tst009 => self.next_bisection(),
            Method::Mlr => self.next_load(),
        }
    }

    /// Reports the outcome of the trial `wanted`.
    pub fn report(&mut self, wanted: Wanted, outcome: TrialOutcome) {
        self.trials.push(TimedTrial {
            seconds: wanted.seconds,
            outcome,
            verdict: verdict(&outcome, self.settings.loss_tolerance),
            asked_pps: Some(wanted.rate_pps),
        });
    }

    /// Returns the estimated total length of all trials, s, for a progress bar.
    pub fn estimate_seconds(&self) -> f64 {
        let ThroughputSettings {
            precision,
            trial_seconds,
            votes,
            ..
        } = self.settings;
        let halvings = (1.0 / precision).log2().ceil();
        let of_goals: f64 = self.goals.iter().map(Goal::estimate_seconds).sum();
        let of_first = match self.settings.method {
            Method::Binary => halvings * trial_seconds,
            Method::Tst009 => 1.5 * halvings * trial_seconds,
            Method::Mlr => {
                // The terms are: two or three full trials near the result, short trials far from it, and votes at two
                // rates.
                (3.0 + halvings * SHORT + 2.0 * 0.8 * f64::from(votes)) * trial_seconds
            }
        };
        of_first + of_goals
    }

    /// Returns the result of the trials reported until now; it is final once the search is complete.
    pub fn result(&self) -> ThroughputResult {
        ThroughputResult {
            goals: self.goal_results(),
            ..self.result_of_first_goal()
        }
    }

    /// Returns the result for the goal of the settings, without the list of goals.
    pub(crate) fn result_of_first_goal(&self) -> ThroughputResult {
        let classes = self.classes(self.duration_sum);
        let (lower, upper) = bounds(&classes);
        let complete = self.next().is_none() && self.trials.len() < self.most_trials();
        let limited_by = match upper {
            Some((_, Class::GeneratorFails)) => Limit::Generator,
            Some(_) => Limit::Device,
            None => Limit::Range,
        };
        let highest_held = classes
            .iter()
            .filter(|(_, class)| *class == Class::Holds)
            .map(|(rate, _)| *rate)
            .fold(0.0, f64::max);
        let failed_below = classes
            .iter()
            .any(|(rate, class)| *class == Class::Fails && *rate < highest_held);
        ThroughputResult {
            rate_pps: lower.map(|rate| self.offered(rate)),
            conditional_pps: lower
                .map(|rate| self.offered(rate) * (1.0 - self.tolerated_loss(rate))),
            failing_pps: upper.map(|(rate, _)| rate),
            limited_by,
            monotonic: !failed_below,
            complete,
            trials: self.trials.clone(),
            goals: Vec::new(),
        }
    }

    /// Returns the highest passing and the lowest failing rate until now, packets per second. A bound that no complete
    /// vote shows is taken from the incomplete votes; it is `None` if these do not show it either.
    pub fn bounds_so_far(&self) -> (Option<f64>, Option<f64>) {
        let (low, high) = bounds(&self.classes(self.duration_sum));
        let (hint_low, hint_high) = bounds(&self.leaning());
        (
            low.or(hint_low),
            high.or(hint_high).map(|(rate_pps, _)| rate_pps),
        )
    }

    /// Returns the next trial of a bisection between the highest passing and the lowest failing rate; the first trial
    /// is at the highest rate. Returns `None` if the bisection is complete.
    fn next_bisection(&self) -> Option<Wanted> {
        let seconds = self.settings.trial_seconds;
        let classes = self.classes(self.duration_sum);
        let rate_pps = match self.pending(&classes) {
            Some(rate) => rate,
            None => self.between(bounds(&classes), self.settings.precision)?,
        };
        Some(Wanted { rate_pps, seconds })
    }

    /// Returns a rate, packets per second, that has been tried but has neither passed nor failed yet; `None` if there
    /// is no such rate.
    fn pending(&self, classes: &[(f64, Class)]) -> Option<f64> {
        let undecided = classes.iter().find(|(_, c)| *c == Class::Undecided);
        undecided.map(|(rate, _)| *rate)
    }

    /// Returns the next rate, packets per second. It is the middle of the bounds, the highest rate if no rate has failed,
    /// or half of the failing rate if no rate has passed. Returns `None` if the bounds are closer than `precision`, or no
    /// rate remains to be tried.
    fn between(&self, bounds: (Option<f64>, Option<(f64, Class)>), precision: f64) -> Option<f64> {
        let ThroughputSettings {
            min_pps, max_pps, ..
        } = self.settings;
        match bounds {
            (_, None) => (bounds.0 != Some(max_pps)).then_some(max_pps),
            (Some(low), Some((high, _))) => {
                (high - low > precision * high).then_some((low + high) / 2.0)
            }
            (None, Some((high, _))) if high > min_pps * (1.0 + precision) => {
                Some((high / 2.0).max(min_pps))
            }
            (None, Some((high, _))) => (high > min_pps).then_some(min_pps),
        }
    }

    /// Returns each tried rate, in rising order, with the result of its trials. In MLRsearch, a complete vote takes
    /// `duration_sum` seconds.
    pub(crate) fn classes(&self, duration_sum: f64) -> Vec<(f64, Class)> {
        let mut rates: Vec<f64> = self.trials.iter().map(|t| t.asked_pps()).collect();
        rates.sort_by(f64::total_cmp);
        rates.dedup();
        rates
            .into_iter()
            .map(|rate| (rate, self.class(rate, duration_sum)))
            .collect()
    }

    fn class(&self, rate_pps: f64, duration_sum: f64) -> Class {
        let at = || {
            let trials = self.trials.iter();
            trials.filter(move |t| t.asked_pps() == rate_pps)
        };
        let behind = at()
            .filter(|t| t.verdict == Verdict::GeneratorBehind)
            .count();
        // If the generator fails in most trials, a single trial in which it kept its schedule is not representative.
        let count = |verdict| at().filter(|t| t.verdict == verdict).count();
        let (good_trials, lossy) = (count(Verdict::LossFree), count(Verdict::Lossy));
        if behind > SECOND_CHANCES && behind > good_trials {
            // Loss in trials that kept their schedule is due to the device, however often the generator was late in
            // others.
            return match lossy > good_trials {
                true => Class::Fails,
                false => Class::GeneratorFails,
            };
        }
        let valid = || at().filter(|t| t.verdict != Verdict::GeneratorBehind);
        let last = valid().next_back().map(|t| t.verdict);
        match self.settings.method {
            Method::Binary => class_by(last),
            Method::Tst009 => match (last, valid().count()) {
                (Some(Verdict::LossFree), _) => Class::Holds,
                (Some(_), 2..) => Class::Fails,
                _ => Class::Undecided,
            },
            Method::Mlr if last.is_none() => Class::Undecided,
            Method::Mlr => classify(
                (duration_sum, self.settings.exceed_ratio),
                self.effective_seconds(rate_pps),
            ),
        }
    }

    /// Returns the total duration of the good and of the bad full trials at `rate_pps`, s. The duration of bad short
    /// trials beyond the fraction that the Goal Exceed Ratio allows among short trials counts as bad (RFC 9971 appendix
    /// A).
    pub(crate) fn effective_seconds(&self, rate_pps: f64) -> [f64; 2] {
        let ThroughputSettings {
            trial_seconds,
            exceed_ratio,
            ..
        } = self.settings;
        let sum = |long: bool, verdict: Verdict| -> f64 {
            let trials = self.trials.iter();
            trials
                .filter(|t| t.asked_pps() == rate_pps && t.verdict == verdict)
                .filter(|t| (t.seconds >= trial_seconds) == long)
                .map(|t| t.seconds)
                .sum()
        };
        let balance = sum(false, Verdict::LossFree) * exceed_ratio / (1.0 - exceed_ratio);
        let excess = (sum(false, Verdict::Lossy) - balance).max(0.0);
        [
            sum(true, Verdict::LossFree),
            sum(true, Verdict::Lossy) + excess,
        ]
    }

    /// Returns the median of the offered rates of the loss-free full trials at `rate_pps`, packets per second;
    /// `rate_pps` itself without such trials.
    fn offered(&self, rate_pps: f64) -> f64 {
        let full = self.settings.trial_seconds;
        let held = self.trials.iter().filter(|t| {
            t.asked_pps() == rate_pps && t.seconds >= full && t.verdict == Verdict::LossFree
        });
        let mut offered: Vec<f64> = held.map(|t| t.outcome.offered_pps.min(rate_pps)).collect();
        offered.sort_by(f64::total_cmp);
        offered.get(offered.len() / 2).copied().unwrap_or(rate_pps)
    }

    /// Returns the loss ratio that Conditional Throughput subtracts from `rate_pps` (RFC 9971 appendix B). It is the
    /// highest loss ratio of the full trials at that rate, without those with the most loss, which the Goal Exceed
    /// Ratio allows to be bad.
    fn tolerated_loss(&self, rate_pps: f64) -> f64 {
        let full = self.settings.trial_seconds;
        let trials = self
            .trials
            .iter()
            .filter(|t| t.asked_pps() == rate_pps && t.seconds >= full)
            .filter(|t| t.verdict != Verdict::GeneratorBehind);
        let mut losses: Vec<(f64, f64)> = trials
            .map(|t| (t.outcome.loss_ratio(), t.seconds))
            .collect();
        losses.sort_by(|a, b| a.0.total_cmp(&b.0));
        let whole = losses.iter().map(|(_, seconds)| seconds).sum::<f64>();
        let mut remaining = match self.settings.method {
            Method::Mlr => whole.max(self.duration_sum) * (1.0 - self.settings.exceed_ratio),
            // In these methods the trial with the lowest loss decides, so no further trial has to be considered.
            Method::Binary | Method::Tst009 => 0.0,
        };
        // The slack allows for the rounding errors of sums of seconds.
        let slack = 1e-9 * remaining;
        let mut found = 0.0;
        for (index, (loss_ratio, seconds)) in losses.into_iter().enumerate() {
            if index > 0 && remaining <= slack {
                break;
            }
            found = loss_ratio;
            remaining -= seconds;
        }
        found
    }
}

/// Returns the verdict. Loss has precedence over a late generator, and a trial that sent nothing shows only that the
/// generator failed.
pub(crate) fn verdict(outcome: &TrialOutcome, tolerance: f64) -> Verdict {
    match outcome.verdict() {
        Verdict::Lossy if outcome.loss_ratio() <= tolerance => {
            if outcome.generator_behind {
                Verdict::GeneratorBehind
            } else {
                Verdict::LossFree
            }
        }
        other => other,
    }
}

/// Classifies a rate by the verdict of its last valid trial.
fn class_by(last: Option<Verdict>) -> Class {
    match last {
        Some(Verdict::LossFree) => Class::Holds,
        Some(_) => Class::Fails,
        None => Class::Undecided,
    }
}

/// Classifies a rate by the seconds of its good and bad trials (RFC 9971 appendix A). A complete vote has `goal`
/// seconds, of which the fraction `exceed_ratio` may be bad. A rate passes once the remaining trials cannot make it
/// fail, and fails once they cannot make it pass.
fn classify((goal, exceed_ratio): (f64, f64), [good, bad]: [f64; 2]) -> Class {
    let whole = (good + bad).max(goal);
    // The factor allows for the rounding errors of sums of seconds.
    let allowed = whole * exceed_ratio * (1.0 + 1e-9);
    match (bad <= allowed, whole - good <= allowed) {
        (false, _) => Class::Fails,
        (true, true) => Class::Holds,
        (true, false) => Class::Undecided,
    }
}

pub(crate) fn class_at(classes: &[(f64, Class)], rate: f64) -> Class {
    let found = classes.iter().find(|(other, _)| *other == rate);
    found.map_or(Class::Undecided, |(_, class)| *class)
}

pub(crate) fn fails(class: Class) -> bool {
    matches!(class, Class::Fails | Class::GeneratorFails)
}

/// Returns the highest passing rate below the lowest failing one, and the lowest failing rate with its class. Passing
/// rates above a failing rate are ignored.
pub(crate) fn bounds(classes: &[(f64, Class)]) -> (Option<f64>, Option<(f64, Class)>) {
    let upper = classes.iter().copied().find(|(_, class)| fails(*class));
    let below = upper.map_or(f64::INFINITY, |(rate, _)| rate);
    let lower = classes
        .iter()
        .filter(|(rate, class)| *class == Class::Holds && *rate < below)
        .map(|(rate, _)| *rate)
        .reduce(f64::max);
    (lower, upper)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use fastrand::Rng;
    use proptest::prelude::*;

    fn settings(method: Method) -> ThroughputSettings {
        ThroughputSettings {
            method,
            min_pps: 1e3,
            max_pps: 2e7,
            precision: 0.01,
            loss_tolerance: 0.0,
            trial_seconds: 1.0,
            votes: 5,
            exceed_ratio: EXCEED_RATIO,
        }
    }

    fn search(
        settings: ThroughputSettings,
        mut device: impl FnMut(Wanted) -> TrialOutcome,
    ) -> ThroughputResult {
        let mut search = ThroughputSearch::new(settings).unwrap();
        while let Some(wanted) = search.next() {
            assert!(
                wanted.rate_pps >= settings.min_pps * 0.999_999,
                "{wanted:?}"
            );
            assert!(
                wanted.rate_pps <= settings.max_pps * 1.000_001,
                "{wanted:?}"
            );
            let outcome = device(wanted);
            search.report(wanted, outcome);
        }
        search.result()
    }

    fn carrying(limit_pps: f64) -> impl Fn(Wanted) -> TrialOutcome {
        move |w| outcome(w, limit_pps / w.rate_pps)
    }

    /// Returns the outcome of a trial in which the fraction `share` of the packets is received.
    fn outcome(w: Wanted, share: f64) -> TrialOutcome {
        let sent = (w.rate_pps * w.seconds).ceil().max(1.0) as u64;
        TrialOutcome {
            offered_pps: w.rate_pps,
            sent,
            received: (sent as f64 * share.min(1.0)) as u64,
            refused: 0,
            generator_behind: false,
        }
    }

    fn behind(w: Wanted) -> TrialOutcome {
        TrialOutcome {
            generator_behind: true,
            ..outcome(w, 1.0)
        }
    }

    const ALL: [Method; 3] = [Method::Binary, Method::Tst009, Method::Mlr];

    #[test]
    fn every_method_finds_a_steady_device_to_the_requested_precision() {
        for method in ALL {
            for limit_pps in [2.5e3, 1.234e5, 1e6, 7.77e6, 1.99e7] {
                let found = search(settings(method), carrying(limit_pps));
                let rate = found.rate_pps.unwrap();
                let failing = found.failing_pps.unwrap();
                assert!(
                    rate <= limit_pps && failing > limit_pps,
                    "{method:?} {found:?}"
                );
                assert!(failing - rate <= 0.01 * failing * 1.000_001, "{method:?}");
                assert_eq!(found.limited_by, Limit::Device);
                assert!(found.complete && found.monotonic);
                assert_eq!(found.conditional_pps, found.rate_pps);
            }
        }
    }

    #[test]
    fn the_result_is_the_offered_rate_and_not_the_requested() {
        for method in ALL {
            // The generator reaches 1 Mpkt/s; at up to 1 % more, it still sends its last packets within the grace time.
            let found = search(settings(method), |w| TrialOutcome {
                offered_pps: w.rate_pps.min(1e6),
                generator_behind: w.rate_pps > 1.01e6,
                ..outcome(w, 1.0)
            });
            let rate = found.rate_pps.unwrap();
            assert!((0.99e6..=1e6).contains(&rate), "{method:?} {rate}");
            assert_eq!(found.limited_by, Limit::Generator);
        }
    }

    #[test]
    fn the_search_range_limits_the_result_of_a_faster_device() {
        for method in ALL {
            let found = search(settings(method), carrying(1e9));
            assert_eq!(found.rate_pps, Some(2e7), "{method:?}");
            assert_eq!((found.limited_by, found.failing_pps), (Limit::Range, None));
            assert!(found.complete);
        }
    }

    #[test]
    fn devices_that_lose_packets_at_every_rate_have_no_throughput() {
        for method in ALL {
            let found = search(settings(method), |w| outcome(w, 0.5));
            assert_eq!(found.rate_pps, None, "{method:?}");
            assert_eq!(found.limited_by, Limit::Device);
            assert!(found.complete, "{method:?}");
        }
    }

    #[test]
    fn a_slow_generator_limits_the_search_and_is_reported() {
        for method in ALL {
            let found = search(settings(method), |w| {
                if w.rate_pps > 3e6 {
                    behind(w)
                } else {
                    carrying(1e9)(w)
                }
            });
            let rate = found.rate_pps.unwrap();
            assert!((2.9e6..=3e6).contains(&rate), "{method:?} {rate}");
            assert_eq!(found.limited_by, Limit::Generator, "{method:?}");
        }
    }

    #[test]
    fn loss_in_valid_trials_takes_precedence_over_late_generator_trials() {
        for method in ALL {
            let mut trials = std::collections::HashMap::new();
            let found = search(settings(method), |w| {
                let number = trials.entry(w.rate_pps.to_bits()).or_insert(0);
                *number += 1;
                match (w.rate_pps > 1e6, *number % 2) {
                    (false, _) => carrying(1e9)(w),
                    (true, 1) => behind(w),
                    (true, _) => outcome(w, 0.9),
                }
            });
            assert_eq!(found.limited_by, Limit::Device, "{method:?} {found:?}");
            assert!(found.rate_pps.is_some_and(|it| it <= 1e6), "{method:?}");
        }
    }

    #[test]
    fn trials_with_a_slow_generator_are_not_counted_as_loss() {
        for method in ALL {
            let mut trials = 0;
            let found = search(settings(method), |w| {
                trials += 1;
                // Every third trial fails, whatever its rate.
                if trials % 3 == 0 {
                    behind(w)
                } else {
                    carrying(1e6)(w)
                }
            });
            let rate = found.rate_pps.unwrap();
            assert!((0.98e6..=1e6).contains(&rate), "{method:?} {rate}");
            assert_eq!(found.limited_by, Limit::Device, "{method:?}");
        }
    }

    /// Returns the 10th percentile of the results of many searches in which each trial fails by accident with a
    /// probability of 1 in `one_in`.
    fn typical(method: Method, one_in: u32) -> f64 {
        let mut rates: Vec<f64> = (0..101)
            .map(|seed| {
                let mut random = Rng::with_seed(seed);
                let found = search(settings(method), |w| {
                    let unlucky = random.u32(0..one_in) == 0;
                    let limit_pps = if unlucky { 0.99 * w.rate_pps } else { 1e6 };
                    carrying(limit_pps)(w)
                });
                found.rate_pps.unwrap_or(0.0)
            })
            .collect();
        rates.sort_by(f64::total_cmp);
        // One in ten searches gives a lower result than this.
        rates[10]
    }

    #[test]
    fn random_losses_distort_binary_search_most_and_voting_least() {
        let [binary, verified, votes] = ALL.map(|method| typical(method, 5));
        assert!(votes > 0.97e6, "{votes}");
        assert!(
            binary < verified && verified <= votes,
            "{binary} {verified} {votes}"
        );
    }

    #[test]
    fn the_rate_stays_below_the_lowest_lossy_trial() {
        // The device loses packets from 4 to 5 Mpkt/s and loses none from 5 to 8 Mpkt/s, as devices with shallow queues
        // do for some periods of bursts.
        let device = |w: Wanted| {
            let lossy = (4e6..5e6).contains(&w.rate_pps) || w.rate_pps > 8e6;
            outcome(w, if lossy { 0.9 } else { 1.0 })
        };
        for method in ALL {
            let found = search(settings(method), device);
            let rate = found.rate_pps.unwrap();
            let fails = found.trials.iter().filter(|t| t.verdict == Verdict::Lossy);
            let lowest = fails
                .map(|t| t.outcome.offered_pps)
                .fold(f64::MAX, f64::min);
            assert!(
                rate < lowest,
                "{method:?}: {rate} above {lowest}, which failed"
            );
        }
        // A search whose bisection tried the lossy range reports that the device is not monotonic.
        let mut search = ThroughputSearch::new(settings(Method::Binary)).unwrap();
        for (rate_pps, share) in [(6e6, 1.0), (4.5e6, 0.9), (2e6, 1.0)] {
            let wanted = Wanted {
                rate_pps,
                seconds: 1.0,
            };
            search.report(wanted, outcome(wanted, share));
        }
        let found = search.result();
        assert_eq!((found.rate_pps, found.monotonic), (Some(2e6), false));
    }

    #[test]
    fn tolerated_loss_raises_the_rate_but_not_the_conditional_throughput() {
        for method in ALL {
            let with = ThroughputSettings {
                loss_tolerance: 0.1,
                precision: 0.001,
                ..settings(method)
            };
            let found = search(with, carrying(1e6));
            let rate = found.rate_pps.unwrap();
            assert!((1.10e6..=1.1112e6).contains(&rate), "{method:?} {rate}");
            let conditional = found.conditional_pps.unwrap();
            assert!(
                (0.99e6..=1.0e6).contains(&conditional),
                "{method:?} {conditional}"
            );
        }
    }

    #[test]
    fn loads_are_classified_as_the_mlrsearch_draft_defines() {
        // With a goal of 5 s, half of which may be bad, three good or three bad seconds decide.
        let class = |seconds| classify((5.0, EXCEED_RATIO), seconds);
        assert_eq!(class([2.0, 2.0]), Class::Undecided);
        assert_eq!(class([3.0, 2.0]), Class::Holds);
        assert_eq!(class([2.0, 3.0]), Class::Fails);
        // Only the excess of bad over good short trials counts; good short trials alone prove nothing.
        let after = |trials: &[(f64, f64)]| {
            let mut search = ThroughputSearch::new(settings(Method::Mlr)).unwrap();
            for (seconds, share) in trials {
                let wanted = Wanted {
                    rate_pps: 1e6,
                    seconds: *seconds,
                };
                search.report(wanted, outcome(wanted, *share));
            }
            search.class(1e6, 5.0)
        };
        let (good, bad) = (1.0, 0.5);
        let full = [(1.0, bad), (1.0, bad)];
        assert_eq!(
            after(&[full[0], full[1], (0.5, good), (0.6, bad), (0.6, bad)]),
            Class::Fails
        );
        assert_eq!(
            after(&[full[0], full[1], (0.6, good), (0.6, good), (0.9, bad)]),
            Class::Undecided
        );
        assert_eq!(after(&[(0.9, good); 60]), Class::Undecided);
    }

    #[test]
    fn packets_refused_by_a_full_ring_count_as_loss() {
        let mut search = ThroughputSearch::new(settings(Method::Binary)).unwrap();
        let wanted = search.next().unwrap();
        let refused = TrialOutcome {
            refused: 1,
            ..outcome(wanted, 1.0)
        };
        search.report(wanted, refused);
        assert_eq!(search.result().trials[0].verdict, Verdict::Lossy);
    }

    #[test]
    fn invalid_search_settings_are_refused() {
        let base = settings(Method::Mlr);
        for wrong in [
            ThroughputSettings {
                min_pps: 0.0,
                ..base
            },
            ThroughputSettings {
                max_pps: 1.0,
                ..base
            },
            ThroughputSettings {
                max_pps: f64::NAN,
                ..base
            },
            ThroughputSettings {
                precision: 0.0,
                ..base
            },
            ThroughputSettings {
                loss_tolerance: 1.0,
                ..base
            },
            ThroughputSettings {
                trial_seconds: 0.0,
                ..base
            },
            ThroughputSettings { votes: 0, ..base },
        ] {
            assert!(ThroughputSearch::new(wrong).is_err(), "{wrong:?}");
        }
        assert!(
            "fast"
                .parse::<Method>()
                .unwrap_err()
                .contains("expected binary")
        );
        assert_eq!("tst009".parse(), Ok(Method::Tst009));
    }

    proptest! {
        #[test]
        fn every_search_ends_for_any_sequence_of_trial_results(
            answers in proptest::collection::vec(0_u8..3, 1..60),
            method in 0_usize..3,
        ) {
            let mut answers = answers.iter().cycle();
            let found = search(settings(ALL[method]), |w| match answers.next() {
                Some(0) => outcome(w, 1.0),
                Some(1) => outcome(w, 0.5),
                _ => behind(w),
            });
            prop_assert!(found.trials.len() <= MOST_TRIALS);
            if let (Some(rate), Some(failing)) = (found.rate_pps, found.failing_pps) {
                prop_assert!(rate < failing);
            }
        }
    }
}
