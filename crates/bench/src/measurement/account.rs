//! Computes the summary of a measurement from the generator's results, and fills the folder that stores it.

use super::run::{Measurement, Outcome};
use super::summary::Streams;
use super::summary::{
    Budget, DeviceWork, Kept, KernelStamps, StreamSummary, TakenAway, TrafficSummary, Versions,
};
use super::verdict::{LimitMissed, lost_share, verdict};
use crate::evaluate::{SlowestPackets, share_of};
use crate::report::error::ReportError;
use crate::report::recording::write_recording;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use taut_figure::bar_chart;
use taut_host::SystemActivity;
use taut_measure::{LatencyHistogram, Summary};
use taut_results::{
    MeasuredInterruptions, PacketFormat, Recording, ResultsError, SampleThread, busy_with, instant,
};
use taut_sys::Clock;
use taut_tap::Inside;
use taut_traffic::{Observed, Sampler, SamplerAccount, Tally};

/// The results folder in progress, and the threads that write it; empty if no folder is requested.
#[derive(Default)]
pub struct Recorded {
    folder: Option<Recording>,
    threads: Vec<SampleThread>,
}

impl Recorded {
    /// Creates the folder if `dir` is given. If `format` is given too, starts a thread for each stream, which writes
    /// the stream's samples. `names` and `sizes` have the name and the repeating frame sizes of each stream. The
    /// returned samplers, one per thread, are for the generator's loop.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created, or already contains results.
    pub fn start(
        dir: Option<&Path>,
        format: Option<PacketFormat>,
        names: &[String],
        sizes: &[Arc<[u16]>],
        clock: &Clock,
    ) -> Result<(Self, Vec<Sampler>), ResultsError> {
        let mut recorded = Self::default();
        let mut samplers = Vec::new();
        if let Some(dir) = dir {
            let folder = recorded.folder.insert(Recording::create(dir, names)?);
            for (stream, sizes) in sizes.iter().enumerate() {
                let Some(format) = format else { break };
                let (sampler, thread) = folder.sample(stream, format, clock, Arc::clone(sizes))?;
                samplers.push(sampler);
                recorded.threads.push(thread);
            }
        }
        Ok((recorded, samplers))
    }

    /// Returns the threads that write samples.
    pub fn threads(&self) -> &[SampleThread] {
        &self.threads
    }

    /// Removes the folder, because nothing was measured. The samplers must have been dropped, so that the threads end.
    pub fn discard(self) {
        for thread in self.threads {
            thread.join();
        }
        if let Some(folder) = self.folder {
            folder.discard();
        }
    }
}

/// A summarised measurement, with the errors that occurred in writing its folder.
#[derive(Debug)]
pub struct Account {
    /// The summary of the measurement.
    pub summary: TrafficSummary,
    /// The first error in writing the folder, if any.
    pub problem: Option<ResultsError>,
    /// The reason why the causes of the slowest packets are unknown; none if there was no error in finding them.
    pub unexplained: Option<taut_sys::Error>,
    /// Path of the page, if there is a folder and it was written without error.
    pub page: Option<PathBuf>,
    /// True if timestamps were requested but are unusable, because their clock cannot be related to the clock of this
    /// machine.
    pub unknown_stamps: bool,
    /// Names of the generator's ports, as reports display them.
    pub port_names: Vec<String>,
    /// Mean frame size of each stream in bytes, frame check sequence included.
    pub(super) average_bytes: Vec<f64>,
    /// Text lines that draw the histogram of the latencies; none for more than one stream.
    pub(super) histogram: Vec<String>,
    seconds: f64,
}

