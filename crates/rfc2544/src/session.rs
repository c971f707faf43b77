//! The measurements themselves, on the generator's thread: trials, searches, and curves.

use super::results::{Burst, Counts, Folder, LoadLatency, Measured, Part, Settings, Unit};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use taut_bench::benchmark::Observer;
use taut_bench::device::RunError;
use taut_bench::evaluate::SlowestPackets;
use taut_measure::quantity::{count, rate};
use taut_measure::{
    BurstSearch, EXCEED_RATIO, SequenceReport, SequenceTracker, Summary, ThroughputSearch,
    ThroughputSettings, TrialOutcome,
};
use taut_results::{MeasuredInterruptions, buckets};
use taut_tap::TrialTap;
use taut_traffic::{
    Account, Instrument, Live, Sequence, Sizes, Sliced, Slowest, Tally, Traffic, Trial,
};

/// Length of the warm-up before a trial, at the same rate, as a fraction of the trial's length. The warm-up brings
/// caches and queues into their steady state, and wakes up components that sleep without traffic.
const RAMP: f64 = 0.05;
/// Minimum length of the warm-up before a trial, s.
const SHORTEST_RAMP: f64 = 0.002;
/// Maximum length of the warm-up before a trial, s.
const LONGEST_RAMP: f64 = 0.5;

/// A rate that no port can reach, so that the generator sends at its highest rate.
const BEYOND_PPS: f64 = 1e9;

/// Length of a test for the generator's highest rate, s.
const SPRINT_SECONDS: f64 = 0.01;
/// Number of tests for the generator's highest rate.
const SPRINTS: usize = 3;

/// The minimum rate of a search, packets per second. It is raised until a full trial has [`FEWEST_PACKETS`] packets.
const LOWEST_PPS: f64 = 10.0;
/// Minimum number of packets of a full trial. A short trial then has at least ten packets; a trial with one packet
/// could not show whether a rate is loss-free.
const FEWEST_PACKETS: f64 = 40.0;

/// Number of trials without a returned packet after which a search tries the lowest rate.
const SILENT_TRIALS: u32 = 2;

/// Number of equal parts of a latency trial, each with a histogram of its own.
const SLICES: usize = 20;

/// Length of the first burst, packets.
const FIRST_BURST: u64 = 64;

/// Maximum number of points of a loss curve.
const MOST_POINTS: usize = 20;

/// Time between trials, in which late packets arrive, counters are read, and the next schedule is prepared.
pub(super) const BETWEEN_SECONDS: f64 = 0.04;

/// The progress of all measurements, which is reported between trials.
pub(super) struct Progress<'a> {
    observer: &'a mut (dyn Observer + Send),
    done: f64,
    total: f64,
    unit: f64,
    unit_begun: Instant,
}

impl<'a> Progress<'a> {
    pub(super) fn new(
        observer: &'a mut (dyn Observer + Send),
        settings: &Settings,
        sizes: usize,
    ) -> Self {
        let each = |part| estimate(settings, part) * f64::from(times(settings, part));
        let parts = settings.parts.iter().filter(|part| **part != Part::Soak);
        let of_sizes: f64 = parts.map(|part| each(*part)).sum();
        let soak = if settings.has(Part::Soak) {
            settings.soak_seconds
        } else {
            0.0
        };
        Self {
            observer,
            done: 0.0,
            total: of_sizes * sizes as f64 + soak,
            unit: 0.0,
            unit_begun: Instant::now(),
        }
    }

    /// Returns the estimated duration of all measurements.
    pub(super) fn total(&self) -> Duration {
        Duration::try_from_secs_f64(self.total).unwrap_or_default()
    }

    pub(super) fn begin(&mut self, seconds: f64, what: &str) {
        self.unit = seconds;
        self.unit_begun = Instant::now();
        self.tell(what);
    }

    pub(super) fn tell(&mut self, what: &str) {
        let within = self.unit_begun.elapsed().as_secs_f64().min(self.unit);
        let done = Duration::try_from_secs_f64(self.done + within).unwrap_or_default();
        self.observer.progress(done, self.total(), what);
    }

    pub(super) fn end(&mut self) {
        self.done += self.unit;
        self.unit = 0.0;
    }
}

