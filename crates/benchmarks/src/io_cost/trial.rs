//! Trials of one forwarder with one load at one offered rate. A part of the measurement consists of a series of such
//! trials.

use super::knee::{Knee, KneeSearch};
use super::lengths::Lengths;
use super::part::Part;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use taut_bench::benchmark::Failed;
use taut_bench::framework::{Events, Generator, Own, Session, Transport, Work};
use taut_measure::Summary;
use taut_sys::EventCounts;
use taut_traffic::Flow;

/// One trial of a framework.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// The work that the forwarder did for each packet.
    pub work: Work,
    /// Requested rate of the generator, packets per second; none if it sends as much as the transport accepts, or if
    /// there is no generator.
    pub offered_pps: Option<f64>,
    /// Sent rate, packets per second; none without a generator.
    pub sent_pps: Option<f64>,
    /// Received rate, packets per second.
    pub throughput_pps: f64,
    /// The forwarder's own statistics.
    pub own: Own,
    /// Hardware events per packet; empty where none are counted.
    pub events: Events,
    /// Latency of the trial's packets, if it was measured.
    pub latency: Option<Summary>,
    /// True if the generator could not send at the requested rate.
    pub generator_behind: bool,
}

/// One part of a framework in one repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The framework's id.
    pub framework: String,
    /// The quantity that is varied in the series.
    pub part: Part,
    /// Number of the repetition, from 1.
    pub repetition: u32,
    /// Highest rate that came through without load, packets per second; none if the framework has no generator.
    pub capacity_pps: Option<f64>,
    /// The result of the search for the knee; none for parts that do not vary the load, and for frameworks without a
    /// generator.
    pub knee: Option<Knee>,
    /// All trials in chronological order.
    pub trials: Vec<Trial>,
}

/// Returns the rate that is offered while the load per packet rises, as a fraction of the transport's capacity. With
/// backpressure (shared memory) the rate can be close to the capacity. Where the kernel drops excess frames, the rate
/// must be so low that none are dropped.
fn offered_share(transport: Transport) -> f64 {
    match transport {
        Transport::Veth => 0.8,
        _ => 0.9,
    }
}

/// Rate at which latency is measured, as a fraction of the throughput at saturation.
const BELOW_SATURATION: f64 = 0.95;

/// Maximum loss ratio of a trial whose rate counts as carried by the transport.
const CARRIED_LOSS: f64 = 0.03;

/// Runs the trials of one part of the measurement of the framework in `session`.
pub(super) fn measure(
    session: &mut Session<'_>,
    series: &mut Series,
    lengths: &Lengths,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    match series.part {
        Part::Load => measure_loads(session, series, lengths, stop),
        Part::Batch => measure_bursts(session, series, lengths, stop),
        Part::Walk => measure_walks(session, series, lengths, stop),
    }
}

fn measure_loads(
    session: &mut Session<'_>,
    series: &mut Series,
    lengths: &Lengths,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    let framework = session.framework();
    let with_load = |burn_cycles| Work {
        burn_cycles,
        ..Work::default()
    };
    if !framework.has_generator() {
        // A device that creates its own frames is always busy, so every load lowers the throughput. The knee is at
        // zero, and no search is needed.
        let loads: &[u32] = if framework.can_be_loaded() {
            &lengths.loads
        } else {
            &[0]
        };
        for load in loads {
            let trial = throughput(session, with_load(*load), None, lengths.trial, stop)?;
            series.trials.push(trial);
        }
        return Ok(());
    }
    let transport = framework.transport;
    let repeated = session.repeats();
    let (capacity_pps, _) = session.with_forwarder(&Work::default(), stop, |generator| {
        capacity(generator, transport, lengths.trial, None, repeated)
    })?;
    series.capacity_pps = Some(capacity_pps);
    let offered_pps = Some(capacity_pps * offered_share(transport));
    if !framework.can_be_loaded() {
        let trial = throughput(session, with_load(0), offered_pps, lengths.trial, stop)?;
        series.trials.push(trial);
        return Ok(());
    }
    let mut search = KneeSearch::new(lengths.knee());
    while let Some(load) = search.next_load() {
        let trial = throughput(session, with_load(load), offered_pps, lengths.trial, stop)?;
        search.report(load, trial.throughput_pps);
        series.trials.push(trial);
    }
    series.knee = search.knee();
    Ok(())
}

fn measure_bursts(
    session: &mut Session<'_>,
    series: &mut Series,
    lengths: &Lengths,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    let transport = session.framework().transport;
    let mut hint_pps = None;
    for burst in lengths.bursts(session.framework().program) {
        let work = Work {
            burst: *burst,
            ..Work::default()
        };
        if !session.framework().has_generator() {
            let trial = throughput(session, work, None, lengths.trial, stop)?;
            series.trials.push(trial);
            continue;
        }
        let repeated = session.repeats();
        // Both trials share one forwarder, because its start takes longer than either.
        let ((capacity_pps, delayed), _) = session.with_forwarder(&work, stop, |generator| {
            let capacity_pps = capacity(generator, transport, lengths.trial, hint_pps, repeated);
            let rate_pps = capacity_pps * BELOW_SATURATION;
            (
                capacity_pps,
                latency(generator, work, rate_pps, lengths.trial),
            )
        })?;
        hint_pps = Some(capacity_pps);
        series.capacity_pps = Some(
            series
                .capacity_pps
                .map_or(capacity_pps, |c| c.max(capacity_pps)),
        );
        // Over rings, the generator offers as much as they accept; over veth, it offers the highest rate that the
        // kernel carries.
        let offered_pps = (transport == Transport::Veth).then_some(capacity_pps);
        let trial = throughput(session, work, offered_pps, lengths.trial, stop)?;
        series.trials.push(trial);
        series.trials.extend(delayed);
    }
    Ok(())
}