impl Account {
    /// Summarises the results of a measurement, and writes the summary into the folder. `asked_pps` contains the
    /// requested rate of each stream.
    ///
    /// # Errors
    /// Returns an error if the report cannot be written.
    pub fn of(
        measurement: &Measurement,
        asked_pps: &[f64],
        mut outcome: Outcome,
        recorded: Recorded,
        command_line: String,
    ) -> Result<Self, ReportError> {
        let setup = &measurement.setup;
        let begun = outcome.meanwhile.begun;
        let (samples, mut problem) = finish_samples(&mut outcome.records, recorded.threads);
        if let Some(folder) = &recorded.folder {
            let records = &mut outcome.records;
            problem = problem.or(write_worst(folder, records, setup.clock(), begun));
        }
        let slowest = slowest_of_streams(&outcome, setup.clock());
        let streams = stream_summaries(measurement, asked_pps, &outcome, &samples, &slowest);
        let found = outcome.meanwhile.interruptions;
        let seconds = measurement.trial.duration.as_secs_f64();
        let [generator, device] = taken_away(&found, &outcome.tallies);
        let summary = TrafficSummary {
            event: "summary".to_string(),
            started: instant(begun),
            command_line,
            seed: Some(outcome.seed),
            ports: outcome.ports,
            device: setup.made_device(),
            versions: Versions::here(),
            device_interruptions: device,
            generator_interruptions: generator,
            warnings: busy(&found, &outcome.tallies, &outcome.meanwhile.activity),
            device_work: outcome
                .meanwhile
                .work
                .and_then(|work| DeviceWork::of(work, setup.clock())),
            activity: Some(outcome.meanwhile.activity),
            energy: Some(outcome.meanwhile.energy),
            streams,
            inside: outcome.inside.as_ref().map(|(inside, _)| inside.clone()),
        };
        if let Some(folder) = &recorded.folder {
            let inside = outcome.inside.as_ref();
            problem = problem.or(write_inside(folder, inside, begun, seconds));
            let write = || {
                write_streams(folder, begun, &outcome.tallies, &outcome.records, &slowest)?;
                if let Ok(found) = &found {
                    folder.write_interruptions(found)?;
                }
                folder.write_machine()?;
                // The summary is written last, so a folder that has it is complete.
                folder.write_summary(&summary)
            };
            problem = problem.or(write().err());
        }
        Ok(Self {
            page: write_page(recorded.folder.as_ref(), problem.as_ref())?,
            summary,
            problem,
            unexplained: found.err(),
            unknown_stamps: outcome.unknown_stamps,
            port_names: setup.port_names(),
            average_bytes: setup
                .traffic()
                .streams()
                .iter()
                .map(|it| it.sizes().average_bytes())
                .collect(),
            histogram: match &outcome.records[..] {
                [one] => bar_chart::lines(&one.summaries.latency),
                _ => Vec::new(),
            },
            seconds,
        })
    }

    /// Checks that the traffic was sent as requested, and that it came back, except for at most the fraction
    /// `max_loss`. Without `max_loss`, it is enough that a packet came back; it must be unchanged if packets carry
    /// timestamps.
    ///
    /// # Errors
    /// Returns the limit that the measurement violates.
    pub fn verdict(&self, max_loss: Option<f64>) -> Result<(), LimitMissed> {
        verdict(&self.summary.streams, self.seconds, max_loss)
    }
}

/// Returns the time for which packets were sent, s.
fn sending_seconds(tallies: &[Tally]) -> f64 {
    let sending = tallies.iter().map(|tally| tally.seconds);
    sending.fold(0.0, f64::max)
}

/// Returns the interruptions of the generator's and of the device's core while packets were sent; none if they are
/// unknown.
fn taken_away(
    found: &Result<MeasuredInterruptions, taut_sys::Error>,
    tallies: &[Tally],
) -> [Option<TakenAway>; 2] {
    let seconds = sending_seconds(tallies);
    let found = found.as_ref().ok();
    let device = found.and_then(|found| found.device.as_ref());
    [found.map(|found| &found.generator), device]
        .map(|core| core.and_then(|core| TakenAway::of(core, seconds)))
}

/// Returns the warning that other programs took too much of a core; empty if they did not, or if it is unknown.
fn busy(
    found: &Result<MeasuredInterruptions, taut_sys::Error>,
    tallies: &[Tally],
    activity: &SystemActivity,
) -> Vec<String> {
    let Ok(found) = found else {
        return Vec::new();
    };
    let seconds = sending_seconds(tallies);
    let cores = std::iter::once(&found.generator).chain(&found.device);
    let taken = cores
        .map(|core| share_of(core, seconds))
        .fold(0.0, f64::max);
    let warning = busy_with(taken.min(activity.most_taken()), &activity.busiest());
    warning.into_iter().collect()
}

