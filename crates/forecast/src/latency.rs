//! The latency of packets on a core at a given rate, from a simulation with ring, batches, flush policy and
//! interruptions.

use crate::ForecastError;
use schemars::JsonSchema;
use serde::Serialize;
use taut_engine::Flush as Policy;
use taut_model::queueing::{
    Arrivals, Flush, Observer, Processor, Release, ServiceTime, Vacations, replicate,
};

/// Number of simulation runs: the smallest for which quantiles have an interval of 95 %.
const RUNS: u64 = 6;
/// Names and fractions of the quantiles that are reported if enough packets are beyond them.
pub(crate) const QUANTILES: [(&str, f64); 5] = [
    ("p50", 0.5),
    ("p90", 0.9),
    ("p99", 0.99),
    ("p99.9", 0.999),
    ("p99.99", 0.9999),
];
/// Minimum number of packets beyond a quantile, over all runs, for it to be reported.
const BEYOND: f64 = 30.0;

/// The parameters of a simulated core.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Cycles for each packet, in addition to the cycles for the batch.
    pub packet_cycles: f64,
    /// Cycles for each batch, regardless of its number of packets.
    pub batch_cycles: f64,
    /// Clock of the core, Hz.
    pub clock_hz: f64,
    /// The arrival pattern of the packets.
    pub arrivals: Arrivals,
    /// Maximum number of packets received from the ring at a time.
    pub burst: usize,
    /// The policy by which buffered packets are sent.
    pub flush: Policy,
    /// Length of the receive ring, packets.
    pub ring: usize,
    /// The interruptions of the core.
    pub vacations: Vacations,
    /// The sender and receiver of the packets, on a core that may be interrupted; without an observer, sending and
    /// receiving are never delayed.
    pub observer: Option<Observer>,
    /// Time that packets spend between sender and core, the sum of both directions, ns.
    pub transfer_ns: f64,
    /// Number of packets in each run.
    pub packets: u64,
    /// Seed of the first run.
    pub seed: u64,
}

/// A quantile of the latency, with its interval over the runs of the simulation.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Quantile {
    /// Name of the quantile, such as `p99`.
    pub name: &'static str,
    /// Value of the quantile, ns.
    pub ns: f64,
    /// Lower end of the quantile's interval, ns.
    pub low_ns: f64,
    /// Upper end of the quantile's interval, ns.
    pub high_ns: f64,
    /// Probability that such an interval covers the true quantile of the simulation; it does not include errors of the
    /// model.
    pub confidence: f64,
}

/// The results of a simulation of a core.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Latency {
    /// Arriving packets per second.
    pub rate_pps: f64,
    /// Packets per second that the core sustains.
    pub saturation_pps: f64,
    /// Arrival rate as a fraction of the sustainable rate.
    pub load: f64,
    /// Fraction of the packets that arrived at a full receive ring and were lost.
    pub loss: f64,
    /// Mean number of packets in a batch.
    pub mean_batch: f64,
    /// Quantiles of the time from arrival to sending. With an observer, it is the time from when the observer sends a
    /// packet until it receives the packet.
    pub quantiles: Vec<Quantile>,
    /// Number of simulated packets.
    pub packets: u64,
}

impl Latency {
    /// Returns the quantile called `name`; `None` if too few packets were simulated for this quantile.
    pub fn quantile(&self, name: &str) -> Option<&Quantile> {
        self.quantiles.iter().find(|quantile| quantile.name == name)
    }
}

