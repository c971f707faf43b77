//! Sets one device up, measures it, and removes it.

use super::{FRAME_SIZE_BYTES, Lengths, Plan};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_bench::device::{Notes, RunError, Site, flow_through, with_instrument};
use taut_bench::measurement::{Meanwhile, Watched, measured};
use taut_host::{CorePlan, Meter};
use taut_measure::{JitterRecorder, LadderSearch, LatencyHistogram, Summary, TrialOutcome};
use taut_results::{CbrResult, Folder, PacketSample, RunWriter, Sweep, SweepTrial};
use taut_sys::Clock;
use taut_traffic::{Blocks, Instrument, Stream, Summaries, Tally, Trial, sampler_of_all};

/// The values that the constant-rate trial and the sweep of a run share.
pub(super) struct RunContext<'a> {
    pub(super) plan: &'a Plan,
    pub(super) lengths: &'a Lengths,
    pub(super) cores: &'a CorePlan,
    pub(super) clock: Clock,
    pub(super) folder: &'a Folder,
}

/// Measures the device: constant rate, then the sweep.
pub(super) fn measure(context: &RunContext<'_>, stop: &AtomicBool) -> Result<(), RunError> {
    let device = &context.plan.device;
    let stream = Stream::new(
        &flow_through(device.frames(), false),
        FRAME_SIZE_BYTES as usize,
    )
    .map_err(|e| RunError::Device(e.to_string()))?;
    let notes = Notes::new()?;
    let log = device.notes_interruptions().then(|| notes.path());
    let site = Site {
        program: &context.plan.program,
        generator_core: Some(context.cores.generator),
        device_core: context.cores.device,
        clock: context.clock,
        tapped: false,
        interruptions: log,
    };
    let writer = with_instrument(&site, device, &stream.into(), stop, |instrument| {
        let writer = context.folder.begin_run(&device.id, 1)?;
        constant_rate(context, instrument, &writer, log, stop)?;
        sweep(context, instrument, &writer, stop)?;
        Ok(writer)
    })?;
    writer.finish()?;
    Ok(())
}

fn constant_rate(
    context: &RunContext<'_>,
    instrument: &mut Instrument,
    writer: &RunWriter,
    device_log: Option<&Path>,
    stop: &AtomicBool,
) -> Result<(), RunError> {
    let settings = &context.plan.settings;
    let rate_pps = settings.rate_pps;
    let warm_up = Trial {
        rate_pps,
        duration: context.lengths.warm_up,
    };
    instrument.run(warm_up, &mut Summaries::new(&context.clock), stop);
    let trial = Trial {
        rate_pps,
        duration: Duration::from_secs_f64(settings.cbr_seconds),
    };
    let (mut sampler, blocks) = sampler_of_all(trial.packets());
    let watched = Watched {
        meter: &Meter::of_this_machine(),
        device_core: Some(context.cores.device),
        generator_core: Some(context.cores.generator),
        device_log,
        clock: &context.clock,
    };
    let (tally, meanwhile) = measured(watched, instrument, |instrument| {
        instrument.run(trial, &mut sampler, stop)
    });
    sampler.finish();
    if tally.stopped {
        return Err(RunError::Stopped);
    }
    if tally.received == 0 {
        return Err(RunError::Device(format!(
            "none of {} packets came back ({} refused by a full ring)",
            tally.owed, tally.refused
        )));
    }
    write_constant_rate(context, writer, trial, &tally, &blocks, meanwhile)
}

fn write_constant_rate(
    context: &RunContext<'_>,
    writer: &RunWriter,
    trial: Trial,
    tally: &Tally,
    blocks: &Blocks,
    meanwhile: Meanwhile,
) -> Result<(), RunError> {
    writer.write_interruptions(&meanwhile.interruptions?)?;
    let ns_per_tick = context.clock.to_ns(1);
    let mut samples = writer.samples()?;
    let mut latencies = Vec::with_capacity(trial.packets() as usize);
    let mut from_intended = Vec::with_capacity(trial.packets() as usize);
    let mut send_delays = Vec::with_capacity(trial.packets() as usize);
    let mut jitter = JitterRecorder::new();
    let mut histogram = LatencyHistogram::new();
    let (mut duplicate, mut reordered, mut saturated) = (0, 0, 0);
    while let Some(block) = blocks.next() {
        for (sequence, packet) in (block.first..).zip(&block.packets) {
            let sample = PacketSample::of(sequence, packet, ns_per_tick);
            let send_delay_ns = u64::from(sample.send_delay_ns);
            if let Some(ns) = sample.latency_ns.map(u64::from) {
                latencies.push(ns);
                from_intended.push(ns + send_delay_ns);
                jitter.record(sequence, ns);
                histogram.record(ns);
            }
            send_delays.push(send_delay_ns);
            duplicate += u64::from(sample.arrivals.saturating_sub(1));
            reordered += u64::from(sample.reordered);
            saturated += u64::from(packet.is_cut());
            samples.push(&sample)?;
        }
    }
    samples.finish(false)?;
    writer.write_histogram(&histogram, meanwhile.begun, trial.duration)?;
    let received = latencies.len() as u64;
    writer.write_cbr(&CbrResult {
        offered_pps: trial.rate_pps,
        sent_pps: tally.sent as f64 / tally.seconds,
        received_pps: received as f64 / tally.seconds,
        sent: tally.sent,
        received,
        lost: tally.sent.saturating_sub(received),
        refused: tally.refused,
        duplicate,
        reordered,
        corrupt: tally.corrupt,
        foreign: tally.foreign,
        saturated,
        latency: Summary::from_samples(&latencies),
        latency_from_intended: Summary::from_samples(&from_intended),
        jitter: jitter.summary(),
        send_delay: Summary::from_samples(&send_delays),
        activity: serde_json::to_value(meanwhile.activity).unwrap_or_default(),
        energy: Some(meanwhile.energy),
    })?;
    Ok(())
}

fn sweep(
    context: &RunContext<'_>,
    instrument: &mut Instrument,
    writer: &RunWriter,
    stop: &AtomicBool,
) -> Result<(), RunError> {
    let mut search = LadderSearch::new(context.lengths.search(&context.plan.device))
        .map_err(|e| RunError::Device(e.to_string()))?;
    let mut trials = Vec::new();
    while let Some(rate_pps) = search.next_rate_pps() {
        let mut record = Summaries::new(&context.clock);
        let trial = Trial {
            rate_pps,
            duration: context.lengths.trial,
        };
        let tally = instrument.run(trial, &mut record, stop);
        if tally.stopped {
            return Err(RunError::Stopped);
        }
        // The device's ring refused these packets after they got a sequence number. They were never sent, so they are
        // not lost.
        let received = record
            .sequence
            .finish(tally.sent + tally.refused)
            .received_unique;
        search.report(TrialOutcome {
            offered_pps: tally.offered_pps(rate_pps),
            sent: tally.sent,
            received,
            refused: tally.refused,
            generator_behind: tally.generator_behind(),
        });
        trials.push(SweepTrial {
            offered_pps: rate_pps,
            sent_pps: tally.sent as f64 / tally.seconds,
            received_pps: received as f64 / tally.seconds,
            sent: tally.sent,
            received,
            lost: tally.sent.saturating_sub(received),
            refused: tally.refused,
            behind: tally.generator_behind(),
            latency: Summary::from_histogram(&record.latency),
            seconds: tally.seconds,
        });
    }
    writer.write_sweep(&Sweep {
        trials,
        search: Some(search.result()),
    })?;
    Ok(())
}