/// Returns the number of repetitions of a part.
pub(super) fn times(settings: &Settings, part: Part) -> u32 {
    match part {
        Part::BackToBack => settings.bursts,
        _ => settings.repetitions,
    }
}

/// Returns the approximate duration in seconds of one repetition of a part for one size.
pub(super) fn estimate(settings: &Settings, part: Part) -> f64 {
    let trial = settings.trial_seconds;
    match part {
        Part::Throughput => {
            let seconds = search_settings(settings, 1e6)
                .ok()
                .and_then(|s| ThroughputSearch::new(s).ok())
                .and_then(|search| search.with_goals(&settings.goals).ok())
                .map_or(0.0, |search| search.estimate_seconds());
            seconds * (1.0 + RAMP) + 25.0 * BETWEEN_SECONDS
        }
        Part::Latency => {
            let loads = settings.shares.len().max(1) as f64;
            loads * (settings.latency_seconds * (1.0 + RAMP) + BETWEEN_SECONDS)
        }
        Part::Loss => 10.0 * (trial * (1.0 + RAMP) + BETWEEN_SECONDS),
        // Most devices lose packets long before the longest burst.
        Part::BackToBack => 20.0 * BETWEEN_SECONDS + settings.longest_burst_seconds,
        Part::Soak => settings.soak_seconds,
    }
}

fn search_settings(settings: &Settings, max_pps: f64) -> Result<ThroughputSettings, RunError> {
    if max_pps < LOWEST_PPS {
        return Err(RunError::Device(format!(
            "the generator could offer only {max_pps:.1} packets per second: at least {LOWEST_PPS} are needed"
        )));
    }
    Ok(ThroughputSettings {
        method: settings.method,
        min_pps: (FEWEST_PACKETS / settings.trial_seconds).clamp(LOWEST_PPS, max_pps),
        max_pps,
        precision: settings.precision,
        loss_tolerance: settings.loss_tolerance,
        trial_seconds: settings.trial_seconds,
        votes: settings.votes,
        exceed_ratio: EXCEED_RATIO,
    })
}

/// Combines the counts of sender and receiver for a trial at `asked_pps`.
pub(super) fn counts(asked_pps: f64, tally: &Tally, account: &SequenceReport) -> Counts {
    Counts {
        offered_pps: tally.offered_pps(asked_pps),
        seconds: tally.seconds,
        sent: tally.sent,
        // Refused packets have a sequence number but were never sent, so at most `sent` packets can have come back.
        received: account.received_unique.min(tally.sent),
        refused: tally.refused,
        unsent: tally.unsent,
        duplicate: account.duplicate,
        reordered: account.reordered,
        corrupt: tally.corrupt,
    }
}

/// All measurements on one device.
pub(super) struct Session<'a, 'b> {
    pub(super) instrument: &'a mut Instrument,
    pub(super) settings: &'a Settings,
    pub(super) sizes: &'a [Sizes],
    pub(super) traffics: &'a [Traffic],
    pub(super) folder: &'a Folder,
    pub(super) progress: &'a mut Progress<'b>,
    pub(super) stop: &'a AtomicBool,
    /// The live view; none if the run is not displayed live.
    pub(super) live: Option<Live>,
    /// The interfaces that a wiretap observes.
    pub(super) tapped: &'a [String],
    /// File in which the device logs the interruptions of its core; none if the device does not log them.
    pub(super) device_log: Option<&'a Path>,
    /// The generator's highest rate for each frame size, packets per second; none until it is measured.
    pub(super) fastest_pps: Vec<Option<f64>>,
    /// For each frame size, the throughput found in each repetition, packets per second.
    pub(super) found_pps: Vec<Vec<f64>>,
}

impl Session<'_, '_> {
    pub(super) fn write(
        &self,
        size: usize,
        repetition: u32,
        measured: Measured,
    ) -> Result<(), RunError> {
        self.folder.write(&Unit {
            size: self.sizes[size].to_string(),
            repetition,
            measured,
        })?;
        Ok(())
    }