/// Writes the report page; none without a results folder, or after a problem in writing the folder.
fn write_page(
    folder: Option<&Recording>,
    problem: Option<&ResultsError>,
) -> Result<Option<PathBuf>, ReportError> {
    match (folder, problem) {
        (Some(folder), None) => Ok(Some(write_recording(folder.path())?)),
        _ => Ok(None),
    }
}

/// Writes the latencies inside of the device, if a wiretap observed it, and returns the error, if any.
fn write_inside(
    folder: &Recording,
    inside: Option<&(Inside, LatencyHistogram)>,
    begun: SystemTime,
    seconds: f64,
) -> Option<ResultsError> {
    let (_, histogram) = inside?;
    let duration = Duration::from_secs_f64(seconds);
    folder.write_inside(histogram, begun, duration).err()
}

/// Writes each stream's slowest packets, and returns the first error.
fn write_worst(
    folder: &Recording,
    records: &mut [Observed],
    clock: &Clock,
    begun: SystemTime,
) -> Option<ResultsError> {
    let mut problem = None;
    for (index, record) in records.iter_mut().enumerate() {
        if let Some(worst) = record.worst.take() {
            let frames = worst.into_frames();
            let written = folder.write_worst(index, &frames, clock, begun);
            problem = problem.or(written.err());
        }
    }
    problem
}

/// Writes the latencies of each stream, and the causes of its slowest packets.
fn write_streams(
    folder: &Recording,
    begun: SystemTime,
    tallies: &[Tally],
    records: &[Observed],
    slowest: &[Option<SlowestPackets>],
) -> Result<(), ResultsError> {
    for (index, (tally, record)) in tallies.iter().zip(records).enumerate() {
        let duration = Duration::from_secs_f64(tally.seconds);
        folder.write_histogram(index, &record.summaries.latency, begun, duration)?;
        if let Some(slowest) = &slowest[index] {
            folder.write_slowest(index, slowest)?;
        }
    }
    Ok(())
}

/// Returns the slowest packets of each stream with their causes; none for a stream whose causes are unknown.
fn slowest_of_streams(outcome: &Outcome, clock: &Clock) -> Vec<Option<SlowestPackets>> {
    let found = outcome.meanwhile.interruptions.as_ref().ok();
    outcome
        .records
        .iter()
        .zip(&outcome.tallies)
        .map(|(record, tally)| slowest(record, found?, clock, tally.seconds))
        .collect()
}

/// Returns the summary of each stream, with the counts of its samples and the causes of its slowest packets.
fn stream_summaries(
    measurement: &Measurement,
    asked_pps: &[f64],
    outcome: &Outcome,
    samples: &[Kept],
    slowest: &[Option<SlowestPackets>],
) -> Streams {
    let of = |index: usize| StreamSummary {
        samples: samples.get(index).copied(),
        slowest: slowest[index]
            .as_ref()
            .map(|slowest| slowest.summary.clone()),
        ..stream_summary(
            measurement,
            index,
            asked_pps[index],
            &outcome.tallies[index],
            &outcome.records[index],
            outcome.stamp_error_ns,
        )
    };
    Streams {
        first: of(0),
        others: (1..outcome.tallies.len()).map(of).collect(),
    }
}

