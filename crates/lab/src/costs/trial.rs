//! One run at a design point: a worker at saturation, and what it says its packets cost it.

use super::design::Point;
use super::lengths::Lengths;
use crate::benchmark::Failed;
use crate::io_cost::{Session, Work};
use serde::{Deserialize, Serialize};
use std::sync::atomic::AtomicBool;
use taut_engine::CountersView;
use taut_measure::median;

/// Share of its time that a worker which is the bottleneck spends in rounds with packets, at least.
const SATURATED: f64 = 0.95;

/// What limited the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The worker: it was busy all the time.
    Device,
    /// The generator: the worker waited for packets. What it says of a packet's cost holds for the batches that it got.
    Generator,
}

/// A run at a design point.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// Id of the kind of port.
    pub port: String,
    /// Number of its point in the design.
    pub number: usize,
    /// What was set.
    pub point: Point,
    /// Ticks in rounds that had packets, per packet received: the median of all slices.
    pub cycles: f64,
    /// The same in each slice.
    pub slices_cycles: Vec<f64>,
    /// Packets per batch received.
    pub batch: f64,
    /// Packets per second that the worker sent.
    pub rate_pps: f64,
    /// Share of the packets that it dropped for want of room.
    pub dropped: f64,
    /// Share of its time in rounds that had packets.
    pub busy: f64,
    /// Rounds in which the core was taken away, per second, and their share of the time.
    pub interruptions_per_s: f64,
    /// Share of the time in them.
    pub interrupted: f64,
    /// What limited the rate.
    pub bottleneck: Bottleneck,
}

/// Measures `point` over the port of `session`.
pub(super) fn measure(
    session: &mut Session<'_>,
    (number, point): (usize, Point),
    lengths: &Lengths,
    hz: f64,
    stop: &AtomicBool,
) -> Result<Trial, Failed> {
    let work = Work {
        burn_cycles: point.load_cycles,
        walk: None,
        forwards: point.functions,
        burst: point.burst as usize,
    };
    let port = session.framework().id.clone();
    let (readings, _) = session.with_forwarder(&work, stop, |generator| {
        let mut readings: Vec<CountersView> = Vec::new();
        // One slice more: the first still has the time before the first packet in it.
        for _ in 0..lengths.slices + 2 {
            generator.flood(None, lengths.slice);
            readings.extend(generator.account());
        }
        readings
    })?;
    let slices: Vec<CountersView> = readings
        .windows(2)
        .skip(1)
        .map(|pair| pair[1] - pair[0])
        .collect();
    of_slices(port, (number, point), &slices, hz).ok_or_else(|| {
        Failed::Broken(format!(
            "the worker counted no packets in {} slices",
            slices.len()
        ))
    })
}

/// Returns what slices of a worker's account say. None if no packet came.
fn of_slices(
    port: String,
    (number, point): (usize, Point),
    slices: &[CountersView],
    hz: f64,
) -> Option<Trial> {
    let cycles = slices
        .iter()
        .filter(|slice| slice.rx_packets > 0)
        .map(|slice| slice.busy_ticks as f64 / slice.rx_packets as f64);
    let slices_cycles: Vec<f64> = cycles.collect();
    let all: CountersView = slices.iter().copied().sum();
    let seconds = all.total_ticks as f64 / hz;
    let busy = all.busy();
    Some(Trial {
        port,
        number,
        point,
        cycles: median(&slices_cycles)?,
        slices_cycles,
        batch: all.average_batch(),
        rate_pps: all.tx_packets as f64 / seconds,
        dropped: all.dropped() as f64 / all.rx_packets as f64,
        busy,
        interruptions_per_s: all.interruptions as f64 / seconds,
        interrupted: all.interrupted(),
        bottleneck: if busy >= SATURATED {
            Bottleneck::Device
        } else {
            Bottleneck::Generator
        },
    })
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
    fn a_slice_in_which_the_core_was_taken_away_does_not_move_the_cost() {
        let slices = [slice(800, 98_000), slice(800, 98_000), slice(80, 98_000)];
        let trial = of_slices("null".to_owned(), (0, POINT), &slices, 1e6).unwrap();
        assert_eq!((trial.cycles, trial.batch), (122.5, 16.0));
        assert_eq!(trial.bottleneck, Bottleneck::Device);
        assert!((trial.rate_pps - 5_600.0).abs() < 1e-9, "{trial:?}");
    }

    #[test]
    fn a_worker_that_waits_is_not_the_bottleneck_and_one_without_packets_says_nothing() {
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