fn measure_walks(
    session: &mut Session<'_>,
    series: &mut Series,
    lengths: &Lengths,
    stop: &AtomicBool,
) -> Result<(), Failed> {
    let walks = lengths
        .lists
        .iter()
        .map(|bytes| Some((lengths.steps, *bytes)));
    for walk in std::iter::once(None).chain(walks) {
        let work = Work {
            walk,
            ..Work::default()
        };
        let trial = throughput(session, work, None, lengths.trial, stop)?;
        series.trials.push(trial);
    }
    Ok(())
}

/// Maximum number of attempts at a trial in which no packet comes through, each twice as long as the one before. An
/// interruption that lasts for a complete short trial is not the framework's fault.
const ATTEMPTS: u32 = 5;

/// Runs one trial of throughput.
fn throughput(
    session: &mut Session<'_>,
    work: Work,
    offered_pps: Option<f64>,
    duration: Duration,
    stop: &AtomicBool,
) -> Result<Trial, Failed> {
    let with_generator = session.framework().has_generator();
    let repeated = session.repeats();
    let mut last = Flow::default();
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            repeated(attempt);
        }
        let ((flow, counted), own) = session.with_forwarder(&work, stop, |generator| {
            generator.flood_counted(offered_pps, duration * 2_u32.pow(attempt))
        })?;
        let throughput_pps = if with_generator {
            flow.received_pps()
        } else {
            own.pps.unwrap_or(0.0)
        };
        if throughput_pps > 0.0 {
            let packets = |seconds: f64| {
                if with_generator {
                    flow.received_in_all as f64
                } else {
                    throughput_pps * seconds
                }
            };
            return Ok(Trial {
                work,
                offered_pps,
                sent_pps: with_generator.then(|| flow.sent_pps()),
                throughput_pps,
                own,
                events: counted.map_or_else(Events::new, |counted| {
                    per_packet(&counted, packets(counted.seconds))
                }),
                latency: None,
                generator_behind: flow.is_behind(),
            });
        }
        last = flow;
    }
    Err(Failed::Broken(format!(
        "no packet was forwarded ({} sent, {} refused)",
        last.sent, last.refused
    )))
}

/// Returns the counted events divided by `packets`; empty if there were no packets.
fn per_packet(counted: &EventCounts, packets: f64) -> Events {
    let counts = counted.counts.iter();
    counts
        .filter(|_| packets >= 1.0)
        .map(|(event, count)| (*event, count / packets))
        .collect()
}

/// Runs one trial of latency at `rate_pps`, or at the highest rate that the generator can offer with timestamps, if
/// that is lower; none without a generator.
fn latency(
    generator: &mut Generator<'_>,
    work: Work,
    rate_pps: f64,
    duration: Duration,
) -> Option<Trial> {
    let (mut rate_pps, mut measured) = (rate_pps, generator.latency(rate_pps, duration)?);
    let generator_behind = measured.0.generator_behind();
    if generator_behind {
        rate_pps = measured.0.sent as f64 / measured.0.seconds * BELOW_SATURATION;
        measured = generator.latency(rate_pps, duration)?;
    }
    let (tally, record) = measured;
    Some(Trial {
        work,
        offered_pps: Some(rate_pps),
        sent_pps: Some(tally.sent as f64 / tally.seconds),
        throughput_pps: tally.received as f64 / tally.seconds,
        // The forwarder's statistics also contain its earlier work.
        own: Own::default(),
        events: Events::new(),
        latency: Summary::from_histogram(&record.latency),
        generator_behind,
    })
}

/// Returns the highest rate that comes through, packets per second. Shared memory has backpressure, so this is the rate
/// at full speed. The kernel drops excess packets and wastes time on them, so over veth the rate is raised until
/// packets are lost. The first rate is a quarter of `hint_pps`, or without a hint of the rate at full speed, but at
/// least 5 kpkt/s.
fn capacity(
    generator: &mut Generator<'_>,
    transport: Transport,
    duration: Duration,
    hint_pps: Option<f64>,
    repeated: impl Fn(u32),
) -> f64 {
    const STEP: f64 = 1.3;
    const RUNGS: usize = 24;
    let mut full_pps = 0.0;
    for attempt in 0..ATTEMPTS {
        if attempt > 0 {
            repeated(attempt);
        }
        full_pps = generator
            .flood(None, duration * 2_u32.pow(attempt))
            .received_pps();
        if full_pps > 0.0 {
            break;
        }
    }
    if transport != Transport::Veth {
        return full_pps;
    }
    let mut rate_pps = hint_pps.unwrap_or(full_pps).max(20e3) / 4.0;
    let (mut best_pps, mut lost) = (full_pps, false);
    for _ in 0..RUNGS {
        let through_pps = generator.flood(Some(rate_pps), duration / 2).received_pps();
        best_pps = best_pps.max(through_pps);
        if through_pps >= rate_pps * (1.0 - CARRIED_LOSS) {
            (rate_pps, lost) = (rate_pps * STEP, false);
        } else if lost {
            break;
        } else {
            lost = true;
        }
    }
    best_pps
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use taut_sys::Event;

    #[test]
    fn event_counts_are_per_packet_and_absent_without_packets() {
        let counted = EventCounts {
            seconds: 0.5,
            counts: vec![(Event::Cycles, 5_000.0), (Event::LlcMisses, 250.0)],
        };
        let events = per_packet(&counted, 1_000.0);
        assert_eq!(
            (events[&Event::Cycles], events[&Event::LlcMisses]),
            (5.0, 0.25)
        );
        assert!(per_packet(&counted, 0.0).is_empty());
    }
}