fn stream_summary(
    measurement: &Measurement,
    index: usize,
    asked_pps: f64,
    tally: &Tally,
    record: &Observed,
    stamp_error_ns: Option<f64>,
) -> StreamSummary {
    let stream = &measurement.setup.traffic().streams()[index];
    let is_measured = stream.is_measured();
    let s = &record.summaries;
    // Refused packets have a sequence number but were never sent. They first count as lost, and are then subtracted.
    let account = s.sequence.finish(tally.sent + tally.refused);
    let lost = account.lost.saturating_sub(tally.refused);
    // If the measurement ends before the first packet, there is no time for a rate.
    let per_second = |packets: u64| (tally.seconds > 0.0).then(|| packets as f64 / tally.seconds);
    let send_delay_ns = Summary::from_histogram(&s.send_delay);
    StreamSummary {
        name: stream.name().to_string(),
        asked_pps,
        sent_pps: per_second(tally.sent),
        measured: is_measured,
        lost_share: lost_share(lost, tally.refused, tally.sent).filter(|_| is_measured),
        received_pps: per_second(account.received_unique),
        tally: *tally,
        lost: is_measured.then_some(lost),
        latency_ns: Summary::from_histogram(&s.latency),
        latency_from_intended_ns: Summary::from_histogram(record.intended.latency()),
        kernel_stamps: stamp_error_ns.map(|error_ns| KernelStamps {
            error_ns,
            latency_ns: Summary::from_histogram(&s.stamped_latency),
        }),
        budget: measurement
            .budget
            .filter(|_| is_measured)
            .and_then(|budget| within(budget, &s.latency, tally)),
        jitter_ns: s.jitter.summary(),
        send_delay_ns: send_delay_ns.clone(),
        send_slip_ns: send_delay_ns,
        sequence: Some(account),
        send_gap_ns: s.gaps.summary(),
        interrupted_send_gap_ns: s.interrupted_gaps.summary(),
        samples: None,
        slowest: None,
    }
}

/// Returns the fraction of the offered packets that came back within the latency budget; none if no packet was offered.
/// Lost and refused packets count as outside of the budget.
fn within(budget: Duration, latency: &LatencyHistogram, tally: &Tally) -> Option<Budget> {
    let ns = u64::try_from(budget.as_nanos()).unwrap_or(u64::MAX);
    let offered = tally.sent + tally.refused;
    let in_time = latency.count() - latency.count_above(ns);
    (offered > 0).then(|| Budget {
        ns,
        share: in_time as f64 / offered as f64,
    })
}

/// Returns a stream's slowest packets with their causes.
fn slowest(
    record: &Observed,
    found: &MeasuredInterruptions,
    clock: &Clock,
    seconds: f64,
) -> Option<SlowestPackets> {
    let usual_ns = Summary::from_histogram(&record.summaries.latency)?.p50_ns?;
    let packets = record.slowest.packets();
    let in_ns: Vec<(f64, f64)> = packets
        .iter()
        .map(|(sent, latency)| (clock.to_ns(*sent), clock.to_ns(*latency)))
        .collect();
    SlowestPackets::of(found, seconds * 1e9, usual_ns as f64, &in_ns)
}

/// Waits until the threads have written the remaining samples. Returns the counts of each stream's samples, and the
/// first error, if any.
fn finish_samples(
    records: &mut [Observed],
    threads: Vec<SampleThread>,
) -> (Vec<Kept>, Option<ResultsError>) {
    let accounts: Vec<SamplerAccount> = records
        .iter_mut()
        .filter_map(|record| record.sampler.take().map(Sampler::finish))
        .collect();
    let mut first = None;
    let finished = threads.into_iter().zip(accounts);
    let samples = finished.map(|(thread, account)| {
        let written = thread.join();
        first = first.take().or(written.problem);
        Kept {
            kept: written.rows,
            account: SamplerAccount {
                not_kept: account.not_kept + written.lost,
                ..account
            },
        }
    });
    (samples.collect(), first)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_results::CoreInterruptions;

    #[test]
    fn long_interruptions_of_the_generator_cause_a_warning() {
        let activity = serde_json::json!({"duration_ms": 1_000, "cores": [], "context_switches": 0,
            "involuntary_switches": 0, "load_average_before": null, "others": [{"name": "cc1", "ms": 500}]});
        let activity: SystemActivity = serde_json::from_value(activity).unwrap();
        let tallies = [Tally {
            seconds: 1.0,
            ..Tally::default()
        }];
        let found = |length_ns| {
            Ok(MeasuredInterruptions {
                generator: CoreInterruptions {
                    unkept: 0,
                    each: vec![(0, length_ns)],
                },
                device: None,
            })
        };
        assert!(busy(&found(20_000_000), &tallies, &activity).is_empty());
        let warnings = busy(&found(120_000_000), &tallies, &activity);
        let reason = "12.0 % of a core went to other programs (most: cc1)";
        assert!(warnings[0].contains(reason), "{warnings:?}");
        let [generator, device] = taken_away(&found(120_000_000), &tallies);
        assert_eq!((generator.unwrap().share, device), (0.12, None));
    }
}