    /// Selects the traffic of the frame size with index `size`, for the next trials.
    pub(super) fn take(&mut self, size: usize) -> Result<(), RunError> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(RunError::Stopped);
        }
        self.instrument.set_traffic(self.traffics[size].clone())?;
        Ok(())
    }

    /// Sends the warm-up before a trial of this many `seconds`, without counting.
    fn ramp(&mut self, rate_pps: f64, seconds: f64) {
        let seconds = (seconds * RAMP).clamp(SHORTEST_RAMP, LONGEST_RAMP);
        let trial = Trial {
            rate_pps,
            duration: Duration::from_secs_f64(seconds),
        };
        let mut record = Sequence(SequenceTracker::new());
        self.send(trial, &mut record);
    }

    fn send<R: Account>(&mut self, trial: Trial, record: &mut R) -> Tally {
        self.instrument
            .run_watched(trial, record, self.live.as_mut(), self.stop)
    }

    /// Runs one trial: the warm-up, the trial itself, and the count after the last packets.
    fn trial(&mut self, rate_pps: f64, seconds: f64) -> Result<Counts, RunError> {
        self.ramp(rate_pps, seconds);
        self.bare_trial(rate_pps, seconds)
    }

    fn bare_trial(&mut self, rate_pps: f64, seconds: f64) -> Result<Counts, RunError> {
        let trial = Trial {
            rate_pps,
            duration: Duration::from_secs_f64(seconds),
        };
        let mut record = Sequence(SequenceTracker::new());
        let tally = self.send(trial, &mut record);
        if tally.stopped {
            return Err(RunError::Stopped);
        }
        let account = record.0.finish(tally.sent + tally.refused);
        Ok(counts(rate_pps, &tally, &account))
    }

    /// Returns the highest rate to offer, packets per second: the generator's highest rate, or the user's limit if that
    /// is lower. The rate is measured once for each size.
    fn fastest(&mut self, size: usize) -> Result<f64, RunError> {
        if let Some(known) = self.fastest_pps[size] {
            return Ok(known);
        }
        let mut best_pps = 0.0_f64;
        for _ in 0..SPRINTS {
            let counts = self.bare_trial(BEYOND_PPS, SPRINT_SECONDS)?;
            let offered = (counts.sent + counts.refused) as f64;
            best_pps = best_pps.max(offered / counts.seconds);
        }
        let limit_pps = self.settings.max_rate_pps.unwrap_or(f64::INFINITY);
        let fastest = best_pps.min(limit_pps);
        self.fastest_pps[size] = Some(fastest);
        Ok(fastest)
    }

    /// Checks with a trial at the lowest rate that at least one packet comes back.
    fn check_lowest_rate(
        &mut self,
        size: usize,
        max_pps: f64,
        settings: &ThroughputSettings,
    ) -> Result<(), RunError> {
        let least = self.bare_trial(settings.min_pps, settings.trial_seconds)?;
        if least.received == 0 {
            return Err(RunError::Device(format!(
                "no packet came back at {} or {}, with frame size {}: check that the device forwards \
                from the first port to the last",
                rate(max_pps),
                rate(settings.min_pps),
                self.sizes[size]
            )));
        }
        Ok(())
    }

    pub(super) fn throughput(
        &mut self,
        size: usize,
        repetition: u32,
        what: &str,
    ) -> Result<Measured, RunError> {
        let max_pps = self.fastest(size)?;
        let settings = search_settings(self.settings, max_pps)?;
        let mut search = ThroughputSearch::new(settings)
            .and_then(|search| search.with_goals(&self.settings.goals))
            .map_err(|e| RunError::Device(e.to_string()))?;
        let mut anything = false;
        let mut silent = 0;
        while let Some(wanted) = search.next() {
            let so_far = said_bounds(search.bounds_so_far());
            self.progress
                .tell(&format!("{what}: {}{so_far}", rate(wanted.rate_pps)));
            let counts = match self.trial(wanted.rate_pps, wanted.seconds) {
                Err(RunError::Stopped) => {
                    // The incomplete result is stored, and marked as incomplete.
                    let result = search.result();
                    self.write(size, repetition, Measured::Throughput { result })?;
                    return Err(RunError::Stopped);
                }
                other => other?,
            };
            anything |= counts.received > 0;
            silent += u32::from(counts.received == 0);
            // Without returned packets each trial waits for seconds. A trial at the lowest rate shows whether any
            // packet comes back.
            if !anything && silent == SILENT_TRIALS {
                self.check_lowest_rate(size, max_pps, &settings)?;
            }
            search.report(
                wanted,
                TrialOutcome {
                    offered_pps: counts.offered_pps,
                    sent: counts.sent,
                    received: counts.received,
                    refused: counts.refused,
                    generator_behind: counts.unsent > 0,
                },
            );
        }
        let result = search.result();
        if !anything {
            return Err(RunError::Device(format!(
                "no packet came back at any rate, with frame size {}: check that the device forwards from the \
                first port to the last",
                self.sizes[size]
            )));
        }
        self.found_pps[size].extend(result.rate_pps);
        Ok(Measured::Throughput { result })
    }

    /// Returns the mean throughput of the repetitions that found a loss-free rate, packets per second; none if no
    /// repetition found one.
    pub(super) fn found(&self, size: usize) -> Option<f64> {
        let found = &self.found_pps[size];
        (!found.is_empty()).then(|| found.iter().sum::<f64>() / found.len() as f64)
    }

    /// Returns the loads for the latency trials: fractions of the throughput with their rates (packets per second), or
    /// only the configured rate.
    fn loads(&self, size: usize) -> Vec<(Option<f64>, f64)> {
        match (self.settings.rate_pps, self.found(size)) {
            (Some(rate_pps), _) => vec![(None, rate_pps)],
            (None, Some(found)) => {
                let shares = self.settings.shares.iter();
                shares.map(|share| (Some(*share), share * found)).collect()
            }
            (None, None) => Vec::new(),
        }
    }

    pub(super) fn latency(
        &mut self,
        size: usize,
        repetition: u32,
        what: &str,
    ) -> Result<Measured, RunError> {
        let seconds = self.settings.latency_seconds;
        let mut loads = Vec::new();
        for (share, rate_pps) in self.loads(size) {
            self.progress.tell(&format!("{what}: {}", rate(rate_pps)));
            self.ramp(rate_pps, seconds);
            let mut record =
                Sliced::new(self.instrument.clock(), seconds, SLICES, rate_pps * seconds);
            let trial = Trial {
                rate_pps,
                duration: Duration::from_secs_f64(seconds),
            };
            let tap = (self.settings.tap)
                .then(|| TrialTap::start(self.tapped, rate_pps * seconds))
                .transpose()?;
            let started = SystemTime::now();
            let tally = self.send(trial, &mut record);
            if tally.stopped {
                return Err(RunError::Stopped);
            }
            let inside = tap.map(|tap| tap.finish().0);
            let account = record.sequence.finish(tally.sent + tally.refused);
            let whole = record.whole();
            let mut log = Vec::new();
            let load = share.map_or("rate".to_string(), |share| format!("{}", share * 100.0));
            if whole
                .write_hlog(&mut log, started, trial.duration, None)
                .is_ok()
            {
                let name = format!("latency-{repetition}-{load}.hlog");
                let size = self.sizes[size].to_string();
                self.folder.write_log(&size, &name, &log)?;
            }
            let summary = Summary::from_histogram(&whole);
            let usual_ns = summary.as_ref().and_then(|summary| summary.p50_ns);
            loads.push(LoadLatency {
                share,
                counts: counts(rate_pps, &tally, &account),
                slowest: usual_ns.and_then(|ns| self.slowest(&record.slowest, seconds, ns as f64)),
                summary,
                slices: record.slices.iter().map(buckets).collect(),
                inside,
            });
        }
        Ok(Measured::Latency { loads })
    }

    /// Returns the slowest packets of the last trial with their causes; none if the device's log cannot be read.
    fn slowest(&mut self, kept: &Slowest, seconds: f64, usual_ns: f64) -> Option<SlowestPackets> {
        let clock = *self.instrument.clock();
        let noted = self.instrument.interruptions();
        let found = match MeasuredInterruptions::of(noted, self.device_log, &clock) {
            Ok(found) => found,
            Err(e) => {
                let note = format!("what the slowest packets waited for is not known: {e}");
                self.progress.observer.note(&note);
                return None;
            }
        };
        let packets: Vec<(f64, f64)> = kept
            .packets()
            .iter()
            .map(|(sent, latency)| (clock.to_ns(*sent), clock.to_ns(*latency)))
            .collect();
        SlowestPackets::of(&found, seconds * 1e9, usual_ns, &packets)
    }

    /// Measures the loss from the highest rate downwards, until two successive trials are loss-free (RFC 2544 section
    /// 26.3). The rate declines in steps of a tenth of the highest rate, then by halving.
    pub(super) fn loss(&mut self, size: usize, what: &str) -> Result<Measured, RunError> {
        let fastest = self.fastest(size)?;
        let mut points: Vec<Counts> = Vec::new();
        let mut loss_free_in_a_row = 0;
        for share in loss_shares() {
            let rate_pps = fastest * share;
            if rate_pps < LOWEST_PPS {
                break;
            }
            self.progress.tell(&format!("{what}: {}", rate(rate_pps)));
            let counts = self.trial(rate_pps, self.settings.trial_seconds)?;
            // A generator that fell behind offered less than this rate, so the trial does not show that the rate is
            // loss-free.
            let point_is_loss_free = counts.unsent == 0 && counts.loss() == 0.0;
            loss_free_in_a_row = if point_is_loss_free {
                loss_free_in_a_row + 1
            } else {
                0
            };
            points.push(counts);
            if loss_free_in_a_row == 2 {
                break;
            }
        }
        Ok(Measured::Loss { points })
    }

    pub(super) fn back_to_back(&mut self, size: usize, what: &str) -> Result<Measured, RunError> {
        let burst_pps = self.fastest(size)?;
        let longest = (burst_pps * self.settings.longest_burst_seconds) as u64;
        let mut search = BurstSearch::new(FIRST_BURST, longest);
        let mut bursts = Vec::new();
        while let Some(length) = search.next_length() {
            self.progress
                .tell(&format!("{what}: {} packets", count(length)));
            let counts = self.bare_trial(burst_pps, length as f64 / burst_pps)?;
            search.report(counts.passed_whole());
            bursts.push(Burst { length, counts });
        }
        Ok(Measured::BackToBack {
            length: search.length(),
            unlimited: search.is_unlimited(),
            bursts,
        })
    }
}

