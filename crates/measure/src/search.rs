//! The search for the highest loss-free rate, which also produces the latency-over-rate curve.
//!
//! RFC 2544 section 26.1 defines this rate as the throughput. Loss verification follows ETSI GS NFV-TST 009 clause
//! 12.3.3: a trial that fails is repeated, and a rate fails after two trials with the same verdict. A single
//! interruption of a virtual machine thus does not halve the result. The rates to try form a ladder: each rung is the
//! rung below times a constant factor.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Smallest ratio between neighbouring rates of the ladder: a smaller one would take thousands of trials.
const SMALLEST_FACTOR: f64 = 1.01;

/// Settings of a rate search. Rates are packets per second.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchSettings {
    /// Lowest rate of the rising search, packets per second.
    pub start_pps: f64,
    /// Ratio of each rate of the ladder to the next lower rate; at least 1.01.
    pub factor: f64,
    /// Highest rate of the ladder; no trial exceeds it.
    pub max_pps: f64,
    /// Number of rates to try above the first lossy rate, so that the curve shows the overload.
    pub lossy_trials_after_first: u32,
    /// Number of halvings (on a logarithmic scale) between the highest loss-free and the lowest failing rate.
    pub bisections: u32,
}

/// A reason why [`SearchSettings`] are invalid.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum SearchSettingsError {
    /// The lowest rate of the ladder is not a valid rate.
    #[error("start_pps is {0}: it must be a finite rate above 0")]
    Start(f64),
    /// The ratio between neighbouring rates is too small, so that the ladder of rates would hardly rise.
    #[error("factor is {0}: it must be finite and at least 1.01")]
    Factor(f64),
    /// The ladder has no rung, because its highest rate is below the lowest.
    #[error("max_pps is {max_pps}: it must be finite and at least start_pps, {start_pps}")]
    Maximum {
        /// Configured highest rate.
        max_pps: f64,
        /// Configured lowest rate.
        start_pps: f64,
    },
}

/// The result of one trial at one rate. Counts are packets.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TrialOutcome {
    /// Offered rate, packets per second: the rate of the trial, or less if the generator sent its last packets late.
    pub offered_pps: f64,
    /// Packets that the generator sent.
    pub sent: u64,
    /// Different packets that were received back; duplicates are not counted.
    pub received: u64,
    /// Packets that the device's port did not accept from the generator; they are not in `sent`.
    pub refused: u64,
    /// True if the generator itself missed its schedule.
    pub generator_behind: bool,
}

/// The verdict that a trial gives on its rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// All sent packets were received, on schedule.
    LossFree,
    /// The device lost or refused packets.
    Lossy,
    /// No packet was lost, but the generator did not reach the rate.
    GeneratorBehind,
}

impl TrialOutcome {
    /// Returns the verdict. Loss has precedence over a late generator: the device lost packets even below the trial's
    /// rate. A trial that sent nothing gives no verdict on the device: it counts as a failure of the generator.
    pub fn verdict(&self) -> Verdict {
        if self.refused > 0 || self.received < self.sent {
            Verdict::Lossy
        } else if self.generator_behind || self.sent == 0 {
            Verdict::GeneratorBehind
        } else {
            Verdict::LossFree
        }
    }

    /// Returns the fraction of the offered packets that were not received, 0..=1.
    pub fn loss_ratio(&self) -> f64 {
        let offered = self.sent as f64 + self.refused as f64;
        let missing = self.sent.saturating_sub(self.received) as f64 + self.refused as f64;
        if offered > 0.0 {
            missing / offered
        } else {
            0.0
        }
    }
}

/// A trial of the search.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trial {
    /// Result of the trial.
    pub outcome: TrialOutcome,
    /// Verdict of the trial on its rate.
    pub verdict: Verdict,
    /// True if the trial repeats a failed trial at the same rate.
    pub repeat: bool,
    /// Rate of the trial, packets per second; `None` in results that contain only the offered rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asked_pps: Option<f64>,
}

/// The reason why the search found no higher loss-free rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Limit {
    /// The device loses packets at higher rates.
    Device,
    /// The generator does not reach higher rates: the device may be faster.
    Generator,
    /// No higher rate was tried, because the range ends there or the search is incomplete: the device may be faster.
    Range,
}