impl Asked {
    /// Simulates the core and returns its load, loss and latency.
    ///
    /// # Errors
    /// Costs, rates or the ring are invalid.
    pub fn forecast(&self) -> Result<Latency, ForecastError> {
        let processor = self.processor()?;
        let found = replicate(&processor, self.packets, RUNS, self.seed)?;
        let (rate, saturation) = (processor.rate_pps(), processor.saturation_pps());
        let arrived: u64 = found.runs.iter().map(|run| run.arrived).sum();
        let dropped: u64 = found.runs.iter().map(|run| run.dropped).sum();
        let batches: f64 = found.runs.iter().map(|run| run.mean_batch).sum();
        let told = QUANTILES
            .iter()
            .filter(|(_, q)| (1.0 - q) * found.latency.count() as f64 >= BEYOND);
        let quantiles = told.filter_map(|(name, q)| {
            let interval = found.quantile_ns(*q)?;
            Some(Quantile {
                name,
                ns: interval.point,
                low_ns: interval.low,
                high_ns: interval.high,
                confidence: interval.confidence,
            })
        });
        Ok(Latency {
            rate_pps: rate,
            saturation_pps: saturation,
            load: rate / saturation,
            loss: dropped as f64 / arrived.max(1) as f64,
            mean_batch: batches / RUNS as f64,
            quantiles: quantiles.collect(),
            packets: arrived,
        })
    }

    /// Returns the highest rate that the core sustains, packets per second.
    ///
    /// # Errors
    /// The errors of [`Asked::forecast`].
    pub fn saturation_pps(&self) -> Result<f64, ForecastError> {
        Ok(self.processor()?.saturation_pps())
    }

    fn processor(&self) -> Result<Processor, ForecastError> {
        let ns = |cycles: f64| cycles / self.clock_hz * 1e9;
        let service = ServiceTime::constant(ns(self.packet_cycles))?;
        let processor = Processor::new(self.arrivals, service)
            .with_batch_costs(ns(self.batch_cycles), 0.0)?
            // Packets are released by batch, because functions process a batch together.
            .with_receive_batch(self.burst, Release::Batch)?
            .with_flush(flush(self.flush))?
            .with_ring(self.ring)?;
        let processor = processor
            .with_transfer(self.transfer_ns)?
            .with_vacations(self.vacations.clone());
        Ok(match &self.observer {
            Some(observer) => processor.with_observer(observer.clone()),
            None => processor,
        })
    }
}

fn flush(policy: Policy) -> Flush {
    match policy {
        Policy::Each => Flush::Each,
        Policy::Full { n, drain } => Flush::Full {
            packets: n,
            drain_ns: drain.as_nanos() as f64,
        },
        Policy::Every { period } => Flush::Every {
            period_ns: period.as_nanos() as f64,
        },
        Policy::Idle { n } => Flush::Idle { packets: n },
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn asked(rate_pps: f64) -> Asked {
        Asked {
            packet_cycles: 300.0,
            batch_cycles: 0.0,
            clock_hz: 3e9,
            arrivals: Arrivals::poisson(rate_pps).unwrap(),
            burst: 1,
            flush: Policy::Each,
            ring: 1024,
            vacations: Vacations::none(),
            observer: None,
            transfer_ns: 0.0,
            packets: 100_000,
            seed: 1,
        }
    }

    #[test]
    fn latency_at_80_percent_load_agrees_with_the_closed_form() {
        let found = asked(8e6).forecast().unwrap();
        assert!((found.load - 0.8).abs() < 1e-9 && found.loss == 0.0);
        // For M/D/1 with a service time of 100 ns and a load of 0.8, the mean latency is 300 ns and the median about
        // 240 ns.
        let p50 = found.quantile("p50").unwrap();
        assert!((200.0..290.0).contains(&p50.ns), "{p50:?}");
        assert!(p50.low_ns <= p50.ns && p50.ns <= p50.high_ns && p50.confidence > 0.95);
    }

    #[test]
    fn overload_fills_the_ring_and_excess_packets_are_lost() {
        let found = asked(20e6).forecast().unwrap();
        assert!((found.loss - 0.5).abs() < 0.02, "{found:?}");
        assert!(found.quantile("p50").unwrap().ns > 1_000.0 * 90.0);
    }

    #[test]
    fn negative_or_infinite_packet_costs_are_refused() {
        for wrong in [-1.0, f64::NAN, f64::INFINITY] {
            let asked = Asked {
                packet_cycles: wrong,
                ..asked(1e6)
            };
            assert!(asked.forecast().is_err());
        }
    }
}
