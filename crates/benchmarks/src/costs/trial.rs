//! One run at a design point: a worker at saturation, and the cost per packet from its counters.

use super::design::Point;
use super::lengths::Lengths;
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;
use taut_bench::benchmark::Failed;
use taut_bench::framework::{Session, Work};
use taut_engine::CountersView;
use taut_sys::Clock;
use taut_traffic::ping_pong;

/// The worker counts as the bottleneck if it spends at least this fraction of the time in iterations with packets.
const SATURATED: f64 = 0.95;

/// Maximum number of attempts at a run. A run is repeated if the distance between the cores changed during it.
const TRIES: u32 = 3;

/// Number of blocks of 64 round trips of a cache line. Between distant cores, all blocks take about a millisecond.
const LINE_BLOCKS: usize = 31;

/// Maximum ratio of the round trips of a cache line before and after a run, the longer to the shorter. Above this
/// ratio, a core counts as moved.
const SAME_WAY: f64 = 1.5;

/// The part that limits the rate of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The worker limits the rate: it was always busy.
    Device,
    /// The generator was the bottleneck: the worker waited for packets. The cost per packet is valid for the batches
    /// that the worker received.
    Generator,
}

/// A run at a design point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Id of the kind of port.
    pub port: String,
    /// Index of the run's point in the design.
    pub number: usize,
    /// The settings of the run.
    pub point: Point,
    /// Cycles per received packet in iterations with packets, without interruptions. The value is the median over all
    /// packets: each packet has the mean cost of its slice.
    pub cycles: f64,
    /// Cycles per received packet in each slice of the run.
    pub slices_cycles: Vec<f64>,
    /// Mean number of packets per received batch.
    pub batch: f64,
    /// Packets per second that the worker sent.
    pub rate_pps: f64,
    /// Fraction of the packets that were dropped because a ring was full.
    pub dropped: f64,
    /// Fraction of the time without interruptions that the worker spent in iterations with packets.
    pub busy: f64,
    /// Interrupted iterations per second.
    pub interruptions_per_s: f64,
    /// Fraction of the time that the worker spent in interrupted iterations.
    pub interrupted: f64,
    /// Round-trip cycles of a cache line between the cores of generator and worker, before and after the run; empty if
    /// not measured.
    #[serde(default)]
    pub line_cycles: Vec<f64>,
    /// The bottleneck of the run: the worker or the generator.
    pub bottleneck: Bottleneck,
}

impl Trial {
    /// Returns the round-trip cycles of a cache line between the two cores: the mean of before and after the run. It is
    /// none if the round trips were not measured, or if a core was moved during the run.
    pub fn line(&self) -> Option<f64> {
        match self.line_cycles[..] {
            [before, after] if !self.was_moved() => Some((before + after) / 2.0),
            _ => None,
        }
    }

    /// Returns true if the hypervisor moved a core during the run: the round trips of a cache line before and after the
    /// run differ.
    pub fn was_moved(&self) -> bool {
        let (least, most) = (self.line_cycles.iter())
            .fold((f64::INFINITY, 0.0_f64), |ends, line| {
                (ends.0.min(*line), ends.1.max(*line))
            });
        most > least * SAME_WAY
    }
}

/// Measures the run at `point` over the port of `session`, and repeats it if a core was moved during it.
pub(super) fn measure(
    session: &mut Session<'_>,
    point: (usize, Point),
    lengths: &Lengths,
    device: (usize, &Clock),
    stop: &AtomicBool,
) -> Result<Trial, Failed> {
    let mut trial = measure_once(session, point, lengths, device, stop)?;
    for _ in 1..TRIES {
        if !trial.was_moved() {
            break;
        }
        trial = measure_once(session, point, lengths, device, stop)?;
    }
    Ok(trial)
}

fn measure_once(
    session: &mut Session<'_>,
    (number, point): (usize, Point),
    lengths: &Lengths,
    (core, clock): (usize, &Clock),
    stop: &AtomicBool,
) -> Result<Trial, Failed> {
    let work = Work {
        burn_cycles: point.load_cycles,
        walk: None,
        forwards: point.functions,
        burst: point.burst as usize,
    };
    let port = session.framework().id.clone();
    let apart = session.framework().has_generator();
    let line = || apart.then(|| line_cycles(clock, core));
    let before = line();
    let (readings, _) = session.with_forwarder(&work, stop, |generator| {
        let mut readings: Vec<CountersView> = Vec::new();
        // A slice is the difference of two successive readings, so n slices need n + 1 readings. One more is taken,
        // because the first slice contains the time before the first packet.
        for _ in 0..lengths.slices + 2 {
            generator.flood(None, lengths.slice);
            readings.extend(generator.account());
        }
        readings
    })?;
    let after = line();
    let slices: Vec<CountersView> = readings
        .windows(2)
        .skip(1)
        .map(|pair| pair[1] - pair[0])
        .collect();
    let trial = of_slices(port, (number, point), &slices, clock.hz).ok_or_else(|| {
        Failed::Broken(format!(
            "the worker counted no packets in {} slices",
            slices.len()
        ))
    })?;
    Ok(Trial {
        line_cycles: before.into_iter().chain(after).collect(),
        ..trial
    })
}