/// The result of a complete or unfinished search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchResult {
    /// Highest offered rate without loss, packets per second; `None` if every rate failed.
    pub loss_free_pps: Option<f64>,
    /// Reason why no higher loss-free rate was found.
    pub limited_by: Limit,
    /// Lowest rate above `loss_free_pps` at which two trials lost packets, packets per second; `None` if there is no
    /// such rate.
    pub first_lossy_pps: Option<f64>,
    /// True if no rate below the highest loss-free one lost packets twice. If false, the device
    /// fails in the middle of its range and a single figure does not describe it.
    pub monotonic: bool,
    /// True if the search is complete, false if trials remain.
    pub complete: bool,
    /// All trials in the order in which they ran: the points of the curve.
    pub trials: Vec<Trial>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum SearchStep {
    Climbing { rung_pps: f64, lossy_in_a_row: u32 },
    Bisecting { rate_pps: f64, left: u32 },
    Done,
}

/// A ladder of trials: rates rise in geometric steps until the device or the generator fails. Bisection then narrows
/// down the highest loss-free rate.
///
/// The search runs no trials itself. The caller gets a rate from [`LadderSearch::next_rate_pps`], runs a trial at that
/// rate, and passes the outcome to [`LadderSearch::report`], until no rate is left. If even the lowest rung fails, the
/// bisections first go down from it by `factor`.
///
/// ```
/// use taut_measure::{LadderSearch, SearchSettings, TrialOutcome};
/// let settings = SearchSettings {
///     start_pps: 1e5, factor: 2.0, max_pps: 1e7, lossy_trials_after_first: 1, bisections: 6,
/// };
/// let mut search = LadderSearch::new(settings).unwrap();
/// while let Some(offered_pps) = search.next_rate_pps() {
///     let sent = offered_pps as u64;
///     let received = sent.min(1_000_000); // a device that forwards a million a second
///     search.report(TrialOutcome { offered_pps, sent, received, refused: 0, generator_behind: false });
/// }
/// let found = search.result().loss_free_pps.unwrap();
/// assert!((985_000.0..=1_000_000.0).contains(&found));
/// ```
#[derive(Debug, Clone)]
pub struct LadderSearch {
    settings: SearchSettings,
    stage: SearchStep,
    /// Verdicts of the failed trials at the current rate.
    failures: Vec<Verdict>,
    /// Rates with a final verdict, packets per second.
    decided: Vec<(f64, Verdict)>,
    trials: Vec<Trial>,
}

impl LadderSearch {
    /// Creates a search that has run no trials.
    pub fn new(settings: SearchSettings) -> Result<Self, SearchSettingsError> {
        let SearchSettings {
            start_pps,
            factor,
            max_pps,
            ..
        } = settings;
        if !(start_pps.is_finite() && start_pps > 0.0) {
            return Err(SearchSettingsError::Start(start_pps));
        }
        if !(factor.is_finite() && factor >= SMALLEST_FACTOR) {
            return Err(SearchSettingsError::Factor(factor));
        }
        if !(max_pps.is_finite() && max_pps >= start_pps) {
            return Err(SearchSettingsError::Maximum { max_pps, start_pps });
        }
        Ok(LadderSearch {
            settings,
            stage: SearchStep::Climbing {
                rung_pps: start_pps,
                lossy_in_a_row: 0,
            },
            failures: Vec::new(),
            decided: Vec::new(),
            trials: Vec::new(),
        })
    }

    /// Returns the rate of the next trial, packets per second; `None` if the search is complete.
    pub fn next_rate_pps(&self) -> Option<f64> {
        match self.stage {
            SearchStep::Climbing { rung_pps, .. } => Some(rung_pps),
            SearchStep::Bisecting { rate_pps, .. } => Some(rate_pps),
            SearchStep::Done => None,
        }
    }