/// Returns the current bounds of a search as text.
fn said_bounds(bounds: (Option<f64>, Option<f64>)) -> String {
    match bounds {
        (None, None) => String::new(),
        (Some(low), None) => format!(", holds {}", rate(low)),
        (None, Some(high)) => format!(", fails {}", rate(high)),
        (Some(low), Some(high)) => format!(", holds {}, fails {}", rate(low), rate(high)),
    }
}

/// Yields the fractions of the highest rate for a loss curve: 1, 0.9 ... 0.1, 0.05, 0.025 ...
fn loss_shares() -> impl Iterator<Item = f64> {
    let tenths = (1..=10).rev().map(|tenth| f64::from(tenth) / 10.0);
    let halves = (1..).map(|n| 0.1 * 0.5_f64.powi(n));
    tenths.chain(halves).take(MOST_POINTS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loss_curve_rates_decrease_by_tenths_and_then_by_halves() {
        let shares: Vec<f64> = loss_shares().collect();
        assert_eq!(shares.len(), MOST_POINTS);
        assert_eq!((shares[0], shares[9]), (1.0, 0.1));
        assert!((shares[10] - 0.05).abs() < 1e-12 && shares.windows(2).all(|w| w[1] < w[0]));
    }

    #[test]
    fn refused_packets_count_as_lost_but_unsent_packets_do_not() {
        let tally = Tally {
            owed: 100,
            sent: 80,
            refused: 5,
            unsent: 15,
            ..Tally::default()
        };
        let account = SequenceReport {
            received_unique: 80,
            ..SequenceTracker::new().finish(85)
        };
        let counts = counts(1e6, &tally, &account);
        assert_eq!(counts.loss(), 5.0 / 85.0);
        let nothing = Counts::default();
        assert_eq!(nothing.loss(), 0.0);
    }

    #[test]
    fn a_burst_with_unsent_packets_does_not_pass() {
        let whole = Counts {
            sent: 100_000,
            received: 100_000,
            ..Counts::default()
        };
        assert!(whole.passed_whole());
        let cut = Counts {
            sent: 60_000,
            received: 60_000,
            unsent: 40_000,
            ..whole
        };
        assert!(!cut.passed_whole());
    }
}