/// Returns the cycles that a cache line takes from the generator's core, on which this thread runs, to `core` and back.
fn line_cycles(clock: &Clock, core: usize) -> f64 {
    let there_and_back = ping_pong(clock, LINE_BLOCKS, move || {
        // An error is ignored here, because starting the worker on the same core reports it.
        let _ = taut_host::pin_current_thread(core);
    });
    clock.to_ticks(there_and_back.p50_ns)
}

/// Returns the results of a run from the slices of the worker's counters; none if no packet was received.
fn of_slices(
    port: String,
    (number, point): (usize, Point),
    slices: &[CountersView],
    hz: f64,
) -> Option<Trial> {
    let cycles = slices
        .iter()
        .filter(|slice| slice.rx_packets > 0)
        .map(|slice| slice.own_busy_ticks() as f64 / slice.rx_packets as f64);
    let slices_cycles: Vec<f64> = cycles.collect();
    let all: CountersView = slices.iter().copied().sum();
    let seconds = all.total_ticks as f64 / hz;
    let had = all.total_ticks.saturating_sub(all.interrupted_ticks);
    let busy = (all.own_busy_ticks() as f64 / had.max(1) as f64).min(1.0);
    Some(Trial {
        port,
        number,
        point,
        cycles: median_packet(slices)?,
        slices_cycles,
        batch: all.average_batch(),
        rate_pps: all.tx_packets as f64 / seconds,
        dropped: all.dropped() as f64 / all.rx_packets as f64,
        busy,
        interruptions_per_s: all.interruptions as f64 / seconds,
        interrupted: all.interrupted(),
        line_cycles: Vec::new(),
        bottleneck: if busy >= SATURATED {
            Bottleneck::Device
        } else {
            Bottleneck::Generator
        },
    })
}

/// Returns the median cost per packet; none without packets. Each packet has the mean cost of its slice, so a slice
/// with long interruptions has few packets and thus little weight.
fn median_packet(slices: &[CountersView]) -> Option<f64> {
    let had = slices.iter().filter(|slice| slice.rx_packets > 0);
    let cost = |slice: &CountersView| slice.own_busy_ticks() as f64 / slice.rx_packets as f64;
    let mut costs: Vec<(f64, u64)> = had.map(|slice| (cost(slice), slice.rx_packets)).collect();
    costs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let all: u64 = costs.iter().map(|(_, packets)| packets).sum();
    let mut below = 0;
    let middle = costs.iter().find(|(_, packets)| {
        below += packets;
        2 * below >= all
    });
    middle.map(|(cost, _)| *cost)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const POINT: Point = Point {
        load_cycles: 100,
        functions: 1,
        frame_bytes: 64,
        burst: 32,
    };

    fn slice(packets: u64, busy_ticks: u64) -> CountersView {
        CountersView {
            rx_packets: packets,
            tx_packets: packets,
            batches: packets / 16,
            busy_ticks,
            total_ticks: 100_000,
            ..CountersView::default()
        }
    }

    #[test]
    fn one_interrupted_slice_does_not_change_the_cost() {
        let slices = [slice(800, 98_000), slice(800, 98_000), slice(80, 98_000)];
        let trial = of_slices("null".to_owned(), (0, POINT), &slices, 1e6).unwrap();
        assert_eq!((trial.cycles, trial.batch), (122.5, 16.0));
        assert_eq!(trial.bottleneck, Bottleneck::Device);
        assert!((trial.rate_pps - 5_600.0).abs() < 1e-9, "{trial:?}");
    }

    #[test]
    fn interruptions_count_neither_as_cost_nor_as_idle_time() {
        let taken = CountersView {
            interruptions: 4,
            interrupted_ticks: 50_000,
            taken_busy_ticks: 48_000,
            ..slice(800, 98_000)
        };
        let trial = of_slices("pair".to_owned(), (0, POINT), &[taken], 1e6).unwrap();
        assert_eq!((trial.cycles, trial.busy), (62.5, 1.0));
        assert_eq!(trial.bottleneck, Bottleneck::Device);
    }

    #[test]
    fn runs_with_a_migrated_core_yield_no_cache_line_cycles() {
        let of = |line_cycles: &[f64]| Trial {
            line_cycles: line_cycles.to_vec(),
            ..of_slices("pair".to_owned(), (0, POINT), &[slice(8, 80)], 1e6).unwrap()
        };
        assert_eq!(of(&[110.0, 130.0]).line(), Some(120.0));
        assert!(of(&[110.0, 1_050.0]).was_moved() && of(&[1_050.0, 110.0]).line().is_none());
        assert!(!of(&[]).was_moved() && of(&[110.0]).line().is_none());
    }

    #[test]
    fn the_generator_is_the_bottleneck_when_workers_wait_for_packets() {
        let slices = [slice(800, 60_000), slice(0, 0)];
        let trial = of_slices("pair".to_owned(), (0, POINT), &slices, 1e6).unwrap();
        assert_eq!((trial.cycles, trial.busy), (75.0, 0.3));
        assert_eq!(trial.bottleneck, Bottleneck::Generator);
        assert_eq!(
            of_slices("pair".to_owned(), (0, POINT), &slices[1..], 1e6),
            None
        );
    }
}