    /// Returns an upper bound of the number of trials: every rung and bisection, each run at most three times.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the steps between two rates that a double holds are few"
    )]
    pub fn max_trials(&self) -> u64 {
        let SearchSettings {
            start_pps,
            factor,
            max_pps,
            bisections,
            ..
        } = self.settings;
        // One rung is added in case the logarithm rounds down.
        let steps = ((max_pps.ln() - start_pps.ln()) / factor.ln()).ceil() as u64 + 1;
        3 * (steps + 1 + u64::from(bisections))
    }

    /// Reports the outcome of the trial at [`Self::next_rate_pps`]. Once the search is complete, a report has no
    /// effect.
    pub fn report(&mut self, outcome: TrialOutcome) {
        let Some(rate_pps) = self.next_rate_pps() else {
            return;
        };
        let verdict = outcome.verdict();
        self.trials.push(Trial {
            outcome,
            verdict,
            repeat: !self.failures.is_empty(),
            asked_pps: Some(rate_pps),
        });
        // A rate fails only after two trials with the same verdict: a trial with a late generator does not confirm a
        // loss.
        if verdict != Verdict::LossFree {
            let said_before = self.failures.contains(&verdict);
            self.failures.push(verdict);
            if !said_before {
                return;
            }
        }
        self.failures.clear();
        self.decided.push((rate_pps, verdict));
        self.stage = match self.stage {
            SearchStep::Climbing {
                rung_pps,
                lossy_in_a_row,
            } => self.after_rung(rung_pps, lossy_in_a_row, verdict),
            SearchStep::Bisecting { left, .. } => self.bisecting(left.saturating_sub(1)),
            SearchStep::Done => SearchStep::Done,
        };
    }

    fn after_rung(&self, rung_pps: f64, lossy_in_a_row: u32, verdict: Verdict) -> SearchStep {
        let lossy_in_a_row = match verdict {
            Verdict::LossFree => 0,
            Verdict::Lossy => lossy_in_a_row.saturating_add(1),
            Verdict::GeneratorBehind => return self.bisecting(self.settings.bisections),
        };
        let overload_shown = lossy_in_a_row > self.settings.lossy_trials_after_first;
        if overload_shown || rung_pps >= self.settings.max_pps {
            return self.bisecting(self.settings.bisections);
        }
        SearchStep::Climbing {
            rung_pps: (rung_pps * self.settings.factor).min(self.settings.max_pps),
            lossy_in_a_row,
        }
    }

    fn bisecting(&self, left: u32) -> SearchStep {
        let Some((failing_pps, _)) = self.lowest_failing_above_loss_free() else {
            return SearchStep::Done;
        };
        let rate_pps = match self.loss_free_pps() {
            // Each root is computed on its own, because the product of two large rates may overflow.
            Some(loss_free_pps) => loss_free_pps.sqrt() * failing_pps.sqrt(),
            None => failing_pps / self.settings.factor,
        };
        let between = rate_pps > self.loss_free_pps().unwrap_or(0.0) && rate_pps < failing_pps;
        if left == 0 || !between {
            return SearchStep::Done;
        }
        SearchStep::Bisecting { rate_pps, left }
    }

    fn loss_free_pps(&self) -> Option<f64> {
        let loss_free = self
            .decided
            .iter()
            .filter(|(_, verdict)| *verdict == Verdict::LossFree);
        loss_free.map(|(rate_pps, _)| *rate_pps).reduce(f64::max)
    }

    fn lowest_failing_above_loss_free(&self) -> Option<(f64, Verdict)> {
        let floor_pps = self.loss_free_pps().unwrap_or(0.0);
        let above = self
            .decided
            .iter()
            .filter(|(rate_pps, _)| *rate_pps > floor_pps);
        above.copied().min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// Returns the result of the trials reported until now; it is final once the search is complete.
    pub fn result(&self) -> SearchResult {
        let loss_free_pps = self.loss_free_pps();
        let floor_pps = loss_free_pps.unwrap_or(0.0);
        let lossy = || {
            let lossy = self
                .decided
                .iter()
                .filter(|(_, verdict)| *verdict == Verdict::Lossy);
            lossy.map(|(rate_pps, _)| *rate_pps)
        };
        let offered = |rate_pps: f64| {
            let trials = self
                .trials
                .iter()
                .filter(|t| t.asked_pps == Some(rate_pps) && t.verdict == Verdict::LossFree);
            let offered = trials.map(|t| t.outcome.offered_pps).reduce(f64::max);
            offered.map_or(rate_pps, |offered| offered.min(rate_pps))
        };
        SearchResult {
            loss_free_pps: loss_free_pps.map(offered),
            limited_by: match self.lowest_failing_above_loss_free() {
                Some((_, Verdict::Lossy)) => Limit::Device,
                Some(_) => Limit::Generator,
                None => Limit::Range,
            },
            first_lossy_pps: lossy()
                .filter(|&rate_pps| rate_pps > floor_pps)
                .reduce(f64::min),
            monotonic: lossy().all(|rate_pps| rate_pps > floor_pps),
            complete: self.stage == SearchStep::Done,
            trials: self.trials.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use fastrand::Rng;
    use proptest::prelude::*;

    fn settings() -> SearchSettings {
        SearchSettings {
            start_pps: 1e5,
            factor: 2.0,
            max_pps: 1.28e7,
            lossy_trials_after_first: 1,
            bisections: 7,
        }
    }

    fn outcome(offered_pps: f64, verdict: Verdict) -> TrialOutcome {
        TrialOutcome {
            offered_pps,
            sent: 1000,
            received: if verdict == Verdict::Lossy { 999 } else { 1000 },
            refused: 0,
            generator_behind: verdict == Verdict::GeneratorBehind,
        }
    }

    /// Runs a search; `device` returns the verdict of a trial at the given rate.
    fn search(settings: SearchSettings, mut device: impl FnMut(f64) -> Verdict) -> SearchResult {
        let mut search = LadderSearch::new(settings).unwrap();
        while let Some(rate_pps) = search.next_rate_pps() {
            let verdict = device(rate_pps);
            search.report(outcome(rate_pps, verdict));
            assert!(search.trials.len() as u64 <= search.max_trials());
        }
        search.result()
    }

    fn capacity(limit_pps: f64) -> impl Fn(f64) -> Verdict {
        move |rate_pps| match rate_pps <= limit_pps {
            true => Verdict::LossFree,
            false => Verdict::Lossy,
        }
    }

    #[test]
    fn a_known_capacity_is_found_to_the_configured_precision() {
        for limit_pps in [1e5, 1.234e5, 9.9e5, 1e6, 7.7e6] {
            let result = search(settings(), capacity(limit_pps));
            let (found, lossy) = (
                result.loss_free_pps.unwrap(),
                result.first_lossy_pps.unwrap(),
            );
            assert!(found <= limit_pps && limit_pps < lossy, "{result:?}");
            // Seven bisections narrow the factor of two between rungs to 2^(1/128).
            assert!(lossy / found <= 2f64.powf(1.0 / 128.0) * 1.000_001);
            assert_eq!(result.limited_by, Limit::Device);
            assert!(result.monotonic && result.complete);
        }
    }

    #[test]
    fn the_rising_search_ends_after_several_lossy_rates() {
        let result = search(settings(), capacity(5e5));
        let mut rungs: Vec<f64> = result
            .trials
            .iter()
            .map(|trial| trial.outcome.offered_pps)
            .collect();
        rungs.truncate(7);
        assert_eq!(rungs, [1e5, 2e5, 4e5, 8e5, 8e5, 1.6e6, 1.6e6]);
    }

    #[test]
    fn the_search_range_limits_the_result_of_a_faster_device() {
        let result = search(settings(), capacity(1e9));
        assert_eq!(result.loss_free_pps, Some(1.28e7));
        assert_eq!(result.limited_by, Limit::Range);
        assert_eq!((result.first_lossy_pps, result.trials.len()), (None, 8));
    }

    #[test]
    fn the_maximum_rate_is_tried_even_between_two_search_steps() {
        let off = SearchSettings {
            max_pps: 3e5,
            ..settings()
        };
        let result = search(off, capacity(1e9));
        assert_eq!(result.loss_free_pps, Some(3e5));
        let single = SearchSettings {
            max_pps: 1e5,
            ..settings()
        };
        assert_eq!(search(single, capacity(1e9)).trials.len(), 1);
    }

    #[test]
    fn a_slow_generator_is_reported_with_the_rate_it_reaches() {
        let result = search(settings(), |rate_pps| match rate_pps <= 3e6 {
            true => Verdict::LossFree,
            false => Verdict::GeneratorBehind,
        });
        assert_eq!(result.limited_by, Limit::Generator);
        assert_eq!(result.first_lossy_pps, None);
        assert!((2.98e6..=3e6).contains(&result.loss_free_pps.unwrap()));
    }

    #[test]
    fn a_device_slower_than_the_generator_limits_the_result() {
        let result = search(settings(), |rate_pps| match rate_pps {
            rate_pps if rate_pps <= 1e6 => Verdict::LossFree,
            rate_pps if rate_pps <= 2e6 => Verdict::Lossy,
            _ => Verdict::GeneratorBehind,
        });
        assert_eq!(result.limited_by, Limit::Device);
        assert!((9.9e5..=1e6).contains(&result.loss_free_pps.unwrap()));
    }

    #[test]
    fn a_capacity_below_the_first_rate_is_searched_downwards() {
        let result = search(settings(), capacity(3e4));
        let found = result.loss_free_pps.unwrap();
        assert!((2.7e4..=3e4).contains(&found), "{found}");
        let dead = search(settings(), |_| Verdict::Lossy);
        assert_eq!((dead.loss_free_pps, dead.limited_by), (None, Limit::Device));
        assert!(dead.complete);
    }

    #[test]
    fn one_loss_at_every_rate_does_not_change_the_result() {
        let steady = search(settings(), capacity(1e6));
        let mut hiccuped: Option<f64> = None;
        let result = search(settings(), |rate_pps| {
            if hiccuped == Some(rate_pps) {
                return capacity(1e6)(rate_pps);
            }
            hiccuped = Some(rate_pps);
            Verdict::Lossy
        });
        assert_eq!(result.loss_free_pps, steady.loss_free_pps);
        assert_eq!(result.first_lossy_pps, steady.first_lossy_pps);
        assert!(
            result
                .trials
                .iter()
                .any(|trial| trial.repeat && trial.verdict == Verdict::LossFree)
        );
    }

    #[test]
    fn random_lossy_trials_rarely_move_the_result_from_the_capacity() {
        let near = (0..400u64).filter(|&seed| {
            let mut random = Rng::with_seed(seed);
            let result = search(settings(), |rate_pps| match random.f64() < 0.05 {
                true => Verdict::Lossy,
                false => capacity(1e6)(rate_pps),
            });
            result
                .loss_free_pps
                .is_some_and(|found| (9e5..=1e6).contains(&found))
        });
        let near = near.count();
        assert!(near >= 380, "{near} of 400");
    }

    #[test]
    fn one_lossy_trial_between_late_generator_trials_is_no_overload() {
        // At the second rung, the generator is late in the first and third trial, and the device loses packets in the
        // second.
        let mut at = 0;
        let result = search(settings(), |rate_pps| {
            if rate_pps != 2e5 {
                return capacity(1e9)(rate_pps);
            }
            at += 1;
            match at {
                2 => Verdict::Lossy,
                _ => Verdict::GeneratorBehind,
            }
        });
        assert_eq!(
            (result.first_lossy_pps, result.limited_by),
            (None, Limit::Generator)
        );
        assert!(result.monotonic, "{result:?}");
    }

    #[test]
    fn the_result_is_the_offered_rate_and_not_the_requested() {
        let mut search = LadderSearch::new(settings()).unwrap();
        while let Some(asked_pps) = search.next_rate_pps() {
            // This generator reaches 1 Mpkt/s. At up to 1 % more, it sends its last packets within the grace time.
            let behind = asked_pps > 1.01e6;
            let offered_pps = asked_pps.min(1e6);
            let verdict = match behind {
                true => Verdict::GeneratorBehind,
                false => Verdict::LossFree,
            };
            search.report(outcome(offered_pps, verdict));
        }
        let found = search.result().loss_free_pps.unwrap();
        assert!((0.99e6..=1e6).contains(&found), "{found}");
    }

    #[test]
    fn a_lossy_range_below_a_loss_free_rate_is_reported() {
        let result = search(settings(), |rate_pps| match rate_pps {
            rate_pps if (3e5..6e5).contains(&rate_pps) => Verdict::Lossy,
            rate_pps => capacity(2e6)(rate_pps),
        });
        assert!(!result.monotonic);
        let (found, lossy) = (
            result.loss_free_pps.unwrap(),
            result.first_lossy_pps.unwrap(),
        );
        assert!(
            (1.6e6..=2e6).contains(&found) && lossy > 2e6,
            "{found} {lossy}"
        );
    }

    #[test]
    fn only_successive_lossy_rates_end_the_rising_search() {
        let mut rungs = std::collections::BTreeMap::new();
        let result = search(settings(), |rate_pps| {
            let rung = rungs.len();
            match rungs
                .entry(rate_pps as u64)
                .or_insert(rung)
                .is_multiple_of(2)
            {
                true => Verdict::Lossy,
                false => Verdict::LossFree,
            }
        });
        assert_eq!(result.loss_free_pps, Some(1.28e7));
        assert!(!result.monotonic);
    }

    #[test]
    fn a_search_stopped_early_returns_an_incomplete_result() {
        let mut search = LadderSearch::new(settings()).unwrap();
        search.report(outcome(1e5, Verdict::LossFree));
        let result = search.result();
        assert_eq!(result.loss_free_pps, Some(1e5));
        assert_eq!((result.limited_by, result.complete), (Limit::Range, false));
    }

    #[test]
    fn trials_reported_after_the_search_ends_are_ignored() {
        let mut search = LadderSearch::new(SearchSettings {
            max_pps: 1e5,
            ..settings()
        })
        .unwrap();
        search.report(outcome(1e5, Verdict::LossFree));
        let before = search.result();
        search.report(outcome(1e5, Verdict::Lossy));
        assert_eq!(search.result(), before);
    }

    #[test]
    fn loss_takes_precedence_over_a_late_generator_in_the_verdict() {
        let clean = outcome(1e5, Verdict::LossFree);
        let refusing = TrialOutcome {
            refused: 1,
            generator_behind: true,
            ..clean
        };
        assert_eq!(refusing.verdict(), Verdict::Lossy);
        assert!((refusing.loss_ratio() - 1.0 / 1001.0).abs() < 1e-12);
        let silent = TrialOutcome {
            sent: 0,
            received: 0,
            ..clean
        };
        assert_eq!(silent.verdict(), Verdict::GeneratorBehind);
        assert_eq!(silent.loss_ratio(), 0.0);
    }

    #[test]
    fn invalid_search_settings_are_refused_with_their_value() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            let start = SearchSettings {
                start_pps: bad,
                ..settings()
            };
            assert!(matches!(
                LadderSearch::new(start),
                Err(SearchSettingsError::Start(_))
            ));
            let factor = SearchSettings {
                factor: bad,
                ..settings()
            };
            assert!(matches!(
                LadderSearch::new(factor),
                Err(SearchSettingsError::Factor(_))
            ));
            let max = SearchSettings {
                max_pps: bad,
                ..settings()
            };
            assert!(matches!(
                LadderSearch::new(max),
                Err(SearchSettingsError::Maximum { .. })
            ));
        }
        let flat = SearchSettings {
            factor: 1.0,
            ..settings()
        };
        let message = LadderSearch::new(flat).unwrap_err().to_string();
        assert_eq!(message, "factor is 1: it must be finite and at least 1.01");
    }

    proptest! {
        #[test]
        fn a_search_ends_for_any_sequence_of_verdicts(
            seed: u64,
            start_pps in 1e-3..1e9f64,
            reach in 1.0..1e6f64,
            factor in 1.01..100.0f64,
            lossy_trials_after_first in 0u32..5,
            bisections in 0u32..80,
        ) {
            let settings = SearchSettings {
                start_pps, factor, max_pps: start_pps * reach, lossy_trials_after_first, bisections,
            };
            let mut random = Rng::with_seed(seed);
            let verdicts = [Verdict::LossFree, Verdict::Lossy, Verdict::GeneratorBehind];
            // `search` asserts the bound after every trial.
            let result = search(settings.clone(), |rate_pps| {
                assert!(rate_pps > 0.0 && rate_pps <= settings.max_pps);
                verdicts[random.usize(..3)]
            });
            prop_assert!(result.complete);
            if let (Some(found), Some(lossy)) = (result.loss_free_pps, result.first_lossy_pps) {
                prop_assert!(found < lossy);
            }
        }
    }
}
