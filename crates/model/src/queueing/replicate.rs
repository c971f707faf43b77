//! Several independent runs of a simulation: their quantiles with intervals, computed by `taut_measure` (order
//! statistics of the runs, without an assumption about their distribution).

use taut_measure::{Interval, LatencyHistogram, median_interval};

use super::processor::Processor;
use super::simulate::{Run, simulate};
use super::{QueueingError, at_least_one};

/// Confidence of the intervals, which takes at least six runs.
const CONFIDENCE: f64 = 0.95;

/// Runs of one processor with different seeds.
#[derive(Debug, Clone)]
pub struct Replicated {
    /// The runs, in the order of their seeds.
    pub runs: Vec<Run>,
    /// Latencies of all runs together.
    pub latency: LatencyHistogram,
}

/// Simulates `packets` arrivals at `processor` `runs` times, with seeds from `seed` on.
///
/// # Errors
/// There are no packets or no runs.
pub fn replicate(
    processor: &Processor,
    packets: u64,
    runs: u64,
    seed: u64,
) -> Result<Replicated, QueueingError> {
    at_least_one("runs of a simulation", runs)?;
    // Users often pass consecutive seeds; the seeds derived from them must not be consecutive.
    let seed_of = |run: u64| seed.wrapping_add(run).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let all: Result<Vec<Run>, _> = (0..runs)
        .map(|run| simulate(processor, packets, seed_of(run)))
        .collect();
    let runs = all?;
    let mut latency = LatencyHistogram::new();
    runs.iter().for_each(|run| latency.merge(&run.latency));
    Ok(Replicated { runs, latency })
}

impl Replicated {
    /// Returns quantile `q` of the latency, ns, with its interval over the runs; `None` if `q` is not a quantile or no
    /// packet was sent.
    pub fn quantile_ns(&self, q: f64) -> Option<Interval> {
        let each: Option<Vec<f64>> = self
            .runs
            .iter()
            .map(|run| Some(run.latency.quantile(q)? as f64))
            .collect();
        median_interval(&each?, CONFIDENCE)
    }

    /// Returns the mean latency, ns, with its interval.
    pub fn mean_latency_ns(&self) -> Option<Interval> {
        self.of(|run| run.mean_latency_ns)
    }

    /// Returns the median of the runs' maximum latencies, ns, with its confidence interval.
    pub fn max_ns(&self) -> Option<Interval> {
        self.quantile_ns(1.0)
    }

    /// Returns the share of packets that were dropped, 0..1, with its interval.
    pub fn loss(&self) -> Option<Interval> {
        self.of(Run::loss)
    }

    /// Returns the share of time that the cores worked on packets, 0..1, with its interval.
    pub fn utilisation(&self) -> Option<Interval> {
        self.of(|run| run.utilisation)
    }

    fn of(&self, value: impl Fn(&Run) -> f64) -> Option<Interval> {
        let each: Vec<f64> = self.runs.iter().map(value).collect();
        median_interval(&each, CONFIDENCE)
    }
}
